//! Deadlines: what has passed one, what then ends, and when to look next.

use std::time::Duration;

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
};

use super::{
    Store, StoreError, Tx,
    rows::Reader,
    statement::{QueryBuilder, query},
};

/// The two deadlines of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deadline {
    /// Until when its node may take it.
    Delivery,
    /// Until when what was taken may run.
    Run,
}

/// An execution in which a deadline may have passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overdue {
    pub(crate) execution: ExecutionId,
    pub(crate) domain: DomainId,
    pub(crate) deliver_within_seconds: Option<u32>,
}

impl Tx {
    /// Times out the targets of one execution whose `deadline` had passed at `by`. Answers which, and whether that settled
    /// the header.
    pub(crate) async fn time_out(
        &mut self,
        execution: ExecutionId,
        (deadline, by): (Deadline, Timestamp),
        why: &str,
        now: Timestamp,
    ) -> Result<(Vec<NodeId>, bool), StoreError> {
        let timeout = Status::Timeout;
        let passed = |query: &mut QueryBuilder| push_passed(query, deadline, by);
        let ended = self.end_targets(execution, (timeout, why), passed, now).await?;
        let settled = self.count_ended(execution, timeout, &ended, now).await?;
        Ok((ended.into_iter().map(|target| target.node).collect(), settled))
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
}

impl Store {
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
