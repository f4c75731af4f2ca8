//! `[limits]`: what control takes on, and within which bounds that may be set.

use std::{num::NonZeroU32, time::Duration};

use muster_shared::wire::{BOOTSTRAP_USES_MAX, INLINE_OUTPUT_BYTES_MAX, VIOLATIONS_PER_REPORT_MAX};
use serde::Deserialize;

use super::{ConfigError, within};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// How many executions of one domain may be live at a time.
    pub(crate) live_executions_max: u32,
    /// The largest output a node may upload, in bytes.
    pub(crate) output_bytes_max: u64,
    /// What all outputs together may take in the built-in store, in bytes.
    pub(crate) output_store_bytes_max: u64,
    /// How long an upload URL lasts. A node whose URL ran out asks again.
    pub(crate) upload_url_ttl: Duration,
    /// How fast an upload must be that takes longer than that, in bytes.
    pub(crate) upload_bytes_per_second_min: u64,
    /// How long after its deadline an invocation that a node took may still be reported.
    pub(crate) report_grace: Duration,
    /// How long a node that was asked to cancel may take to say that it did.
    pub(crate) cancel_grace: Duration,
    /// How long a rollout may hold anything back.
    pub(crate) rollout_max: Duration,
    /// How long after a restore from a backup nothing is timed out, so that nodes can tell what they did since.
    pub(crate) restore_grace: Duration,
    /// How old a node's key may be before the node is asked to change it; without it only operators ask.
    pub(crate) nsk_age_max: Option<Duration>,
    /// How long a node's key counts after the next one was used first.
    pub(crate) nsk_overlap: Duration,
    /// Over how long the streams of a service that stops are ended, where others take their nodes over.
    pub(crate) drain: Duration,
    /// How many requests a second one operator token may make in the long run.
    pub(crate) requests_per_second: NonZeroU32,
    /// How many it may make at once after a pause.
    pub(crate) requests_burst: NonZeroU32,
    /// The same two of one node.
    pub(crate) node_requests_per_second: NonZeroU32,
    pub(crate) node_requests_burst: NonZeroU32,
    /// The same two of all who show one bootstrap token.
    pub(crate) enroll_requests_per_second: NonZeroU32,
    pub(crate) enroll_requests_burst: NonZeroU32,
    /// How many refusals of one node or bootstrap token are audited one by one: at once after a pause, and in an hour.
    pub(crate) refusals_audited_per_hour: NonZeroU32,
    /// How many reports are kept that contradict one settled invocation.
    pub(crate) late_events_max: u32,
    /// How many executions one caller may watch at a time.
    pub(crate) watches_max: u32,
    /// How many violations of one node may be open.
    pub(crate) open_violations_max: u32,
    /// How many bytes of inline output one answer carries.
    pub(crate) answer_output_bytes_max: u64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    live_executions_max: Option<u64>,
    output_bytes_max: Option<u64>,
    output_store_bytes_max: Option<u64>,
    upload_url_seconds: Option<u64>,
    upload_bytes_per_second_min: Option<u64>,
    report_grace_seconds: Option<u64>,
    cancel_grace_seconds: Option<u64>,
    rollout_seconds_max: Option<u64>,
    restore_grace_seconds: Option<u64>,
    nsk_days_max: Option<u64>,
    nsk_overlap_seconds: Option<u64>,
    drain_seconds: Option<u64>,
    requests_per_second: Option<u64>,
    requests_burst: Option<u64>,
    node_requests_per_second: Option<u64>,
    node_requests_burst: Option<u64>,
    enroll_requests_per_second: Option<u64>,
    enroll_requests_burst: Option<u64>,
    refusals_audited_per_hour: Option<u64>,
    late_events_max: Option<u64>,
    watches_max: Option<u64>,
    open_violations_max: Option<u64>,
    answer_output_bytes_max: Option<u64>,
}

