//! The event stream of a node: what it is owed, signed, and signs of life while there is nothing.

use std::{
    convert::Infallible,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::Stream;
use muster_shared::{ids::NodeId, time::Timestamp};

use super::{auth::Node, problem::ApiError};
use crate::{
    control::{Control, Shared},
    delivery, error_chain,
    presence::Seen,
    store::{News, Owed},
};

/// How often a stream on which nothing happens says that it is there.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(25);
/// A node that lost its stream draws how long it waits from none up to what it was told last; this at least.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// How many nodes come back in a second once all have lost their stream here. Two processors take more: who asks for
/// something else meanwhile has an answer at once.
const RETURNS_PER_SECOND: usize = 2000;

/// The node's event stream: first all it is owed by the state of things, then what comes.
pub(super) async fn events(State(control): State<Shared>, node: Node) -> Result<Response, ApiError> {
    node.require_own_path("node_id_mismatch")?;
    if control.node_streams.opens_no_more() {
        return Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "this control is stopping; connect again",
        ));
    }
    let now = Timestamp::now();
    control.presence.note(
        node.id,
        Seen {
            at: now,
            skew_ms: None,
            binary_version: None,
        },
    );
    log::debug!(node_id:% = node.id; "Node opens its stream");
    Ok((
        event_stream_headers(),
        Sse::new(stream(control, node.id, node.key.contested_until)),
    )
        .into_response())
}

/// No proxy on the way may keep back or store what is on a stream.
pub(super) fn event_stream_headers() -> [(HeaderName, HeaderValue); 2] {
    [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        ),
    ]
}

/// When a stream that is quiet from now on says that it is there. On whole seconds: ten thousand streams wake this service
/// once a second, and not four hundred times.
fn keep_alive_after(now: Instant) -> Instant {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let since = (now + KEEP_ALIVE).duration_since(*BEGAN);
    *BEGAN + Duration::from_secs(since.as_secs())
}

/// What a node is told of how soon to come back, where so many have their stream.
fn retry_among(streams: usize) -> Duration {
    Duration::from_secs(streams.div_ceil(RETURNS_PER_SECOND) as u64).max(RETRY_MIN)
}

fn stream(
    control: Arc<Control>,
    node: NodeId,
    contested_until: Option<Timestamp>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    async_stream::stream! {
        // Subscribed before looking: what commits in between comes twice rather than never.
        let Some(mut subscription) = control.node_streams.open(node) else { return };
        let mut retry = retry_among(control.node_streams.count());
        yield Ok(Event::default().comment("muster").retry(retry));
        // An older one at another replica would go on until its keep-alives fail.
        if let Err(err) = control.store.announce(News::EndStream(node)).await {
            log::debug!(node_id:% = node; "Other replicas were not told of the stream: {}", error_chain(&err));
        }
        if let Some(wait) = control.instances.contested_for(node, contested_until, Timestamp::now()) {
            control.stopped_within(wait).await;
            if !subscription.is_live() { return; }
        }
        match delivery::owed_now(&control, node).await {
            Ok(owed) => for owed in owed {
                if !delivery::still_owed(&control, node, &owed, Timestamp::now()).await { continue; }
                if let Some(event) = event(&control, node, &owed) { yield Ok(event); }
            },
            Err(err) => {
                // The node comes back and asks again; a stream that began with a gap would hide it.
                log::error!(node_id:% = node; "What the node is owed could not be read: {}", error_chain(&err));
                return;
            }
        }
        let mut quiet_until = keep_alive_after(Instant::now());
        loop {
            tokio::select! {
                owed = subscription.next() => {
                    let Some(owed) = owed else { return };
                    if !delivery::still_owed(&control, node, &owed, Timestamp::now()).await { continue; }
                    if let Some(event) = event(&control, node, &owed) { yield Ok(event); }
                }
                () = tokio::time::sleep_until(quiet_until.into()) => {
                    let (told, quiet) = (retry, Event::default().comment(""));
                    retry = retry_among(control.node_streams.count());
                    yield Ok(if retry == told { quiet } else { quiet.retry(retry) });
                }
            }
            quiet_until = keep_alive_after(Instant::now());
        }
    }
}

fn event(control: &Control, node: NodeId, owed: &Owed) -> Option<Event> {
    let frame = match delivery::sign(control, node, owed, Timestamp::now()) {
        Ok(frame) => frame,
        Err(err) => {
            log::error!(node_id:% = node; "An event could not be signed: {}", error_chain(&err));
            return None;
        }
    };
    let data = serde_json::to_string(&frame.envelope).ok()?;
    Some(
        Event::default()
            .id(frame.id.to_string())
            .event(frame.event)
            .data(data),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_nodes_there_are_the_more_their_return_is_spread() {
        let told = [0, 1, 2000, 2001, 10_000, 50_000].map(|streams| retry_among(streams).as_secs());
        assert_eq!(told, [1, 1, 1, 2, 5, 25]);
    }

    #[test]
    fn quiet_streams_speak_together_and_in_time() {
        let now = Instant::now();
        let _ = keep_alive_after(now);
        let mut spoken: Vec<Instant> = (0..2000)
            .map(|ms| {
                let at = now + Duration::from_millis(ms);
                let next = keep_alive_after(at);
                let wait = next.duration_since(at);
                assert!(
                    wait <= KEEP_ALIVE && wait + Duration::from_secs(1) > KEEP_ALIVE,
                    "{wait:?}"
                );
                next
            })
            .collect();
        spoken.dedup();
        assert!(spoken.len() <= 3, "{spoken:?}");
    }
}
