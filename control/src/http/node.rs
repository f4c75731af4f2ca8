//! What nodes ask for and report. Every path is the node's own: another node's NSK opens none of it.

use std::{
    convert::Infallible,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::Stream;
use muster_shared::{
    ids::{ExecutionId, NodeId},
    time::Timestamp,
    wire::{
        ARTIFACT_ID_BYTES_MAX, CALLBACK_TOKEN_HEADER, Callback, CallbackResponse, CapabilityManifest,
        CapabilityResponse, EnrollRequest, HeartbeatRequest, HeartbeatResponse, VIOLATIONS_PER_REPORT_MAX,
        ViolationsRequest, ViolationsResponse,
    },
};

use super::{
    auth::{Bearer, Node},
    body::{CALLBACK_BODY_BYTES_MAX, OPERATOR_BODY_BYTES_MAX, REPORT_BODY_BYTES_MAX, read_json},
    denial::refuse_node,
    executions::parse_execution,
    extract::Path,
    problem::ApiError,
};
use crate::{
    audit::execution_resource,
    callback::{self, CallbackError},
    control::{Control, Shared},
    delivery, enroll, error_chain,
    instances::InstanceError,
    integrity,
    keys::token_hash,
    machine,
    presence::Seen,
    restored::Restored,
    signing,
    store::{News, Owed, TargetState},
};

/// How often a stream on which nothing happens says that it is there.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(25);
/// A node that lost its stream draws how long it waits from none up to what it was told last; this at least.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// How many nodes come back in a second once all have lost their stream here. Two processors take more: who asks for
/// something else meanwhile has an answer at once.
const RETURNS_PER_SECOND: usize = 2000;

pub(super) async fn enroll(
    State(control): State<Shared>,
    Bearer(token): Bearer,
    body: Body,
) -> Result<Response, ApiError> {
    let request: EnrollRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let enrolled = enroll::enroll(&control, &token, &request, Timestamp::now()).await?;
    Ok((StatusCode::CREATED, Json(enrolled)).into_response())
}

pub(super) async fn heartbeat(
    State(control): State<Shared>,
    node: Node,
    body: Body,
) -> Result<Json<HeartbeatResponse>, ApiError> {
    node.require_own_path("node_id_mismatch")?;
    let beat: HeartbeatRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let now = Timestamp::now();
    let contested = contested_for(&control, &node, now).is_some();
    if !contested {
        machine::note(&control, &node.key, &beat, now).await?;
        if let Some(serial) = beat.signing_serial {
            signing::confirm(&control, &node.key, serial).await?;
        }
    }
    let skew_ms = beat.client_now.as_millis().saturating_sub(now.as_millis());
    let untold = |mark: &Restored| !contested && beat.told_again != Some(mark.restored_at);
    let restored = control.restored.filter(untold).map(|mark| mark.news());
    control.presence.note(
        node.id,
        Seen {
            at: now,
            skew_ms: Some(skew_ms),
            binary_version: Some(beat.binary_version),
        },
    );
    Ok(Json(HeartbeatResponse {
        accepted_at: now,
        reconcile: false,
        rotate_keys: node.key.is_due(control.limits.nsk_age_max, now),
        contested,
        restored,
    }))
}

pub(super) async fn capabilities(
    State(control): State<Shared>,
    node: Node,
    body: Body,
) -> Result<Json<CapabilityResponse>, ApiError> {
    node.require_own_path("node_id_mismatch")?;
    uncontested(&control, &node)?;
    let manifest: CapabilityManifest = read_json(body, REPORT_BODY_BYTES_MAX).await?;
    let now = Timestamp::now();
    let fields_changed = integrity::declare(&control, (node.id, node.domain), &manifest, now).await?;
    control.presence.note(
        node.id,
        Seen {
            at: now,
            skew_ms: None,
            binary_version: Some(manifest.binary_version),
        },
    );
    Ok(Json(CapabilityResponse {
        accepted_at: now,
        fields_changed,
        host_key_changed: false,
    }))
}

pub(super) async fn violations(
    State(control): State<Shared>,
    node: Node,
    body: Body,
) -> Result<Response, ApiError> {
    node.require_own_path("node_id_mismatch")?;
    uncontested(&control, &node)?;
    let request: ViolationsRequest = read_json(body, REPORT_BODY_BYTES_MAX).await?;
    let count = request.violations.len();
    if !(1..=VIOLATIONS_PER_REPORT_MAX).contains(&count) {
        return Err(ApiError::bad_request(
            "invalid_body",
            format!("a report has 1 to {VIOLATIONS_PER_REPORT_MAX} violations, not {count}"),
        ));
    }
    for report in &request.violations {
        let length = report.artifact_id.len();
        if !(1..=ARTIFACT_ID_BYTES_MAX).contains(&length) {
            return Err(ApiError::bad_request(
                "invalid_body",
                format!("an artifact_id has 1 to {ARTIFACT_ID_BYTES_MAX} bytes, not {length}"),
            ));
        }
    }
    let now = Timestamp::now();
    integrity::record(&control, (node.id, node.domain), &request.violations, now).await?;
    let answer = ViolationsResponse {
        accepted_at: now,
        violation_count: u32::try_from(count).expect("checked against its limit above"),
    };
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

pub(super) async fn callback(
    State(control): State<Shared>,
    node: Node,
    Path((_, execution)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CallbackResponse>, ApiError> {
    let execution = parse_execution(&execution)?;
    let refused = async |relation, refusal| {
        let resource = execution_resource(execution);
        refuse_node(&control, (&node, relation), resource, refusal).await
    };
    if let Err(err) = node.require_own_path("nsk_node_mismatch") {
        return Err(refused("node_execution_callback.path_gate", err).await);
    }
    uncontested(&control, &node)?;
    let seen = match may_speak_for(&control, execution, &node, &headers).await {
        Ok(seen) => seen,
        Err(err) => return Err(refused("node_execution_callback.node_gate", err).await),
    };
    let callback: Callback = read_json(body, CALLBACK_BODY_BYTES_MAX).await?;
    if !callback::is_reportable(callback.status) {
        let refusal = ApiError::new(
            StatusCode::CONFLICT,
            "invalid_state_transition",
            "a node never makes an invocation pending",
        );
        return Err(refused(callback::APPLY, refusal).await);
    }
    let caller = (&*node.subject, node.domain);
    let began = Instant::now();
    let applied = callback::apply(
        &control,
        caller,
        (execution, node.id),
        &seen,
        callback,
        Timestamp::now(),
    )
    .await;
    control.metrics.callback_took(began.elapsed());
    match applied {
        Ok(response) => Ok(Json(response)),
        Err(err @ CallbackError::Contradicts { .. }) => Err(err.into()),
        Err(err) => Err(refused(callback::APPLY, err.into()).await),
    }
}

/// Whatever a copy says of its node would be false: it is not heard before it is clear that it is none.
pub(super) fn uncontested(control: &Control, node: &Node) -> Result<(), InstanceError> {
    match contested_for(control, node, Timestamp::now()) {
        Some(_) => Err(InstanceError::Contested),
        None => Ok(()),
    }
}

fn contested_for(control: &Control, node: &Node, now: Timestamp) -> Option<Duration> {
    control
        .instances
        .contested_for(node.id, node.key.contested_until, now)
}

/// The execution must address this node, and the report must carry the invocation's token: asked before the body is
/// read.
async fn may_speak_for(
    control: &Control,
    execution: ExecutionId,
    node: &Node,
    headers: &HeaderMap,
) -> Result<TargetState, ApiError> {
    let Some(target) = control.store.target_now(execution, node.id).await? else {
        return Err(if control.store.execution_exists(execution).await? {
            ApiError::denied(
                "nsk_node_mismatch",
                "out_of_scope",
                "the execution does not address this node",
            )
        } else {
            control.metrics.reported_unknown();
            log::warn!(execution_id:% = execution, node_id:% = node.id;
                "A node reports on an execution that is not known here: it keeps the result in its journal");
            ApiError::not_found(
                "execution_not_found",
                format!("there is no execution {execution}"),
            )
        });
    };
    let held = match headers.get(CALLBACK_TOKEN_HEADER) {
        Some(token) => token
            .to_str()
            .is_ok_and(|token| token_hash(token) == target.callback_token_hash),
        None => !target.callback_token_required,
    };
    if held {
        return Ok(target);
    }
    Err(ApiError::denied(
        "callback_token_mismatch",
        "out_of_scope",
        format!("the header {CALLBACK_TOKEN_HEADER} must carry the token of this invocation"),
    ))
}

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
