//! What the operator asks for, and what it comes to for a cohort of some size.

use muster_shared::wire::{Amount, ROLLOUT_WAVES_MAX, RolloutPlan, RolloutRequest, RolloutWave};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
