//! Keys of nodes: operators ask for new ones, and nodes fetch them.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use muster_shared::{
    time::Timestamp,
    wire::{RotateKeysRequest, RotateKeysResponse},
};

use super::{
    auth::{InProject, Node},
    body::{OPERATOR_BODY_BYTES_MAX, read_json},
    node::uncontested,
    problem::ApiError,
};
use crate::{control::Shared, nsk, target::Target};

pub(super) async fn ask(
    State(control): State<Shared>,
    caller: InProject,
    body: Body,
) -> Result<Json<RotateKeysResponse>, ApiError> {
    caller.require_operator(&control).await?;
    let request: RotateKeysRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let target = Target::parse(
        request.selector.as_deref(),
        request.node_id.as_deref(),
        request.all,
    )?;
    let InProject { operator, project } = &caller;
    let answer = nsk::ask(&control, project, &operator.requester, &target, Timestamp::now()).await?;
    if answer.asked.is_empty() {
        return Err(ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "selector_empty_cohort",
            "no node that you may act on matches",
        ));
    }
    Ok(Json(answer))
}

pub(super) async fn fetch(State(control): State<Shared>, node: Node) -> Result<Response, ApiError> {
    node.require_own_path("node_id_mismatch")?;
    uncontested(&control, &node)?;
    let new = nsk::issue(&control, &node.key, node.shown, Timestamp::now()).await?;
    Ok((StatusCode::CREATED, Json(new)).into_response())
}
