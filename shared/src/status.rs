//! The status machine of an invocation, and the fold that gives an execution its status.
//!
//! `pending → ack → started → succeeded | failed | cancelled`, and `timeout` from each of the first three. A
//! terminal status accepts only a re-post of itself. Along these edges a node reports. Control by itself only ends: what
//! nobody will report any more as `timeout`, and what an operator took back as `cancelled`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Pending,
    Ack,
    Started,
    Succeeded,
    Failed,
    Cancelled,
    Timeout,
}

/// A status that a report of a later one may bring with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Passed {
    Ack,
    Started,
}

impl From<Passed> for Status {
    fn from(passed: Passed) -> Self {
        match passed {
            Passed::Ack => Self::Ack,
            Passed::Started => Self::Started,
        }
    }
}

/// Whose word moves an invocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mover {
    /// The node reports.
    Node,
    /// Control decides, because the node has not been told yet or does not answer.
    Control,
}

/// What a reported status does to an invocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Step {
    /// A legal advance.
    Move,
    /// The invocation rests there already: a success without effect.
    Already,
}

/// Why a reported status is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    #[error("the invocation has ended as {0} and stays so")]
    AlreadyTerminal(Status),
    #[error("{from} does not lead to {to}")]
    NotAnAdvance { from: Status, to: Status },
}

impl Status {
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Ack,
        Self::Started,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Timeout,
    ];

    /// The statuses that still wait for something.
    pub const LIVE: [Self; 3] = [Self::Pending, Self::Ack, Self::Started];

    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Ack | Self::Started => false,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::Timeout => true,
        }
    }

    /// Answers every pair of statuses, for both who may move an invocation.
    ///
    /// # Errors
    /// When `to` is not where `by` may take an invocation at `from`.
    pub fn advance(self, to: Self, by: Mover) -> Result<Step, Refused> {
        use Status::{Ack, Cancelled, Failed, Pending, Started, Succeeded, Timeout};
        if self == to {
            return Ok(Step::Already);
        }
        match (self, to, by) {
            (Pending, Ack, Mover::Node)
            | (Ack, Started, Mover::Node)
            | (Started, Succeeded | Failed | Cancelled, Mover::Node)
            | (Pending | Ack | Started, Timeout, Mover::Node | Mover::Control)
            | (Pending | Ack | Started, Cancelled, Mover::Control) => Ok(Step::Move),
            (
                Succeeded | Failed | Cancelled | Timeout,
                Pending | Ack | Started | Succeeded | Failed | Cancelled | Timeout,
                Mover::Node | Mover::Control,
            ) => Err(Refused::AlreadyTerminal(self)),
            (Pending | Ack | Started, Pending, Mover::Node | Mover::Control)
            | (Ack | Started, Ack, Mover::Node)
            | (Pending | Started, Started, Mover::Node)
            | (Pending | Ack, Succeeded | Failed | Cancelled, Mover::Node)
            | (Pending | Ack | Started, Ack | Started | Succeeded | Failed, Mover::Control) => {
                Err(Refused::NotAnAdvance { from: self, to })
            }
        }
    }

    /// What is left of a way through `passed`, in their order, for an invocation that is at `self` already.
    #[must_use]
    pub fn left_of(self, passed: &[Passed]) -> &[Passed] {
        let known = passed.iter().rposition(|status| self == (*status).into());
        known.map_or(passed, |at| &passed[at + 1..])
    }

    /// Takes each step on the way to `to` as if it had been reported by itself. Where the way ends already, nothing is
    /// left to do, whatever it says of how it went there.
    ///
    /// # Errors
    /// When one of the steps is not where `by` may take an invocation.
    pub fn advance_through(self, passed: &[Passed], to: Self, by: Mover) -> Result<Step, Refused> {
        if self == to || self.is_terminal() {
            return self.advance(to, by);
        }
        let mut at = self;
        let passed = self.left_of(passed).iter().map(|status| (*status).into());
        for next in passed.chain([to]) {
            let _ = at.advance(next, by)?;
            at = next;
        }
        Ok(Step::Move)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ack => "ack",
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
        }
    }
}

