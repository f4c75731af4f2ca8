//! Turns what a node reports into a state change: output tier, compare-and-set, event, settling.
//!
//! The caller was authenticated as the node, and as one that this execution addresses, before anything here runs.

use muster_shared::{
    ids::{Digest, DomainId, ExecutionId, NodeId},
    status::{Mover, Refused, Status, Step},
    time::Timestamp,
    wire::{
        Callback, CallbackOutput, CallbackResponse, ERROR_TEXT_BYTES_MAX, INLINE_OUTPUT_BYTES_MAX, OutputRef,
        output_key,
    },
};

use crate::{
    audit::{self, Entry},
    control::Control,
    outputs::{Believed, Declared, OutputError, Upload},
    store::{Advance, LateOutput, StoreError, TargetState, Tx},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallbackError {
    #[error(
        "inline output has {0} bytes; the limit is {INLINE_OUTPUT_BYTES_MAX}; declare its size and upload it"
    )]
    InlineOutputTooLarge(usize),
    #[error(
        "declared_output_bytes is {declared}; this control takes at most {max} (limits.output_bytes_max)"
    )]
    DeclaredTooLarge { declared: u64, max: u64 },
    #[error("the output's object_key must be {expected:?}, with its sha256")]
    BadOutput { expected: String },
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("an upload URL could not be made")]
    Upload(#[source] OutputError),
    #[error("the output is not there as it was reported: {0}")]
    Unbelieved(#[source] OutputError),
    #[error("the invocation has another output already, of {kept}")]
    OutputDiffers { kept: Digest },
    #[error("no such invocation")]
    Gone,
    #[error("the invocation moved while this was decided; report again")]
    Raced,
    #[error("the report could not be stored")]
    Store(#[from] StoreError),
}

/// What a report does to the target that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    /// One step along the status machine; the last one with its output.
    Step,
    /// The output of an end that is known already.
    Attach,
    /// A newer word on why that output is not here.
    Remark,
    /// Nothing but what is known.
    Nothing,
}

/// An upload that is offered, and what for.
struct Offer {
    upload: Upload,
    declared: u64,
}

/// Applies one report. What is answered without error is durable.
pub(crate) async fn apply(
    control: &Control,
    (subject, domain): (&str, DomainId),
    (execution, node): (ExecutionId, NodeId),
    callback: &Callback,
    now: Timestamp,
) -> Result<CallbackResponse, CallbackError> {
    let output = check_output(control, (execution, node), callback.output.as_ref())?
        .filter(|_| callback.status.is_terminal());
    let seen = control
        .store
        .target_now(execution, node)
        .await?
        .filter(known_to_its_node)
        .ok_or(CallbackError::Gone)?;
    let offer = offer(control, &seen, (execution, node), callback, now).await?;
    // Looking takes as long as the store takes. Nothing is locked meanwhile.
    let believed = believe(control, &seen, callback, output.as_ref()).await?;
    let report = Report {
        execution,
        node,
        callback,
        output: output.as_ref(),
        output_bytes: believed.as_ref().map(|object| object.bytes),
    };

    let mut tx = control.store.begin().await?;
    let target = tx.target(execution, node).await?.filter(known_to_its_node);
    let target = target.ok_or(CallbackError::Gone)?;
    let effect = match effect_on(&target, callback, output.as_ref()) {
        Ok(effect) => effect,
        Err(CallbackError::Refused(refused)) => {
            return Err(report.keep_as_evidence(tx, target.status, refused, now).await);
        }
        Err(err) => return Err(err),
    };
    if takes_output(effect) {
        still_believed(control, output.as_ref(), believed.as_ref()).await?;
    }
    let granted = |relation| Entry::granted(subject, relation, audit::execution_resource(execution));
    let mut entries = Vec::new();
    if let Some(Offer { declared, .. }) = &offer {
        // Asked for again because the last URL ran out, it is the same offer.
        if target.upload_offered != Some(*declared) {
            entries.push(granted("actions.output_presign").with(format!("{declared} bytes")));
        }
        let until = now.plus(control.limits.upload_url_ttl);
        tx.declare_output(execution, node, *declared, until).await?;
    }
    match effect {
        Effect::Step => {
            let step = report.step_from(target.status);
            let settled = tx.advance(&step, now).await?.ok_or(CallbackError::Raced)?;
            entries.push(granted("actions.callback").with(format!("{} to {}", step.from, step.to)));
            tx.append_audit(domain, &entries, now).await?;
            tx.commit().await?;
            control.watchers.wake(execution);
            if step.to.is_terminal() {
                control.rollouts.ended();
            }
            log_advance(&step, settled);
        }
        Effect::Attach | Effect::Remark => {
            let late = report.late();
            tx.late_output(&late, now).await?;
            entries.push(granted("actions.callback").with(report.late_words()));
            tx.append_audit(domain, &entries, now).await?;
            tx.commit().await?;
            log::info!(execution_id:% = execution, node_id:% = node; "Invocation {}", report.late_words());
        }
        Effect::Nothing if offer.is_none() => {}
        Effect::Nothing => {
            tx.append_audit(domain, &entries, now).await?;
            tx.commit().await?;
        }
    }
    let (output_upload_url, output_upload_headers) = offer
        .map(|offer| (Some(offer.upload.url), offer.upload.headers))
        .unwrap_or_default();
    Ok(CallbackResponse {
        status: callback.status,
        output_upload_url,
        output_upload_headers,
    })
}

/// Of what is held its node cannot know.
const fn known_to_its_node(target: &TargetState) -> bool {
    !target.held
}

fn effect_on(
    target: &TargetState,
    callback: &Callback,
    output: Option<&OutputRef>,
) -> Result<Effect, CallbackError> {
    match target.status.advance(callback.status, Mover::Node)? {
        Step::Move => return Ok(Effect::Step),
        Step::Already => {}
    }
    if !callback.status.is_terminal() {
        return Ok(Effect::Nothing);
    }
    match (&target.output, output) {
        (Some(kept), Some(output)) if kept.digest() != output.digest() => {
            let kept = kept.digest();
            Err(CallbackError::OutputDiffers { kept })
        }
        (Some(_), Some(_) | None) => Ok(Effect::Nothing),
        (None, Some(_)) => Ok(Effect::Attach),
        (None, None) if newer_problem(target, callback) => Ok(Effect::Remark),
        (None, None) => Ok(Effect::Nothing),
    }
}

fn newer_problem(target: &TargetState, callback: &Callback) -> bool {
    let told = callback.output_error.as_deref().map(cut_error);
    told.is_some() && told != target.output_error.as_deref()
}

const fn takes_output(effect: Effect) -> bool {
    match effect {
        Effect::Step | Effect::Attach => true,
        Effect::Remark | Effect::Nothing => false,
    }
}

/// A place for what is declared, as long as there is none of it and the report itself is in order.
async fn offer(
    control: &Control,
    target: &TargetState,
    (execution, node): (ExecutionId, NodeId),
    callback: &Callback,
    now: Timestamp,
) -> Result<Option<Offer>, CallbackError> {
    let Some(declared) = declared_above_ceiling(callback) else {
        return Ok(None);
    };
    let max = control.limits.output_bytes_max;
    if declared > max {
        return Err(CallbackError::DeclaredTooLarge { declared, max });
    }
    if target.output.is_some() || effect_on(target, callback, None).is_err() {
        return Ok(None);
    }
    let sha256 = callback.declared_output_sha256;
    let bytes = declared;
    let upload = control
        .outputs
        .presign_upload(&output_key(execution, node), Declared { bytes, sha256 }, now)
        .await
        .map_err(CallbackError::Upload)?;
    Ok(Some(Offer { upload, declared }))
}

/// Finds out whether an object is what the report says, if the report would lead to its being believed.
async fn believe(
    control: &Control,
    target: &TargetState,
    callback: &Callback,
    output: Option<&OutputRef>,
) -> Result<Option<Believed>, CallbackError> {
    let Some(OutputRef::ObjectStore { key, sha256, .. }) = output else {
        return Ok(None);
    };
    if !effect_on(target, callback, output).is_ok_and(takes_output) {
        return Ok(None);
    }
    let max = control.limits.output_bytes_max;
    let checked = control.outputs.check(key, *sha256, max).await;
    checked.map(Some).map_err(CallbackError::Unbelieved)
}

/// What was looked at before the lock was taken must not have been put aside since.
async fn still_believed(
    control: &Control,
    output: Option<&OutputRef>,
    believed: Option<&Believed>,
) -> Result<(), CallbackError> {
    let Some(OutputRef::ObjectStore { key, .. }) = output else {
        return Ok(());
    };
    let held = match believed {
        Some(believed) => control.outputs.holds(key, believed).await,
        None => Ok(false),
    };
    match held {
        Ok(true) => Ok(()),
        Ok(false) => Err(CallbackError::Raced),
        Err(err) => Err(CallbackError::Unbelieved(err)),
    }
}

/// A report in the terms of the store.
struct Report<'a> {
    execution: ExecutionId,
    node: NodeId,
    callback: &'a Callback,
    output: Option<&'a OutputRef>,
    /// Of an object, as it was found.
    output_bytes: Option<u64>,
}

