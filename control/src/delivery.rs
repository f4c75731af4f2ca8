//! From what is owed to signed frames on nodes' streams.
//!
//! The publisher reads the outbox and hands each row to the stream of its node, if that is here. The redelivery sweep
//! covers a frame that was lost all the same. Neither is needed for a node that connects: it asks by state.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use muster_shared::{
    envelope::Envelope,
    ids::{EventId, NodeId},
    status::Status,
    time::Timestamp,
    wire::{ActionCancel, ActionRequest, BaselineUpdated, Parameters},
};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use crate::{
    control::Control,
    keys::chance,
    outbox::Cursor,
    store::{ExecutionHeader, Owed, StoreError},
};

/// How many outbox rows are read at a time.
const OUTBOX_BATCH: u32 = 1000;
/// Looks in the outbox at least this often, should a wake-up be lost; and how often what was handed over is deleted.
const OUTBOX_POLL: Duration = Duration::from_secs(2);
/// For how long a row that was handed over here stays for the services that share the database.
const OUTBOX_KEPT: Duration = Duration::from_secs(30);
/// A service that has not read the outbox to its end for so long may have missed rows. Less than they are kept for: what
/// is measured here begins a little after what is measured there.
const UNREAD_MAX: Duration = Duration::from_secs(25);
/// An invocation that was handed to a connected node this long ago and is not acknowledged is sent again.
const REDELIVER_AFTER: Duration = Duration::from_secs(15);
/// How many nodes redelivery looks up at a time.
const REDELIVER_BATCH: u32 = 1000;
/// How long a cancel or an approval on the wire is good for. Both are signed anew on every connect.
const NOTICE_TTL: Duration = Duration::from_secs(10 * 60);

/// For how long after a cancel an action is asked about again before it goes onto a stream.
const BUFFERED_MAX: Duration = Duration::from_secs(10 * 60);

