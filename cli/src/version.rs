//! `muster version`: this program's version and, where a server is known, control's.

use muster_shared::wire::VersionInfo;
use serde::Serialize;

use crate::{
    client::{Client, Route},
    exit::Exit,
    failure::Failure,
    session::Session,
    table::Table,
    text,
};

const CLIENT: &str = env!("CARGO_PKG_VERSION");

#[derive(Serialize)]
struct Versions {
    client: ClientVersion,
    server: Option<VersionInfo>,
}

#[derive(Serialize)]
struct ClientVersion {
    version: &'static str,
}

/// Shows its own version even when control does not answer, and then fails as any other command does.
pub(crate) async fn run(session: &Session) -> Result<Exit, Failure> {
    let asked = ask(session).await;
    let (server, failure) = match asked {
        Ok(server) => (server, None),
        Err(failure) => (None, Some(failure)),
    };
    let versions = Versions {
        client: ClientVersion { version: CLIENT },
        server,
    };
    session
        .screen
        .one(&versions, |_| CLIENT.to_owned(), |versions, _| facts(versions))?;
    failure.map_or(Ok(Exit::Success), Err)
}

async fn ask(session: &Session) -> Result<Option<VersionInfo>, Failure> {
    let settings = session.settings()?;
    if !settings.has_server() {
        return Ok(None);
    }
    let client = Client::new(&settings, false)?;
    client.get(&Route::new(["v1", "version"])).await.map(Some)
}

fn facts(versions: &Versions) -> Table {
    let mut table = Table::default();
    table.fact("Client", versions.client.version);
    if let Some(server) = &versions.server {
        table.fact("Server", server.version.as_str());
        table.fact(
            "Server commit",
            format!("{} of {}", text::clip(&server.commit, 15), server.date),
        );
    }
    table
}
