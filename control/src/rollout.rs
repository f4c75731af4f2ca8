//! When the next targets of a rollout are released, and the time that a target has from then on. Pure: what was asked for
//! and how it stands in, one decision out.
//!
//! Targets have places in the order of their nodes' names, from 1. They are released in that order and in no other, so
//! that the last place that was released tells which wave is open.

use std::time::Duration;

use muster_shared::{
    time::Timestamp,
    wire::{Amount, ROLLOUT_WAVES_MAX, RolloutPlan, RolloutRequest, RolloutState, RolloutWave},
};

/// The time that a target has, from its release on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadlines {
    /// Until when its node may take it.
    pub(crate) deliver_by: Timestamp,
    /// Until when it may run.
    pub(crate) expires_at: Timestamp,
}

impl Deadlines {
    /// Delivery and run share the timeout, unless delivery has a time of its own: then a node that takes it at the last
    /// moment still has the whole timeout to run.
    pub(crate) fn of(timeout_seconds: u32, deliver_within_seconds: Option<u32>, released: Timestamp) -> Self {
        let timeout = Duration::from_secs(timeout_seconds.into());
        match deliver_within_seconds {
            None => Self {
                deliver_by: released.plus(timeout),
                expires_at: released.plus(timeout),
            },
            Some(seconds) => {
                let deliver_by = released.plus(Duration::from_secs(seconds.into()));
                Self {
                    deliver_by,
                    expires_at: deliver_by.plus(timeout),
                }
            }
        }
    }
}

/// The wave that is added where the last one asked for does not reach the whole cohort.
const WHOLE: &str = "100%";

/// A rollout that cannot be made: which field, what is wrong, and what to write instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BadRollout {
    #[error(
        "rollout says no steps, so that everything is released at once and nothing can be stopped: give it waves or max_concurrency, or leave rollout out"
    )]
    NoSteps,
    #[error("rollout.waves has {0} waves; the limit is {ROLLOUT_WAVES_MAX}: leave some out")]
    TooManyWaves(usize),
    #[error(
        "{field} is {given:?}; it must be a count from {min} on, or a percentage from \"{min}%\" to \"100%\""
    )]
    Amount { field: String, given: String, min: u32 },
    #[error(
        "rollout.waves[{index}] is {asked}, and the cohort has {cohort} targets: say \"100%\" for all of them"
    )]
    BeyondCohort {
        index: usize,
        asked: String,
        cohort: u32,
    },
    #[error(
        "rollout.waves[{index}] is {asked}, which reaches {up_to} of {cohort} targets, and the wave before it reaches {before}: each must reach further, so leave one out"
    )]
    NotFurther {
        index: usize,
        asked: String,
        up_to: u32,
        before: u32,
        cohort: u32,
    },
}

/// An amount that makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Share {
    Count(u32),
    Percent(u32),
}

impl Share {
    fn parse(field: &str, amount: &Amount, min: u32) -> Result<Self, BadRollout> {
        let share = match amount {
            Amount::Count(count) => u32::try_from(*count).ok().map(Self::Count),
            Amount::Text(text) => match text.strip_suffix('%') {
                Some(percent) => digits(percent).filter(|p| *p <= 100).map(Self::Percent),
                None => digits(text).map(Self::Count),
            },
        };
        share
            .filter(|share| match share {
                Self::Count(n) | Self::Percent(n) => *n >= min,
            })
            .ok_or_else(|| BadRollout::Amount {
                field: field.to_owned(),
                given: amount.to_string(),
                min,
            })
    }

    /// Of the cohort, a fraction left away.
    fn rounded_down(self, cohort: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => part(cohort, percent, 0),
        }
    }

    /// Of the cohort, a fraction counted as one.
    fn rounded_up(self, cohort: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => part(cohort, percent, 99),
        }
    }
}

/// Digits and nothing else: no sign, no space.
fn digits(text: &str) -> Option<u32> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// Never more than the cohort, of which at most 100 per cent are asked for.
fn part(cohort: u32, percent: u32, round: u64) -> u32 {
    let hundredths = u64::from(cohort) * u64::from(percent) + round;
    u32::try_from(hundredths / 100).unwrap_or(cohort)
}

/// A rollout that was asked for and makes sense, before its cohort is known.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    waves: Vec<(String, Share)>,
    max_concurrency: Option<Share>,
    max_failures: Share,
}

impl Steps {
    pub(crate) fn parse(request: &RolloutRequest) -> Result<Self, BadRollout> {
        if request.waves.is_empty() && request.max_concurrency.is_none() {
            return Err(BadRollout::NoSteps);
        }
        if request.waves.len() > ROLLOUT_WAVES_MAX {
            return Err(BadRollout::TooManyWaves(request.waves.len()));
        }
        let waves = request.waves.iter().enumerate().map(|(index, wave)| {
            let share = Share::parse(&format!("rollout.waves[{index}]"), wave, 1)?;
            Ok((wave.to_string(), share))
        });
        let max_concurrency = request.max_concurrency.as_ref();
        let max_failures = request.max_failures.as_ref();
        Ok(Self {
            waves: waves.collect::<Result<_, _>>()?,
            max_concurrency: max_concurrency
                .map(|given| Share::parse("rollout.max_concurrency", given, 1))
                .transpose()?,
            max_failures: max_failures.map_or(Ok(Share::Count(0)), |given| {
                Share::parse("rollout.max_failures", given, 0)
            })?,
        })
    }

