//! When the next targets of a rollout are released. Pure: what was asked for and how it stands in, one decision out.
//!
//! Targets have places in the order of their nodes' names, from 1. They are released in that order and in no other, so
//! that the last place that was released tells which wave is open.

mod ask;

use muster_shared::{
    time::Timestamp,
    wire::{RolloutPlan, RolloutState},
};

pub(crate) use ask::{BadRollout, Steps};

/// How a rollout stands at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) plan: RolloutPlan,
    /// The last place that was released; 0 before the first.
    pub(crate) released_up_to: u32,
    /// The first place that is held.
    pub(crate) next_held: Option<u32>,
    /// Targets that are released and have not ended.
    pub(crate) in_flight: u32,
    /// Targets that ended as `failed` or `timeout`: a node that could not be reached counts.
    pub(crate) failed: u32,
    pub(crate) paused: bool,
    pub(crate) ends_at: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// Nothing is held.
    Done,
    Wait,
    /// The first held targets in the order, at most so many and none past that place.
    Release {
        at_most: u32,
        up_to: u32,
    },
    /// Nothing is released any more.
    Stop(Stop),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Stop {
    #[error("rollout stopped: {failed} {}, max_failures is {max}", if *.failed == 1 { "failure" } else { "failures" })]
    Failures { failed: u32, max: u32 },
    #[error("rollout stopped: it was not over by {0} (limits.rollout_seconds_max)")]
    TooLong(Timestamp),
}

pub(crate) fn decide(standing: &Standing, now: Timestamp) -> Decision {
    let Some(next) = standing.next_held else {
        return Decision::Done;
    };
    let plan = &standing.plan;
    if standing.failed > plan.max_failures {
        return Decision::Stop(Stop::Failures {
            failed: standing.failed,
            max: plan.max_failures,
        });
    }
    if standing.ends_at <= now {
        return Decision::Stop(Stop::TooLong(standing.ends_at));
    }
    if standing.paused {
        return Decision::Wait;
    }
    // What is in flight is of the open wave or, while that is full, of none other: a wave opens on nothing in flight.
    let wave_is_open = wave_of(plan, next) == wave_of(plan, standing.released_up_to);
    if !wave_is_open && standing.in_flight > 0 {
        return Decision::Wait;
    }
    let room = match plan.max_concurrency {
        Some(max) => max.saturating_sub(standing.in_flight),
        None => u32::MAX,
    };
    if room == 0 {
        return Decision::Wait;
    }
    let wave = wave_of(plan, next)
        .checked_sub(1)
        .and_then(|index| plan.waves.get(index));
    Decision::Release {
        at_most: room,
        up_to: wave.map_or(next, |wave| wave.up_to),
    }
}

/// The wave of a place, from 1; 0 is where a rollout is before its first release.
pub(crate) fn wave_of(plan: &RolloutPlan, place: u32) -> usize {
    if place == 0 {
        return 0;
    }
    1 + plan.waves.iter().take_while(|wave| wave.up_to < place).count()
}

