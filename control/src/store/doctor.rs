//! What `doctor` asks of the database.

use muster_shared::time::Timestamp;

use super::{
    Store, StoreError,
    rows::Reader,
    statement::{query, query_scalar},
};

impl Store {
    /// When the last row of any audit chain was written.
    pub(crate) async fn newest_audit_row(&self) -> Result<Option<Timestamp>, StoreError> {
        let row = query(
            "SELECT max(a.at) AS at FROM audit_head h JOIN audit a ON a.domain_id = h.domain_id AND a.seq = h.seq",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(Reader::new(&row, "audit", "at").at_opt("at")?)
    }

    /// How far the clocks of nodes that were heard of since then are from ours, in milliseconds.
    pub(crate) async fn clock_skews(&self, since: Timestamp) -> Result<Vec<i64>, StoreError> {
        Ok(query_scalar(
            "SELECT clock_skew_ms FROM node
             WHERE decommissioned_at IS NULL AND clock_skew_ms IS NOT NULL AND last_seen_at >= $1
             ORDER BY clock_skew_ms",
        )
        .bind(since)
        .fetch_all(&self.read)
        .await?)
    }

    /// The names of the nodes in service that hold a later set of signing keys than this one.
    pub(crate) async fn nodes_ahead_of_keys(&self, serial: u64) -> Result<Vec<String>, StoreError> {
        Ok(query_scalar(
            "SELECT name FROM node WHERE decommissioned_at IS NULL AND signing_serial > $1 ORDER BY name, id",
        )
        .bind(i64::try_from(serial).unwrap_or(i64::MAX))
        .fetch_all(&self.read)
        .await?)
    }

    /// The names of the nodes in service that were not heard of since then.
    pub(crate) async fn nodes_silent_since(&self, since: Timestamp) -> Result<Vec<String>, StoreError> {
        Ok(query_scalar(
            "SELECT name FROM node
             WHERE decommissioned_at IS NULL AND (last_seen_at IS NULL OR last_seen_at < $1) ORDER BY name, id",
        )
        .bind(since)
        .fetch_all(&self.read)
        .await?)
    }
}
