//! The brain: what is known of every live invocation, and what each input changes. No files, no network, no clock.
//!
//! Whatever is decided is a [`Decision`]: facts to make durable first, then effects. A request that was seen before is
//! never run again; it is answered by telling its present stage once more.

mod decision;
mod input;
mod invocation;
mod outputs;
pub(crate) mod overview;
mod queue;
#[cfg(test)]
mod tests;
mod turns;

use std::{collections::BTreeMap, sync::Arc};

use muster_shared::{
    ids::ExecutionId,
    status::Status,
    time::Timestamp,
    wire::{ActionKind, ActionRequest},
};

use crate::{
    builtins,
    hooks::affinity::Lane,
    outcome::{Ended, Outcome},
};
pub(crate) use decision::{Decision, Effect, Errand, Fact};
pub(crate) use input::{Delivered, Input, Past, Recorded};
use invocation::Invocation;
pub(crate) use invocation::{Reported, Stage};
use outputs::Outstanding;
pub(crate) use outputs::{OutputBounds, OwedOutput};
use queue::Crowded;
use turns::Turns;

/// What the journal could not take and what control has not heard of yet: only memory holds it, so there is a bound.
const UNTAKEN_MAX: usize = 256;

pub(crate) struct Session {
    invocations: BTreeMap<ExecutionId, Invocation>,
    turns: Turns,
    /// What each hook may run beside, as its manifest says.
    lanes: BTreeMap<String, Lane>,
    /// Ends that are told, and whose output is still to be brought.
    outputs: BTreeMap<ExecutionId, Outstanding>,
    output_bounds: OutputBounds,
}

/// What an action may run beside. A hook that nobody knows may change anything.
pub(crate) fn lane_of(kind: ActionKind, action: &str, hooks: &BTreeMap<String, Lane>) -> Lane {
    match kind {
        ActionKind::Builtin if builtins::changes(action) => Lane::Changes(Vec::new()),
        ActionKind::Builtin => Lane::ReadOnly,
        ActionKind::Hook => hooks.get(action).cloned().unwrap_or(Lane::Changes(Vec::new())),
    }
}

impl Session {
    pub(crate) const fn new(running_max: usize, queue_max: usize, output_bounds: OutputBounds) -> Self {
        Self {
            invocations: BTreeMap::new(),
            turns: Turns::new(running_max, queue_max),
            lanes: BTreeMap::new(),
            outputs: BTreeMap::new(),
            output_bounds,
        }
    }

    /// Takes up what an earlier daemon left, in the order it was taken.
    pub(crate) fn recover(&mut self, rows: Vec<(Recorded, Option<Past>)>, now: Timestamp) -> Decision {
        let mut decision = Decision::default();
        let mut ids = Vec::new();
        for (row, past) in rows {
            let id = row.request.execution_id;
            let lane = self.lane_of(&row.request);
            let mut invocation = Invocation::of(row);
            match (&invocation.stage, past) {
                (Stage::Ended(_), _) => {}
                (Stage::Started, Some(Past::Running)) => {
                    self.turns.go_on(id, lane);
                    if invocation.cancel_asked {
                        decision.effects.push(Effect::Stop { execution: id });
                    }
                }
                (Stage::Started, Some(Past::Ended(outcome))) => {
                    let outcome = invocation.judged(outcome);
                    decision.facts.push(Fact::Ended {
                        execution: id,
                        outcome: outcome.clone(),
                    });
                    invocation.stage = Stage::Ended(outcome);
                }
                (Stage::Started, Some(Past::NeverRan) | None) | (Stage::Taken, _) => {
                    invocation.stage = Stage::Taken;
                    self.turns.arrive(id, lane);
                    self.turns.unproven = true;
                }
            }
            let cancel = invocation.cancel_asked;
            self.invocations.insert(id, invocation);
            if cancel && self.turns.waits(id) {
                self.ended(id, Outcome::of(Ended::CancelledWaiting), &mut decision);
            }
            ids.push(id);
        }
        self.pump(now, &mut decision);
        ids.into_iter().for_each(|id| self.post(id, &mut decision));
        decision
    }

    /// What hooks that arrive from now on may run beside.
    pub(crate) fn set_lanes(&mut self, lanes: BTreeMap<String, Lane>) {
        self.lanes = lanes;
    }

    pub(crate) fn set_limits(&mut self, running_max: usize, queue_max: usize, outputs: OutputBounds) {
        self.turns.set_limits(running_max, queue_max);
        self.output_bounds = outputs;
    }

    fn lane_of(&self, request: &ActionRequest) -> Lane {
        lane_of(request.kind, request.action.as_str(), &self.lanes)
    }

    pub(crate) fn knows(&self, execution: ExecutionId) -> bool {
        self.invocations.contains_key(&execution)
    }

