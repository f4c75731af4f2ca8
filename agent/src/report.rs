//! Delivers callbacks until control has answered: for hours of outage if need be, across restarts by way of the
//! journal. Output goes with the terminal callback, or ahead of it to the output store.
//!
//! An end waits for its output a bounded time and never past its deadline: no upload makes a status late. What could not
//! be uploaded by then is told on the target, kept here, and brought later with the same terminal callback.

mod post;
mod upload;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_shared::{
    ids::Digest,
    status::{Passed, Status},
    time::Timestamp,
    wire::{
        ActionRequest, Base64, Callback, CallbackOutput, CallbackResponse, ERROR_TEXT_BYTES_MAX,
        INLINE_OUTPUT_BYTES_MAX, output_key,
    },
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::{
    backoff::{self, Backoff},
    clock::Clock,
    config::Config,
    control::Control,
    kick::Kicks,
    outcome::{Outcome, Output, cut},
    run_dir::RunDir,
    session::{Delivered, Errand, OwedOutput},
    unharmed::unharmed,
};
use post::{Post, Posted};
use upload::{NotPut, Turn, Upload, Uploader};

/// Uploads that the store refused, or that broke off, before the invocation is settled without its output.
const UPLOADS_MAX: u32 = 5;
/// How often a small output is read that is there and cannot be.
const READS_MAX: u32 = 5;
/// What an upload gets also where there is no time to lose.
const PATIENCE_MIN: Duration = Duration::from_secs(5);

pub(crate) struct Reporter {
    post: Post,
    state_dir: PathBuf,
    clock: Clock,
    backoff: backoff::Bounds,
    settings: watch::Receiver<Arc<Config>>,
    uploader: Uploader,
}

/// What there is to be delivered beside the end itself.
enum Delivery {
    Nothing,
    Inline(Base64),
    File(Upload),
    Lost(String),
}

/// What came of one try to bring an output together with its end.
enum Tried {
    Told(Delivered),
    Failed(String),
    /// A further try would end the same.
    Hopeless {
        delivered: Delivered,
        why: String,
    },
    Lost(String),
}

impl Reporter {
    pub(crate) fn new(
        control: Control,
        clock: Clock,
        settings: watch::Receiver<Arc<Config>>,
        kicks: Kicks,
        ca_pem: Vec<u8>,
    ) -> Self {
        // What a reload cannot change is read once.
        let config = Arc::clone(&settings.borrow());
        let (limits, output_ca_file) = (&config.limits, config.output_ca_file.clone());
        let uploader = Uploader::new(control.clone(), ca_pem, output_ca_file, limits.idle);
        Self {
            post: Post::new(control, limits.backoff, kicks),
            state_dir: config.state_dir.clone(),
            clock,
            backoff: limits.backoff,
            settings,
            uploader,
        }
    }

    pub(crate) fn nudge(&self) {
        self.post.nudge();
    }

    /// Returns when control has answered for good. A panic on the way is that of one callback, which is told again later.
    pub(crate) async fn deliver_at_last(&self, errand: &Errand) -> Delivered {
        let mut backoff = Backoff::new(self.backoff);
        loop {
            if let Some(delivered) = unharmed(self.deliver(errand)).await {
                return delivered;
            }
            self.after_panic(errand, &mut backoff).await;
        }
    }

    /// The same of an output that follows its end.
    pub(crate) async fn bring_output_at_last(
        &self,
        errand: &Errand,
        output: OwedOutput,
        given_up: watch::Receiver<bool>,
    ) -> bool {
        let mut backoff = Backoff::new(self.backoff);
        loop {
            let brought = unharmed(self.bring_output(errand, output, given_up.clone())).await;
            if let Some(unknown) = brought {
                return unknown;
            }
            self.after_panic(errand, &mut backoff).await;
        }
    }

    async fn after_panic(&self, errand: &Errand, backoff: &mut Backoff) {
        log::error!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id, status:% = errand.status;
            "A report to control broke in musterd and is tried again");
        self.post.wait(backoff, None, &mut self.post.kicks()).await;
    }