/// One event as it goes onto a stream.
pub(crate) struct Frame {
    pub(crate) id: EventId,
    pub(crate) event: &'static str,
    pub(crate) envelope: Envelope,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("the system gave no random bytes")]
    Chance(#[from] std::io::Error),
    #[error("the secret parameters could not be read")]
    Sealed(#[source] std::io::Error),
    #[error("the event is not JSON")]
    Json(#[from] serde_json::Error),
}

/// Signs what is owed, for this node and until it expires.
pub(crate) fn sign(
    control: &Control,
    node: NodeId,
    owed: &Owed,
    now: Timestamp,
) -> Result<Frame, FrameError> {
    let id = EventId::mint(now, chance()?);
    let signers = control.signing.current();
    let (event, envelope) = match owed {
        Owed::Action {
            execution,
            deadlines,
            hook_digest,
        } => {
            let request = ActionRequest {
                event_id: id,
                occurred_at: now,
                execution_id: execution.id,
                node_id: node,
                action: execution.action.clone(),
                kind: execution.kind,
                parameters: whole_parameters(control, execution)?,
                timeout_seconds: execution.timeout_seconds,
                callback_url: format!(
                    "{}/v1/nodes/{node}/executions/{}",
                    control.server_url, execution.id
                ),
                expires_at: deadlines.deliver_by,
                run_until: (deadlines.expires_at != deadlines.deliver_by).then_some(deadlines.expires_at),
                callback_token: control.key.callback_token(execution.id, node),
                hook_digest: *hook_digest,
                requested_by: Some(execution.requested_by.clone()),
            };
            ("action_request", signers.seal(&request)?)
        }
        Owed::Cancel { execution } => {
            let cancel = ActionCancel {
                event_id: id,
                occurred_at: now,
                execution_id: *execution,
                node_id: node,
                expires_at: now.plus(NOTICE_TTL),
            };
            ("action_cancel", signers.seal(&cancel)?)
        }
        Owed::Baseline {
            hook,
            digest,
            approved_at,
        } => {
            let update = BaselineUpdated {
                event_id: id,
                occurred_at: now,
                node_id: node,
                expires_at: now.plus(NOTICE_TTL),
                hook: hook.clone(),
                digest: *digest,
                approved_at: *approved_at,
            };
            ("hook_baseline_updated", signers.seal(&update)?)
        }
        Owed::SigningKeys => {
            let news = signers.news(id, node, (now, now.plus(NOTICE_TTL)))?;
            ("signing_key_rotated", news)
        }
    };
    Ok(Frame { id, event, envelope })
}

/// The parameters as they were sent: those that are shown, and the sealed ones in place of their masks.
fn whole_parameters(
    control: &Control,
    execution: &ExecutionHeader,
) -> Result<Option<Parameters>, FrameError> {
    let mut parameters = execution.parameters.clone();
    if let (Some(parameters), Some(sealed)) = (&mut parameters, &execution.sealed_parameters) {
        let clear = control
            .key
            .unseal(execution.id, sealed)
            .map_err(FrameError::Sealed)?;
        parameters.extend(serde_json::from_slice::<Parameters>(&clear)?);
    }
    Ok(parameters)
}

/// Whether something that waited for its turn on a stream is to be sent still. Asked of the database where a cancel was
/// lately; where others share it, each time: what they cancelled is known here by nothing else. So no action is signed
/// after its cancel was answered.
pub(crate) async fn still_owed(control: &Control, node: NodeId, owed: &Owed, now: Timestamp) -> bool {
    let execution = match owed {
        Owed::Action { execution, .. } => execution.id,
        Owed::Cancel { .. } | Owed::Baseline { .. } | Owed::SigningKeys => return true,
    };
    if !control.store.is_shared() && !control.node_streams.cancelled_since(now.minus(BUFFERED_MAX)) {
        return true;
    }
    match control.store.target_now(execution, node).await {
        Ok(target) => target.is_some_and(|target| target.status == Status::Pending),
        Err(err) => {
            // If it was not, redelivery finds it.
            log::error!(node_id:% = node; "Whether an action was cancelled could not be read: {}", crate::error_chain(&err));
            false
        }
    }
}

/// Everything a node is owed at this moment.
pub(crate) async fn owed_now(control: &Control, node: NodeId) -> Result<Vec<Owed>, StoreError> {
    let mut owed = Vec::new();
    // Before all that they sign. The first set is known since the enrolment.
    if control.signing.current().serial > 1 {
        owed.push(Owed::SigningKeys);
    }
    owed.extend(control.store.owed_to(node).await?);
    Ok(owed)
}

/// Publishes the outbox until the service stops. How far it has come, it tells those who delete what is behind that.
pub(crate) async fn publish(control: &Control, handed: &watch::Sender<i64>) {
    let mut cursor = Cursor::default();
    let mut reading = Reading {
        to_the_end: since_boot(),
    };
    loop {
        let began = since_boot();
        match publish_batch(control, &mut cursor).await {
            Ok(rows) => {
                let whole = rows < OUTBOX_BATCH as usize;
                let missed = reading.looked(whole, began, since_boot());
                // Where nobody shares, nobody else deletes.
                if let Some(unread) = missed.filter(|_| control.store.is_shared()) {
                    connect_anew(control, unread);
                }
                handed.send_replace(cursor.whole());
                control.metrics.handed_outbox(cursor.after());
                if rows > 0 {
                    continue;
                }
                tokio::select! {
                    () = control.stop.cancelled() => return,
                    () = control.outbox_wake.notified() => {}
                    () = tokio::time::sleep(OUTBOX_POLL) => {}
                }
            }
            Err(err) => {
                log::error!("The outbox could not be read: {}", crate::error_chain(&err));
                if control.stopped_within(OUTBOX_POLL).await {
                    return;
                }
            }
        }
    }
}

/// How long ago the outbox was read to its end.
struct Reading {
    /// When the last look began that left nothing unread.
    to_the_end: Duration,
}

impl Reading {
    /// Notes a look, and whether it left nothing unread. Answers for how long that was not certain, if others may have
    /// deleted meanwhile what was never seen here.
    fn looked(&mut self, whole: bool, began: Duration, ended: Duration) -> Option<Duration> {
        let unread = ended.saturating_sub(self.to_the_end);
        let missed = unread > UNREAD_MAX;
        if missed {
            // Whoever connects from here on is told by the state of things.
            self.to_the_end = ended;
        } else if whole {
            self.to_the_end = began;
        }
        missed.then_some(unread)
    }
}

/// Nobody sets it, and it goes on while the machine sleeps.
fn since_boot() -> Duration {
    let since = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(since.tv_sec).unwrap_or(0),
        u32::try_from(since.tv_nsec).unwrap_or(0),
    )
}

/// Has every node that is here connect anew, and so be told all that it is owed: an approval that was missed is seen in
/// no state of the node's, so that no sweep would find it.
fn connect_anew(control: &Control, unread: Duration) {
    let streams = control.node_streams.end_all();
    let seconds = unread.as_secs();
    log::warn!(streams, seconds; "The outbox could not be read to its end for {seconds} s: {streams} nodes connect anew, and are told all that they are owed");
}

/// Answers how many rows there were.
async fn publish_batch(control: &Control, cursor: &mut Cursor) -> Result<usize, StoreError> {
    let now = Timestamp::now();
    cursor.forget(now);
    let rows = control.store.outbox_after(cursor, now, OUTBOX_BATCH).await?;
    let count = rows.len();
    for row in rows {
        cursor.read(row.id, now);
        match row.owed {
            Some(Ok((node, owed))) => control.node_streams.push(node, owed, Instant::now()),
            // Its node alone is not told: everybody else's news is behind it.
            Some(Err(corrupt)) => {
                log::error!(
                    "A row of the outbox is passed over: {}",
                    crate::error_chain(&corrupt)
                );
            }
            None => {}
        }
    }
    Ok(count)
}

/// Deletes what was handed over until the service stops. A task of its own: it waits for its turn among all that write,
/// and a row that lies there longer costs nothing, while an action that is not handed over stands still.
pub(crate) async fn drain(control: &Control, handed: &watch::Receiver<i64>) {
    let keep = if control.store.is_shared() {
        OUTBOX_KEPT
    } else {
        Duration::ZERO
    };
    let mut marks = Marks::default();
    while !control.stopped_within(OUTBOX_POLL).await {
        marks.note(*handed.borrow(), Instant::now());
        let Some(up_to) = marks.older_than(keep, Instant::now()) else {
            continue;
        };
        match drain_up_to(control, up_to).await {
            Ok(()) => marks.forget(up_to),
            Err(err) => log::error!("The outbox could not be drained: {}", crate::error_chain(&err)),
        }
    }
}

async fn drain_up_to(control: &Control, up_to: i64) -> Result<(), StoreError> {
    let mut tx = control.store.begin().await?;
    tx.drain_outbox(up_to).await?;
    tx.commit().await
}

/// How far the outbox was handed over, and when that was seen. By a clock that nobody sets, and of one machine.
#[derive(Default)]
struct Marks {
    seen: VecDeque<(i64, Instant)>,
    last: i64,
}

impl Marks {
    fn note(&mut self, up_to: i64, now: Instant) {
        if up_to > self.last {
            self.last = up_to;
            self.seen.push_back((up_to, now));
        }
    }

    /// What was handed over that long ago, or longer.
    fn older_than(&self, keep: Duration, now: Instant) -> Option<i64> {
        let old = |(_, seen): &&(i64, Instant)| now.duration_since(*seen) >= keep;
        self.seen.iter().take_while(old).last().map(|(up_to, _)| *up_to)
    }

    /// These rows are gone.
    fn forget(&mut self, up_to: i64) {
        self.seen.retain(|(seen, _)| *seen > up_to);
    }
}

/// Sends again what connected nodes have not acknowledged or not cancelled, until the service stops. Nodes answer what
/// they know from their journals, so that once too often is harmless and once too few is not.
pub(crate) async fn redeliver(control: &Control) {
    while !control.stopped_within(REDELIVER_AFTER).await {
        if let Err(err) = redeliver_round(control, Timestamp::now()).await {
            log::error!("Redelivery failed: {}", crate::error_chain(&err));
        }
    }
}

/// Every node that is owed something, batch by batch: those that are away, however many, never keep one that is here
/// from its turn.
async fn redeliver_round(control: &Control, now: Timestamp) -> Result<(), StoreError> {
    let streams = &control.node_streams;
    streams.forget_handed(REDELIVER_AFTER, Instant::now());
    let since = now.minus(REDELIVER_AFTER);
    let mut after = Some(NodeId::from(uuid::Uuid::nil()));
    while let Some(last) = after {
        let nodes = control
            .store
            .nodes_still_to_cancel(since, last, REDELIVER_BATCH)
            .await?;
        send_again(control, &nodes, |_, owed| owed.is_cancel()).await?;
        after = next_batch(&nodes);
    }
    let mut after = Some(NodeId::from(uuid::Uuid::nil()));
    while let Some(last) = after {
        let nodes = control
            .store
            .nodes_still_owed((since, now), last, REDELIVER_BATCH)
            .await?;
        // A large dispatch takes its time: who was handed it just now has it, and its answer waits among thousands.
        let not_lately = |node, owed: &Owed| {
            owed.action()
                .is_some_and(|action| !streams.was_handed(node, action))
        };
        send_again(control, &nodes, not_lately).await?;
        after = next_batch(&nodes);
    }
    Ok(())
}

/// Sends those of these nodes that are connected what they are owed, as far as it is wanted.
async fn send_again(
    control: &Control,
    nodes: &[NodeId],
    wanted: impl Fn(NodeId, &Owed) -> bool,
) -> Result<(), StoreError> {
    let connected = nodes
        .iter()
        .copied()
        .filter(|node| control.node_streams.is_connected(*node));
    let asked = connected.map(async |node| Ok::<_, StoreError>((node, control.store.owed_to(node).await?)));
    for (node, owed) in try_join_all(asked).await? {
        for owed in owed.into_iter().filter(|owed| wanted(node, owed)) {
            control.node_streams.push(node, owed, Instant::now());
        }
    }
    Ok(())
}

/// Where the batch after this one begins; `None` when this was the last.
fn next_batch(nodes: &[NodeId]) -> Option<NodeId> {
    nodes
        .last()
        .copied()
        .filter(|_| nodes.len() == REDELIVER_BATCH as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_read_too_late_knows_that_it_may_have_missed_something() {
        assert!(UNREAD_MAX < OUTBOX_KEPT);
        let at = Duration::from_secs;
        let mut reading = Reading { to_the_end: at(100) };
        assert_eq!(reading.looked(true, at(110), at(125)), None);
        // A look counts from its beginning: what was written while it went on may not be in it.
        assert_eq!(reading.looked(true, at(135), at(136)), Some(at(26)));
        assert_eq!(reading.looked(true, at(138), at(139)), None);
        // What is behind a full batch is not read, however often it was looked.
        for second in 140..=163 {
            assert_eq!(reading.looked(false, at(second), at(second)), None);
        }
        assert_eq!(reading.looked(false, at(164), at(164)), Some(at(26)));
        assert_eq!(reading.looked(false, at(165), at(165)), None);
    }

    #[test]
    fn what_was_handed_over_is_deleted_once_it_is_old_enough_and_not_before() {
        let (keep, begun) = (Duration::from_secs(30), Instant::now());
        let mut marks = Marks::default();
        marks.note(0, begun);
        assert_eq!(
            marks.older_than(Duration::ZERO, begun),
            None,
            "nothing was handed over"
        );
        marks.note(5, begun);
        marks.note(5, begun + keep / 2);
        marks.note(9, begun + keep / 2);
        assert_eq!(marks.older_than(keep, begun + keep / 2), None);
        assert_eq!(
            marks.older_than(keep, begun + keep),
            Some(5),
            "seen again is not seen anew"
        );
        // A delete that failed is tried again, together with what has become old meanwhile.
        assert_eq!(marks.older_than(keep, begun + keep * 2), Some(9));
        marks.forget(5);
        assert_eq!(marks.older_than(keep, begun + keep * 2), Some(9));
        marks.forget(9);
        assert_eq!(marks.older_than(keep, begun + keep * 2), None);
    }

    #[test]
    fn a_full_batch_has_one_after_it() {
        let node = |n: u128| NodeId::from(uuid::Uuid::from_u128(n));
        let full: Vec<NodeId> = (1..=u128::from(REDELIVER_BATCH)).map(node).collect();
        assert_eq!(next_batch(&full), full.last().copied());
        assert_eq!(next_batch(&full[1..]), None);
        assert_eq!(next_batch(&[]), None);
    }
}
