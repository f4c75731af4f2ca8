//! What becomes of an action when the part of the daemon that looks after it panics: that part ends, and no other action
//! notices.

use std::os::fd::OwnedFd;

use muster_shared::{
    ids::ExecutionId,
    wire::{ActionKind, ActionRequest},
};

use super::{Runner, StopAsked};
use crate::{
    builtins,
    outcome::{Ended, Outcome},
    run_dir::RunDir,
    unharmed::unharmed,
};

/// Said of an action whose part of the daemon panicked.
const BROKEN: &str = "agent_broke: what looked after it in musterd broke; its log says where";

impl Runner {
    /// Whatever breaks on the way. A panic in here is that of one action, and what the action itself does goes on.
    pub(crate) async fn run_to_its_end(
        &self,
        request: &ActionRequest,
        attempt: u32,
        stop_asked: StopAsked,
    ) -> Outcome {
        let inside = request.kind == ActionKind::Builtin && !builtins::is_apart(request.action.as_str());
        match unharmed(self.run(request, attempt, stop_asked.clone())).await {
            Some(outcome) => outcome,
            None if inside => Outcome::of(Ended::Broke {
                why: BROKEN.to_owned(),
            }),
            None => self.after_panic(request.execution_id, attempt, stop_asked).await,
        }
    }

    /// Waits for a supervisor that an earlier daemon started; without one it could not be looked for yet.
    pub(crate) async fn adopt_to_its_end(
        &self,
        execution: ExecutionId,
        attempt: u32,
        supervisor: Option<OwnedFd>,
        stop_asked: StopAsked,
    ) -> Outcome {
        match unharmed(self.adopt(execution, attempt, supervisor, stop_asked.clone())).await {
            Some(outcome) => outcome,
            None => self.after_panic(execution, attempt, stop_asked).await,
        }
    }

    /// The claim tells whether it runs, and then it is waited for as ever: nothing that clashes with it may start before.
    async fn after_panic(&self, execution: ExecutionId, attempt: u32, stop_asked: StopAsked) -> Outcome {
        let run = RunDir::of(&self.config().state_dir, execution, attempt);
        log::error!(execution_id:% = execution, action = run.about().action, node_id:% = self.node;
            "The part of the daemon that looked after an action broke; the action is taken up again");
        let outcome = unharmed(self.result_of(run, &stop_asked)).await;
        let outcome = outcome.unwrap_or_else(|| {
            Outcome::of(Ended::Lost {
                why: "nobody saw it end".to_owned(),
            })
        });
        outcome.with_remark(Some(BROKEN.to_owned()))
    }
}
