//! What control is told of an ending, and in which words.

use std::time::Duration;

use muster_shared::wire::{Callback, ERROR_TEXT_BYTES_MAX};

use super::{Ended, Outcome, Output, cut};

impl Outcome {
    /// The terminal callback, without its output.
    pub(crate) fn callback(&self) -> Callback {
        let parts: Vec<String> = self.error().into_iter().chain(self.remark.clone()).collect();
        let output_total_bytes = match self.output {
            Output::None => None,
            Output::Inline { total_bytes, .. } => total_bytes,
            Output::Spool { total_bytes, .. } => Some(total_bytes),
        };
        Callback {
            exit_code: self.exit_code().map(i64::from),
            error: (!parts.is_empty()).then(|| cut(&parts.join("; "), ERROR_TEXT_BYTES_MAX)),
            output_total_bytes,
            ..Callback::of(self.status())
        }
    }

    const fn exit_code(&self) -> Option<i32> {
        match self.ended {
            Ended::Exited { code } => Some(code),
            Ended::OutOfMemory { code, .. } => code,
            Ended::Signalled { .. }
            | Ended::TimedOut { .. }
            | Ended::Stopped { .. }
            | Ended::CutOff { .. }
            | Ended::Cancelled { .. }
            | Ended::CancelledWaiting
            | Ended::Refused { .. }
            | Ended::Broke { .. }
            | Ended::Expired
            | Ended::Withdrawn
            | Ended::Lost { .. } => None,
        }
    }

    fn error(&self) -> Option<String> {
        let killed_text = |killed| if killed { ", had to be killed" } else { "" };
        match &self.ended {
            Ended::Exited { code: 0 } => None,
            Ended::Exited { code } => Some(format!("exit status {code}")),
            Ended::Signalled { signal } => Some(format!("killed by signal {signal}{}", signal_name(*signal))),
            Ended::OutOfMemory {
                processes_killed,
                code,
                memory_max_bytes,
            } => {
                let code = code.map_or_else(String::new, |code| format!("; exit status {code}"));
                Some(format!(
                    "{}{code}",
                    short_of_memory(*processes_killed, *memory_max_bytes)
                ))
            }
            Ended::TimedOut { limit_ms, killed } => {
                let limit = in_seconds(Duration::from_millis(*limit_ms));
                Some(format!("timeout: ended after {limit}{}", killed_text(*killed)))
            }
            Ended::Stopped { processes_killed } => {
                Some(format!("stopped on the node{}", count_killed(*processes_killed)))
            }
            Ended::CutOff { processes_killed } => Some(format!(
                "node rebooted: the action was cut off{}",
                count_killed(*processes_killed)
            )),
            Ended::Cancelled { processes_killed } => Some(format!(
                "cancelled: ended on request{}",
                count_killed(*processes_killed)
            )),
            Ended::CancelledWaiting => Some("cancelled: it had not started".to_owned()),
            Ended::Refused { code, why } => Some(format!("{code}: {why}")),
            Ended::Broke { why } | Ended::Lost { why } => Some(why.clone()),
            Ended::Expired => Some("expired: its time was over before it could start".to_owned()),
            Ended::Withdrawn => Some("withdrawn: control had settled it before it could start".to_owned()),
        }
    }
}

pub(super) fn short_of_memory(processes: u64, memory_max_bytes: Option<u64>) -> String {
    let limit = memory_max_bytes.map_or_else(String::new, |max| format!(" (memory_max_bytes {max})"));
    format!("out_of_memory: the kernel killed {processes} process(es) of it{limit}")
}

fn count_killed(processes: u32) -> String {
    match processes {
        0 => String::new(),
        count => format!(", {count} process(es) had to be killed"),
    }
}

/// To a tenth of a second: what is left until an expiry is never round.
fn in_seconds(limit: Duration) -> String {
    let text = format!("{:.1}", limit.as_secs_f64());
    format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        14 => " (SIGALRM)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        25 => " (SIGXFSZ)",
        31 => " (SIGSYS)",
        _ => "",
    }
}
