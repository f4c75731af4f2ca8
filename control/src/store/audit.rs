//! Audit rows: appended, paged, never changed.

use muster_shared::{
    audit::{Anchor, AuditRow, GENESIS},
    ids::DomainId,
    time::Timestamp,
};

use super::{
    CorruptRow, Store, StoreError, Tx,
    rows::{Reader, Row},
    statement::{QueryBuilder, query, storable},
};
use crate::audit::Entry;

const COLUMNS: &str = "domain_id, seq, at, subject, relation, resource, outcome, detail, correlation_id, \
                       previous_hash, hash";

fn read(row: &Row) -> Result<AuditRow, CorruptRow> {
    let row = Reader::new(row, "audit", "domain_id");
    Ok(AuditRow {
        domain_id: row.id("domain_id")?,
        seq: row.number("seq")?,
        at: row.at("at")?,
        subject: row.get("subject")?,
        relation: row.get("relation")?,
        resource: row.get("resource")?,
        outcome: row.get("outcome")?,
        detail: row.get("detail")?,
        correlation_id: row.get::<Option<uuid::Uuid>>("correlation_id")?.map(From::from),
        previous_hash: row.digest("previous_hash")?,
        hash: row.digest("hash")?,
    })
}

/// Where a chain begins and ends by its own record, at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainEnds {
    /// The last row that was pruned from its beginning.
    pub(crate) pruned: Option<Anchor>,
    pub(crate) head: Option<Anchor>,
}

fn read_end(row: &Row) -> Result<Anchor, CorruptRow> {
    let row = Reader::new(row, "audit_head", "domain_id");
    Ok(Anchor {
        seq: row.number("seq")?,
        hash: row.digest("hash")?,
    })
}

impl Tx {
    /// Appends rows to the chain of a domain, all part of this transaction.
    pub(crate) async fn append_audit(
        &mut self,
        domain: DomainId,
        entries: &[Entry<'_>],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let head = query(HEAD)
            .bind(domain.uuid())
            .fetch_optional(&mut self.0)
            .await?;
        let mut last = head.as_ref().map(read_end).transpose()?.unwrap_or(Anchor {
            seq: 0,
            hash: GENESIS,
        });
        for chunk in self.0.pieces(entries) {
            let rows: Vec<AuditRow> = chunk
                .iter()
                .map(|entry| {
                    let mut row = AuditRow {
                        domain_id: domain,
                        seq: last.seq + 1,
                        at: now,
                        // As it will be read again: the hash is of that.
                        subject: storable(entry.subject),
                        relation: entry.relation.to_owned(),
                        resource: storable(&entry.resource),
                        outcome: entry.outcome.as_str().to_owned(),
                        detail: entry.detail.as_deref().map(storable),
                        correlation_id: entry.correlation,
                        previous_hash: last.hash,
                        hash: GENESIS,
                    };
                    row.hash = row.computed_hash();
                    last = row.anchor();
                    row
                })
                .collect();
            insert(self, &rows).await?;
        }
        query(
            "INSERT INTO audit_head (domain_id, seq, hash) VALUES ($1, $2, $3)
             ON CONFLICT (domain_id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash",
        )
        .bind(domain.uuid())
        .bind(number(last.seq))
        .bind(&last.hash.as_bytes()[..])
        .execute(&mut self.0)
        .await?;
        Ok(())
    }
}

async fn insert(tx: &mut Tx, rows: &[AuditRow]) -> Result<(), StoreError> {
    QueryBuilder::new("INSERT INTO audit (")
        .push(COLUMNS)
        .push(") ")
        .push_values(rows, |columns, row| {
            columns
                .push_bind(row.domain_id.uuid())
                .push_bind(number(row.seq))
                .push_bind(row.at)
                .push_bind(row.subject.clone())
                .push_bind(row.relation.clone())
                .push_bind(row.resource.clone())
                .push_bind(row.outcome.clone())
                .push_bind(row.detail.clone())
                .push_bind(row.correlation_id.map(muster_shared::ids::RowId::uuid))
                .push_bind(row.previous_hash.as_bytes().to_vec())
                .push_bind(row.hash.as_bytes().to_vec());
        })
        .build()
        .execute(&mut tx.0)
        .await?;
    Ok(())
}

const HEAD: &str = "SELECT domain_id, seq, hash FROM audit_head WHERE domain_id = $1";
const PRUNED: &str = "SELECT domain_id, seq, hash FROM audit_pruned WHERE domain_id = $1";

fn number(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

impl Store {
    /// Rows after `after`, oldest first, and the ends of the chain at the same moment.
    pub(crate) async fn audit_oldest_first(
        &self,
        domain: DomainId,
        after: u64,
        limit: u32,
    ) -> Result<(Vec<AuditRow>, ChainEnds), StoreError> {
        self.audit_page(domain, ("seq > ", after), "ASC", limit).await
    }

    /// Rows before `before`, newest first, and the ends of the chain at the same moment.
    pub(crate) async fn audit_newest_first(
        &self,
        domain: DomainId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<(Vec<AuditRow>, ChainEnds), StoreError> {
        self.audit_page(domain, ("seq < ", before.unwrap_or(u64::MAX)), "DESC", limit)
            .await
    }

    async fn audit_page(
        &self,
        domain: DomainId,
        (side, of): (&str, u64),
        order: &str,
        limit: u32,
    ) -> Result<(Vec<AuditRow>, ChainEnds), StoreError> {
        // One snapshot for all: a row appended in between would look like one cut off.
        let mut snapshot = self.read.snapshot().await?;
        let head = query(HEAD)
            .bind(domain.uuid())
            .fetch_optional(&mut snapshot)
            .await?;
        let pruned = query(PRUNED)
            .bind(domain.uuid())
            .fetch_optional(&mut snapshot)
            .await?;
        let mut query = QueryBuilder::new("SELECT ");
        query
            .push(COLUMNS)
            .push(" FROM audit WHERE domain_id = ")
            .push_bind(domain.uuid())
            .push(" AND ")
            .push(side)
            .push_bind(number(of))
            .push(" ORDER BY seq ")
            .push(order)
            .push(" LIMIT ")
            .push_bind(i64::from(limit));
        let rows = query.build().fetch_all(&mut snapshot).await?;
        snapshot.commit().await?;
        let rows = rows.iter().map(read).collect::<Result<_, _>>()?;
        let ends = ChainEnds {
            pruned: pruned.as_ref().map(read_end).transpose()?,
            head: head.as_ref().map(read_end).transpose()?,
        };
        Ok((rows, ends))
    }

    /// Every domain.
    pub(crate) async fn all_domains(&self) -> Result<Vec<DomainId>, StoreError> {
        let rows = query("SELECT id FROM domain ORDER BY id")
            .fetch_all(&self.read)
            .await?;
        Ok(rows
            .iter()
            .map(|row| Reader::new(row, "domain", "id").id("id"))
            .collect::<Result<_, _>>()?)
    }
}
