//! How the state of a daemon is shown to people. Only words: everything in it was found out before.

use std::time::Duration;

use muster_shared::{
    ids::ExecutionId,
    time::{Timestamp, span},
};

use super::{DaemonState, KeptHere, RunningHere, Status};
use crate::{
    link::Link,
    policy::Line,
    session::overview::{Kept, Owed, Unknown, Untold, Waiting},
    tool::render::{self, or_dash},
};

/// How many of those that control does not know the table has; `-o json` has all.
const UNKNOWN_SHOWN_MAX: usize = 50;

/// Everything there is to say, in tables; what there is none of is left out.
pub(super) fn of(status: &Status, now: Timestamp) -> String {
    let mut parts = vec![render::facts(&head(status, now))];
    let down = matches!(status.daemon, DaemonState::Down | DaemonState::Mute { .. });
    if !status.running.is_empty() {
        let rows: Vec<_> = status
            .running
            .iter()
            .map(|here| running_row(here, down, now))
            .collect();
        parts.push(render::table(
            &["RUNNING", "ACTION", "SINCE", "PID", "UNIT", "NOTE"],
            &rows,
        ));
    }
    if !status.waiting.is_empty() {
        let rows: Vec<_> = status
            .waiting
            .iter()
            .map(|waiting| waiting_row(waiting, down, now))
            .collect();
        parts.push(render::table(
            &["QUEUE", "WAITING", "ACTION", "EXPIRES IN", "WAITS FOR"],
            &rows,
        ));
    }
    if !status.untold.is_empty() {
        let rows: Vec<_> = status.untold.iter().map(untold_row).collect();
        parts.push(render::table(
            &["NOT TOLD YET", "ACTION", "STATUS", "ERROR"],
            &rows,
        ));
    }
    if !status.outputs_owed.is_empty() {
        let rows: Vec<_> = status
            .outputs_owed
            .iter()
            .map(|owed| owed_row(owed, now))
            .collect();
        parts.push(render::table(&["OUTPUT OWED", "SIZE", "SINCE"], &rows));
    }
    if !status.outputs_kept.is_empty() {
        let rows: Vec<_> = status
            .outputs_kept
            .iter()
            .map(|kept| kept_row(kept, now))
            .collect();
        parts.push(render::table(&["OUTPUT KEPT", "SIZE", "SINCE", "FILE"], &rows));
    }
    if !status.unknown_to_control.is_empty() {
        let rows: Vec<_> = status
            .unknown_to_control
            .iter()
            .take(UNKNOWN_SHOWN_MAX)
            .map(|unknown| unknown_row(unknown, now))
            .collect();
        parts.push(render::table(
            &["UNKNOWN TO CONTROL", "ACTION", "STATUS", "ERROR", "SINCE"],
            &rows,
        ));
    }
    if !status.policy.is_empty() {
        let rows: Vec<_> = status.policy.iter().map(policy_row).collect();
        parts.push(render::table(&["POLICY", "NOW"], &rows));
    }
    parts.join("\n\n")
}

fn head(status: &Status, now: Timestamp) -> Vec<(&'static str, String)> {
    let daemon = match &status.daemon {
        DaemonState::Running {
            pid,
            version,
            started_at,
        } => format!(
            "running for {} (pid {pid}, version {version})",
            span(*started_at, now)
        ),
        DaemonState::Mute { why } => format!("gives no answer: {why}; below is what the journal says"),
        DaemonState::Down => "not running; below is what the journal says".to_owned(),
    };
    let node = status.node.as_ref().map_or_else(
        || "not enrolled: run `musterd enroll`".to_owned(),
        |node| format!("{} ({})", node.name, node.node_id),
    );
    let mut facts = vec![("Daemon", daemon), ("Node", node)];
    if let Some(node) = &status.node {
        facts.push(("Control", node.server.clone()));
    }
    if let Some(link) = &status.link {
        facts.push(("Stream", link_text(link, now)));
    }
    if let Some(limits) = &status.limits {
        facts.push((
            "Running",
            format!("{} of {}", status.running.len(), limits.running_max),
        ));
        facts.push((
            "Waiting",
            format!("{} of {}", status.waiting.len(), limits.queue_max),
        ));
    } else {
        facts.push(("Running", status.running.len().to_string()));
        facts.push(("Waiting", status.waiting.len().to_string()));
    }
    facts.push(("Not told yet", status.untold.len().to_string()));
    let owed: u64 = status.outputs_owed.iter().map(|owed| owed.bytes).sum();
    facts.push((
        "Outputs owed",
        format!("{} ({})", status.outputs_owed.len(), render::bytes(owed)),
    ));
    if !status.outputs_kept.is_empty() {
        let count = status.outputs_kept.len();
        facts.push((
            "Outputs kept",
            format!("{count}; control knows another end of theirs and takes none"),
        ));
    }
    if !status.unknown_to_control.is_empty() {
        let count = status.unknown_to_control.len();
        facts.push((
            "Unknown to control",
            format!("{count}; their results are kept here, in the journal and under runs/"),
        ));
    }
    let journal = status.journal.as_ref();
    facts.push((
        "Journal",
        or_dash(journal.map(|journal| render::bytes(journal.bytes))),
    ));
    facts
}

