//! What nodes declare, the baselines of their hooks, and the violations found.

use muster_shared::{
    ids::{ActionName, Digest, DomainId, NodeId, ProjectId, RowId},
    time::Timestamp,
    wire::{BuiltinAction, DeclaredHook, HookState, Verdict, ViolationRow},
};
use sqlx::{QueryBuilder, sqlite::SqliteRow};

use super::{CorruptRow, Store, StoreError, Tx, rows::Reader, rows::to_json};

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

impl Tx {
    /// Replaces what a node declares, and pins the baseline of every hook that was never seen there before.
    pub(crate) async fn replace_capabilities(
        &mut self,
        node: NodeId,
        builtins: &[BuiltinAction],
        hooks: &[DeclaredHook],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM node_action WHERE node_id = $1")
            .bind(node.uuid())
            .execute(&mut *self.0)
            .await?;
        for builtin in builtins {
            sqlx::query(
                "INSERT INTO node_action (node_id, name, kind, manifest) VALUES ($1, $2, 'builtin', $3)",
            )
            .bind(node.uuid())
            .bind(&builtin.name)
            .bind(to_json(builtin))
            .execute(&mut *self.0)
            .await?;
        }
        for hook in hooks {
            sqlx::query("INSERT INTO node_action (node_id, name, kind, digest) VALUES ($1, $2, 'hook', $3)")
                .bind(node.uuid())
                .bind(&hook.name)
                .bind(&hook.checksum.as_bytes()[..])
                .execute(&mut *self.0)
                .await?;
            sqlx::query(
                "INSERT INTO hook_baseline (node_id, hook, digest, pinned_ms) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (node_id, hook) DO NOTHING",
            )
            .bind(node.uuid())
            .bind(&hook.name)
            .bind(&hook.checksum.as_bytes()[..])
            .bind(now.as_millis())
            .execute(&mut *self.0)
            .await?;
        }
        sqlx::query("UPDATE node SET capabilities_ms = $2 WHERE id = $1")
            .bind(node.uuid())
            .bind(now.as_millis())
            .execute(&mut *self.0)
            .await?;
        Ok(())
    }

    /// The hooks of a node that differ from their baseline: name, observed, baseline.
    pub(crate) async fn drifted_hooks(
        &mut self,
        node: NodeId,
    ) -> Result<Vec<(String, Digest, Digest)>, StoreError> {
        let rows = sqlx::query(
            "SELECT a.node_id, a.name, a.digest, b.digest AS baseline
             FROM node_action a JOIN hook_baseline b ON b.node_id = a.node_id AND b.hook = a.name
             WHERE a.node_id = $1 AND a.kind = 'hook' AND a.digest <> b.digest",
        )
        .bind(node.uuid())
        .fetch_all(&mut *self.0)
        .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "node_action", "node_id");
                Ok((row.get("name")?, row.digest("digest")?, row.digest("baseline")?))
            })
            .collect()
    }

    /// Makes a digest the baseline of a hook and settles what was open about that digest. False when the node does not
    /// show exactly this digest now.
    pub(crate) async fn approve_baseline(
        &mut self,
        node: NodeId,
        hook: &ActionName,
        digest: Digest,
        (by, now): (&str, Timestamp),
    ) -> Result<bool, StoreError> {
        let updated = sqlx::query(
            "UPDATE hook_baseline SET digest = $3, approved_ms = $4, approved_by = $5
             WHERE node_id = $1 AND hook = $2
               AND EXISTS (SELECT 1 FROM node_action a
                           WHERE a.node_id = $1 AND a.name = $2 AND a.kind = 'hook' AND a.digest = $3)",
        )
        .bind(node.uuid())
        .bind(hook.as_str())
        .bind(&digest.as_bytes()[..])
        .bind(now.as_millis())
        .bind(by)
        .execute(&mut *self.0)
        .await?;
        if updated.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query(
            "UPDATE integrity_violation SET status = 'resolved'
             WHERE node_id = $1 AND kind = 'hook' AND artifact_id = $2 AND observed = $3 AND status <> 'resolved'",
        )
        .bind(node.uuid())
        .bind(hook.as_str())
        .bind(&digest.as_bytes()[..])
        .execute(&mut *self.0)
        .await?;
        Ok(true)
    }

    /// Records a violation, unless the same one is open already.
    pub(crate) async fn insert_violation(
        &mut self,
        new: &NewViolation<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO integrity_violation
                 (id, node_id, domain_id, kind, status, artifact_id, detected_by, observed, expected, detected_ms)
             SELECT $1, $2, $3, $4, 'open', $5, $6, $7, $8, $9
             WHERE NOT EXISTS (SELECT 1 FROM integrity_violation v
                               WHERE v.node_id = $2 AND v.kind = $4 AND v.artifact_id = $5
                                 AND v.observed IS $7 AND v.status <> 'resolved')",
        )
        .bind(new.id.uuid())
        .bind(new.node.uuid())
        .bind(new.domain.uuid())
        .bind(new.kind)
        .bind(new.artifact)
        .bind(new.detected_by)
        .bind(new.observed)
        .bind(new.expected)
        .bind(now.as_millis())
        .execute(&mut *self.0)
        .await?;
        Ok(())
    }
}

