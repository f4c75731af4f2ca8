//! An execution as people read it: what was asked, and what became of it on each node.

use muster_shared::wire::{Execution, ExecutionDetail, ExecutionTarget, TimelineEvent};

use crate::{
    execution_rollout,
    failure::Failure,
    progress,
    render::{Format, Screen},
    table::{Cell, Table},
    text,
};

/// The longest error that the table shows; the wide view and JSON have it whole.
const ERROR_LEN_MAX: usize = 80;

/// The outcome alone, for whoever just waited for it.
pub(crate) fn report(screen: &Screen, execution: &Execution) -> Result<(), Failure> {
    screen.one(execution, |execution| execution.id.to_string(), targets)
}

/// The outcome, what was asked, and how it came there.
pub(crate) fn describe(
    screen: &Screen,
    detail: &ExecutionDetail,
    whole_timeline: bool,
) -> Result<(), Failure> {
    let execution = &detail.execution;
    let for_people = matches!(screen.format(), Format::Table | Format::Wide);
    if for_people {
        screen.table(&facts(execution))?;
        screen.print("")?;
    }
    screen.one(
        detail,
        |detail| detail.execution.id.to_string(),
        |detail, wide| targets(&detail.execution, wide),
    )?;
    if for_people && whole_timeline {
        screen.print("")?;
        screen.table(&timeline(&detail.timeline))?;
    } else if for_people && detail.timeline.iter().any(|event| event.late) {
        screen.say("there is news that came too late to count: --timeline");
    }
    Ok(())
}

fn timeline(events: &[TimelineEvent]) -> Table {
    let mut table = Table::new(&["AT", "NODE", "FROM", "TO", "LATE", "DETAIL"], &[], false);
    for event in events {
        table.row([
            event.at.to_string().into(),
            event.node_name.as_str().into(),
            event.from.map_or_else(|| "-".into(), Cell::from),
            event.to.into(),
            if event.late { Cell::odd("late") } else { "-".into() },
            event.detail.as_deref().into(),
        ]);
    }
    table
}

fn facts(execution: &Execution) -> Table {
    let mut table = Table::default();
    table.fact("Execution", execution.id.to_string());
    table.fact(
        "Action",
        format!("{} ({})", execution.action, execution.kind.as_str()),
    );
    table.fact("Status", execution.status);
    table.fact("Targets", progress::counted(&execution.target_counts));
    if let Some(rollout) = &execution.rollout {
        table.fact("Waves", execution_rollout::plan(&rollout.plan));
        table.fact("Rollout", execution_rollout::standing(rollout));
        if let Some(reason) = &rollout.reason {
            table.fact("Stopped", reason.as_str());
        }
        table.fact("Rollout ends", rollout.ends_at.to_string());
    }
    if let Some(selector) = &execution.selector {
        table.fact("Selector", selector.as_str());
    }
    if let Some(parameters) = &execution.parameters {
        table.fact(
            "Parameters",
            serde_json::Value::from(parameters.clone()).to_string(),
        );
    }
    if let Some(seconds) = execution.deliver_within_seconds {
        table.fact("Deliver within", format!("{seconds} s"));
    }
    table.fact(
        "Timeout",
        format!("{} s, until {}", execution.timeout_seconds, execution.expires_at),
    );
    table.fact("Requested by", execution.requested_by.as_str());
    table.fact("Created", execution.created_at.to_string());
    table.fact("Updated", execution.updated_at.to_string());
    table
}

/// One row per node, by name.
fn targets(execution: &Execution, wide: bool) -> Table {
    let header = ["NODE", "STATUS", "EXIT", "ERROR", "OUTPUT"];
    let mut table = Table::new(&header, &["ID", "TOOK", "STARTED", "ENDED"], wide);
    let mut targets: Vec<_> = execution.targets.iter().collect();
    targets.sort_by_key(|target| (name(target), target.node_id));
    for target in targets {
        let took = target
            .started_at
            .zip(target.ended_at)
            .map(|(from, to)| text::took(from.until(to)));
        table.row([
            name(target).into(),
            status(target),
            target.exit_code.into(),
            error(target, wide),
            output(target).into(),
            target.node_id.to_string().into(),
            took.into(),
            target.started_at.into(),
            target.ended_at.into(),
        ]);
    }
    table
}

