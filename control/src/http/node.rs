//! What nodes ask for and report. Every path is the node's own: another node's NSK opens none of it.

use std::time::{Duration, Instant};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use muster_shared::{
    ids::ExecutionId,
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
    enroll,
    instances::InstanceError,
    integrity,
    keys::token_hash,
    machine,
    presence::Seen,
    restored::Restored,
    signing,
    store::TargetState,
};

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
