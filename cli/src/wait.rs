//! Waits for an execution on behalf of a person: progress, the limit on waiting, Ctrl-C.

use std::{future, time::Duration};

use muster_shared::{ids::ProjectId, time::parse_duration, wire::Execution};

use crate::{client::Client, exit::Exit, failure::Failure, follow, progress::Progress, render::Screen};

/// Ends with the settled execution, however often control goes away meanwhile.
pub(crate) async fn until_settled(
    client: &Client,
    project: ProjectId,
    execution: &Execution,
    limit: Option<Duration>,
    screen: &Screen,
) -> Result<Execution, Failure> {
    let mut progress = Progress::new(screen, execution);
    let over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => future::pending().await,
        }
    };
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // Where the signal cannot be caught, it ends the program by itself.
            future::pending::<()>().await;
        }
    };
    tokio::select! {
        settled = follow::until_settled(client, project, execution.id, |news| progress.tell(news)) => settled,
        () = over => Err(Failure::WaitOver { execution: execution.id, limit: limit.unwrap_or_default() }),
        () = interrupted => Err(Failure::Interrupted { execution: execution.id }),
    }
}

/// The exit code that a settled execution earns.
pub(crate) fn exit_of(execution: &Execution) -> Exit {
    Exit::of_targets(execution.targets.iter().map(|target| target.status))
}

/// A duration, as an argument, that is longer than nothing.
pub(crate) fn duration(raw: &str) -> Result<Duration, String> {
    let duration = parse_duration(raw)?;
    if duration.is_zero() {
        Err("it must be longer than nothing".to_owned())
    } else {
        Ok(duration)
    }
}