impl<'a> Report<'a> {
    fn step_from(&self, from: Status) -> Advance<'a> {
        let callback = self.callback;
        Advance {
            execution: self.execution,
            node: self.node,
            from,
            to: callback.status,
            exit_code: callback.exit_code,
            error: callback.error.as_deref().map(cut_error),
            output: self.output,
            output_bytes: self.output_bytes.or_else(|| inline_len(callback)),
            output_total_bytes: callback.output_total_bytes,
            output_error: self.output_error(),
        }
    }

    fn late(&self) -> LateOutput<'a> {
        LateOutput {
            execution: self.execution,
            node: self.node,
            output: self.output,
            output_bytes: self.output_bytes.or_else(|| inline_len(self.callback)),
            output_total_bytes: self.callback.output_total_bytes,
            output_error: self.output_error(),
        }
    }

    /// An output that is here has no problem, whatever the report says beside it.
    fn output_error(&self) -> Option<&'a str> {
        if self.output.is_some() || !self.callback.status.is_terminal() {
            return None;
        }
        self.callback.output_error.as_deref().map(cut_error)
    }

    fn late_words(&self) -> String {
        let status = self.callback.status;
        match (self.output, self.output_error()) {
            (Some(output), _) => format!("{status}: its output followed, {}", output.digest()),
            (None, problem) => format!("{status}: {}", problem.unwrap_or_default()),
        }
    }

    /// A contradiction of what is settled changes nothing, and is kept beside it. So is the news that an action did start
    /// that was cancelled because no node had it.
    async fn keep_as_evidence(
        &self,
        mut tx: Tx,
        rests: Status,
        refused: Refused,
        now: Timestamp,
    ) -> CallbackError {
        let told = self.callback.status;
        let started_all_the_same = rests == Status::Cancelled && told == Status::Started;
        let kept = match refused {
            Refused::AlreadyTerminal(_) if told.is_terminal() || started_all_the_same => {
                let kept = tx.append_late_event(&self.step_from(rests), now).await;
                match kept {
                    Ok(()) => tx.commit().await,
                    Err(err) => Err(err),
                }
            }
            Refused::AlreadyTerminal(_) | Refused::NotAnAdvance { .. } => Ok(()),
        };
        match kept {
            Ok(()) => refused.into(),
            Err(err) => err.into(),
        }
    }
}

