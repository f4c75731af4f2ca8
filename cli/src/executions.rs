//! `muster executions`: what was dispatched, newest first.

use clap::Args;
use muster_shared::{
    ids::{ActionName, NodeId, ProjectId},
    status::Status,
    time::{Timestamp, parse_duration},
    wire::{Execution, Page},
};

use crate::{
    client::{Client, Route},
    exit::Exit,
    failure::Failure,
    lookup, progress,
    session::Session,
    table::Table,
    target::parse_selector,
    text,
};

const LIMIT_DEFAULT: u32 = 50;

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only those that rest in this status: pending, ack, started, succeeded, failed, cancelled, timeout
    #[arg(long)]
    status: Option<Status>,
    /// Only those of this action
    #[arg(long)]
    action: Option<ActionName>,
    /// Only those that had this node among their targets, by name, id, or the beginning of its id; a removed one by its id
    #[arg(long)]
    node: Option<String>,
    /// Only those that had a node among their targets which has these labels now
    #[arg(short = 'l', long, value_parser = parse_selector)]
    selector: Option<String>,
    /// Only those made since: 2h (ago), or an instant such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only those made before: 2h (ago), or an instant
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    until: Option<Timestamp>,
    /// How many [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// All of them, however many
    #[arg(long, conflicts_with = "limit")]
    all_pages: bool,
}

pub(crate) async fn list(session: &Session, args: ListArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let node = match &args.node {
        Some(wanted) => Some(node_ever(&client, project, wanted).await?),
        None => None,
    };
    let route = Route::project(project, ["executions"])
        .with("status", args.status)
        .with("action_name", args.action.as_ref())
        .with("node_id", node)
        .with("selector", args.selector.as_ref())
        .with("created_after", args.since)
        .with("created_before", args.until);
    let limit = args.limit.unwrap_or(LIMIT_DEFAULT);
    let limit = if args.all_pages {
        None
    } else {
        usize::try_from(limit).ok()
    };
    let page: Page<Execution> = client
        .pages(&route, limit)
        .await
        .map_err(|err| err.about_selector(args.selector.as_deref()))?;
    session.screen.list(
        &page.items,
        "executions",
        |execution| execution.id.to_string(),
        table,
    )?;
    // Whoever chose a limit knows of it.
    if page.next_cursor.is_some() && args.limit.is_none() {
        session.screen.say("there are more: --limit N, --all-pages");
    }
    Ok(Exit::Success)
}

/// What was dispatched to a node outlives it; its name may be another node's by then.
async fn node_ever(client: &Client, project: ProjectId, wanted: &str) -> Result<NodeId, Failure> {
    lookup::node_id(client, project, wanted)
        .await
        .map_err(|err| err.with_remedy("removed nodes go by their id"))
}

/// How long ago, or when: `2h`, `2026-01-31T12:00:00Z`.
fn moment(raw: &str) -> Result<Timestamp, String> {
    moment_at(raw, Timestamp::now())
}

fn moment_at(raw: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(at) = raw.parse() {
        return Ok(at);
    }
    let ago = parse_duration(raw).map_err(|err| format!("{err}; or an instant as 2026-01-31T12:00:00Z"))?;
    Ok(now.minus(ago))
}

fn table(executions: &[Execution], wide: bool) -> Table {
    table_at(executions, wide, Timestamp::now())
}

fn table_at(executions: &[Execution], wide: bool, now: Timestamp) -> Table {
    let header = ["ID", "ACTION", "STATUS", "TARGETS", "AGE"];
    let more = ["TYPE", "SELECTOR", "TIMEOUT", "REQUESTED BY", "CREATED"];
    let mut table = Table::new(&header, &more, wide);
    for execution in executions {
        table.row([
            execution.id.to_string().into(),
            execution.action.as_str().into(),
            execution.status.into(),
            progress::counted(&execution.target_counts).into(),
            text::age(now, execution.created_at).into(),
            execution.kind.as_str().into(),
            execution.selector.as_deref().into(),
            format!("{}s", execution.timeout_seconds).into(),
            execution.requested_by.as_str().into(),
            execution.created_at.to_string().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution_show::tests::execution;

    #[test]
    fn a_moment_is_an_instant_or_how_long_ago() {
        let now = Timestamp::from_millis(7_200_000);
        let at = |raw: &str| moment_at(raw, now).map(Timestamp::as_millis);
        assert_eq!(at("2h"), Ok(0));
        assert_eq!(at("1970-01-01T01:00:00+01:00"), Ok(0));
        for bad in ["", "yesterday", "-2h", "2026-01-31"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_row_says_what_ran_where_it_stands_and_how_long_ago() {
        let one = execution(&[("web-1", Status::Succeeded), ("web-2", Status::Failed)]);
        assert_eq!(
            table_at(std::slice::from_ref(&one), false, Timestamp::from_millis(180_000)).render(false),
            format!(
                "ID                                    ACTION  STATUS  TARGETS                AGE\n\
                 {}  backup  failed  1 succeeded, 1 failed  3m",
                one.id
            )
        );
    }
}
