//! What `doctor` asks of the database.

use muster_shared::time::Timestamp;

use super::{Store, StoreError};

impl Store {
    /// When the last row of any audit chain was written.
    pub(crate) async fn newest_audit_row(&self) -> Result<Option<Timestamp>, StoreError> {
        let at: Option<i64> = sqlx::query_scalar(
            "SELECT max(a.at_ms) FROM audit_head h JOIN audit a ON a.domain_id = h.domain_id AND a.seq = h.seq",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(at.map(Timestamp::from_millis))
    }

    /// How far the clocks of nodes that were heard of since then are from ours, in milliseconds.
    pub(crate) async fn clock_skews(&self, since: Timestamp) -> Result<Vec<i64>, StoreError> {
        Ok(sqlx::query_scalar(
            "SELECT clock_skew_ms FROM node
             WHERE decommissioned_ms IS NULL AND clock_skew_ms IS NOT NULL AND last_seen_ms >= $1
             ORDER BY clock_skew_ms",
        )
        .bind(since.as_millis())
        .fetch_all(&self.read)
        .await?)
    }

    /// The names of the nodes in service that hold a later set of signing keys than this one.
    pub(crate) async fn nodes_ahead_of_keys(&self, serial: u64) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar(
            "SELECT name FROM node WHERE decommissioned_ms IS NULL AND signing_serial > $1 ORDER BY name, id",
        )
        .bind(i64::try_from(serial).unwrap_or(i64::MAX))
        .fetch_all(&self.read)
        .await?)
    }

    /// The names of the nodes in service that were not heard of since then.
    pub(crate) async fn nodes_silent_since(&self, since: Timestamp) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar(
            "SELECT name FROM node
             WHERE decommissioned_ms IS NULL AND (last_seen_ms IS NULL OR last_seen_ms < $1) ORDER BY name, id",
        )
        .bind(since.as_millis())
        .fetch_all(&self.read)
        .await?)
    }
}
