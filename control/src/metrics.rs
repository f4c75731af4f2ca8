//! What an on-call person watches. Labels are domains and nothing else: a series per node, subject or execution would be
//! one more each day, and belongs in the log and the audit trail.
//!
//! What the database knows is asked of it at every scrape, so that no path that settles an execution can forget to
//! count. Only what leaves no trace there is kept here: how many dispatches, how long callbacks take.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_shared::{ids::DomainId, time::Timestamp};
use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{control::Control, store::StoreError};

type Labels = Vec<(&'static str, String)>;
type Seconds = Gauge<f64, AtomicU64>;

fn of_domain(domain: DomainId) -> Labels {
    vec![("domain_id", domain.to_string())]
}

fn callback_buckets() -> Histogram {
    // From 1 ms to 4 s.
    Histogram::new(exponential_buckets(0.001, 2.0, 13))
}

pub(crate) struct Metrics {
    registry: Registry,
    live_executions: Family<Labels, Gauge>,
    executions: Family<Labels, Counter>,
    streams: Gauge,
    callbacks: Histogram,
    unknown: Counter,
    late_events_dropped: Counter,
    refusals_counted: Counter,
    outbox_rows: Gauge,
    outbox_age: Seconds,
    reconciler_lag: Seconds,
    /// The last row of the outbox that was handed to the streams: those before it only wait to be deleted.
    outbox_handed: AtomicI64,
    /// One scrape at a time, so that none shows the gauges of two moments.
    scrape: Mutex<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            live_executions: Family::default(),
            executions: Family::default(),
            streams: Gauge::default(),
            callbacks: callback_buckets(),
            unknown: Counter::default(),
            late_events_dropped: Counter::default(),
            refusals_counted: Counter::default(),
            outbox_rows: Gauge::default(),
            outbox_age: Seconds::default(),
            reconciler_lag: Seconds::default(),
            outbox_handed: AtomicI64::new(0),
            scrape: Mutex::new(()),
        };
        let registry = &mut metrics.registry;
        registry.register(
            "muster_actions_live_executions",
            "Executions that are not settled",
            metrics.live_executions.clone(),
        );
        registry.register(
            "muster_actions_executions",
            "Dispatches that were admitted since this control started",
            metrics.executions.clone(),
        );
        registry.register(
            "muster_streams_connected",
            "Nodes whose event stream is here",
            metrics.streams.clone(),
        );
        registry.register(
            "muster_callback_duration_seconds",
            "From a callback that was read to its durable answer",
            metrics.callbacks.clone(),
        );
        registry.register(
            "muster_callbacks_unknown_execution",
            "Callbacks about executions that are not known here, as after a restore from a backup",
            metrics.unknown.clone(),
        );
        registry.register(
            "muster_callbacks_late_events_dropped",
            "Contradictions of settled invocations that were refused and not kept, as limits.late_events_max was reached",
            metrics.late_events_dropped.clone(),
        );
        registry.register(
            "muster_refusals_counted",
            "Refusals of nodes and bootstrap tokens that share an audit row, as limits.refusals_audited_per_hour was reached",
            metrics.refusals_counted.clone(),
        );
        registry.register(
            "muster_outbox_rows",
            "Events that were committed and not yet handed to the streams",
            metrics.outbox_rows.clone(),
        );
        registry.register(
            "muster_outbox_age_seconds",
            "How long the oldest of them has waited",
            metrics.outbox_age.clone(),
        );
        registry.register(
            "muster_reconciler_lag_seconds",
            "How long the longest overdue execution should have been settled",
            metrics.reconciler_lag.clone(),
        );
        metrics
    }
}

/// What the database says at one moment.
#[derive(Debug)]
pub(crate) struct Counted {
    /// Every domain, also those with none.
    pub(crate) live: Vec<(DomainId, i64)>,
    pub(crate) outbox_rows: i64,
    pub(crate) outbox_oldest: Option<Timestamp>,
    /// Since when the longest overdue execution is due.
    pub(crate) overdue_since: Option<Timestamp>,
}

impl Metrics {
    pub(crate) fn dispatched(&self, domain: DomainId) {
        self.executions.get_or_create(&of_domain(domain)).inc();
    }

    pub(crate) fn callback_took(&self, took: Duration) {
        self.callbacks.observe(took.as_secs_f64());
    }

    pub(crate) fn reported_unknown(&self) {
        self.unknown.inc();
    }

    pub(crate) fn dropped_late_event(&self) {
        self.late_events_dropped.inc();
    }

    pub(crate) fn counted_refusal(&self) {
        self.refusals_counted.inc();
    }

    pub(crate) fn handed_outbox(&self, up_to: i64) {
        self.outbox_handed.store(up_to, Ordering::Relaxed);
    }
}

/// The text that a scraper reads.
pub(crate) async fn text(control: &Control, now: Timestamp) -> Result<String, StoreError> {
    let metrics = &control.metrics;
    let handed = metrics.outbox_handed.load(Ordering::Relaxed);
    let counted = control.store.counted(handed, now).await?;
    let _alone = metrics.scrape.lock().unwrap_or_else(PoisonError::into_inner);
    for (domain, live) in counted.live {
        metrics
            .live_executions
            .get_or_create(&of_domain(domain))
            .set(live);
        // A series that begins with its first dispatch would hide that one from a rate.
        drop(metrics.executions.get_or_create(&of_domain(domain)));
    }
    let streams = control.node_streams.count();
    metrics.streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
    metrics.outbox_rows.set(counted.outbox_rows);
    let since = |then: Option<Timestamp>| then.map_or(0.0, |then| then.until(now).as_secs_f64());
    metrics.outbox_age.set(since(counted.outbox_oldest));
    metrics.reconciler_lag.set(since(counted.overdue_since));
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = encode(&mut text, &metrics.registry);
    Ok(text)
}
