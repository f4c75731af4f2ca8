//! `muster tokens`: what lets a machine enrol.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_shared::{
    labels::{self, Labels},
    time::parse_duration,
    wire::{IssueTokenRequest, IssuedToken},
};

use crate::{client::Route, exit::Exit, failure::Failure, render::Format, session::Session, text};

#[derive(Subcommand, Debug)]
pub(crate) enum TokensCommand {
    /// Mint a bootstrap token; this is the only time it is shown
    Issue(IssueArgs),
}

#[derive(Args, Debug)]
pub(crate) struct IssueArgs {
    /// Labels for the nodes that enrol with it: role=web,tier=1
    #[arg(long, value_name = "K=V,...", value_parser = given_labels)]
    labels: Option<Labels>,
    /// How many nodes may enrol with it (control's default: 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    uses: Option<u32>,
    /// How long it lasts: 5m to 24h (control's default: 1h)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
}

pub(crate) async fn run(session: &Session, command: TokensCommand) -> Result<Exit, Failure> {
    match command {
        TokensCommand::Issue(args) => issue(session, args).await,
    }
}

async fn issue(session: &Session, args: IssueArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let request = IssueTokenRequest {
        labels: args.labels.unwrap_or_default(),
        uses: args.uses,
        ttl_seconds: args.ttl.map(|ttl| ttl.as_secs()),
    };
    let issued: IssuedToken = client
        .post(&Route::project(project, ["bootstrap-tokens"]), &request)
        .await?;
    let uses = text::count(usize::try_from(issued.uses).unwrap_or(usize::MAX), "node");
    session.screen.say(&format!(
        "good for {uses} until {}; it is not shown again. On the node, with the token in a file:\n  \
         musterd enroll --server {} --token-file FILE --ca-file FILE",
        issued.expires_at,
        client.server()
    ));
    match session.screen.format() {
        Format::Json => session.screen.json(&issued)?,
        Format::Table | Format::Wide | Format::Name | Format::Raw => session.screen.print(&issued.token)?,
    }
    Ok(Exit::Success)
}

fn given_labels(raw: &str) -> Result<Labels, labels::BadLabel> {
    let labels = labels::parse_list(raw)?;
    labels::check_given(&labels)?;
    Ok(labels)
}
