//! The violations of integrity that nodes or control have found: kept once while they are open, and how they end.

use muster_shared::{
    ids::{Digest, DomainId, NodeId, ProjectId, RowId},
    time::Timestamp,
    wire::ViolationRow,
};

use super::{
    CorruptRow, Store, StoreError, Tx,
    rows::{Reader, Row},
    statement::{QueryBuilder, query},
};

const OPEN_VIOLATIONS: &str =
    "SELECT count(*) AS open FROM integrity_violation WHERE node_id = $1 AND status = 'open'";

pub(crate) struct NewViolation<'a> {
    pub(crate) id: RowId,
    pub(crate) node: NodeId,
    pub(crate) domain: DomainId,
    pub(crate) kind: &'static str,
    pub(crate) artifact: &'a str,
    pub(crate) detected_by: &'static str,
    pub(crate) observed: Option<&'a [u8]>,
    pub(crate) expected: Option<&'a [u8]>,
}

#[derive(Default)]
pub(crate) struct ViolationFilter<'a> {
    pub(crate) node: Option<NodeId>,
    pub(crate) status: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) before: Option<RowId>,
}

impl Tx {
    /// Records a violation, unless the same one is known and not resolved. True when it was recorded.
    pub(crate) async fn insert_violation(
        &mut self,
        new: &NewViolation<'_>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let inserted = query(
            "INSERT INTO integrity_violation
                 (id, node_id, domain_id, kind, status, artifact_id, detected_by, observed, expected, detected_at)
             SELECT $1, $2, $3, $4, 'open', $5, $6, $7, $8, $9
             WHERE NOT EXISTS (SELECT 1 FROM integrity_violation v
                               WHERE v.node_id = $2 AND v.kind = $4 AND v.artifact_id = $5
                                 AND v.observed IS NOT DISTINCT FROM $7 AND v.status <> 'resolved')",
        )
        .bind(new.id.uuid())
        .bind(new.node.uuid())
        .bind(new.domain.uuid())
        .bind(new.kind)
        .bind(new.artifact)
        .bind(new.detected_by)
        .bind(new.observed)
        .bind(new.expected)
        .bind(now)
        .execute(&mut self.0)
        .await?;
        Ok(inserted == 1)
    }

    /// How many violations of a node nobody has looked into yet.
    pub(crate) async fn count_open_violations(&mut self, node: NodeId) -> Result<u32, StoreError> {
        let row = query(OPEN_VIOLATIONS)
            .bind(node.uuid())
            .fetch_one(&mut self.0)
            .await?;
        Ok(Reader::new(&row, "integrity_violation", "node_id").number("open")?)
    }

    /// Takes an open violation to acknowledged. False when it is not open.
    pub(crate) async fn acknowledge_violation(
        &mut self,
        id: RowId,
        (by, reason): (&str, &str),
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let moved = query(
            "UPDATE integrity_violation
             SET status = 'acknowledged', acknowledged_at = $2, acknowledged_by = $3, acknowledge_reason = $4
             WHERE id = $1 AND status = 'open'",
        )
        .bind(id.uuid())
        .bind(now)
        .bind(by)
        .bind(reason)
        .execute(&mut self.0)
        .await?;
        Ok(moved == 1)
    }
}

impl Store {
    /// The same as [`Tx::count_open_violations`], at this moment.
    pub(crate) async fn count_open_violations(&self, node: NodeId) -> Result<u32, StoreError> {
        let row = query(OPEN_VIOLATIONS)
            .bind(node.uuid())
            .fetch_one(&self.lookup)
            .await?;
        Ok(Reader::new(&row, "integrity_violation", "node_id").number("open")?)
    }

    /// Whether the same violation is known, and not resolved.
    pub(crate) async fn knows_violation(&self, new: &NewViolation<'_>) -> Result<bool, StoreError> {
        let row = query(
            "SELECT 1 FROM integrity_violation
             WHERE node_id = $1 AND kind = $2 AND artifact_id = $3 AND observed IS NOT DISTINCT FROM $4
               AND status <> 'resolved' LIMIT 1",
        )
        .bind(new.node.uuid())
        .bind(new.kind)
        .bind(new.artifact)
        .bind(new.observed)
        .fetch_optional(&self.lookup)
        .await?;
        Ok(row.is_some())
    }

    /// A page of violations, newest first, each with the project of its node.
    pub(crate) async fn violations(
        &self,
        projects: &[ProjectId],
        filter: &ViolationFilter<'_>,
        limit: u32,
    ) -> Result<Vec<(ViolationRow, ProjectId)>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT v.*, node.project_id FROM integrity_violation v JOIN node ON node.id = v.node_id WHERE ",
        );
        query.push_in("node.project_id", projects.iter().map(|project| project.uuid()));
        if let Some(node) = filter.node {
            query.push(" AND v.node_id = ").push_bind(node.uuid());
        }
        if let Some(status) = filter.status {
            query.push(" AND v.status = ").push_bind(status.to_owned());
        }
        if let Some(kind) = filter.kind {
            query.push(" AND v.kind = ").push_bind(kind.to_owned());
        }
        if let Some(before) = filter.before {
            query.push(" AND v.id < ").push_bind(before.uuid());
        }
        query
            .push(" ORDER BY v.id DESC LIMIT ")
            .push_bind(i64::from(limit));
        let rows = query.build().fetch_all(&self.read).await?;
        let with_project = |row| Ok((read_violation(row)?, project_of(row)?));
        rows.iter().map(with_project).collect()
    }

    /// One violation, and the project of its node.
    pub(crate) async fn violation(&self, id: RowId) -> Result<Option<(ViolationRow, ProjectId)>, StoreError> {
        let row = query(
            "SELECT v.*, node.project_id FROM integrity_violation v JOIN node ON node.id = v.node_id WHERE v.id = $1",
        )
        .bind(id.uuid())
        .fetch_optional(&self.read)
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some((read_violation(&row)?, project_of(&row)?)))
    }
}

fn project_of(row: &Row) -> Result<ProjectId, CorruptRow> {
    Reader::new(row, "node", "id").id("project_id")
}

fn read_violation(row: &Row) -> Result<ViolationRow, CorruptRow> {
    let row = Reader::new(row, "integrity_violation", "id");
    let digest = |column| {
        let bytes: Option<Vec<u8>> = row.get(column)?;
        Ok::<_, CorruptRow>(bytes.and_then(|b| b.try_into().ok()).map(Digest::from_bytes))
    };
    Ok(ViolationRow {
        id: row.id("id")?,
        node_id: row.id("node_id")?,
        domain_id: row.id("domain_id")?,
        kind: row.get("kind")?,
        status: row.get("status")?,
        artifact_id: row.get("artifact_id")?,
        detected_at: row.at("detected_at")?,
        acknowledged_at: row.at_opt("acknowledged_at")?,
        acknowledged_by_subject: row.get("acknowledged_by")?,
        acknowledge_reason: row.get("acknowledge_reason")?,
        observed: digest("observed")?,
        expected: digest("expected")?,
    })
}