/// The status of an execution, of how many targets it has in each status.
///
/// Settled: `succeeded` when all did, else the first of `timeout`, `failed`, `cancelled` that any has. Live:
/// `started` once any target went that far, `ack` once any was acknowledged, `pending` before.
#[must_use]
pub fn fold(targets: impl IntoIterator<Item = Status>) -> Status {
    let mut seen = [false; 7];
    for status in targets {
        seen[status as usize] = true;
    }
    let any = |status: Status| seen[status as usize];
    let any_terminal = Status::ALL.into_iter().any(|s| s.is_terminal() && any(s));
    if Status::LIVE.into_iter().any(any) {
        if any(Status::Started) || any_terminal {
            Status::Started
        } else if any(Status::Ack) {
            Status::Ack
        } else {
            Status::Pending
        }
    } else {
        [Status::Timeout, Status::Failed, Status::Cancelled]
            .into_iter()
            .find(|s| any(*s))
            .unwrap_or(Status::Succeeded)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no status.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no status: pending, ack, started, succeeded, failed, cancelled or timeout")]
pub struct BadStatus(String);

impl FromStr for Status {
    type Err = BadStatus;
    fn from_str(raw: &str) -> Result<Self, BadStatus> {
        Self::ALL
            .into_iter()
            .find(|s| s.as_str() == raw)
            .ok_or_else(|| BadStatus(raw.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Status::*;

    fn check_every_pair(by: Mover, moves: &[(Status, Status)]) {
        for from in Status::ALL {
            for to in Status::ALL {
                let expected = if from == to {
                    Ok(Step::Already)
                } else if moves.contains(&(from, to)) {
                    Ok(Step::Move)
                } else if from.is_terminal() {
                    Err(Refused::AlreadyTerminal(from))
                } else {
                    Err(Refused::NotAnAdvance { from, to })
                };
                assert_eq!(from.advance(to, by), expected, "{from} -> {to} by {by:?}");
            }
        }
    }

    #[test]
    fn every_pair_has_the_answer_of_the_published_machine() {
        let moves = [
            (Pending, Ack),
            (Ack, Started),
            (Started, Succeeded),
            (Started, Failed),
            (Started, Cancelled),
            (Pending, Timeout),
            (Ack, Timeout),
            (Started, Timeout),
        ];
        check_every_pair(Mover::Node, &moves);
    }

    #[test]
    fn a_way_is_gone_step_by_step_and_taken_up_where_control_is() {
        let (ack, started) = (Passed::Ack, Passed::Started);
        let go = |from: Status, passed: &[Passed], to| from.advance_through(passed, to, Mover::Node);
        assert_eq!(go(Pending, &[ack], Started), Ok(Step::Move));
        assert_eq!(go(Pending, &[ack, started], Succeeded), Ok(Step::Move));
        // Told again after some of it was taken.
        assert_eq!(go(Ack, &[ack], Started), Ok(Step::Move));
        assert_eq!(go(Started, &[ack, started], Failed), Ok(Step::Move));
        assert_eq!(go(Started, &[ack], Started), Ok(Step::Already));
        assert_eq!(go(Failed, &[ack, started], Failed), Ok(Step::Already));
        for (from, passed, to, at, next) in [
            (Pending, &[started][..], Succeeded, Pending, Started),
            (Pending, &[ack], Succeeded, Ack, Succeeded),
            (Started, &[ack], Succeeded, Started, Ack),
            (Started, &[], Ack, Started, Ack),
        ] {
            assert_eq!(
                go(from, passed, to),
                Err(Refused::NotAnAdvance { from: at, to: next })
            );
        }
        for to in [Started, Succeeded] {
            assert_eq!(
                go(Cancelled, &[ack], to),
                Err(Refused::AlreadyTerminal(Cancelled))
            );
        }
    }

    #[test]
    fn control_only_ends_what_lives_and_never_says_how_an_action_went() {
        let ends = |to| Status::LIVE.map(|from| (from, to));
        check_every_pair(Mover::Control, &[ends(Timeout), ends(Cancelled)].concat());
    }

    #[test]
    fn the_fold_prefers_timeout_then_failed_then_cancelled() {
        assert_eq!(fold([Succeeded, Succeeded]), Succeeded);
        assert_eq!(fold([Succeeded, Cancelled]), Cancelled);
        assert_eq!(fold([Cancelled, Failed, Succeeded]), Failed);
        assert_eq!(fold([Failed, Timeout, Cancelled]), Timeout);
    }

    #[test]
    fn a_live_execution_shows_how_far_any_target_is() {
        assert_eq!(fold([Pending, Pending]), Pending);
        assert_eq!(fold([Pending, Ack]), Ack);
        assert_eq!(fold([Ack, Started]), Started);
        assert_eq!(fold([Pending, Failed]), Started);
    }

    #[test]
    fn names_are_those_of_the_wire() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse::<Status>().unwrap(), status);
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        assert!("Pending".parse::<Status>().is_err());
    }
}
