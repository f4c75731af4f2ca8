//! How `muster` ends: the one table of exit codes, shown by `--help`.

use std::process::ExitCode;

use muster_shared::status::Status;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Exit {
    Success = 0,
    Other = 1,
    Usage = 2,
    SomeFailed = 3,
    SomeTimedOut = 4,
    Refused = 5,
    NoMatch = 6,
    Unreachable = 7,
    WaitOver = 8,
    Interrupted = 130,
}

impl Exit {
    const ALL: [Self; 10] = [
        Self::Success,
        Self::Other,
        Self::Usage,
        Self::SomeFailed,
        Self::SomeTimedOut,
        Self::Refused,
        Self::NoMatch,
        Self::Unreachable,
        Self::WaitOver,
        Self::Interrupted,
    ];

    const fn meaning(self) -> &'static str {
        match self {
            Self::Success => "it was done; with --wait: every invocation succeeded",
            Self::Other => "something else went wrong: a local file, an internal error, an unexpected answer",
            Self::Usage => "the command line, the environment or the context file is wrong; nothing was sent",
            Self::SomeFailed => "an invocation failed or was cancelled",
            Self::SomeTimedOut => "an invocation timed out (whatever else failed)",
            Self::Refused => "control or the issuer refused, or there is no such thing",
            Self::NoMatch => "no node matched, or none passed the gates",
            Self::Unreachable => "control or the issuer cannot be reached, or its certificate does not hold",
            Self::WaitOver => {
                "stopped waiting: the time is over, or control no longer let it watch; an execution goes on, a cancel stands"
            }
            Self::Interrupted => "interrupted; what was dispatched goes on, a cancel stands",
        }
    }

    /// What the targets of a settled execution make of the whole.
    pub(crate) fn of_targets(targets: impl IntoIterator<Item = Status>) -> Self {
        targets
            .into_iter()
            .map(Self::of_target)
            .max_by_key(|exit| exit.severity())
            .unwrap_or(Self::Success)
    }

    const fn of_target(status: Status) -> Self {
        match status {
            Status::Succeeded => Self::Success,
            Status::Failed | Status::Cancelled => Self::SomeFailed,
            Status::Timeout => Self::SomeTimedOut,
            // A settled execution has no such target.
            Status::Pending | Status::Ack | Status::Started => Self::Other,
        }
    }

    /// Unsettled before timed out before failed: success is claimed only of all.
    const fn severity(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::SomeFailed => 1,
            Self::SomeTimedOut => 2,
            Self::Other
            | Self::Usage
            | Self::Refused
            | Self::NoMatch
            | Self::Unreachable
            | Self::WaitOver
            | Self::Interrupted => 3,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The table below `muster --help`.
pub(crate) fn table() -> String {
    let rows = Exit::ALL.map(|exit| format!("  {:>3}  {}", exit as u8, exit.meaning()));
    format!("Exit codes:\n{}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Status::{Cancelled, Failed, Started, Succeeded, Timeout};

    #[test]
    fn a_timeout_outranks_a_failure_and_success_is_unanimous() {
        assert_eq!(Exit::of_targets([Succeeded, Succeeded]), Exit::Success);
        assert_eq!(Exit::of_targets([Succeeded, Failed]), Exit::SomeFailed);
        assert_eq!(Exit::of_targets([Cancelled, Succeeded]), Exit::SomeFailed);
        assert_eq!(Exit::of_targets([Failed, Timeout, Succeeded]), Exit::SomeTimedOut);
        assert_eq!(Exit::of_targets([Succeeded, Started]), Exit::Other);
    }

    #[test]
    fn every_code_is_in_the_table_once() {
        let table = table();
        for code in [
            "  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  ", "  6  ", "  7  ", "  8  ", "130  ",
        ] {
            assert_eq!(table.matches(code).count(), 1, "{code:?}");
        }
    }
}
