//! Where invocations rest: what a callback is judged by. Many who ask at one moment are answered by one statement.

use std::collections::HashMap;

use muster_shared::{
    ids::{ActionName, Digest, ExecutionId, NodeId},
    status::Status,
    wire::OutputRef,
};

use super::{
    CorruptRow, Pool, Store, StoreError, Tx,
    ask::{Found, ask, nearby},
    rows::{Reader, Row},
    statement::{QueryBuilder, Statement},
};

/// What a callback is judged by.
#[derive(Clone, Debug)]
pub(crate) struct TargetState {
    pub(crate) action: ActionName,
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

impl Tx {
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
}

impl Store {
    /// The state of one target, read outside of any write: enough to answer who may speak for it.
    pub(crate) async fn target_now(
        &self,
        execution: ExecutionId,
        node: NodeId,
    ) -> Result<Option<TargetState>, StoreError> {
        ask(
            &self.targets,
            (execution, node),
            &self.lookup,
            target_states,
            nearby,
        )
        .await
    }
}

const TARGET_STATE_COLUMNS: &str =
    "t.execution_id, t.node_id, t.status, t.released_at, t.callback_token_hash, t.output_ref, t.output_error,
     CASE WHEN t.upload_until IS NOT NULL THEN t.output_bytes END AS upload_offered, domain.callback_token_required,
     e.action_name";

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
        action: row.parsed("action_name")?,
        status: row.parsed("status")?,
        held: row.at_opt("released_at")?.is_none(),
        callback_token_hash: row.digest("callback_token_hash")?,
        callback_token_required: row.get("callback_token_required")?,
        output: row.json_opt("output_ref")?,
        upload_offered: row.number_opt("upload_offered")?,
        output_error: row.get("output_error")?,
    })
}
