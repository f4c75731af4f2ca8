//! Executions, their targets and their timeline.

use std::collections::{BTreeMap, HashMap};

use muster_shared::{
    ids::{ActionName, Digest, DomainId, ExecutionId, NodeId, ProjectId},
    status::{self, Status},
    time::Timestamp,
    wire::{ActionKind, Execution, ExecutionTarget, OutputRef, Parameters, TimelineEvent},
};
use sqlx::{QueryBuilder, Sqlite, sqlite::SqliteRow};

use super::{CorruptRow, ROWS_PER_INSERT, Store, StoreError, Tx, rows::Reader, rows::to_json};

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
    pub(crate) requested_by: &'a str,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    /// Each target with the hash of its callback token.
    pub(crate) targets: &'a [(NodeId, Digest)],
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
    pub(crate) terminal: Option<Status>,
    pub(crate) requested_by: String,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

pub(super) const HEADER_COLUMNS: &str = "e.id, e.domain_id, e.project_id, e.action_name, e.action_kind, e.parameters, \
     e.selector, e.timeout_seconds, e.terminal_status, e.requested_by, e.created_ms, e.updated_ms, e.expires_ms, \
     e.sealed_parameters";

impl ExecutionHeader {
    pub(super) fn read(row: &SqliteRow) -> Result<Self, CorruptRow> {
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
            terminal: terminal
                .map(|s| s.parse().map_err(|err| row.corrupt("terminal_status", err)))
                .transpose()?,
            requested_by: row.get("requested_by")?,
            created_at: row.at("created_ms")?,
            updated_at: row.at("updated_ms")?,
            expires_at: row.at("expires_ms")?,
        })
    }

    /// The published shape. A live execution's status is the fold of its targets at this moment.
    fn into_wire(self, counts: BTreeMap<Status, u64>, targets: Vec<ExecutionTarget>) -> Execution {
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
            expires_at: self.expires_at,
            requested_by: self.requested_by,
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
    pub(crate) callback_token_hash: Digest,
    /// Whether the domain takes no report without the invocation's token.
    pub(crate) callback_token_required: bool,
}

/// One step of one invocation, decided from the status it was read in.
pub(crate) struct Advance<'a> {
    pub(crate) execution: ExecutionId,
    pub(crate) node: NodeId,
    pub(crate) from: Status,
    pub(crate) to: Status,
    pub(crate) exit_code: Option<i32>,
    pub(crate) error: Option<&'a str>,
    pub(crate) output: Option<&'a OutputRef>,
    pub(crate) output_bytes: Option<u64>,
}

#[derive(Default)]
pub(crate) struct ListFilter<'a> {
    pub(crate) status: Option<Status>,
    pub(crate) action: Option<&'a str>,
    /// Only executions before this one, newest first.
    pub(crate) before: Option<(Timestamp, ExecutionId)>,
}

const COUNT_LIVE: &str =
    "SELECT count(*) FROM action_execution WHERE domain_id = $1 AND terminal_status IS NULL";

