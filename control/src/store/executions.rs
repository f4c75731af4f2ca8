//! How executions advance: the steps of their invocations, each with its event, and the header that settles with the last.

use std::collections::{BTreeMap, HashSet};

use muster_shared::{
    ids::{ExecutionId, NodeId},
    status::{self, Passed, Status},
    time::Timestamp,
    wire::OutputRef,
};

use super::{
    CorruptRow, News, StoreError, Tx,
    rows::{Reader, to_i64, to_json},
    statement::{ForEach, QueryBuilder, query, query_scalar},
};

/// Where one invocation goes, decided from the status it was read in.
pub(crate) struct Advance<'a> {
    pub(crate) execution: ExecutionId,
    pub(crate) node: NodeId,
    pub(crate) from: Status,
    /// On its way, each a step with an event of its own.
    pub(crate) through: &'a [Passed],
    pub(crate) to: Status,
    pub(crate) exit_code: Option<i64>,
    pub(crate) error: Option<&'a str>,
    pub(crate) output: Option<&'a OutputRef>,
    pub(crate) output_bytes: Option<u64>,
    pub(crate) output_total_bytes: Option<u64>,
    pub(crate) output_error: Option<&'a str>,
}

impl Advance<'_> {
    /// From where to where, in their order.
    fn hops(&self) -> impl Iterator<Item = (Status, Status)> {
        let way = self
            .through
            .iter()
            .map(|passed| Status::from(*passed))
            .chain([self.to]);
        way.scan(self.from, |at, to| Some((std::mem::replace(at, to), to)))
    }

    /// What its event says of where it leads.
    pub(super) fn detail(&self) -> Option<String> {
        match (self.exit_code, self.error) {
            (None, None) => None,
            (_, Some(error)) => Some(error.to_owned()),
            (Some(code), None) => Some(format!("exit status {code}")),
        }
    }

    pub(crate) fn in_words(&self) -> String {
        self.hops()
            .fold(self.from.to_string(), |said, (_, to)| format!("{said} to {to}"))
    }
}