impl RawLimits {
    pub(super) fn check(&self) -> Result<Limits, ConfigError> {
        let count = |name, value, default, max| {
            let count = within(name, value, default, 1, max)?;
            let count = u32::try_from(count).ok().and_then(NonZeroU32::new);
            Ok::<NonZeroU32, ConfigError>(count.expect("checked against its bounds above"))
        };
        let live = count(
            "limits.live_executions_max",
            self.live_executions_max,
            1000,
            1_000_000,
        )?;
        Ok(Limits {
            live_executions_max: live.get(),
            requests_per_second: count(
                "limits.requests_per_second",
                self.requests_per_second,
                50,
                100_000,
            )?,
            requests_burst: count("limits.requests_burst", self.requests_burst, 200, 100_000)?,
            node_requests_per_second: count(
                "limits.node_requests_per_second",
                self.node_requests_per_second,
                500,
                100_000,
            )?,
            // A node that comes back after an outage may have 10,000 actions to be told of, each in a few requests.
            node_requests_burst: count(
                "limits.node_requests_burst",
                self.node_requests_burst,
                50_000,
                1_000_000,
            )?,
            enroll_requests_per_second: count(
                "limits.enroll_requests_per_second",
                self.enroll_requests_per_second,
                100,
                100_000,
            )?,
            // A token admits 10,000 nodes, and each may have to ask twice: at once, when a fleet is switched on.
            enroll_requests_burst: count(
                "limits.enroll_requests_burst",
                self.enroll_requests_burst,
                2 * u64::from(BOOTSTRAP_USES_MAX),
                1_000_000,
            )?,
            refusals_audited_per_hour: count(
                "limits.refusals_audited_per_hour",
                self.refusals_audited_per_hour,
                120,
                100_000,
            )?,
            late_events_max: count("limits.late_events_max", self.late_events_max, 20, 10_000)?.get(),
            watches_max: count("limits.watches_max", self.watches_max, 100, 10_000)?.get(),
            open_violations_max: u32::try_from(within(
                "limits.open_violations_max",
                self.open_violations_max,
                1000,
                VIOLATIONS_PER_REPORT_MAX as u64,
                1_000_000,
            )?)
            .expect("checked against its bounds above"),
            answer_output_bytes_max: within(
                "limits.answer_output_bytes_max",
                self.answer_output_bytes_max,
                4 << 20,
                INLINE_OUTPUT_BYTES_MAX as u64,
                64 << 20,
            )?,
            output_bytes_max: within(
                "limits.output_bytes_max",
                self.output_bytes_max,
                1 << 30,
                1 << 15,
                1 << 40,
            )?,
            output_store_bytes_max: within(
                "limits.output_store_bytes_max",
                self.output_store_bytes_max,
                64 << 30,
                1 << 20,
                1 << 50,
            )?,
            // Signature Version 4 knows no URL that lasts longer than a week.
            upload_url_ttl: Duration::from_secs(within(
                "limits.upload_url_seconds",
                self.upload_url_seconds,
                15 * 60,
                1,
                7 * 24 * 60 * 60,
            )?),
            upload_bytes_per_second_min: within(
                "limits.upload_bytes_per_second_min",
                self.upload_bytes_per_second_min,
                4096,
                1,
                1 << 30,
            )?,
            report_grace: Duration::from_secs(within(
                "limits.report_grace_seconds",
                self.report_grace_seconds,
                30,
                1,
                3600,
            )?),
            cancel_grace: Duration::from_secs(within(
                "limits.cancel_grace_seconds",
                self.cancel_grace_seconds,
                60,
                1,
                3600,
            )?),
            rollout_max: Duration::from_secs(within(
                "limits.rollout_seconds_max",
                self.rollout_seconds_max,
                7 * 86_400,
                1,
                90 * 86_400,
            )?),
            restore_grace: Duration::from_secs(within(
                "limits.restore_grace_seconds",
                self.restore_grace_seconds,
                120,
                0,
                3600,
            )?),
            nsk_age_max: match within("limits.nsk_days_max", self.nsk_days_max, 0, 0, 3650)? {
                0 => None,
                days => Some(Duration::from_secs(days * 86_400)),
            },
            drain: Duration::from_secs(within("limits.drain_seconds", self.drain_seconds, 10, 0, 600)?),
            nsk_overlap: Duration::from_secs(within(
                "limits.nsk_overlap_seconds",
                self.nsk_overlap_seconds,
                60,
                0,
                86_400,
            )?),
        })
    }
}