    /// Everything of which a run directory may still be needed.
    pub(crate) fn known(&self) -> impl Iterator<Item = ExecutionId> {
        self.invocations.keys().chain(self.outputs.keys()).copied()
    }

    pub(crate) fn request(&self, execution: ExecutionId) -> Option<&ActionRequest> {
        Some(&*self.invocations.get(&execution)?.request)
    }

    /// An end as it is to be told.
    pub(crate) fn judged(&self, execution: ExecutionId, outcome: Outcome) -> Outcome {
        match self.invocations.get(&execution) {
            Some(invocation) => invocation.judged(outcome),
            None => outcome,
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.turns.running()
    }

    pub(crate) fn handle(&mut self, input: Input, now: Timestamp) -> Decision {
        let mut decision = Decision::default();
        match input {
            Input::Requested {
                request,
                recorded,
                cancelled,
                denied,
            } => {
                // Whom control sends work, it takes for the node's own.
                self.turns.unproven = false;
                self.requested(request, recorded, (cancelled, denied), now, &mut decision);
            }
            Input::CancelAsked { execution, settled } => {
                if self.knows(execution) {
                    self.cancel(execution, &mut decision);
                } else if !settled {
                    decision.facts.push(Fact::CancelAsked { execution });
                }
            }
            Input::Untaken { execution, code, why } => self.untaken(execution, code, &why, &mut decision),
            Input::Ended { execution, outcome } => self.ended(execution, outcome, &mut decision),
            Input::Delivered {
                execution,
                status,
                delivered,
            } => {
                self.delivered(execution, status, delivered, now, &mut decision);
            }
            Input::OutputSettled { execution, unknown } => self.brought(execution, unknown, &mut decision),
            Input::TellAgain(row) => self.tell_end_again(*row, &mut decision),
            Input::Admitted => self.turns.unproven = false,
            Input::Woken => {}
        }
        self.pump(now, &mut decision);
        decision
    }

    fn requested(
        &mut self,
        request: Box<ActionRequest>,
        recorded: Option<Box<Recorded>>,
        (cancelled, denied): (bool, Option<String>),
        now: Timestamp,
        decision: &mut Decision,
    ) {
        let id = request.execution_id;
        if let Some(row) = recorded {
            self.invocations.entry(id).or_insert_with(|| Invocation::of(*row));
        }
        if self.invocations.contains_key(&id) {
            return self.tell_again(id, decision);
        }
        let lane = self.lane_of(&request);
        let request: Arc<ActionRequest> = Arc::from(request);
        decision.facts.push(Fact::Taken(Arc::clone(&request)));
        // Those before it that have expired are in nobody's way.
        self.pump(now, decision);
        let room = self.turns.room_for(&lane);
        self.turns.arrive(id, lane);
        self.invocations.insert(id, Invocation::new(request, cancelled));
        if cancelled {
            return self.ended(id, Outcome::of(Ended::CancelledWaiting), decision);
        }
        if let Some(rule) = denied {
            return self.ended(id, Outcome::refused_by_policy(&rule), decision);
        }
        self.pump(now, decision);
        match room {
            Err(crowded) if self.turns.waits(id) => {
                let why = match crowded {
                    Crowded::Queue(many) => format!("{many} invocations wait already (queue_max)"),
                    Crowded::Line(many) => {
                        format!("{many} invocations wait for the same already (three quarters of queue_max)")
                    }
                };
                self.ended(id, Outcome::refused("queue_full", why), decision);
            }
            Ok(()) | Err(_) => self.post(id, decision),
        }
    }

    /// Control asks for what it should have been told: it lost the news, or they have crossed.
    fn tell_again(&mut self, id: ExecutionId, decision: &mut Decision) {
        let Some(invocation) = self.invocations.get_mut(&id) else {
            return;
        };
        if invocation.posting || invocation.owed().is_some() {
            return self.post(id, decision);
        }
        invocation.reported = Reported::Nothing;
        if !invocation.volatile {
            decision.facts.push(Fact::Reported {
                execution: id,
                reported: Reported::Nothing,
            });
        }
        self.post(id, decision);
    }

    /// Begins with the end: a control that knows it says so at once.
    fn tell_end_again(&mut self, row: Recorded, decision: &mut Decision) {
        let execution = row.request.execution_id;
        if self.knows(execution) || !matches!(row.stage, Stage::Ended(_)) {
            return;
        }
        let mut invocation = Invocation::of(row);
        let reported = Reported::Started;
        invocation.reported = reported;
        decision.facts.push(Fact::Reported { execution, reported });
        self.invocations.insert(execution, invocation);
        self.post(execution, decision);
    }

    /// What only looks may run all the same: nothing is lost if it runs again. What changes something may not.
    fn untaken(&mut self, id: ExecutionId, code: &str, why: &str, decision: &mut Decision) {
        let held = self.invocations.values().filter(|other| other.volatile).count();
        if held >= UNTAKEN_MAX {
            // Control asks again.
            self.invocations.remove(&id);
            self.turns.leave(id);
            return;
        }
        let Some(invocation) = self.invocations.get_mut(&id) else {
            return;
        };
        invocation.volatile = true;
        // What was to be posted was dropped together with the fact.
        invocation.posting = false;
        let request = &invocation.request;
        let changes = match request.kind {
            ActionKind::Builtin => builtins::changes(request.action.as_str()),
            ActionKind::Hook => true,
        };
        match changes {
            false => {
                if invocation.stage == Stage::Started {
                    decision.effects.push(start(invocation));
                }
                self.post(id, decision);
            }
            true => {
                let why = format!("the node could not write its journal: {why}");
                self.ended(id, Outcome::refused(code, why), decision);
                // One that had ended before is told as it ended.
                self.post(id, decision);
            }
        }
    }

    /// What waits is withdrawn, what runs is stopped, and what has ended stays as it ended.
    fn cancel(&mut self, id: ExecutionId, decision: &mut Decision) {
        let Some(invocation) = self.invocations.get_mut(&id) else {
            return;
        };
        if matches!(invocation.stage, Stage::Ended(_)) {
            return;
        }
        if !invocation.cancel_asked && !invocation.volatile {
            decision.facts.push(Fact::CancelAsked { execution: id });
        }
        invocation.cancel_asked = true;
        match invocation.stage {
            Stage::Taken => self.ended(id, Outcome::of(Ended::CancelledWaiting), decision),
            Stage::Started => decision.effects.push(Effect::Stop { execution: id }),
            Stage::Ended(_) => {}
        }
    }

    fn ended(&mut self, id: ExecutionId, outcome: Outcome, decision: &mut Decision) {
        let Some(invocation) = self.invocations.get_mut(&id) else {
            return;
        };
        if matches!(invocation.stage, Stage::Ended(_)) {
            return self.turns.leave(id);
        }
        let outcome = invocation.judged(outcome);
        if !invocation.volatile {
            decision.facts.push(Fact::Ended {
                execution: id,
                outcome: outcome.clone(),
            });
        }
        invocation.stage = Stage::Ended(outcome);
        self.turns.leave(id);
        self.post(id, decision);
    }

    fn delivered(
        &mut self,
        id: ExecutionId,
        status: Status,
        delivered: Delivered,
        now: Timestamp,
        decision: &mut Decision,
    ) {
        let Some(invocation) = self.invocations.get_mut(&id) else {
            return;
        };
        invocation.posting = false;
        let unwanted = match delivered {
            Delivered::Settled | Delivered::Gone | Delivered::Unknown => {
                invocation.stage == Stage::Taken && status == Status::Ack
            }
            Delivered::Taken | Delivered::WithoutOutput | Delivered::Ahead => false,
        };
        // No end is ahead of an end: control is behind, as after a restore, and has to be led there step by step.
        let lead = delivered == Delivered::Ahead && status.is_terminal() && !invocation.led;
        invocation.led |= lead;
        let mut reported = if lead {
            Reported::Nothing
        } else {
            invocation.reported.max(Reported::once(status))
        };
        if unwanted {
            self.ended(id, Outcome::of(Ended::Withdrawn), decision);
            decision.effects.retain(|effect| effect.execution() != id);
            reported = Reported::Terminal;
        }
        let Some(invocation) = self.invocations.get_mut(&id) else {
            return;
        };
        invocation.reported = reported;
        if !invocation.volatile {
            decision.facts.push(Fact::Reported {
                execution: id,
                reported,
            });
        }
        if reported == Reported::Terminal {
            self.settled(id, delivered, now, decision);
        } else {
            // Nobody waits for it any more. What it did is told all the same, and kept by control as late news.
            if delivered == Delivered::Settled && invocation.stage == Stage::Started {
                self.cancel(id, decision);
            }
            self.post(id, decision);
        }
    }

    /// One callback at a time per invocation: their order is their meaning.
    fn post(&mut self, id: ExecutionId, decision: &mut Decision) {
        let Some(invocation) = self.invocations.get_mut(&id) else {
            return;
        };
        if invocation.posting {
            return;
        }
        let Some((passed, status)) = invocation.owed() else {
            return;
        };
        invocation.posting = true;
        let outcome = match &invocation.stage {
            Stage::Ended(outcome) if status.is_terminal() => Some(outcome.clone()),
            Stage::Taken | Stage::Started | Stage::Ended(_) => None,
        };
        decision.effects.push(Effect::Post(Errand {
            request: Arc::clone(&invocation.request),
            passed,
            status,
            attempt: invocation.attempt,
            outcome,
        }));
    }
}

fn start(invocation: &Invocation) -> Effect {
    Effect::Start {
        request: Arc::clone(&invocation.request),
        attempt: invocation.attempt,
    }
}
