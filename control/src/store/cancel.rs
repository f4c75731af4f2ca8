//! Taking invocations back: at once where no node has them, else by asking the node until the target has ended.

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
};

use super::{
    News, Owed, Pool, ROWS_PER_INSERT, Store, StoreError, Tx,
    executions::Ended,
    outbox::{OwedTo, about, by_node},
    rows::{Reader, nodes_of},
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
        let (mut ended, mut held) = (0, 0);
        for nodes in nodes.chunks(ROWS_PER_INSERT) {
            let mut events = events_of_cancelled(execution, why, now);
            push_statuses(&mut events, from);
            push_nodes(&mut events, nodes);
            events.build().execute(&mut self.0).await?;

            let mut update = cancelled(execution, why, now);
            push_statuses(&mut update, from);
            push_nodes(&mut update, nodes);
            update.push(" RETURNING node_id, released_at");
            for row in update.build().fetch_all(&mut self.0).await? {
                let row = Reader::new(&row, "action_execution_target", "node_id");
                ended += 1;
                held += u64::from(row.at_opt("released_at")?.is_none());
            }
        }
        let count = Ended {
            targets: ended,
            failed: 0,
            held,
        };
        let settled = ended > 0 && self.count_down(execution, count, now).await?;
        Ok((ended, settled))
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
    ) -> Result<Vec<NodeId>, StoreError> {
        let rows = query(
            "SELECT node_id FROM action_execution_target
             WHERE execution_id = $1 AND expires_at <= $2 AND cancel_requested_at IS NOT NULL AND ended_at IS NULL",
        )
        .bind(execution.uuid())
        .bind(by)
        .fetch_all(&mut self.0)
        .await?;
        Ok(nodes_of(&rows)?)
    }

    /// The nodes of one execution that were asked to cancel it at `by` or before, and have not said how it ended.
    pub(crate) async fn unconfirmed_cancels(
        &mut self,
        execution: ExecutionId,
        by: Timestamp,
    ) -> Result<Vec<NodeId>, StoreError> {
        let rows = query(
            "SELECT node_id FROM action_execution_target
             WHERE execution_id = $1 AND cancel_requested_at <= $2 AND cancel_requested_at IS NOT NULL AND ended_at IS NULL",
        )
        .bind(execution.uuid())
        .bind(by)
        .fetch_all(&mut self.0)
        .await?;
        Ok(nodes_of(&rows)?)
    }
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

/// The events of what [`cancelled`] ends, up to the conditions on the targets.
pub(super) fn events_of_cancelled(execution: ExecutionId, why: &str, now: Timestamp) -> QueryBuilder {
    let mut events = QueryBuilder::new(
        "INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, detail, at)
         SELECT execution_id, node_id, status, 'cancelled', ",
    );
    events.push_bind(why.to_owned()).push(", ");
    events.push_bind(now);
    events
        .push(" FROM action_execution_target WHERE execution_id = ")
        .push_bind(execution.uuid());
    events
}

/// The end of targets as `cancelled`, up to the conditions on them.
pub(super) fn cancelled(execution: ExecutionId, why: &str, now: Timestamp) -> QueryBuilder {
    let mut update = QueryBuilder::new("UPDATE action_execution_target SET status = 'cancelled', error = ");
    update.push_bind(why.to_owned());
    update.push(", updated_at = ").push_bind(now);
    update.push(", ended_at = ").push_bind(now);
    update.push(" WHERE execution_id = ").push_bind(execution.uuid());
    update
}

fn push_statuses(query: &mut QueryBuilder, statuses: &[Status]) {
    query.push(" AND status IN (");
    let mut list = query.separated(", ");
    for status in statuses {
        list.push_bind(status.as_str());
    }
    query.push(")");
}

fn push_nodes(query: &mut QueryBuilder, nodes: &[NodeId]) {
    query.push(" AND node_id IN (");
    let mut list = query.separated(", ");
    for node in nodes {
        list.push_bind(node.uuid());
    }
    query.push(")");
}
