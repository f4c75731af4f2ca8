//! What a session answers: facts to make durable, and then effects.

use std::{collections::BTreeSet, sync::Arc};

use muster_shared::{
    ids::ExecutionId,
    status::{Passed, Status},
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

    /// Takes out the effects of executions that no fact is about which has to be durable first.
    pub(crate) fn take_ready(&mut self) -> Vec<Effect> {
        let awaited: BTreeSet<ExecutionId> = self
            .facts
            .iter()
            .filter(|fact| !fact.may_wait())
            .map(Fact::execution)
            .collect();
        let (waiting, ready) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| awaited.contains(&effect.execution()));
        self.effects = waiting;
        ready
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
    /// Brings the output of an end that is told, or keeps it where control does not want it.
    Upload {
        errand: Errand,
        output: OwedOutput,
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

#[cfg(test)]
mod tests {
    use muster_shared::time::Timestamp;

    use super::*;

    #[test]
    fn only_the_effects_of_what_waits_for_the_journal_wait() {
        let [one, two, three] = [1, 2, 3].map(|n| ExecutionId::mint(Timestamp::from_millis(0), [n; 10]));
        let mut backlog = Decision {
            facts: vec![
                Fact::CancelAsked { execution: one },
                Fact::Reported {
                    execution: two,
                    reported: Reported::Started,
                },
            ],
            effects: [three, one, two, one]
                .map(|execution| Effect::Stop { execution })
                .to_vec(),
        };
        let of = |effects: &[Effect]| effects.iter().map(Effect::execution).collect::<Vec<_>>();
        assert_eq!(of(&backlog.take_ready()), [three, two]);
        assert_eq!((of(&backlog.effects), backlog.facts.len()), (vec![one, one], 2));
    }
}
