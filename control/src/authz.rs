//! Who may: relation tuples `(subject, relation, resource)` and what follows from them. Pure.
//!
//! `act` on a project opens an operation. Whether a node may be acted on is asked node by node: `act` on the node
//! itself, or `operator` on its project or domain, unless `excluded` takes it away at any of the three.

use std::collections::HashSet;

use muster_shared::ids::{DomainId, NodeId, ProjectId};

pub(crate) fn domain(id: DomainId) -> String {
    format!("domain:{id}")
}
pub(crate) fn project(id: ProjectId) -> String {
    format!("project:{id}")
}
pub(crate) fn resource(id: NodeId) -> String {
    format!("resource:{id}")
}

/// All that one subject was granted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants(HashSet<(String, String)>);

impl FromIterator<(String, String)> for Grants {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(tuples: I) -> Self {
        Self(tuples.into_iter().collect())
    }
}

impl Grants {
    fn has(&self, relation: &str, resource: &str) -> bool {
        // Two owned texts make the key; a set of borrowed pairs would cost more to read than it saves.
        self.0.contains(&(relation.to_owned(), resource.to_owned()))
    }

    /// Whether dispatching and reading in this project is open to the subject.
    pub(crate) fn may_act_in(&self, in_domain: DomainId, in_project: ProjectId) -> bool {
        self.has("act", &project(in_project)) || self.may_operate(in_domain, in_project)
    }

    /// Whether the subject may change the project itself: labels, bootstrap tokens, baselines.
    pub(crate) fn may_operate(&self, in_domain: DomainId, in_project: ProjectId) -> bool {
        let (domain, project) = (domain(in_domain), project(in_project));
        (self.has("operator", &project) || self.has("operator", &domain))
            && !self.has("excluded", &project)
            && !self.has("excluded", &domain)
    }

    /// Whether the subject may change the domain itself: operator tokens, grants on all of it, its audit trail.
    pub(crate) fn may_operate_domain(&self, in_domain: DomainId) -> bool {
        let domain = domain(in_domain);
        self.has("operator", &domain) && !self.has("excluded", &domain)
    }

    /// What the subject may do to the nodes of one project: asked once, answered for every node of a cohort.
    pub(crate) fn in_project(&self, in_domain: DomainId, in_project: ProjectId) -> InProject<'_> {
        let excluded = self.has("excluded", &project(in_project)) || self.has("excluded", &domain(in_domain));
        InProject {
            grants: self,
            inherited: self.may_operate(in_domain, in_project),
            excluded,
        }
    }
}

pub(crate) struct InProject<'a> {
    grants: &'a Grants,
    inherited: bool,
    excluded: bool,
}

impl InProject<'_> {
    pub(crate) fn may_act_on(&self, node: NodeId) -> bool {
        let node = resource(node);
        !self.excluded
            && !self.grants.has("excluded", &node)
            && (self.inherited || self.grants.has("act", &node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id<T: From<uuid::Uuid>>(n: u128) -> T {
        uuid::Uuid::from_u128(n).into()
    }

    fn grants(tuples: &[(&str, String)]) -> Grants {
        tuples
            .iter()
            .map(|(relation, resource)| ((*relation).to_owned(), resource.clone()))
            .collect()
    }

    #[test]
    fn operator_is_inherited_from_project_and_domain() {
        for resource in [project(id(2)), domain(id(1))] {
            let grants = grants(&[("operator", resource)]);
            assert!(grants.may_act_in(id(1), id(2)));
            assert!(grants.in_project(id(1), id(2)).may_act_on(id(3)));
        }
    }

    #[test]
    fn act_on_the_project_opens_the_door_and_no_node() {
        let grants = grants(&[("act", project(id(2)))]);
        assert!(grants.may_act_in(id(1), id(2)));
        assert!(!grants.may_operate(id(1), id(2)));
        assert!(!grants.in_project(id(1), id(2)).may_act_on(id(3)));
    }

    #[test]
    fn act_on_a_node_is_for_that_node() {
        let grants = grants(&[("act", resource(id(3)))]);
        assert!(grants.in_project(id(1), id(2)).may_act_on(id(3)));
        assert!(!grants.in_project(id(1), id(2)).may_act_on(id(4)));
        assert!(!grants.may_act_in(id(1), id(2)));
    }

    #[test]
    fn excluded_takes_away_at_every_level() {
        for resource in [resource(id(3)), project(id(2)), domain(id(1))] {
            let grants = grants(&[
                ("operator", domain(id(1))),
                ("act", super::resource(id(3))),
                ("excluded", resource),
            ]);
            assert!(!grants.in_project(id(1), id(2)).may_act_on(id(3)));
        }
    }

    #[test]
    fn another_tenants_grant_is_none() {
        let grants = grants(&[("operator", domain(id(9))), ("operator", project(id(9)))]);
        assert!(!grants.may_act_in(id(1), id(2)));
        assert!(!grants.in_project(id(1), id(2)).may_act_on(id(3)));
    }
}
