//! What a dispatch writes: the header, its targets and what tells their nodes; and how much of that is alive.

use muster_shared::{
    ids::{ActionName, Digest, DomainId, ExecutionId, NodeId, ProjectId},
    time::Timestamp,
    wire::{ActionKind, Parameters},
};

use super::{
    News, ROWS_PER_INSERT, Store, StoreError, Tx,
    rows::to_json,
    statement::{QueryBuilder, query, query_scalar},
};
use crate::deadlines::Deadlines;

pub(crate) struct NewExecution<'a> {
    pub(crate) id: ExecutionId,
    pub(crate) domain: DomainId,
    pub(crate) project: ProjectId,
    pub(crate) action: &'a ActionName,
    pub(crate) kind: ActionKind,
    /// What of them may be shown.
    pub(crate) parameters: Option<&'a Parameters>,
    /// The rest, sealed.
    pub(crate) sealed_parameters: Option<&'a [u8]>,
    pub(crate) selector: Option<&'a str>,
    pub(crate) timeout_seconds: u32,
    pub(crate) deliver_within_seconds: Option<u32>,
    pub(crate) requested_by: &'a str,
    pub(crate) created_at: Timestamp,
    /// Each target with the hash of its callback token; of a rollout in the order of their release.
    pub(crate) targets: &'a [(NodeId, Digest)],
    /// Whether all of them are held, for a rollout to release.
    pub(crate) held: bool,
}

impl NewExecution<'_> {
    fn deadlines(&self) -> Deadlines {
        Deadlines::of(self.timeout_seconds, self.deliver_within_seconds, self.created_at)
    }
}

const COUNT_LIVE: &str =
    "SELECT count(*) FROM action_execution WHERE domain_id = $1 AND terminal_status IS NULL";

impl Tx {
    pub(crate) async fn count_live_executions(&mut self, domain: DomainId) -> Result<i64, StoreError> {
        Ok(query_scalar(COUNT_LIVE)
            .bind(domain.uuid())
            .fetch_one(&mut self.0)
            .await?)
    }

    /// Writes the header, its targets and, unless they are held, an outbox row for each, all part of this transaction.
    pub(crate) async fn insert_execution(&mut self, new: &NewExecution<'_>) -> Result<(), StoreError> {
        let count = i64::try_from(new.targets.len()).unwrap_or(i64::MAX);
        let deadlines = new.deadlines();
        query(
            "INSERT INTO action_execution
                 (id, domain_id, project_id, action_name, action_kind, parameters, selector, timeout_seconds,
                  live_targets, requested_by, created_at, updated_at, expires_at, deliver_within_seconds,
                  held_targets, due_at, sealed_parameters)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12, $13, $14, $15, $16)",
        )
        .bind(new.id.uuid())
        .bind(new.domain.uuid())
        .bind(new.project.uuid())
        .bind(new.action.as_str())
        .bind(new.kind.as_str())
        .bind(new.parameters.map(to_json))
        .bind(new.selector)
        .bind(i64::from(new.timeout_seconds))
        .bind(count)
        .bind(new.requested_by)
        .bind(new.created_at)
        .bind(deadlines.expires_at)
        .bind(new.deliver_within_seconds.map(i64::from))
        .bind(if new.held { count } else { 0 })
        .bind((!new.held).then_some(deadlines.deliver_by))
        .bind(new.sealed_parameters)
        .execute(&mut self.0)
        .await?;
        self.tell(if new.held { News::Rollouts } else { News::Outbox });
        for (index, chunk) in new.targets.chunks(ROWS_PER_INSERT).enumerate() {
            self.insert_targets(new, index * ROWS_PER_INSERT, chunk).await?;
        }
        if new.held {
            return Ok(());
        }
        query(
            "INSERT INTO outbox (event_type, node_id, execution_id, created_at)
             SELECT 'action_request', node_id, execution_id, $2 FROM action_execution_target WHERE execution_id = $1",
        )
        .bind(new.id.uuid())
        .bind(new.created_at)
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    async fn insert_targets(
        &mut self,
        new: &NewExecution<'_>,
        before: usize,
        targets: &[(NodeId, Digest)],
    ) -> Result<(), StoreError> {
        let now = new.created_at;
        let deadlines = new.deadlines();
        let released = |at: Timestamp| (!new.held).then_some(at);
        // What is the same of every target is bound once.
        let mut query = QueryBuilder::new("WITH cohort (node_id, token_hash, place) AS (");
        query.push_values((before + 1..).zip(targets), |row, (place, (node, token_hash))| {
            row.push_bind(node.uuid())
                .push_bind(token_hash.as_bytes().to_vec())
                .push_bind(i64::try_from(place).ok().filter(|_| new.held));
        });
        query
            .push(
                ") INSERT INTO action_execution_target
                     (node_id, callback_token_hash, rollout_position, status, execution_id, created_at, updated_at,
                      released_at, deliver_by, expires_at)
                 SELECT node_id, token_hash, place, 'pending', ",
            )
            .push_bind(new.id.uuid());
        for instant in [
            Some(now),
            Some(now),
            released(new.created_at),
            released(deadlines.deliver_by),
            released(deadlines.expires_at),
        ] {
            query.push(", ").push_bind(instant);
        }
        query.push(" FROM cohort").build().execute(&mut self.0).await?;
        Ok(())
    }
}

impl Store {
    /// The same as [`Tx::count_live_executions`], true of no more than the moment.
    pub(crate) async fn count_live_executions(&self, domain: DomainId) -> Result<i64, StoreError> {
        Ok(query_scalar(COUNT_LIVE)
            .bind(domain.uuid())
            .fetch_one(&self.read)
            .await?)
    }
}