impl Tx {
    pub(crate) async fn count_live_executions(&mut self, domain: DomainId) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(COUNT_LIVE)
            .bind(domain.uuid())
            .fetch_one(&mut *self.0)
            .await?)
    }

    /// Writes the header, its targets and an outbox row for each, all part of this transaction.
    pub(crate) async fn insert_execution(&mut self, new: &NewExecution<'_>) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO action_execution
                 (id, domain_id, project_id, action_name, action_kind, parameters, selector, timeout_seconds,
                  live_targets, requested_by, created_ms, updated_ms, expires_ms, sealed_parameters)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12, $13)",
        )
        .bind(new.id.uuid())
        .bind(new.domain.uuid())
        .bind(new.project.uuid())
        .bind(new.action.as_str())
        .bind(new.kind.as_str())
        .bind(new.parameters.map(to_json))
        .bind(new.selector)
        .bind(i64::from(new.timeout_seconds))
        .bind(i64::try_from(new.targets.len()).unwrap_or(i64::MAX))
        .bind(new.requested_by)
        .bind(new.created_at.as_millis())
        .bind(new.expires_at.as_millis())
        .bind(new.sealed_parameters)
        .execute(&mut *self.0)
        .await?;
        for chunk in new.targets.chunks(ROWS_PER_INSERT) {
            self.insert_targets(new, chunk).await?;
        }
        Ok(())
    }

    async fn insert_targets(
        &mut self,
        new: &NewExecution<'_>,
        targets: &[(NodeId, Digest)],
    ) -> Result<(), StoreError> {
        let now = new.created_at.as_millis();
        QueryBuilder::<Sqlite>::new(
            "INSERT INTO action_execution_target
                 (execution_id, node_id, status, callback_token_hash, created_ms, updated_ms) ",
        )
        .push_values(targets, |mut row, (node, token_hash)| {
            row.push_bind(new.id.uuid())
                .push_bind(node.uuid())
                .push_bind(Status::Pending.as_str())
                .push_bind(token_hash.as_bytes().to_vec())
                .push_bind(now)
                .push_bind(now);
        })
        .build()
        .execute(&mut *self.0)
        .await?;
        QueryBuilder::<Sqlite>::new("INSERT INTO outbox (event_type, node_id, execution_id, created_ms) ")
            .push_values(targets, |mut row, (node, _)| {
                row.push_bind("action_request")
                    .push_bind(node.uuid())
                    .push_bind(new.id.uuid())
                    .push_bind(now);
            })
            .build()
            .execute(&mut *self.0)
            .await?;
        Ok(())
    }

    pub(crate) async fn target(
        &mut self,
        execution: ExecutionId,
        node: NodeId,
    ) -> Result<Option<TargetState>, StoreError> {
        let row = sqlx::query(TARGET_STATE)
            .bind(execution.uuid())
            .bind(node.uuid())
            .fetch_optional(&mut *self.0)
            .await?;
        row.map(|row| target_state(&row)).transpose()
    }

    /// Advances an invocation that still is where the decision found it, with its event and, when it was the last to
    /// end, the settling of the header. `None` when it has moved since; otherwise whether the header settled.
    pub(crate) async fn advance(
        &mut self,
        step: &Advance<'_>,
        now: Timestamp,
    ) -> Result<Option<bool>, StoreError> {
        let ended = step.to.is_terminal().then_some(now.as_millis());
        let started = (step.to == Status::Started).then_some(now.as_millis());
        let moved = sqlx::query(
            "UPDATE action_execution_target
             SET status = $4, exit_code = $5, error = $6, output_ref = $7, updated_ms = $8,
                 output_bytes = coalesce($9, output_bytes),
                 started_ms = coalesce(started_ms, $10), ended_ms = $11
             WHERE execution_id = $1 AND node_id = $2 AND status = $3",
        )
        .bind(step.execution.uuid())
        .bind(step.node.uuid())
        .bind(step.from.as_str())
        .bind(step.to.as_str())
        .bind(step.exit_code)
        .bind(step.error)
        .bind(step.output.map(to_json))
        .bind(now.as_millis())
        .bind(step.output_bytes.and_then(|n| i64::try_from(n).ok()))
        .bind(started)
        .bind(ended)
        .execute(&mut *self.0)
        .await?;
        if moved.rows_affected() == 0 {
            return Ok(None);
        }
        self.append_event(step, false, now).await?;
        if step.to.is_terminal() {
            return self.count_down(step.execution, 1, now).await.map(Some);
        }
        Ok(Some(false))
    }

    /// Keeps news that came after its invocation was settled, beside it.
    pub(crate) async fn append_late_event(
        &mut self,
        step: &Advance<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.append_event(step, true, now).await
    }

    async fn append_event(
        &mut self,
        step: &Advance<'_>,
        late: bool,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let detail = match (step.exit_code, step.error) {
            (_, Some(error)) => Some(error.to_owned()),
            (Some(code), None) => Some(format!("exit status {code}")),
            (None, None) => None,
        };
        sqlx::query(
            "INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, late, detail, at_ms)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(step.execution.uuid())
        .bind(step.node.uuid())
        .bind(step.from.as_str())
        .bind(step.to.as_str())
        .bind(late)
        .bind(detail)
        .bind(now.as_millis())
        .execute(&mut *self.0)
        .await?;
        Ok(())
    }

    /// Notes the size a node declares for the output of an invocation.
    pub(crate) async fn declare_output(
        &mut self,
        execution: ExecutionId,
        node: NodeId,
        bytes: u64,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE action_execution_target SET output_bytes = $3 WHERE execution_id = $1 AND node_id = $2",
        )
        .bind(execution.uuid())
        .bind(node.uuid())
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
        .execute(&mut *self.0)
        .await?;
        Ok(())
    }

    /// Times out the targets of one execution that rest in one of `from`. Answers which, and whether that settled the
    /// header.
    pub(crate) async fn time_out(
        &mut self,
        execution: ExecutionId,
        from: &[Status],
        why: &str,
        now: Timestamp,
    ) -> Result<(Vec<NodeId>, bool), StoreError> {
        let mut events = QueryBuilder::<Sqlite>::new(
            "INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, detail, at_ms)
             SELECT execution_id, node_id, status, 'timeout', ",
        );
        events
            .push_bind(why.to_owned())
            .push(", ")
            .push_bind(now.as_millis());
        events
            .push(" FROM action_execution_target WHERE execution_id = ")
            .push_bind(execution.uuid());
        push_statuses(&mut events, from);
        events.build().execute(&mut *self.0).await?;

        let mut update =
            QueryBuilder::<Sqlite>::new("UPDATE action_execution_target SET status = 'timeout', error = ");
        update.push_bind(why.to_owned());
        update.push(", updated_ms = ").push_bind(now.as_millis());
        update.push(", ended_ms = ").push_bind(now.as_millis());
        update.push(" WHERE execution_id = ").push_bind(execution.uuid());
        push_statuses(&mut update, from);
        update.push(" RETURNING node_id");
        let rows = update.build().fetch_all(&mut *self.0).await?;
        let ended = rows
            .iter()
            .map(|row| Reader::new(row, "action_execution_target", "node_id").id("node_id"))
            .collect::<Result<Vec<NodeId>, _>>()?;
        let settled = !ended.is_empty() && self.count_down(execution, ended.len() as u64, now).await?;
        Ok((ended, settled))
    }

    /// Takes ended targets off the header's count; the last one settles it as the fold of all.
    pub(super) async fn count_down(
        &mut self,
        execution: ExecutionId,
        ended: u64,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let live: i64 = sqlx::query_scalar(
            "UPDATE action_execution SET live_targets = live_targets - $2, updated_ms = $3
             WHERE id = $1 RETURNING live_targets",
        )
        .bind(execution.uuid())
        .bind(i64::try_from(ended).unwrap_or(i64::MAX))
        .bind(now.as_millis())
        .fetch_one(&mut *self.0)
        .await?;
        if live > 0 {
            return Ok(false);
        }
        let statuses: Vec<String> =
            sqlx::query_scalar("SELECT DISTINCT status FROM action_execution_target WHERE execution_id = $1")
                .bind(execution.uuid())
                .fetch_all(&mut *self.0)
                .await?;
        let settled = status::fold(statuses.iter().filter_map(|s| s.parse().ok()));
        sqlx::query(
            "UPDATE action_execution SET terminal_status = $2, sealed_parameters = NULL
             WHERE id = $1 AND terminal_status IS NULL",
        )
        .bind(execution.uuid())
        .bind(settled.as_str())
        .execute(&mut *self.0)
        .await?;
        Ok(true)
    }
}

