//! Taking up what an earlier daemon left: every invocation that is not settled, and the hooks that still run.

use std::{collections::BTreeSet, os::fd::OwnedFd, sync::Arc, time::Duration};

use muster_shared::{
    ids::ExecutionId,
    message_id::ACTION_ENDED,
    wire::{ActionKind, TIMEOUT_SECONDS_MAX},
};
use tokio::task::spawn_blocking;

use super::{Daemon, Event};
use crate::{
    builtins,
    exit::{self, Exit},
    journal::Store,
    run_dir::{self, Found, Old, RunDir, may_pass},
    runner,
    session::{Past, Recorded, Stage},
};

/// No request is good for half as long, so nothing that is older can be asked for again.
const UNKNOWN_RUN_KEEP: Duration = Duration::from_secs(2 * TIMEOUT_SECONDS_MAX as u64);

impl Daemon {
    /// Takes up every invocation that is not settled, and finds its running hook again if it has one.
    pub(super) async fn recover(&mut self) -> Result<(), Exit> {
        let unreadable = |err| Exit::Journal(exit::chain(&err));
        let rows = self.journal.ask(Store::owed).await.map_err(unreadable)?;
        let mut kept = BTreeSet::new();
        let mut recovered = Vec::new();
        for row in rows {
            kept.insert(row.request.execution_id);
            let past = self.past_of(&row).await;
            recovered.push((row, past));
        }
        let outputs = self.journal.ask(Store::outputs_owed).await.map_err(unreadable)?;
        kept.extend(outputs.iter().map(|(row, _)| row.request.execution_id));
        let orphans = self.journal.ask(Store::orphans).await.map_err(unreadable)?;
        kept.extend(orphans.iter().map(|(row, _)| row.request.execution_id));
        self.sweep_runs(kept).await;
        self.runner.launcher.sweep(self.runner.node).await;
        if !outputs.is_empty() {
            log::info!(count = outputs.len(); "Took up outputs that control has not got yet");
        }
        if !recovered.is_empty() {
            log::info!(count = recovered.len(); "Took up what was not settled before the restart");
        }
        self.session.set_lanes(self.runner.catalog.borrow().lanes());
        let decision = self.session.recover(recovered, self.clock.now());
        self.perform(decision).await;
        let decision = self.session.recover_outputs(outputs);
        self.perform(decision).await;
        Ok(())
    }

    async fn past_of(&mut self, row: &Recorded) -> Option<Past> {
        if row.stage != Stage::Started {
            return None;
        }
        let (execution, attempt) = (row.request.execution_id, row.attempt);
        match row.request.kind {
            // It died with the daemon that it ran in. It only looked, so it may look again.
            ActionKind::Builtin if !builtins::is_apart(row.request.action.as_str()) => {
                return Some(Past::NeverRan);
            }
            ActionKind::Builtin | ActionKind::Hook => {}
        }
        let run = RunDir::of(&self.config.state_dir, execution, attempt);
        let action = &row.request.action;
        match run.examine(&self.runner.boot_id) {
            Ok(Found::Running(supervisor)) => {
                log::info!(execution_id:% = execution, action:% = action, node_id:% = row.request.node_id;
                    "Found a running action again");
                self.adopt(execution, attempt, Some(supervisor));
                Some(Past::Running)
            }
            // It may run, so nothing that it must not run beside is started before that can be seen.
            Err(err) if may_pass(&err) => {
                self.adopt(execution, attempt, None);
                Some(Past::Running)
            }
            Ok(Found::NeverRan) => Some(Past::NeverRan),
            Ok(Found::GoingDown) => {
                let runner = Arc::clone(&self.runner);
                self.work.spawn(async move {
                    let outcome = runner.going_down(&run).await;
                    Event::Ended { execution, outcome }
                });
                Some(Past::Running)
            }
            other => {
                let outcome = self.runner.outcome_of(&run, other, runner::MISSED).await;
                log::info!(message_id = ACTION_ENDED, execution_id:% = execution, action:% = action,
                    node_id:% = row.request.node_id, status:% = outcome.status();
                    "An action ended while the daemon was away");
                Some(Past::Ended(outcome))
            }
        }
    }

    fn adopt(&mut self, execution: ExecutionId, attempt: u32, supervisor: Option<OwnedFd>) {
        let runner = Arc::clone(&self.runner);
        let stop_asked = self.way_to(execution);
        self.work.spawn(async move {
            let outcome = runner
                .adopt_to_its_end(execution, attempt, supervisor, stop_asked)
                .await;
            Event::Ended { execution, outcome }
        });
    }

    /// What control does not know goes with its row.
    pub(super) async fn sweep_after_pruning(&self) {
        let mut kept: BTreeSet<_> = self.session.known().collect();
        match self.journal.ask(Store::orphans).await {
            Ok(orphans) => kept.extend(orphans.iter().map(|(row, _)| row.request.execution_id)),
            Err(err) => {
                return log::warn!(error = exit::chain(&err); "Old run directories were not looked for");
            }
        }
        self.sweep_runs(kept).await;
    }

    /// Removes run directories that belong to nothing any more, as a stop between two steps can leave them.
    async fn sweep_runs(&self, kept: BTreeSet<ExecutionId>) {
        let dir = run_dir::runs_dir(&self.config.state_dir);
        let old = match spawn_blocking(move || run_dir::old_runs(&dir)).await {
            Ok(Ok(old)) => old,
            Ok(Err(err)) => return log::warn!(error:% = err; "Old run directories could not be listed"),
            Err(_panic) => return,
        };
        for Old {
            execution,
            run,
            changed,
        } in old.into_iter().filter(|old| !kept.contains(&old.execution))
        {
            // Before control has said what time it is, nothing is so old that it cannot be asked for again.
            let young = !self.clock.is_known() || self.clock.now().minus(UNKNOWN_RUN_KEEP) < changed;
            if young && !self.is_told(execution).await {
                let about = run.about();
                log::warn!(execution_id:% = execution, action = about.action, node_id = about.node;
                    "The journal does not know an action that was started here: it has lost its last words, or is \
                     an older copy. What the run left is kept, so that it is not run again");
                if let Ok(Err(err)) = spawn_blocking(move || run.remove_parameters()).await {
                    log::warn!(execution_id:% = execution, action = about.action, node_id = about.node, error:% = err;
                        "The parameters of an action that the journal does not know could not be removed");
                }
                continue;
            }
            let about = run.about();
            if let Ok(Err(err)) = spawn_blocking(move || run.remove()).await {
                log::warn!(execution_id:% = execution, action = about.action, node_id = about.node, error:% = err;
                    "An old run directory could not be removed");
            }
        }
    }

    /// What the journal knows and does not want taken up is settled with control.
    async fn is_told(&self, execution: ExecutionId) -> bool {
        let found = self.journal.ask(move |store| store.find(execution)).await;
        matches!(found, Ok(Some(_)))
    }
}
