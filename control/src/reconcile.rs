//! Settles what no node will report any more. Idempotent, bounded, and of the database and the clock alone, so that a
//! restart loses no deadline.

use std::time::Duration;

use muster_shared::{ids::ExecutionId, status::Status, time::Timestamp};

use crate::{
    control::Control,
    idempotency,
    store::{Store, StoreError},
};

/// How often overdue executions are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How many one round settles.
const SWEEP_BATCH: u32 = 200;

const NEVER_TAKEN: &str = "timeout: the node did not take the action before the deadline";
const NEVER_REPORTED: &str = "timeout: the node took the action and did not report its end in time";

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
        let grace = control.limits.report_grace;
        match sweep(&control.store, grace, Timestamp::now(), |id| {
            control.watchers.wake(id)
        })
        .await
        {
            Ok(swept) if swept.invocations > 0 => {
                log::info!(invocations = swept.invocations, settled = swept.settled; "Timed out {} invocations", swept.invocations);
            }
            Ok(_) => {}
            Err(err) => log::error!("The sweep failed: {}", crate::error_chain(&err)),
        }
        control.rates.forget_idle();
        if let Err(err) = idempotency::forget(&control.store, Timestamp::now()).await {
            log::error!(
                "Expired idempotency keys could not be removed: {}",
                crate::error_chain(&err)
            );
        }
    }
}

/// Times out the overdue. What the node never took ends at the deadline; what it took gets `grace` more, in which the
/// node stops the action and tells how it ended: its word is better than ours.
async fn sweep(
    store: &Store,
    grace: Duration,
    now: Timestamp,
    changed: impl Fn(ExecutionId),
) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    for (execution, expires_at) in store.overdue(now, SWEEP_BATCH).await? {
        match time_out(store, execution, expires_at.plus(grace) <= now, now).await {
            Ok((0, _)) => {}
            Ok((invocations, settled)) => {
                swept.invocations += invocations;
                swept.settled += u64::from(settled);
                changed(execution);
            }
            // One bad row must not keep the others from their end.
            Err(err) => {
                swept.failed += 1;
                log::error!(execution_id:% = execution; "Execution could not be timed out: {}", crate::error_chain(&err));
            }
        }
    }
    Ok(swept)
}

async fn time_out(
    store: &Store,
    execution: ExecutionId,
    grace_over: bool,
    now: Timestamp,
) -> Result<(u64, bool), StoreError> {
    let mut tx = store.begin().await?;
    let (mut ended, mut settled) = tx
        .time_out(execution, &[Status::Pending], NEVER_TAKEN, now)
        .await?;
    if grace_over && !settled {
        let (more, last) = tx
            .time_out(execution, &[Status::Ack, Status::Started], NEVER_REPORTED, now)
            .await?;
        ended += more;
        settled = last;
    }
    if ended > 0 {
        tx.commit().await?;
    }
    Ok((ended, settled))
}
