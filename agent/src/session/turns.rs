//! Whose turn it is: what waits and what runs, each in its place. Who may start is judged by [`queue`] alone.

use muster_shared::{ids::ExecutionId, time::Timestamp};

use super::{
    Decision, Fact, Session, Stage,
    overview::{BEHIND_MAX, Behind, Kept, Waiting},
    queue::{self, Crowded, Full, Place},
    start,
};
use crate::{
    hooks::affinity::Lane,
    outcome::{Ended, Outcome},
};

pub(super) struct Turns {
    running_max: usize,
    queue_max: usize,
    /// Taken and not started, in the order of arrival.
    waiting: Vec<(ExecutionId, Place<Lane>)>,
    /// In the order of their starts.
    running: Vec<(ExecutionId, Place<Lane>)>,
    /// The highest turn that anything was started in.
    present: u64,
    /// Whether what waits comes from before a restart, and control has not shown yet that it takes this daemon for the
    /// node's own. Until then nothing is started: this may be a copy, and what waits here be another's. Nor does anything
    /// expire: control has not said yet what time it is, and the node's clock may be hours off. A daemon that never gets
    /// there keeps what waits, and starts none of it.
    pub(super) unproven: bool,
}

impl Turns {
    pub(super) const fn new(running_max: usize, queue_max: usize) -> Self {
        Self {
            running_max,
            queue_max,
            waiting: Vec::new(),
            running: Vec::new(),
            present: 0,
            unproven: false,
        }
    }

    pub(super) const fn set_limits(&mut self, running_max: usize, queue_max: usize) {
        (self.running_max, self.queue_max) = (running_max, queue_max);
    }

    pub(super) const fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn waits(&self, id: ExecutionId) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == id)
    }

    /// Whether one more may wait.
    pub(super) fn room_for(&self, lane: &Lane) -> Result<(), Crowded> {
        queue::room_for(lane, &places(&self.waiting), self.queue_max)
    }

    pub(super) fn arrive(&mut self, id: ExecutionId, lane: Lane) {
        let place = self.place_of(lane);
        self.waiting.push((id, place));
    }

    /// One that an earlier daemon has started.
    pub(super) fn go_on(&mut self, id: ExecutionId, lane: Lane) {
        let place = self.place_of(lane);
        self.running.push((id, place));
    }

    fn place_of(&self, lane: Lane) -> Place<Lane> {
        let others = self.running.iter().chain(&self.waiting).map(|(_, place)| place);
        let turn = queue::turn_of(&lane, others, self.present);
        Place { lane, turn }
    }

    pub(super) fn leave(&mut self, id: ExecutionId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        self.running.retain(|(running, _)| *running != id);
    }

    fn start_next(&mut self) -> Option<ExecutionId> {
        let at = queue::next(&places(&self.waiting), &places(&self.running), self.running_max)?;
        let (id, place) = self.waiting.remove(at);
        self.present = self.present.max(place.turn);
        self.running.push((id, place));
        Some(id)
    }
}

fn places(those: &[(ExecutionId, Place<Lane>)]) -> Vec<&Place<Lane>> {
    those.iter().map(|(_, place)| place).collect()
}

impl Session {
    /// When to look again although nothing has happened.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        if self.turns.unproven {
            return None;
        }
        self.deadlines().map(|(_, deadline)| deadline).min()
    }

    /// Of what waits.
    fn deadlines(&self) -> impl Iterator<Item = (ExecutionId, Timestamp)> {
        let waiting = self.turns.waiting.iter();
        waiting.filter_map(|(id, _)| Some((*id, self.invocations.get(id)?.request.deadline())))
    }

    /// Ends what waited too long, then starts what may start: beside everything that runs, and past nothing that has
    /// waited longer for the same.
    pub(super) fn pump(&mut self, now: Timestamp, decision: &mut Decision) {
        if self.turns.unproven {
            return;
        }
        let late: Vec<ExecutionId> = self
            .deadlines()
            .filter(|(_, deadline)| *deadline <= now)
            .map(|(id, _)| id)
            .collect();
        for id in late {
            self.ended(id, Outcome::of(Ended::Expired), decision);
        }
        while let Some(id) = self.turns.start_next() {
            let Some(invocation) = self.invocations.get_mut(&id) else {
                self.turns.leave(id);
                continue;
            };
            invocation.attempt += 1;
            invocation.stage = Stage::Started;
            invocation.running_since = Some(now);
            if !invocation.volatile {
                decision.facts.push(Fact::Started {
                    execution: id,
                    attempt: invocation.attempt,
                });
            }
            decision.effects.push(start(invocation));
            self.post(id, decision);
        }
    }

    /// By the same judgement by which [`Session::pump`] starts each of them, or lets it wait.
    pub(super) fn queue(&self) -> Vec<Waiting> {
        let turns = &self.turns;
        let (waiting, running) = (places(&turns.waiting), places(&turns.running));
        let ahead: Vec<&(ExecutionId, Place<Lane>)> = turns.running.iter().chain(&turns.waiting).collect();
        let order = queue::order(&waiting, &running, turns.running_max);
        let told = order.into_iter().enumerate().filter_map(|(before, at)| {
            let (id, Place { lane, .. }) = &turns.waiting[at];
            let request = &self.invocations.get(id)?.request;
            let full = queue::slot_for(lane, &running, turns.running_max).err();
            let mut numbers = queue::ahead_of(at, &waiting, &running);
            let named = numbers.by_ref().take(BEHIND_MAX).filter_map(|number| {
                let (other, theirs) = ahead[number];
                Some(Behind {
                    execution_id: *other,
                    action: self.invocations.get(other)?.request.action.clone(),
                    affinity: lane.shared_with(&theirs.lane),
                })
            });
            let behind = named.collect();
            Some(Waiting {
                position: Some(before + 1),
                execution_id: *id,
                action: request.action.clone(),
                deadline: request.deadline(),
                control_unheard: turns.unproven,
                all_slots_taken: full == Some(Full::All),
                slot_kept_for: (full == Some(Full::OfItsKind)).then(|| Kept::from_others_than(lane)),
                behind,
                behind_more: numbers.next().is_some(),
            })
        });
        told.collect()
    }
}
