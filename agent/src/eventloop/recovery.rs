//! Taking up what an earlier daemon left: every invocation that is not settled, and the hooks that still run.

use std::{collections::BTreeSet, sync::Arc};

use muster_shared::wire::ActionKind;
use tokio::task::spawn_blocking;

use super::{Daemon, Event};
use crate::{
    builtins,
    exit::{self, Exit},
    journal::Store,
    run_dir::{self, Found, RunDir},
    session::{Past, Recorded, Stage},
};

impl Daemon {
    /// Takes up every invocation that is not settled, and finds its running hook again if it has one.
    pub(super) async fn recover(&mut self) -> Result<(), Exit> {
        let unreadable = |err| Exit::Journal(exit::chain(&err));
        let rows = self.journal.ask(Store::owed).await.map_err(unreadable)?;
        let mut kept = BTreeSet::new();
        let mut recovered = Vec::new();
        for row in rows {
            kept.insert(row.request.execution_id.to_string());
            let past = self.past_of(&row).await;
            recovered.push((row, past));
        }
        let outputs = self.journal.ask(Store::outputs_owed).await.map_err(unreadable)?;
        kept.extend(
            outputs
                .iter()
                .map(|(row, _)| row.request.execution_id.to_string()),
        );
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
                let runner = Arc::clone(&self.runner);
                let stop_asked = self.way_to(execution);
                self.work.spawn(async move {
                    let outcome = runner.adopt(execution, attempt, supervisor, stop_asked).await;
                    Event::Ended { execution, outcome }
                });
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
                let outcome = self.runner.outcome_of(&run, other).await;
                log::info!(execution_id:% = execution, action:% = action, node_id:% = row.request.node_id,
                    status:% = outcome.status();
                    "An action ended while the daemon was away");
                Some(Past::Ended(outcome))
            }
        }
    }

    /// Removes run directories that belong to nothing any more, as a stop between two steps can leave them.
    async fn sweep_runs(&self, kept: BTreeSet<String>) {
        let dir = run_dir::runs_dir(&self.config.state_dir);
        let swept = spawn_blocking(move || run_dir::sweep(&dir, &kept)).await;
        if let Ok(Err(err)) = swept {
            log::warn!(error:% = err; "Old run directories could not be removed");
        }
    }
}
