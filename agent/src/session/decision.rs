//! What a session answers: facts to make durable, and then effects.

use std::sync::Arc;

use muster_shared::{
    ids::ExecutionId,
    status::{Passed, Status},
    time::Timestamp,
    wire::ActionRequest,
};

use super::{OwedOutput, Reported};
use crate::outcome::Outcome;

#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Decision {
    pub(crate) facts: Vec<Fact>,
    pub(crate) effects: Vec<Effect>,
}

impl Decision {
    /// Whether it says that this was cancelled.
    pub(crate) fn cancels(&self, execution: ExecutionId) -> bool {
        let says = |fact: &Fact| matches!(fact, Fact::CancelAsked { execution: id } if *id == execution);
        self.facts.iter().any(says)
    }
}

/// Something that must be durable before its effect.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    Taken(Arc<ActionRequest>),
    Started {
        execution: ExecutionId,
        attempt: u32,
    },
    /// Control asked to cancel it, or has settled it. It may not have arrived here yet.
    CancelAsked {
        execution: ExecutionId,
    },
    Ended {
        execution: ExecutionId,
        outcome: Outcome,
    },
    Reported {
        execution: ExecutionId,
        reported: Reported,
    },
    OutputOwed {
        execution: ExecutionId,
        output: OwedOutput,
    },
    /// Control has it, does not want it, or it was given up.
    OutputSettled {
        execution: ExecutionId,
    },
    /// Control does not know the execution: what came of it stays here.
    Orphaned {
        execution: ExecutionId,
    },
}

impl Fact {
    pub(crate) fn execution(&self) -> ExecutionId {
        match self {
            Self::Taken(request) => request.execution_id,
            Self::Started { execution, .. }
            | Self::CancelAsked { execution }
            | Self::Ended { execution, .. }
            | Self::Reported { execution, .. }
            | Self::OutputOwed { execution, .. }
            | Self::OutputSettled { execution }
            | Self::Orphaned { execution } => *execution,
        }
    }

    /// Whether nothing depends on its being durable: that control has heard of a step is told again at worst. That it has
    /// to hear of all once more is what a daemon that is started meanwhile must know.
    pub(crate) const fn may_wait(&self) -> bool {
        match self {
            Self::Reported { reported, .. } => match reported {
                Reported::Ack | Reported::Started => true,
                Reported::Nothing | Reported::Terminal => false,
            },
            Self::Taken(_)
            | Self::Started { .. }
            | Self::CancelAsked { .. }
            | Self::Ended { .. }
            | Self::OutputOwed { .. }
            | Self::OutputSettled { .. }
            | Self::Orphaned { .. } => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Start {
        request: Arc<ActionRequest>,
        attempt: u32,
    },
    /// Ends what was started.
    Stop {
        execution: ExecutionId,
    },
    Post(Errand),
    /// Brings the output of an end that is told.
    Upload {
        errand: Errand,
        since: Timestamp,
    },
    /// There is no room for it any more.
    GiveUp {
        execution: ExecutionId,
    },
    /// Nobody asks for what the run left any more: the run directories may go.
    Forget {
        execution: ExecutionId,
        attempts: u32,
    },
}

impl Effect {
    pub(crate) fn execution(&self) -> ExecutionId {
        match self {
            Self::Start { request, .. } => request.execution_id,
            Self::Post(errand) | Self::Upload { errand, .. } => errand.request.execution_id,
            Self::Stop { execution } | Self::GiveUp { execution } | Self::Forget { execution, .. } => {
                *execution
            }
        }
    }
}

/// One callback to deliver.
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    pub(crate) request: Arc<ActionRequest>,
    /// Since control answered last.
    pub(crate) passed: Vec<Passed>,
    pub(crate) status: Status,
    pub(crate) attempt: u32,
    /// Of a terminal status.
    pub(crate) outcome: Option<Outcome>,
}
