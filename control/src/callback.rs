//! Turns what a node reports into a state change: output tier, compare-and-set, event, settling.
//!
//! The caller was authenticated as the node, and as one that this execution addresses, before anything here runs.

use muster_shared::{
    ids::{DomainId, ExecutionId, NodeId},
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
    outputs::OutputError,
    store::{Advance, StoreError},
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
    Upload(#[from] OutputError),
    #[error("no such invocation")]
    Gone,
    #[error("the invocation moved while this was decided; report again")]
    Raced,
    #[error("the report could not be stored")]
    Store(#[from] StoreError),
}

/// Applies one report. What is answered without error is durable.
pub(crate) async fn apply(
    control: &Control,
    (subject, domain): (&str, DomainId),
    (execution, node): (ExecutionId, NodeId),
    callback: &Callback,
    now: Timestamp,
) -> Result<CallbackResponse, CallbackError> {
    let output = check_output(control, (execution, node), callback.output.as_ref())?;
    let mut response = CallbackResponse {
        status: callback.status,
        output_upload_url: None,
        output_upload_headers: std::collections::BTreeMap::new(),
    };
    if let Some(bytes) = declared_above_ceiling(callback) {
        let max = control.limits.output_bytes_max;
        if bytes > max {
            return Err(CallbackError::DeclaredTooLarge { declared: bytes, max });
        }
        let upload = control
            .outputs
            .presign_upload(&output_key(execution, node), bytes, now)
            .await?;
        response.output_upload_url = Some(upload.url);
        response.output_upload_headers = upload.headers;
    }

    let granted = |relation| Entry::granted(subject, relation, audit::execution_resource(execution));
    let presigned = declared_above_ceiling(callback)
        .map(|bytes| granted("actions.output_presign").with(format!("{bytes} bytes")));
    let mut tx = control.store.begin().await?;
    // Of what is held its node cannot know.
    let target = tx.target(execution, node).await?.filter(|target| !target.held);
    let target = target.ok_or(CallbackError::Gone)?;
    let step = Advance {
        execution,
        node,
        from: target.status,
        to: callback.status,
        exit_code: callback.exit_code,
        error: callback.error.as_deref().map(cut_error),
        output: output.as_ref(),
        output_bytes: callback.declared_output_bytes.or_else(|| inline_len(callback)),
    };
    match target.status.advance(callback.status, Mover::Node) {
        Ok(Step::Already) => {
            if let Some(bytes) = declared_above_ceiling(callback) {
                tx.declare_output(execution, node, bytes).await?;
                tx.append_audit(domain, presigned.as_slice(), now).await?;
                tx.commit().await?;
            }
            return Ok(response);
        }
        Err(refused @ Refused::AlreadyTerminal(_)) => {
            // A contradiction of what is settled changes nothing, and is kept beside it. So is the news that an action did
            // start that was cancelled because no node had it.
            let started_all_the_same =
                target.status == Status::Cancelled && callback.status == Status::Started;
            if callback.status.is_terminal() || started_all_the_same {
                tx.append_late_event(&step, now).await?;
                tx.commit().await?;
            }
            return Err(refused.into());
        }
        Err(refused @ Refused::NotAnAdvance { .. }) => return Err(refused.into()),
        Ok(Step::Move) => {}
    }
    let settled = tx.advance(&step, now).await?.ok_or(CallbackError::Raced)?;
    let accepted = granted("actions.callback").with(format!("{} to {}", step.from, step.to));
    let entries: Vec<_> = presigned.into_iter().chain([accepted]).collect();
    tx.append_audit(domain, &entries, now).await?;
    tx.commit().await?;
    control.watchers.wake(execution);
    if step.to.is_terminal() {
        control.rollouts.ended();
    }
    log_advance(&step, settled);
    Ok(response)
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