impl Tx {
    /// Advances invocations that each were read in this transaction where they are, with their events and, where one was
    /// the last to end, the settling of the header. Answers which executions settled. No target is named twice.
    pub(crate) async fn advance(
        &mut self,
        steps: &[Advance<'_>],
        now: Timestamp,
    ) -> Result<HashSet<ExecutionId>, StoreError> {
        let mut moved = 0;
        for steps in self.0.pieces(steps) {
            moved += self.move_targets(steps, now).await?;
        }
        if moved != steps.len() as u64 {
            return Err(StoreError::Moved);
        }
        self.append_events(steps, false, now).await?;
        let mut ended: BTreeMap<ExecutionId, Ended> = BTreeMap::new();
        for step in steps.iter().filter(|step| step.to.is_terminal()) {
            let ended = ended.entry(step.execution).or_default();
            ended.targets += 1;
            ended.failed += u64::from(is_failure(step.to));
        }
        let mut settled = HashSet::new();
        for (execution, ended) in ended {
            if self.count_down(execution, ended, now).await? {
                settled.insert(execution);
            }
        }
        Ok(settled)
    }

    async fn move_targets(&mut self, steps: &[Advance<'_>], now: Timestamp) -> Result<u64, StoreError> {
        // Equality of the status would let PostgreSQL take the index by status for each step, and walk along the
        // execution, as long as its statistics are of before the dispatch. What is left is found by the key alone.
        let mut moves = ForEach::new(
            "UPDATE action_execution_target AS t
             SET status = step.status, exit_code = step.exit_code, error = step.error,
                 output_ref = step.output_ref, output_bytes = coalesce(step.output_bytes, t.output_bytes),
                 output_total_bytes = step.output_total_bytes, output_error = step.output_error,
                 started_at = coalesce(t.started_at, step.started_at), ended_at = step.ended_at,
                 updated_at = step.moved_at",
            "WHERE t.execution_id = step.execution_id AND t.node_id = step.node_id
               AND t.status IS NOT DISTINCT FROM step.was AND t.released_at IS NOT NULL",
            &[
                "execution_id",
                "node_id",
                "was",
                "status",
                "exit_code",
                "error",
                "output_ref",
                "output_bytes",
                "output_total_bytes",
                "output_error",
                "started_at",
                "ended_at",
                "moved_at",
            ],
        );
        for step in steps {
            moves.push([
                step.execution.uuid().into(),
                step.node.uuid().into(),
                step.from.as_str().into(),
                step.to.as_str().into(),
                step.exit_code.into(),
                step.error.into(),
                step.output.map(to_json).into(),
                step.output_bytes.map(to_i64).into(),
                step.output_total_bytes.map(to_i64).into(),
                step.output_error.into(),
                step.hops()
                    .any(|(_, to)| to == Status::Started)
                    .then_some(now)
                    .into(),
                step.to.is_terminal().then_some(now).into(),
                now.into(),
            ]);
        }
        Ok(moves.execute(&mut self.0).await?)
    }

    /// Keeps news that came after its invocation was settled, beside it.
    pub(crate) async fn append_late_events(
        &mut self,
        steps: &[Advance<'_>],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.append_events(steps, true, now).await
    }

    async fn append_events(
        &mut self,
        steps: &[Advance<'_>],
        late: bool,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let hops = |step| Advance::hops(step).map(move |hop| (step, hop));
        let hops: Vec<_> = steps.iter().flat_map(hops).collect();
        for hops in self.0.pieces(&hops) {
            let mut query = QueryBuilder::new(
                "INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, late, detail, at) ",
            );
            query.push_values(hops, |row, (step, (from, to))| {
                let detail = (*to == step.to).then(|| step.detail()).flatten();
                row.push_bind(step.execution.uuid())
                    .push_bind(step.node.uuid())
                    .push_bind(from.as_str())
                    .push_bind(to.as_str())
                    .push_bind(late)
                    .push_bind(detail)
                    .push_bind(now);
            });
            query.build().execute(&mut self.0).await?;
        }
        for step in steps {
            self.tell(News::Timeline(step.execution));
        }
        Ok(())
    }

    /// Ends those targets of one execution that a condition names, for whatever reason is not a report of theirs, each with
    /// its event. The header is for [`Tx::count_ended`].
    pub(super) async fn end_targets(
        &mut self,
        execution: ExecutionId,
        (to, why): (Status, &str),
        which: impl Fn(&mut QueryBuilder),
        now: Timestamp,
    ) -> Result<Vec<EndedTarget>, StoreError> {
        let mut events = QueryBuilder::new(
            "INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, detail, at)
             SELECT execution_id, node_id, status, ",
        );
        events.push_bind(to.as_str()).push(", ");
        events.push_bind(why).push(", ").push_bind(now);
        events
            .push(" FROM action_execution_target WHERE execution_id = ")
            .push_bind(execution.uuid());
        which(&mut events);
        events.push(" ORDER BY rollout_position, node_id");
        events.build().execute(&mut self.0).await?;

        let mut update = QueryBuilder::new("UPDATE action_execution_target SET status = ");
        update.push_bind(to.as_str());
        update.push(", error = ").push_bind(why);
        update.push(", updated_at = ").push_bind(now);
        update.push(", ended_at = ").push_bind(now);
        update.push(" WHERE execution_id = ").push_bind(execution.uuid());
        which(&mut update);
        update.push(" RETURNING node_id, released_at");
        let rows = update.build().fetch_all(&mut self.0).await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "action_execution_target", "node_id");
                Ok(EndedTarget {
                    node: row.id("node_id")?,
                    held: row.at_opt("released_at")?.is_none(),
                })
            })
            .collect()
    }

    /// Takes what [`Tx::end_targets`] ended off the header's count. Answers whether that settled it.
    pub(super) async fn count_ended(
        &mut self,
        execution: ExecutionId,
        to: Status,
        ended: &[EndedTarget],
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        if ended.is_empty() {
            return Ok(false);
        }
        let targets = ended.len() as u64;
        let count = Ended {
            targets,
            failed: if is_failure(to) { targets } else { 0 },
            held: ended.iter().filter(|target| target.held).count() as u64,
        };
        self.count_down(execution, count, now).await
    }

    /// Takes ended targets off the header's count; the last one settles it as the fold of all.
    async fn count_down(
        &mut self,
        execution: ExecutionId,
        ended: Ended,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.tell(News::Timeline(execution));
        self.tell(News::Rollouts);
        let live: i64 = query_scalar(
            "UPDATE action_execution SET live_targets = live_targets - $2, updated_at = $3,
                 failed_targets = failed_targets + $4, held_targets = held_targets - $5
             WHERE id = $1 RETURNING live_targets",
        )
        .bind(execution.uuid())
        .bind(to_i64(ended.targets))
        .bind(now)
        .bind(to_i64(ended.failed))
        .bind(to_i64(ended.held))
        .fetch_one(&mut self.0)
        .await?;
        if live > 0 {
            return Ok(false);
        }
        let rows = query("SELECT DISTINCT status FROM action_execution_target WHERE execution_id = $1")
            .bind(execution.uuid())
            .fetch_all(&mut self.0)
            .await?;
        let statuses: Result<Vec<Status>, CorruptRow> = rows
            .iter()
            .map(|row| Reader::new(row, "action_execution_target", "status").parsed("status"))
            .collect();
        let settled = status::fold(statuses?);
        query(
            "UPDATE action_execution SET terminal_status = $2, sealed_parameters = NULL
             WHERE id = $1 AND terminal_status IS NULL",
        )
        .bind(execution.uuid())
        .bind(settled.as_str())
        .execute(&mut self.0)
        .await?;
        Ok(true)
    }
}

/// A target that ended without a report.
pub(super) struct EndedTarget {
    pub(super) node: NodeId,
    /// It was never released.
    held: bool,
}

/// Targets that ended together.
#[derive(Clone, Copy, Default)]
struct Ended {
    targets: u64,
    /// How many of them as `failed` or `timeout`.
    failed: u64,
    /// How many of them were held.
    held: u64,
}

/// What a rollout counts against `max_failures`: what an operator took back is not one.
const fn is_failure(status: Status) -> bool {
    match status {
        Status::Failed | Status::Timeout => true,
        Status::Pending | Status::Ack | Status::Started | Status::Succeeded | Status::Cancelled => false,
    }
}
