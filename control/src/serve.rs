//! `muster-control serve`: start in order, run, stop in order.

use std::{fs, io, sync::Arc};

use muster_shared::time::Timestamp;
use rustix::fs::{FlockOperation, flock};
use sd_notify::NotifyState;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{Notify, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    callback::Callbacks,
    config::Config,
    control::{Control, Shared},
    delivery, error_chain, http,
    instances::Instances,
    keys::ServerKey,
    metrics::Metrics,
    oidc::{IssuerError, Oidc},
    outputs::{LocalStore, OutputStore, Pace, S3Store},
    presence::Presence,
    rate::Rates,
    reconcile,
    refusals::{self, Refusals},
    replica,
    replica::Replicas,
    restored::{self, RestoredError},
    retention, rolling,
    rolling::Rollouts,
    server,
    server::ServerError,
    signing::{self, Signers, Signing, SigningError},
    store::{Store, StoreError, apart},
    streams::{NodeStreams, Watchers},
};

/// How often some of the streams of a service that stops are ended.
const MOVE_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
/// How long a stop takes beside that, at the most: `TimeoutStopSec` of the unit.
const STOP_MAX: std::time::Duration = std::time::Duration::from_secs(30);
/// How often what was heard of nodes is written.
const PRESENCE_EVERY: std::time::Duration = std::time::Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("{0} is no data directory: run muster-control init --data-dir {0}")]
    NotInitialised(String),
    #[error("another muster-control serves {0}")]
    InUse(String),
    #[error("the secrets of the data directory")]
    Secrets(#[source] io::Error),
    #[error("the output store")]
    Outputs(#[source] io::Error),
    #[error("the OIDC issuer's settings")]
    Oidc(#[from] IssuerError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the database")]
    Store(#[from] StoreError),
    #[error("the signing keys")]
    Signing(#[from] SigningError),
    #[error(transparent)]
    Restored(#[from] RestoredError),
    #[error("signals")]
    Signals(#[source] io::Error),
    #[error("a part of the service ended by itself: {0}")]
    Died(&'static str),
}

pub(crate) async fn serve(config: Config) -> Result<(), ServeError> {
    // Before anything else: a stop during start-up counts.
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;

    let shown = config.data.path().display().to_string();
    require_initialised(&config)?;
    let _lock = lock(&config, &shown)?;
    let key = config.data.server_key().map_err(ServeError::Secrets)?;
    let acceptor = server::tls(&config.data, key)?;
    let listener = server::listen(config.listen)?;
    let listen = config.listen;
    let retention = config.retention.clone();
    let control = open(config, shown).await?;
    log::info!(listen:% = listen, server_url = control.server_url; "Serving {} on {listen}", control.server_url);

    let tasks = TaskTracker::new();
    let died = Arc::new(Notify::new());
    let spawn = |name: &'static str, work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let (control, died) = (control.clone(), died.clone());
        let task = tasks.spawn(work);
        tokio::spawn(async move {
            // Ended without being told to, or panicked: the service must not go on without this part.
            let ended = task.await;
            if !control.stop.is_cancelled() {
                log::error!("The {name} ended by itself: {ended:?}");
                died.notify_one();
            }
        });
    };
    let app = http::router(control.clone());
    let stop = control.stop.clone();
    spawn(
        "listener",
        Box::pin(async move { server::serve(listener, acceptor, app, &stop).await }),
    );
    let (handed, handed_over) = watch::channel(0);
    spawn(
        "publisher",
        // On a thread of its own: between a commit and the frame nothing else is waited for.
        loop_of(&control, |c| {
            Box::pin(async move {
                let _ = apart(async move { delivery::publish(&c, &handed).await }).await;
            })
        }),
    );
    spawn(
        "drain of the outbox",
        loop_of(&control, |c| {
            Box::pin(async move { delivery::drain(&c, &handed_over).await })
        }),
    );
    spawn(
        "ear for other replicas",
        loop_of(&control, |c| Box::pin(async move { replica::listen(&c).await })),
    );
    spawn(
        "sign of life",
        loop_of(&control, |c| Box::pin(async move { replica::live(&c).await })),
    );
    spawn(
        "redelivery",
        loop_of(&control, |c| {
            Box::pin(async move { delivery::redeliver(&c).await })
        }),
    );
    spawn(
        "reconciler",
        loop_of(&control, |c| Box::pin(async move { reconcile::run(&c).await })),
    );
    spawn(
        "rollouts",
        loop_of(&control, |c| Box::pin(async move { rolling::run(&c).await })),
    );
    spawn(
        "pruner",
        loop_of(&control, |c| {
            Box::pin(async move { retention::run(&c, &retention).await })
        }),
    );
    spawn(
        "keeper of the signing keys",
        loop_of(&control, |c| Box::pin(async move { signing::watch(&c).await })),
    );
    spawn(
        "teller of refusals",
        loop_of(&control, |c| Box::pin(async move { refusals::run(&c).await })),
    );
    spawn(
        "presence writer",
        loop_of(&control, |c| Box::pin(async move { write_presence(&c).await })),
    );
    spawn(
        "watchdog",
        loop_of(&control, |c| Box::pin(async move { feed_watchdog(&c).await })),
    );
    // Beside the rest: a store of many outputs takes its time to be looked through.
    let swept = control.clone();
    tokio::spawn(async move { swept.outputs.sweep().await });
    tasks.close();
    // The socket listens since before the database was opened; from here on somebody accepts.
    let serving = format!("Serving {} on {listen}", control.server_url);
    tell_systemd(&[NotifyState::Ready, NotifyState::Status(&serving)]);

    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        () = died.notified() => Err(ServeError::Died("see the line above")),
    };
    log::info!("Stopping");
    tell_systemd(&[NotifyState::Stopping]);
    if control.store.is_shared() {
        // The unit allows for the usual stop alone; systemd never takes this for less than that.
        tell_systemd(&[extended(control.limits.drain)]);
        tokio::select! {
            () = move_nodes(&control) => {}
            _ = terminate.recv() => log::warn!("Told to stop twice: not waiting until the nodes have moved"),
        }
    }
    // Streams end first: they would hold the listener's drain to its limit.
    control.stop.cancel();
    control.node_streams.close();
    tokio::select! {
        () = tasks.wait() => {}
        _ = terminate.recv() => log::warn!("Told to stop twice: not waiting for what is under way"),
    }
    refusals::tell(&control, true).await;
    if let Err(err) = control.presence.write(&control.store).await {
        log::warn!("The last heartbeats were not written: {}", error_chain(&err));
    }
    control.store.close().await;
    outcome
}

/// Asks systemd for the time that a stop takes with this long a drain.
fn extended(drain: std::time::Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from((drain + STOP_MAX).as_micros()).unwrap_or(u32::MAX))
}

/// Ends the streams one after another, so that the services that take the nodes over are not asked for all at once. What
/// the nodes report meanwhile is taken as ever.
async fn move_nodes(control: &Control) {
    let streams = control.node_streams.open_no_more();
    log::info!(streams; "Moving {streams} nodes to other replicas");
    let steps = (control.limits.drain.as_millis() / MOVE_EVERY.as_millis()).max(1);
    let some = streams.div_ceil(usize::try_from(steps).unwrap_or(usize::MAX));
    while control.node_streams.end_some(some) > 0 {
        tokio::time::sleep(MOVE_EVERY).await;
    }
}

type Loop = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn loop_of(control: &Shared, work: impl FnOnce(Shared) -> Loop) -> Loop {
    work(control.clone())
}

/// Refuses a data directory in which `init` has not made anything yet.
pub(crate) fn require_initialised(config: &Config) -> Result<(), ServeError> {
    if config.database.is_missing() {
        return Err(ServeError::NotInitialised(
            config.data.path().display().to_string(),
        ));
    }
    Ok(())
}

/// One service per data directory: two would each think that they hold every node's stream.
fn lock(config: &Config, shown: &str) -> Result<fs::File, ServeError> {
    let path = config.data.path().join("lock");
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(ServeError::Secrets)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| ServeError::InUse(shown.to_owned()))?;
    Ok(file)
}

pub(crate) async fn open(config: Config, shown: String) -> Result<Shared, ServeError> {
    let key = config.data.server_key().map_err(ServeError::Secrets)?;
    let ca_pem = fs::read_to_string(config.data.ca_cert()).map_err(ServeError::Secrets)?;
    let store = Store::open(&config.database).await?;
    if store.first_domain().await?.is_none() {
        return Err(ServeError::NotInitialised(shown));
    }
    let outputs = open_outputs(&config, &key)?;
    let signers = Signers::load(&store, &config.data).await?;
    let restored = restored::take_up(&store, &config.data, Timestamp::now()).await?;
    Ok(Arc::new(Control {
        store,
        key,
        signing: Signing::new(config.data, signers),
        outputs,
        server_url: config.server_url,
        ca_pem,
        rates: Rates::new(
            "limits.requests_per_second",
            config.limits.requests_per_second,
            config.limits.requests_burst,
        ),
        node_rates: Rates::new(
            "limits.node_requests_per_second",
            config.limits.node_requests_per_second,
            config.limits.node_requests_burst,
        ),
        enroll_rates: Rates::new(
            "limits.enroll_requests_per_second",
            config.limits.enroll_requests_per_second,
            config.limits.enroll_requests_burst,
        ),
        refusals: Refusals::new(config.limits.refusals_audited_per_hour),
        limits: config.limits,
        restored,
        metrics: Metrics::default(),
        metrics_public: config.metrics_public,
        oidc: config.oidc.map(Oidc::new).transpose()?,
        node_streams: NodeStreams::default(),
        watchers: Watchers::default(),
        watching: Arc::default(),
        presence: Presence::default(),
        instances: Instances::default(),
        outbox_wake: Notify::new(),
        rollouts: Rollouts::default(),
        callbacks: Callbacks::default(),
        replicas: Replicas::default(),
        stop: CancellationToken::new(),
    }))
}

pub(crate) fn open_outputs(config: &Config, key: &ServerKey) -> Result<OutputStore, ServeError> {
    let ttl = config.limits.upload_url_ttl;
    let Some(settings) = &config.s3 else {
        let (dir, url) = (config.data.outputs(), config.server_url.clone());
        return Ok(OutputStore::Local(LocalStore::new(
            dir,
            url,
            key.clone(),
            Pace {
                url_ttl: ttl,
                bytes_per_second_min: config.limits.upload_bytes_per_second_min,
            },
            config.limits.output_store_bytes_max,
        )));
    };
    let store = S3Store::new(settings, ttl).map_err(ServeError::Outputs)?;
    Ok(OutputStore::S3(store))
}

/// Fed by an answer of the database through the runtime that serves: a service without either is of no use to anybody.
async fn feed_watchdog(control: &Control) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return control.stop.cancelled().await;
    };
    while !control.stopped_within(limit / 3).await {
        match control.store.answers_nodes().await {
            Ok(()) => tell_systemd(&[NotifyState::Watchdog]),
            Err(err) => log::error!("The database does not answer: {}", error_chain(&err)),
        }
    }
}

/// Elsewhere nobody listens, and this does nothing.
fn tell_systemd(what: &[NotifyState<'_>]) {
    if let Err(err) = sd_notify::notify(what) {
        log::debug!("systemd could not be told: {err}");
    }
}

async fn write_presence(control: &Control) {
    while !control.stopped_within(PRESENCE_EVERY).await {
        if let Err(err) = control.presence.write(&control.store).await {
            log::error!("Heartbeats could not be written: {}", error_chain(&err));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const UNIT: &str = include_str!("../../systemd/muster-control.service");

    #[test]
    fn systemd_is_asked_for_the_drain_and_the_usual_stop() {
        let usual = format!("\nTimeoutStopSec={}s\n", STOP_MAX.as_secs());
        assert!(UNIT.contains(&usual));
        let longest = extended(Duration::from_secs(600));
        assert_eq!(longest.to_string(), "EXTEND_TIMEOUT_USEC=630000000");
    }
}
