//! Taking invocations back: at once where no node has them, else by asking the node until the target has ended.

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
};
use uuid::Uuid;

use super::{
    News, Owed, Pool, ROWS_PER_INSERT, Store, StoreError, Tx,
    outbox::{OwedTo, about, by_node},
    rows::{Reader, Row, nodes_of},
    statement::{QueryBuilder, query},
};

impl Tx {
    /// Every target of an execution, or the one on `node`, with where it rests.
    pub(crate) async fn target_statuses(
        &mut self,
        execution: ExecutionId,
        node: Option<NodeId>,
    ) -> Result<Vec<(NodeId, Status)>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT execution_id, node_id, status FROM action_execution_target WHERE execution_id = ",
        );
        query.push_bind(execution.uuid());
        if let Some(node) = node {
            query.push(" AND node_id = ").push_bind(node.uuid());
        }
        query.push(" ORDER BY node_id");
        let rows = query.build().fetch_all(&mut self.0).await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "action_execution_target", "execution_id");
                Ok((row.id("node_id")?, row.parsed("status")?))
            })
            .collect()
    }

    /// The executions of which a node has not taken its part.
    pub(crate) async fn untaken_by(&mut self, node: NodeId) -> Result<Vec<ExecutionId>, StoreError> {
        let rows = query(
            "SELECT execution_id FROM action_execution_target WHERE node_id = $1 AND status = 'pending'
             ORDER BY execution_id",
        )
        .bind(node.uuid())
        .fetch_all(&mut self.0)
        .await?;
        let ids = rows
            .iter()
            .map(|row| Reader::new(row, "action_execution_target", "execution_id").id("execution_id"));
        Ok(ids.collect::<Result<_, _>>()?)
    }

    /// Cancels those of the named targets that rest in one of `from`, held or not, with their events. Answers how many,
    /// and whether that settled the header.
    pub(crate) async fn cancel_targets(
        &mut self,
        execution: ExecutionId,
        nodes: &[NodeId],
        from: &[Status],
        why: &str,
        now: Timestamp,
    ) -> Result<(u64, bool), StoreError> {
        let cancelled = Status::Cancelled;
        let mut ended = Vec::new();
        for nodes in nodes.chunks(ROWS_PER_INSERT) {
            let which = |query: &mut QueryBuilder| {
                push_statuses(query, from);
                push_nodes(query, nodes);
            };
            ended.extend(self.end_targets(execution, (cancelled, why), which, now).await?);
        }
        let settled = self.count_ended(execution, cancelled, &ended, now).await?;
        Ok((ended.len() as u64, settled))
    }

    /// Notes that these nodes are to be asked, with an outbox row for each. One that was asked before keeps its first
    /// instant, from which its grace counts, and is asked again by the sweep. Answers how many are new.
    pub(crate) async fn request_cancel(
        &mut self,
        execution: ExecutionId,
        nodes: &[NodeId],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.tell(News::Outbox);
        let mut asked = 0;
        for nodes in nodes.chunks(ROWS_PER_INSERT) {
            const UNASKED: &str = " AND cancel_requested_at IS NULL AND ended_at IS NULL";
            let mut outbox = QueryBuilder::new(
                "INSERT INTO outbox (event_type, node_id, execution_id, created_at) SELECT 'action_cancel', node_id, execution_id, ",
            );
            outbox.push_bind(now);
            outbox
                .push(" FROM action_execution_target WHERE execution_id = ")
                .push_bind(execution.uuid());
            outbox.push(UNASKED);
            push_nodes(&mut outbox, nodes);
            outbox.build().execute(&mut self.0).await?;

            let mut update = QueryBuilder::new("UPDATE action_execution_target SET cancel_requested_at = ");
            update.push_bind(now);
            update.push(" WHERE execution_id = ").push_bind(execution.uuid());
            update.push(UNASKED);
            push_nodes(&mut update, nodes);
            asked += update.build().execute(&mut self.0).await?;
        }
        Ok(asked)
    }

    /// The nodes of one execution that were asked to cancel it, whose time was over at `by`, and that have not said how it
    /// ended.
    pub(crate) async fn overdue_cancels(
        &mut self,
        execution: ExecutionId,
        by: Timestamp,
    ) -> Result<Vec<Unconfirmed>, StoreError> {
        let rows = query(
            "SELECT t.node_id, node.replica_id FROM action_execution_target t JOIN node ON node.id = t.node_id
             WHERE t.execution_id = $1 AND t.expires_at <= $2
               AND t.cancel_requested_at IS NOT NULL AND t.ended_at IS NULL",
        )
        .bind(execution.uuid())
        .bind(by)
        .fetch_all(&mut self.0)
        .await?;
        unconfirmed(&rows)
    }

    /// The nodes of one execution that were asked to cancel it at `by` or before, and have not said how it ended.
    pub(crate) async fn unconfirmed_cancels(
        &mut self,
        execution: ExecutionId,
        by: Timestamp,
    ) -> Result<Vec<Unconfirmed>, StoreError> {
        let rows = query(
            "SELECT t.node_id, node.replica_id FROM action_execution_target t JOIN node ON node.id = t.node_id
             WHERE t.execution_id = $1 AND t.cancel_requested_at <= $2
               AND t.cancel_requested_at IS NOT NULL AND t.ended_at IS NULL",
        )
        .bind(execution.uuid())
        .bind(by)
        .fetch_all(&mut self.0)
        .await?;
        unconfirmed(&rows)
    }
}

