//! Whom a dispatch might address, with what the gates ask of each.

use std::{collections::HashSet, sync::Arc};

use muster_shared::{
    ids::{ActionName, NodeId, ProjectId},
    selector::Selector,
    wire::ActionKind,
};

use super::{
    Store, StoreError,
    labels::push_selector,
    nodes::push_projects,
    rows::{Reader, Row},
    statement::QueryBuilder,
};
use crate::gates::{Candidate, Declared};

/// The order in which candidates come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// In which they are written fastest.
    Id,
    /// In which a rollout releases.
    Name,
}

/// The candidates so far. Nodes that declare the same share one copy of it.
#[derive(Default)]
struct Found {
    candidates: Vec<Candidate>,
    manifests: HashSet<Arc<str>>,
}

impl Found {
    fn add(&mut self, row: Row) -> Result<(), StoreError> {
        let row = Reader::new(&row, "node", "id");
        let declared = match row.get::<Option<&str>>("kind")? {
            None => None,
            Some("builtin") => Some(Declared {
                kind: ActionKind::Builtin,
                observed: None,
            }),
            Some("hook") => Some(Declared {
                kind: ActionKind::Hook,
                observed: row.digest_opt("observed")?,
            }),
            Some(other) => return Err(row.corrupt("kind", other).into()),
        };
        let of_hook = declared
            .as_ref()
            .is_some_and(|declared| declared.kind == ActionKind::Hook);
        let manifest = row.get::<Option<&str>>("manifest")?.filter(|_| of_hook);
        let manifest = manifest.map(|text| self.kept(text));
        self.candidates.push(Candidate {
            node: row.id("id")?,
            domain: row.id("domain_id")?,
            project: row.id("project_id")?,
            decommissioned: row.at_opt("decommissioned_at")?.is_some(),
            may_act: false,
            declared,
            baseline: row.digest_opt("baseline")?,
            manifest,
            takes_parameters: true,
            timeout_default_seconds: None,
        });
        Ok(())
    }

    fn kept(&mut self, manifest: &str) -> Arc<str> {
        if let Some(kept) = self.manifests.get(manifest) {
            return Arc::clone(kept);
        }
        let kept: Arc<str> = manifest.into();
        self.manifests.insert(Arc::clone(&kept));
        kept
    }
}

impl Store {
    /// The nodes a dispatch might address, with what the gates ask of each, in one statement.
    pub(crate) async fn candidates(
        &self,
        project: ProjectId,
        selector: Option<&Selector>,
        node: Option<NodeId>,
        action: &ActionName,
        order: Order,
    ) -> Result<Vec<Candidate>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT node.id, node.domain_id, node.project_id, node.decommissioned_at,
                    action.kind, action.digest AS observed, action.manifest, baseline.digest AS baseline
             FROM node
             LEFT JOIN node_action action ON action.node_id = node.id AND action.name = ",
        );
        query.push_bind(action.as_str().to_owned());
        query.push(" LEFT JOIN hook_baseline baseline ON baseline.node_id = node.id AND baseline.hook = action.name WHERE ");
        push_projects(&mut query, &[project]);
        if let Some(selector) = selector {
            push_selector(&mut query, selector);
        }
        if let Some(node) = node {
            query.push(" AND node.id = ").push_bind(node.uuid());
        }
        let found = query
            .push(match order {
                Order::Id => " ORDER BY node.id",
                Order::Name => " ORDER BY node.name, node.id",
            })
            .build()
            .fold(&self.read, Found::default(), Found::add)
            .await?;
        Ok(found.candidates)
    }
}
