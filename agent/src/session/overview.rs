//! What is under way, for people: what runs, what waits and for what, what control has not been told.

use muster_shared::{
    ids::{ActionName, ExecutionId},
    status::Status,
    time::Timestamp,
    wire::ActionRequest,
};
use serde::{Deserialize, Serialize};

use super::{OwedOutput, Recorded, Reported, Session, Stage};
use crate::{hooks::affinity::Lane, outcome::Outcome};

/// How many of those that one waits behind are named: in a long line everybody waits behind everybody.
pub(super) const BEHIND_MAX: usize = 8;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Overview {
    pub(crate) running: Vec<Running>,
    pub(crate) waiting: Vec<Waiting>,
    /// Ended here, and control does not know it yet.
    pub(crate) untold: Vec<Untold>,
    pub(crate) outputs_owed: Vec<Owed>,
    /// Ended here, and control does not know the execution: told once more only if control asks for it.
    #[serde(default)]
    pub(crate) unknown_to_control: Vec<Unknown>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) execution_id: ExecutionId,
    pub(crate) action: ActionName,
    pub(crate) attempt: u32,
    pub(crate) since: Option<Timestamp>,
    pub(crate) deadline: Timestamp,
    pub(crate) cancel_asked: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// 1 is the next to be started, if nothing new comes. Nothing while no daemon lives to say so.
    pub(crate) position: Option<usize>,
    pub(crate) execution_id: ExecutionId,
    pub(crate) action: ActionName,
    pub(crate) deadline: Timestamp,
    /// It was taken before a restart, and nothing of that is started before control has been heard again.
    #[serde(default)]
    pub(crate) control_unheard: bool,
    /// As many run as may: `running_max`.
    pub(crate) all_slots_taken: bool,
    /// What the one free slot is kept for, where this is of the other kind.
    #[serde(default)]
    pub(crate) slot_kept_for: Option<Kept>,
    /// What it must not run beside, and must not overtake: first what runs, then what came earlier.
    pub(crate) behind: Vec<Behind>,
    /// Whether there are more of them than are named.
    #[serde(default)]
    pub(crate) behind_more: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kept {
    ReadOnly,
    Changes,
}

impl Kept {
    pub(super) const fn from_others_than(lane: &Lane) -> Self {
        match lane {
            Lane::ReadOnly => Self::Changes,
            Lane::Changes(_) => Self::ReadOnly,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Behind {
    pub(crate) execution_id: ExecutionId,
    pub(crate) action: ActionName,
    /// What of its own the other one changes too; nothing where one of the two may change anything.
    pub(crate) affinity: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Untold {
    pub(crate) execution_id: ExecutionId,
    pub(crate) action: ActionName,
    pub(crate) status: Status,
    pub(crate) error: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Owed {
    pub(crate) execution_id: ExecutionId,
    pub(crate) bytes: u64,
    pub(crate) since: Timestamp,
    #[serde(default)]
    pub(crate) attempt: u32,
    /// Otherwise control knows another end, and it is only kept here.
    #[serde(default = "yes")]
    pub(crate) wanted: bool,
}

/// What a daemon of an earlier release means that does not say it.
const fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Unknown {
    pub(crate) execution_id: ExecutionId,
    pub(crate) action: ActionName,
    pub(crate) status: Status,
    pub(crate) error: Option<String>,
    /// When control said so.
    pub(crate) since: Timestamp,
}

impl Unknown {
    /// Nothing of what did not end here.
    pub(crate) fn of(row: &Recorded, since: Timestamp) -> Option<Self> {
        let Stage::Ended(outcome) = &row.stage else {
            return None;
        };
        let callback = outcome.callback();
        Some(Self {
            execution_id: row.request.execution_id,
            action: row.request.action.clone(),
            status: callback.status,
            error: callback.error,
            since,
        })
    }
}

impl Owed {
    const fn of(execution_id: ExecutionId, attempt: u32, output: OwedOutput) -> Self {
        Self {
            execution_id,
            bytes: output.bytes,
            since: output.since,
            attempt,
            wanted: output.wanted,
        }
    }
}

impl Untold {
    fn of(request: &ActionRequest, outcome: &Outcome) -> Self {
        let callback = outcome.callback();
        Self {
            execution_id: request.execution_id,
            action: request.action.clone(),
            status: callback.status,
            error: callback.error,
        }
    }
}

impl Overview {
    /// What can be told from the journal alone, while no daemon lives. Nothing of it waits for another: all of it waits
    /// for a daemon.
    pub(crate) fn of_journal(rows: &[Recorded], outputs: &[(Recorded, OwedOutput)]) -> Self {
        let mut overview = Self::default();
        for row in rows {
            let (execution_id, action) = (row.request.execution_id, row.request.action.clone());
            let deadline = row.request.deadline();
            match &row.stage {
                Stage::Taken => overview.waiting.push(Waiting {
                    position: None,
                    execution_id,
                    action,
                    deadline,
                    control_unheard: false,
                    all_slots_taken: false,
                    slot_kept_for: None,
                    behind: Vec::new(),
                    behind_more: false,
                }),
                Stage::Started => overview.running.push(Running {
                    execution_id,
                    action,
                    attempt: row.attempt,
                    since: None,
                    deadline,
                    cancel_asked: row.cancel_asked,
                }),
                Stage::Ended(outcome) => overview.untold.push(Untold::of(&row.request, outcome)),
            }
        }
        let owed =
            |(row, output): &(Recorded, OwedOutput)| Owed::of(row.request.execution_id, row.attempt, *output);
        overview.outputs_owed = outputs.iter().map(owed).collect();
        overview
    }
}

impl Session {
    pub(crate) fn overview(&self) -> Overview {
        let mut overview = Overview {
            waiting: self.queue(),
            outputs_owed: self
                .outputs
                .iter()
                .map(|(execution, outstanding)| {
                    Owed::of(*execution, outstanding.attempts, outstanding.output)
                })
                .collect(),
            ..Overview::default()
        };
        for (id, invocation) in &self.invocations {
            let request = &invocation.request;
            match &invocation.stage {
                Stage::Started => overview.running.push(Running {
                    execution_id: *id,
                    action: request.action.clone(),
                    attempt: invocation.attempt,
                    since: invocation.running_since,
                    deadline: request.deadline(),
                    cancel_asked: invocation.cancel_asked,
                }),
                Stage::Ended(outcome) if invocation.reported != Reported::Terminal => {
                    overview.untold.push(Untold::of(request, outcome));
                }
                Stage::Taken | Stage::Ended(_) => {}
            }
        }
        overview
    }
}
