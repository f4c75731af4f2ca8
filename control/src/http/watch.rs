//! An execution's timeline as an event stream for operators.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::Stream;
use muster_shared::{
    ids::{ExecutionId, ProjectId},
    time::Timestamp,
    wire::{Problem, Rollout},
};

use super::{
    auth::{Bearer, InProject, still_in_project},
    executions::{execution_not_found, parse_execution},
    extract::Path,
    node_stream::{KEEP_ALIVE, event_stream_headers},
    problem::ApiError,
};
use crate::{
    control::{Control, Shared},
    error_chain,
    store::Detail,
    streams::Place,
};

/// How many events are read at a time.
const TIMELINE_BATCH: u32 = 500;
/// Looks at least this often, should a wake-up be lost; and asks as often whether the watcher may still be told.
const TIMELINE_POLL: Duration = Duration::from_secs(5);

pub(super) async fn execution_events(
    State(control): State<Shared>,
    caller: InProject,
    bearer: Bearer,
    Path((_, execution)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = parse_execution(&execution)?;
    control
        .store
        .header(caller.project.id, id)
        .await?
        .ok_or_else(|| execution_not_found(id))?;
    let after = headers
        .get("last-event-id")
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    let subject = &caller.operator.requester.subject;
    let watcher = Watcher {
        _place: control.watching.take_place(subject, control.limits.watches_max)?,
        bearer,
        relation: caller.operator.relation,
        project: caller.project.id,
        good_until: Instant::now() + good_for(caller.operator.expires_at, Timestamp::now()),
    };
    let stream = Sse::new(timeline(control, watcher, id, after));
    Ok((
        event_stream_headers(),
        stream.keep_alive(KeepAlive::new().interval(KEEP_ALIVE)),
    )
        .into_response())
}

/// Who watches. A stream goes on for as long as its execution, and its watcher may lose the right to it meanwhile.
struct Watcher {
    bearer: Bearer,
    relation: &'static str,
    project: ProjectId,
    /// Until when it was last found that it may.
    good_until: Instant,
    _place: Place,
}

/// For how long nobody has to ask again about who was found good now. An issuer's token may count for a little longer than
/// it says.
fn good_for(expires_at: Option<Timestamp>, now: Timestamp) -> Duration {
    let left = expires_at.map(|expires_at| now.until(expires_at));
    left.filter(|left| !left.is_zero())
        .map_or(TIMELINE_POLL, |left| left.min(TIMELINE_POLL))
}

impl Watcher {
    /// Why it is told no more. Asked of the database when it is time to.
    async fn refusal(&mut self, control: &Control) -> Option<ApiError> {
        let began = Instant::now();
        if began < self.good_until {
            return None;
        }
        let asked = still_in_project(control, &self.bearer, (self.project, self.relation)).await;
        match asked {
            Ok(operator) => {
                self.good_until = began + good_for(operator.expires_at, Timestamp::now());
                None
            }
            Err(refusal) => Some(refusal),
        }
    }
}

/// The last event for whoever is told no more, with the problem that asking again would be answered with.
fn ended(refusal: ApiError) -> Option<Event> {
    let data = serde_json::to_string(&Problem::from(refusal)).ok()?;
    Some(Event::default().event("ended").data(data))
}

/// What is in flight and what failed, the timeline tells.
fn has_moved(before: &Rollout, now: &Rollout) -> bool {
    (before.state, before.wave, before.held) != (now.state, now.wave, now.held)
}

fn timeline(
    control: Shared,
    mut watcher: Watcher,
    id: ExecutionId,
    mut after: i64,
) -> impl Stream<Item = Result<Event, Infallible>> {
    async_stream::stream! {
        let project = watcher.project;
        let mut woken = control.watchers.watch(id);
        let mut rollout: Option<Rollout> = None;
        let mut may_roll = true;
        loop {
            woken.mark_unchanged();
            if let Some(refusal) = watcher.refusal(&control).await {
                if let Some(event) = ended(refusal) { yield Ok(event); }
                return;
            }
            // The header is read before the timeline: if it is settled, the timeline read next is whole.
            let settled = match control.store.header(project, id).await {
                Ok(Some(header)) => header.terminal.is_some(),
                Ok(None) => return,
                Err(err) => { log::error!("A timeline could not be read: {}", error_chain(&err)); return }
            };
            loop {
                let events = match control.store.timeline(id, after, TIMELINE_BATCH).await {
                    Ok(events) => events,
                    Err(err) => { log::error!("A timeline could not be read: {}", error_chain(&err)); return }
                };
                let Some(last) = events.last() else { break };
                // Whoever reads slowly is at this for long.
                if let Some(refusal) = watcher.refusal(&control).await {
                    if let Some(event) = ended(refusal) { yield Ok(event); }
                    return;
                }
                after = last.id;
                for event in &events {
                    let Ok(data) = serde_json::to_string(event) else { return };
                    yield Ok(Event::default().id(event.id.to_string()).event("invocation").data(data));
                }
            }
            if may_roll {
                let now = match control.store.rollouts([id]).await {
                    Ok(mut rollouts) => rollouts.remove(&id),
                    Err(err) => { log::error!("A rollout could not be read: {}", error_chain(&err)); return }
                };
                // It has one from the first moment on, or never.
                may_roll = now.is_some();
                if let Some(now) = now && rollout.as_ref().is_none_or(|before| has_moved(before, &now)) {
                    let Ok(data) = serde_json::to_string(&now) else { return };
                    rollout = Some(now);
                    yield Ok(Event::default().event("rollout").data(data));
                }
            }
            if settled {
                let Ok(Some(execution)) = control.store.execution(project, id, Detail::WithoutOutput).await else { return };
                let Ok(data) = serde_json::to_string(&execution) else { return };
                yield Ok(Event::default().event("settled").data(data));
                return;
            }
            tokio::select! {
                () = control.stop.cancelled() => return,
                _ = woken.changed() => {}
                () = tokio::time::sleep_until(watcher.good_until.into()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_is_asked_about_as_its_token_ends_and_at_every_poll() {
        let now = Timestamp::from_millis(1_000_000);
        let in_a_second = now.plus(Duration::from_secs(1));
        for (expires_at, good) in [
            (None, TIMELINE_POLL),
            (Some(now.plus(TIMELINE_POLL * 2)), TIMELINE_POLL),
            (Some(in_a_second), Duration::from_secs(1)),
            // Found good all the same, as an issuer's may be: not asked about without a pause.
            (Some(now), TIMELINE_POLL),
        ] {
            assert_eq!(good_for(expires_at, now), good, "{expires_at:?}");
        }
    }
}
