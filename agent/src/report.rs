//! Delivers callbacks until control has answered: for hours of outage if need be, across restarts by way of the
//! journal. Output goes with the terminal callback, or ahead of it to the output store.

mod upload;

use std::{path::PathBuf, time::Duration};

use muster_shared::{
    status::Status,
    wire::{Base64, Callback, CallbackOutput, CallbackResponse, INLINE_OUTPUT_BYTES_MAX, output_key},
};
use tokio::sync::{Notify, Semaphore};

use crate::{
    backoff::{self, Backoff},
    control::{CallError, Control},
    outcome::{Outcome, Output},
    run_dir::RunDir,
    session::{Delivered, Errand},
};
use upload::{Upload, Uploader};

/// Callbacks under way at the same time.
const POSTS_MAX: usize = 4;
/// Uploads that the store refused, or that broke off, before the invocation is settled without its output.
const UPLOADS_MAX: u32 = 5;

pub(crate) struct Reporter {
    control: Control,
    state_dir: PathBuf,
    backoff_max: Duration,
    uploader: Uploader,
    posts: Semaphore,
    /// Control can be reached again: do not wait any longer.
    reachable: Notify,
}

/// The output as the terminal callback carries it.
#[derive(Default)]
struct Attachment {
    output: Option<CallbackOutput>,
    remark: Option<String>,
}

impl Attachment {
    fn missing(why: impl std::fmt::Display) -> Self {
        Self {
            output: None,
            remark: Some(format!("output_upload_failed: {why}")),
        }
    }
}

/// What an answer of control means for the one who delivers.
enum Answer {
    Done(Delivered),
    Again { after_seconds: Option<u64> },
}

impl Reporter {
    pub(crate) fn new(
        control: Control,
        state_dir: PathBuf,
        backoff_max: Duration,
        ca_pem: Vec<u8>,
        output_ca_file: Option<PathBuf>,
    ) -> Self {
        let uploader = Uploader::new(control.clone(), ca_pem, output_ca_file);
        let posts = Semaphore::new(POSTS_MAX);
        Self {
            control,
            state_dir,
            backoff_max,
            uploader,
            posts,
            reachable: Notify::new(),
        }
    }

    pub(crate) fn nudge(&self) {
        self.reachable.notify_waiters();
    }

    /// Returns when control has answered for good.
    pub(crate) async fn deliver(&self, errand: &Errand) -> Delivered {
        let callback = match &errand.outcome {
            Some(outcome) => {
                let attachment = self.attach(errand, outcome).await;
                Callback {
                    output: attachment.output,
                    ..outcome.callback(attachment.remark.as_deref())
                }
            }
            None => Callback::of(errand.status),
        };
        match self.post(errand, &callback).await {
            Ok(_) => {
                log::debug!(execution_id:% = errand.request.execution_id, action:% = errand.request.action,
                    node_id:% = errand.request.node_id, status:% = errand.status;
                    "Control took a callback");
                Delivered::Taken
            }
            Err(delivered) => delivered,
        }
    }

    /// Posts one callback until control has answered for good.
    async fn post(&self, errand: &Errand, callback: &Callback) -> Result<CallbackResponse, Delivered> {
        let request = &errand.request;
        let mut backoff = Backoff::new(self.backoff_max);
        let mut failures: u64 = 0;
        loop {
            // Waiting for the slot is not waiting for control: the slot is given back before each wait.
            let slot = self.posts.acquire().await;
            let answered = self
                .control
                .callback(request.execution_id, &request.callback_token, callback)
                .await;
            drop(slot);
            let err = match answered {
                Ok(response) => return Ok(response),
                Err(err) => err,
            };
            let after_seconds = match judge(&err) {
                Answer::Done(delivered) => {
                    log::warn!(execution_id:% = request.execution_id, action:% = request.action,
                        node_id:% = request.node_id, status:% = callback.status, error:% = err; "Control will not take a callback: {delivered:?}");
                    return Err(delivered);
                }
                Answer::Again { after_seconds } => after_seconds,
            };
            failures += 1;
            let level = if failures == 1 {
                log::Level::Warn
            } else {
                log::Level::Debug
            };
            log::log!(level, execution_id:% = request.execution_id, action:% = request.action,
                node_id:% = request.node_id, status:% = callback.status, failures,
                error:% = err; "A callback was not taken and is tried again");
            self.wait(&mut backoff, after_seconds).await;
        }
    }

    async fn wait(&self, backoff: &mut Backoff, after_seconds: Option<u64>) {
        match after_seconds {
            Some(seconds) => tokio::time::sleep(backoff::asked_to_wait(seconds, backoff::chance())).await,
            None => {
                tokio::select! {
                    () = tokio::time::sleep(backoff.next(backoff::chance())) => {}
                    () = self.reachable.notified() => backoff.reset(),
                }
            }
        }
    }

