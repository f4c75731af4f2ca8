//! Reports that arrive together are written together: one transaction, one commit, and each is answered after it.
//!
//! Nobody waits for company. Whoever finds no group under way begins one; those who come while it is written are the next.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId},
    time::Timestamp,
    wire::OutputRef,
};
use tokio::sync::oneshot;

use super::{
    CallbackError,
    report::{Effect, Report, effect_on, takes_output},
};
use crate::{
    audit::{self, Entry},
    control::{Control, Shared},
    outputs::Believed,
    store::{Advance, Passing, StoreError, TargetState, Tx},
};

/// How many reports are written together at most.
const GROUP_MAX: usize = 512;

/// A report, ready to be written.
pub(super) struct Work {
    pub(super) subject: String,
    pub(super) domain: DomainId,
    pub(super) report: Report,
    pub(super) believed: Option<Believed>,
    /// The size for which an upload was offered.
    pub(super) offered: Option<u64>,
}

struct Waiting {
    work: Work,
    answer: oneshot::Sender<Result<(), CallbackError>>,
}

/// The reports that wait to be written.
#[derive(Default)]
pub(crate) struct Callbacks(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Whether somebody writes, and looks here again afterwards.
    led: bool,
}

impl Callbacks {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for the one who has to write.
    fn push(&self, waiting: Waiting) -> bool {
        let mut queue = self.lock();
        queue.waiting.push(waiting);
        !std::mem::replace(&mut queue.led, true)
    }

    /// The next group, in the order of arrival. One report of a target at a time: the second is judged by what the first
    /// made of it. None is left when this answers with none, and nobody leads.
    fn next(&self) -> Vec<Waiting> {
        let mut queue = self.lock();
        let mut targets = HashSet::new();
        let (mut group, mut later) = (Vec::new(), Vec::new());
        for waiting in std::mem::take(&mut queue.waiting) {
            let target = (waiting.work.report.execution, waiting.work.report.node);
            if group.len() < GROUP_MAX && targets.insert(target) {
                group.push(waiting);
            } else {
                later.push(waiting);
            }
        }
        queue.waiting = later;
        queue.led = !group.is_empty();
        group
    }
}

/// Writes a report, with those that wait too. What is answered without error is durable.
pub(super) async fn write(control: &Shared, work: Work) -> Result<(), CallbackError> {
    let (answer, answered) = oneshot::channel();
    if control.callbacks.push(Waiting { work, answer }) {
        // On its own: a caller that goes away must not take the others with it.
        tokio::spawn(lead(Shared::clone(control)));
    }
    answered
        .await
        .unwrap_or(Err(CallbackError::NotNow(Passing::Away)))
}

async fn lead(control: Shared) {
    let leading = Leading(&control);
    loop {
        let group = leading.0.callbacks.next();
        if group.is_empty() {
            std::mem::forget(leading);
            return;
        }
        write_group(&control, group).await;
    }
}

/// Should it not come to its end, the next report begins anew.
struct Leading<'a>(&'a Control);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.callbacks.lock().led = false;
    }
}

async fn write_group(control: &Control, group: Vec<Waiting>) {
    let (works, answers): (Vec<Work>, Vec<_>) = group
        .into_iter()
        .map(|waiting| (waiting.work, waiting.answer))
        .unzip();
    let written = match try_write(control, &works).await {
        Ok(written) => written,
        Err(err) => one_by_one(control, &works, err).await,
    };
    for (answer, written) in answers.into_iter().zip(written) {
        // Whoever asked may have gone: the node asks again.
        let _ = answer.send(written);
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
    let settled = gathered.write(&mut tx, control, now).await?;
    if gathered.is_empty() {
        return Ok(judged);
    }
    tx.commit().await?;
    gathered.tell(control, &settled);
    Ok(judged)
}

/// Decides what a report does, by the state of its target inside the transaction.
async fn judge<'a>(
    control: &Control,
    targets: &HashMap<(ExecutionId, NodeId), TargetState>,
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
            gathered.evidence.push(report.step_from(target.status));
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
            entries.push(granted("actions.callback").with(format!("{} to {}", step.from, step.to)));
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

impl Gathered<'_> {
    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.evidence.is_empty() && self.late.is_empty() && self.declared.is_empty()
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
    fn tell(&self, control: &Control, settled: &HashSet<ExecutionId>) {
        let moved: HashSet<ExecutionId> = self.steps.iter().map(|step| step.execution).collect();
        for execution in moved {
            control.watchers.wake(execution);
        }
        if self.steps.iter().any(|step| step.to.is_terminal()) {
            control.rollouts.ended();
        }
        for step in &self.steps {
            log_advance(step, settled.contains(&step.execution));
        }
        for report in &self.late {
            log::info!(execution_id:% = report.execution, node_id:% = report.node; "Invocation {}", report.late_words());
        }
    }
}

fn log_advance(step: &Advance<'_>, settled: bool) {
    if step.to.is_terminal() {
        log::info!(execution_id:% = step.execution, node_id:% = step.node, status:% = step.to, settled; "Invocation {}", step.to);
    } else {
        log::debug!(execution_id:% = step.execution, node_id:% = step.node, status:% = step.to; "Invocation {}", step.to);
    }
}
