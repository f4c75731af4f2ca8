//! One execution as it is looked at: its targets and its timeline in pages, and never a whole cohort at once.

use std::collections::{BTreeMap, HashMap};

use muster_shared::{
    ids::{ExecutionId, NodeId, ProjectId},
    status::Status,
    wire::{EXECUTION_TARGETS_MAX, Execution, ExecutionTarget, OutputRef, TimelineEvent},
};

use super::{
    CorruptRow, Store, StoreError, Tx,
    engine::Transaction,
    rows::{Reader, Row},
    statement::{QueryBuilder, query},
};

/// Which targets a read shows, and whether with the bytes of inline output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// As many targets as have no more inline output together than this, and one at least.
    WithOutput {
        bytes_max: u64,
    },
    WithoutOutput,
}

/// Targets of an execution in the order of their nodes' ids, as far as one answer goes.
pub(crate) struct Targets {
    pub(crate) items: Vec<ExecutionTarget>,
    /// Whether there are more of them.
    pub(crate) more: bool,
}

/// How many targets with their outputs are read at a time: what is read is not much more than what is shown.
const PIECE: u32 = 250;

/// What is read of one execution comes from one moment.
type Snapshot = Transaction;

impl Store {
    /// One execution with the number of all its targets, and the first of them, [`EXECUTION_TARGETS_MAX`] at most.
    pub(crate) async fn execution(
        &self,
        project: ProjectId,
        id: ExecutionId,
        detail: Detail,
    ) -> Result<Option<Execution>, StoreError> {
        let mut snapshot = self.read.snapshot().await?;
        let execution = execution_from(&mut snapshot, project, id, detail).await?;
        snapshot.commit().await?;
        Ok(execution)
    }

    /// A page of the targets of an execution, in the order of their nodes' ids.
    pub(crate) async fn execution_targets(
        &self,
        id: ExecutionId,
        after: Option<NodeId>,
        (limit, bytes_max): (u32, u64),
    ) -> Result<Targets, StoreError> {
        let mut snapshot = self.read.snapshot().await?;
        let targets = targets_within(&mut snapshot, id, after, (limit, bytes_max)).await?;
        snapshot.commit().await?;
        Ok(targets)
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
}

async fn targets_after(
    snapshot: &mut Snapshot,
    id: ExecutionId,
    after: Option<NodeId>,
    limit: u32,
    detail: Detail,
) -> Result<Vec<ExecutionTarget>, StoreError> {
    let mut query = QueryBuilder::new(
        "SELECT t.execution_id, t.node_id, t.status, t.created_at, t.updated_at, t.exit_code, t.error, t.started_at,
                t.ended_at, t.output_bytes, t.output_total_bytes, t.output_error, t.cancel_requested_at,
                t.released_at, t.deliver_by, t.expires_at, t.rollout_position, node.name AS node_name",
    );
    // The bytes of inline output are read only by whom they are for.
    match detail {
        Detail::WithOutput { .. } => drop(query.push(", t.output_ref")),
        Detail::WithoutOutput => {}
    }
    query.push(" FROM action_execution_target t JOIN node ON node.id = t.node_id WHERE t.execution_id = ");
    query.push_bind(id.uuid());
    if let Some(after) = after {
        query.push(" AND t.node_id > ").push_bind(after.uuid());
    }
    query
        .push(" ORDER BY t.node_id LIMIT ")
        .push_bind(i64::from(limit));
    let rows = query.build().fetch_all(snapshot).await?;
    Ok(rows
        .iter()
        .map(|row| read_target(row, detail))
        .collect::<Result<Vec<_>, CorruptRow>>()?)
}

/// At most so many targets after a node, with no more bytes of inline output than these, and one at least.
async fn targets_within(
    snapshot: &mut Snapshot,
    id: ExecutionId,
    mut after: Option<NodeId>,
    (limit, bytes_max): (u32, u64),
) -> Result<Targets, StoreError> {
    let (mut items, mut room) = (Vec::new(), bytes_max);
    loop {
        // One more than may be shown says whether there is more.
        let wanted = PIECE.min((limit + 1).saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX)));
        let piece = targets_after(snapshot, id, after, wanted, Detail::WithOutput { bytes_max }).await?;
        let last = piece.len() < wanted as usize;
        for target in piece {
            let bytes = inline_bytes(&target);
            let fits = items.is_empty() || bytes <= room;
            if items.len() >= limit as usize || !fits {
                return Ok(Targets { items, more: true });
            }
            room = room.saturating_sub(bytes);
            after = Some(target.node_id);
            items.push(target);
        }
        if last {
            return Ok(Targets { items, more: false });
        }
    }
}

fn inline_bytes(target: &ExecutionTarget) -> u64 {
    match &target.output_ref {
        Some(OutputRef::Inline { inline_bytes }) => inline_bytes.0.len() as u64,
        Some(OutputRef::ObjectStore { .. }) | None => 0,
    }
}

fn read_target(row: &Row, detail: Detail) -> Result<ExecutionTarget, CorruptRow> {
    let row = Reader::new(row, "action_execution_target", "execution_id");
    let output_ref: Option<OutputRef> = match detail {
        Detail::WithOutput { .. } => row.json_opt("output_ref")?,
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

impl Tx {
    /// The same as [`Store::execution`], with what this transaction has written.
    pub(crate) async fn execution(
        &mut self,
        project: ProjectId,
        id: ExecutionId,
        detail: Detail,
    ) -> Result<Option<Execution>, StoreError> {
        execution_from(&mut self.0, project, id, detail).await
    }
}

async fn execution_from(
    snapshot: &mut Snapshot,
    project: ProjectId,
    id: ExecutionId,
    detail: Detail,
) -> Result<Option<Execution>, StoreError> {
    let Some(header) = Store::header_from(snapshot, project, id).await? else {
        return Ok(None);
    };
    let counts = target_counts(snapshot, &[id]).await?.remove(&id);
    let targets = match detail {
        Detail::WithOutput { bytes_max } => {
            let within = (EXECUTION_TARGETS_MAX, bytes_max);
            targets_within(snapshot, id, None, within).await?.items
        }
        Detail::WithoutOutput => targets_after(snapshot, id, None, EXECUTION_TARGETS_MAX, detail).await?,
    };
    let rollout = Store::rollouts_from(snapshot, [id]).await?.remove(&id);
    Ok(Some(header.into_wire(
        counts.unwrap_or_default(),
        targets,
        rollout,
    )))
}

pub(super) async fn target_counts(
    snapshot: &mut Snapshot,
    executions: &[ExecutionId],
) -> Result<HashMap<ExecutionId, BTreeMap<Status, u64>>, StoreError> {
    // Of none there is nothing to count; to ask all the same would walk along every target there is.
    if executions.is_empty() {
        return Ok(HashMap::new());
    }
    let mut query = QueryBuilder::new(
        "SELECT execution_id, status, count(*) AS targets FROM action_execution_target WHERE ",
    );
    query.push_in("execution_id", executions.iter().map(|id| id.uuid()));
    let rows = query
        .push(" GROUP BY execution_id, status")
        .build()
        .fetch_all(snapshot)
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