const TARGET_STATE: &str =
    "SELECT t.execution_id, t.status, t.callback_token_hash, domain.callback_token_required
     FROM action_execution_target t
     JOIN action_execution e ON e.id = t.execution_id JOIN domain ON domain.id = e.domain_id
     WHERE t.execution_id = $1 AND t.node_id = $2";

fn target_state(row: &SqliteRow) -> Result<TargetState, StoreError> {
    let row = Reader::new(row, "action_execution_target", "execution_id");
    Ok(TargetState {
        status: row.parsed("status")?,
        callback_token_hash: row.digest("callback_token_hash")?,
        callback_token_required: row.get("callback_token_required")?,
    })
}

pub(super) fn push_statuses(query: &mut QueryBuilder<Sqlite>, statuses: &[Status]) {
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
        Ok(sqlx::query_scalar(COUNT_LIVE)
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
        let row = sqlx::query(TARGET_STATE)
            .bind(execution.uuid())
            .bind(node.uuid())
            .fetch_optional(&self.read)
            .await?;
        row.map(|row| target_state(&row)).transpose()
    }

    /// Where the output of an invocation is; `None` when it has none, or does not exist.
    pub(crate) async fn output_of(
        &self,
        execution: ExecutionId,
        node: NodeId,
    ) -> Result<Option<OutputRef>, StoreError> {
        let row = sqlx::query(
            "SELECT execution_id, output_ref FROM action_execution_target WHERE execution_id = $1 AND node_id = $2",
        )
        .bind(execution.uuid())
        .bind(node.uuid())
        .fetch_optional(&self.read)
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Reader::new(&row, "action_execution_target", "execution_id").json_opt("output_ref")?)
    }

    pub(crate) async fn execution_exists(&self, execution: ExecutionId) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT 1 FROM action_execution WHERE id = $1")
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
        let row = QueryBuilder::<Sqlite>::new("SELECT ")
            .push(HEADER_COLUMNS)
            .push(" FROM action_execution e WHERE e.project_id = ")
            .push_bind(project.uuid())
            .push(" AND e.id = ")
            .push_bind(id.uuid())
            .build()
            .fetch_optional(&self.read)
            .await?;
        Ok(row.map(|row| ExecutionHeader::read(&row)).transpose()?)
    }

    pub(crate) async fn execution(
        &self,
        project: ProjectId,
        id: ExecutionId,
        detail: Detail,
    ) -> Result<Option<Execution>, StoreError> {
        let Some(header) = self.header(project, id).await? else {
            return Ok(None);
        };
        let rows = sqlx::query(
            "SELECT t.*, node.name AS node_name FROM action_execution_target t JOIN node ON node.id = t.node_id
             WHERE t.execution_id = $1 ORDER BY node.name, t.node_id",
        )
        .bind(id.uuid())
        .fetch_all(&self.read)
        .await?;
        let targets = rows
            .iter()
            .map(|row| read_target(row, detail))
            .collect::<Result<Vec<_>, CorruptRow>>()?;
        let mut counts = BTreeMap::new();
        for target in &targets {
            *counts.entry(target.status).or_insert(0) += 1;
        }
        Ok(Some(header.into_wire(counts, targets)))
    }

    /// A page of executions, newest first, without targets.
    pub(crate) async fn executions(
        &self,
        project: ProjectId,
        filter: &ListFilter<'_>,
        limit: u32,
    ) -> Result<Vec<Execution>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT ");
        query
            .push(HEADER_COLUMNS)
            .push(" FROM action_execution e WHERE e.project_id = ")
            .push_bind(project.uuid());
        if let Some(status) = filter.status {
            push_header_status(&mut query, status);
        }
        if let Some(action) = filter.action {
            query.push(" AND e.action_name = ").push_bind(action.to_owned());
        }
        if let Some((created, id)) = filter.before {
            query
                .push(" AND (e.created_ms, e.id) < (")
                .push_bind(created.as_millis());
            query.push(", ").push_bind(id.uuid()).push(")");
        }
        query
            .push(" ORDER BY e.created_ms DESC, e.id DESC LIMIT ")
            .push_bind(i64::from(limit));
        let rows = query.build().fetch_all(&self.read).await?;
        let headers = rows
            .iter()
            .map(ExecutionHeader::read)
            .collect::<Result<Vec<_>, CorruptRow>>()?;
        let mut counts = self.target_counts(headers.iter().map(|h| h.id)).await?;
        Ok(headers
            .into_iter()
            .map(|header| {
                let counts = counts.remove(&header.id).unwrap_or_default();
                header.into_wire(counts, Vec::new())
            })
            .collect())
    }

    async fn target_counts(
        &self,
        executions: impl Iterator<Item = ExecutionId>,
    ) -> Result<HashMap<ExecutionId, BTreeMap<Status, u64>>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT execution_id, status, count(*) AS targets FROM action_execution_target WHERE execution_id IN (",
        );
        let mut list = query.separated(", ");
        for id in executions {
            list.push_bind(id.uuid());
        }
        let rows = query
            .push(") GROUP BY execution_id, status")
            .build()
            .fetch_all(&self.read)
            .await?;
        let mut counts: HashMap<ExecutionId, BTreeMap<Status, u64>> = HashMap::new();
        for row in &rows {
            let row = Reader::new(row, "action_execution_target", "execution_id");
            counts
                .entry(row.id("execution_id")?)
                .or_default()
                .insert(row.parsed("status")?, row.number("targets")?);
        }
        Ok(counts)
    }

    /// The transitions of an execution after the event `after`, oldest first.
    pub(crate) async fn timeline(
        &self,
        execution: ExecutionId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<TimelineEvent>, StoreError> {
        let rows = sqlx::query(
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
                    at: row.at("at_ms")?,
                    late: row.get("late")?,
                    detail: row.get("detail")?,
                })
            })
            .collect()
    }

    /// Live executions whose time has passed, the longest overdue first.
    pub(crate) async fn overdue(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<(ExecutionId, DomainId, Timestamp)>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, domain_id, expires_ms FROM action_execution
             WHERE terminal_status IS NULL AND expires_ms <= $1 ORDER BY expires_ms LIMIT $2",
        )
        .bind(now.as_millis())
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "action_execution", "id");
                Ok((row.id("id")?, row.id("domain_id")?, row.at("expires_ms")?))
            })
            .collect()
    }
}

