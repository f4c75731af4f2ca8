//! What is to be put on nodes' streams: the outbox, and what each node is owed by the state of its targets.

use muster_shared::{
    ids::{ActionName, Digest, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
};

use super::{
    CorruptRow, ExecutionHeader, News, Pool, Store, StoreError, Tx,
    ask::{Found, ask, elsewhere},
    cancel::owed_cancels,
    header::HEADER_COLUMNS,
    rows::{Reader, Row, nodes_of},
    statement::{QueryBuilder, query},
};
use crate::{deadlines::Deadlines, outbox::Cursor};

/// One row of the outbox, with what its frame needs.
#[derive(Debug)]
pub(crate) struct OutboxRow {
    pub(crate) id: i64,
    /// `None` when there is nothing left to send: the target has moved on, or has expired.
    pub(crate) owed: Option<Result<(NodeId, Owed), CorruptRow>>,
}

/// Something a node is to be told.
#[derive(Clone, Debug)]
pub(crate) enum Owed {
    Action {
        execution: Box<ExecutionHeader>,
        deadlines: Deadlines,
        hook_digest: Option<Digest>,
    },
    Cancel {
        execution: ExecutionId,
    },
    Baseline {
        hook: ActionName,
        digest: Digest,
        approved_at: Timestamp,
    },
    /// Which keys sign.
    SigningKeys,
}

impl Owed {
    /// The action that is to be run, where it is that.
    pub(crate) fn action(&self) -> Option<ExecutionId> {
        match self {
            Self::Action { execution, .. } => Some(execution.id),
            Self::Cancel { .. } | Self::Baseline { .. } | Self::SigningKeys => None,
        }
    }

    pub(crate) const fn is_cancel(&self) -> bool {
        match self {
            Self::Cancel { .. } => true,
            Self::Action { .. } | Self::Baseline { .. } | Self::SigningKeys => false,
        }
    }
}

/// The columns of a target that its request needs.
const TARGET_COLUMNS: &str = "t.deliver_by, t.expires_at AS target_expires_at, ";

fn owed_action(row: &Row) -> Result<Owed, CorruptRow> {
    let execution = Box::new(ExecutionHeader::read(row)?);
    let target = Reader::new(row, "action_execution_target", "id");
    let deadlines = Deadlines {
        deliver_by: target.at("deliver_by")?,
        expires_at: target.at("target_expires_at")?,
    };
    let hook_digest = Reader::new(row, "hook_baseline", "id").digest_opt("baseline")?;
    Ok(Owed::Action {
        execution,
        deadlines,
        hook_digest,
    })
}

fn owed_baseline(row: &Row) -> Result<Owed, CorruptRow> {
    let row = Reader::new(row, "hook_baseline", "node_id");
    Ok(Owed::Baseline {
        hook: row.parsed("hook")?,
        digest: row.digest("digest")?,
        approved_at: row.at("approved_at")?,
    })
}

/// What each of some nodes is owed. A row that is none harms its node alone.
pub(super) type OwedTo = Found<NodeId, Vec<Owed>>;

/// Sorts rows by the node that they name.
pub(super) fn by_node(rows: &[Row], owed: impl Fn(&Row) -> Result<Owed, CorruptRow>) -> OwedTo {
    let mut all = OwedTo::new();
    for row in rows {
        let Ok(node) = Reader::new(row, "node", "node_id").id("node_id") else {
            continue;
        };
        let known = all.entry(node).or_insert_with(|| Ok(Vec::new()));
        match (&mut *known, owed(row)) {
            (Ok(known), Ok(owed)) => known.push(owed),
            (Ok(_), Err(corrupt)) => *known = Err(corrupt),
            (Err(_), _) => {}
        }
    }
    all
}

/// Begins a statement about these nodes: `asked` is a table of them.
pub(super) fn about(nodes: &[NodeId]) -> QueryBuilder {
    let mut query = QueryBuilder::new("WITH asked (node_id) AS (");
    push_nodes(&mut query, nodes);
    query.push(") SELECT ");
    query
}

/// A row for each node.
pub(super) fn push_nodes(query: &mut QueryBuilder, nodes: &[NodeId]) {
    query.push_values(nodes, |row, node| {
        row.push_bind(node.uuid());
    });
}

/// Every invocation of these nodes that is released, pending and not expired, oldest first.
async fn owed_actions(pool: &Pool, nodes: &[NodeId], now: Timestamp) -> Result<OwedTo, StoreError> {
    let mut query = about(nodes);
    query
        .push("t.node_id, ")
        .push(TARGET_COLUMNS)
        .push(HEADER_COLUMNS)
        .push(
            ", t.released_at, b.digest AS baseline FROM asked
             CROSS JOIN action_execution_target t CROSS JOIN action_execution e
             LEFT JOIN hook_baseline b ON b.node_id = t.node_id AND b.hook = e.action_name AND e.action_kind = 'hook'
             WHERE t.node_id = asked.node_id AND e.id = t.execution_id
               AND t.status = 'pending' AND t.released_at IS NOT NULL AND t.deliver_by > ",
        )
        .push_bind(now);
    let mut rows = query.build().fetch_all(pool).await?;
    rows.sort_by_cached_key(|row| {
        let row = Reader::new(row, "action_execution_target", "id");
        let times = [row.at("released_at").ok(), row.at("created_at").ok()];
        (times, row.get::<uuid::Uuid>("id").ok())
    });
    Ok(by_node(&rows, owed_action))
}

/// Every baseline of these nodes that an operator approved.
async fn approved_baselines(pool: &Pool, nodes: &[NodeId]) -> Result<OwedTo, StoreError> {
    let rows = about(nodes)
        .push(
            "b.node_id, b.hook, b.digest, b.approved_at FROM asked CROSS JOIN hook_baseline b
             WHERE b.node_id = asked.node_id AND b.approved_at IS NOT NULL",
        )
        .build()
        .fetch_all(pool)
        .await?;
    Ok(by_node(&rows, owed_baseline))
}

/// All that these nodes are owed: approvals first, so that an action they allow finds them, and cancels before the actions
/// that would wait behind what is cancelled.
async fn all_owed(pool: Pool, nodes: Vec<NodeId>) -> Result<OwedTo, StoreError> {
    let now = Timestamp::now();
    let mut all = OwedTo::new();
    for nodes in pool.pieces(&nodes) {
        for kind in [
            approved_baselines(&pool, nodes).await?,
            owed_cancels(&pool, nodes, now).await?,
            owed_actions(&pool, nodes, now).await?,
        ] {
            for (node, more) in kind {
                let known = all.entry(node).or_insert_with(|| Ok(Vec::new()));
                match (&mut *known, more) {
                    (Ok(known), Ok(more)) => known.extend(more),
                    (Ok(_), Err(corrupt)) => *known = Err(corrupt),
                    (Err(_), _) => {}
                }
            }
        }
    }
    Ok(all)
}

impl Store {
    /// All that a node is owed at this moment, but for the signing keys.
    pub(crate) async fn owed_to(&self, node: NodeId) -> Result<Vec<Owed>, StoreError> {
        let owed = ask(&self.owed, node, &self.lookup, all_owed, elsewhere).await?;
        Ok(owed.unwrap_or_default())
    }

    /// Rows of the outbox that were not read, in the order of their ids.
    pub(crate) async fn outbox_after(
        &self,
        cursor: &Cursor,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT o.id AS outbox_id, o.event_type, o.node_id, t.status,
                    b.hook, b.digest, b.approved_at, b.digest AS baseline, ",
        );
        query
            .push(TARGET_COLUMNS)
            .push(HEADER_COLUMNS)
            .push(
                " FROM outbox o
                 LEFT JOIN action_execution e ON e.id = o.execution_id
                 LEFT JOIN action_execution_target t ON t.execution_id = o.execution_id AND t.node_id = o.node_id
                 LEFT JOIN hook_baseline b ON b.node_id = o.node_id AND b.hook = coalesce(o.hook, e.action_name)
                 WHERE o.id > ",
            )
            .push_bind(cursor.after());
        let missing = cursor.missing();
        if !missing.is_empty() {
            query.push(" OR ").push_in("o.id", missing);
        }
        query.push(" ORDER BY o.id LIMIT ").push_bind(i64::from(limit));
        let rows = query.build().fetch_all(&self.lookup).await?;
        rows.iter()
            .map(|row| {
                Ok(OutboxRow {
                    id: Reader::new(row, "outbox", "node_id").get("outbox_id")?,
                    owed: still_owed(row, now).transpose(),
                })
            })
            .collect()
    }

    /// Nodes after `after` with an invocation that was released before `since`, is pending and not expired, in the order of
    /// ids.
    pub(crate) async fn nodes_still_owed(
        &self,
        (since, now): (Timestamp, Timestamp),
        after: NodeId,
        limit: u32,
    ) -> Result<Vec<NodeId>, StoreError> {
        let rows = query(
            "SELECT DISTINCT t.node_id FROM action_execution_target t
             WHERE t.status = 'pending' AND t.released_at IS NOT NULL AND t.released_at <= $1
               AND t.deliver_by > $2 AND t.node_id > $3
             ORDER BY t.node_id LIMIT $4",
        )
        .bind(since)
        .bind(now)
        .bind(after.uuid())
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        Ok(nodes_of(&rows)?)
    }
}

