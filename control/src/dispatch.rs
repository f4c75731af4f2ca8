//! Admits a dispatch: resolve the cohort, ask the gates, count the capacity, persist in one commit.

use std::{collections::HashSet, num::NonZeroU32};

use muster_shared::{
    ids::{ActionName, ExecutionId, NodeId},
    selector::{BadSelector, Selector},
    time::Timestamp,
    wire::{
        ActionKind, DELIVER_WITHIN_SECONDS_MAX, DispatchPreview, DispatchRequest, Dropped, Execution,
        PARAMETERS_BYTES_MAX, PREVIEW_TARGETS_MAX, Parameters, RolloutPlan, TIMEOUT_SECONDS_DEFAULT,
        TIMEOUT_SECONDS_MAX,
    },
};

use crate::{
    audit::{self, Entry, Outcome},
    authz::{self, Grants},
    control::Control,
    gates::{self, Asked, Candidate, NoSurvivor, Sifted},
    idempotency::{self, ClaimOutcome, Once},
    keys::{chance, token_hash},
    parameters::{self, Checked},
    rolling,
    rollout::{BadRollout, Steps},
    store::{Detail, NewExecution, Order, Project, StoreError, Tx},
};

/// Who asks, and what they were granted.
pub(crate) struct Requester {
    pub(crate) subject: String,
    pub(crate) grants: Grants,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DispatchError {
    #[error("{0}")]
    BadTarget(#[from] BadTarget),
    #[error("{0}")]
    BadAction(String),
    #[error(
        "timeout_seconds is {0}; it must be from 1 to {TIMEOUT_SECONDS_MAX} (24 h), and is {TIMEOUT_SECONDS_DEFAULT} when left out"
    )]
    BadTimeout(i64),
    #[error(
        "deliver_within_seconds is {0}; it must be from 1 to {DELIVER_WITHIN_SECONDS_MAX} (24 h); left out, delivery and run share timeout_seconds"
    )]
    BadDeliverWithin(i64),
    #[error("{0}; nothing was dispatched")]
    BadRollout(#[from] BadRollout),
    #[error("the parameters have {0} bytes of JSON; the limit is {PARAMETERS_BYTES_MAX}")]
    ParametersTooLarge(usize),
    #[error("action {action} does not take these parameters: {why}")]
    ParametersRefused {
        action: ActionName,
        why: String,
        dropped: Vec<Dropped>,
    },
    #[error("{}", no_survivor_text(*.why, .action))]
    NoSurvivor {
        why: NoSurvivor,
        action: ActionName,
        dropped: Vec<Dropped>,
    },
    #[error("{found} nodes are left after the gates, and {expected} were expected; nothing was dispatched")]
    CohortMismatch {
        found: usize,
        expected: NonZeroU32,
        dropped: Vec<Dropped>,
    },
    #[error("{found} nodes are left after the gates, and max_targets is {max}; nothing was dispatched")]
    TooManyTargets {
        found: usize,
        max: NonZeroU32,
        dropped: Vec<Dropped>,
    },
    #[error(
        "the domain has {live} live executions and limits.live_executions_max is {max}; wait for some to end"
    )]
    CapacityExceeded { live: i64, max: u32 },
    #[error(
        "the idempotency key was used within the last 24 hours for another request; take a new key for a new request"
    )]
    KeyReused,
    #[error("the dispatch could not be stored")]
    Store(#[from] StoreError),
    #[error("the system gave no random bytes")]
    Chance(#[from] std::io::Error),
}

fn no_survivor_text(why: NoSurvivor, action: &ActionName) -> String {
    match why {
        NoSurvivor::HookIntegrityViolation => format!(
            "hook {action} differs from its baseline on every node that could have run it; approve the new digest, or restore the file"
        ),
        NoSurvivor::ActionNotDeclared => {
            format!("no node of the cohort declares action {action}; install it there, or correct its name")
        }
        NoSurvivor::InvalidParameters => format!("action {action} does not take these parameters"),
        NoSurvivor::PermissionDenied => "you may not act on this node".to_owned(),
        NoSurvivor::EmptyCohort => {
            "no node that you may act on matches; widen the selector, or ask for the relation".to_owned()
        }
    }
}

/// The nodes that a request names: exactly one of three ways.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Selector { text: String, selector: Selector },
    Node(NodeId),
    All,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BadTarget {
    #[error("name the target in exactly one way: selector, node_id, or all: true")]
    NotOne,
    #[error("node_id {0:?} is not a UUID")]
    NodeId(String),
    #[error("the selector is malformed: {0}")]
    Selector(#[from] BadSelector),
}

impl Target {
    pub(crate) fn parse(selector: Option<&str>, node: Option<&str>, all: bool) -> Result<Self, BadTarget> {
        match (selector, node, all) {
            (Some(text), None, false) => Ok(Self::Selector {
                text: text.to_owned(),
                selector: Selector::parse(text)?,
            }),
            (None, Some(node), false) => node
                .parse()
                .map(Self::Node)
                .map_err(|_| BadTarget::NodeId(node.to_owned())),
            (None, None, true) => Ok(Self::All),
            _ => Err(BadTarget::NotOne),
        }
    }

    pub(crate) const fn selector(&self) -> Option<&Selector> {
        match self {
            Self::Selector { selector, .. } => Some(selector),
            Self::Node(_) | Self::All => None,
        }
    }

    pub(crate) const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Node(node) => Some(*node),
            Self::Selector { .. } | Self::All => None,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Selector { text, .. } => Some(text),
            Self::Node(_) | Self::All => None,
        }
    }
}

