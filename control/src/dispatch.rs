//! Admits a dispatch: resolve the cohort, ask the gates, count the capacity, persist in one commit.

mod ask;
mod cohort;

use std::num::NonZeroU32;

use muster_shared::{
    ids::{ActionName, ExecutionId, NodeId},
    time::Timestamp,
    wire::{
        DELIVER_WITHIN_SECONDS_MAX, DispatchPreview, DispatchRequest, Dropped, Execution,
        PARAMETERS_BYTES_MAX, PREVIEW_TARGETS_MAX, Parameters, TIMEOUT_SECONDS_DEFAULT, TIMEOUT_SECONDS_MAX,
    },
};

use crate::{
    audit::{self, Entry, Outcome},
    authz::{self, Requester},
    control::Control,
    gates::{NoSurvivor, Sifted},
    idempotency::{self, ClaimOutcome, Once},
    keys::{chance, token_hash},
    parameters, rolling,
    rollout::BadRollout,
    store::{Claimed, Detail, NewExecution, Project, StoreError, Tx},
    target::BadTarget,
};
use ask::Ask;
use cohort::{Cohort, cohort};

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
    #[error("parameter {0:?} has a zero byte in it, and no hook can be given one")]
    ParametersWithNul(String),
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
) -> Result<Admitted, DispatchError> {
    let ask = Ask::parse(request)?;
    let asked_at = Timestamp::now();
    let id = ExecutionId::mint(asked_at, chance()?);
    // The turn at writing is taken before the gates: no node goes out of service between its gate and its target, and a
    // request that is sent again is not refused for what has changed since, while the first is still under way.
    let mut tx = match once {
        None => control.store.begin().await?,
        Some(once) => match idempotency::claim(control, project, requester, once, id, asked_at).await? {
            ClaimOutcome::First(tx) => tx,
            ClaimOutcome::Reused => return Err(DispatchError::KeyReused),
            ClaimOutcome::Again(before) => return admitted_before(control, project, before).await,
        },
    };
    // It may have waited long for its turn, and its deadlines count from here.
    let now = Timestamp::now();
    let cohort = cohort(control, project, requester, &ask).await?;
    let sifted = &cohort.sifted;
    let plan = match ask.check(&cohort) {
        Ok(plan) => plan,
        Err(refusal) => {
            // The turn at writing is given back first: the rows of the denials take one of their own.
            drop(tx);
            audit::record(control, project.domain, &denials(requester, sifted), now).await?;
            return Err(refusal);
        }
    };
    let dropped = sifted.dropped();
    if once.is_some() {
        tx.note_dropped(id, &dropped).await?;
    }
    write(&mut tx, control, project, requester, (id, &ask, &cohort), now).await?;
    if let Some(plan) = &plan {
        // The first step is part of the dispatch: what has to be released at once waits for nobody.
        tx.insert_rollout(id, plan, now.plus(control.limits.rollout_max))
            .await?;
        let _ = rolling::step(&mut tx, id, now).await?;
    }
    // Read before it is committed: whoever is told of a failure dispatches again, so nothing may fail after that.
    let execution = tx.execution(project.id, id, Detail::WithoutOutput).await?;
    let execution = execution.ok_or(StoreError::Sql(sqlx::Error::RowNotFound))?;
    tx.commit().await?;
    control.outbox_wake.notify_one();
    if plan.is_some() {
        control.rollouts.began();
    }
    control.metrics.dispatched(project.domain);
    log::info!(execution_id:% = id, action:% = ask.action, targets = sifted.survivors.len(); "Dispatched {} to {} nodes", ask.action, sifted.survivors.len());
    Ok(Admitted {
        execution: Execution { dropped, ..execution },
        again: false,
    })
}

/// The execution of the first request as it is now, and what the gates dropped when it was admitted. It is kept as long as
/// its key.
async fn admitted_before(
    control: &Control,
    project: &Project,
    before: Claimed,
) -> Result<Admitted, DispatchError> {
    let execution = control
        .store
        .execution(project.id, before.execution, Detail::WithoutOutput)
        .await?
        .ok_or(StoreError::Sql(sqlx::Error::RowNotFound))?;
    let dropped = before.dropped;
    Ok(Admitted {
        execution: Execution { dropped, ..execution },
        again: true,
    })
}

/// Header, targets and, without a rollout, outbox rows in one commit. The count of live executions is taken under the same
/// write lock, so that two dispatches at once cannot both be the last.
async fn write(
    tx: &mut Tx,
    control: &Control,
    project: &Project,
    requester: &Requester,
    (id, ask, cohort): (ExecutionId, &Ask, &Cohort),
    now: Timestamp,
) -> Result<(), DispatchError> {
    let (sifted, timeout_seconds) = (&cohort.sifted, cohort.timeout_seconds);
    let (shown, sealed) = shown_and_sealed(control, id, ask, cohort)?;
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

/// What of the parameters may be shown, and the rest sealed: it is not even stored in the clear.
fn shown_and_sealed(
    control: &Control,
    id: ExecutionId,
    ask: &Ask,
    cohort: &Cohort,
) -> std::io::Result<(Option<Parameters>, Option<Vec<u8>>)> {
    let Some(parameters) = &ask.parameters else {
        return Ok((None, None));
    };
    let (shown, hidden) = parameters::split(parameters, &cohort.checked.secret);
    if hidden.is_empty() {
        return Ok((Some(shown), None));
    }
    let clear = serde_json::to_vec(&hidden).map_err(std::io::Error::other)?;
    Ok((Some(shown), Some(control.key.seal(id, &clear)?)))
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
