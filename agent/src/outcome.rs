//! How an invocation ended, and what that means.

mod words;

use muster_shared::{ids::Digest, status::Status, wire::Base64};
use serde::{Deserialize, Serialize};

use crate::{cgroup::Counts, limits::HookLimits};
use words::short_of_memory;

/// Every way an invocation can end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub(crate) enum Ended {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
    },
    TimedOut {
        limit_ms: u64,
        killed: bool,
    },
    /// It went wrong, and the kernel had killed in it for lack of memory: the limit of its own, where it had one.
    OutOfMemory {
        processes_killed: u64,
        code: Option<i32>,
        memory_max_bytes: Option<u64>,
    },
    /// Its supervisor was told to stop it.
    Stopped {
        #[serde(default)]
        processes_killed: u32,
    },
    /// The same, and the node has booted anew since: a system that shuts down stops what runs on it.
    CutOff {
        processes_killed: u32,
    },
    /// The same as a stop, because control had asked to cancel it.
    Cancelled {
        processes_killed: u32,
    },
    /// Control asked to cancel it before its turn came.
    CancelledWaiting,
    /// The node would not, or could not, start it: a reason code, and the reason in words.
    Refused {
        code: String,
        why: String,
    },
    /// It ran in the daemon and went wrong there.
    Broke {
        why: String,
    },
    /// Its time was over before its turn came.
    Expired,
    /// Control had settled it before its turn came.
    Withdrawn,
    /// Nobody is left who saw it end.
    Lost {
        why: String,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(tag = "kept", rename_all = "snake_case")]
pub(crate) enum Output {
    #[default]
    None,
    Inline {
        bytes: Base64,
        /// Of the whole, where this is only its beginning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_bytes: Option<u64>,
    },
    /// The file `output` of the run directory.
    Spool {
        kept_bytes: u64,
        total_bytes: u64,
        sha256: Digest,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    #[serde(default)]
    pub(crate) output: Output,
    /// Something that the operator should know beside the ending itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remark: Option<String>,
}

impl Outcome {
    pub(crate) const fn of(ended: Ended) -> Self {
        Self {
            ended,
            output: Output::None,
            remark: None,
        }
    }

    pub(crate) fn refused(code: &str, why: impl Into<String>) -> Self {
        Self::of(Ended::Refused {
            code: code.to_owned(),
            why: why.into(),
        })
    }

    pub(crate) fn refused_by_policy(rule: &str) -> Self {
        Self::refused(
            "refused_by_policy",
            format!("the node's own policy forbids it: {rule}"),
        )
    }

    /// The same with something more to say.
    pub(crate) fn with_remark(mut self, further: Option<String>) -> Self {
        let remarks: Vec<String> = self.remark.take().into_iter().chain(further).collect();
        self.remark = (!remarks.is_empty()).then(|| remarks.join("; "));
        self
    }

    pub(crate) const fn status(&self) -> Status {
        match self.ended {
            Ended::Exited { code: 0 } => Status::Succeeded,
            Ended::Exited { .. }
            | Ended::Signalled { .. }
            | Ended::OutOfMemory { .. }
            | Ended::CutOff { .. }
            | Ended::Refused { .. }
            | Ended::Broke { .. }
            | Ended::Lost { .. } => Status::Failed,
            Ended::TimedOut { .. } | Ended::Expired => Status::Timeout,
            Ended::Stopped { .. } | Ended::Cancelled { .. } | Ended::CancelledWaiting | Ended::Withdrawn => {
                Status::Cancelled
            }
        }
    }

    /// Whether somebody else ended it, and not it or its time.
    pub(crate) const fn was_cut_off(&self) -> bool {
        match self.ended {
            Ended::Signalled { .. }
            | Ended::Stopped { .. }
            | Ended::CutOff { .. }
            | Ended::OutOfMemory { code: None, .. } => true,
            Ended::Exited { .. }
            | Ended::OutOfMemory { code: Some(_), .. }
            | Ended::TimedOut { .. }
            | Ended::Cancelled { .. }
            | Ended::CancelledWaiting
            | Ended::Refused { .. }
            | Ended::Broke { .. }
            | Ended::Expired
            | Ended::Withdrawn
            | Ended::Lost { .. } => false,
        }
    }

