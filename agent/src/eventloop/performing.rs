//! Doing what was decided: facts into the journal first, then their effects; and what is done while the journal takes none.
//!
//! Nothing is judged here, and nothing waited for but the journal: what is begun ends in an event that the loop hears.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use muster_shared::ids::ExecutionId;
use tokio::{sync::watch, task::spawn_blocking, time::Instant};

use super::{Daemon, Event};
use crate::{
    exit,
    journal::JournalError,
    run_dir::RunDir,
    runner::StopAsked,
    session::{Decision, Effect, Fact, Input},
};

/// How soon a journal that could not be written is tried again.
const JOURNAL_RETRY: Duration = Duration::from_secs(2);

impl Daemon {
    /// Facts first. While the journal takes none, the effects of executions that wait for one wait too, and no others: what
    /// needs no journal is answered all the same.
    pub(super) async fn perform(&mut self, decision: Decision) {
        // What is next in a report need not wait for the disk, when the last word was only that one was taken.
        let ahead = !decision.facts.is_empty() && decision.facts.iter().all(Fact::may_wait);
        self.backlog.facts.extend(decision.facts);
        if ahead && self.retry_at.is_none() {
            return decision.effects.into_iter().for_each(|effect| self.start(effect));
        }
        self.backlog.effects.extend(decision.effects);
        if let Err(err) = self.write_backlog().await {
            self.do_without_journal(&err);
            // There may be room for the rest: what is new is the larger part, and all that its own limits keep out.
            if self.write_backlog().await.is_err() {
                self.retry_at = Some(Instant::now() + JOURNAL_RETRY);
                self.stop_all_the_same();
                let ready = self.backlog.take_ready();
                return ready.into_iter().for_each(|effect| self.start(effect));
            }
        }
        self.retry_at = None;
        let backlog = std::mem::take(&mut self.backlog);
        backlog.effects.into_iter().for_each(|effect| self.start(effect));
    }

    async fn write_backlog(&self) -> Result<(), JournalError> {
        if self.backlog.facts.is_empty() {
            return Ok(());
        }
        let (facts, now) = (self.backlog.facts.clone(), self.clock.now());
        let written = self.journal.ask(move |store| store.record(&facts, now)).await;
        written.inspect_err(|err| {
            let code = err.code();
            log::error!(code, error = exit::chain(err), facts = self.backlog.facts.len();
                "The journal could not be written");
        })
    }

    /// What runs may be what fills the disk. Should this daemon die before the journal knows, control asks again.
    fn stop_all_the_same(&mut self) {
        for effect in &self.backlog.effects {
            if let Effect::Stop { execution } = effect {
                self.stop(*execution);
            }
        }
    }

    /// What was about to be taken is answered from memory; everything else keeps waiting for the journal.
    fn do_without_journal(&mut self, err: &JournalError) {
        let taken = |fact: &Fact| match fact {
            Fact::Taken(request) => Some(request.execution_id),
            Fact::Started { .. }
            | Fact::CancelAsked { .. }
            | Fact::Ended { .. }
            | Fact::Reported { .. }
            | Fact::OutputOwed { .. }
            | Fact::OutputSettled { .. }
            | Fact::Orphaned { .. } => None,
        };
        let untaken: Vec<ExecutionId> = self.backlog.facts.iter().filter_map(taken).collect();
        self.backlog
            .facts
            .retain(|fact| matches!(fact, Fact::CancelAsked { .. }) || !untaken.contains(&fact.execution()));
        self.backlog
            .effects
            .retain(|effect| !untaken.contains(&effect.execution()));
        for execution in untaken {
            let input = Input::Untaken {
                execution,
                code: err.code(),
                why: exit::chain(err),
            };
            let decision = self.session.handle(input, self.clock.now());
            let (now, later): (Vec<_>, Vec<_>) = decision
                .effects
                .into_iter()
                .partition(|effect| effect.execution() == execution);
            self.backlog.facts.extend(decision.facts);
            self.backlog.effects.extend(later);
            now.into_iter().for_each(|effect| self.start(effect));
        }
    }

    /// The way by which it will be told to stop.
    pub(super) fn way_to(&mut self, execution: ExecutionId) -> StopAsked {
        let (stop, stop_asked) = watch::channel(false);
        self.stops.insert(execution, stop);
        stop_asked
    }

    fn stop(&self, execution: ExecutionId) {
        let Some(stop) = self.stops.get(&execution) else {
            return;
        };
        let action = self
            .session
            .request(execution)
            .map(|request| request.action.as_str());
        log::info!(execution_id:% = execution, action, node_id:% = self.runner.node; "Stopping an action");
        stop.send_replace(true);
    }

    fn start(&mut self, effect: Effect) {
        match effect {
            Effect::Start { request, attempt } => {
                let execution = request.execution_id;
                log::info!(execution_id:% = execution, action:% = request.action, node_id:% = request.node_id, attempt;
                    "Starting an action");
                let runner = Arc::clone(&self.runner);
                let stop_asked = self.way_to(execution);
                self.work.spawn(async move {
                    let outcome = runner.run_to_its_end(&request, attempt, stop_asked).await;
                    Event::Ended { execution, outcome }
                });
            }
            Effect::Stop { execution } => self.stop(execution),
            Effect::Post(errand) => {
                let reporter = Arc::clone(&self.reporter);
                let (execution, status) = (errand.request.execution_id, errand.status);
                let delivery = async move { reporter.deliver_at_last(&errand).await };
                self.work.spawn(delivery.map(move |delivered| Event::Delivered {
                    execution,
                    status,
                    delivered,
                }));
            }
            Effect::Upload { errand, output } => {
                let reporter = Arc::clone(&self.reporter);
                let execution = errand.request.execution_id;
                let (give_up, given_up) = watch::channel(false);
                self.uploads.insert(execution, give_up);
                self.work.spawn(async move {
                    let unknown = reporter.bring_output_at_last(&errand, output, given_up).await;
                    Event::OutputSettled { execution, unknown }
                });
            }
            Effect::GiveUp { execution } => {
                if let Some(give_up) = self.uploads.get(&execution) {
                    give_up.send_replace(true);
                }
            }
            Effect::Forget { execution, attempts } => {
                let state_dir = self.config.state_dir.clone();
                drop(spawn_blocking(move || forget(&state_dir, execution, attempts)));
            }
        }
    }
}

fn forget(state_dir: &Path, execution: ExecutionId, attempts: u32) {
    for attempt in 1..=attempts {
        let run = RunDir::of(state_dir, execution, attempt);
        let about = run.about();
        if let Err(err) = run.remove() {
            // The next start sweeps it away.
            log::warn!(execution_id:% = execution, action = about.action, node_id = about.node, error:% = err;
                "A run directory could not be removed");
        }
    }
}
