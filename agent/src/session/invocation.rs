//! One invocation: how far it is here, how far control knows, and what control has to hear next.

use std::sync::Arc;

use muster_shared::{
    status::{Passed, Status},
    time::Timestamp,
    wire::ActionRequest,
};

use super::Recorded;
use crate::outcome::{Ended, Outcome};

/// How far an invocation is on this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Taken,
    Started,
    Ended(Outcome),
}

/// How far control is known to know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Reported {
    Nothing,
    Ack,
    Started,
    Terminal,
}

impl Reported {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Ack => "ack",
            Self::Started => "started",
            Self::Terminal => "terminal",
        }
    }

    pub(crate) fn parse(raw: &str) -> Option<Self> {
        [Self::Nothing, Self::Ack, Self::Started, Self::Terminal]
            .into_iter()
            .find(|known| known.as_str() == raw)
    }

    pub(super) const fn once(told: Status) -> Self {
        match told {
            Status::Pending => Self::Nothing,
            Status::Ack => Self::Ack,
            Status::Started => Self::Started,
            Status::Succeeded | Status::Failed | Status::Cancelled | Status::Timeout => Self::Terminal,
        }
    }
}

#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) request: Arc<ActionRequest>,
    pub(super) attempt: u32,
    pub(super) stage: Stage,
    pub(super) reported: Reported,
    pub(super) posting: bool,
    pub(super) cancel_asked: bool,
    /// Known only of what this process started.
    pub(super) running_since: Option<Timestamp>,
    /// Known to this process only, because the journal could not take it.
    pub(super) volatile: bool,
    /// Whether control was led to the end once more from the beginning.
    pub(super) led: bool,
}

impl Invocation {
    /// One that has just come.
    pub(super) const fn new(request: Arc<ActionRequest>, cancel_asked: bool) -> Self {
        Self {
            request,
            attempt: 0,
            stage: Stage::Taken,
            reported: Reported::Nothing,
            posting: false,
            cancel_asked,
            running_since: None,
            volatile: false,
            led: false,
        }
    }

    /// One of the journal.
    pub(super) fn of(row: Recorded) -> Self {
        Self {
            attempt: row.attempt,
            stage: row.stage,
            reported: row.reported,
            ..Self::new(Arc::new(row.request), row.cancel_asked)
        }
    }

    /// An end as it is to be told.
    pub(super) fn judged(&self, outcome: Outcome) -> Outcome {
        if self.cancel_asked {
            outcome.of_cancelled()
        } else {
            outcome
        }
    }

    /// What control has to hear, if anything: where the invocation is now, and what it went through on its way there.
    pub(super) fn owed(&self) -> Option<(Vec<Passed>, Status)> {
        let (ack, started) = (Passed::Ack, Passed::Started);
        match (self.reported, &self.stage) {
            (Reported::Nothing, Stage::Taken) => Some((vec![], Status::Ack)),
            (Reported::Nothing, Stage::Started) => Some((vec![ack], Status::Started)),
            (Reported::Ack, Stage::Started) => Some((vec![], Status::Started)),
            (told, Stage::Ended(outcome)) => {
                // What timed out before it started goes there directly; every other ending has to pass through.
                let direct = outcome.ended == Ended::Expired;
                let passed = match told {
                    Reported::Nothing if direct => vec![ack],
                    Reported::Nothing => vec![ack, started],
                    Reported::Ack if direct => vec![],
                    Reported::Ack => vec![started],
                    Reported::Started => vec![],
                    Reported::Terminal => return None,
                };
                Some((passed, outcome.status()))
            }
            (Reported::Ack, Stage::Taken)
            | (Reported::Started | Reported::Terminal, Stage::Taken | Stage::Started) => None,
        }
    }
}