    async fn deliver(&self, errand: &Errand) -> Delivered {
        let passed = errand.passed.clone();
        let Some(outcome) = &errand.outcome else {
            let step = Callback {
                passed,
                ..Callback::of(errand.status)
            };
            return self.tell(errand, &step).await;
        };
        let end = Callback {
            passed,
            ..outcome.callback()
        };
        match self.delivery(errand, outcome).await {
            Delivery::Nothing => self.tell(errand, &end).await,
            Delivery::Inline(bytes) => {
                let output = CallbackOutput {
                    inline: Some(bytes),
                    ..CallbackOutput::default()
                };
                let output = Some(output);
                self.tell(errand, &Callback { output, ..end }).await
            }
            Delivery::Lost(why) => self.tell(errand, &without_output(end, &why)).await,
            Delivery::File(upload) => self.deliver_with_upload(errand, end, &upload).await,
        }
    }

    async fn delivery(&self, errand: &Errand, outcome: &Outcome) -> Delivery {
        match &outcome.output {
            Output::None => Delivery::Nothing,
            Output::Inline { bytes, .. } => Delivery::Inline(bytes.clone()),
            Output::Spool {
                kept_bytes, sha256, ..
            } => {
                let file = RunDir::of(&self.state_dir, errand.request.execution_id, errand.attempt).output();
                if *kept_bytes > INLINE_OUTPUT_BYTES_MAX as u64 {
                    return Delivery::File(Upload {
                        file,
                        bytes: *kept_bytes,
                        sha256: *sha256,
                    });
                }
                self.read_small(&errand.request, &file, *sha256).await
            }
        }
    }

    /// Only what is not there is lost. Whatever else is in the way may pass.
    async fn read_small(&self, request: &ActionRequest, file: &Path, sha256: Digest) -> Delivery {
        let mut backoff = Backoff::new(self.backoff);
        for tries in 1.. {
            match tokio::fs::read(file).await {
                Ok(bytes) if Digest::of(&bytes) == sha256 => return Delivery::Inline(Base64(bytes)),
                Ok(_other) => return Delivery::Lost("the output was damaged on this node".to_owned()),
                Err(err) if err.kind() == io::ErrorKind::NotFound || tries == READS_MAX => {
                    return Delivery::Lost(format!("the output cannot be read on this node: {err}"));
                }
                Err(err) => {
                    log::warn!(execution_id:% = request.execution_id, action:% = request.action, node_id:% = request.node_id, tries,
                        error:% = err; "An output could not be read and is tried again")
                }
            }
            self.post.wait(&mut backoff, None, &mut self.post.kicks()).await;
        }
        unreachable!("the last try has returned")
    }

