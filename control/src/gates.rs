//! The gates that every node of a cohort passes before it is addressed, and what is told when none does.
//!
//! Pure: facts in, survivors and drops out. The list is the policy, in order; the first gate that says no decides.

use std::sync::Arc;

use muster_shared::{
    ids::{Digest, DomainId, NodeId, ProjectId},
    wire::{ActionKind, Dropped, Verdict},
};

/// How many node ids a drop shows.
pub(crate) const SAMPLE_MAX: usize = 10;

/// What is known of one node that a dispatch might address.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) domain: DomainId,
    pub(crate) project: ProjectId,
    pub(crate) decommissioned: bool,
    /// Whether the requester has `act` on this node.
    pub(crate) may_act: bool,
    /// What the node declares under the action's name.
    pub(crate) declared: Option<Declared>,
    pub(crate) baseline: Option<Digest>,
    /// What the node declared of the hook, as it is stored.
    pub(crate) manifest: Option<Arc<str>>,
    /// Whether the schema in it takes the parameters of the dispatch.
    pub(crate) takes_parameters: bool,
    pub(crate) timeout_default_seconds: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Declared {
    pub(crate) kind: ActionKind,
    /// The digest the node saw, of a hook.
    pub(crate) observed: Option<Digest>,
}

/// What the dispatch asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Criteria {
    pub(crate) domain: DomainId,
    pub(crate) project: ProjectId,
    pub(crate) kind: ActionKind,
}

/// The gate at which a node was dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FailedGate {
    ForeignDomain,
    ForeignProject,
    Decommissioned,
    InsufficientRelation,
    ActionNotDeclared,
    HookIntegrityViolation,
    InvalidParameters,
}

type Gate = fn(&Candidate, &Criteria) -> bool;

const GATES: [(FailedGate, Gate); 7] = [
    (FailedGate::ForeignDomain, |node, criteria| {
        node.domain == criteria.domain
    }),
    (FailedGate::ForeignProject, |node, criteria| {
        node.project == criteria.project
    }),
    (FailedGate::Decommissioned, |node, _| !node.decommissioned),
    (FailedGate::InsufficientRelation, |node, _| node.may_act),
    (FailedGate::ActionNotDeclared, |node, criteria| {
        node.declared.is_some_and(|d| d.kind == criteria.kind)
    }),
    (FailedGate::HookIntegrityViolation, |node, _| {
        hook_is_verified(node)
    }),
    (FailedGate::InvalidParameters, |node, _| node.takes_parameters),
];

/// A builtin has no digest and skips the gate. A hook without a baseline fails it: unknown is not trusted.
fn hook_is_verified(node: &Candidate) -> bool {
    match node.declared {
        Some(Declared {
            kind: ActionKind::Builtin,
            ..
        }) => true,
        Some(Declared {
            kind: ActionKind::Hook,
            observed: Some(observed),
        }) => Verdict::of(node.baseline, observed) == Verdict::Verified,
        Some(Declared {
            kind: ActionKind::Hook,
            observed: None,
        })
        | None => false,
    }
}

impl FailedGate {
    /// The word for it on the wire; `None` for what a requester must not learn of, or has no use for.
    const fn reason(self) -> Option<&'static str> {
        match self {
            Self::ForeignDomain | Self::ForeignProject | Self::Decommissioned => None,
            Self::InsufficientRelation => Some("insufficient_relation"),
            Self::ActionNotDeclared => Some("action_not_declared"),
            Self::HookIntegrityViolation => Some("hook_integrity_violation"),
            Self::InvalidParameters => Some("invalid_parameters"),
        }
    }
}

/// A node that passed every gate. Only [`sift`] makes one, so nothing is addressed that was not asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cleared(NodeId);

impl Cleared {
    pub(crate) const fn node(self) -> NodeId {
        self.0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sifted {
    pub(crate) survivors: Vec<Cleared>,
    drops: Vec<(FailedGate, NodeId)>,
}

/// Asks every gate about every candidate.
pub(crate) fn sift(candidates: &[Candidate], criteria: &Criteria) -> Sifted {
    let mut sifted = Sifted::default();
    for candidate in candidates {
        match GATES.iter().find(|(_, passes)| !passes(candidate, criteria)) {
            Some((drop, _)) => sifted.drops.push((*drop, candidate.node)),
            None => sifted.survivors.push(Cleared(candidate.node)),
        }
    }
    sifted
}

/// Why a dispatch that addresses nobody is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSurvivor {
    HookIntegrityViolation,
    InvalidParameters,
    ActionNotDeclared,
    PermissionDenied,
    EmptyCohort,
}

impl Sifted {
    /// The refusal of a selector whose cohort nobody survived: an integrity failure outranks a missing action, which
    /// outranks an empty cohort, because each has another remedy. Parameters that are refused come before an action that
    /// is missing: where it is there is where it was meant.
    pub(crate) fn refusal_of_selector(&self) -> NoSurvivor {
        let any = |wanted| self.drops.iter().any(|(drop, _)| *drop == wanted);
        if any(FailedGate::HookIntegrityViolation) {
            NoSurvivor::HookIntegrityViolation
        } else if any(FailedGate::InvalidParameters) {
            NoSurvivor::InvalidParameters
        } else if any(FailedGate::ActionNotDeclared) {
            NoSurvivor::ActionNotDeclared
        } else {
            NoSurvivor::EmptyCohort
        }
    }

