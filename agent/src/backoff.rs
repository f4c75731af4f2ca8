//! How long to wait before trying again: exponential with full jitter, so that a restarted control is not stampeded.

use std::time::Duration;

/// No server makes a node wait longer than this.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
const BASE_DEFAULT: Duration = Duration::from_secs(1);
/// Keeps a server's `retry:` from turning its nodes into a flood.
const BASE_MIN: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    base: Duration,
    max: Duration,
    tries: u32,
}

impl Backoff {
    pub(crate) const fn new(max: Duration) -> Self {
        Self {
            base: BASE_DEFAULT,
            max,
            tries: 0,
        }
    }

    pub(crate) fn set_base(&mut self, base: Duration) {
        self.base = base.clamp(BASE_MIN, self.max);
    }

    pub(crate) const fn reset(&mut self) {
        self.tries = 0;
    }

    /// The next wait. `chance` is a random number of which every bit counts.
    pub(crate) fn next(&mut self, chance: u32) -> Duration {
        let ceiling = self.base.saturating_mul(1 << self.tries.min(16)).min(self.max);
        self.tries = self.tries.saturating_add(1);
        ceiling.mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }
}

/// A server that names its own wait is believed, within bounds; jitter is added so that its nodes do not return as one.
pub(crate) fn asked_to_wait(seconds: u64, chance: u32) -> Duration {
    let asked = Duration::from_secs(seconds).min(RETRY_AFTER_MAX);
    asked + asked.mul_f64(0.2 * f64::from(chance) / f64::from(u32::MAX))
}

pub(crate) fn chance() -> u32 {
    let mut bytes = [0; 4];
    // Without randomness jitter is lost, not correctness: the middle of the range will do.
    getrandom::fill(&mut bytes).map_or(u32::MAX / 2, |()| u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_start_over_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_secs(10));
        let waits: Vec<_> = (0..6).map(|_| backoff.next(u32::MAX).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        backoff.reset();
        assert_eq!(backoff.next(u32::MAX).as_secs(), 1);
        assert_eq!(backoff.next(0), Duration::ZERO);
    }

    #[test]
    fn a_servers_wishes_are_bounded() {
        let mut backoff = Backoff::new(Duration::from_secs(10));
        backoff.set_base(Duration::from_secs(3600));
        assert_eq!(backoff.next(u32::MAX), Duration::from_secs(10));
        backoff.set_base(Duration::ZERO);
        assert!(backoff.next(u32::MAX) > Duration::ZERO);
        assert!(asked_to_wait(u64::MAX, u32::MAX) <= RETRY_AFTER_MAX.mul_f64(1.2));
    }
}