    /// Tries for as long as the end may wait, then tells the end without its output.
    async fn deliver_with_upload(&self, errand: &Errand, end: Callback, upload: &Upload) -> Delivered {
        let mut backoff = Backoff::new(self.backoff);
        let mut until = None;
        let mut tries = 0;
        let (why, kept) = loop {
            match self
                .try_output(errand, upload, &end, Status::Started, &mut until)
                .await
            {
                Tried::Told(delivered) => return delivered,
                Tried::Lost(why) => break (why, false),
                Tried::Hopeless { why, .. } => break (why, true),
                Tried::Failed(why) => {
                    tries += 1;
                    log::warn!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id, tries; "An upload failed: {why}");
                    if tries >= UPLOADS_MAX {
                        break (why, true);
                    }
                    let mut kicks = self.post.kicks();
                    let wait = self.post.wait(&mut backoff, None, &mut kicks);
                    let in_time = match until {
                        Some(until) => timeout_at(until, wait).await.is_ok(),
                        None => {
                            wait.await;
                            true
                        }
                    };
                    if !in_time {
                        break (why, true);
                    }
                }
            }
        };
        log::error!(execution_id:% = errand.request.execution_id, node_id:% = errand.request.node_id, action:% = errand.request.action;
            "An end is told without its output: {why}");
        let told = self.tell(errand, &without_output(end, &why)).await;
        if kept && told == Delivered::Taken {
            Delivered::WithoutOutput
        } else {
            told
        }
    }

    /// Brings the output of an end that control knows, until control has it or will never take it, or it is not kept
    /// any longer. Answers whether it stays here all the same, because control does not know the execution.
    async fn bring_output(
        &self,
        errand: &Errand,
        output: OwedOutput,
        given_up: watch::Receiver<bool>,
    ) -> bool {
        let Some(outcome) = &errand.outcome else {
            return false;
        };
        if !output.wanted {
            self.keep(errand, output, given_up).await;
            return false;
        }
        let end = outcome.callback();
        let why = match self.delivery(errand, outcome).await {
            Delivery::File(upload) => {
                tokio::select! {
                    ended = self.keep_trying(errand, &end, &upload) => match ended {
                        Ok(Delivered::Settled) => {
                            self.keep(errand, output, given_up).await;
                            return false;
                        }
                        Ok(delivered) => return delivered == Delivered::Unknown,
                        Err(lost) => lost,
                    },
                    why = self.kept_long_enough(output.since, given_up.clone()) => why.to_owned(),
                }
            }
            Delivery::Lost(why) => why,
            Delivery::Nothing | Delivery::Inline(_) => return false,
        };
        log::error!(execution_id:% = errand.request.execution_id, node_id:% = errand.request.node_id, action:% = errand.request.action;
            "An output is given up: {why}");
        let last_word = without_output(end, &format!("given up: {why}"));
        // The journal holds it for owed until control has heard even this.
        let _ = self.post.deliver(errand, &last_word).await;
        false
    }

    /// Of an end that control knows otherwise. It takes nothing of that, so the file is for whoever looks here.
    async fn keep(&self, errand: &Errand, output: OwedOutput, given_up: watch::Receiver<bool>) {
        let file = RunDir::of(&self.state_dir, errand.request.execution_id, errand.attempt).output();
        log::warn!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id,
            file:% = file.display(); "Control takes no output of an end that came late; it is kept here for a while");
        let why = self.kept_long_enough(output.since, given_up).await;
        log::info!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id;
            "An output that control did not take is removed: {why}");
    }

    /// By the present setting, and by control's clock. Answers why it goes.
    async fn kept_long_enough(&self, since: Timestamp, mut given_up: watch::Receiver<bool>) -> &'static str {
        let mut settings = self.settings.clone();
        loop {
            let keep_until = since.plus(settings.borrow_and_update().limits.output_keep);
            tokio::select! {
                () = self.clock.reaches(keep_until) => {
                    return "it was kept here for as long as output_keep_days says";
                }
                _ = given_up.wait_for(|given_up| *given_up) => {
                    return "it made room for newer ones (output_spool_bytes_max, output_spool_count_max)";
                }
                Ok(()) = settings.changed() => {}
            }
        }
    }

    /// Ends when control has answered for good, or with why there is nothing left to bring.
    async fn keep_trying(
        &self,
        errand: &Errand,
        end: &Callback,
        upload: &Upload,
    ) -> Result<Delivered, String> {
        let mut backoff = Backoff::new(self.backoff);
        let mut failures: u64 = 0;
        loop {
            // First of all a wait: the last try has just failed, or this daemon and its control have just started. That
            // control is back says nothing of the store. A reload may have changed how long it may be, and ends it.
            backoff.set_max(self.settings.borrow().limits.output_retry);
            let mut kicks = self.post.kicks();
            tokio::select! {
                () = tokio::time::sleep(backoff.next(backoff::chance())) => {}
                () = kicks.kicked() => backoff.reset(),
            }
            match self
                .try_output(errand, upload, end, errand.status, &mut None)
                .await
            {
                Tried::Told(Delivered::Taken) => {
                    log::info!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id; "An output followed its end");
                    return Ok(Delivered::Taken);
                }
                Tried::Told(delivered) => {
                    log::warn!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id;
                        "Control will not take an output any more: {delivered:?}");
                    return Ok(delivered);
                }
                Tried::Hopeless { delivered, why } => {
                    log::warn!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id;
                        "Control will not take an output any more: {why}");
                    return Ok(delivered);
                }
                Tried::Lost(why) => return Err(why),
                Tried::Failed(why) => {
                    failures += 1;
                    log::debug!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id, failures;
                        "An output could not be brought and is tried again: {why}");
                }
            }
        }
    }

    /// Each try asks for a fresh address: the last one may have run out while the hook ran or the store was down. The
    /// time for the upload runs from the first address on.
    async fn try_output(
        &self,
        errand: &Errand,
        upload: &Upload,
        end: &Callback,
        status: Status,
        until: &mut Option<Instant>,
    ) -> Tried {
        // Of the way to the end, what lies before where the declaration stands; control knows that of an end that it knows.
        let through = |passed: &&Passed| Status::from(**passed) != status && !status.is_terminal();
        let declaration = Callback {
            declared_output_bytes: Some(upload.bytes),
            declared_output_sha256: Some(upload.sha256),
            passed: end.passed.iter().filter(through).copied().collect(),
            ..Callback::of(status)
        };
        let answer = match self.post.deliver(errand, &declaration).await {
            Posted::Taken(answer) => answer,
            Posted::Refused { delivered, why } => return Tried::Hopeless { delivered, why },
            Posted::NotUploaded(why) => return Tried::Failed(why),
        };
        if status.is_terminal() {
            return self.put_and_tell(errand, upload, end, &answer, Turn::Late).await;
        }
        let left = self.clock.now().until(errand.request.deadline());
        let until = *until.get_or_insert_with(|| {
            Instant::now() + patience(end.status, self.settings.borrow().limits.output_wait, left)
        });
        // Control looks at the object before it answers, which may take as long as the upload. Told again it is *already*.
        let told = self.put_and_tell(errand, upload, end, &answer, Turn::WithItsEnd);
        timeout_at(until, told)
            .await
            .unwrap_or_else(|_| Tried::Failed("it took longer than its end may wait; it follows".to_owned()))
    }

    async fn put_and_tell(
        &self,
        errand: &Errand,
        upload: &Upload,
        end: &Callback,
        answer: &CallbackResponse,
        turn: Turn,
    ) -> Tried {
        // Where there is no address it may lie there already: control looks when it hears the end.
        let mut lost = None;
        if let Some(url) = &answer.output_upload_url {
            let headers = &answer.output_upload_headers;
            match self.uploader.put(url, headers, upload, turn).await {
                Ok(()) => {}
                Err(NotPut::Failed(why)) => return Tried::Failed(why),
                // A control that was restored may have forgotten what lies in its store.
                Err(NotPut::Lost(why)) => lost = Some(why),
            }
        }
        let request = &errand.request;
        let with_object = Callback {
            output: Some(CallbackOutput {
                object_key: Some(output_key(request.execution_id, request.node_id)),
                sha256: Some(upload.sha256),
                inline: None,
            }),
            ..end.clone()
        };
        match self.post.deliver_checked(turn, errand, &with_object).await {
            Posted::Taken(_) => Tried::Told(Delivered::Taken),
            Posted::Refused { delivered, .. } => Tried::Told(delivered),
            Posted::NotUploaded(why) => lost.map_or(Tried::Failed(why), Tried::Lost),
        }
    }

    async fn tell(&self, errand: &Errand, callback: &Callback) -> Delivered {
        match self.post.deliver(errand, callback).await {
            Posted::Taken(_) => {
                log::debug!(execution_id:% = errand.request.execution_id, action:% = errand.request.action, node_id:% = errand.request.node_id, status:% = errand.status;
                    "Control took a callback");
                Delivered::Taken
            }
            Posted::Refused { delivered, .. } => delivered,
            Posted::NotUploaded(_) => Delivered::Gone,
        }
    }
}

