//! The keys that sign, by their public halves, and which nodes know them.

use muster_shared::{ids::NodeId, time::Timestamp};

use super::{
    Store, StoreError, Tx,
    rows::Reader,
    statement::{query, query_scalar},
};

#[derive(Clone, Debug)]
pub(crate) struct SigningKey {
    pub(crate) keyid: String,
    pub(crate) public_key: [u8; 32],
    pub(crate) created_at: Timestamp,
    pub(crate) retired_at: Option<Timestamp>,
}

impl Store {
    /// Every key there ever was, the oldest first.
    pub(crate) async fn signing_keys(&self) -> Result<Vec<SigningKey>, StoreError> {
        let rows = query(
            "SELECT keyid, public_key, created_at, retired_at FROM signing_key ORDER BY created_at, keyid",
        )
        .fetch_all(&self.read)
        .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "signing_key", "keyid");
                Ok(SigningKey {
                    keyid: row.get("keyid")?,
                    public_key: *row.digest("public_key")?.as_bytes(),
                    created_at: row.at("created_at")?,
                    retired_at: row.at_opt("retired_at")?,
                })
            })
            .collect()
    }

    /// The names of the nodes in service that have not confirmed this set of keys.
    pub(crate) async fn nodes_without_keys(&self, serial: u64) -> Result<Vec<String>, StoreError> {
        Ok(query_scalar(
            "SELECT name FROM node WHERE decommissioned_at IS NULL AND signing_serial < $1 ORDER BY name, id",
        )
        .bind(i64::try_from(serial).unwrap_or(i64::MAX))
        .fetch_all(&self.read)
        .await?)
    }
}

impl Tx {
    pub(crate) async fn retire_signing_key(&mut self, keyid: &str, now: Timestamp) -> Result<(), StoreError> {
        query("UPDATE signing_key SET retired_at = $2 WHERE keyid = $1 AND retired_at IS NULL")
            .bind(keyid)
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    pub(crate) async fn note_signing_serial(&mut self, node: NodeId, serial: u64) -> Result<(), StoreError> {
        query("UPDATE node SET signing_serial = $2 WHERE id = $1")
            .bind(node.uuid())
            .bind(i64::try_from(serial).unwrap_or(i64::MAX))
            .execute(&mut self.0)
            .await?;
        Ok(())
    }
}