/// What a row of the outbox has its node told, unless that is over.
fn still_owed(raw: &Row, now: Timestamp) -> Result<Option<(NodeId, Owed)>, CorruptRow> {
    let row = Reader::new(raw, "outbox", "node_id");
    let owed = match row.get::<&str>("event_type")? {
        "action_request" => {
            let owed = owed_action(raw)?;
            let wanted = match &owed {
                Owed::Action { deadlines, .. } => {
                    row.parsed::<Status>("status")? == Status::Pending && deadlines.deliver_by > now
                }
                Owed::Cancel { .. } | Owed::Baseline { .. } | Owed::SigningKeys => false,
            };
            wanted.then_some(owed)
        }
        "action_cancel" => {
            let ended = row.parsed::<Status>("status")?.is_terminal();
            let execution = Reader::new(raw, "action_execution", "id").id("id")?;
            (!ended).then_some(Owed::Cancel { execution })
        }
        _ => Some(owed_baseline(raw)?),
    };
    let node = row.id("node_id")?;
    Ok(owed.map(|owed| (node, owed)))
}

impl Tx {
    pub(super) async fn append_baselines_to_outbox(
        &mut self,
        nodes: &[NodeId],
        hook: &ActionName,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.tell(News::Outbox);
        for nodes in self.0.pieces(nodes) {
            let mut query = QueryBuilder::new("WITH told (node_id) AS (");
            push_nodes(&mut query, nodes);
            query
                .push(
                    ") INSERT INTO outbox (event_type, node_id, hook, created_at)
                     SELECT 'hook_baseline_updated', node_id, ",
                )
                .push_bind(hook.as_str());
            query.push(", ").push_bind(now).push(" FROM told");
            query.build().execute(&mut self.0).await?;
        }
        Ok(())
    }

    /// Removes rows that were handed to their streams, or need not be: those up to an id.
    pub(crate) async fn drain_outbox(&mut self, up_to: i64) -> Result<u64, StoreError> {
        let gone = query("DELETE FROM outbox WHERE id <= $1")
            .bind(up_to)
            .execute(&mut self.0)
            .await?;
        Ok(gone)
    }
}
