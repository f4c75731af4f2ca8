//! Outputs that follow their ends: control was told how an action ended, and has still to get what it wrote, or will not
//! take it.

use std::sync::Arc;

use muster_shared::{ids::ExecutionId, time::Timestamp, wire::INLINE_OUTPUT_BYTES_MAX};

use super::{Decision, Delivered, Effect, Errand, Fact, Recorded, Session, Stage, invocation::Invocation};
use crate::outcome::Output;

/// An output that stays here until control has it too, or for as long as it may: its end is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwedOutput {
    pub(crate) bytes: u64,
    /// When control took the end without it.
    pub(crate) since: Timestamp,
    /// Whether control will take it. It had settled the invocation otherwise when it heard of the end, and takes no output of
    /// that; what a long work has written is then to be had here.
    pub(crate) wanted: bool,
}

/// What may be kept here of outputs whose end is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputBounds {
    pub(crate) bytes_max: u64,
    pub(crate) count_max: usize,
}

pub(super) struct Outstanding {
    pub(super) output: OwedOutput,
    pub(super) attempts: u32,
    given_up: bool,
}

impl Session {
    /// Takes up the outputs that an earlier daemon could not bring.
    pub(crate) fn recover_outputs(&mut self, rows: Vec<(Recorded, OwedOutput)>) -> Decision {
        let mut decision = Decision::default();
        for (row, output) in rows {
            self.bring_later(&Invocation::of(row), output, &mut decision);
        }
        self.make_room(&mut decision);
        decision
    }

    /// Control knows the end. What it was not given of it stays here, and so does its run directory.
    pub(super) fn settled(
        &mut self,
        id: ExecutionId,
        delivered: Delivered,
        now: Timestamp,
        decision: &mut Decision,
    ) {
        let Some(invocation) = self.invocations.remove(&id) else {
            return;
        };
        // What was withdrawn before it ran left nothing behind.
        let ran = invocation.attempt > 0 && matches!(invocation.stage, Stage::Ended(_));
        if delivered == Delivered::Unknown && ran && !invocation.volatile {
            decision.facts.push(Fact::Orphaned { execution: id });
            return;
        }
        if self.outputs.contains_key(&id) {
            // It is on its way already: control asked again for an end that it had been told.
            return;
        }
        let spooled = match &invocation.stage {
            Stage::Ended(outcome) => match outcome.output {
                Output::Spool { kept_bytes, .. } => Some(kept_bytes),
                Output::None | Output::Inline { .. } => None,
            },
            Stage::Taken | Stage::Started => None,
        };
        match (delivered, spooled) {
            (Delivered::WithoutOutput | Delivered::Settled, Some(bytes))
                if delivered == Delivered::WithoutOutput || bytes > INLINE_OUTPUT_BYTES_MAX as u64 =>
            {
                let output = OwedOutput {
                    bytes,
                    since: now,
                    wanted: delivered == Delivered::WithoutOutput,
                };
                if !invocation.volatile {
                    decision.facts.push(Fact::OutputOwed {
                        execution: id,
                        output,
                    });
                }
                self.bring_later(&invocation, output, decision);
                self.make_room(decision);
            }
            // A smaller one went with the end itself.
            (
                Delivered::WithoutOutput
                | Delivered::Taken
                | Delivered::Ahead
                | Delivered::Settled
                | Delivered::Unknown
                | Delivered::Gone,
                Some(_) | None,
            ) => decision.effects.push(Effect::Forget {
                execution: id,
                attempts: invocation.attempt,
            }),
        }
    }

    fn bring_later(&mut self, invocation: &Invocation, output: OwedOutput, decision: &mut Decision) {
        let Stage::Ended(outcome) = &invocation.stage else {
            return;
        };
        let execution = invocation.request.execution_id;
        let outstanding = Outstanding {
            output,
            attempts: invocation.attempt,
            given_up: false,
        };
        self.outputs.insert(execution, outstanding);
        decision.effects.push(Effect::Upload {
            errand: Errand {
                request: Arc::clone(&invocation.request),
                passed: Vec::new(),
                status: outcome.status(),
                attempt: invocation.attempt,
                outcome: Some(outcome.clone()),
            },
            output,
        });
    }

    /// The oldest go first.
    fn make_room(&mut self, decision: &mut Decision) {
        let mut kept: Vec<_> = self
            .outputs
            .iter_mut()
            .filter(|(_, outstanding)| !outstanding.given_up)
            .collect();
        kept.sort_by_key(|(execution, outstanding)| (outstanding.output.since, **execution));
        let OutputBounds { bytes_max, count_max } = self.output_bounds;
        let mut bytes: u64 = kept.iter().map(|(_, outstanding)| outstanding.output.bytes).sum();
        let mut count = kept.len();
        for (execution, outstanding) in kept {
            if bytes <= bytes_max && count <= count_max {
                return;
            }
            bytes -= outstanding.output.bytes;
            count -= 1;
            outstanding.given_up = true;
            let execution = *execution;
            decision.effects.push(Effect::GiveUp { execution });
        }
    }

    /// Nothing works on it any more.
    pub(super) fn brought(&mut self, execution: ExecutionId, unknown: bool, decision: &mut Decision) {
        let Some(Outstanding { attempts, .. }) = self.outputs.remove(&execution) else {
            return;
        };
        decision.facts.push(Fact::OutputSettled { execution });
        if unknown {
            decision.facts.push(Fact::Orphaned { execution });
        } else {
            decision.effects.push(Effect::Forget { execution, attempts });
        }
    }
}