    /// The refusal of a single named node: the same gates, each with its own hard answer. A node of another tenant
    /// answers as one that does not exist.
    pub(crate) fn refusal_of_node(&self) -> NoSurvivor {
        match self.drops.first() {
            Some((FailedGate::InsufficientRelation, _)) => NoSurvivor::PermissionDenied,
            Some((FailedGate::ActionNotDeclared, _)) => NoSurvivor::ActionNotDeclared,
            Some((FailedGate::HookIntegrityViolation, _)) => NoSurvivor::HookIntegrityViolation,
            Some((FailedGate::InvalidParameters, _)) => NoSurvivor::InvalidParameters,
            Some((
                FailedGate::ForeignDomain | FailedGate::ForeignProject | FailedGate::Decommissioned,
                _,
            ))
            | None => NoSurvivor::EmptyCohort,
        }
    }

    /// The nodes that were left out for permission or integrity, and which of the two: these are denials.
    pub(crate) fn denied(&self) -> impl Iterator<Item = (NodeId, &'static str)> {
        self.drops.iter().filter_map(|(drop, node)| match drop {
            FailedGate::InsufficientRelation | FailedGate::HookIntegrityViolation => {
                Some((*node, drop.reason()?))
            }
            FailedGate::ForeignDomain
            | FailedGate::ForeignProject
            | FailedGate::Decommissioned
            | FailedGate::ActionNotDeclared
            | FailedGate::InvalidParameters => None,
        })
    }

