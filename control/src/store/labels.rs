//! Labels: what is set, what a node says of itself, and what a selector asks of them.

use muster_shared::{
    ids::NodeId,
    labels::Labels,
    selector::{Selector, Test},
};

use super::{
    Store, StoreError, Tx,
    rows::Reader,
    statement::{QueryBuilder, query, query_scalar},
};

/// The keys that begin with [`muster_shared::labels::NODE_PREFIX`], as bounds that an index answers.
const SAID: std::ops::Range<&str> = "node/".."node0";

/// Adds the terms of a selector as conditions on `node.id`, each answered by an index.
pub(super) fn push_selector(query: &mut QueryBuilder, selector: &Selector) {
    const HAS: &str = "EXISTS (SELECT 1 FROM node_label l WHERE l.node_id = node.id AND l.key = ";
    for term in selector.terms() {
        let (negated, values): (bool, &[String]) = match &term.test {
            Test::Equals(value) => (false, std::slice::from_ref(value)),
            Test::Differs(value) => (true, std::slice::from_ref(value)),
            Test::In(values) => (false, values),
            Test::NotIn(values) => (true, values),
            Test::Exists => (false, &[]),
            Test::Absent => (true, &[]),
        };
        query
            .push(if negated { " AND NOT " } else { " AND " })
            .push(HAS)
            .push_bind(term.key.clone());
        if !values.is_empty() {
            query.push(" AND ").push_in("l.value", values);
        }
        query.push(")");
    }
}

impl Store {
    /// What a node says of itself, prefix included.
    pub(crate) async fn labels_said_by(&self, node: NodeId) -> Result<Labels, StoreError> {
        let said =
            query("SELECT node_id, key, value FROM node_label WHERE node_id = $1 AND key >= $2 AND key < $3")
                .bind(node.uuid())
                .bind(SAID.start)
                .bind(SAID.end)
                .fetch_all(&self.lookup)
                .await?;
        said.iter()
            .map(|row| {
                let row = Reader::new(row, "node_label", "node_id");
                Ok((row.get("key")?, row.get("value")?))
            })
            .collect()
    }
}

impl Tx {
    pub(crate) async fn set_label(&mut self, node: NodeId, key: &str, value: &str) -> Result<(), StoreError> {
        query(
            "INSERT INTO node_label (node_id, key, value) VALUES ($1, $2, $3)
             ON CONFLICT (node_id, key) DO UPDATE SET value = excluded.value",
        )
        .bind(node.uuid())
        .bind(key)
        .bind(value)
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    pub(crate) async fn remove_label(&mut self, node: NodeId, key: &str) -> Result<(), StoreError> {
        query("DELETE FROM node_label WHERE node_id = $1 AND key = $2")
            .bind(node.uuid())
            .bind(key)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Puts what a node says of itself, prefix included, in place of what it said before.
    pub(crate) async fn replace_labels_said_by(
        &mut self,
        node: NodeId,
        said: &Labels,
    ) -> Result<(), StoreError> {
        query("DELETE FROM node_label WHERE node_id = $1 AND key >= $2 AND key < $3")
            .bind(node.uuid())
            .bind(SAID.start)
            .bind(SAID.end)
            .execute(&mut self.0)
            .await?;
        for (key, value) in said {
            self.set_label(node, key, value).await?;
        }
        Ok(())
    }

    pub(crate) async fn count_labels(&mut self, node: NodeId) -> Result<usize, StoreError> {
        let count: i64 = query_scalar("SELECT count(*) FROM node_label WHERE node_id = $1")
            .bind(node.uuid())
            .fetch_one(&mut self.0)
            .await?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }
}
