//! `muster execution cancel`: takes an execution back, and if asked waits for what becomes of it.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use muster_shared::{
    ids::{ExecutionId, NodeId},
    status::Status,
    wire::{CancelEffect, CancelOutcome, CancelRequest, CancelResponse, Execution, ExecutionTarget},
};

use crate::{
    client::Route,
    execution, execution_show,
    exit::Exit,
    failure::Failure,
    lookup::{self, NodeNames},
    problem,
    render::Screen,
    session::Session,
    stopped::Stands,
    table::Table,
    text,
    wait::{self, Wait},
};

#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    /// The execution's id
    id: ExecutionId,
    /// On this node alone, by name, id, or the beginning of its id
    #[arg(long)]
    node: Option<String>,
    /// Show progress and end when everything that was cancelled has ended
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this long; the cancel stands
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = wait::duration)]
    wait_timeout: Option<Duration>,
}

pub(crate) async fn run(session: &Session, args: &CancelArgs) -> Result<Exit, Failure> {
    let screen = &session.screen;
    let (client, project) = session.control()?;
    let node = match &args.node {
        Some(wanted) => {
            let execution = execution::read(&client, project, args.id).await?;
            let targets = execution
                .targets
                .iter()
                .map(|target| (target.node_id, target.node_name.as_deref().unwrap_or_default()));
            Some(lookup::pick(targets, wanted)?)
        }
        None => None,
    };
    let request = CancelRequest {
        node_id: node.map(|node| node.to_string()),
    };
    let route = Route::project(project, ["executions", &args.id.to_string(), "cancel"]);
    let answer: CancelResponse = client.post(&route, &request).await?;
    let names = lookup::names_of(&client, project, &answer.execution.dropped).await;
    screen.say(&announcement(&answer, &names));
    if !args.wait {
        show(screen, &answer)?;
        return Ok(Exit::Success);
    }
    let execution = if is_over(&answer) {
        execution::read(&client, project, args.id).await?
    } else {
        let wait = Wait {
            execution: &answer.execution,
            node,
            limit: args.wait_timeout,
            stands: Stands::Cancel,
        };
        wait::until_ended(&client, project, &wait, screen).await?
    };
    execution_show::report(screen, &execution)?;
    Ok(exit_of(&execution, node))
}

/// Of one node, or of all.
fn statuses(execution: &Execution, node: Option<NodeId>) -> impl Iterator<Item = Status> {
    execution
        .targets
        .iter()
        .filter(move |target| node.is_none_or(|node| node == target.node_id))
        .map(|target| target.status)
}

/// Whether everything that was meant has ended.
fn is_over(answer: &CancelResponse) -> bool {
    let asked = |target: &CancelOutcome| target.outcome == CancelEffect::Asked;
    !answer.outcomes.iter().any(asked)
}

/// What was to be cancelled and is, is as it should be.
fn exit_of(execution: &Execution, node: Option<NodeId>) -> Exit {
    Exit::of_targets(statuses(execution, node).filter(|status| *status != Status::Cancelled))
}

fn announcement(answer: &CancelResponse, dropped: &NodeNames) -> String {
    let count = |wanted: CancelEffect| {
        answer
            .outcomes
            .iter()
            .filter(|target| target.outcome == wanted)
            .count()
    };
    let (cancelled, asked, settled) = (
        count(CancelEffect::Cancelled),
        count(CancelEffect::Asked),
        count(CancelEffect::Settled),
    );
    let mut parts = Vec::new();
    if cancelled > 0 {
        parts.push(format!("cancelled it on {}", text::count(cancelled, "node")));
    }
    if asked > 0 {
        parts.push(format!("asked {} to end it", text::count(asked, "node")));
    }
    if settled > 0 {
        parts.push(format!("it had ended on {}", text::count(settled, "node")));
    }
    let mut words = parts.join("; ");
    if !answer.execution.dropped.is_empty() {
        words.push('\n');
        words.push_str(&problem::dropped(&answer.execution.dropped, dropped));
    }
    words
}

fn show(screen: &Screen, answer: &CancelResponse) -> Result<(), Failure> {
    screen.one(answer, |answer| answer.execution.id.to_string(), outcomes)
}

/// One row for each node that was meant, by name.
fn outcomes(answer: &CancelResponse, wide: bool) -> Table {
    let mut table = Table::new(&["NODE", "CANCEL", "STATUS"], &["ID"], wide);
    // The answer about a large cohort does not carry every target.
    let shown: BTreeMap<NodeId, &ExecutionTarget> = answer
        .execution
        .targets
        .iter()
        .map(|target| (target.node_id, target))
        .collect();
    let mut rows: Vec<_> = answer
        .outcomes
        .iter()
        .map(|effect| {
            let target = shown.get(&effect.node_id).copied();
            let name = target.map_or_else(|| effect.node_id.to_string(), execution_show::name);
            (name, effect, target)
        })
        .collect();
    rows.sort_by(|(a, one, _), (b, other, _)| (a, one.node_id).cmp(&(b, other.node_id)));
    for (name, effect, target) in rows {
        table.row([
            name.into(),
            effect.outcome.as_str().into(),
            target.map_or_else(|| "-".into(), |target| target.status.into()),
            effect.node_id.to_string().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution_show::tests::execution;

    fn answer() -> CancelResponse {
        let execution = execution(&[
            ("web-2", Status::Started),
            ("web-1", Status::Cancelled),
            ("web-3", Status::Succeeded),
        ]);
        let outcomes = execution
            .targets
            .iter()
            .zip([
                CancelEffect::Asked,
                CancelEffect::Cancelled,
                CancelEffect::Settled,
            ])
            .map(|(target, outcome)| CancelOutcome {
                node_id: target.node_id,
                outcome,
            })
            .collect();
        CancelResponse { execution, outcomes }
    }

    #[test]
    fn what_became_of_each_node_is_one_row() {
        assert_eq!(
            outcomes(&answer(), false).render(false),
            "NODE   CANCEL     STATUS\n\
             web-1  cancelled  cancelled\n\
             web-2  asked      started\n\
             web-3  settled    succeeded"
        );
        assert_eq!(
            announcement(&answer(), &NodeNames::new()),
            "cancelled it on 1 node; asked 1 node to end it; it had ended on 1 node"
        );
    }

    #[test]
    fn it_is_over_once_nobody_was_asked() {
        let mut answer = answer();
        assert!(!is_over(&answer));
        answer.outcomes.remove(0);
        assert!(is_over(&answer));
    }

    #[test]
    fn only_what_went_wrong_otherwise_is_a_failure_of_the_cancel() {
        let of = |targets: &[(&str, Status)]| exit_of(&execution(targets), None);
        assert_eq!(
            of(&[("a", Status::Cancelled), ("b", Status::Succeeded)]),
            Exit::Success
        );
        assert_eq!(
            of(&[("a", Status::Cancelled), ("b", Status::Failed)]),
            Exit::SomeFailed
        );
        assert_eq!(
            of(&[("a", Status::Cancelled), ("b", Status::Timeout)]),
            Exit::SomeTimedOut
        );
        let execution = execution(&[("a", Status::Cancelled), ("b", Status::Started)]);
        let node = execution.targets[0].node_id;
        assert_eq!(exit_of(&execution, Some(node)), Exit::Success);
    }
}
