//! From what is owed to signed frames on nodes' streams.
//!
//! The publisher reads the outbox and hands each row to the stream of its node, if that is here. The redelivery sweep
//! covers a frame that was lost all the same. Neither is needed for a node that connects: it asks by state.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use muster_shared::{
    envelope::Envelope,
    ids::{EventId, NodeId},
    status::Status,
    time::Timestamp,
    wire::{ActionCancel, ActionRequest, BaselineUpdated, Parameters},
};

use crate::{
    control::Control,
    keys::chance,
    outbox::Cursor,
    store::{ExecutionHeader, Owed, StoreError},
};

/// How many outbox rows are read at a time.
const OUTBOX_BATCH: u32 = 1000;
/// Looks in the outbox at least this often, should a wake-up be lost.
const OUTBOX_POLL: Duration = Duration::from_secs(2);
/// How long a row stays for the services that share the database. What one of them reads later than that, its redelivery
/// finds by the state of things.
const OUTBOX_KEPT: Duration = Duration::from_secs(6);
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

/// Whether something that waited for its turn on a stream is to be sent still. Asked of the database only where a cancel
/// was lately: a node that gets what was cancelled all the same is refused its acknowledgement.
pub(crate) async fn still_owed(control: &Control, node: NodeId, owed: &Owed, now: Timestamp) -> bool {
    let execution = match owed {
        Owed::Action { execution, .. } => execution.id,
        Owed::Cancel { .. } | Owed::Baseline { .. } | Owed::SigningKeys => return true,
    };
    if !control.node_streams.cancelled_since(now.minus(BUFFERED_MAX)) {
        return true;
    }
    match control.store.target_now(execution, node).await {
        Ok(target) => target.is_some_and(|target| target.status == Status::Pending),
        Err(err) => {
            log::error!(node_id:% = node; "Whether an action was cancelled could not be read: {}", crate::error_chain(&err));
            true
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

/// Publishes the outbox until the service stops.
pub(crate) async fn publish(control: &Control) {
    // What was handed over is deleted together, a moment later: the delete is off the path of the action, and a row that
    // is found again after a crash only asks for what the state says anyway.
    let mut cursor = Cursor::default();
    let mut drain = Drain::new(control.store.is_shared());
    loop {
        match publish_batch(control, &mut cursor).await {
            Ok(true) => {
                drain.handed(cursor.after());
                control.metrics.handed_outbox(cursor.after());
            }
            Ok(false) => {
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
        // By the clock and not only when it is quiet: under steady load it never is.
        if let Err(err) = drain.work(control).await {
            log::error!("The outbox could not be drained: {}", crate::error_chain(&err));
        }
    }
}

/// Whether there was anything.
async fn publish_batch(control: &Control, cursor: &mut Cursor) -> Result<bool, StoreError> {
    let now = Timestamp::now();
    cursor.forget(now);
    let rows = control.store.outbox_after(cursor, now, OUTBOX_BATCH).await?;
    let any = !rows.is_empty();
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
    Ok(any)
}

/// The deleting of rows that were handed over. Other services have to read them too: they stay for a while where there
/// may be some.
struct Drain {
    keep: Duration,
    up_to: i64,
    handed_at: Instant,
    next: Instant,
    done: bool,
}

impl Drain {
    fn new(shared: bool) -> Self {
        Self {
            keep: if shared { OUTBOX_KEPT } else { Duration::ZERO },
            up_to: 0,
            handed_at: Instant::now(),
            next: Instant::now() + OUTBOX_POLL,
            done: true,
        }
    }

    fn handed(&mut self, up_to: i64) {
        (self.up_to, self.handed_at, self.done) = (up_to, Instant::now(), false);
    }

    async fn work(&mut self, control: &Control) -> Result<(), StoreError> {
        if self.done || Instant::now() < self.next {
            return Ok(());
        }
        self.next = Instant::now() + OUTBOX_POLL + self.keep / 4;
        // The last ones go with the first round that finds them old enough.
        self.done = self.handed_at.elapsed() >= self.keep;
        let mut tx = control.store.begin().await?;
        tx.drain_outbox(self.up_to, Timestamp::now().minus(self.keep))
            .await?;
        tx.commit().await
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
    fn a_full_batch_has_one_after_it() {
        let node = |n: u128| NodeId::from(uuid::Uuid::from_u128(n));
        let full: Vec<NodeId> = (1..=u128::from(REDELIVER_BATCH)).map(node).collect();
        assert_eq!(next_batch(&full), full.last().copied());
        assert_eq!(next_batch(&full[1..]), None);
        assert_eq!(next_batch(&[]), None);
    }
}
