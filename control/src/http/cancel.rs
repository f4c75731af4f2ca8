//! Taking an execution back.

use axum::{Json, body::Body, extract::State};
use muster_shared::wire::{CancelRequest, CancelResponse};

use super::{
    auth::{InProject, parse_node},
    body::{OPERATOR_BODY_BYTES_MAX, read_json_or_default},
    denial::refuse,
    executions::parse_execution,
    extract::Path,
    problem::ApiError,
};
use crate::{audit, cancel, control::Shared};

pub(super) async fn cancel_execution(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, execution)): Path<(String, String)>,
    body: Body,
) -> Result<Json<CancelResponse>, ApiError> {
    let execution = parse_execution(&execution)?;
    let request: CancelRequest = read_json_or_default(body, OPERATOR_BODY_BYTES_MAX).await?;
    let node = request.node_id.as_deref().map(parse_node).transpose()?;
    let InProject { operator, project } = caller;
    let answer = cancel::cancel(&control, &project, &operator.requester, (execution, node)).await;
    match answer {
        Ok(answer) => Ok(Json(answer)),
        Err(err) => {
            let resource = audit::execution_resource(execution);
            Err(refuse(&control, operator.asked(), project.domain, resource, err.into()).await)
        }
    }
}