impl Tx {
    /// Takes an open violation to acknowledged. False when it is not open.
    pub(crate) async fn acknowledge_violation(
        &mut self,
        id: RowId,
        (by, reason): (&str, &str),
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let moved = sqlx::query(
            "UPDATE integrity_violation
             SET status = 'acknowledged', acknowledged_ms = $2, acknowledged_by = $3, acknowledge_reason = $4
             WHERE id = $1 AND status = 'open'",
        )
        .bind(id.uuid())
        .bind(now.as_millis())
        .bind(by)
        .bind(reason)
        .execute(&mut *self.0)
        .await?;
        Ok(moved.rows_affected() == 1)
    }
}

impl Store {
    /// What a node declared last: each action, and the digest of a hook.
    pub(crate) async fn declared_by(
        &self,
        node: NodeId,
    ) -> Result<Vec<(String, Option<Digest>)>, StoreError> {
        let rows = sqlx::query("SELECT node_id, name, digest FROM node_action WHERE node_id = $1")
            .bind(node.uuid())
            .fetch_all(&self.read)
            .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "node_action", "node_id");
                Ok((row.get("name")?, row.digest_opt("digest")?))
            })
            .collect()
    }

    /// The hooks of a project's nodes with their verdicts, in the order of (name, node).
    pub(crate) async fn hook_states(
        &self,
        project: ProjectId,
        after: Option<(&str, NodeId)>,
        limit: u32,
    ) -> Result<Vec<HookState>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT a.name, a.node_id, node.name AS node_name, a.digest, b.digest AS baseline, b.pinned_ms, b.approved_ms
             FROM node_action a JOIN node ON node.id = a.node_id
             LEFT JOIN hook_baseline b ON b.node_id = a.node_id AND b.hook = a.name
             WHERE a.kind = 'hook' AND node.decommissioned_ms IS NULL AND node.project_id = ",
        );
        query.push_bind(project.uuid());
        if let Some((name, node)) = after {
            query
                .push(" AND (a.name, a.node_id) > (")
                .push_bind(name.to_owned());
            query.push(", ").push_bind(node.uuid()).push(")");
        }
        query
            .push(" ORDER BY a.name, a.node_id LIMIT ")
            .push_bind(i64::from(limit));
        let rows = query.build().fetch_all(&self.read).await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "node_action", "node_id");
                let (observed, baseline) = (row.digest("digest")?, row.digest_opt("baseline")?);
                let approved = row.at_opt("approved_ms")?;
                Ok(HookState {
                    name: row.parsed("name")?,
                    node_id: row.id("node_id")?,
                    node_name: row.get("node_name")?,
                    observed,
                    baseline,
                    verdict: Verdict::of(baseline, observed),
                    pinned_at: if approved.is_some() {
                        approved
                    } else {
                        row.at_opt("pinned_ms")?
                    },
                })
            })
            .collect()
    }

    pub(crate) async fn violations(
        &self,
        projects: &[ProjectId],
        filter: &ViolationFilter<'_>,
        limit: u32,
    ) -> Result<Vec<ViolationRow>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT v.* FROM integrity_violation v JOIN node ON node.id = v.node_id WHERE node.project_id IN (",
        );
        let mut list = query.separated(", ");
        for project in projects {
            list.push_bind(project.uuid());
        }
        query.push(")");
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
        Ok(rows.iter().map(read_violation).collect::<Result<_, _>>()?)
    }

    /// One violation, and the project of its node.
    pub(crate) async fn violation(&self, id: RowId) -> Result<Option<(ViolationRow, ProjectId)>, StoreError> {
        let row = sqlx::query(
            "SELECT v.*, node.project_id FROM integrity_violation v JOIN node ON node.id = v.node_id WHERE v.id = $1",
        )
        .bind(id.uuid())
        .fetch_optional(&self.read)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let project = Reader::new(&row, "node", "id").id("project_id")?;
        Ok(Some((read_violation(&row)?, project)))
    }
}

fn read_violation(row: &SqliteRow) -> Result<ViolationRow, CorruptRow> {
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
        detected_at: row.at("detected_ms")?,
        acknowledged_at: row.at_opt("acknowledged_ms")?,
        acknowledged_by_subject: row.get("acknowledged_by")?,
        acknowledge_reason: row.get("acknowledge_reason")?,
        observed: digest("observed")?,
        expected: digest("expected")?,
    })
}

#[derive(Default)]
pub(crate) struct ViolationFilter<'a> {
    pub(crate) node: Option<NodeId>,
    pub(crate) status: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) before: Option<RowId>,
}
