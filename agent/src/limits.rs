//! What one hook, with everything it starts, may take of its machine. A plain value: the launcher enforces it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nothing stands for no limit of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Past it the kernel kills in the hook's own group, and nowhere else.
    pub(crate) memory_max_bytes: Option<u64>,
    /// Processes and threads that it may have at one time, its supervisor's among them.
    pub(crate) pids_max: Option<u64>,
    /// 100 is the whole of one processor, 200 of two.
    pub(crate) cpu_percent: Option<u64>,
}

impl Limits {
    /// Time on a processor in one second of the clock, as systemd and the kernel count it.
    pub(crate) fn cpu_time_per_second(&self) -> Option<Duration> {
        const MICROS_PER_PERCENT: u64 = 10_000;
        let percent = self.cpu_percent?;
        Some(Duration::from_micros(percent.saturating_mul(MICROS_PER_PERCENT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_percent_are_one_processor() {
        let of = |cpu_percent| {
            let limits = Limits {
                cpu_percent,
                ..Limits::default()
            };
            limits.cpu_time_per_second()
        };
        assert_eq!(of(Some(100)), Some(Duration::from_secs(1)));
        assert_eq!(of(Some(25)), Some(Duration::from_millis(250)));
        assert_eq!(of(None), None);
    }
}
