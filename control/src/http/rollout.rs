//! Holding a rollout back, and letting it go on.

use axum::{Json, body::Body, extract::State};
use muster_shared::wire::{Execution, PauseRequest};

use super::{
    auth::InProject,
    body::{OPERATOR_BODY_BYTES_MAX, read_json_or_default},
    denial::refuse,
    executions::parse_execution,
    extract::Path,
    problem::ApiError,
};
use crate::{
    audit,
    control::{Control, Shared},
    rolling::{self, Word},
};

pub(super) async fn pause(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, execution)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Execution>, ApiError> {
    obey(&control, caller, (&execution, Word::Pause), body).await
}

pub(super) async fn resume(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, execution)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Execution>, ApiError> {
    obey(&control, caller, (&execution, Word::Resume), body).await
}

async fn obey(
    control: &Control,
    caller: InProject,
    (execution, word): (&str, Word),
    body: Body,
) -> Result<Json<Execution>, ApiError> {
    let execution = parse_execution(execution)?;
    let PauseRequest {} = read_json_or_default(body, OPERATOR_BODY_BYTES_MAX).await?;
    let InProject { operator, project } = caller;
    let obeyed = rolling::obey(control, &project, &operator.requester, (execution, word)).await;
    match obeyed {
        Ok(execution) => Ok(Json(execution)),
        Err(err) => {
            let resource = audit::execution_resource(execution);
            Err(refuse(control, operator.asked(), project.domain, resource, err.into()).await)
        }
    }
}
