//! Executions, their targets and their timeline.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use muster_shared::{
    ids::{ActionName, Digest, DomainId, ExecutionId, NodeId, ProjectId},
    status::{self, Passed, Status},
    time::Timestamp,
    wire::{ActionKind, Execution, ExecutionTarget, OutputRef, Parameters, Rollout, TimelineEvent},
};

use super::{
    CorruptRow, News, Pool, ROWS_PER_INSERT, Store, StoreError, Tx,
    ask::{Found, ask, nearby},
    engine::Transaction,
    rows::{Reader, Row, nodes_of, to_json},
    statement::{QueryBuilder, Statement, query, query_scalar},
};
use crate::rollout::Deadlines;

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

#[derive(Clone, Debug)]
pub(crate) struct ExecutionHeader {
    pub(crate) id: ExecutionId,
    pub(crate) domain: DomainId,
    pub(crate) project: ProjectId,
    pub(crate) action: ActionName,
    pub(crate) kind: ActionKind,
    pub(crate) parameters: Option<Parameters>,
    pub(crate) sealed_parameters: Option<Vec<u8>>,
    pub(crate) selector: Option<String>,
    pub(crate) timeout_seconds: u32,
    pub(crate) deliver_within_seconds: Option<u32>,
    pub(crate) terminal: Option<Status>,
    pub(crate) requested_by: String,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

pub(super) const HEADER_COLUMNS: &str = "e.id, e.domain_id, e.project_id, e.action_name, e.action_kind, e.parameters, \
     e.selector, e.timeout_seconds, e.deliver_within_seconds, e.terminal_status, e.requested_by, e.created_at, \
     e.updated_at, e.expires_at, e.sealed_parameters";

impl ExecutionHeader {
    pub(super) fn read(row: &Row) -> Result<Self, CorruptRow> {
        let row = Reader::new(row, "action_execution", "id");
        let kind = match row.get::<&str>("action_kind")? {
            "builtin" => ActionKind::Builtin,
            "hook" => ActionKind::Hook,
            other => return Err(row.corrupt("action_kind", other)),
        };
        let terminal = row.get::<Option<&str>>("terminal_status")?;
        Ok(Self {
            id: row.id("id")?,
            domain: row.id("domain_id")?,
            project: row.id("project_id")?,
            action: row.parsed("action_name")?,
            kind,
            parameters: row.json_opt("parameters")?,
            sealed_parameters: row.get("sealed_parameters")?,
            selector: row.get("selector")?,
            timeout_seconds: row.number("timeout_seconds")?,
            deliver_within_seconds: row.number_opt("deliver_within_seconds")?,
            terminal: terminal
                .map(|s| s.parse().map_err(|err| row.corrupt("terminal_status", err)))
                .transpose()?,
            requested_by: row.get("requested_by")?,
            created_at: row.at("created_at")?,
            updated_at: row.at("updated_at")?,
            expires_at: row.at("expires_at")?,
        })
    }

