//! Idempotency keys and the executions they led to.

use muster_shared::{
    ids::{Digest, ExecutionId, ProjectId},
    time::Timestamp,
    wire::Dropped,
};

use super::{Store, StoreError, Tx, rows::Reader, rows::to_json, statement::query};

/// A key of one caller in one project, and what it is to lead to.
pub(crate) struct Claim<'a> {
    pub(crate) project: ProjectId,
    pub(crate) subject: &'a str,
    pub(crate) key: &'a str,
    pub(crate) body: Digest,
    pub(crate) execution: ExecutionId,
    pub(crate) now: Timestamp,
    pub(crate) expires_at: Timestamp,
}

/// What a key led to.
pub(crate) struct Claimed {
    pub(crate) body: Digest,
    pub(crate) execution: ExecutionId,
    pub(crate) dropped: Vec<Dropped>,
}

impl Store {
    /// What the key leads to, if it was used and its time is not over.
    pub(crate) async fn claimed(&self, claim: &Claim<'_>) -> Result<Option<Claimed>, StoreError> {
        let row = query(
            "SELECT body_hash, execution_id, dropped FROM idempotency_key
             WHERE project_id = $1 AND subject = $2 AND key = $3 AND expires_at > $4",
        )
        .bind(claim.project.uuid())
        .bind(claim.subject)
        .bind(claim.key)
        .bind(claim.now)
        .fetch_optional(&self.read)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let row = Reader::new(&row, "idempotency_key", "execution_id");
        Ok(Some(Claimed {
            body: row.digest("body_hash")?,
            execution: row.id("execution_id")?,
            dropped: row.json("dropped")?,
        }))
    }

    pub(crate) async fn any_key_expired(&self, now: Timestamp) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM idempotency_key WHERE expires_at <= $1 LIMIT 1")
            .bind(now)
            .fetch_optional(&self.read)
            .await?;
        Ok(row.is_some())
    }
}

impl Tx {
    /// Takes the key, unless it leads to another execution still.
    pub(crate) async fn claim_key(&mut self, claim: &Claim<'_>) -> Result<bool, StoreError> {
        let claimed = query(
            "INSERT INTO idempotency_key (project_id, subject, key, body_hash, execution_id, created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7)
             ON CONFLICT (project_id, subject, key) DO UPDATE
             SET body_hash = excluded.body_hash, execution_id = excluded.execution_id, dropped = excluded.dropped,
                 created_at = excluded.created_at, expires_at = excluded.expires_at
             WHERE idempotency_key.expires_at <= excluded.created_at",
        )
        .bind(claim.project.uuid())
        .bind(claim.subject)
        .bind(claim.key)
        .bind(&claim.body.as_bytes()[..])
        .bind(claim.execution.uuid())
        .bind(claim.now)
        .bind(claim.expires_at)
        .execute(&mut self.0)
        .await?;
        Ok(claimed == 1)
    }

    /// Keeps what the first answer says of dropped nodes, for those who ask again.
    pub(crate) async fn note_dropped(
        &mut self,
        execution: ExecutionId,
        dropped: &[Dropped],
    ) -> Result<(), StoreError> {
        query("UPDATE idempotency_key SET dropped = $2 WHERE execution_id = $1")
            .bind(execution.uuid())
            .bind(to_json(&dropped))
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    pub(crate) async fn forget_keys(&mut self, now: Timestamp, limit: u32) -> Result<u64, StoreError> {
        let gone = query(
            "DELETE FROM idempotency_key WHERE (project_id, subject, key) IN
                 (SELECT project_id, subject, key FROM idempotency_key WHERE expires_at <= $1
                  ORDER BY expires_at LIMIT $2)",
        )
        .bind(now)
        .bind(i64::from(limit))
        .execute(&mut self.0)
        .await?;
        Ok(gone)
    }
}