    /// What the requester is told of the drops.
    pub(crate) fn dropped(&self) -> Vec<Dropped> {
        let mut told: Vec<Dropped> = Vec::new();
        for (drop, node) in &self.drops {
            let Some(reason) = drop.reason() else { continue };
            let index = told.iter().position(|d| d.reason == reason).unwrap_or_else(|| {
                told.push(Dropped {
                    reason: reason.to_owned(),
                    count: 0,
                    sample: Vec::new(),
                });
                told.len() - 1
            });
            let entry = &mut told[index];
            entry.count += 1;
            // Whom the requester may not act on, they are not told the name of.
            if entry.sample.len() < SAMPLE_MAX && *drop != FailedGate::InsufficientRelation {
                entry.sample.push(*node);
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id<T: From<uuid::Uuid>>(n: u128) -> T {
        uuid::Uuid::from_u128(n).into()
    }

    fn criteria(kind: ActionKind) -> Criteria {
        Criteria {
            domain: id(1),
            project: id(2),
            kind,
        }
    }

    fn digest(n: u8) -> Digest {
        Digest::from_bytes([n; 32])
    }

    /// A node that passes every gate for a hook.
    fn sound(n: u128) -> Candidate {
        Candidate {
            node: id(n),
            domain: id(1),
            project: id(2),
            decommissioned: false,
            may_act: true,
            declared: Some(Declared {
                kind: ActionKind::Hook,
                observed: Some(digest(1)),
            }),
            baseline: Some(digest(1)),
            manifest: None,
            takes_parameters: true,
            timeout_default_seconds: None,
        }
    }

    fn gone_wrong(n: u128, drop: FailedGate) -> Candidate {
        let mut node = sound(n);
        match drop {
            FailedGate::ForeignDomain => node.domain = id(9),
            FailedGate::ForeignProject => node.project = id(9),
            FailedGate::Decommissioned => node.decommissioned = true,
            FailedGate::InsufficientRelation => node.may_act = false,
            FailedGate::ActionNotDeclared => node.declared = None,
            FailedGate::HookIntegrityViolation => node.baseline = Some(digest(2)),
            FailedGate::InvalidParameters => node.takes_parameters = false,
        }
        node
    }

    const DROPS: [FailedGate; 7] = [
        FailedGate::ForeignDomain,
        FailedGate::ForeignProject,
        FailedGate::Decommissioned,
        FailedGate::InsufficientRelation,
        FailedGate::ActionNotDeclared,
        FailedGate::HookIntegrityViolation,
        FailedGate::InvalidParameters,
    ];

    #[test]
    fn a_sound_node_survives_and_each_gate_drops_its_own() {
        let sifted = sift(&[sound(1)], &criteria(ActionKind::Hook));
        assert_eq!(sifted.survivors[0].node(), id(1));
        for drop in DROPS {
            let sifted = sift(&[gone_wrong(1, drop)], &criteria(ActionKind::Hook));
            assert_eq!(sifted.drops, [(drop, id(1))]);
            assert!(sifted.survivors.is_empty());
        }
    }

    #[test]
    fn the_first_gate_decides() {
        for (earlier, first) in DROPS.iter().enumerate() {
            for second in &DROPS[earlier + 1..] {
                let mut node = gone_wrong(1, *first);
                let other = gone_wrong(1, *second);
                match second {
                    FailedGate::ForeignDomain => {}
                    FailedGate::ForeignProject => node.project = other.project,
                    FailedGate::Decommissioned => node.decommissioned = true,
                    FailedGate::InsufficientRelation => node.may_act = false,
                    FailedGate::ActionNotDeclared => node.declared = None,
                    FailedGate::HookIntegrityViolation => node.baseline = other.baseline,
                    FailedGate::InvalidParameters => node.takes_parameters = false,
                }
                assert_eq!(sift(&[node], &criteria(ActionKind::Hook)).drops[0].0, *first);
            }
        }
    }

    #[test]
    fn precedence_of_the_selectors_refusal() {
        let refusal = |drops: &[FailedGate]| {
            let nodes: Vec<_> = drops
                .iter()
                .enumerate()
                .map(|(n, d)| gone_wrong(n as u128 + 1, *d))
                .collect();
            sift(&nodes, &criteria(ActionKind::Hook)).refusal_of_selector()
        };
        use FailedGate::*;
        assert_eq!(refusal(&[]), NoSurvivor::EmptyCohort);
        assert_eq!(
            refusal(&[ForeignDomain, InsufficientRelation]),
            NoSurvivor::EmptyCohort
        );
        assert_eq!(
            refusal(&[InsufficientRelation, ActionNotDeclared]),
            NoSurvivor::ActionNotDeclared
        );
        assert_eq!(
            refusal(&[ActionNotDeclared, HookIntegrityViolation]),
            NoSurvivor::HookIntegrityViolation
        );
        assert_eq!(
            refusal(&[InvalidParameters, HookIntegrityViolation]),
            NoSurvivor::HookIntegrityViolation
        );
        assert_eq!(
            refusal(&[InvalidParameters, ActionNotDeclared]),
            NoSurvivor::InvalidParameters
        );
    }

    #[test]
    fn a_named_node_of_another_tenant_answers_as_none() {
        for drop in [FailedGate::ForeignDomain, FailedGate::ForeignProject] {
            let sifted = sift(&[gone_wrong(1, drop)], &criteria(ActionKind::Hook));
            assert_eq!(sifted.refusal_of_node(), NoSurvivor::EmptyCohort);
            assert!(sifted.dropped().is_empty(), "not even counted");
        }
        let denied = sift(
            &[gone_wrong(1, FailedGate::InsufficientRelation)],
            &criteria(ActionKind::Hook),
        );
        assert_eq!(denied.refusal_of_node(), NoSurvivor::PermissionDenied);
    }

    #[test]
    fn a_hook_without_a_baseline_is_not_trusted_and_a_builtin_needs_none() {
        let mut node = sound(1);
        node.baseline = None;
        assert_eq!(
            sift(&[node.clone()], &criteria(ActionKind::Hook)).drops[0].0,
            FailedGate::HookIntegrityViolation
        );
        node.declared = Some(Declared {
            kind: ActionKind::Builtin,
            observed: None,
        });
        assert_eq!(
            sift(&[node.clone()], &criteria(ActionKind::Builtin))
                .survivors
                .len(),
            1
        );
        assert_eq!(
            sift(&[node], &criteria(ActionKind::Hook)).drops[0].0,
            FailedGate::ActionNotDeclared
        );
    }

    #[test]
    fn drops_are_counted_and_sampled() {
        let nodes: Vec<_> = (1..=25)
            .map(|n| gone_wrong(n, FailedGate::ActionNotDeclared))
            .collect();
        let dropped = sift(&nodes, &criteria(ActionKind::Hook)).dropped();
        assert_eq!(
            (dropped.len(), dropped[0].count, dropped[0].sample.len()),
            (1, 25, SAMPLE_MAX)
        );
    }
}
