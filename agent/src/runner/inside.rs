//! Builtins that work inside the daemon, and what is kept of what they answer.

use std::{sync::Arc, time::Duration};

use muster_shared::{
    ids::Digest,
    wire::{ActionRequest, Base64, INLINE_OUTPUT_BYTES_MAX},
};

use super::{Runner, outcome_of_failed};
use crate::{
    builtins, durable,
    outcome::{Ended, Outcome, Output, cut},
    run_dir::RunDir,
};

impl Runner {
    pub(super) async fn builtin(&self, request: &ActionRequest, attempt: u32, limit: Duration) -> Outcome {
        let context = builtins::Context {
            node: self.node,
            catalog: Arc::clone(&self.catalog.borrow()),
            reload: self.reload.clone(),
        };
        let (action, parameters) = (
            request.action.clone(),
            request.parameters.clone().unwrap_or_default(),
        );
        let slot = builtins::slot(action.as_str());
        let work = self.builtin_slots.work(slot, move || {
            builtins::run(action.as_str(), &parameters, &context)
        });
        match tokio::time::timeout(limit, work).await {
            Err(_) => {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                Outcome::of(Ended::TimedOut {
                    limit_ms,
                    killed: false,
                })
            }
            Ok(Err(_panic)) => Outcome::of(Ended::Broke {
                why: "the builtin failed inside musterd".to_owned(),
            }),
            Ok(Ok(Err(failed))) => outcome_of_failed(request, failed),
            Ok(Ok(Ok(bytes))) => {
                let run = RunDir::of(&self.config().state_dir, request.execution_id, attempt);
                let (output, remark) = keep(&run, bytes);
                Outcome {
                    ended: Ended::Exited { code: 0 },
                    output,
                    remark,
                }
            }
        }
    }
}

/// Small output stays with the journal's record of the ending; larger goes to a spool as a hook's does. Where there is no
/// room for that, its beginning stays, and a remark says so.
fn keep(run: &RunDir, bytes: Vec<u8>) -> (Output, Option<String>) {
    let total_bytes = bytes.len() as u64;
    if bytes.len() <= INLINE_OUTPUT_BYTES_MAX {
        let bytes = Base64(bytes);
        let total_bytes = None;
        return (Output::Inline { bytes, total_bytes }, None);
    }
    let written = run.create().and_then(|()| durable::write(&run.output(), &bytes));
    let Err(err) = written else {
        let sha256 = Digest::of(&bytes);
        let output = Output::Spool {
            kept_bytes: total_bytes,
            total_bytes,
            sha256,
        };
        return (output, None);
    };
    let beginning = cut(&String::from_utf8_lossy(&bytes), INLINE_OUTPUT_BYTES_MAX);
    let remark = format!(
        "output_incomplete: the spool could not be written: {err}; these are the first {} of {total_bytes} bytes",
        beginning.len()
    );
    let output = Output::Inline {
        bytes: Base64(beginning.into_bytes()),
        total_bytes: Some(total_bytes),
    };
    (output, Some(remark))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn of_an_output_that_finds_no_room_the_beginning_is_kept_and_the_rest_is_said_to_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = "ä".repeat(INLINE_OUTPUT_BYTES_MAX).into_bytes();
        let total = bytes.len() as u64;
        let (whole, remark) = keep(&RunDir::at(dir.path().join("run")), bytes.clone());
        assert!(matches!(whole, Output::Spool { kept_bytes, .. } if kept_bytes == total));
        assert_eq!(remark, None);
        // Not even its directory can be made.
        fs::write(dir.path().join("file"), "").unwrap();
        let (output, remark) = keep(&RunDir::at(dir.path().join("file/run")), bytes.clone());
        let Output::Inline {
            bytes: kept,
            total_bytes,
        } = output
        else {
            panic!("{output:?}")
        };
        assert_eq!(
            (kept.0.len(), total_bytes),
            (INLINE_OUTPUT_BYTES_MAX, Some(total))
        );
        assert!(bytes.starts_with(&kept.0));
        let remark = remark.unwrap();
        assert!(
            remark.starts_with("output_incomplete: ") && remark.contains(&format!("of {total} bytes")),
            "{remark}"
        );
    }
}
