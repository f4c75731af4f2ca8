//! Who may: relation tuples `(subject, relation, resource)` and what follows from them. Pure.
//!
//! `act` on a project opens an operation. Whether a node may be acted on is asked node by node: `act` on the node
//! itself, or `operator` on its project or domain, unless `excluded` takes it away at any of the three. What a group was
//! granted, its members have, also those of groups within it.

mod shape;

use std::collections::{HashMap, HashSet};

use muster_shared::ids::{DomainId, NodeId, ProjectId};

pub(crate) use shape::{
    BadShape, Resource, Subject, check_question, check_relation, domain, issued_group, issued_user, notation,
    project, resource,
};

/// The relation of a subject to a group.
pub(crate) const MEMBER: &str = "member";
/// The relation that takes the others away.
pub(crate) const EXCLUDED: &str = "excluded";
/// How many groups may be nested: a member of the innermost is one of the outermost, this many steps away.
pub(crate) const GROUP_DEPTH_MAX: usize = 8;

/// A tuple whose parts do not go together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadTuple {
    #[error("{relation:?} is no relation to a {kind}; those are {known}")]
    Relation {
        relation: String,
        kind: &'static str,
        known: String,
    },
    #[error("{0} would be nested in itself")]
    Cycle(String),
    #[error("groups may be nested {GROUP_DEPTH_MAX} deep (GROUP_DEPTH_MAX), and {0} would be deeper")]
    TooDeep(String),
}

/// Whether `group` may stand as it does among these tuples: not within itself, and not too deep.
pub(crate) fn check_nesting(tuples: &[Tuple], group: &str) -> Result<(), BadTuple> {
    // Each step to the left is a subject of the group, each to the right a group that it is a member of.
    let nested = |from: &str, step: &dyn Fn(&Tuple, &str) -> Option<String>| -> Result<usize, BadTuple> {
        let mut frontier = HashSet::from([from.to_owned()]);
        for depth in 0..=GROUP_DEPTH_MAX {
            frontier = frontier
                .iter()
                .flat_map(|at| tuples.iter().filter_map(|tuple| step(tuple, at)))
                .collect();
            if frontier.contains(from) {
                return Err(BadTuple::Cycle(from.to_owned()));
            }
            if frontier.is_empty() {
                return Ok(depth);
            }
        }
        Err(BadTuple::TooDeep(from.to_owned()))
    };
    let inward = nested(group, &|tuple, at| {
        let member = tuple.relation == MEMBER && tuple.resource == at;
        member.then(|| tuple.subject.strip_suffix("#member").map(str::to_owned))?
    })?;
    let outward = nested(group, &|tuple, at| {
        let member = tuple.relation == MEMBER && tuple.subject.strip_suffix("#member") == Some(at);
        member.then(|| tuple.resource.clone())
    })?;
    // One step more: a token or user in the innermost group.
    if inward + outward + 1 > GROUP_DEPTH_MAX {
        return Err(BadTuple::TooDeep(group.to_owned()));
    }
    Ok(())
}

/// One tuple, in the domain that it counts in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tuple {
    pub(crate) domain: DomainId,
    pub(crate) subject: String,
    pub(crate) relation: String,
    pub(crate) resource: String,
}

/// Where a resource stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    Domain(DomainId),
    Project(DomainId, ProjectId),
    Node(DomainId, ProjectId, NodeId),
    Group(DomainId, String),
}

/// All that one subject was granted, by itself or through its groups: each with the tuples that lead there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants(HashMap<(String, String), Vec<String>>);

/// Who asks, and what they were granted.
pub(crate) struct Requester {
    pub(crate) subject: String,
    pub(crate) grants: Grants,
}

/// Tuples by their subject.
pub(crate) struct Tuples<'t>(HashMap<&'t str, Vec<&'t Tuple>>);

impl<'t> Tuples<'t> {
    pub(crate) fn new(tuples: &'t [Tuple]) -> Self {
        let mut by_subject: HashMap<&str, Vec<&Tuple>> = HashMap::new();
        for tuple in tuples {
            by_subject.entry(&tuple.subject).or_default().push(tuple);
        }
        Self(by_subject)
    }

