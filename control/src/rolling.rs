//! Carries rollouts on: releases what may go out, cancels the rest when too much failed, and holds at an operator's word.
//!
//! A step is decided inside the write transaction that carries it out, so that two at once cannot both release. What a
//! rollout waits for is in the database, so that a control that was killed goes on with it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use muster_shared::{ids::ExecutionId, time::Timestamp, wire::Execution};
use tokio::sync::Notify;

use crate::{
    audit::{self, Entry},
    authz::Requester,
    control::Control,
    deadlines::Deadlines,
    rollout::{Decision, decide},
    store::{Detail, Project, StoreError, Tx},
};

/// Looks at every rollout at least this often: a wake-up may be lost, and time passes without one.
const ROLLOUT_POLL: Duration = Duration::from_secs(1);

/// Wakes the task that carries rollouts on.
#[derive(Default)]
pub(crate) struct Rollouts {
    wake: Notify,
    /// Whether any was seen to hold something lately: without one, an ended invocation wakes nobody.
    any: AtomicBool,
}

impl Rollouts {
    /// A rollout may have a step to make that it had not.
    pub(crate) fn began(&self) {
        self.any.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// An invocation has ended, of a rollout or not.
    pub(crate) fn ended(&self) {
        if self.any.load(Ordering::Acquire) {
            self.wake.notify_one();
        }
    }
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub(crate) struct Stepped {
    pub(crate) released: u64,
    pub(crate) cancelled: u64,
}

impl Stepped {
    /// Told after the commit, and only a hint.
    pub(crate) fn tell(self, control: &Control, execution: ExecutionId) {
        if self.released > 0 {
            control.outbox_wake.notify_one();
        }
        if self.released + self.cancelled > 0 {
            control.watchers.wake(execution);
        }
    }
}

/// Carries rollouts on until the service stops.
pub(crate) async fn run(control: &Control) {
    loop {
        if let Err(err) = round(control, Timestamp::now()).await {
            log::error!("Rollouts could not be read: {}", crate::error_chain(&err));
        }
        tokio::select! {
            () = control.stop.cancelled() => return,
            () = control.rollouts.wake.notified() => {}
            () = tokio::time::sleep(ROLLOUT_POLL) => {}
        }
    }
}

async fn round(control: &Control, now: Timestamp) -> Result<(), StoreError> {
    let rolling = control.store.all_rolling().await?;
    // A dispatch that comes in between has left a wake-up, and is found by the next round.
    control.rollouts.any.store(!rolling.is_empty(), Ordering::Release);
    for rolling in rolling {
        // One bad row must not keep the others from their next step.
        let stepped = match rolling {
            Ok(rolling) => match decide(&rolling.standing, now) {
                Decision::Done | Decision::Wait => continue,
                Decision::Release { .. } | Decision::Stop(_) => take_step(control, rolling.execution).await,
            },
            Err(err) => Err(err.into()),
        };
        if let Err(err) = stepped {
            log::error!("A rollout could not go on: {}", crate::error_chain(&err));
        }
    }
    Ok(())
}

async fn take_step(control: &Control, execution: ExecutionId) -> Result<(), StoreError> {
    let mut tx = control.store.begin().await?;
    // What is released has its whole time from now, however long the turn at writing was waited for.
    let stepped = step(&mut tx, execution, Timestamp::now()).await?;
    tx.commit().await?;
    stepped.tell(control, execution);
    Ok(())
}

/// The next step of a rollout, decided by how it stands in this transaction.
pub(crate) async fn step(tx: &mut Tx, execution: ExecutionId, now: Timestamp) -> Result<Stepped, StoreError> {
    let mut stepped = Stepped::default();
    let Some(rolling) = tx.rolling(execution).await? else {
        return Ok(stepped);
    };
    match decide(&rolling.standing, now) {
        Decision::Done | Decision::Wait => {}
        Decision::Release { at_most, up_to } => {
            let deadlines = Deadlines::of(rolling.timeout_seconds, rolling.deliver_within_seconds, now);
            stepped.released = tx.release(execution, (at_most, up_to), deadlines, now).await?;
            log::info!(execution_id:% = execution, released = stepped.released; "Released {} targets of a rollout", stepped.released);
        }
        Decision::Stop(why) => {
            let why = why.to_string();
            tx.note_stopped(execution, &why).await?;
            (stepped.cancelled, _) = tx.cancel_held(execution, &why, now).await?;
            let resource = audit::execution_resource(execution);
            let entry = Entry::granted(audit::SYSTEM, "actions.rollout_stop", resource)
                .with(format!("{why}; {} cancelled", stepped.cancelled));
            tx.append_audit(rolling.domain, &[entry], now).await?;
            log::warn!(execution_id:% = execution, cancelled = stepped.cancelled; "{why}");
        }
    }
    Ok(stepped)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PauseError {
    #[error("the project has no execution {0}")]
    NoSuchExecution(ExecutionId),
    #[error("you may not act on a node that this would hold back or release")]
    PermissionDenied,
    #[error(
        "execution {0} was dispatched without a rollout: it holds nothing that could be paused or resumed"
    )]
    NoRollout(ExecutionId),
    #[error(
        "the rollout of execution {0} holds nothing any more: there is nothing left to pause or to resume"
    )]
    NothingHeld(ExecutionId),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

/// What an operator says to a rollout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    Pause,
    Resume,
}

/// Pauses or resumes a rollout. Said again it changes nothing. What was released goes on either way.
pub(crate) async fn obey(
    control: &Control,
    project: &Project,
    requester: &Requester,
    (execution, word): (ExecutionId, Word),
) -> Result<Execution, PauseError> {
    if control.store.header(project.id, execution).await?.is_none() {
        return Err(PauseError::NoSuchExecution(execution));
    }
    let mut tx = control.store.begin().await?;
    let now = Timestamp::now();
    let rolling = tx
        .rolling(execution)
        .await?
        .ok_or(PauseError::NoRollout(execution))?;
    let grants = requester.grants.in_project(project.domain, project.id);
    let held = tx.held_nodes(execution).await?;
    if !held.iter().all(|node| grants.may_act_on(*node)) {
        return Err(PauseError::PermissionDenied);
    }
    if held.is_empty() {
        return Err(PauseError::NothingHeld(execution));
    }
    let paused = word == Word::Pause;
    if rolling.standing.paused == paused {
        // Read below without the turn at writing.
        drop(tx);
    } else {
        let subject = requester.subject.as_str();
        let relation = if paused { "actions.pause" } else { "actions.resume" };
        tx.set_paused(execution, paused.then_some(subject), now).await?;
        let entry = Entry::granted(subject, relation, audit::execution_resource(execution));
        tx.append_audit(project.domain, &[entry.with(format!("{} held", held.len()))], now)
            .await?;
        let stepped = step(&mut tx, execution, now).await?;
        tx.commit().await?;
        stepped.tell(control, execution);
        control.watchers.wake(execution);
        log::info!(execution_id:% = execution, by = subject; "{}", if paused { "Paused a rollout" } else { "Resumed a rollout" });
    }
    control
        .store
        .execution(project.id, execution, Detail::WithoutOutput)
        .await?
        .ok_or(PauseError::NoSuchExecution(execution))
}
