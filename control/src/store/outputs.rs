//! What the rows of invocations know of their outputs: announced, here, late or missing.

use muster_shared::{
    ids::{ExecutionId, NodeId},
    time::Timestamp,
    wire::OutputRef,
};

use super::{
    Store, StoreError, Tx,
    rows::{Reader, to_i64, to_json},
    statement::query,
};

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

impl Tx {
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
}

impl Store {
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
}
