//! Rollouts: what is held, what is released, and why the rest is not.

use std::collections::HashMap;

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
    wire::{Rollout, RolloutPlan},
};

use super::{
    CorruptRow, News, Store, StoreError, Tx,
    engine::Transaction,
    rows::{Reader, Row, nodes_of, to_json},
    statement::{QueryBuilder, query},
};
use crate::{
    deadlines::Deadlines,
    rollout::{Standing, state_of, wave_of},
};

/// A rollout of one execution, as it stands.
#[derive(Clone, Debug)]
pub(crate) struct Rolling {
    pub(crate) execution: ExecutionId,
    pub(crate) domain: DomainId,
    pub(crate) timeout_seconds: u32,
    pub(crate) deliver_within_seconds: Option<u32>,
    pub(crate) held: u32,
    pub(crate) standing: Standing,
}

/// The first held place is one step in an index; everything else is counted already.
const ROLLING: &str = "SELECT r.execution_id, r.plan, r.released_up_to, r.paused_at, r.paused_by, r.stopped, r.ends_at,
        e.domain_id, e.timeout_seconds, e.deliver_within_seconds, e.live_targets, e.held_targets, e.failed_targets,
        (SELECT min(t.rollout_position) FROM action_execution_target t
         WHERE t.execution_id = r.execution_id AND t.status = 'pending' AND t.released_at IS NULL) AS next_held
     FROM action_execution e JOIN action_execution_rollout r ON r.execution_id = e.id WHERE ";

/// What is held, and nothing else.
const HELD: &str = " AND status = 'pending' AND released_at IS NULL";

fn rolling(row: &Row) -> Result<Rolling, CorruptRow> {
    let row = Reader::new(row, "action_execution_rollout", "execution_id");
    let (live, held): (u32, u32) = (row.number("live_targets")?, row.number("held_targets")?);
    Ok(Rolling {
        execution: row.id("execution_id")?,
        domain: row.id("domain_id")?,
        timeout_seconds: row.number("timeout_seconds")?,
        deliver_within_seconds: row.number_opt("deliver_within_seconds")?,
        held,
        standing: Standing {
            plan: row.json("plan")?,
            released_up_to: row.number("released_up_to")?,
            next_held: row.number_opt("next_held")?,
            in_flight: live.saturating_sub(held),
            failed: row.number("failed_targets")?,
            paused: row.at_opt("paused_at")?.is_some(),
            ends_at: row.at("ends_at")?,
        },
    })
}

/// The published shape.
fn shown(row: &Row) -> Result<Rollout, CorruptRow> {
    let Rolling { held, standing, .. } = rolling(row)?;
    let row = Reader::new(row, "action_execution_rollout", "execution_id");
    let reason: Option<String> = row.get("stopped")?;
    let held = u64::from(held);
    Ok(Rollout {
        state: state_of(held, standing.paused, reason.is_some()),
        reason,
        wave: u32::try_from(wave_of(&standing.plan, standing.released_up_to)).unwrap_or(u32::MAX),
        plan: standing.plan,
        held,
        in_flight: standing.in_flight.into(),
        failed: standing.failed.into(),
        paused_at: row.at_opt("paused_at")?,
        paused_by: row.get("paused_by")?,
        ends_at: standing.ends_at,
    })
}

