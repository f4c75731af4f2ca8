//! What nodes declare, and the baselines of their hooks.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_shared::{
    ids::{ActionName, Digest, NodeId, ProjectId},
    time::Timestamp,
    wire::{
        ActionKind, ActionOnNode, BuiltinAction, BuiltinParameter, CapabilityManifest, DeclaredHook,
        HookManifest, HookState, Verdict,
    },
};
use serde_json::{Value, json};

use super::{
    CorruptRow, Store, StoreError, Tx,
    outbox::{about, push_nodes},
    rows::{Reader, Row, to_json},
    statement::{ForEach, QueryBuilder, Statement, query},
};

/// The least by which two instants differ.
const INSTANT: Duration = Duration::from_millis(1);

impl Tx {
    /// Replaces what a node declares, and pins the baseline of every hook that was never seen there before. Written is only
    /// what differs: a node has a hundred actions, and declares them all because one changed.
    pub(crate) async fn replace_capabilities(
        &mut self,
        node: NodeId,
        declared: &CapabilityManifest,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (actions, refused) = what_is_declared(node);
        let actions = actions.fetch_all(&mut self.0).await?;
        let refused = refused.fetch_all(&mut self.0).await?;
        let (before, after) = (Declared::read(&actions, &refused)?, Declared::by(declared));
        self.forget_declared("node_action", node, &gone(before.actions(), after.actions()))
            .await?;
        self.forget_declared(
            "refused_hook",
            node,
            &gone(before.refused.keys(), after.refused.keys()),
        )
        .await?;
        self.put_refused(node, &differing(&before.refused, &after.refused))
            .await?;
        self.put_actions(node, &changed_actions(declared, (&before, &after)), now)
            .await?;
        query("UPDATE node SET capabilities_at = $2 WHERE id = $1")
            .bind(node.uuid())
            .bind(now)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    async fn forget_declared(
        &mut self,
        table: &'static str,
        node: NodeId,
        names: &[&str],
    ) -> Result<(), StoreError> {
        for names in self.0.pieces(names) {
            let mut query = QueryBuilder::new("WITH gone (name) AS (");
            query.push_values(names, |row, name| {
                row.push_bind(*name);
            });
            query.push(") DELETE FROM ").push(table).push(" WHERE node_id = ");
            query.push_bind(node.uuid());
            query.push(" AND name IN (SELECT name FROM gone)");
            query.build().execute(&mut self.0).await?;
        }
        Ok(())
    }

    async fn put_refused(&mut self, node: NodeId, files: &[(&str, &str)]) -> Result<(), StoreError> {
        for files in self.0.pieces(files) {
            let mut query = QueryBuilder::new("INSERT INTO refused_hook (node_id, name, why) ");
            query.push_values(files, |row, (name, why)| {
                row.push_bind(node.uuid()).push_bind(*name).push_bind(*why);
            });
            query.push(" ON CONFLICT (node_id, name) DO UPDATE SET why = excluded.why");
            query.build().execute(&mut self.0).await?;
        }
        Ok(())
    }

    async fn put_actions(
        &mut self,
        node: NodeId,
        actions: &[ChangedAction<'_>],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for actions in self.0.pieces(actions) {
            let mut query =
                QueryBuilder::new("INSERT INTO node_action (node_id, name, kind, digest, manifest, denied) ");
            query.push_values(actions, |row, action| {
                row.push_bind(node.uuid())
                    .push_bind(action.name)
                    .push_bind(if action.digest.is_some() {
                        "hook"
                    } else {
                        "builtin"
                    })
                    .push_bind(action.digest.map(|digest| digest.as_bytes().to_vec()))
                    .push_bind(action.manifest)
                    .push_bind(action.denied);
            });
            query.push(
                " ON CONFLICT (node_id, name) DO UPDATE SET kind = excluded.kind, digest = excluded.digest,
                      manifest = excluded.manifest, denied = excluded.denied",
            );
            query.build().execute(&mut self.0).await?;
        }
        // A hook that was declared before has its baseline since then.
        let hooks: Vec<(&str, Digest)> = actions
            .iter()
            .filter_map(|action| Some((action.name, action.digest?)))
            .collect();
        for hooks in self.0.pieces(&hooks) {
            let mut query =
                QueryBuilder::new("INSERT INTO hook_baseline (node_id, hook, digest, pinned_at) ");
            query.push_values(hooks, |row, (hook, digest)| {
                row.push_bind(node.uuid())
                    .push_bind(*hook)
                    .push_bind(digest.as_bytes().to_vec())
                    .push_bind(now);
            });
            query.push(" ON CONFLICT (node_id, hook) DO NOTHING");
            query.build().execute(&mut self.0).await?;
        }
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

    /// Makes a digest the baseline of a hook on those of some nodes that show exactly this digest now, settles what was open
    /// about it there, and leaves an outbox row for each. Answers which they are.
    pub(crate) async fn approve_baselines(
        &mut self,
        nodes: &[NodeId],
        (hook, digest): (&ActionName, Digest),
        (by, now): (&str, Timestamp),
    ) -> Result<BTreeSet<NodeId>, StoreError> {
        let digest = digest.as_bytes().to_vec();
        let mut approved = BTreeSet::new();
        for nodes in self.0.pieces(nodes) {
            let mut query = about(nodes);
            query
                .push(
                    "b.node_id, b.approved_at FROM asked CROSS JOIN hook_baseline b CROSS JOIN node_action a
                     WHERE b.node_id = asked.node_id AND a.node_id = asked.node_id AND a.name = b.hook
                       AND a.kind = 'hook' AND b.hook = ",
                )
                .push_bind(hook.as_str());
            query.push(" AND a.digest = ").push_bind(digest.clone());
            let shown = query.build().fetch_all(&mut self.0).await?;
            let mut change = ForEach::new(
                "UPDATE hook_baseline AS b
                 SET digest = step.digest, approved_at = step.approved_at, approved_by = step.approved_by",
                "WHERE b.node_id = step.node_id AND b.hook = step.hook",
                &["node_id", "hook", "digest", "approved_at", "approved_by"],
            );
            for row in &shown {
                let row = Reader::new(row, "hook_baseline", "node_id");
                let node: NodeId = row.id("node_id")?;
                change.push([
                    node.uuid().into(),
                    hook.as_str().into(),
                    digest.clone().into(),
                    approved_after(row.at_opt("approved_at")?, now).into(),
                    by.into(),
                ]);
                approved.insert(node);
            }
            if !shown.is_empty() {
                change.execute(&mut self.0).await?;
            }
        }
        let all: Vec<NodeId> = approved.iter().copied().collect();
        for nodes in self.0.pieces(&all) {
            let mut query = QueryBuilder::new("WITH asked (node_id) AS (");
            push_nodes(&mut query, nodes);
            query
                .push(
                    ") UPDATE integrity_violation SET status = 'resolved'
                     WHERE node_id IN (SELECT node_id FROM asked) AND kind = 'hook' AND status <> 'resolved'
                       AND artifact_id = ",
                )
                .push_bind(hook.as_str());
            query.push(" AND observed = ").push_bind(digest.clone());
            query.build().execute(&mut self.0).await?;
        }
        self.append_baselines_to_outbox(&all, hook, now).await?;
        Ok(approved)
    }
}

impl Store {
    /// What a node declared last.
    pub(crate) async fn declared_by(&self, node: NodeId) -> Result<Declared, StoreError> {
        let (actions, refused) = what_is_declared(node);
        let actions = actions.fetch_all(&self.lookup).await?;
        let refused = refused.fetch_all(&self.lookup).await?;
        Ok(Declared::read(&actions, &refused)?)
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
}

/// When an approval counts from: later than the one before it, whoever's clock that was by. A node takes no other.
fn approved_after(before: Option<Timestamp>, now: Timestamp) -> Timestamp {
    before.map_or(now, |before| now.max(before.plus(INSTANT)))
}

/// What a node declares: each name with all that is said of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) hooks: BTreeMap<String, String>,
    pub(crate) builtins: BTreeMap<String, String>,
    pub(crate) refused: BTreeMap<String, String>,
}

/// The actions that a node declared, and the files that it refused.
fn what_is_declared(node: NodeId) -> (Statement, Statement) {
    let actions = query("SELECT node_id, name, kind, manifest FROM node_action WHERE node_id = $1");
    let refused = query("SELECT node_id, name, why FROM refused_hook WHERE node_id = $1");
    (actions.bind(node.uuid()), refused.bind(node.uuid()))
}

impl Declared {
    pub(crate) fn by(declared: &CapabilityManifest) -> Self {
        let hooks = declared.declared_hooks.iter();
        let builtins = declared.builtin_actions.iter();
        let refused = declared.refused_hooks.iter();
        Self {
            hooks: hooks.map(|hook| (hook.name.clone(), to_json(hook).0)).collect(),
            builtins: builtins
                .map(|builtin| (builtin.name.clone(), to_json(builtin).0))
                .collect(),
            refused: refused
                .map(|file| (file.name.clone(), file.why.clone()))
                .collect(),
        }
    }

    fn read(actions: &[Row], refused: &[Row]) -> Result<Self, CorruptRow> {
        let mut before = Self::default();
        for row in actions {
            let row = Reader::new(row, "node_action", "node_id");
            let said = row.get::<Option<String>>("manifest")?.unwrap_or_default();
            let list = match row.get::<&str>("kind")? {
                "hook" => &mut before.hooks,
                _ => &mut before.builtins,
            };
            list.insert(row.get("name")?, said);
        }
        for row in refused {
            let row = Reader::new(row, "refused_hook", "node_id");
            before.refused.insert(row.get("name")?, row.get("why")?);
        }
        Ok(before)
    }

    /// Which fields of a new declaration differ.
    pub(crate) fn changed_by(&self, declared: &CapabilityManifest) -> Vec<String> {
        let now = Self::by(declared);
        let differs = [
            (self.hooks != now.hooks, "declared_hooks"),
            (self.builtins != now.builtins, "builtin_actions"),
            (self.refused != now.refused, "refused_hooks"),
        ];
        let changed = differs.into_iter().filter(|(differs, _)| *differs);
        changed.map(|(_, field)| field.to_owned()).collect()
    }

    /// The names of its actions, of either kind.
    fn actions(&self) -> impl Iterator<Item = &String> {
        self.hooks.keys().chain(self.builtins.keys())
    }
}

/// The names that were there and are not any more.
fn gone<'b, 'a>(
    before: impl Iterator<Item = &'b String>,
    after: impl Iterator<Item = &'a String>,
) -> Vec<&'b str> {
    let after: BTreeSet<&str> = after.map(String::as_str).collect();
    before
        .map(String::as_str)
        .filter(|name| !after.contains(name))
        .collect()
}

/// The names of which something else is said than before, or of which nothing was.
fn differing<'a>(
    before: &BTreeMap<String, String>,
    after: &'a BTreeMap<String, String>,
) -> Vec<(&'a str, &'a str)> {
    let differs = |(name, said): &(&String, &String)| before.get(*name) != Some(*said);
    after
        .iter()
        .filter(differs)
        .map(|(name, said)| (name.as_str(), said.as_str()))
        .collect()
}