    /// The published shape. A live execution's status is the fold of its targets at this moment.
    pub(super) fn into_wire(
        self,
        counts: BTreeMap<Status, u64>,
        targets: Vec<ExecutionTarget>,
        rollout: Option<Rollout>,
    ) -> Execution {
        Execution {
            id: self.id,
            project_id: self.project,
            domain_id: self.domain,
            action: self.action,
            kind: self.kind,
            status: self
                .terminal
                .unwrap_or_else(|| status::fold(counts.keys().copied())),
            created_at: self.created_at,
            updated_at: self.updated_at,
            targets,
            target_counts: counts,
            timeout_seconds: self.timeout_seconds,
            deliver_within_seconds: self.deliver_within_seconds,
            expires_at: self.expires_at,
            requested_by: self.requested_by,
            rollout,
            selector: self.selector,
            parameters: self.parameters,
            dropped: Vec::new(),
        }
    }
}

/// What a callback is judged by.
#[derive(Clone, Debug)]
pub(crate) struct TargetState {
    pub(crate) status: Status,
    /// Whether a rollout holds it back: its node has not heard of it.
    pub(crate) held: bool,
    pub(crate) callback_token_hash: Digest,
    /// Whether the domain takes no report without the invocation's token.
    pub(crate) callback_token_required: bool,
    pub(crate) output: Option<OutputRef>,
    /// The size for which a URL was given last, in bytes.
    pub(crate) upload_offered: Option<u64>,
    pub(crate) output_error: Option<String>,
}

/// Where one invocation goes, decided from the status it was read in.
pub(crate) struct Advance<'a> {
    pub(crate) execution: ExecutionId,
    pub(crate) node: NodeId,
    pub(crate) from: Status,
    /// On its way, each a step with an event of its own.
    pub(crate) through: &'a [Passed],
    pub(crate) to: Status,
    pub(crate) exit_code: Option<i32>,
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

    pub(crate) fn in_words(&self) -> String {
        self.hops()
            .fold(self.from.to_string(), |said, (_, to)| format!("{said} to {to}"))
    }
}

/// News of the output of an invocation that has ended without it: the output, or why it is not here.
pub(crate) struct LateOutput<'a> {
    pub(crate) execution: ExecutionId,
    pub(crate) node: NodeId,
    pub(crate) output: Option<&'a OutputRef>,
    pub(crate) output_bytes: Option<u64>,
    pub(crate) output_total_bytes: Option<u64>,
    pub(crate) output_error: Option<&'a str>,
}

/// An output as it is given out.
pub(crate) struct KeptOutput {
    pub(crate) output: OutputRef,
    pub(crate) node_name: String,
}