/// A request that can be answered without looking anything up.
struct Ask {
    action: ActionName,
    kind: Option<ActionKind>,
    target: Target,
    parameters: Option<Parameters>,
    timeout_seconds: Option<u32>,
    deliver_within_seconds: Option<u32>,
    rollout: Option<Steps>,
    expect: Option<NonZeroU32>,
    max_targets: Option<NonZeroU32>,
}

impl Ask {
    fn parse(request: DispatchRequest) -> Result<Self, DispatchError> {
        let target = Target::parse(
            request.selector.as_deref(),
            request.node_id.as_deref(),
            request.all,
        )?;
        let action = request
            .action
            .parse()
            .map_err(|err| DispatchError::BadAction(format!("{err}")))?;
        let timeout_seconds = match request.timeout_seconds {
            None => None,
            Some(asked) => Some(
                u32::try_from(asked)
                    .ok()
                    .filter(|s| (1..=TIMEOUT_SECONDS_MAX).contains(s))
                    .ok_or(DispatchError::BadTimeout(asked))?,
            ),
        };
        let deliver_within_seconds = request
            .deliver_within_seconds
            .map(|asked| {
                u32::try_from(asked)
                    .ok()
                    .filter(|s| (1..=DELIVER_WITHIN_SECONDS_MAX).contains(s))
                    .ok_or(DispatchError::BadDeliverWithin(asked))
            })
            .transpose()?;
        let rollout = request.rollout.as_ref().map(Steps::parse).transpose()?;
        if let Some(parameters) = &request.parameters {
            let bytes = serde_json::to_vec(parameters).map_or(usize::MAX, |json| json.len());
            if bytes > PARAMETERS_BYTES_MAX {
                return Err(DispatchError::ParametersTooLarge(bytes));
            }
        }
        Ok(Self {
            action,
            kind: request.kind,
            target,
            parameters: request.parameters,
            timeout_seconds,
            deliver_within_seconds,
            rollout,
            expect: request.expect,
            max_targets: request.max_targets,
        })
    }

