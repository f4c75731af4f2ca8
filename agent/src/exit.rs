//! How the program ends: a sentence for people, a number for scripts.

use std::process::ExitCode;

pub(crate) use muster_shared::causes::chain;

/// Shown below `--help`; the README repeats it.
pub(crate) const TABLE: &str = "\
Exit codes:
  0  done, or stopped as asked
  1  failed; the message says why
  2  the command line is wrong
  3  the configuration is wrong
  4  this machine is not enrolled, or is enrolled already, or its identity is a copy
  5  another musterd holds the state directory
  6  the control service refused
  7  the control service could not be reached, or does not serve now
  8  the journal is damaged or belongs to another enrolment
  9  status: no daemon runs
  10 status: a daemon holds the state directory and gives no answer

status ends with 0 when the daemon runs and is connected, and with 7 when it runs and is not. hooks check and doctor end with 1
when something failed. run-local has codes of its own: see its --help.";

pub(crate) const DONE: u8 = 0;
/// A finding was bad; it is told on standard output.
pub(crate) const FOUND_BAD: u8 = 1;
pub(crate) const UNREACHABLE: u8 = 7;
pub(crate) const NO_DAEMON: u8 = 9;
pub(crate) const MUTE: u8 = 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Exit {
    #[error("{0}")]
    Failure(String),
    #[error("{0}")]
    BadConfig(String),
    #[error("{0}")]
    Enrolment(String),
    #[error("{0}")]
    StateInUse(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Journal(String),
}

impl Exit {
    const fn code(&self) -> u8 {
        match self {
            Self::Failure(_) => 1,
            Self::BadConfig(_) => 3,
            Self::Enrolment(_) => 4,
            Self::StateInUse(_) => 5,
            Self::Refused(_) => 6,
            Self::Unreachable(_) => UNREACHABLE,
            Self::Journal(_) => 8,
        }
    }

    pub(crate) fn explain_and_code(&self) -> ExitCode {
        crate::logging::say_on_stderr(&format!("musterd: {self}"));
        ExitCode::from(self.code())
    }
}
