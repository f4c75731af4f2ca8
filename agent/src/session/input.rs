//! What a session is told: what the journal held when the daemon started, and what has happened since.

use muster_shared::{ids::ExecutionId, status::Status, wire::ActionRequest};

use super::{Reported, Stage};
use crate::outcome::Outcome;

/// A row of the journal.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) request: ActionRequest,
    pub(crate) attempt: u32,
    pub(crate) stage: Stage,
    pub(crate) reported: Reported,
    pub(crate) cancel_asked: bool,
}

/// What a restarted daemon found out about an invocation that had been started.
#[derive(Clone, Debug)]
pub(crate) enum Past {
    Ended(Outcome),
    /// Its supervisor lives on and is being waited for.
    Running,
    NeverRan,
}

/// What came of an errand. There is no failure: an errand is run until control has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivered {
    Taken,
    /// Control took the end; its output could not be brought yet.
    WithoutOutput,
    /// Control is further than this status already.
    Ahead,
    /// Control has settled the invocation.
    Settled,
    /// Control does not know the execution: it was restored from a backup, or has pruned it.
    Unknown,
    /// Control knows the invocation, and not as ours.
    Gone,
}

#[derive(Debug)]
pub(crate) enum Input {
    /// `recorded` is what the journal holds of it, unless the session knows it anyway.
    Requested {
        request: Box<ActionRequest>,
        recorded: Option<Box<Recorded>>,
        /// Its cancel arrived before it did.
        cancelled: bool,
        /// The rule of the node's policy that forbids it.
        denied: Option<String>,
    },
    /// Control asks to cancel it. `settled` says that the journal knows it as settled long ago.
    CancelAsked { execution: ExecutionId, settled: bool },
    /// The journal could not take it: the reason code, and the reason in words.
    Untaken {
        execution: ExecutionId,
        code: &'static str,
        why: String,
    },
    Ended {
        execution: ExecutionId,
        outcome: Outcome,
    },
    Delivered {
        execution: ExecutionId,
        status: Status,
        delivered: Delivered,
    },
    /// Nothing more is to be done for the output of an end that is told. `unknown` says that control does not know the
    /// execution.
    OutputSettled { execution: ExecutionId, unknown: bool },
    /// Control was restored from a backup, and may have forgotten this end.
    TellAgain(Box<Recorded>),
    /// Control takes this daemon for the node's own.
    Admitted,
    /// Time has passed.
    Woken,
}
