//! `muster violations` and `muster violation`: where what ran, or would have run, is not what was pinned.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use muster_shared::{
    ids::{NodeId, RowId},
    time::Timestamp,
    wire::{AcknowledgeRequest, Page, ViolationRow},
};

use crate::{client::Route, exit::Exit, failure::Failure, lookup, session::Session, table::Table, text};

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only of this node, by name, id, or the beginning of its id
    #[arg(long)]
    node: Option<String>,
    /// Only those that are open, acknowledged or resolved
    #[arg(long, value_parser = ["open", "acknowledged", "resolved"])]
    status: Option<String>,
    /// Only of this kind: binary, hook or host_key
    #[arg(long, value_parser = ["binary", "hook", "host_key"])]
    kind: Option<String>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ViolationCommand {
    /// Note that you looked into it, and why it may rest; who acknowledged it first stays
    Ack(AckArgs),
}

#[derive(Args, Debug)]
pub(crate) struct AckArgs {
    /// The violation's id, as `muster violations` lists it
    id: RowId,
    /// What was found
    #[arg(long)]
    reason: String,
}

pub(crate) async fn run(session: &Session, command: ViolationCommand) -> Result<Exit, Failure> {
    let ViolationCommand::Ack(AckArgs { id, reason }) = command;
    let (client, project) = session.control()?;
    let id = id.to_string();
    let route = Route::new(["v1", "integrity-violations", &id, "acknowledge"]);
    let row: ViolationRow = client.post(&route, &AcknowledgeRequest { reason }).await?;
    let names = lookup::names(&client, project).await?;
    session.screen.one(
        &row,
        |row| row.id.to_string(),
        |row, wide| table(std::slice::from_ref(row), &names, wide, Timestamp::now()),
    )?;
    Ok(Exit::Success)
}

pub(crate) async fn list(session: &Session, args: ListArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let node = match &args.node {
        Some(wanted) => Some(lookup::node_id(&client, project, wanted).await?),
        None => None,
    };
    let route = Route::new(["v1", "integrity-violations"])
        .with("project_id", Some(project))
        .with("node_id", node)
        .with("status", args.status)
        .with("kind", args.kind);
    let rows: Page<ViolationRow> = client.pages(&route, None).await?;
    let names = lookup::names(&client, project).await?;
    session.screen.list(
        &rows.items,
        "violations",
        |row| row.id.to_string(),
        |rows, wide| table(rows, &names, wide, Timestamp::now()),
    )?;
    Ok(Exit::Success)
}

fn table(rows: &[ViolationRow], names: &BTreeMap<NodeId, String>, wide: bool, now: Timestamp) -> Table {
    let header = [
        "ID", "NODE", "KIND", "ARTIFACT", "STATUS", "EXPECTED", "OBSERVED", "AGE",
    ];
    let mut table = Table::new(&header, &["DETECTED", "ACKNOWLEDGED BY", "REASON"], wide);
    for row in rows {
        let digest = |digest| {
            if wide {
                format!("{digest}")
            } else {
                text::digest_short(digest)
            }
        };
        table.row([
            row.id.to_string().into(),
            names
                .get(&row.node_id)
                .cloned()
                .unwrap_or_else(|| row.node_id.to_string())
                .into(),
            row.kind.as_str().into(),
            row.artifact_id.as_str().into(),
            row.status.as_str().into(),
            row.expected.map(digest).into(),
            row.observed.map(digest).into(),
            text::age(now, row.detected_at).into(),
            row.detected_at.to_string().into(),
            row.acknowledged_by_subject.as_deref().into(),
            row.acknowledge_reason.as_deref().into(),
        ]);
    }
    table
}