/// A settled status is a column; a live one is asked of the targets.
fn push_header_status(query: &mut QueryBuilder<Sqlite>, status: Status) {
    const ANY: &str =
        "EXISTS (SELECT 1 FROM action_execution_target t WHERE t.execution_id = e.id AND t.status ";
    if status.is_terminal() {
        query.push(" AND e.terminal_status = ").push_bind(status.as_str());
        return;
    }
    query.push(" AND e.terminal_status IS NULL AND ");
    match status {
        Status::Pending => query.push("NOT ").push(ANY).push("<> 'pending')"),
        Status::Ack => query
            .push("NOT ")
            .push(ANY)
            .push("NOT IN ('pending', 'ack')) AND ")
            .push(ANY)
            .push("= 'ack')"),
        Status::Started | Status::Succeeded | Status::Failed | Status::Cancelled | Status::Timeout => {
            query.push(ANY).push("NOT IN ('pending', 'ack'))")
        }
    };
}

fn read_target(row: &SqliteRow, detail: Detail) -> Result<ExecutionTarget, CorruptRow> {
    let row = Reader::new(row, "action_execution_target", "execution_id");
    let output_ref: Option<OutputRef> = match detail {
        Detail::WithOutput => row.json_opt("output_ref")?,
        Detail::WithoutOutput => None,
    };
    Ok(ExecutionTarget {
        node_id: row.id("node_id")?,
        status: row.parsed("status")?,
        created_at: row.at("created_ms")?,
        updated_at: row.at("updated_ms")?,
        output_ref,
        node_name: row.get("node_name")?,
        exit_code: row.get("exit_code")?,
        error: row.get("error")?,
        started_at: row.at_opt("started_ms")?,
        ended_at: row.at_opt("ended_ms")?,
        output_bytes: row
            .get::<Option<i64>>("output_bytes")?
            .and_then(|n| u64::try_from(n).ok()),
        cancel_requested_at: row.at_opt("cancel_requested_ms")?,
    })
}
