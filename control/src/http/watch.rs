//! An execution's timeline as an event stream for operators.

use std::convert::Infallible;

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
    wire::Rollout,
};

use super::{
    auth::InProject,
    executions::{execution_not_found, parse_execution},
    extract::Path,
    node::{KEEP_ALIVE, event_stream_headers},
    problem::ApiError,
};
use crate::{control::Shared, error_chain, store::Detail};

/// How many events are read at a time.
const TIMELINE_BATCH: u32 = 500;
/// Looks at least this often, should a wake-up be lost.
const TIMELINE_POLL: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) async fn execution_events(
    State(control): State<Shared>,
    caller: InProject,
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
    let stream = Sse::new(timeline(control, caller.project.id, id, after));
    Ok((
        event_stream_headers(),
        stream.keep_alive(KeepAlive::new().interval(KEEP_ALIVE)),
    )
        .into_response())
}

/// What is in flight and what failed, the timeline tells.
fn has_moved(before: &Rollout, now: &Rollout) -> bool {
    (before.state, before.wave, before.held) != (now.state, now.wave, now.held)
}

fn timeline(
    control: Shared,
    project: ProjectId,
    id: ExecutionId,
    mut after: i64,
) -> impl Stream<Item = Result<Event, Infallible>> {
    async_stream::stream! {
        let mut woken = control.watchers.watch(id);
        let mut rollout: Option<Rollout> = None;
        let mut may_roll = true;
        loop {
            woken.mark_unchanged();
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
                () = tokio::time::sleep(TIMELINE_POLL) => {}
            }
        }
    }
}