    async fn attach(&self, errand: &Errand, outcome: &Outcome) -> Attachment {
        match &outcome.output {
            Output::None => Attachment::default(),
            Output::Inline { bytes } => inline(bytes.clone()),
            Output::Spool {
                kept_bytes, sha256, ..
            } => {
                let run = RunDir::of(&self.state_dir, errand.request.execution_id, errand.attempt);
                if *kept_bytes <= INLINE_OUTPUT_BYTES_MAX as u64 {
                    return match tokio::fs::read(run.output()).await {
                        Ok(bytes) => inline(Base64(bytes)),
                        Err(err) => {
                            Attachment::missing(format!("the output is not on this node any more: {err}"))
                        }
                    };
                }
                let upload = Upload {
                    file: run.output(),
                    bytes: *kept_bytes,
                };
                match self.upload(errand, &upload).await {
                    Ok(()) => Attachment {
                        output: Some(CallbackOutput {
                            object_key: Some(output_key(errand.request.execution_id, errand.request.node_id)),
                            sha256: Some(*sha256),
                            inline: None,
                        }),
                        remark: None,
                    },
                    Err(why) => {
                        log::error!(execution_id:% = errand.request.execution_id, action:% = errand.request.action,
                            node_id:% = errand.request.node_id;
                            "The output was not uploaded: {why}");
                        Attachment::missing(why)
                    }
                }
            }
        }
    }

    /// Each try asks for a fresh address: the last one may have run out while the hook ran or the store was down.
    async fn upload(&self, errand: &Errand, upload: &Upload) -> Result<(), String> {
        let mut backoff = Backoff::new(self.backoff_max);
        let declaration = Callback {
            declared_output_bytes: Some(upload.bytes),
            ..Callback::of(Status::Started)
        };
        let mut tries = 0;
        loop {
            let why = match self.post(errand, &declaration).await {
                Ok(CallbackResponse {
                    output_upload_url: Some(url),
                    output_upload_headers,
                    ..
                }) => match self.uploader.put(&url, &output_upload_headers, upload).await {
                    Ok(()) => return Ok(()),
                    Err(why) => why,
                },
                Ok(_) => "control gave no address to upload to".to_owned(),
                Err(delivered) => return Err(format!("control has no place for it ({delivered:?})")),
            };
            tries += 1;
            if tries >= UPLOADS_MAX {
                return Err(why);
            }
            log::warn!(execution_id:% = errand.request.execution_id, action:% = errand.request.action,
                node_id:% = errand.request.node_id, tries; "An upload failed: {why}");
            self.wait(&mut backoff, None).await;
        }
    }
}

fn inline(bytes: Base64) -> Attachment {
    Attachment {
        output: Some(CallbackOutput {
            inline: Some(bytes),
            object_key: None,
            sha256: None,
        }),
        remark: None,
    }
}

/// Only an answer that can never change is an end; anything else is tried again.
fn judge(err: &CallError) -> Answer {
    let again = Answer::Again {
        after_seconds: err.retry_after_seconds(),
    };
    match err {
        CallError::Unreachable(_) | CallError::Senseless(_) => again,
        CallError::Refused { status, .. } => match (*status, err.code()) {
            (409, Some("invalid_state_transition")) => Answer::Done(Delivered::Ahead),
            (409, _) => Answer::Done(Delivered::Settled),
            (401 | 408 | 425 | 429, _) => again,
            (400..=499, _) => Answer::Done(Delivered::Gone),
            _ => again,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::wire::Problem;

    fn refused(status: u16, code: &str) -> Option<Delivered> {
        let problem = Problem {
            kind: String::new(),
            title: String::new(),
            status,
            detail: String::new(),
            instance: String::new(),
            code: Some(code.into()),
            position: None,
            dropped: Vec::new(),
            reason: None,
            correlation_id: None,
        };
        match judge(&CallError::Refused {
            status,
            problem: Some(Box::new(problem)),
            retry_after_seconds: None,
        }) {
            Answer::Done(delivered) => Some(delivered),
            Answer::Again { .. } => None,
        }
    }

    #[test]
    fn only_an_answer_for_good_ends_the_delivery() {
        assert_eq!(
            refused(409, "execution_already_terminal"),
            Some(Delivered::Settled)
        );
        assert_eq!(refused(409, "invalid_state_transition"), Some(Delivered::Ahead));
        assert_eq!(refused(404, "execution_not_found"), Some(Delivered::Gone));
        assert_eq!(refused(403, "callback_token_mismatch"), Some(Delivered::Gone));
        for status in [401, 408, 429, 500, 502, 503, 302] {
            assert_eq!(refused(status, ""), None, "{status}");
        }
    }
}