/// A node that was asked to cancel something and has not said how it ended.
pub(crate) struct Unconfirmed {
    pub(crate) node: NodeId,
    /// Which service holds its stream, if one does.
    pub(crate) replica: Option<Uuid>,
}

fn unconfirmed(rows: &[Row]) -> Result<Vec<Unconfirmed>, StoreError> {
    let read = |row| {
        let row = Reader::new(row, "node", "node_id");
        Ok(Unconfirmed {
            node: row.id("node_id")?,
            replica: row.get("replica_id")?,
        })
    };
    rows.iter().map(read).collect()
}

/// Every invocation that these nodes are to cancel and have not ended, and those that ended as cancelled although they may
/// still run there: a node that was not waited for any longer stops them when it comes back.
pub(super) async fn owed_cancels(
    pool: &Pool,
    nodes: &[NodeId],
    now: Timestamp,
) -> Result<OwedTo, StoreError> {
    let rows = about(nodes)
        .push(
            "t.node_id, t.execution_id FROM asked CROSS JOIN action_execution_target t
             WHERE t.node_id = asked.node_id AND t.cancel_requested_at IS NOT NULL
               AND (t.ended_at IS NULL OR (t.status = 'cancelled' AND t.expires_at > ",
        )
        .push_bind(now)
        .push("))")
        .build()
        .fetch_all(pool)
        .await?;
    Ok(by_node(&rows, |row| {
        let row = Reader::new(row, "action_execution_target", "execution_id");
        Ok(Owed::Cancel {
            execution: row.id("execution_id")?,
        })
    }))
}

impl Store {
    /// Nodes after `after` that were asked to cancel something before `since` and have not ended it, in the order of ids.
    pub(crate) async fn nodes_still_to_cancel(
        &self,
        since: Timestamp,
        after: NodeId,
        limit: u32,
    ) -> Result<Vec<NodeId>, StoreError> {
        let rows = query(
            "SELECT DISTINCT node_id FROM action_execution_target
             WHERE cancel_requested_at <= $1 AND cancel_requested_at IS NOT NULL AND ended_at IS NULL AND node_id > $2
             ORDER BY node_id LIMIT $3",
        )
        .bind(since)
        .bind(after.uuid())
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        Ok(nodes_of(&rows)?)
    }

    /// Executions with a target whose node was asked at `by` or before and has not said how it ended.
    pub(crate) async fn executions_unconfirmed(
        &self,
        by: Timestamp,
        limit: u32,
    ) -> Result<Vec<(ExecutionId, DomainId)>, StoreError> {
        let rows = query(
            "SELECT DISTINCT t.execution_id, e.domain_id
             FROM action_execution_target t JOIN action_execution e ON e.id = t.execution_id
             WHERE t.cancel_requested_at <= $1 AND t.cancel_requested_at IS NOT NULL AND t.ended_at IS NULL LIMIT $2",
        )
        .bind(by)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "action_execution_target", "execution_id");
                Ok((row.id("execution_id")?, row.id("domain_id")?))
            })
            .collect()
    }
}

fn push_statuses(query: &mut QueryBuilder, statuses: &[Status]) {
    query
        .push(" AND ")
        .push_in("status", statuses.iter().map(|status| status.as_str()));
}

fn push_nodes(query: &mut QueryBuilder, nodes: &[NodeId]) {
    query
        .push(" AND ")
        .push_in("node_id", nodes.iter().map(|node| node.uuid()));
}
