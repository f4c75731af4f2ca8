//! How long to wait before trying again: exponential with full jitter, so that a restarted control is not stampeded.

use std::time::Duration;

const BASE_DEFAULT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// What every wait is drawn from at least: keeps a server's `retry:` from turning its nodes into a flood.
    pub(crate) min: Duration,
    /// No wait of our own is longer.
    pub(crate) max: Duration,
    /// No server makes a node wait longer than this.
    pub(crate) asked_max: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    bounds: Bounds,
    base: Duration,
    tries: u32,
}

impl Backoff {
    pub(crate) const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            base: BASE_DEFAULT,
            tries: 0,
        }
    }

    pub(crate) const fn set_base(&mut self, base: Duration) {
        self.base = base;
    }

    pub(crate) const fn set_max(&mut self, max: Duration) {
        self.bounds.max = max;
    }

    pub(crate) const fn reset(&mut self) {
        self.tries = 0;
    }

    /// The next wait. `chance` is a random number of which every bit counts.
    pub(crate) fn next(&mut self, chance: u32) -> Duration {
        let Bounds { min, max, .. } = self.bounds;
        let ceiling = self
            .base
            .max(min)
            .saturating_mul(1 << self.tries.min(16))
            .min(max)
            .max(min);
        self.tries = self.tries.saturating_add(1);
        ceiling.mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }

    /// The same where a server may have named its own wait. It is believed, within bounds; jitter is added so that its
    /// nodes do not return as one. One that names none at all gets the usual one, or it would be asked without end.
    pub(crate) fn next_unless_asked(&mut self, asked: Option<Duration>, chance: u32) -> Duration {
        match asked {
            Some(asked) if !asked.is_zero() => {
                let asked = asked.min(self.bounds.asked_max);
                asked + asked.mul_f64(0.2 * f64::from(chance) / f64::from(u32::MAX))
            }
            Some(_) | None => self.next(chance),
        }
    }
}

pub(crate) fn chance() -> u32 {
    let mut bytes = [0; 4];
    // Without randomness jitter is lost, not correctness: the middle of the range will do.
    getrandom::fill(&mut bytes).map_or(u32::MAX / 2, |()| u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        min: Duration::from_millis(100),
        max: Duration::from_secs(10),
        asked_max: Duration::from_secs(300),
    };

    #[test]
    fn waits_double_up_to_the_cap_and_start_over_after_a_reset() {
        let mut backoff = Backoff::new(BOUNDS);
        let waits: Vec<_> = (0..6).map(|_| backoff.next(u32::MAX).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        backoff.reset();
        assert_eq!(backoff.next(u32::MAX).as_secs(), 1);
        assert_eq!(backoff.next(0), Duration::ZERO);
    }

    #[test]
    fn a_servers_wishes_are_bounded() {
        let mut backoff = Backoff::new(BOUNDS);
        for base in [Duration::from_secs(3600), Duration::MAX] {
            backoff.set_base(base);
            assert_eq!(backoff.next(u32::MAX), BOUNDS.max);
        }
        backoff.reset();
        backoff.set_base(Duration::ZERO);
        assert_eq!(backoff.next(u32::MAX), BOUNDS.min);
        let longest = backoff.next_unless_asked(Some(Duration::MAX), u32::MAX);
        assert_eq!(longest, BOUNDS.asked_max.mul_f64(1.2));
    }

    #[test]
    fn a_wait_that_a_server_asks_for_is_never_cut_short() {
        let mut backoff = Backoff::new(BOUNDS);
        let asked = Duration::from_secs(30);
        for chance in [0, u32::MAX / 2, u32::MAX] {
            assert!(backoff.next_unless_asked(Some(asked), chance) >= asked);
        }
        // To ask for none is no way to be asked without end.
        let waits: Vec<_> = (0..4)
            .map(|_| {
                backoff
                    .next_unless_asked(Some(Duration::ZERO), u32::MAX)
                    .as_secs()
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8]);
    }
}
