//! The daemons that showed a node's identity, and what an operator is to know of it.

use muster_shared::{ids::NodeId, time::Timestamp};
use uuid::Uuid;

use super::{News, StoreError, Tx, rows::Reader, statement::query};

impl Tx {
    /// Puts an instance in the place of the one that is known, and gives it no work up to an instant. False when another one
    /// is there by now.
    pub(crate) async fn follow_instance(
        &mut self,
        node: NodeId,
        known: Option<Uuid>,
        (instance, contested_until): (Uuid, Option<Timestamp>),
    ) -> Result<bool, StoreError> {
        let moved = query(
            "UPDATE node SET instance_before = instance, instance = $2, contested_until = $5
             WHERE id = $1 AND coalesce(instance, $4) = coalesce($3, $4)",
        )
        .bind(node.uuid())
        .bind(instance)
        .bind(known)
        .bind(Uuid::nil())
        .bind(contested_until)
        .execute(&mut self.0)
        .await?;
        self.tell(News::EndStream(node));
        Ok(moved == 1)
    }

    /// The instance that is known, and until when it gets no work.
    pub(crate) async fn instance_of(
        &mut self,
        node: NodeId,
    ) -> Result<(Option<Uuid>, Option<Timestamp>), StoreError> {
        let row = query("SELECT id, instance, contested_until FROM node WHERE id = $1")
            .bind(node.uuid())
            .fetch_one(&mut self.0)
            .await?;
        let row = Reader::new(&row, "node", "id");
        Ok((row.get("instance")?, row.at_opt("contested_until")?))
    }

    /// Puts the instance that was followed back into its place: the other is a copy. False when that has changed.
    pub(crate) async fn reinstate_instance(
        &mut self,
        node: NodeId,
        copy: Option<Uuid>,
        instance: Uuid,
    ) -> Result<bool, StoreError> {
        let moved = query(
            "UPDATE node SET instance = $2, instance_before = NULL, instance_copy = $3, contested_until = NULL
             WHERE id = $1 AND instance = $3 AND instance_before = $2",
        )
        .bind(node.uuid())
        .bind(instance)
        .bind(copy)
        .execute(&mut self.0)
        .await?;
        self.tell(News::EndStream(node));
        Ok(moved == 1)
    }

    pub(crate) async fn note_copy(&mut self, node: NodeId, instance: Uuid) -> Result<(), StoreError> {
        query("UPDATE node SET instance_copy = $2 WHERE id = $1")
            .bind(node.uuid())
            .bind(instance)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// What operators are told of the node until its key is changed.
    pub(crate) async fn warn_of_node(
        &mut self,
        node: NodeId,
        warning: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        query("UPDATE node SET warning = $2, warning_at = $3 WHERE id = $1")
            .bind(node.uuid())
            .bind(warning)
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    pub(crate) async fn set_machine(
        &mut self,
        node: NodeId,
        hostname: &str,
        machine_id: &str,
    ) -> Result<(), StoreError> {
        query("UPDATE node SET hostname = $2, machine_id = $3 WHERE id = $1")
            .bind(node.uuid())
            .bind(hostname)
            .bind(machine_id)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }
}