    /// Follows the subjects of one caller through their groups. A group counts in the domain that made it, and in no
    /// other; an issuer's group is made by no domain, and each may grant it what is its own.
    pub(crate) fn grants_of<'s>(&self, subjects: impl IntoIterator<Item = &'s str>) -> Grants {
        let mut grants = HashMap::new();
        let mut seen = HashSet::new();
        let mut frontier: Vec<(Option<DomainId>, String, Vec<String>)> = subjects
            .into_iter()
            .map(|subject| (None, subject.to_owned(), Vec::new()))
            .collect();
        for _ in 0..=GROUP_DEPTH_MAX {
            let mut outer = Vec::new();
            for (domain, held, path) in frontier {
                if !seen.insert((domain, held.clone())) {
                    continue;
                }
                let tuples = self.0.get(&*held).into_iter().flatten();
                for tuple in tuples.filter(|tuple| domain.is_none_or(|domain| domain == tuple.domain)) {
                    let step = notation(&tuple.resource, &tuple.relation, &tuple.subject);
                    let path: Vec<_> = path.iter().cloned().chain([step]).collect();
                    if tuple.relation == MEMBER {
                        let members = format!("{}#{MEMBER}", tuple.resource);
                        outer.push((Some(tuple.domain), members, path.clone()));
                    }
                    grants
                        .entry((tuple.relation.clone(), tuple.resource.clone()))
                        .or_insert(path);
                }
            }
            frontier = outer;
        }
        Grants(grants)
    }
}

impl Grants {
    pub(crate) fn of(subject: &str, tuples: &[Tuple]) -> Self {
        Tuples::new(tuples).grants_of([subject])
    }

    /// What a caller was granted by all the names that it has.
    pub(crate) fn of_all(subjects: &[String], tuples: &[Tuple]) -> Self {
        Tuples::new(tuples).grants_of(subjects.iter().map(String::as_str))
    }

    fn has(&self, relation: &str, resource: &str) -> bool {
        self.path(relation, resource).is_some()
    }

    fn path(&self, relation: &str, resource: &str) -> Option<&Vec<String>> {
        // Two owned texts make the key; a set of borrowed pairs would cost more to read than it saves.
        self.0.get(&(relation.to_owned(), resource.to_owned()))
    }

    /// Whether the subject may what is asked, and the tuples that decided: those that grant or, where there are any,
    /// those that take away.
    pub(crate) fn decide(&self, relation: &str, home: &Home) -> (bool, Vec<String>) {
        let (levels, allowed) = match home {
            Home::Group(_, name) => {
                let group = format!("group:{name}");
                let path = self.path(relation, &group).cloned();
                return (path.is_some(), path.unwrap_or_default());
            }
            Home::Domain(in_domain) => (vec![domain(*in_domain)], self.may_operate_domain(*in_domain)),
            Home::Project(in_domain, in_project) => (
                vec![project(*in_project), domain(*in_domain)],
                match relation {
                    "act" => self.may_act_in(*in_domain, *in_project),
                    _ => self.may_operate(*in_domain, *in_project),
                },
            ),
            Home::Node(in_domain, in_project, node) => (
                vec![resource(*node), project(*in_project), domain(*in_domain)],
                match relation {
                    "act" => self.in_project(*in_domain, *in_project).may_act_on(*node),
                    _ => self.may_operate(*in_domain, *in_project),
                },
            ),
        };
        let first = |relation: &str| {
            levels
                .iter()
                .find_map(|level| self.path(relation, level))
                .cloned()
        };
        let excluded = first("excluded");
        if relation == EXCLUDED {
            return (excluded.is_some(), excluded.unwrap_or_default());
        }
        let act = levels
            .first()
            .filter(|_| relation == "act")
            .and_then(|level| self.path("act", level))
            .cloned();
        let path = if allowed {
            act.or_else(|| first("operator"))
        } else {
            excluded
        };
        (allowed, path.unwrap_or_default())
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
        let tuples: Vec<_> = tuples
            .iter()
            .map(|(relation, resource)| tuple(1, "token:x", relation, resource))
            .collect();
        Grants::of("token:x", &tuples)
    }

    fn tuple(domain: u128, subject: &str, relation: &str, resource: &str) -> Tuple {
        Tuple {
            domain: id(domain),
            subject: subject.to_owned(),
            relation: relation.to_owned(),
            resource: resource.to_owned(),
        }
    }

    #[test]
    fn a_member_of_a_group_within_a_group_has_what_the_outer_was_granted() {
        let tuples = [
            tuple(1, "token:x", MEMBER, "group:inner"),
            tuple(1, "group:inner#member", MEMBER, "group:outer"),
            tuple(1, "group:outer#member", "operator", &project(id(2))),
        ];
        let grants = Grants::of("token:x", &tuples);
        assert!(grants.may_operate(id(1), id(2)));
        assert!(!Grants::of("token:y", &tuples).may_operate(id(1), id(2)));
        let (allowed, path) = grants.decide("act", &Home::Node(id(1), id(2), id(3)));
        assert!(allowed);
        assert_eq!(path.len(), 3, "{path:?}");
        assert_eq!(path[0], "group:inner#member@token:x");
        assert!(path[2].ends_with("#operator@group:outer#member"));
    }