/// What a rollout holds back is `pending`, and its node knows nothing of it.
fn status(target: &ExecutionTarget) -> Cell {
    if target.held {
        format!("{} (held)", target.status).into()
    } else {
        target.status.into()
    }
}

/// How the action ended, and what became of its output where that went wrong.
fn error(target: &ExecutionTarget, wide: bool) -> Cell {
    let texts: Vec<&str> = [&target.error, &target.output_error]
        .into_iter()
        .filter_map(|text| text.as_deref())
        .filter(|text| !text.is_empty())
        .collect();
    if texts.is_empty() {
        return "-".into();
    }
    let error = texts.join("; ");
    if wide {
        error.into()
    } else {
        text::clip(&text::line(&error), ERROR_LEN_MAX).into_owned().into()
    }
}

/// How much there is of it, and of how much.
fn output(target: &ExecutionTarget) -> Option<String> {
    if target.output_error.is_some() && target.output_ref.is_none() {
        return Some("missing".to_owned());
    }
    let kept = text::size(target.output_bytes?);
    let whole = target.output_total_bytes.filter(|_| target.output_truncated);
    Some(match whole {
        Some(whole) => format!("{kept} of {}", text::size(whole)),
        None => kept,
    })
}

/// Every node has a name; an answer without one still tells its nodes apart.
pub(crate) fn name(target: &ExecutionTarget) -> String {
    target
        .node_name
        .clone()
        .unwrap_or_else(|| target.node_id.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use muster_shared::{
        ids::{DomainId, ExecutionId, NodeId, ProjectId},
        status::{Status, fold},
        time::Timestamp,
        wire::ActionKind,
    };

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    pub(crate) fn execution(targets: &[(&str, Status)]) -> Execution {
        let mut target_counts = BTreeMap::new();
        for (_, status) in targets {
            *target_counts.entry(*status).or_default() += 1;
        }
        let target = |(n, (name, status)): (u8, &(&str, Status))| ExecutionTarget {
            node_id: NodeId::mint(at(0), [n; 10]),
            status: *status,
            created_at: at(0),
            updated_at: at(0),
            output_ref: None,
            node_name: Some((*name).to_owned()),
            exit_code: None,
            error: None,
            started_at: None,
            ended_at: None,
            output_bytes: None,
            output_total_bytes: None,
            output_truncated: false,
            output_error: None,
            cancel_requested_at: None,
            held: false,
            released_at: None,
            deliver_by: None,
            expires_at: None,
        };
        Execution {
            id: ExecutionId::mint(at(0), [1; 10]),
            project_id: ProjectId::mint(at(0), [2; 10]),
            domain_id: DomainId::mint(at(0), [3; 10]),
            action: "backup".parse().unwrap(),
            kind: ActionKind::Hook,
            status: fold(targets.iter().map(|(_, status)| *status)),
            created_at: at(0),
            updated_at: at(1_000),
            targets: (0..).zip(targets).map(target).collect(),
            target_counts,
            timeout_seconds: 300,
            deliver_within_seconds: None,
            rollout: None,
            expires_at: at(300_000),
            requested_by: "token:ops".into(),
            selector: Some("role=web".into()),
            parameters: None,
            dropped: Vec::new(),
        }
    }

    #[test]
    fn the_outcome_is_one_row_per_node_by_name() {
        let mut execution = execution(&[("web-2", Status::Failed), ("web-1", Status::Succeeded)]);
        execution.targets[0].exit_code = Some(3);
        execution.targets[0].error = Some("first line\nsecond".into());
        execution.targets[1].exit_code = Some(0);
        execution.targets[1].output_bytes = Some(20_000);
        assert_eq!(
            targets(&execution, false).render(false),
            "NODE   STATUS     EXIT  ERROR               OUTPUT\n\
             web-1  succeeded  0     -                   19.5 KiB\n\
             web-2  failed     3     first line\\nsecond  -"
        );
    }

    #[test]
    fn what_is_held_is_told_apart_from_what_is_on_its_way() {
        let mut execution = execution(&[("web-1", Status::Pending), ("web-2", Status::Pending)]);
        execution.targets[1].held = true;
        execution.deliver_within_seconds = Some(60);
        execution.rollout = Some(execution_rollout::tests::rollout());
        let rows = targets(&execution, false).render(false);
        assert!(
            rows.contains("web-1  pending  ") && rows.contains("web-2  pending (held)"),
            "{rows}"
        );
        let facts = facts(&execution).render(false);
        assert!(
            facts.contains("27 held") && facts.contains("10% = up to 3 (+2)"),
            "{facts}"
        );
        assert!(facts.contains("Deliver within:  60 s"), "{facts}");
    }

    #[test]
    fn an_output_that_is_cut_or_missing_is_said_to_be() {
        let mut execution = execution(&[("cut", Status::Succeeded), ("gone", Status::Failed)]);
        execution.targets[0].output_bytes = Some(1 << 20);
        execution.targets[0].output_total_bytes = Some(3 << 20);
        execution.targets[0].output_truncated = true;
        execution.targets[1].output_bytes = Some(1 << 20);
        execution.targets[1].error = Some("exit status 3".into());
        execution.targets[1].output_error = Some("output_upload_failed: 403".into());
        assert_eq!(
            targets(&execution, false).render(false),
            "NODE  STATUS     EXIT  ERROR                                     OUTPUT\n\
             cut   succeeded  -     -                                         1.0 MiB of 3.0 MiB\n\
             gone  failed     -     exit status 3; output_upload_failed: 403  missing"
        );
    }

    #[test]
    fn a_long_error_is_cut_in_the_table_and_whole_in_the_wide_view() {
        let mut execution = execution(&[("web-1", Status::Failed)]);
        execution.targets[0].error = Some("x".repeat(200));
        assert!(
            !targets(&execution, false)
                .render(false)
                .contains(&"x".repeat(ERROR_LEN_MAX))
        );
        assert!(targets(&execution, true).render(false).contains(&"x".repeat(200)));
    }

    #[test]
    fn a_timeline_marks_what_came_too_late() {
        let event = |to, late| TimelineEvent {
            id: 1,
            node_id: NodeId::mint(at(0), [1; 10]),
            node_name: "web-1".into(),
            from: Some(Status::Started),
            to,
            at: at(1_000),
            late,
            detail: late.then(|| "exit status 0".into()),
        };
        assert_eq!(
            timeline(&[event(Status::Timeout, false), event(Status::Succeeded, true)]).render(false),
            "AT                        NODE   FROM     TO         LATE  DETAIL\n\
             1970-01-01T00:00:01.000Z  web-1  started  timeout    -     -\n\
             1970-01-01T00:00:01.000Z  web-1  started  succeeded  late  exit status 0"
        );
    }

    #[test]
    fn a_description_says_what_was_asked() {
        let execution = execution(&[("web-1", Status::Started)]);
        assert_eq!(
            facts(&execution).render(false),
            format!(
                "Execution:     {}\nAction:        backup (hook)\nStatus:        started\n\
                 Targets:       1 started\nSelector:      role=web\n\
                 Timeout:       300 s, until 1970-01-01T00:05:00.000Z\nRequested by:  token:ops\n\
                 Created:       1970-01-01T00:00:00.000Z\nUpdated:       1970-01-01T00:00:01.000Z",
                execution.id
            )
        );
    }
}
