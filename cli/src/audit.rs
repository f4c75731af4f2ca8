//! `muster audit`: who asked for what, and whether the record of it is still what was written.

use clap::{Args, Subcommand};
use muster_shared::{
    audit::{Anchor, AuditPage, AuditRow, Walk},
    ids::ProjectId,
    time::Timestamp,
    wire::Page,
};
use serde::Serialize;

use crate::{
    client::{Client, Route},
    exit::Exit,
    failure::Failure,
    render::Format,
    session::Session,
    table::{Cell, Table},
    text,
};

/// How many rows are read at a time: control's largest page.
const PAGE_LEN: u32 = 200;
const LIST_DEFAULT: usize = 50;

#[derive(Subcommand, Debug)]
pub(crate) enum AuditCommand {
    /// List the audit rows of the project's domain, newest first
    List(ListArgs),
    /// Walk the domain's chain of rows: names the first that was changed, moved or taken out, and ends with 1
    Verify(VerifyArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// How many [default: 50]
    #[arg(long, value_name = "N", value_parser = positive)]
    limit: Option<usize>,
    /// All of them, however many
    #[arg(long, conflicts_with = "limit")]
    all_pages: bool,
}

impl ListArgs {
    fn limit(&self) -> Option<usize> {
        (!self.all_pages).then_some(self.limit.unwrap_or(LIST_DEFAULT))
    }

    /// Whoever chose a limit knows of it.
    fn notice(&self, cut: bool) -> Option<&'static str> {
        (cut && self.limit.is_none()).then_some("there are more: --limit N, --all-pages")
    }
}

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The end of the chain as an earlier verify printed it: proves that it was not written anew since
    #[arg(long, value_name = "SEQ:HASH")]
    anchor: Option<Anchor>,
}

fn positive(raw: &str) -> Result<usize, String> {
    raw.parse()
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| "a number from 1".to_owned())
}

pub(crate) async fn run(session: &Session, command: AuditCommand) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    match command {
        AuditCommand::List(args) => {
            let route = Route::new(["v1", "audit"]).with("project_id", Some(project));
            let rows: Page<AuditRow> = client.pages(&route, args.limit()).await?;
            session.screen.list(
                &rows.items,
                "audit rows",
                |row| row.seq.to_string(),
                |rows, wide| table(rows, wide, Timestamp::now()),
            )?;
            if let Some(notice) = args.notice(rows.next_cursor.is_some()) {
                session.screen.say(notice);
            }
            Ok(Exit::Success)
        }
        AuditCommand::Verify(args) => verify(session, &client, project, args.anchor).await,
    }
}

#[derive(Serialize)]
struct Verified {
    /// The last row.
    rows: u64,
    anchor: String,
    /// The last row that was pruned; those after it hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pruned: Option<u64>,
}

async fn verify(
    session: &Session,
    client: &Client,
    project: ProjectId,
    anchor: Option<Anchor>,
) -> Result<Exit, Failure> {
    let route = Route::new(["v1", "audit"])
        .with("project_id", Some(project))
        .with("order", Some("oldest"))
        .with("limit", Some(PAGE_LEN));
    let mut page: AuditPage = client.get(&route).await?;
    let mut walk = Walk::new(page.head, anchor);
    let outcome = loop {
        let begun = walk.begins_after(page.pruned);
        if let Err(broken) = begun.and_then(|()| page.items.iter().try_for_each(|row| walk.step(row))) {
            break Err(broken);
        }
        match &page.next_cursor {
            Some(cursor) => page = client.get(&route.clone().with("cursor", Some(cursor))).await?,
            None => break walk.end(page.head),
        }
    };
    let last = walk.last();
    if let Err(broken) = outcome {
        session.screen.say(&format!(
            "muster: the audit chain is broken: {broken}\n  the rows up to {} hold",
            last.seq
        ));
        return Ok(Exit::Other);
    }
    let verified = Verified {
        rows: last.seq,
        anchor: last.to_string(),
        pruned: page.pruned.map(|pruned| pruned.seq),
    };
    match session.screen.format() {
        Format::Json => session.screen.json(&verified)?,
        Format::Table | Format::Wide | Format::Name | Format::Raw => {
            session.screen.print(&verified.anchor)?
        }
    }
    let before = verified.pruned.unwrap_or(0);
    let rows = usize::try_from(last.seq - before).unwrap_or(usize::MAX);
    session.screen.say(&match verified.pruned {
        None => format!("{} hold", text::count(rows, "row")),
        Some(before) => format!(
            "{} hold; those up to {before} were pruned when their retention was over, as the chain itself says",
            text::count(rows, "row")
        ),
    });
    Ok(Exit::Success)
}

fn table(rows: &[AuditRow], wide: bool, now: Timestamp) -> Table {
    let header = [
        "SEQ", "AGE", "SUBJECT", "RELATION", "RESOURCE", "OUTCOME", "DETAIL",
    ];
    let mut table = Table::new(&header, &["AT", "CORRELATION", "HASH"], wide);
    for row in rows {
        let outcome = if row.outcome == "granted" {
            Cell::good(&row.outcome)
        } else {
            Cell::odd(&row.outcome)
        };
        table.row([
            row.seq.to_string().into(),
            text::age(now, row.at).into(),
            row.subject.as_str().into(),
            row.relation.as_str().into(),
            row.resource.as_str().into(),
            outcome,
            row.detail.as_deref().into(),
            row.at.to_string().into(),
            row.correlation_id.map(|id| id.to_string()).into(),
            row.hash.to_string().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_nobody_limited_says_that_it_is_cut() {
        let args = |limit, all_pages| ListArgs { limit, all_pages };
        assert_eq!(args(None, false).limit(), Some(LIST_DEFAULT));
        assert!(args(None, false).notice(true).is_some());
        assert_eq!(args(None, false).notice(false), None);
        assert_eq!(args(Some(3), false).limit(), Some(3));
        assert_eq!(args(Some(3), false).notice(true), None);
        assert_eq!(args(None, true).limit(), None);
    }
}
