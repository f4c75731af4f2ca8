//! Settles what no node will report any more. Idempotent, bounded, and decided by the database and the clock alone, so
//! that a restart loses no deadline.

use std::time::Duration;

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
};

use crate::{
    audit::{self, Entry},
    authz,
    control::Control,
    idempotency,
    store::{Deadline, Overdue, StoreError, Tx, Unconfirmed},
};

/// How often overdue executions are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How many one round settles.
const SWEEP_BATCH: u32 = 200;

const NEVER_TAKEN: &str = "timeout: the node did not take the action before the deadline";
/// Where delivery has a time of its own.
fn not_delivered(seconds: u32) -> String {
    format!("timeout: the action was not delivered in time (deliver_within_seconds is {seconds})")
}
const NEVER_REPORTED: &str = "timeout: the node took the action and did not report its end in time";
const UNREACHABLE: &str = "cancelled: the node did not confirm (unreachable)";
const NOT_CONFIRMED: &str = "cancelled: the node did not confirm in time";

/// What one round did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Swept {
    pub(crate) invocations: u64,
    pub(crate) settled: u64,
    pub(crate) failed: u64,
}

/// Sweeps until the service stops.
pub(crate) async fn run(control: &Control) {
    while !control.stopped_within(SWEEP_EVERY).await {
        let grace = control.limits.restore_grace;
        if control
            .restored
            .is_some_and(|mark| mark.holds(Timestamp::now(), grace))
        {
            continue;
        }
        match sweep(control, Timestamp::now()).await {
            Ok(swept) if swept.invocations > 0 => {
                log::info!(invocations = swept.invocations, settled = swept.settled; "Ended {} invocations that nobody reports any more", swept.invocations);
            }
            Ok(_) => {}
            Err(err) => log::error!("The sweep failed: {}", crate::error_chain(&err)),
        }
        control.rates.forget_idle();
        control.node_rates.forget_idle();
        control.enroll_rates.forget_idle();
        if let Err(err) = idempotency::forget(&control.store, Timestamp::now()).await {
            log::error!(
                "Expired idempotency keys could not be removed: {}",
                crate::error_chain(&err)
            );
        }
    }
}

/// Ends cancels that no node confirmed, then times out the overdue. What the node never took ends when its time to is
/// over; what it took gets the report grace more than its time to run, in which the node stops the action and tells how it
/// ended: its word is better than ours.
async fn sweep(control: &Control, now: Timestamp) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    let unconfirmed_since = now.minus(control.limits.cancel_grace);
    let unconfirmed = control
        .store
        .executions_unconfirmed(unconfirmed_since, SWEEP_BATCH)
        .await?;
    for (execution, domain) in unconfirmed {
        let ended = give_up_waiting(control, (execution, domain), unconfirmed_since, now).await;
        swept.count(control, execution, ended);
    }
    for overdue in control.store.overdue(now, SWEEP_BATCH).await? {
        let ended = time_out(control, overdue, now).await;
        swept.count(control, overdue.execution, ended);
    }
    Ok(swept)
}

impl Swept {
    /// One bad row must not keep the others from their end.
    fn count(&mut self, control: &Control, execution: ExecutionId, ended: Result<(u64, bool), StoreError>) {
        match ended {
            Ok((0, _)) => {}
            Ok((invocations, settled)) => {
                self.invocations += invocations;
                self.settled += u64::from(settled);
                control.watchers.wake(execution);
                control.rollouts.ended();
            }
            Err(err) => {
                self.failed += 1;
                log::error!(execution_id:% = execution; "Execution could not be ended: {}", crate::error_chain(&err));
            }
        }
    }
}

async fn give_up_waiting(
    control: &Control,
    addressed: (ExecutionId, DomainId),
    since: Timestamp,
    now: Timestamp,
) -> Result<(u64, bool), StoreError> {
    let mut tx = control.store.begin().await?;
    let nodes = tx.unconfirmed_cancels(addressed.0, since).await?;
    let ended = end_unconfirmed(control, &mut tx, addressed, nodes, now).await?;
    tx.commit().await?;
    Ok(ended)
}

/// Ends what these nodes were asked to cancel, and have not.
async fn end_unconfirmed(
    control: &Control,
    tx: &mut Tx,
    (execution, domain): (ExecutionId, DomainId),
    nodes: Vec<Unconfirmed>,
    now: Timestamp,
) -> Result<(u64, bool), StoreError> {
    let (mut there, mut away): (Vec<NodeId>, Vec<NodeId>) = (Vec::new(), Vec::new());
    for Unconfirmed { node, replica } in nodes {
        let connected = control.is_connected(node, replica);
        if connected { &mut there } else { &mut away }.push(node);
    }
    let mut ended = (0, false);
    for (nodes, why) in [(away, UNREACHABLE), (there, NOT_CONFIRMED)] {
        let (more, settled) = tx
            .cancel_targets(execution, &nodes, &[Status::Ack, Status::Started], why, now)
            .await?;
        tx.append_audit(domain, &by_the_clock("actions.cancel", execution, &nodes), now)
            .await?;
        ended = (ended.0 + more, ended.1 || settled);
    }
    Ok(ended)
}

async fn time_out(control: &Control, overdue: Overdue, now: Timestamp) -> Result<(u64, bool), StoreError> {
    let Overdue {
        execution,
        domain,
        deliver_within_seconds,
    } = overdue;
    let grace = control.limits.report_grace;
    let why = deliver_within_seconds.map_or_else(|| NEVER_TAKEN.to_owned(), not_delivered);
    let mut tx = control.store.begin().await?;
    let (mut timed_out, mut settled) = tx
        .time_out(execution, (Deadline::Delivery, now), &why, now)
        .await?;
    let mut cancelled = 0;
    if !settled {
        // What was to be cancelled ends so, however short its grace was.
        let nodes = tx.overdue_cancels(execution, now.minus(grace)).await?;
        (cancelled, settled) = end_unconfirmed(control, &mut tx, (execution, domain), nodes, now).await?;
    }
    if !settled {
        let (more, last) = tx
            .time_out(execution, (Deadline::Run, now.minus(grace)), NEVER_REPORTED, now)
            .await?;
        timed_out.extend(more);
        settled = last;
    }
    if !settled {
        tx.note_next_deadline(execution, grace).await?;
    }
    tx.append_audit(
        domain,
        &by_the_clock("actions.timeout", execution, &timed_out),
        now,
    )
    .await?;
    tx.commit().await?;
    Ok((timed_out.len() as u64 + cancelled, settled))
}

/// One row for each invocation that nobody but the clock ended.
fn by_the_clock(relation: &'static str, execution: ExecutionId, nodes: &[NodeId]) -> Vec<Entry<'static>> {
    nodes
        .iter()
        .map(|node| {
            let resource = audit::execution_resource(execution);
            Entry::granted(audit::SYSTEM, relation, resource).with(authz::resource(*node))
        })
        .collect()
}
