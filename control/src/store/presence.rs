//! When nodes were heard of, many at a time: heartbeats of a large fleet must hold up nobody who writes.

use muster_shared::ids::NodeId;
use sqlx::{QueryBuilder, Sqlite};

use super::{ROWS_PER_INSERT, StoreError, Tx};
use crate::presence::Seen;

impl Tx {
    /// Notes when nodes were last heard of, and how far off their clocks were. What is not said stays.
    pub(crate) async fn note_presences(&mut self, heard: &[(NodeId, Seen)]) -> Result<(), StoreError> {
        for chunk in heard.chunks(ROWS_PER_INSERT) {
            QueryBuilder::<Sqlite>::new("WITH heard (node_id, seen, skew, version) AS (")
                .push_values(chunk, |mut row, (node, seen)| {
                    row.push_bind(node.uuid())
                        .push_bind(seen.at.as_millis())
                        .push_bind(seen.skew_ms)
                        .push_bind(seen.binary_version.clone());
                })
                .push(
                    ") UPDATE node SET last_seen_ms = heard.seen, clock_skew_ms = coalesce(heard.skew, clock_skew_ms),
                                       binary_version = coalesce(heard.version, binary_version)
                     FROM heard WHERE node.id = heard.node_id",
                )
                .build()
                .execute(&mut *self.0)
                .await?;
        }
        Ok(())
    }
}