/// One action that a node declares, and did not declare like this before.
struct ChangedAction<'a> {
    name: &'a str,
    /// Of a hook.
    digest: Option<Digest>,
    manifest: &'a str,
    denied: Option<&'a str>,
}

fn changed_actions<'a>(
    declared: &'a CapabilityManifest,
    (before, after): (&Declared, &'a Declared),
) -> Vec<ChangedAction<'a>> {
    let hooks: BTreeMap<&str, &str> = differing(&before.hooks, &after.hooks).into_iter().collect();
    let builtins: BTreeMap<&str, &str> = differing(&before.builtins, &after.builtins).into_iter().collect();
    let hooks = declared.declared_hooks.iter().filter_map(|hook| {
        Some(ChangedAction {
            name: &hook.name,
            digest: Some(hook.checksum),
            manifest: hooks.get(hook.name.as_str())?,
            denied: hook.denied.as_deref(),
        })
    });
    let builtins = declared.builtin_actions.iter().filter_map(|builtin| {
        Some(ChangedAction {
            name: &builtin.name,
            digest: None,
            manifest: builtins.get(builtin.name.as_str())?,
            denied: builtin.denied.as_deref(),
        })
    });
    hooks.chain(builtins).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_is_later_than_the_one_before_it() {
        let at = Timestamp::from_millis;
        for (before, now, counts) in [
            (None, 5, 5),
            (Some(4), 5, 5),
            (Some(5), 5, 6),
            (Some(3_600_000), 5, 3_600_001),
        ] {
            assert_eq!(approved_after(before.map(at), at(now)), at(counts));
        }
    }
}
