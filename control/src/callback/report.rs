//! What a report says, and what it comes to for the target that it is about. Plain values, nothing is asked.

use muster_shared::{
    ids::{ExecutionId, NodeId},
    status::{Mover, Refused, Status, Step},
    wire::{Callback, ERROR_TEXT_BYTES_MAX, OutputRef},
};

use super::CallbackError;
use crate::store::{Advance, LateOutput, TargetState};

/// What a report does to the target that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// A step along the status machine, or several that were made together; the last one with its output.
    Step,
    /// The output of an end that is known already.
    Attach,
    /// A newer word on why that output is not here.
    Remark,
    /// Nothing but what is known.
    Nothing,
}

pub(super) fn effect_on(
    target: &TargetState,
    callback: &Callback,
    output: Option<&OutputRef>,
) -> Result<Effect, CallbackError> {
    let status = target.status;
    match status.advance_through(&callback.passed, callback.status, Mover::Node)? {
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

pub(super) const fn takes_output(effect: Effect) -> bool {
    match effect {
        Effect::Step | Effect::Attach => true,
        Effect::Remark | Effect::Nothing => false,
    }
}

/// A report in the terms of the store.
pub(super) struct Report {
    pub(super) execution: ExecutionId,
    pub(super) node: NodeId,
    pub(super) callback: Callback,
    pub(super) output: Option<OutputRef>,
    /// Of an object, as it was found.
    pub(super) output_bytes: Option<u64>,
}

impl Report {
    pub(super) fn step_from(&self, from: Status) -> Advance<'_> {
        let callback = &self.callback;
        Advance {
            execution: self.execution,
            node: self.node,
            from,
            through: from.left_of(&callback.passed),
            to: callback.status,
            exit_code: callback.exit_code,
            error: callback.error.as_deref().map(cut_error),
            output: self.output.as_ref(),
            output_bytes: self.output_bytes.or_else(|| inline_len(callback)),
            output_total_bytes: callback.output_total_bytes,
            output_error: self.output_error(),
        }
    }

    /// News that came too late to be a step.
    pub(super) fn evidence(&self, rests: Status) -> Advance<'_> {
        Advance {
            through: &[],
            ..self.step_from(rests)
        }
    }

    pub(super) fn late(&self) -> LateOutput<'_> {
        LateOutput {
            execution: self.execution,
            node: self.node,
            output: self.output.as_ref(),
            output_bytes: self.output_bytes.or_else(|| inline_len(&self.callback)),
            output_total_bytes: self.callback.output_total_bytes,
            output_error: self.output_error(),
        }
    }

    /// An output that is here has no problem, whatever the report says beside it.
    fn output_error(&self) -> Option<&str> {
        if self.output.is_some() || !self.callback.status.is_terminal() {
            return None;
        }
        self.callback.output_error.as_deref().map(cut_error)
    }

    pub(super) fn late_words(&self) -> String {
        let status = self.callback.status;
        match (&self.output, self.output_error()) {
            (Some(output), _) => format!("{status}: its output followed, {}", output.digest()),
            (None, problem) => format!("{status}: {}", problem.unwrap_or_default()),
        }
    }

    /// A contradiction of what is settled changes nothing, and is kept beside it. So is the news that an action did start
    /// that was cancelled because no node had it.
    pub(super) fn is_evidence(&self, rests: Status, refused: &Refused) -> bool {
        let told = self.callback.status;
        let started_all_the_same = rests == Status::Cancelled && told == Status::Started;
        match refused {
            Refused::AlreadyTerminal(_) => told.is_terminal() || started_all_the_same,
            Refused::NotAnAdvance { .. } => false,
        }
    }
}

fn inline_len(callback: &Callback) -> Option<u64> {
    callback
        .output
        .as_ref()?
        .inline
        .as_ref()
        .map(|bytes| bytes.0.len() as u64)
}

/// An error text of any length is kept as far as the limit goes, never refused: it is all the operator has.
fn cut_error(text: &str) -> &str {
    &text[..text.floor_char_boundary(ERROR_TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use muster_shared::{ids::Digest, wire::Base64};

    use super::*;

    fn inline(bytes: &[u8]) -> OutputRef {
        OutputRef::Inline {
            inline_bytes: Base64(bytes.to_vec()),
        }
    }

    fn target(status: Status, output: Option<OutputRef>) -> TargetState {
        TargetState {
            action: "ping".parse().unwrap(),
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
