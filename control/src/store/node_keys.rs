//! The keys of nodes, as hashes: the one that counts, the one that waits to be used, and the one before.

use muster_shared::{
    ids::{Digest, NodeId},
    time::Timestamp,
};

use super::{
    CorruptRow, Pool, Store, StoreError, Tx,
    ask::{Found, ask, nearby},
    rows::Reader,
    statement::{QueryBuilder, query},
};
use crate::{
    instances::Known,
    nsk::{KeyOwner, Standing},
};

impl Store {
    /// The node of which a key with this hash is known.
    pub(crate) async fn owner_of_nsk(&self, hash: Digest) -> Result<Option<KeyOwner>, StoreError> {
        ask(&self.key_owners, hash, &self.lookup, key_owners, nearby).await
    }
}

async fn key_owners(pool: Pool, asked: Vec<Digest>) -> Result<Found<Digest, KeyOwner>, StoreError> {
    let mut owners = Found::new();
    for asked in pool.pieces(&asked) {
        let mut query = QueryBuilder::new("WITH asked (hash) AS (");
        query.push_values(asked, |row, hash| {
            row.push_bind(hash.as_bytes().to_vec());
        });
        query.push(
            ") SELECT asked.hash AS shown, id, domain_id, decommissioned_at, created_at, nsk_hash, nsk_next_hash,
                 nsk_previous_until, nsk_since, nsk_asked_at, instance, instance_before, instance_copy, last_seen_at,
                 hostname, machine_id, signing_serial, replica_id, contested_until
             FROM asked CROSS JOIN node
             WHERE nsk_hash = asked.hash OR nsk_next_hash = asked.hash OR nsk_previous_hash = asked.hash",
        );
        for row in query.build().fetch_all(&pool).await? {
            let row = Reader::new(&row, "node", "id");
            let shown = row.digest("shown")?;
            owners.insert(shown, key_owner(&row, shown));
        }
    }
    Ok(owners)
}

fn key_owner(row: &Reader<'_>, shown: Digest) -> Result<KeyOwner, CorruptRow> {
    let standing = if row.digest("nsk_hash")? == shown {
        Standing::Current
    } else if row.digest_opt("nsk_next_hash")? == Some(shown) {
        Standing::Next
    } else {
        Standing::Previous(row.at("nsk_previous_until")?)
    };
    let since = match row.at_opt("nsk_since")? {
        Some(since) => since,
        None => row.at("created_at")?,
    };
    Ok(KeyOwner {
        node: row.id("id")?,
        domain: row.id("domain_id")?,
        decommissioned: row.at_opt("decommissioned_at")?.is_some(),
        standing,
        since,
        asked_at: row.at_opt("nsk_asked_at")?,
        instances: Known {
            current: row.get("instance")?,
            before: row.get("instance_before")?,
            copy: row.get("instance_copy")?,
        },
        last_seen_at: row.at_opt("last_seen_at")?,
        hostname: row.get("hostname")?,
        machine_id: row.get("machine_id")?,
        replica: row.get("replica_id")?,
        contested_until: row.at_opt("contested_until")?,
        signing_serial: row.number("signing_serial")?,
    })
}

impl Tx {
    /// Of an enrolment whose answer was lost: nobody holds any of the keys before.
    pub(crate) async fn replace_nsk(&mut self, node: NodeId, hash: Digest) -> Result<(), StoreError> {
        query(
            "UPDATE node SET nsk_hash = $2, nsk_next_hash = NULL, nsk_previous_hash = NULL,
                             nsk_previous_until = NULL
             WHERE id = $1",
        )
        .bind(node.uuid())
        .bind(&hash.as_bytes()[..])
        .execute(&mut self.0)
        .await?;
        Ok(())
    }

    pub(crate) async fn ask_for_nsk(&mut self, node: NodeId, now: Timestamp) -> Result<(), StoreError> {
        query("UPDATE node SET nsk_asked_at = $2 WHERE id = $1 AND decommissioned_at IS NULL")
            .bind(node.uuid())
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Puts a key beside the one that counts, in place of one that was never used. False when `shown` does not count any
    /// more.
    pub(crate) async fn offer_nsk(
        &mut self,
        node: NodeId,
        shown: Digest,
        next: Digest,
    ) -> Result<bool, StoreError> {
        let offered = query(
            "UPDATE node SET nsk_next_hash = $3
             WHERE id = $1 AND nsk_hash = $2 AND decommissioned_at IS NULL",
        )
        .bind(node.uuid())
        .bind(&shown.as_bytes()[..])
        .bind(&next.as_bytes()[..])
        .execute(&mut self.0)
        .await?;
        Ok(offered == 1)
    }

    /// Makes the key that waits the one that counts. False when it does not wait.
    pub(crate) async fn promote_nsk(
        &mut self,
        node: NodeId,
        next: Digest,
        previous_until: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let promoted = query(
            "UPDATE node SET nsk_previous_hash = nsk_hash, nsk_previous_until = $3, nsk_hash = nsk_next_hash,
                             nsk_next_hash = NULL, nsk_since = $4, nsk_asked_at = NULL,
                             warning = NULL, warning_at = NULL
             WHERE id = $1 AND nsk_next_hash = $2",
        )
        .bind(node.uuid())
        .bind(&next.as_bytes()[..])
        .bind(previous_until)
        .bind(now)
        .execute(&mut self.0)
        .await?;
        Ok(promoted == 1)
    }
}