/// An execution in which a deadline may have passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overdue {
    pub(crate) execution: ExecutionId,
    pub(crate) domain: DomainId,
    pub(crate) deliver_within_seconds: Option<u32>,
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

    /// The states of these targets; of one that there is not, nothing.
    pub(crate) async fn targets(
        &mut self,
        asked: &[(ExecutionId, NodeId)],
    ) -> Result<HashMap<(ExecutionId, NodeId), TargetState>, StoreError> {
        let mut targets = HashMap::new();
        for asked in self.0.pieces(asked) {
            for row in states_of(asked).fetch_all(&mut self.0).await? {
                targets.insert(target_of(&row)?, target_state(&row)?);
            }
        }
        Ok(targets)
    }

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
        let mut query = QueryBuilder::new(
            "WITH step (execution_id, node_id, was, status, exit_code, error, output_ref, output_bytes,
                        output_total_bytes, output_error, started_at, ended_at) AS (",
        );
        query.push_values(steps, |row, step| {
            row.push_bind(step.execution.uuid())
                .push_bind(step.node.uuid())
                .push_bind(step.from.as_str())
                .push_bind(step.to.as_str())
                .push_bind(step.exit_code)
                .push_bind(step.error)
                .push_bind(step.output.map(to_json))
                .push_bind(step.output_bytes.map(to_i64))
                .push_bind(step.output_total_bytes.map(to_i64))
                .push_bind(step.output_error)
                .push_bind(step.hops().any(|(_, to)| to == Status::Started).then_some(now))
                .push_bind(step.to.is_terminal().then_some(now));
        });
        query
            .push(
                ") UPDATE action_execution_target AS t
                 SET status = step.status, exit_code = step.exit_code, error = step.error,
                     output_ref = step.output_ref, output_bytes = coalesce(step.output_bytes, t.output_bytes),
                     output_total_bytes = step.output_total_bytes, output_error = step.output_error,
                     started_at = coalesce(t.started_at, step.started_at), ended_at = step.ended_at,
                     updated_at = ",
            )
            .push_bind(now)
            .push(
                " FROM step
                 WHERE t.execution_id = step.execution_id AND t.node_id = step.node_id AND t.status = step.was
                   AND t.released_at IS NOT NULL",
            );
        Ok(query.build().execute(&mut self.0).await?)
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
                let detail = match (step.exit_code, step.error) {
                    (None, None) => None,
                    _ if *to != step.to => None,
                    (_, Some(error)) => Some(error.to_owned()),
                    (Some(code), None) => Some(format!("exit status {code}")),
                };
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

    /// Notes the size a node declares for the output of an invocation, and until when the URL is good that it is given for it.
    pub(crate) async fn declare_output(
        &mut self,
        execution: ExecutionId,
        node: NodeId,
        bytes: u64,
        until: Timestamp,
    ) -> Result<(), StoreError> {
        query(
            "UPDATE action_execution_target SET output_bytes = $3, upload_until = $4
             WHERE execution_id = $1 AND node_id = $2 AND output_ref IS NULL",
        )
        .bind(execution.uuid())
        .bind(node.uuid())
        .bind(to_i64(bytes))
        .bind(until)
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    /// Notes what follows an end that was told without its output. An output that is here stays.
    pub(crate) async fn late_output(
        &mut self,
        late: &LateOutput<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query(
            "UPDATE action_execution_target
             SET output_ref = $3, output_bytes = coalesce($4, output_bytes),
                 output_total_bytes = coalesce($5, output_total_bytes), output_error = $6, updated_at = $7
             WHERE execution_id = $1 AND node_id = $2 AND output_ref IS NULL",
        )
        .bind(late.execution.uuid())
        .bind(late.node.uuid())
        .bind(late.output.map(to_json))
        .bind(late.output_bytes.map(to_i64))
        .bind(late.output_total_bytes.map(to_i64))
        .bind(late.output_error)
        .bind(now)
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    /// Times out the targets of one execution whose `deadline` had passed at `by`. Answers which, and whether that settled
    /// the header.
    pub(crate) async fn time_out(
        &mut self,
        execution: ExecutionId,
        (deadline, by): (Deadline, Timestamp),
        why: &str,
        now: Timestamp,
    ) -> Result<(Vec<NodeId>, bool), StoreError> {
        let mut events = QueryBuilder::new(
            "INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, detail, at)
             SELECT execution_id, node_id, status, 'timeout', ",
        );
        events.push_bind(why.to_owned()).push(", ").push_bind(now);
        events
            .push(" FROM action_execution_target WHERE execution_id = ")
            .push_bind(execution.uuid());
        push_passed(&mut events, deadline, by);
        events.build().execute(&mut self.0).await?;

        let mut update = QueryBuilder::new("UPDATE action_execution_target SET status = 'timeout', error = ");
        update.push_bind(why.to_owned());
        update.push(", updated_at = ").push_bind(now);
        update.push(", ended_at = ").push_bind(now);
        update.push(" WHERE execution_id = ").push_bind(execution.uuid());
        push_passed(&mut update, deadline, by);
        update.push(" RETURNING node_id");
        let rows = update.build().fetch_all(&mut self.0).await?;
        let ended = nodes_of(&rows)?;
        let count = Ended {
            targets: ended.len() as u64,
            failed: ended.len() as u64,
            held: 0,
        };
        let settled = !ended.is_empty() && self.count_down(execution, count, now).await?;
        Ok((ended, settled))
    }

    /// Notes when a deadline of a target may pass next: while a node has it, when the report grace is over too.
    pub(crate) async fn note_next_deadline(
        &mut self,
        execution: ExecutionId,
        report_grace: Duration,
    ) -> Result<(), StoreError> {
        let row = query(
            "SELECT e.id,
                 (SELECT min(deliver_by) FROM action_execution_target
                  WHERE execution_id = e.id AND status = 'pending' AND released_at IS NOT NULL) AS deliver_by,
                 (SELECT min(expires_at) FROM action_execution_target
                  WHERE execution_id = e.id AND status IN ('ack', 'started')) AS expires_at
             FROM action_execution e WHERE e.id = $1",
        )
        .bind(execution.uuid())
        .fetch_one(&mut self.0)
        .await?;
        let row = Reader::new(&row, "action_execution", "id");
        let (delivery, run) = (row.at_opt("deliver_by")?, row.at_opt("expires_at")?);
        let due = delivery
            .into_iter()
            .chain(run.map(|run| run.plus(report_grace)))
            .min();
        query("UPDATE action_execution SET due_at = $2 WHERE id = $1")
            .bind(execution.uuid())
            .bind(due)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Takes ended targets off the header's count; the last one settles it as the fold of all.
    pub(super) async fn count_down(
        &mut self,
        execution: ExecutionId,
        ended: Ended,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.tell(News::Timeline(execution));
        self.tell(News::Rollouts);
        let live: i64 = query_scalar(
            "UPDATE action_execution SET live_targets = live_targets - $2, updated_at = $3,
                 failed_targets = failed_targets + $4, held_targets = held_targets - $5
             WHERE id = $1 RETURNING live_targets",
        )
        .bind(execution.uuid())
        .bind(count(ended.targets))
        .bind(now)
        .bind(count(ended.failed))
        .bind(count(ended.held))
        .fetch_one(&mut self.0)
        .await?;
        if live > 0 {
            return Ok(false);
        }
        let statuses: Vec<String> =
            query_scalar("SELECT DISTINCT status FROM action_execution_target WHERE execution_id = $1")
                .bind(execution.uuid())
                .fetch_all(&mut self.0)
                .await?;
        let settled = status::fold(statuses.iter().filter_map(|s| s.parse().ok()));
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

/// Targets that ended together.
#[derive(Clone, Copy, Default)]
pub(super) struct Ended {
    pub(super) targets: u64,
    /// How many of them as `failed` or `timeout`.
    pub(super) failed: u64,
    /// How many of them were held.
    pub(super) held: u64,
}

/// What a rollout counts against `max_failures`: what an operator took back is not one.
const fn is_failure(status: Status) -> bool {
    match status {
        Status::Failed | Status::Timeout => true,
        Status::Pending | Status::Ack | Status::Started | Status::Succeeded | Status::Cancelled => false,
    }
}

/// The two deadlines of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deadline {
    /// Until when its node may take it.
    Delivery,
    /// Until when what was taken may run.
    Run,
}

/// What has passed its deadline; what is held has none.
fn push_passed(query: &mut QueryBuilder, deadline: Deadline, by: Timestamp) {
    match deadline {
        Deadline::Delivery => {
            query.push(" AND status = 'pending' AND released_at IS NOT NULL AND deliver_by <= ")
        }
        Deadline::Run => query.push(" AND status IN ('ack', 'started') AND expires_at <= "),
    };
    query.push_bind(by);
}

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

const TARGET_STATE_COLUMNS: &str =
    "t.execution_id, t.node_id, t.status, t.released_at, t.callback_token_hash, t.output_ref, t.output_error,
     CASE WHEN t.upload_until IS NOT NULL THEN t.output_bytes END AS upload_offered, domain.callback_token_required";

/// Asks for the states of these targets.
fn states_of(asked: &[(ExecutionId, NodeId)]) -> Statement {
    let mut query = QueryBuilder::new("WITH asked (execution_id, node_id) AS (");
    query.push_values(asked, |row, (execution, node)| {
        row.push_bind(execution.uuid()).push_bind(node.uuid());
    });
    query
        .push(") SELECT ")
        .push(TARGET_STATE_COLUMNS)
        // In this order: what is asked for is little, and the targets are many.
        .push(
            " FROM asked CROSS JOIN action_execution_target t
             CROSS JOIN action_execution e CROSS JOIN domain
             WHERE t.execution_id = asked.execution_id AND t.node_id = asked.node_id
               AND e.id = t.execution_id AND domain.id = e.domain_id",
        )
        .build()
}

async fn target_states(
    pool: Pool,
    asked: Vec<(ExecutionId, NodeId)>,
) -> Result<Found<(ExecutionId, NodeId), TargetState>, StoreError> {
    let mut states = Found::new();
    for asked in pool.pieces(&asked) {
        for row in states_of(asked).fetch_all(&pool).await? {
            states.insert(target_of(&row)?, target_state(&row));
        }
    }
    Ok(states)
}

fn target_of(row: &Row) -> Result<(ExecutionId, NodeId), CorruptRow> {
    let row = Reader::new(row, "action_execution_target", "execution_id");
    Ok((row.id("execution_id")?, row.id("node_id")?))
}

fn target_state(row: &Row) -> Result<TargetState, CorruptRow> {
    let row = Reader::new(row, "action_execution_target", "execution_id");
    Ok(TargetState {
        status: row.parsed("status")?,
        held: row.at_opt("released_at")?.is_none(),
        callback_token_hash: row.digest("callback_token_hash")?,
        callback_token_required: row.get("callback_token_required")?,
        output: row.json_opt("output_ref")?,
        upload_offered: row.number_opt("upload_offered")?,
        output_error: row.get("output_error")?,
    })
}

pub(super) fn push_statuses(query: &mut QueryBuilder, statuses: &[Status]) {
    query.push(" AND status IN (");
    let mut list = query.separated(", ");
    for status in statuses {
        list.push_bind(status.as_str());
    }
    query.push(")");
}

/// Which targets a read shows, and whether with the bytes of inline output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    WithOutput,
    WithoutOutput,
}

impl Store {
    /// The same as [`Tx::count_live_executions`], true of no more than the moment.
    pub(crate) async fn count_live_executions(&self, domain: DomainId) -> Result<i64, StoreError> {
        Ok(query_scalar(COUNT_LIVE)
            .bind(domain.uuid())
            .fetch_one(&self.read)
            .await?)
    }

    /// The state of one target, read outside of any write: enough to answer who may speak for it.
    pub(crate) async fn target_now(
        &self,
        execution: ExecutionId,
        node: NodeId,
    ) -> Result<Option<TargetState>, StoreError> {
        ask(
            &self.targets,
            (execution, node),
            &self.read,
            target_states,
            nearby,
        )
        .await
    }

    /// The output of an invocation; `None` when it has none, or does not exist.
    pub(crate) async fn output_of(
        &self,
        execution: ExecutionId,
        node: NodeId,
    ) -> Result<Option<KeptOutput>, StoreError> {
        let row = query(
            "SELECT t.execution_id, t.output_ref, node.name AS node_name
             FROM action_execution_target t JOIN node ON node.id = t.node_id
             WHERE t.execution_id = $1 AND t.node_id = $2 AND t.output_ref IS NOT NULL",
        )
        .bind(execution.uuid())
        .bind(node.uuid())
        .fetch_optional(&self.read)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let row = Reader::new(&row, "action_execution_target", "execution_id");
        Ok(Some(KeptOutput {
            output: row.json("output_ref")?,
            node_name: row.get("node_name")?,
        }))
    }

    pub(crate) async fn execution_exists(&self, execution: ExecutionId) -> Result<bool, StoreError> {
        let row = query("SELECT 1 FROM action_execution WHERE id = $1")
            .bind(execution.uuid())
            .fetch_optional(&self.read)
            .await?;
        Ok(row.is_some())
    }

    pub(crate) async fn header(
        &self,
        project: ProjectId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionHeader>, StoreError> {
        let mut snapshot = self.read.snapshot().await?;
        Self::header_from(&mut snapshot, project, id).await
    }

    pub(super) async fn header_from(
        connection: &mut Transaction,
        project: ProjectId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionHeader>, StoreError> {
        let row = QueryBuilder::new("SELECT ")
            .push(HEADER_COLUMNS)
            .push(" FROM action_execution e WHERE e.project_id = ")
            .push_bind(project.uuid())
            .push(" AND e.id = ")
            .push_bind(id.uuid())
            .build()
            .fetch_optional(connection)
            .await?;
        Ok(row.map(|row| ExecutionHeader::read(&row)).transpose()?)
    }

    /// The transitions of an execution after the event `after`, oldest first.
    pub(crate) async fn timeline(
        &self,
        execution: ExecutionId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<TimelineEvent>, StoreError> {
        let rows = query(
            "SELECT ev.*, node.name AS node_name FROM action_execution_event ev JOIN node ON node.id = ev.node_id
             WHERE ev.execution_id = $1 AND ev.id > $2 ORDER BY ev.id LIMIT $3",
        )
        .bind(execution.uuid())
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "action_execution_event", "execution_id");
                Ok(TimelineEvent {
                    id: row.get("id")?,
                    node_id: row.id("node_id")?,
                    node_name: row.get("node_name")?,
                    from: Some(row.parsed("from_status")?),
                    to: row.parsed("to_status")?,
                    at: row.at("at")?,
                    late: row.get("late")?,
                    detail: row.get("detail")?,
                })
            })
            .collect()
    }

    /// Live executions with a target whose time may have passed, the longest overdue first.
    pub(crate) async fn overdue(&self, now: Timestamp, limit: u32) -> Result<Vec<Overdue>, StoreError> {
        let rows = query(
            "SELECT id, domain_id, deliver_within_seconds FROM action_execution
             WHERE terminal_status IS NULL AND due_at <= $1 ORDER BY due_at LIMIT $2",
        )
        .bind(now)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "action_execution", "id");
                Ok(Overdue {
                    execution: row.id("id")?,
                    domain: row.id("domain_id")?,
                    deliver_within_seconds: row.number_opt("deliver_within_seconds")?,
                })
            })
            .collect()
    }
}