    /// What the steps come to for a cohort of this size, which has at least one target.
    pub(crate) fn plan(&self, cohort: u32) -> Result<RolloutPlan, BadRollout> {
        let mut waves: Vec<RolloutWave> = Vec::new();
        let mut before = 0;
        for (index, (asked, share)) in self.waves.iter().enumerate() {
            let asked = asked.clone();
            let up_to = share.rounded_up(cohort);
            if up_to > cohort {
                return Err(BadRollout::BeyondCohort { index, asked, cohort });
            }
            if up_to <= before {
                return Err(BadRollout::NotFurther {
                    index,
                    asked,
                    up_to,
                    before,
                    cohort,
                });
            }
            let targets = up_to - before;
            waves.push(RolloutWave {
                asked,
                up_to,
                targets,
            });
            before = up_to;
        }
        if before < cohort {
            waves.push(RolloutWave {
                asked: WHOLE.to_owned(),
                up_to: cohort,
                targets: cohort - before,
            });
        }
        Ok(RolloutPlan {
            waves,
            max_concurrency: self.max_concurrency.map(|max| max.rounded_down(cohort).max(1)),
            max_failures: self.max_failures.rounded_down(cohort),
        })
    }
}

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
    use super::*;
    use proptest::prelude::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_millis(s * 1000)
    }

    fn asked(waves: &[&str], max_concurrency: Option<&str>, max_failures: Option<&str>) -> RolloutRequest {
        let amount = |text: &str| match text.parse() {
            Ok(count) if !text.starts_with('+') => Amount::Count(count),
            Ok(_) | Err(_) => Amount::Text(text.to_owned()),
        };
        RolloutRequest {
            waves: waves.iter().copied().map(amount).collect(),
            max_concurrency: max_concurrency.map(amount),
            max_failures: max_failures.map(amount),
        }
    }

    fn plan(request: &RolloutRequest, cohort: u32) -> Result<RolloutPlan, BadRollout> {
        Steps::parse(request)?.plan(cohort)
    }

    fn reach(plan: &RolloutPlan) -> Vec<(&str, u32, u32)> {
        let waves = plan.waves.iter();
        waves.map(|w| (w.asked.as_str(), w.up_to, w.targets)).collect()
    }

    #[test]
    fn waves_are_bounds_of_the_cohort_and_end_with_all_of_it() {
        let whole = plan(&asked(&["1", "10%", "100%"], None, None), 95).unwrap();
        assert_eq!(reach(&whole), [("1", 1, 1), ("10%", 10, 9), ("100%", 95, 85)]);
        let added = plan(&asked(&["1"], Some("50%"), Some("10%")), 19).unwrap();
        assert_eq!(reach(&added), [("1", 1, 1), ("100%", 19, 18)]);
        assert_eq!((added.max_concurrency, added.max_failures), (Some(9), 1));
        let sliding = plan(&asked(&[], Some("1%"), None), 3).unwrap();
        assert_eq!(reach(&sliding), [("100%", 3, 3)]);
        assert_eq!((sliding.max_concurrency, sliding.max_failures), (Some(1), 0));
        let text = RolloutRequest {
            waves: vec![Amount::Text("2".into())],
            ..RolloutRequest::default()
        };
        assert_eq!(reach(&plan(&text, 2).unwrap()), [("2", 2, 2)]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_field_and_a_remedy() {
        for (request, words) in [
            (asked(&[], None, None), "give it waves or max_concurrency"),
            (asked(&[], None, Some("3")), "give it waves or max_concurrency"),
            (asked(&["0"], None, None), "rollout.waves[0] is \"0\""),
            (asked(&["1", "0%"], None, None), "rollout.waves[1] is \"0%\""),
            (asked(&["101%"], None, None), "\"101%\""),
            (asked(&["+5"], None, None), "\"+5\""),
            (asked(&["-5"], None, None), "\"-5\""),
            (asked(&[" 5"], None, None), "\" 5\""),
            (asked(&["%"], None, None), "\"%\""),
            (asked(&[""], None, None), "\"\""),
            (asked(&["1.5%"], None, None), "\"1.5%\""),
            (asked(&[], Some("0"), None), "rollout.max_concurrency is \"0\""),
            (asked(&["1"], None, Some("-1")), "rollout.max_failures is \"-1\""),
            (asked(&["99999999999"], None, None), "\"99999999999\""),
            (asked(&["11"], None, None), "say \"100%\""),
            (asked(&["1", "10%"], None, None), "leave one out"),
            (asked(&["5", "3"], None, None), "leave one out"),
            (asked(&["100%", "100%"], None, None), "leave one out"),
            (asked(&["1"; 33], None, None), "the limit is 32"),
        ] {
            let err = plan(&request, 10).unwrap_err().to_string();
            assert!(err.contains(words), "{request:?}: {err}");
        }
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
        let plan = plan(&asked(&["2", "100%"], Some("3"), Some("1")), 10).unwrap();
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

    #[test]
    fn a_late_delivery_leaves_the_whole_run_time_where_it_has_a_time_of_its_own() {
        let shared = Deadlines::of(60, None, at(100));
        assert_eq!((shared.deliver_by, shared.expires_at), (at(160), at(160)));
        let apart = Deadlines::of(60, Some(10), at(100));
        assert_eq!((apart.deliver_by, apart.expires_at), (at(110), at(170)));
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