fn without_output(end: Callback, why: &str) -> Callback {
    let problem = format!("output_upload_failed: {why}");
    Callback {
        output_error: Some(cut(&problem, ERROR_TEXT_BYTES_MAX)),
        ..end
    }
}

/// How long an end may wait for its output. Control times out what it does not hear of, and no output is worth that; of
/// what timed out or was cancelled it expects to hear at once.
fn patience(status: Status, wait_max: Duration, left: Duration) -> Duration {
    let wait = match status {
        Status::Timeout | Status::Cancelled => PATIENCE_MIN,
        Status::Pending | Status::Ack | Status::Started | Status::Succeeded | Status::Failed => {
            left.max(PATIENCE_MIN)
        }
    };
    wait.min(wait_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_end_waits_for_its_output_past_its_deadline() {
        let seconds = Duration::from_secs;
        for (status, wait_max, left, expected) in [
            (Status::Succeeded, 120, 300, 120),
            (Status::Failed, 120, 60, 60),
            (Status::Succeeded, 120, 0, 5),
            (Status::Timeout, 120, 300, 5),
            (Status::Cancelled, 120, 300, 5),
            (Status::Succeeded, 0, 300, 0),
        ] {
            let patience = patience(status, seconds(wait_max), seconds(left));
            assert_eq!(patience, seconds(expected), "{status} {wait_max} {left}");
        }
    }
}
