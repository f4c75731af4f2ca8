//! What the daemon and its hooks may take, and within which bounds that may be set.

use std::{path::Path, time::Duration};

use super::{
    ConfigError, bounded,
    file::{RawConfig, RawHooks},
};
use crate::{
    backoff,
    hooks::SizesMax,
    journal::Bounds,
    limits::{HookLimits, MEMORY_BYTES_MIN, PIDS_MIN},
    session::OutputBounds,
};

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Invocations that run at the same time.
    pub(crate) running_max: usize,
    /// Invocations that wait their turn; one more is refused.
    pub(crate) queue_max: usize,
    /// Output kept of one invocation; past it the middle is cut.
    pub(crate) output_bytes_max: u64,
    pub(crate) sizes: SizesMax,
    /// Between the polite signal and the other one.
    pub(crate) stop_grace: Duration,
    pub(crate) heartbeat: Duration,
    /// Silence on the event stream, or of the output store during an upload, after which it counts as dead.
    pub(crate) idle: Duration,
    pub(crate) backoff: backoff::Bounds,
    /// How long past its expiry a delivered invocation is remembered.
    pub(crate) journal_keep: Duration,
    /// How many of them, and in how much room.
    pub(crate) journal: Bounds,
    /// How long an end may wait for its output to be uploaded before it is told without it.
    pub(crate) output_wait: Duration,
    /// The longest wait before an output whose end was told is tried again.
    pub(crate) output_retry: Duration,
    /// How long such an output is kept and tried.
    pub(crate) output_keep: Duration,
    /// How much all of them may take, and how many there may be; past it the oldest go.
    pub(crate) outputs: OutputBounds,
}

pub(super) fn limits(raw: &RawConfig, path: &Path) -> Result<Limits, ConfigError> {
    let within = |field, value: Option<u64>, default, min, max| {
        let value = value.unwrap_or(default);
        bounded(path, field, value, (min, max))
    };
    let seconds =
        |field, value, default, min, max| within(field, value, default, min, max).map(Duration::from_secs);
    let count = |field, value, default, min, max| {
        within(field, value, default, min, max).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    };
    Ok(Limits {
        running_max: count("running_max", raw.running_max, 8, 1, 256)?,
        queue_max: count("queue_max", raw.queue_max, 64, 1, 10_000)?,
        output_bytes_max: within("output_bytes_max", raw.output_bytes_max, 64 << 20, 4096, 1 << 40)?,
        sizes: SizesMax {
            hook_bytes: within("hook_bytes_max", raw.hook_bytes_max, 16 << 20, 1, 1 << 30)?,
            manifest_bytes: within("manifest_bytes_max", raw.manifest_bytes_max, 64 << 10, 1, 1 << 20)?,
        },
        stop_grace: seconds("stop_grace_seconds", raw.stop_grace_seconds, 10, 0, 3600)?,
        heartbeat: seconds("heartbeat_seconds", raw.heartbeat_seconds, 120, 1, 3600)?,
        idle: seconds("idle_seconds", raw.idle_seconds, 60, 2, 3600)?,
        backoff: backoff::Bounds {
            min: within("backoff_min_ms", raw.backoff_min_ms, 100, 1, 10_000).map(Duration::from_millis)?,
            max: seconds("backoff_max_seconds", raw.backoff_max_seconds, 60, 0, 3600)?,
            asked_max: seconds(
                "retry_after_max_seconds",
                raw.retry_after_max_seconds,
                300,
                0,
                3600,
            )?,
        },
        journal_keep: seconds("journal_keep_days", raw.journal_keep_days, 7, 0, 3650)? * (24 * 60 * 60),
        output_wait: seconds("output_wait_seconds", raw.output_wait_seconds, 120, 0, 3600)?,
        output_retry: seconds(
            "output_retry_seconds",
            raw.output_retry_seconds,
            600,
            1,
            24 * 60 * 60,
        )?,
        output_keep: seconds("output_keep_days", raw.output_keep_days, 7, 0, 3650)? * (24 * 60 * 60),
        journal: Bounds {
            rows_max: within("journal_rows_max", raw.journal_rows_max, 100_000, 100, 10_000_000)?,
            bytes_max: within(
                "journal_bytes_max",
                raw.journal_bytes_max,
                256 << 20,
                1 << 20,
                1 << 40,
            )?,
        },
        outputs: OutputBounds {
            bytes_max: within(
                "output_spool_bytes_max",
                raw.output_spool_bytes_max,
                1 << 30,
                0,
                1 << 40,
            )?,
            count_max: count(
                "output_spool_count_max",
                raw.output_spool_count_max,
                1000,
                0,
                100_000,
            )?,
        },
    })
}

pub(super) fn hook_limits(raw: &RawHooks, path: &Path) -> Result<HookLimits, ConfigError> {
    let given = |field, value: Option<u64>, bounds| {
        value.map(|value| bounded(path, field, value, bounds)).transpose()
    };
    Ok(HookLimits {
        memory_max_bytes: given(
            "hooks.memory_max_bytes",
            raw.memory_max_bytes,
            (MEMORY_BYTES_MIN, 1 << 50),
        )?,
        pids_max: given("hooks.pids_max", raw.pids_max.or(Some(4096)), (PIDS_MIN, 1 << 22))?,
        cpu_percent: given("hooks.cpu_percent", raw.cpu_percent, (1, 100_000))?,
    })
}