    /// A stop means a cancel where control had asked for one. Any other end came before the stop, and stays.
    pub(crate) fn of_cancelled(self) -> Self {
        self.if_stopped(|processes_killed| Ended::Cancelled { processes_killed })
    }

    /// A stop that was followed by a boot is one by the system, unless control had asked for it.
    pub(crate) fn before_boot(self) -> Self {
        self.if_stopped(|processes_killed| Ended::CutOff { processes_killed })
    }

    /// Another word for a stop that nobody has claimed yet.
    fn if_stopped(self, told: impl FnOnce(u32) -> Ended) -> Self {
        match self.ended {
            Ended::Stopped { processes_killed } | Ended::CutOff { processes_killed } => Self {
                ended: told(processes_killed),
                ..self
            },
            Ended::Exited { .. }
            | Ended::Signalled { .. }
            | Ended::OutOfMemory { .. }
            | Ended::TimedOut { .. }
            | Ended::Cancelled { .. }
            | Ended::CancelledWaiting
            | Ended::Refused { .. }
            | Ended::Broke { .. }
            | Ended::Expired
            | Ended::Withdrawn
            | Ended::Lost { .. } => self,
        }
    }

    /// What the kernel counted against its limits. A hook that went wrong after it was killed in went wrong by that;
    /// one that coped with it is told as it ended.
    pub(crate) fn with_counts(self, counts: Counts, limits: &HookLimits) -> Self {
        let Counts {
            oom_kills: processes_killed,
            forks_refused,
        } = counts;
        let out_of_memory = |code| Ended::OutOfMemory {
            processes_killed,
            code,
            memory_max_bytes: limits.memory_max_bytes,
        };
        let (ended, said) = match self.ended {
            Ended::Exited { code } if code != 0 && processes_killed > 0 => (out_of_memory(Some(code)), true),
            Ended::Signalled { .. } if processes_killed > 0 => (out_of_memory(None), true),
            other @ (Ended::Exited { .. }
            | Ended::Signalled { .. }
            | Ended::OutOfMemory { .. }
            | Ended::TimedOut { .. }
            | Ended::Stopped { .. }
            | Ended::CutOff { .. }
            | Ended::Cancelled { .. }
            | Ended::CancelledWaiting
            | Ended::Refused { .. }
            | Ended::Broke { .. }
            | Ended::Expired
            | Ended::Withdrawn
            | Ended::Lost { .. }) => (other, false),
        };
        let memory = (processes_killed > 0 && !said)
            .then(|| short_of_memory(processes_killed, limits.memory_max_bytes));
        let pids = (forks_refused > 0).then(|| {
            let limit = limits
                .pids_max
                .map_or_else(String::new, |max| format!(" (pids_max {max})"));
            format!("too_many_processes: {forks_refused} time(s) it could start no further one{limit}")
        });
        let counted = Self {
            ended,
            output: self.output,
            remark: self.remark,
        };
        counted.with_remark(memory).with_remark(pids)
    }
}

/// The longest beginning of `text` that fits, in whole characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::ERROR_TEXT_BYTES_MAX;

    use super::*;

    fn told(ended: Ended) -> (Status, Option<i64>, Option<String>) {
        let callback = Outcome::of(ended).callback();
        (callback.status, callback.exit_code, callback.error)
    }

