//! What one hook, with everything it starts, may take of its machine. A plain value: the launcher enforces it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run_as;

/// What the supervisor itself, which is counted with its hook, has to have.
pub(crate) const MEMORY_BYTES_MIN: u64 = 16 << 20;
pub(crate) const PIDS_MIN: u64 = 4;

/// Nothing stands for no limit of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HookLimits {
    /// Past it the kernel kills in the hook's own group, and nowhere else.
    pub(crate) memory_max_bytes: Option<u64>,
    /// Processes and threads that it may have at one time, its supervisor's among them.
    pub(crate) pids_max: Option<u64>,
    /// 100 is the whole of one processor, 200 of two.
    pub(crate) cpu_percent: Option<u64>,
}

impl HookLimits {
    /// With what a manifest says where that is less. No manifest may have more than the node gives.
    pub(crate) fn tightened_by(&self, manifest: &run_as::ManifestLimits) -> Self {
        let less = |ours: Option<u64>, theirs: Option<u64>| ours.into_iter().chain(theirs).min();
        Self {
            memory_max_bytes: less(
                self.memory_max_bytes,
                manifest.memory_bytes.map(|bytes| bytes.max(MEMORY_BYTES_MIN)),
            ),
            pids_max: less(
                self.pids_max,
                manifest.pids.map(|pids| pids.saturating_add(PIDS_MIN)),
            ),
            cpu_percent: self.cpu_percent,
        }
    }

    /// Those that there are.
    pub(crate) fn named(&self) -> Vec<&'static str> {
        let limits = [
            (self.memory_max_bytes, "memory_max_bytes"),
            (self.pids_max, "pids_max"),
            (self.cpu_percent, "cpu_percent"),
        ];
        limits
            .into_iter()
            .filter_map(|(limit, name)| limit.map(|_| name))
            .collect()
    }

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
    fn the_lesser_limit_counts() {
        let node = HookLimits {
            memory_max_bytes: Some(64 << 20),
            pids_max: Some(100),
            cpu_percent: Some(50),
        };
        let manifest = |memory_bytes, pids| run_as::ManifestLimits {
            memory_bytes,
            pids,
            ..run_as::ManifestLimits::default()
        };
        let both = |limits: HookLimits| (limits.memory_max_bytes, limits.pids_max, limits.cpu_percent);
        let less = node.tightened_by(&manifest(Some(32 << 20), Some(200)));
        assert_eq!(both(less), (Some(32 << 20), Some(100), Some(50)));
        // The supervisor is counted with its hook.
        let alone = HookLimits::default().tightened_by(&manifest(Some(1), Some(1)));
        assert_eq!(both(alone), (Some(MEMORY_BYTES_MIN), Some(1 + PIDS_MIN), None));
    }

    #[test]
    fn a_hundred_percent_are_one_processor() {
        let of = |cpu_percent| {
            let limits = HookLimits {
                cpu_percent,
                ..HookLimits::default()
            };
            limits.cpu_time_per_second()
        };
        assert_eq!(of(Some(100)), Some(Duration::from_secs(1)));
        assert_eq!(of(Some(25)), Some(Duration::from_millis(250)));
        assert_eq!(of(None), None);
    }
}
