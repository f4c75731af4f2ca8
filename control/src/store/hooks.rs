//! What nodes declare, the baselines of their hooks, and the violations found.

use std::collections::BTreeMap;

use muster_shared::{
    ids::{ActionName, Digest, DomainId, NodeId, ProjectId, RowId},
    time::Timestamp,
    wire::{
        ActionKind, ActionOnNode, BuiltinAction, BuiltinParameter, CapabilityManifest, DeclaredHook,
        HookManifest, HookState, Verdict, ViolationRow,
    },
};
use serde_json::{Value, json};

use super::{
    CorruptRow, Store, StoreError, Tx,
    rows::{Reader, Row, to_json},
    statement::{QueryBuilder, query},
};

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
        declared: &CapabilityManifest,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for gone in [
            "DELETE FROM node_action WHERE node_id = $1",
            "DELETE FROM refused_hook WHERE node_id = $1",
        ] {
            query(gone).bind(node.uuid()).execute(&mut self.0).await?;
        }
        for refused in &declared.refused_hooks {
            query(
                "INSERT INTO refused_hook (node_id, name, why) VALUES ($1, $2, $3)
                 ON CONFLICT (node_id, name) DO NOTHING",
            )
            .bind(node.uuid())
            .bind(&refused.name)
            .bind(&refused.why)
            .execute(&mut self.0)
            .await?;
        }
        for builtin in &declared.builtin_actions {
            query(
                "INSERT INTO node_action (node_id, name, kind, manifest, denied) VALUES ($1, $2, 'builtin', $3, $4)",
            )
            .bind(node.uuid())
            .bind(&builtin.name)
            .bind(to_json(builtin).0)
            .bind(builtin.denied.as_deref())
            .execute(&mut self.0)
            .await?;
        }
        for hook in &declared.declared_hooks {
            query(
                "INSERT INTO node_action (node_id, name, kind, digest, manifest, denied)
                 VALUES ($1, $2, 'hook', $3, $4, $5)",
            )
            .bind(node.uuid())
            .bind(&hook.name)
            .bind(&hook.checksum.as_bytes()[..])
            .bind(to_json(hook).0)
            .bind(hook.denied.as_deref())
            .execute(&mut self.0)
            .await?;
            query(
                "INSERT INTO hook_baseline (node_id, hook, digest, pinned_at) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (node_id, hook) DO NOTHING",
            )
            .bind(node.uuid())
            .bind(&hook.name)
            .bind(&hook.checksum.as_bytes()[..])
            .bind(now)
            .execute(&mut self.0)
            .await?;
        }
        query("UPDATE node SET capabilities_at = $2 WHERE id = $1")
            .bind(node.uuid())
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// The hooks of a node that differ from their baseline: name, observed, baseline.
    pub(crate) async fn drifted_hooks(
        &mut self,
        node: NodeId,
    ) -> Result<Vec<(String, Digest, Digest)>, StoreError> {
        let rows = query(
            "SELECT a.node_id, a.name, a.digest, b.digest AS baseline
             FROM node_action a JOIN hook_baseline b ON b.node_id = a.node_id AND b.hook = a.name
             WHERE a.node_id = $1 AND a.kind = 'hook' AND a.digest <> b.digest",
        )
        .bind(node.uuid())
        .fetch_all(&mut self.0)
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
        let updated = query(
            "UPDATE hook_baseline SET digest = $3, approved_at = $4, approved_by = $5
             WHERE node_id = $1 AND hook = $2
               AND EXISTS (SELECT 1 FROM node_action a
                           WHERE a.node_id = $1 AND a.name = $2 AND a.kind = 'hook' AND a.digest = $3)",
        )
        .bind(node.uuid())
        .bind(hook.as_str())
        .bind(&digest.as_bytes()[..])
        .bind(now)
        .bind(by)
        .execute(&mut self.0)
        .await?;
        if updated == 0 {
            return Ok(false);
        }
        query(
            "UPDATE integrity_violation SET status = 'resolved'
             WHERE node_id = $1 AND kind = 'hook' AND artifact_id = $2 AND observed = $3 AND status <> 'resolved'",
        )
        .bind(node.uuid())
        .bind(hook.as_str())
        .bind(&digest.as_bytes()[..])
        .execute(&mut self.0)
        .await?;
        Ok(true)
    }

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
}