fn link_text(link: &Link, now: Timestamp) -> String {
    if link.connected {
        return format!("connected for {}", span(link.since, now));
    }
    let mut text = format!("not connected for {}", span(link.since, now));
    if let Some(error) = &link.last_error {
        text.push_str(&format!(" ({} failed attempts): {error}", link.failures));
    }
    match link.next_attempt_at {
        Some(at) if now.until(at) > Duration::ZERO => {
            text.push_str(&format!("; next attempt in {}", span(now, at)))
        }
        Some(_) => text.push_str("; an attempt is under way"),
        None => {}
    }
    text
}

fn policy_row(line: &Line) -> Vec<String> {
    let now = if line.denies_now {
        "denied by its hours"
    } else {
        ""
    };
    vec![line.says.clone(), now.to_owned()]
}

fn running_row(here: &RunningHere, down: bool, now: Timestamp) -> Vec<String> {
    let running = &here.running;
    let note = match (down, here.supervisor_pid, running.cancel_asked) {
        (true, None, _) => "its end is taken up when the daemon starts",
        (_, _, true) => "is being cancelled",
        (true, Some(_), false) => "runs on without a daemon",
        (false, _, false) => "",
    };
    vec![
        running.execution_id.to_string(),
        running.action.to_string(),
        or_dash(running.since.map(|since| span(since, now))),
        or_dash(here.pid),
        or_dash(here.unit.as_ref()),
        note.to_owned(),
    ]
}

fn untold_row(untold: &Untold) -> Vec<String> {
    vec![
        untold.execution_id.to_string(),
        untold.action.to_string(),
        untold.status.to_string(),
        or_dash(untold.error.as_ref()),
    ]
}

fn unknown_row(unknown: &Unknown, now: Timestamp) -> Vec<String> {
    vec![
        unknown.execution_id.to_string(),
        unknown.action.to_string(),
        unknown.status.to_string(),
        or_dash(unknown.error.as_ref()),
        span(unknown.since, now),
    ]
}

fn owed_row(owed: &Owed, now: Timestamp) -> Vec<String> {
    vec![
        owed.execution_id.to_string(),
        render::bytes(owed.bytes),
        span(owed.since, now),
    ]
}

fn kept_row(kept: &KeptHere, now: Timestamp) -> Vec<String> {
    let mut row = owed_row(&kept.owed, now);
    row.push(kept.file.display().to_string());
    row
}

fn waiting_row(waiting: &Waiting, down: bool, now: Timestamp) -> Vec<String> {
    vec![
        or_dash(waiting.position),
        waiting.execution_id.to_string(),
        waiting.action.to_string(),
        span(now, waiting.deadline),
        waits_for(waiting, down),
    ]
}

fn waits_for(waiting: &Waiting, down: bool) -> String {
    if down {
        return "the daemon".to_owned();
    }
    let mut reasons: Vec<String> = Vec::new();
    if waiting.control_unheard {
        reasons.push("control, not heard since the start".to_owned());
    }
    if waiting.all_slots_taken {
        reasons.push("a free slot (running_max)".to_owned());
    }
    match waiting.slot_kept_for {
        Some(Kept::ReadOnly) => {
            reasons.push("a slot that is not kept for what only looks (running_max)".to_owned());
        }
        Some(Kept::Changes) => {
            reasons.push("a slot that is not kept for what changes something (running_max)".to_owned());
        }
        None => {}
    }
    for behind in &waiting.behind {
        let what = match &behind.affinity[..] {
            [] => "one of the two may change anything".to_owned(),
            shared => format!("both change {}", shared.join(", ")),
        };
        reasons.push(format!(
            "{} {}: {what}",
            behind.action,
            short(behind.execution_id)
        ));
    }
    if waiting.behind_more {
        reasons.push("and others before it".to_owned());
    }
    reasons.join("; ")
}

/// The end of an id tells two of the same minute apart; the beginning does not.
fn short(execution: ExecutionId) -> String {
    let text = execution.to_string();
    text.rsplit('-').next().unwrap_or_default().to_owned()
}