    #[test]
    fn every_ending_is_told_as_it_was() {
        assert_eq!(
            told(Ended::Exited { code: 0 }),
            (Status::Succeeded, Some(0), None)
        );
        assert_eq!(
            told(Ended::Exited { code: 3 }),
            (Status::Failed, Some(3), Some("exit status 3".into()))
        );
        assert_eq!(
            told(Ended::Signalled { signal: 9 }),
            (Status::Failed, None, Some("killed by signal 9 (SIGKILL)".into()))
        );
        assert_eq!(
            told(Ended::TimedOut {
                limit_ms: 5000,
                killed: true
            }),
            (
                Status::Timeout,
                None,
                Some("timeout: ended after 5 s, had to be killed".into())
            )
        );
        assert_eq!(
            told(Ended::TimedOut {
                limit_ms: 2_971,
                killed: false
            })
            .2
            .as_deref(),
            Some("timeout: ended after 3 s")
        );
        assert_eq!(told(Ended::Expired).0, Status::Timeout);
        assert_eq!(
            told(Ended::Stopped { processes_killed: 0 }),
            (Status::Cancelled, None, Some("stopped on the node".into()))
        );
        let cancelled = Outcome::of(Ended::Stopped { processes_killed: 2 }).of_cancelled();
        assert_eq!(
            told(cancelled.ended),
            (
                Status::Cancelled,
                None,
                Some("cancelled: ended on request, 2 process(es) had to be killed".into())
            )
        );
        assert_eq!(told(Ended::CancelledWaiting).0, Status::Cancelled);
    }

    #[test]
    fn lack_of_memory_is_told_where_it_did_harm() {
        let limits = HookLimits {
            memory_max_bytes: Some(64),
            ..HookLimits::default()
        };
        let counts = Counts {
            oom_kills: 1,
            forks_refused: 0,
        };
        let said = |ended| {
            let callback = Outcome::of(ended).with_counts(counts, &limits).callback();
            (callback.status, callback.exit_code, callback.error.unwrap())
        };
        let text = "out_of_memory: the kernel killed 1 process(es) of it (memory_max_bytes 64)";
        assert_eq!(
            said(Ended::Signalled { signal: 9 }),
            (Status::Failed, None, text.to_owned())
        );
        assert_eq!(
            said(Ended::Exited { code: 137 }),
            (Status::Failed, Some(137), format!("{text}; exit status 137"))
        );
        assert_eq!(
            said(Ended::Exited { code: 0 }),
            (Status::Succeeded, Some(0), text.to_owned())
        );
        let nothing = Outcome::of(Ended::Signalled { signal: 9 });
        assert_eq!(nothing.clone().with_counts(Counts::default(), &limits), nothing);
    }

    #[test]
    fn processes_that_were_refused_are_told_with_the_limit() {
        let limits = HookLimits {
            pids_max: Some(5),
            ..HookLimits::default()
        };
        let counts = Counts {
            oom_kills: 0,
            forks_refused: 3,
        };
        let outcome = Outcome::of(Ended::Exited { code: 2 }).with_counts(counts, &limits);
        let error = outcome.callback().error.unwrap();
        assert!(
            error.contains("exit status 2") && error.contains("pids_max 5"),
            "{error}"
        );
    }

    #[test]
    fn a_stop_before_a_boot_is_the_reboot_unless_control_had_asked() {
        let stopped = Outcome::of(Ended::Stopped { processes_killed: 0 });
        let (status, _, error) = told(stopped.clone().before_boot().ended);
        assert_eq!(status, Status::Failed);
        assert_eq!(error.unwrap(), "node rebooted: the action was cut off");
        assert_eq!(stopped.before_boot().of_cancelled().status(), Status::Cancelled);
        let done = Outcome::of(Ended::Exited { code: 0 });
        assert_eq!(done.clone().before_boot(), done);
    }

    #[test]
    fn an_error_text_is_cut_between_characters() {
        let outcome = Outcome::refused("hook_refused", "ü".repeat(ERROR_TEXT_BYTES_MAX));
        let error = outcome.callback().error.unwrap();
        assert!(error.len() <= ERROR_TEXT_BYTES_MAX && error.ends_with('ü'));
    }

    #[test]
    fn a_remark_stands_beside_a_success() {
        let outcome = Outcome {
            remark: Some("output_incomplete: no space".into()),
            ..Outcome::of(Ended::Exited { code: 0 })
        };
        let callback = outcome.callback();
        assert_eq!(callback.status, Status::Succeeded);
        assert_eq!(callback.error.unwrap(), "output_incomplete: no space");
    }
}