impl Tx {
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

const OPEN_VIOLATIONS: &str =
    "SELECT count(*) AS open FROM integrity_violation WHERE node_id = $1 AND status = 'open'";

impl Store {
    /// The same as [`Tx::count_open_violations`], at this moment.
    pub(crate) async fn count_open_violations(&self, node: NodeId) -> Result<u32, StoreError> {
        let row = query(OPEN_VIOLATIONS)
            .bind(node.uuid())
            .fetch_one(&self.read)
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
        .fetch_optional(&self.read)
        .await?;
        Ok(row.is_some())
    }

    /// What a node declared last.
    pub(crate) async fn declared_by(&self, node: NodeId) -> Result<DeclaredBefore, StoreError> {
        let mut before = DeclaredBefore::default();
        let rows = query("SELECT node_id, name, kind, manifest FROM node_action WHERE node_id = $1")
            .bind(node.uuid())
            .fetch_all(&self.read)
            .await?;
        for row in &rows {
            let row = Reader::new(row, "node_action", "node_id");
            let said = row.get::<Option<String>>("manifest")?.unwrap_or_default();
            let list = match row.get::<&str>("kind")? {
                "hook" => &mut before.hooks,
                _ => &mut before.builtins,
            };
            list.insert(row.get("name")?, said);
        }
        let rows = query("SELECT node_id, name, why FROM refused_hook WHERE node_id = $1")
            .bind(node.uuid())
            .fetch_all(&self.read)
            .await?;
        for row in &rows {
            let row = Reader::new(row, "refused_hook", "node_id");
            before.refused.insert(row.get("name")?, row.get("why")?);
        }
        Ok(before)
    }

    /// What an action is on each node of a project that declares it, by the nodes' names.
    pub(crate) async fn action_on_nodes(
        &self,
        project: ProjectId,
        action: &ActionName,
        limit: u32,
    ) -> Result<Vec<ActionOnNode>, StoreError> {
        let rows = query(
            "SELECT a.node_id, node.name AS node_name, a.kind, a.digest, b.digest AS baseline, a.manifest, a.denied
             FROM node_action a JOIN node ON node.id = a.node_id
             LEFT JOIN hook_baseline b ON b.node_id = a.node_id AND b.hook = a.name
             WHERE a.name = $1 AND node.project_id = $2 AND node.decommissioned_at IS NULL
             ORDER BY node.name, node.id LIMIT $3",
        )
        .bind(action.as_str())
        .bind(project.uuid())
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "node_action", "node_id");
                let digest = row.digest_opt("digest")?;
                let baseline = row.digest_opt("baseline")?;
                let manifest = match digest {
                    Some(_) => row
                        .json_text_opt::<DeclaredHook>("manifest")?
                        .and_then(|hook| hook.manifest),
                    None => row.json_text_opt::<BuiltinAction>("manifest")?.map(of_builtin),
                };
                Ok(ActionOnNode {
                    node_id: row.id("node_id")?,
                    node_name: row.get("node_name")?,
                    kind: if digest.is_some() {
                        ActionKind::Hook
                    } else {
                        ActionKind::Builtin
                    },
                    verdict: digest.map(|digest| Verdict::of(baseline, digest)),
                    digest,
                    manifest,
                    denied: row.get("denied")?,
                })
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
            "SELECT h.name, h.node_id, node.name AS node_name, h.digest, h.why, b.digest AS baseline, b.pinned_at,
                    b.approved_at
             FROM (SELECT name, node_id, digest, NULL AS why FROM node_action WHERE kind = 'hook'
                   UNION ALL SELECT name, node_id, NULL, why FROM refused_hook) h
             JOIN node ON node.id = h.node_id
             LEFT JOIN hook_baseline b ON b.node_id = h.node_id AND b.hook = h.name
             WHERE node.decommissioned_at IS NULL AND node.project_id = ",
        );
        query.push_bind(project.uuid());
        if let Some((name, node)) = after {
            query
                .push(" AND (h.name, h.node_id) > (")
                .push_bind(name.to_owned());
            query.push(", ").push_bind(node.uuid()).push(")");
        }
        query
            .push(" ORDER BY h.name, h.node_id LIMIT ")
            .push_bind(i64::from(limit));
        let rows = query.build().fetch_all(&self.read).await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, "node_action", "node_id");
                let (observed, baseline) = (row.digest_opt("digest")?, row.digest_opt("baseline")?);
                let approved = row.at_opt("approved_at")?;
                Ok(HookState {
                    name: row.get("name")?,
                    node_id: row.id("node_id")?,
                    node_name: row.get("node_name")?,
                    observed,
                    baseline,
                    verdict: observed
                        .map_or(Verdict::Uncatalogued, |observed| Verdict::of(baseline, observed)),
                    refused: row.get("why")?,
                    pinned_at: if approved.is_some() {
                        approved
                    } else {
                        row.at_opt("pinned_at")?
                    },
                })
            })
            .collect()
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

