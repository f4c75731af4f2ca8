//! What the whole service shares: one value, made once at start.

use std::{sync::Arc, time::Duration};

use muster_shared::ids::{NodeId, RowId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    callback::Callbacks,
    config::Limits,
    instances::Instances,
    keys::ServerKey,
    metrics::Metrics,
    oidc::Oidc,
    outputs::OutputStore,
    presence::Presence,
    rate::Rates,
    refusals::Refusals,
    replica::Replicas,
    restored::Restored,
    rolling::Rollouts,
    signing::Signing,
    store::Store,
    streams::{NodeStreams, Watchers, Watching},
};

pub(crate) struct Control {
    pub(crate) store: Store,
    pub(crate) key: ServerKey,
    pub(crate) signing: Signing,
    pub(crate) outputs: OutputStore,
    /// The URL under which nodes and operators reach this service, without a slash at its end.
    pub(crate) server_url: String,
    pub(crate) ca_pem: String,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    /// Whether metrics are shown beyond this machine.
    pub(crate) metrics_public: bool,
    pub(crate) node_streams: NodeStreams,
    pub(crate) watchers: Watchers,
    pub(crate) watching: Arc<Watching>,
    pub(crate) presence: Presence,
    pub(crate) instances: Instances,
    pub(crate) rates: Rates<String>,
    pub(crate) node_rates: Rates<NodeId>,
    /// By bootstrap token.
    pub(crate) enroll_rates: Rates<RowId>,
    pub(crate) refusals: Refusals,
    /// The backup from which this control was made again, if it was.
    pub(crate) restored: Option<Restored>,
    /// The issuer whose tokens count beside our own.
    pub(crate) oidc: Option<Arc<Oidc>>,
    /// Wakes the publisher: there may be rows in the outbox.
    pub(crate) outbox_wake: Notify,
    pub(crate) rollouts: Rollouts,
    pub(crate) callbacks: Callbacks,
    pub(crate) replicas: Replicas,
    /// Cancelled once, when the service stops.
    pub(crate) stop: CancellationToken,
}

pub(crate) type Shared = Arc<Control>;

impl Control {
    /// Whether the node has its stream here, or at that other service, which lives.
    pub(crate) fn is_connected(&self, node: NodeId, replica: Option<Uuid>) -> bool {
        self.node_streams.is_connected(node) || replica.is_some_and(|replica| self.replicas.lives(replica))
    }

    /// Waits, or returns true at once when the service stops.
    pub(crate) async fn stopped_within(&self, wait: Duration) -> bool {
        tokio::time::timeout(wait, self.stop.cancelled()).await.is_ok()
    }
}
