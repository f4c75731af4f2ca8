//! Who a dispatch would go to: the nodes that were named, less those that a gate leaves out.

use std::{collections::HashSet, num::NonZeroU32};

use muster_shared::{
    ids::NodeId,
    wire::{ActionKind, RolloutPlan, TIMEOUT_SECONDS_DEFAULT, TIMEOUT_SECONDS_MAX},
};

use super::{Ask, DispatchError};
use crate::{
    authz::Requester,
    control::Control,
    gates::{self, Candidate, Criteria, NoSurvivor, Sifted},
    parameters::{self, Checked},
    store::Project,
    target::Target,
};

/// The nodes that a request names, asked every gate.
pub(super) struct Cohort {
    pub(super) kind: ActionKind,
    pub(super) sifted: Sifted,
    pub(super) checked: Checked,
    pub(super) timeout_seconds: u32,
}

impl Ask {
    /// Whether the dispatch may go to those that are left, and why not; if so, in which steps. Asked of the very list
    /// that is then written, so that no change of a label can come between.
    pub(super) fn check(
        &self,
        Cohort { sifted, checked, .. }: &Cohort,
    ) -> Result<Option<RolloutPlan>, DispatchError> {
        let found = sifted.survivors.len();
        let differs = |number: NonZeroU32| usize::try_from(number.get()) != Ok(found);
        if found == 0 {
            let why = match self.target {
                Target::Node(_) => sifted.refusal_of_node(),
                Target::Selector { .. } | Target::All => sifted.refusal_of_selector(),
            };
            if let (NoSurvivor::InvalidParameters, Some(mismatch)) = (why, &checked.mismatch) {
                return Err(DispatchError::ParametersRefused {
                    action: self.action.clone(),
                    why: mismatch.clone(),
                    dropped: sifted.dropped(),
                });
            }
            return Err(DispatchError::NoSurvivor {
                why,
                action: self.action.clone(),
                dropped: sifted.dropped(),
            });
        }
        if let Some(expected) = self.expect.filter(|expected| differs(*expected)) {
            return Err(DispatchError::CohortMismatch {
                found,
                expected,
                dropped: sifted.dropped(),
            });
        }
        match self.max_targets {
            Some(max) if usize::try_from(max.get()).is_ok_and(|max| found > max) => {
                Err(DispatchError::TooManyTargets {
                    found,
                    max,
                    dropped: sifted.dropped(),
                })
            }
            Some(_) | None => {
                let cohort = u32::try_from(found).unwrap_or(u32::MAX);
                let plan = self.rollout.as_ref().map(|steps| steps.plan(cohort));
                Ok(plan.transpose()?)
            }
        }
    }
}

pub(super) async fn cohort(
    control: &Control,
    project: &Project,
    requester: &Requester,
    ask: &Ask,
) -> Result<Cohort, DispatchError> {
    let mut candidates = control
        .store
        .candidates(
            project.id,
            ask.target.selector(),
            ask.target.node(),
            &ask.action,
            ask.order(),
        )
        .await?;
    let grants = requester.grants.in_project(project.domain, project.id);
    for candidate in &mut candidates {
        candidate.may_act = grants.may_act_on(candidate.node);
    }
    let checked = parameters::check(&mut candidates, ask.parameters.as_ref());
    let kind = ask.kind.unwrap_or_else(|| declared_kind(&candidates));
    let criteria = Criteria {
        domain: project.domain,
        project: project.id,
        kind,
    };
    let sifted = gates::sift(&candidates, &criteria);
    Ok(Cohort {
        kind,
        timeout_seconds: ask
            .timeout_seconds
            .or_else(|| meant_timeout(&candidates, &sifted))
            .unwrap_or(TIMEOUT_SECONDS_DEFAULT),
        sifted,
        checked,
    })
}

/// The longest time that a manifest of those that are left gives the action.
fn meant_timeout(candidates: &[Candidate], sifted: &Sifted) -> Option<u32> {
    let left: HashSet<NodeId> = sifted.survivors.iter().map(|cleared| cleared.node()).collect();
    let meant = candidates
        .iter()
        .filter(|candidate| left.contains(&candidate.node))
        .filter_map(|candidate| candidate.timeout_default_seconds)
        .max();
    meant.map(|seconds| seconds.clamp(1, TIMEOUT_SECONDS_MAX))
}

/// The kind of an action nobody gave a kind: a name compiled into any of the agents is a builtin.
fn declared_kind(candidates: &[Candidate]) -> ActionKind {
    let builtin = candidates
        .iter()
        .any(|c| c.declared.is_some_and(|d| d.kind == ActionKind::Builtin));
    if builtin {
        ActionKind::Builtin
    } else {
        ActionKind::Hook
    }
}