fn log_advance(step: &Advance<'_>, settled: bool) {
    if step.to.is_terminal() {
        log::info!(execution_id:% = step.execution, node_id:% = step.node, status:% = step.to, settled; "Invocation {}", step.to);
    } else {
        log::debug!(execution_id:% = step.execution, node_id:% = step.node, status:% = step.to; "Invocation {}", step.to);
    }
}

fn declared_above_ceiling(callback: &Callback) -> Option<u64> {
    callback
        .declared_output_bytes
        .filter(|bytes| *bytes > INLINE_OUTPUT_BYTES_MAX as u64)
}

fn inline_len(callback: &Callback) -> Option<u64> {
    callback
        .output
        .as_ref()?
        .inline
        .as_ref()
        .map(|bytes| bytes.0.len() as u64)
}

/// Which tier the output is in. An object wins over residual inline bytes: a node that uploaded has its output there.
fn check_output(
    control: &Control,
    (execution, node): (ExecutionId, NodeId),
    output: Option<&CallbackOutput>,
) -> Result<Option<OutputRef>, CallbackError> {
    let Some(output) = output else { return Ok(None) };
    if let Some(inline) = &output.inline
        && inline.0.len() > INLINE_OUTPUT_BYTES_MAX
    {
        return Err(CallbackError::InlineOutputTooLarge(inline.0.len()));
    }
    if let Some(key) = &output.object_key {
        let expected = output_key(execution, node);
        return match output.sha256 {
            Some(sha256) if *key == expected => Ok(Some(control.outputs.reference(expected, sha256))),
            _ => Err(CallbackError::BadOutput { expected }),
        };
    }
    Ok(output
        .inline
        .clone()
        .map(|inline_bytes| OutputRef::Inline { inline_bytes }))
}

