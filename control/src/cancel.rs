//! Takes an execution back, whole or for one node.
//!
//! What the node has not taken, or a rollout holds back, is cancelled in the commit that decides it. What it has taken is cancelled only by its own
//! word: until then it is asked, on its stream, by the sweep and on every connect; the reconciler ends the waiting.

use muster_shared::{
    ids::{ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
    wire::{CancelEffect, CancelOutcome, CancelResponse, Dropped},
};

use crate::{
    audit::{self, Entry, Outcome},
    authz::{self, Requester},
    control::Control,
    gates::SAMPLE_MAX,
    store::{Detail, Project, StoreError, Tx},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum CancelError {
    #[error("the project has no execution {0}")]
    NoSuchExecution(ExecutionId),
    #[error("the execution does not address node {0}")]
    NoSuchTarget(NodeId),
    #[error("you may not act on a node that this would cancel it on")]
    PermissionDenied,
    #[error("the cancel could not be stored")]
    Store(#[from] StoreError),
}

/// What a cancel does to a target that rests in `status`.
const fn effect_on(status: Status) -> CancelEffect {
    match status {
        Status::Pending => CancelEffect::Cancelled,
        // It may have started by now: only the node knows.
        Status::Ack | Status::Started => CancelEffect::Asked,
        Status::Succeeded | Status::Failed | Status::Cancelled | Status::Timeout => CancelEffect::Settled,
    }
}

/// Cancels every target of an execution, or the one on `node`. Doing it again changes nothing.
pub(crate) async fn cancel(
    control: &Control,
    project: &Project,
    requester: &Requester,
    (execution, node): (ExecutionId, Option<NodeId>),
) -> Result<CancelResponse, CancelError> {
    if control.store.header(project.id, execution).await?.is_none() {
        return Err(CancelError::NoSuchExecution(execution));
    }
    let mut tx = control.store.begin().await?;
    // A node that is asked has its whole grace from now, however long the turn at writing was waited for.
    let now = Timestamp::now();
    let targets = tx.target_statuses(execution, node).await?;
    if let Some(node) = node.filter(|_| targets.is_empty()) {
        return Err(CancelError::NoSuchTarget(node));
    }
    let grants = requester.grants.in_project(project.domain, project.id);
    let (meant, denied): (Vec<_>, Vec<_>) = targets
        .into_iter()
        .partition(|(target, _)| grants.may_act_on(*target));
    if meant.is_empty() {
        return Err(CancelError::PermissionDenied);
    }
    let outcomes: Vec<_> = meant
        .into_iter()
        .map(|(node_id, status)| CancelOutcome {
            node_id,
            outcome: effect_on(status),
        })
        .collect();
    let untaken = with(&outcomes, CancelEffect::Cancelled);
    let taken = with(&outcomes, CancelEffect::Asked);
    let why = format!(
        "cancelled: {} took it back before the node had it",
        requester.subject
    );
    control.node_streams.note_cancel(now);
    let held_before = held(&mut tx, execution).await?;
    let (ended, _) = tx
        .cancel_targets(execution, &untaken, &[Status::Pending], &why, now)
        .await?;
    if held_before > 0 && held(&mut tx, execution).await? == 0 {
        let why = format!("rollout stopped: {} took back what was held", requester.subject);
        tx.note_stopped(execution, &why).await?;
    }
    let asked = tx.request_cancel(execution, &taken, now).await?;
    let entries = entries(requester, execution, (ended, asked), &denied);
    tx.append_audit(project.domain, &entries, now).await?;
    tx.commit().await?;
    if asked > 0 {
        control.outbox_wake.notify_one();
    }
    if ended > 0 {
        control.watchers.wake(execution);
        control.rollouts.ended();
    }
    log::info!(execution_id:% = execution, by = requester.subject, ended, asked;
        "Cancelled {ended} invocations and asked {asked} nodes to");

    let mut shown = control
        .store
        .execution(project.id, execution, Detail::WithoutOutput)
        .await?
        .ok_or(CancelError::NoSuchExecution(execution))?;
    shown.dropped = dropped(&denied);
    Ok(CancelResponse {
        execution: shown,
        outcomes,
    })
}

/// How many targets a rollout holds back.
async fn held(tx: &mut Tx, execution: ExecutionId) -> Result<u32, StoreError> {
    Ok(tx.rolling(execution).await?.map_or(0, |rolling| rolling.held))
}

fn with(outcomes: &[CancelOutcome], wanted: CancelEffect) -> Vec<NodeId> {
    outcomes
        .iter()
        .filter(|target| target.outcome == wanted)
        .map(|target| target.node_id)
        .collect()
}

/// What the audit trail keeps of it: the cancel, and each target that it left alone for want of a relation.
fn entries<'a>(
    requester: &'a Requester,
    execution: ExecutionId,
    (ended, asked): (u64, u64),
    denied: &[(NodeId, Status)],
) -> Vec<Entry<'a>> {
    let subject = &requester.subject;
    let granted = Entry::granted(subject, "actions.cancel", audit::execution_resource(execution));
    denied
        .iter()
        .map(|(node, _)| {
            Entry::new(
                subject,
                "insufficient_relation",
                authz::resource(*node),
                Outcome::Denied,
            )
        })
        .chain([granted.with(format!("{ended} cancelled, {asked} asked"))])
        .collect()
}

/// The targets that the requester may not act on go on.
fn dropped(denied: &[(NodeId, Status)]) -> Vec<Dropped> {
    if denied.is_empty() {
        return Vec::new();
    }
    vec![Dropped {
        reason: "insufficient_relation".to_owned(),
        count: denied.len() as u64,
        sample: denied.iter().take(SAMPLE_MAX).map(|(node, _)| *node).collect(),
    }]
}

#[cfg(test)]
mod tests {
    use muster_shared::status::{Mover, Step};

    use super::*;

    #[test]
    fn only_what_no_node_has_is_ended_at_once() {
        for status in Status::ALL {
            match effect_on(status) {
                CancelEffect::Cancelled => {
                    assert_eq!(status, Status::Pending);
                    assert_eq!(status.advance(Status::Cancelled, Mover::Control), Ok(Step::Move));
                }
                CancelEffect::Asked => assert!(!status.is_terminal(), "{status}"),
                CancelEffect::Settled => assert!(status.is_terminal(), "{status}"),
            }
        }
    }
}
