//! Several services on one database: each hears what the others did, and holds the streams of its own nodes only.

use std::{
    collections::HashSet,
    sync::{PoisonError, RwLock},
    time::{Duration, Instant},
};

use muster_shared::{ids::NodeId, time::Timestamp};
use uuid::Uuid;

use crate::{
    control::Control,
    error_chain,
    store::{News, StoreError},
};

/// How long after a lost connection it is listened again. Until then the polls find everything.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);

/// How often this service gives a sign of life.
const SIGN_EVERY: Duration = Duration::from_secs(5);
/// A service that gave none for so long holds no stream any more.
const LIVES_FOR: Duration = Duration::from_secs(20);
/// A service that gave none for so long does not come back.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// How long streams that came or went are gathered before they are noted together.
const GATHER: Duration = Duration::from_millis(100);

/// The other services that live, as they were seen last.
#[derive(Default)]
pub(crate) struct Replicas(RwLock<HashSet<Uuid>>);

impl Replicas {
    pub(crate) fn lives(&self, replica: Uuid) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&replica)
    }
}

/// Tells the others that this service lives, and whose streams it holds, until it stops.
pub(crate) async fn live(control: &Control) {
    if !control.store.is_shared() {
        return control.stop.cancelled().await;
    }
    let mut signed: Option<Instant> = None;
    while !control.stop.is_cancelled() {
        let due = signed.is_none_or(|at| at.elapsed() >= SIGN_EVERY);
        let changed = control.node_streams.take_changed();
        if due || !changed.is_empty() {
            match sign(control, due, &changed).await {
                Ok(()) if due => signed = Some(Instant::now()),
                Ok(()) => {}
                Err(err) => {
                    control.node_streams.put_back(changed);
                    log::warn!(
                        "The other replicas could not be told of this one: {}",
                        error_chain(&err)
                    );
                    control.stopped_within(SIGN_EVERY).await;
                }
            }
        }
        tokio::select! {
            () = control.stop.cancelled() => {}
            () = control.node_streams.changed() => { control.stopped_within(GATHER).await; }
            () = tokio::time::sleep(SIGN_EVERY) => {}
        }
    }
    if let Err(err) = leave(control).await {
        log::warn!(
            "The other replicas could not be told that this one stops: {}",
            error_chain(&err)
        );
    }
}

async fn sign(control: &Control, due: bool, changed: &HashSet<NodeId>) -> Result<(), StoreError> {
    let now = Timestamp::now();
    let (here, gone): (Vec<NodeId>, Vec<NodeId>) = changed
        .iter()
        .partition(|node| control.node_streams.is_connected(**node));
    let mut tx = control.store.begin().await?;
    if due {
        tx.note_replica(now.minus(FORGOTTEN_AFTER), now).await?;
    }
    tx.note_streams(&here, &gone).await?;
    tx.commit().await?;
    if due {
        let mut others = control.store.replicas_seen(now.minus(LIVES_FOR)).await?;
        others.remove(&control.store.replica_id());
        *control.replicas.0.write().unwrap_or_else(PoisonError::into_inner) = others;
    }
    Ok(())
}

async fn leave(control: &Control) -> Result<(), StoreError> {
    let mut tx = control.store.begin().await?;
    tx.forget_replica().await?;
    tx.commit().await
}

/// Passes on what other services tell, until this one stops.
pub(crate) async fn listen(control: &Control) {
    loop {
        let ended = tokio::select! {
            () = control.stop.cancelled() => return,
            ended = listen_once(control) => ended,
        };
        match ended {
            // Nobody shares the database.
            Ok(()) => return control.stop.cancelled().await,
            Err(err) => log::warn!("The other replicas are not heard: {}", error_chain(&err)),
        }
        if control.stopped_within(LISTEN_AGAIN).await {
            return;
        }
    }
}

async fn listen_once(control: &Control) -> Result<(), StoreError> {
    let Some(mut listener) = control.store.listen().await? else {
        return Ok(());
    };
    // What was told before there was somebody to hear it.
    pass_on(control, News::Outbox);
    pass_on(control, News::Rollouts);
    control.watchers.wake_all();
    loop {
        let news = listener.next().await?;
        pass_on(control, news);
    }
}

fn pass_on(control: &Control, news: News) {
    match news {
        News::Outbox => control.outbox_wake.notify_one(),
        News::Timeline(execution) => control.watchers.wake(execution),
        News::Rollouts => control.rollouts.began(),
        News::EndStream(node) => control.node_streams.disconnect(node),
    }
}
