//! The services that share the database: which there are, and which of them holds a node's stream. Where there is only
//! one, nothing of this is written.

use std::collections::HashSet;

use muster_shared::{ids::NodeId, time::Timestamp};
use uuid::Uuid;

use super::{
    Store, StoreError, Tx,
    rows::Reader,
    statement::{QueryBuilder, in_powers, query},
};

impl Store {
    /// By which this service is known to the others.
    pub(crate) const fn replica_id(&self) -> Uuid {
        self.teller
    }

    /// Those that gave a sign of life since then.
    pub(crate) async fn replicas_seen(&self, since: Timestamp) -> Result<HashSet<Uuid>, StoreError> {
        let rows = query("SELECT id FROM replica WHERE seen_at > $1")
            .bind(since)
            .fetch_all(&self.read)
            .await?;
        Ok(rows
            .iter()
            .map(|row| Reader::new(row, "replica", "id").get("id"))
            .collect::<Result<_, _>>()?)
    }
}

impl Tx {
    /// A sign of life of this service. Those that gave none since `gone` are forgotten.
    pub(crate) async fn note_replica(&mut self, gone: Timestamp, now: Timestamp) -> Result<(), StoreError> {
        query(
            "INSERT INTO replica (id, started_at, seen_at) VALUES ($1, $2, $2)
             ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at",
        )
        .bind(self.1.teller)
        .bind(now)
        .execute(&mut self.0)
        .await?;
        query("DELETE FROM replica WHERE seen_at <= $1")
            .bind(gone)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// This service stops, and holds no stream any more.
    pub(crate) async fn forget_replica(&mut self) -> Result<(), StoreError> {
        query("DELETE FROM replica WHERE id = $1")
            .bind(self.1.teller)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Notes whose streams this service holds by now, and whose it does not hold any more: another may, already.
    pub(crate) async fn note_streams(&mut self, here: &[NodeId], gone: &[NodeId]) -> Result<(), StoreError> {
        let teller = self.1.teller;
        for nodes in in_powers(here) {
            let mut update = QueryBuilder::new("UPDATE node SET replica_id = ");
            update.push_bind(teller).push(" WHERE ");
            push_ids(&mut update, nodes).execute(&mut self.0).await?;
        }
        for nodes in in_powers(gone) {
            let mut update = QueryBuilder::new("UPDATE node SET replica_id = NULL WHERE replica_id = ");
            update.push_bind(teller).push(" AND ");
            push_ids(&mut update, nodes).execute(&mut self.0).await?;
        }
        Ok(())
    }
}

fn push_ids(query: &mut QueryBuilder, nodes: &[NodeId]) -> super::statement::Statement {
    query.push_in("id", nodes.iter().map(|node| node.uuid())).build()
}