pub(crate) const fn state_of(held: u64, paused: bool, stopped: bool) -> RolloutState {
    match (held, paused, stopped) {
        (_, _, true) => RolloutState::Stopped,
        (0, _, false) => RolloutState::Done,
        (_, true, false) => RolloutState::Paused,
        (_, false, false) => RolloutState::Rolling,
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::{Amount, RolloutRequest};
    use proptest::prelude::*;

    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_millis(s * 1000)
    }

    fn standing(plan: RolloutPlan) -> Standing {
        Standing {
            next_held: Some(1),
            plan,
            released_up_to: 0,
            in_flight: 0,
            failed: 0,
            paused: false,
            ends_at: at(1000),
        }
    }

    #[test]
    fn each_fact_that_holds_a_rollout_back_does_so_alone() {
        let request = RolloutRequest {
            waves: vec![Amount::Count(2), Amount::Text("100%".into())],
            max_concurrency: Some(Amount::Count(3)),
            max_failures: Some(Amount::Count(1)),
        };
        let plan = Steps::parse(&request).unwrap().plan(10).unwrap();
        let first = standing(plan);
        let release = |at_most, up_to| Decision::Release { at_most, up_to };
        assert_eq!(decide(&first, at(0)), release(3, 2));
        let two_out = Standing {
            released_up_to: 2,
            next_held: Some(3),
            in_flight: 1,
            ..first.clone()
        };
        assert_eq!(decide(&two_out, at(0)), Decision::Wait);
        let wave_over = Standing {
            in_flight: 0,
            ..two_out
        };
        assert_eq!(decide(&wave_over, at(0)), release(3, 10));
        let sliding = Standing {
            released_up_to: 5,
            next_held: Some(6),
            in_flight: 2,
            failed: 1,
            ..wave_over
        };
        assert_eq!(decide(&sliding, at(0)), release(1, 10));
        let full = Standing {
            in_flight: 3,
            ..sliding.clone()
        };
        assert_eq!(decide(&full, at(0)), Decision::Wait);
        let paused = Standing {
            paused: true,
            ..sliding.clone()
        };
        assert_eq!(decide(&paused, at(0)), Decision::Wait);
        assert_eq!(decide(&paused, at(1000)), Decision::Stop(Stop::TooLong(at(1000))));
        let failing = Standing { failed: 2, ..paused };
        let stop = decide(&failing, at(0));
        assert_eq!(stop, Decision::Stop(Stop::Failures { failed: 2, max: 1 }));
        let over = Standing {
            next_held: None,
            ..failing
        };
        assert_eq!(decide(&over, at(2000)), Decision::Done);
    }

    #[test]
    fn a_stop_says_how_many_failed_and_what_the_limit_is() {
        let said = |failed, max| Stop::Failures { failed, max }.to_string();
        assert_eq!(said(2, 1), "rollout stopped: 2 failures, max_failures is 1");
        assert_eq!(said(1, 0), "rollout stopped: 1 failure, max_failures is 0");
    }

    /// A cohort that behaves at random, driven by nothing but [`decide`].
    struct Simulated {
        standing: Standing,
        /// Places in flight.
        flying: Vec<u32>,
        held: Vec<u32>,
        ended: u32,
    }

    impl Simulated {
        fn new(plan: RolloutPlan, cohort: u32) -> Self {
            Self {
                standing: standing(plan),
                flying: Vec::new(),
                held: (1..=cohort).collect(),
                ended: 0,
            }
        }

        fn look(&mut self) -> Decision {
            self.standing.next_held = self.held.first().copied();
            self.standing.in_flight = u32::try_from(self.flying.len()).unwrap();
            decide(&self.standing, at(0))
        }

        /// As the store does it.
        fn release(&mut self, at_most: u32, up_to: u32) -> u32 {
            let fit = self.held.iter().take_while(|place| **place <= up_to).count();
            let released: Vec<u32> = self.held.drain(..fit.min(at_most as usize)).collect();
            self.standing.released_up_to = released.last().copied().unwrap_or(0);
            self.flying.extend(&released);
            u32::try_from(released.len()).unwrap()
        }

        fn end(&mut self, choice: usize, failed: bool) {
            // Nothing that is offline stays in flight: its own deadline ends it, as a failure.
            if !self.flying.is_empty() {
                let _ = self.flying.remove(choice % self.flying.len());
                self.ended += 1;
                self.standing.failed += u32::from(failed);
            }
        }
    }

    proptest! {
        #[test]
        fn it_keeps_every_bound_and_comes_to_an_end(
            cohort in 1..60_u32,
            bounds in proptest::collection::btree_set(1..60_u32, 0..5),
            max_concurrency in proptest::option::of(1..10_u32),
            max_failures in 0..8_u32,
            events in proptest::collection::vec((any::<usize>(), 0..4_u8), 600),
        ) {
            let waves: Vec<Amount> = bounds.iter().filter(|b| **b <= cohort).map(|b| Amount::Count((*b).into())).collect();
            let request = RolloutRequest {
                max_concurrency: max_concurrency.or(waves.is_empty().then_some(2)).map(|n| Amount::Count(n.into())),
                max_failures: Some(Amount::Count(max_failures.into())),
                waves,
            };
            let plan = Steps::parse(&request).unwrap().plan(cohort).unwrap();
            let mut sim = Simulated::new(plan.clone(), cohort);
            let mut stopped = false;
            for (choice, what) in events {
                match sim.look() {
                    Decision::Release { at_most, up_to } => {
                        prop_assert!(sim.standing.failed <= max_failures);
                        let before = sim.flying.clone();
                        let wave = wave_of(&plan, sim.held[0]);
                        prop_assert!(sim.release(at_most, up_to) > 0, "a release releases");
                        prop_assert!(before.iter().all(|place| wave_of(&plan, *place) == wave));
                        prop_assert!(sim.flying.iter().all(|place| wave_of(&plan, *place) == wave));
                    }
                    Decision::Wait => prop_assert!(!sim.flying.is_empty(), "it waits for something"),
                    Decision::Stop(_) => {
                        prop_assert!(sim.standing.failed > max_failures);
                        // As control does: what is held is cancelled.
                        sim.ended += u32::try_from(sim.held.drain(..).count()).unwrap();
                        stopped = true;
                    }
                    Decision::Done => {}
                }
                if let Some(max) = plan.max_concurrency {
                    prop_assert!(sim.flying.len() <= max as usize);
                }
                // One held target taken back by an operator shifts nobody's wave.
                if what == 3 && !sim.held.is_empty() {
                    let _ = sim.held.remove(choice % sim.held.len());
                    sim.ended += 1;
                }
                sim.end(choice, what == 0);
            }
            prop_assert_eq!(sim.look(), Decision::Done);
            prop_assert_eq!(sim.ended + u32::try_from(sim.flying.len()).unwrap(), cohort);
            prop_assert_eq!(stopped && sim.standing.failed <= max_failures, false);
        }
    }
}