impl Tx {
    pub(crate) async fn insert_rollout(
        &mut self,
        execution: ExecutionId,
        plan: &RolloutPlan,
        ends_at: Timestamp,
    ) -> Result<(), StoreError> {
        query("INSERT INTO action_execution_rollout (execution_id, plan, ends_at) VALUES ($1, $2, $3)")
            .bind(execution.uuid())
            .bind(to_json(plan))
            .bind(ends_at)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// How the rollout of an execution stands; `None` when it has none.
    pub(crate) async fn rolling(&mut self, execution: ExecutionId) -> Result<Option<Rolling>, StoreError> {
        let row = QueryBuilder::new(ROLLING)
            .push("r.execution_id = ")
            .push_bind(execution.uuid())
            .build()
            .fetch_optional(&mut self.0)
            .await?;
        Ok(row.map(|row| rolling(&row)).transpose()?)
    }

    /// Releases the first held targets in the order, at most `at_most` and none past the place `up_to`: from now on they
    /// are owed to their nodes, each with an outbox row, and their time runs. Answers how many.
    pub(crate) async fn release(
        &mut self,
        execution: ExecutionId,
        (at_most, up_to): (u32, u32),
        deadlines: Deadlines,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.tell(News::Outbox);
        self.tell(News::Timeline(execution));
        let mut last = QueryBuilder::new(
            "SELECT max(place) FROM (SELECT rollout_position AS place FROM action_execution_target
             WHERE execution_id = ",
        );
        last.push_bind(execution.uuid()).push(HELD);
        last.push(" AND rollout_position <= ").push_bind(i64::from(up_to));
        last.push(" ORDER BY rollout_position LIMIT ")
            .push_bind(i64::from(at_most))
            .push(") AS first_held");
        let last: Option<i64> = last.build_scalar().fetch_one(&mut self.0).await?;
        let Some(last) = last else { return Ok(0) };

        let mut outbox = QueryBuilder::new(
            "INSERT INTO outbox (event_type, node_id, execution_id, created_at)
             SELECT 'action_request', node_id, execution_id, ",
        );
        outbox.push_bind(now);
        outbox
            .push(" FROM action_execution_target WHERE execution_id = ")
            .push_bind(execution.uuid());
        outbox
            .push(HELD)
            .push(" AND rollout_position <= ")
            .push_bind(last);
        outbox.push(" ORDER BY rollout_position");
        outbox.build().execute(&mut self.0).await?;

        let mut update = QueryBuilder::new("UPDATE action_execution_target SET released_at = ");
        update.push_bind(now);
        update.push(", updated_at = ").push_bind(now);
        update.push(", deliver_by = ").push_bind(deadlines.deliver_by);
        update.push(", expires_at = ").push_bind(deadlines.expires_at);
        update.push(" WHERE execution_id = ").push_bind(execution.uuid());
        update
            .push(HELD)
            .push(" AND rollout_position <= ")
            .push_bind(last);
        let released = update.build().execute(&mut self.0).await?;
        self.count_released(execution, (released, last), deadlines, now)
            .await?;
        Ok(released)
    }

    async fn count_released(
        &mut self,
        execution: ExecutionId,
        (released, last): (u64, i64),
        deadlines: Deadlines,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query(
            "UPDATE action_execution SET held_targets = held_targets - $2, updated_at = $3,
                 expires_at = CASE WHEN expires_at > $4 THEN expires_at ELSE $4 END,
                 due_at = CASE WHEN due_at < $5 THEN due_at ELSE $5 END
             WHERE id = $1",
        )
        .bind(execution.uuid())
        .bind(i64::try_from(released).unwrap_or(i64::MAX))
        .bind(now)
        .bind(deadlines.expires_at)
        .bind(deadlines.deliver_by)
        .execute(&mut self.0)
        .await?;
        query("UPDATE action_execution_rollout SET released_up_to = $2 WHERE execution_id = $1")
            .bind(execution.uuid())
            .bind(last)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Notes why nothing is released any more.
    pub(crate) async fn note_stopped(&mut self, execution: ExecutionId, why: &str) -> Result<(), StoreError> {
        query("UPDATE action_execution_rollout SET stopped = $2 WHERE execution_id = $1")
            .bind(execution.uuid())
            .bind(why)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Cancels every held target, with its event. Answers how many, and whether that settled the header.
    pub(crate) async fn cancel_held(
        &mut self,
        execution: ExecutionId,
        why: &str,
        now: Timestamp,
    ) -> Result<(u64, bool), StoreError> {
        let cancelled = Status::Cancelled;
        let held = |query: &mut QueryBuilder| {
            query.push(HELD);
        };
        let ended = self.end_targets(execution, (cancelled, why), held, now).await?;
        let settled = self.count_ended(execution, cancelled, &ended, now).await?;
        Ok((ended.len() as u64, settled))
    }

    /// Holds what is held until it is resumed; `by` is who asked for it, `None` who resumes.
    pub(crate) async fn set_paused(
        &mut self,
        execution: ExecutionId,
        by: Option<&str>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query("UPDATE action_execution_rollout SET paused_at = $2, paused_by = $3 WHERE execution_id = $1")
            .bind(execution.uuid())
            .bind(by.map(|_| now))
            .bind(by)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// The nodes whose targets are held.
    pub(crate) async fn held_nodes(&mut self, execution: ExecutionId) -> Result<Vec<NodeId>, StoreError> {
        let rows = QueryBuilder::new("SELECT node_id FROM action_execution_target WHERE execution_id = ")
            .push_bind(execution.uuid())
            .push(HELD)
            .build()
            .fetch_all(&mut self.0)
            .await?;
        Ok(nodes_of(&rows)?)
    }
}

impl Store {
    /// Every rollout that holds something, with what its next step is decided by. One that cannot be read is an error of
    /// its own.
    pub(crate) async fn all_rolling(&self) -> Result<Vec<Result<Rolling, CorruptRow>>, StoreError> {
        let rows = QueryBuilder::new(ROLLING)
            .push("e.held_targets > 0 ORDER BY e.id")
            .build()
            .fetch_all(&self.read)
            .await?;
        Ok(rows.iter().map(rolling).collect())
    }

    /// The rollouts of those of the executions that have one.
    pub(crate) async fn rollouts(
        &self,
        executions: impl IntoIterator<Item = ExecutionId>,
    ) -> Result<HashMap<ExecutionId, Rollout>, StoreError> {
        let mut snapshot = self.read.snapshot().await?;
        Self::rollouts_from(&mut snapshot, executions).await
    }

    pub(super) async fn rollouts_from(
        connection: &mut Transaction,
        executions: impl IntoIterator<Item = ExecutionId>,
    ) -> Result<HashMap<ExecutionId, Rollout>, StoreError> {
        let mut executions = executions.into_iter().peekable();
        // Of none there is nothing to read; to ask all the same would walk along every rollout there is.
        if executions.peek().is_none() {
            return Ok(HashMap::new());
        }
        let mut query = QueryBuilder::new(ROLLING);
        query.push_in("r.execution_id", executions.map(|id| id.uuid()));
        let rows = query.build().fetch_all(connection).await?;
        rows.iter()
            .map(|row| {
                let id = Reader::new(row, "action_execution_rollout", "execution_id").id("execution_id")?;
                Ok((id, shown(row)?))
            })
            .collect()
    }
}
