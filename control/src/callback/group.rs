//! Reports that arrive together are written together: one transaction, one commit, and each is answered after it.

use std::collections::{BTreeMap, HashMap, HashSet};

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId, RowId},
    status::Refused,
    time::Timestamp,
    wire::OutputRef,
};

use super::{
    APPLY, CallbackError, code_of,
    report::{Effect, Report, effect_on, takes_output},
};
use crate::{
    audit::{self, Entry, Outcome},
    authz,
    control::{Control, Shared},
    outputs::Believed,
    refusals::{self, Kind, Turn},
    store::{Advance, Passing, Room, StoreError, TargetState, Tx, apart},
    together::{Fits, Together},
};

/// How many reports are written together at most.
const GROUP_MAX: usize = 512;

/// A report, ready to be written.
pub(crate) struct Work {
    pub(super) subject: String,
    pub(super) domain: DomainId,
    pub(super) report: Report,
    pub(super) believed: Option<Believed>,
    /// The size for which an upload was offered.
    pub(super) offered: Option<u64>,
}

impl Work {
    /// Whether that row is written, or one of many that are counted.
    fn turn(&self, control: &Control, refused: Refused) -> Turn {
        let who = refusals::Refused {
            subject: &self.subject,
            domain: self.domain,
            about: &authz::resource(self.report.node),
        };
        let kind = Kind {
            relation: APPLY,
            why: code_of(refused),
        };
        refusals::turn(control, who, kind, Outcome::InvariantViolation)
    }

    /// The row of a report that is refused.
    fn refused(&self, refused: Refused, correlation: Option<RowId>) -> Entry<'_> {
        let resource = audit::execution_resource(self.report.execution);
        let entry = Entry::new(&self.subject, APPLY, resource, Outcome::InvariantViolation);
        Entry {
            correlation,
            ..entry.with(format!("{}: {refused}", code_of(refused)))
        }
    }
}

type Targets = HashMap<(ExecutionId, NodeId), TargetState>;

/// The reports that wait to be written.
pub(crate) type Callbacks = Together<Work, Result<(), CallbackError>>;

/// One report of a target at a time: the second is judged by what the first made of it.
#[derive(Default)]
struct Group(HashSet<(ExecutionId, NodeId)>);

impl Fits<Work> for Group {
    fn fits(&mut self, work: &Work) -> bool {
        self.0.len() < GROUP_MAX && self.0.insert((work.report.execution, work.report.node))
    }
}

/// Writes a report, with those that wait too. What is answered without error is durable.
pub(super) async fn write(control: &Shared, work: Work) -> Result<(), CallbackError> {
    let serve = || {
        let control = Shared::clone(control);
        move |works| write_group(Shared::clone(&control), works)
    };
    // A commit waits for the disk.
    let begin = |lead| drop(apart(lead));
    let written = control.callbacks.done::<Group, _, _>(work, serve, begin).await;
    written.unwrap_or(Err(CallbackError::NotNow(Passing::Away)))
}

async fn write_group(control: Shared, works: Vec<Work>) -> Vec<Result<(), CallbackError>> {
    match try_write(&control, &works).await {
        Ok(written) => written,
        Err(err) => one_by_one(&control, &works, err).await,
    }
}

/// One bad row must not keep the others from being stored. What passes by itself would keep each of them.
async fn one_by_one(control: &Control, works: &[Work], err: StoreError) -> Vec<Result<(), CallbackError>> {
    if let Some(passing) = err.passes() {
        log::error!(reports = works.len(); "Reports could not be stored: {}", crate::error_chain(&err));
        return works
            .iter()
            .map(|_| Err(CallbackError::NotNow(passing)))
            .collect();
    }
    if works.len() == 1 {
        return vec![Err(err.into())];
    }
    let mut written = Vec::new();
    for work in works {
        written.push(match try_write(control, std::slice::from_ref(work)).await {
            Ok(mut one) => one.pop().unwrap_or(Err(CallbackError::Raced)),
            Err(err) => Err(err.into()),
        });
    }
    written
}

/// What a group comes to, gathered before it is written.
#[derive(Default)]
struct Gathered<'a> {
    steps: Vec<Advance<'a>>,
    evidence: Vec<Advance<'a>>,
    late: Vec<&'a Report>,
    declared: Vec<(&'a Report, u64)>,
    entries: BTreeMap<DomainId, Vec<Entry<'a>>>,
}

async fn try_write(control: &Control, works: &[Work]) -> Result<Vec<Result<(), CallbackError>>, StoreError> {
    let mut tx = control.store.begin().await?;
    let asked: Vec<(ExecutionId, NodeId)> = works
        .iter()
        .map(|work| (work.report.execution, work.report.node))
        .collect();
    let targets = tx.targets(&asked).await?;
    let mut gathered = Gathered::default();
    let mut judged = Vec::new();
    for work in works {
        judged.push(judge(control, &targets, work, &mut gathered).await);
    }
    let now = Timestamp::now();
    gathered
        .keep_evidence(&mut tx, control, (works, &mut judged), now)
        .await?;
    let settled = gathered.write(&mut tx, control, now).await?;
    if gathered.is_empty() {
        return Ok(judged);
    }
    tx.commit().await?;
    gathered.tell(control, &targets, &settled);
    Ok(judged)
}