    /// Whether the dispatch may go to those that are left, and why not; if so, in which steps. Asked of the very list
    /// that is then written, so that no change of a label can come between.
    fn check(&self, Cohort { sifted, checked, .. }: &Cohort) -> Result<Option<RolloutPlan>, DispatchError> {
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

    const fn order(&self) -> Order {
        match self.rollout {
            Some(_) => Order::Name,
            None => Order::Id,
        }
    }
}

/// What a dispatch would be admitted as, or refused with, at this moment. Writes nothing.
pub(crate) async fn preview(
    control: &Control,
    project: &Project,
    requester: &Requester,
    request: DispatchRequest,
) -> Result<DispatchPreview, DispatchError> {
    let ask = Ask::parse(request)?;
    let cohort = cohort(control, project, requester, &ask).await?;
    let rollout = ask.check(&cohort)?;
    let sifted = &cohort.sifted;
    check_capacity(
        control,
        control.store.count_live_executions(project.domain).await?,
    )?;
    let shown: Vec<NodeId> = sifted
        .survivors
        .iter()
        .take(PREVIEW_TARGETS_MAX)
        .map(|cleared| cleared.node())
        .collect();
    Ok(DispatchPreview {
        project_id: project.id,
        domain_id: project.domain,
        kind: cohort.kind,
        timeout_seconds: cohort.timeout_seconds,
        deliver_within_seconds: ask.deliver_within_seconds,
        rollout,
        selector: ask.target.text().map(str::to_owned),
        target_count: u64::try_from(sifted.survivors.len()).unwrap_or(u64::MAX),
        targets: control.store.preview_targets(&shown).await?,
        dropped: sifted.dropped(),
        action: ask.action,
    })
}

/// A dispatch that stands.
pub(crate) struct Admitted {
    pub(crate) execution: Execution,
    /// Whether it was admitted before, under the same idempotency key.
    pub(crate) again: bool,
}

/// Admits a dispatch or refuses it; a refusal has changed nothing, and leaves its idempotency key free.
pub(crate) async fn dispatch(
    control: &Control,
    project: &Project,
    requester: &Requester,
    request: DispatchRequest,
    once: Option<&Once>,
    now: Timestamp,
) -> Result<Admitted, DispatchError> {
    let ask = Ask::parse(request)?;
    let id = ExecutionId::mint(now, chance()?);
    // With a key, the turn at writing is taken before the gates: a request that is sent again must not be refused for
    // what has changed since, while the first is still under way.
    let claimed = match once {
        None => None,
        Some(once) => match idempotency::claim(control, project, requester, once, id, now).await? {
            ClaimOutcome::First(tx) => Some(tx),
            ClaimOutcome::Reused => return Err(DispatchError::KeyReused),
            ClaimOutcome::Again(before) => {
                let execution = answer(control, project, before.execution, before.dropped).await?;
                return Ok(Admitted {
                    execution,
                    again: true,
                });
            }
        },
    };
    let cohort = cohort(control, project, requester, &ask).await?;
    let sifted = &cohort.sifted;
    let plan = match ask.check(&cohort) {
        Ok(plan) => plan,
        Err(refusal) => {
            // The turn at writing is given back first: the rows of the denials take one of their own.
            drop(claimed);
            audit::record(control, project.domain, &denials(requester, sifted), now).await?;
            return Err(refusal);
        }
    };
    let dropped = sifted.dropped();
    let mut tx = match claimed {
        Some(mut tx) => {
            tx.note_dropped(id, &dropped).await?;
            tx
        }
        None => control.store.begin().await?,
    };
    write(&mut tx, control, project, requester, (id, &ask, &cohort), now).await?;
    if let Some(plan) = &plan {
        // The first step is part of the dispatch: what has to be released at once waits for nobody.
        tx.insert_rollout(id, plan, now.plus(control.limits.rollout_max))
            .await?;
        let _ = rolling::step(&mut tx, id, Timestamp::now()).await?;
    }
    tx.commit().await?;
    control.outbox_wake.notify_one();
    if plan.is_some() {
        control.rollouts.began();
    }
    control.metrics.dispatched(project.domain);
    log::info!(execution_id:% = id, action:% = ask.action, targets = sifted.survivors.len(); "Dispatched {} to {} nodes", ask.action, sifted.survivors.len());

    let execution = answer(control, project, id, dropped).await?;
    Ok(Admitted {
        execution,
        again: false,
    })
}

/// The execution as it is now, and what the gates dropped when it was admitted.
async fn answer(
    control: &Control,
    project: &Project,
    id: ExecutionId,
    dropped: Vec<Dropped>,
) -> Result<Execution, DispatchError> {
    let execution = control
        .store
        .execution(project.id, id, Detail::WithoutOutput)
        .await?
        .ok_or(StoreError::Sql(sqlx::Error::RowNotFound))?;
    Ok(Execution { dropped, ..execution })
}

/// The nodes that a request names, asked every gate.
struct Cohort {
    kind: ActionKind,
    sifted: Sifted,
    checked: Checked,
    timeout_seconds: u32,
}

async fn cohort(
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
    let asked = Asked {
        domain: project.domain,
        project: project.id,
        kind,
    };
    let sifted = gates::sift(&candidates, &asked);
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

/// Header, targets and, without a rollout, outbox rows in one commit. The count of live executions is taken under the same write lock, so
/// that two dispatches at once cannot both be the last.
async fn write(
    tx: &mut Tx,
    control: &Control,
    project: &Project,
    requester: &Requester,
    (id, ask, cohort): (ExecutionId, &Ask, &Cohort),
    now: Timestamp,
) -> Result<(), DispatchError> {
    let (sifted, timeout_seconds) = (&cohort.sifted, cohort.timeout_seconds);
    // What must not be shown is not even stored in the clear.
    let (shown, hidden) = match &ask.parameters {
        Some(parameters) => {
            let (shown, hidden) = parameters::split(parameters, &cohort.checked.secret);
            (Some(shown), hidden)
        }
        None => (None, Parameters::new()),
    };
    let sealed = if hidden.is_empty() {
        None
    } else {
        let clear = serde_json::to_vec(&hidden).map_err(std::io::Error::other)?;
        Some(control.key.seal(id, &clear)?)
    };
    let targets: Vec<_> = sifted
        .survivors
        .iter()
        .map(|cleared| {
            (
                cleared.node(),
                token_hash(&control.key.callback_token(id, cleared.node())),
            )
        })
        .collect();
    check_capacity(control, tx.count_live_executions(project.domain).await?)?;
    tx.insert_execution(&NewExecution {
        id,
        domain: project.domain,
        project: project.id,
        action: &ask.action,
        kind: cohort.kind,
        parameters: shown.as_ref(),
        sealed_parameters: sealed.as_deref(),
        selector: ask.target.text(),
        timeout_seconds,
        deliver_within_seconds: ask.deliver_within_seconds,
        requested_by: &requester.subject,
        created_at: now,
        targets: &targets,
        held: ask.rollout.is_some(),
    })
    .await?;
    let mut entries = denials(requester, sifted);
    let granted = Entry::granted(
        &requester.subject,
        "actions.dispatch",
        audit::execution_resource(id),
    );
    entries.push(granted.with(format!("{} on {} nodes", ask.action, targets.len())));
    tx.append_audit(project.domain, &entries, now).await?;
    Ok(())
}

fn check_capacity(control: &Control, live: i64) -> Result<(), DispatchError> {
    let max = control.limits.live_executions_max;
    if live >= i64::from(max) {
        return Err(DispatchError::CapacityExceeded { live, max });
    }
    Ok(())
}

/// One row for each node that a gate of permission or integrity left out.
fn denials<'a>(requester: &'a Requester, sifted: &Sifted) -> Vec<Entry<'a>> {
    sifted
        .denied()
        .map(|(node, relation)| {
            let subject = &requester.subject;
            Entry::new(subject, relation, authz::resource(node), Outcome::Denied)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> DispatchRequest {
        DispatchRequest {
            action: "ping".into(),
            selector: Some("role=web".into()),
            ..DispatchRequest::default()
        }
    }

    #[test]
    fn a_target_is_named_in_exactly_one_way() {
        let node = Some("0198c5f0-0000-7000-8000-000000000000");
        for (selector, node, all, sound) in [
            (Some("a=b"), None, false, true),
            (None, node, false, true),
            (None, None, true, true),
            (None, None, false, false),
            (Some("a=b"), node, false, false),
            (Some("a=b"), None, true, false),
            (None, node, true, false),
        ] {
            assert_eq!(Target::parse(selector, node, all).is_ok(), sound);
        }
        assert!(matches!(
            Target::parse(None, Some("x"), false),
            Err(BadTarget::NodeId(_))
        ));
        assert!(matches!(
            Target::parse(Some(" "), None, false),
            Err(BadTarget::Selector(_))
        ));
    }

    #[test]
    fn timeouts_outside_the_bounds_are_refused_not_clamped() {
        for seconds in [0, -1, i64::from(TIMEOUT_SECONDS_MAX) + 1, i64::MAX, i64::MIN] {
            let ask = Ask::parse(DispatchRequest {
                timeout_seconds: Some(seconds),
                ..request()
            });
            assert!(matches!(ask, Err(DispatchError::BadTimeout(s)) if s == seconds));
        }
        assert_eq!(Ask::parse(request()).ok().unwrap().timeout_seconds, None);
    }

    #[test]
    fn a_time_for_delivery_outside_the_bounds_is_refused_not_clamped() {
        for seconds in [0, -1, i64::from(DELIVER_WITHIN_SECONDS_MAX) + 1, i64::MAX] {
            let ask = Ask::parse(DispatchRequest {
                deliver_within_seconds: Some(seconds),
                ..request()
            });
            assert!(matches!(ask, Err(DispatchError::BadDeliverWithin(s)) if s == seconds));
        }
    }

    #[test]
    fn oversized_parameters_are_refused_by_their_own_size() {
        let mut parameters = Parameters::new();
        parameters.insert("k".into(), "x".repeat(PARAMETERS_BYTES_MAX).into());
        let ask = Ask::parse(DispatchRequest {
            parameters: Some(parameters),
            ..request()
        });
        assert!(matches!(ask, Err(DispatchError::ParametersTooLarge(n)) if n > PARAMETERS_BYTES_MAX));
    }
}