/// Each name with all that was said of it.
#[derive(Debug, Default)]
pub(crate) struct DeclaredBefore {
    pub(crate) hooks: BTreeMap<String, String>,
    pub(crate) builtins: BTreeMap<String, String>,
    pub(crate) refused: BTreeMap<String, String>,
}

impl DeclaredBefore {
    /// Which fields of a new declaration differ.
    pub(crate) fn changed_by(&self, declared: &CapabilityManifest) -> Vec<String> {
        let hooks = declared.declared_hooks.iter();
        let builtins = declared.builtin_actions.iter();
        let refused = declared.refused_hooks.iter();
        let now = Self {
            hooks: hooks.map(|hook| (hook.name.clone(), to_json(hook).0)).collect(),
            builtins: builtins
                .map(|builtin| (builtin.name.clone(), to_json(builtin).0))
                .collect(),
            refused: refused
                .map(|file| (file.name.clone(), file.why.clone()))
                .collect(),
        };
        let differs = [
            (self.hooks != now.hooks, "declared_hooks"),
            (self.builtins != now.builtins, "builtin_actions"),
            (self.refused != now.refused, "refused_hooks"),
        ];
        let changed = differs.into_iter().filter(|(differs, _)| *differs);
        changed.map(|(_, field)| field.to_owned()).collect()
    }
}

/// A builtin in the shape of a manifest, so that readers need to know one shape only.
fn of_builtin(builtin: BuiltinAction) -> HookManifest {
    let property = |parameter: &BuiltinParameter| {
        let mut property = json!({ "type": parameter.kind.as_deref().unwrap_or("string") });
        for (keyword, value) in [
            ("description", &parameter.description),
            ("default", &parameter.default),
        ] {
            if let Some(value) = value {
                property[keyword] = value.as_str().into();
            }
        }
        (parameter.name.clone(), property)
    };
    let required = builtin.parameters.iter().filter(|parameter| parameter.required);
    let required: Vec<Value> = required.map(|parameter| parameter.name.as_str().into()).collect();
    let properties: serde_json::Map<String, Value> = builtin.parameters.iter().map(property).collect();
    HookManifest {
        description: builtin.description,
        parameters: Some(json!({
            "properties": properties, "required": required, "additionalProperties": false,
        })),
        ..HookManifest::default()
    }
}

#[derive(Default)]
pub(crate) struct ViolationFilter<'a> {
    pub(crate) node: Option<NodeId>,
    pub(crate) status: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) before: Option<RowId>,
}
