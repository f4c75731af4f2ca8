//! How often one caller may ask: a bucket for each that refills evenly. What stands here may be lost at any moment.

use std::{hash::Hash, num::NonZeroU32, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock as _};

pub(crate) struct Rates<K: Hash + Eq + Clone> {
    buckets: DefaultKeyedRateLimiter<K>,
    per_second: NonZeroU32,
    /// The name of that setting.
    limit: &'static str,
}

/// A caller asks faster than it may.
#[derive(Debug, thiserror::Error)]
#[error(
    "the caller asks more often than {limit} ({per_second}) allows; ask again in {} s",
    self.wait_seconds()
)]
pub(crate) struct TooOften {
    per_second: NonZeroU32,
    limit: &'static str,
    wait: Duration,
}

impl TooOften {
    /// The wait in whole seconds, as `Retry-After` has it, and never none.
    pub(crate) fn wait_seconds(&self) -> u64 {
        (self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0)).max(1)
    }
}

impl<K: Hash + Eq + Clone> Rates<K> {
    /// `burst` is how many requests an idle caller may make at once.
    pub(crate) fn new(limit: &'static str, per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        Self {
            buckets: RateLimiter::keyed(Quota::per_second(per_second).allow_burst(burst)),
            per_second,
            limit,
        }
    }

    /// Counts one request of a caller whose key, or whose token, is known: a stranger has no bucket to fill.
    pub(crate) fn check(&self, caller: &K) -> Result<(), TooOften> {
        self.buckets.check_key(caller).map_err(|until| TooOften {
            per_second: self.per_second,
            limit: self.limit,
            wait: until.wait_time_from(self.buckets.clock().now()),
        })
    }

    /// Forgets callers whose buckets are full again, so that as many are held as asked of late.
    pub(crate) fn forget_idle(&self) {
        self.buckets.retain_recent();
        self.buckets.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[test]
    fn a_burst_is_allowed_and_what_is_over_it_is_told_how_long_to_wait() {
        let rates = Rates::new("limits.requests_per_second", number(1), number(3));
        let (a, b) = ("token:a".to_owned(), "token:b".to_owned());
        for _ in 0..3 {
            rates.check(&a).unwrap();
        }
        let refused = rates.check(&a).unwrap_err();
        assert_eq!(refused.wait_seconds(), 1);
        assert!(
            refused.to_string().contains("limits.requests_per_second (1)"),
            "{refused}"
        );
        rates.check(&b).unwrap();
    }

    #[test]
    fn callers_who_stay_away_are_forgotten() {
        let rates = Rates::new("limits.requests_per_second", number(1_000_000), number(1));
        for n in 0..10_000 {
            rates.check(&format!("token:{n}")).unwrap();
        }
        while !rates.buckets.is_empty() {
            rates.forget_idle();
        }
    }
}
