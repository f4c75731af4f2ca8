//! Turns what a node reports into a state change: output tier, compare-and-set, event, settling.
//!
//! The caller was authenticated as the node, and as one that this execution addresses, before anything here runs. What
//! waits for an output store is asked here, beside each other; what is written, `group` writes together.

mod group;
mod report;

use muster_shared::{
    ids::{Digest, DomainId, ExecutionId, NodeId, RowId},
    status::{Refused, Status},
    time::Timestamp,
    wire::{Callback, CallbackOutput, CallbackResponse, INLINE_OUTPUT_BYTES_MAX, OutputRef, output_key},
};

pub(crate) use group::Callbacks;
use group::Work;
use report::{Report, effect_on, takes_output};

use crate::{
    control::{Control, Shared},
    outputs::{Believed, Declared, OutputError, Upload},
    store::{Passing, StoreError, TargetState},
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
    /// Refused, and there is nothing left to write of it: what contradicts the end is kept and audited in one commit, now or
    /// before, or there is no room for it. The id is that of the row that was written now.
    #[error("{refused}")]
    Contradicts {
        refused: Refused,
        correlation: Option<RowId>,
    },
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
    /// Together with the others that waited with it.
    #[error("the report could not be stored")]
    NotNow(Passing),
    #[error("the report could not be stored")]
    Store(#[from] StoreError),
}

/// What the audit trail calls the refusal of a report that was well made.
pub(crate) const APPLY: &str = "node_execution_callback.apply";

pub(crate) const fn code_of(refused: Refused) -> &'static str {
    match refused {
        Refused::AlreadyTerminal(_) => "execution_already_terminal",
        Refused::NotAnAdvance { .. } => "invalid_state_transition",
    }
}

/// An upload that is offered, and what for.
struct Offer {
    upload: Upload,
    declared: u64,
}

/// Applies one report, about a target that was `seen` in this state. What is answered without error is durable.
pub(crate) async fn apply(
    control: &Shared,
    (subject, domain): (&str, DomainId),
    (execution, node): (ExecutionId, NodeId),
    seen: &TargetState,
    callback: Callback,
    now: Timestamp,
) -> Result<CallbackResponse, CallbackError> {
    let output = check_output(control, (execution, node), callback.output.as_ref())?
        .filter(|_| callback.status.is_terminal());
    if seen.held {
        return Err(CallbackError::Gone);
    }
    let offer = offer(control, seen, (execution, node), &callback, now).await?;
    // Looking takes as long as the store takes. Nothing is locked meanwhile.
    let believed = believe(control, seen, &callback, output.as_ref()).await?;
    let status = callback.status;
    let work = Work {
        subject: subject.to_owned(),
        domain,
        report: Report {
            execution,
            node,
            callback,
            output,
            output_bytes: believed.as_ref().map(|object| object.bytes),
        },
        believed,
        offered: offer.as_ref().map(|offer| offer.declared),
    };
    group::write(control, work).await?;
    let (output_upload_url, output_upload_headers) = offer
        .map(|offer| (Some(offer.upload.url), offer.upload.headers))
        .unwrap_or_default();
    Ok(CallbackResponse {
        status,
        output_upload_url,
        output_upload_headers,
    })
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

fn declared_above_ceiling(callback: &Callback) -> Option<u64> {
    callback
        .declared_output_bytes
        .filter(|bytes| *bytes > INLINE_OUTPUT_BYTES_MAX as u64)
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