    #[test]
    fn a_group_of_one_domain_is_none_in_another() {
        let tuples = [
            tuple(9, "token:x", MEMBER, "group:ops"),
            tuple(1, "group:ops#member", "operator", &domain(id(1))),
        ];
        assert!(!Grants::of("token:x", &tuples).may_operate_domain(id(1)));
    }

    #[test]
    fn an_issuers_group_is_its_own_in_every_domain_and_mixes_with_none() {
        let tuples = [
            tuple(1, "group:oidc/ops#member", "operator", &domain(id(1))),
            tuple(1, "group:oidc/ops#member", MEMBER, "group:web"),
            tuple(1, "group:web#member", "operator", &project(id(2))),
            tuple(9, "group:ops#member", "operator", &domain(id(9))),
            tuple(9, "group:web#member", "operator", &project(id(8))),
            tuple(9, "group:oidc/out#member", EXCLUDED, &domain(id(9))),
            tuple(9, "user:eve", "operator", &domain(id(9))),
        ];
        let of = |subjects: &[&str]| {
            let subjects: Vec<_> = subjects.iter().map(|&s| s.to_owned()).collect();
            Grants::of_all(&subjects, &tuples)
        };
        let ops = issued_group("ops").unwrap();
        let eve = of(&["user:eve", &ops]);
        assert!(eve.may_operate_domain(id(1)) && eve.may_operate(id(1), id(2)));
        assert!(eve.may_operate_domain(id(9)));
        assert!(
            !eve.may_operate(id(7), id(8)),
            "a group of one domain is none in another"
        );
        assert!(!of(&["user:bob", &ops]).may_operate_domain(id(9)));
        assert!(!of(&["user:eve", "group:oidc/out#member"]).may_operate_domain(id(9)));
        assert!(!of(&["user:bob"]).may_operate_domain(id(1)));
    }

    #[test]
    fn a_circle_of_groups_ends_and_depth_is_bounded() {
        let circle = [
            tuple(1, "token:x", MEMBER, "group:a"),
            tuple(1, "group:a#member", MEMBER, "group:b"),
            tuple(1, "group:b#member", MEMBER, "group:a"),
        ];
        assert!(!Grants::of("token:x", &circle).may_operate_domain(id(1)));
        assert!(matches!(
            check_nesting(&circle, "group:a"),
            Err(BadTuple::Cycle(_))
        ));
        let own = [tuple(1, "group:a#member", MEMBER, "group:a")];
        assert!(matches!(check_nesting(&own, "group:a"), Err(BadTuple::Cycle(_))));

        let chain = |n: usize| -> Vec<Tuple> {
            let nested = (1..n).map(|i| {
                tuple(
                    1,
                    &format!("group:g{i}#member"),
                    MEMBER,
                    &format!("group:g{}", i + 1),
                )
            });
            let top = tuple(1, &format!("group:g{n}#member"), "operator", &domain(id(1)));
            [tuple(1, "token:x", MEMBER, "group:g1")]
                .into_iter()
                .chain(nested)
                .chain([top])
                .collect()
        };
        for place in ["group:g1", "group:g4"] {
            assert_eq!(check_nesting(&chain(GROUP_DEPTH_MAX), place), Ok(()));
            assert!(matches!(
                check_nesting(&chain(GROUP_DEPTH_MAX + 1), place),
                Err(BadTuple::TooDeep(_))
            ));
        }
        assert!(Grants::of("token:x", &chain(GROUP_DEPTH_MAX)).may_operate_domain(id(1)));
        assert!(!Grants::of("token:x", &chain(GROUP_DEPTH_MAX + 1)).may_operate_domain(id(1)));
    }

    #[test]
    fn what_takes_away_is_the_reason_of_a_denial() {
        let grants = grants(&[("operator", domain(id(1))), ("excluded", resource(id(3)))]);
        let (allowed, path) = grants.decide("act", &Home::Node(id(1), id(2), id(3)));
        assert!(!allowed);
        assert!(path[0].contains("#excluded@"), "{path:?}");
        let (allowed, path) = grants.decide("act", &Home::Node(id(1), id(2), id(4)));
        assert!(allowed && path[0].contains("#operator@"), "{path:?}");
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
