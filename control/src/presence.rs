//! When nodes were last heard of. Heartbeats are only noted here and written together, now and then: losing a few
//! seconds of them costs nothing, and a heartbeat of ten thousand nodes must cost next to nothing.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use muster_shared::{ids::NodeId, time::Timestamp};

use crate::store::{Store, StoreError};

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Timestamp,
    /// The node's clock minus ours, in milliseconds.
    pub(crate) skew_ms: Option<i64>,
    pub(crate) binary_version: Option<String>,
}

impl Seen {
    /// What this news does not say, an earlier one may have: a node that connects anew has still the clock it had.
    fn or_as_in(mut self, earlier: Option<Self>) -> Self {
        if let Some(earlier) = earlier {
            self.skew_ms = self.skew_ms.or(earlier.skew_ms);
            self.binary_version = self.binary_version.or(earlier.binary_version);
        }
        self
    }
}

#[derive(Default)]
pub(crate) struct Presence {
    unwritten: Mutex<HashMap<NodeId, Seen>>,
    /// The last word on each node, for reads that must not wait for the next write.
    latest: Mutex<HashMap<NodeId, Seen>>,
}

impl Presence {
    pub(crate) fn note(&self, node: NodeId, seen: Seen) {
        for notes in [&self.unwritten, &self.latest] {
            let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
            let known = notes.remove(&node);
            notes.insert(node, seen.clone().or_as_in(known));
        }
    }

    pub(crate) fn latest(&self, node: NodeId) -> Option<Seen> {
        self.latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&node)
            .cloned()
    }

    /// Writes what came in since the last time, in one transaction.
    pub(crate) async fn write(&self, store: &Store) -> Result<usize, StoreError> {
        let batch = std::mem::take(&mut *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner));
        if batch.is_empty() {
            return Ok(0);
        }
        let batch: Vec<_> = batch.into_iter().collect();
        let mut tx = store.begin().await?;
        tx.note_presences(&batch).await?;
        tx.commit().await?;
        Ok(batch.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_does_not_make_control_forget_a_clock() {
        let presence = Presence::default();
        let node = NodeId::mint(Timestamp::from_millis(0), [1; 10]);
        let seen = |at, skew_ms| Seen {
            at: Timestamp::from_millis(at),
            skew_ms,
            binary_version: None,
        };
        presence.note(node, seen(1, Some(600_000)));
        presence.note(node, seen(2, None));
        let latest = presence.latest(node).unwrap();
        assert_eq!((latest.at.as_millis(), latest.skew_ms), (2, Some(600_000)));
        assert_eq!(presence.unwritten.lock().unwrap()[&node].skew_ms, Some(600_000));
    }
}