/// Decides what a report does, by the state of its target inside the transaction.
async fn judge<'a>(
    control: &Control,
    targets: &Targets,
    work: &'a Work,
    gathered: &mut Gathered<'a>,
) -> Result<(), CallbackError> {
    let report = &work.report;
    let target = targets
        .get(&(report.execution, report.node))
        .filter(|target| !target.held)
        .ok_or(CallbackError::Gone)?;
    let effect = match effect_on(target, &report.callback, report.output.as_ref()) {
        Err(CallbackError::Refused(refused)) if report.is_evidence(target.status, &refused) => {
            gathered.evidence.push(report.evidence(target.status));
            return Err(refused.into());
        }
        effect => effect?,
    };
    if takes_output(effect) {
        still_believed(control, report.output.as_ref(), work.believed.as_ref()).await?;
    }
    let granted = |relation| {
        Entry::granted(
            &work.subject,
            relation,
            audit::execution_resource(report.execution),
        )
    };
    let entries = gathered.entries.entry(work.domain).or_default();
    if let Some(declared) = work.offered {
        // Asked for again because the last URL ran out, it is the same offer.
        if target.upload_offered != Some(declared) {
            entries.push(granted("actions.output_presign").with(format!("{declared} bytes")));
        }
        gathered.declared.push((report, declared));
    }
    match effect {
        Effect::Step => {
            let step = report.step_from(target.status);
            entries.push(granted("actions.callback").with(step.in_words()));
            gathered.steps.push(step);
        }
        Effect::Attach | Effect::Remark => {
            entries.push(granted("actions.callback").with(report.late_words()));
            gathered.late.push(report);
        }
        Effect::Nothing => {}
    }
    Ok(())
}

/// What was looked at before the lock was taken must not have been put aside since.
async fn still_believed(
    control: &Control,
    output: Option<&OutputRef>,
    believed: Option<&Believed>,
) -> Result<(), CallbackError> {
    let Some(OutputRef::ObjectStore { key, .. }) = output else {
        return Ok(());
    };
    let held = match believed {
        Some(believed) => control.outputs.holds(key, believed).await,
        None => Ok(false),
    };
    match held {
        Ok(true) => Ok(()),
        Ok(false) => Err(CallbackError::Raced),
        Err(err) => Err(CallbackError::Unbelieved(err)),
    }
}

impl<'a> Gathered<'a> {
    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.evidence.is_empty() && self.late.is_empty() && self.declared.is_empty()
    }

    /// Leaves of what contradicts settled invocations what is news and has room, with the rows that say that it was refused, and
    /// of the others nothing: a node that says the same for ever must not fill the database.
    async fn keep_evidence(
        &mut self,
        tx: &mut Tx,
        control: &Control,
        (works, judged): (&'a [Work], &mut [Result<(), CallbackError>]),
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if self.evidence.is_empty() {
            return Ok(());
        }
        let room = tx
            .room_for_evidence(&self.evidence, control.limits.late_events_max)
            .await?;
        let of = |execution, node| room.get(&(execution, node)).copied();
        self.evidence
            .retain(|step| of(step.execution, step.node) == Some(Room::News));
        for (work, judged) in works.iter().zip(judged) {
            let Some(room) = of(work.report.execution, work.report.node) else {
                continue;
            };
            let Err(CallbackError::Refused(refused)) = *judged else {
                continue;
            };
            let mut correlation = None;
            match room {
                Room::News if work.turn(control, refused) == Turn::Counted => {}
                Room::News => {
                    correlation = audit::correlation(now);
                    let entries = self.entries.entry(work.domain).or_default();
                    entries.push(work.refused(refused, correlation));
                }
                Room::Known => {}
                Room::Full => control.metrics.dropped_late_event(),
            }
            *judged = Err(CallbackError::Contradicts { refused, correlation });
        }
        Ok(())
    }

    /// Answers which executions have settled.
    async fn write(
        &self,
        tx: &mut Tx,
        control: &Control,
        now: Timestamp,
    ) -> Result<HashSet<ExecutionId>, StoreError> {
        for (report, declared) in &self.declared {
            let until = now.plus(control.limits.upload_url_ttl);
            tx.declare_output(report.execution, report.node, *declared, until)
                .await?;
        }
        let settled = tx.advance(&self.steps, now).await?;
        for report in &self.late {
            tx.late_output(&report.late(), now).await?;
        }
        tx.append_late_events(&self.evidence, now).await?;
        for (domain, entries) in &self.entries {
            tx.append_audit(*domain, entries, now).await?;
        }
        Ok(settled)
    }

    /// After the commit, and only a hint.
    fn tell(&self, control: &Control, targets: &Targets, settled: &HashSet<ExecutionId>) {
        let moved: HashSet<ExecutionId> = self.steps.iter().map(|step| step.execution).collect();
        for execution in moved {
            control.watchers.wake(execution);
        }
        if self.steps.iter().any(|step| step.to.is_terminal()) {
            control.rollouts.ended();
        }
        let action_of = |at| targets.get(&at).map(|target| target.action.as_str());
        for step in &self.steps {
            let action = action_of((step.execution, step.node));
            log_advance(step, action, settled.contains(&step.execution));
        }
        for report in &self.late {
            let action = action_of((report.execution, report.node));
            log::info!(execution_id:% = report.execution, node_id:% = report.node, action; "Invocation {}", report.late_words());
        }
    }
}

fn log_advance(step: &Advance<'_>, action: Option<&str>, settled: bool) {
    if step.to.is_terminal() {
        log::info!(execution_id:% = step.execution, node_id:% = step.node, action, status:% = step.to, settled; "Invocation {}", step.to);
    } else {
        log::debug!(execution_id:% = step.execution, node_id:% = step.node, action, status:% = step.to; "Invocation {}", step.to);
    }
}