pub(super) fn read_target(row: &Row, detail: Detail) -> Result<ExecutionTarget, CorruptRow> {
    let row = Reader::new(row, "action_execution_target", "execution_id");
    let output_ref: Option<OutputRef> = match detail {
        Detail::WithOutput => row.json_opt("output_ref")?,
        Detail::WithoutOutput => None,
    };
    let (released_at, deliver_by, expires_at) = (
        row.at_opt("released_at")?,
        row.at_opt("deliver_by")?,
        row.at_opt("expires_at")?,
    );
    let status: Status = row.parsed("status")?;
    let has_its_own = deliver_by != expires_at || row.get::<Option<i64>>("rollout_position")?.is_some();
    let count = |column| {
        Ok(row
            .get::<Option<i64>>(column)?
            .and_then(|n| u64::try_from(n).ok()))
    };
    let (output_bytes, output_total_bytes) = (count("output_bytes")?, count("output_total_bytes")?);
    Ok(ExecutionTarget {
        node_id: row.id("node_id")?,
        status,
        created_at: row.at("created_at")?,
        updated_at: row.at("updated_at")?,
        output_ref,
        node_name: row.get("node_name")?,
        exit_code: row.number_opt("exit_code")?,
        error: row.get("error")?,
        started_at: row.at_opt("started_at")?,
        ended_at: row.at_opt("ended_at")?,
        output_bytes,
        output_total_bytes,
        output_truncated: output_total_bytes
            .zip(output_bytes)
            .is_some_and(|(all, kept)| all > kept),
        output_error: row.get("output_error")?,
        cancel_requested_at: row.at_opt("cancel_requested_at")?,
        held: released_at.is_none() && !status.is_terminal(),
        released_at: released_at.filter(|_| has_its_own),
        deliver_by: deliver_by.filter(|_| has_its_own),
        expires_at: expires_at.filter(|_| has_its_own),
    })
}
