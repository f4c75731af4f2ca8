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

#[derive(Default)]
pub(crate) struct Presence {
    unwritten: Mutex<HashMap<NodeId, Seen>>,
    /// The last word on each node, for reads that must not wait for the next write.
    latest: Mutex<HashMap<NodeId, Seen>>,
}

impl Presence {
    pub(crate) fn note(&self, node: NodeId, seen: Seen) {
        self.unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(node, seen.clone());
        self.latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(node, seen);
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
        let mut tx = store.begin().await?;
        for (node, seen) in &batch {
            tx.note_presence(*node, seen.at, seen.skew_ms, seen.binary_version.as_deref())
                .await?;
        }
        tx.commit().await?;
        Ok(batch.len())
    }
}
