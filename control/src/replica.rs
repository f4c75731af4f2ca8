//! Several services on one database: each hears what the others did, and holds the streams of its own nodes only.

use std::time::Duration;

use crate::{control::Control, error_chain, store::News};

/// How long after a lost connection it is listened again. Until then the polls find everything.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);

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

async fn listen_once(control: &Control) -> Result<(), crate::store::StoreError> {
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