/// An error text of any length is kept as far as the limit goes, never refused: it is all the operator has.
fn cut_error(text: &str) -> &str {
    &text[..text.floor_char_boundary(ERROR_TEXT_BYTES_MAX)]
}

/// Statuses a node may report: it never makes an invocation pending.
pub(crate) const fn is_reportable(status: Status) -> bool {
    match status {
        Status::Pending => false,
        Status::Ack
        | Status::Started
        | Status::Succeeded
        | Status::Failed
        | Status::Cancelled
        | Status::Timeout => true,
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::Base64;

    use super::*;

    fn inline(bytes: &[u8]) -> OutputRef {
        OutputRef::Inline {
            inline_bytes: Base64(bytes.to_vec()),
        }
    }

    fn target(status: Status, output: Option<OutputRef>) -> TargetState {
        TargetState {
            held: false,
            upload_offered: None,
            status,
            callback_token_hash: Digest::of(b""),
            callback_token_required: true,
            output,
            output_error: None,
        }
    }

    fn told(target: &TargetState, callback: &Callback, output: Option<&OutputRef>) -> Result<Effect, String> {
        effect_on(target, callback, output).map_err(|err| err.to_string())
    }

    #[test]
    fn an_output_follows_its_end_once_and_is_never_another() {
        use Status::{Failed, Started, Succeeded};
        let ended = Callback::of(Succeeded);
        let (ours, other) = (inline(b"ours"), inline(b"other"));
        let without = target(Succeeded, None);
        let with = target(Succeeded, Some(inline(b"ours")));
        assert_eq!(
            told(&target(Started, None), &ended, Some(&ours)),
            Ok(Effect::Step)
        );
        assert_eq!(told(&without, &ended, Some(&ours)), Ok(Effect::Attach));
        assert_eq!(told(&with, &ended, Some(&ours)), Ok(Effect::Nothing));
        assert_eq!(told(&with, &ended, None), Ok(Effect::Nothing));
        assert!(told(&with, &ended, Some(&other)).is_err());
        assert!(told(&without, &Callback::of(Failed), Some(&ours)).is_err());
        // An object of the same bytes is the same output.
        let object = OutputRef::ObjectStore {
            bucket: "b".into(),
            key: "k".into(),
            sha256: Digest::of(b"ours"),
        };
        assert_eq!(told(&with, &ended, Some(&object)), Ok(Effect::Nothing));
    }

    #[test]
    fn a_problem_is_noted_when_it_is_news_and_there_is_no_output() {
        let ended = Callback {
            output_error: Some("output_upload_failed: 403".into()),
            ..Callback::of(Status::Succeeded)
        };
        let mut without = target(Status::Succeeded, None);
        assert_eq!(told(&without, &ended, None), Ok(Effect::Remark));
        assert_eq!(
            told(&without, &Callback::of(Status::Succeeded), None),
            Ok(Effect::Nothing)
        );
        without.output_error.clone_from(&ended.output_error);
        assert_eq!(told(&without, &ended, None), Ok(Effect::Nothing));
        let with = target(Status::Succeeded, Some(inline(b"x")));
        assert_eq!(told(&with, &ended, None), Ok(Effect::Nothing));
    }
}
