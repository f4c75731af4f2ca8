//! Outputs: written by nodes through signed URLs of the built-in store, read by operators whichever tier they are in.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use muster_shared::{ids::ExecutionId, time::Timestamp, wire::OutputRef};

use super::{
    auth::{InProject, parse_node},
    extract::Path,
    operator::{execution_not_found, parse_execution},
    problem::ApiError,
    query::Asked,
};
use crate::{
    control::Shared,
    outputs::{OutputStore, UploadClaim},
    store::TargetState,
};

/// `PUT` through a URL that this service signed. The signature is the permission: no other is asked for.
pub(super) async fn accept(
    State(control): State<Shared>,
    Path((execution, node)): Path<(String, String)>,
    Asked(claim): Asked<UploadClaim>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let OutputStore::Local(store) = &control.outputs else {
        return Err(ApiError::not_found(
            "not_found",
            "outputs of this control go to another store",
        ));
    };
    let invocation = (parse_execution(&execution)?, parse_node(&node)?);
    let chunks = body.into_data_stream().map_err(std::io::Error::other).boxed();
    open_still(
        control.store.target_now(invocation.0, invocation.1).await?,
        invocation.0,
    )?;
    let received = store
        .receive(invocation, &claim, chunks, Timestamp::now())
        .await?;
    // The bytes may have taken minutes to come. Asked again under the write lock, which no report can pass: what is
    // settled is not written over.
    let mut tx = control.store.begin().await?;
    open_still(tx.target(invocation.0, invocation.1).await?, invocation.0)?;
    received.keep().await?;
    Ok(StatusCode::OK)
}

fn open_still(target: Option<TargetState>, execution: ExecutionId) -> Result<(), ApiError> {
    match target {
        Some(target) if !target.status.is_terminal() => Ok(()),
        Some(_) => Err(ApiError::new(
            StatusCode::CONFLICT,
            "execution_already_terminal",
            "the invocation is settled, and its output with it",
        )),
        None => Err(execution_not_found(execution)),
    }
}

/// The kept output of one invocation, byte for byte.
pub(super) async fn read(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, execution, node)): Path<(String, String, String)>,
) -> Result<Response, ApiError> {
    let (id, node) = (parse_execution(&execution)?, parse_node(&node)?);
    control
        .store
        .header(caller.project.id, id)
        .await?
        .ok_or_else(|| execution_not_found(id))?;
    let none = || {
        ApiError::not_found(
            "output_not_found",
            format!("node {node} has no output in execution {id}"),
        )
    };
    let output = control.store.output_of(id, node).await?.ok_or_else(none)?;
    let (len, body) = match output {
        OutputRef::Inline { inline_bytes } => (Some(inline_bytes.0.len() as u64), Body::from(inline_bytes.0)),
        OutputRef::ObjectStore { key, .. } => {
            let download = control.outputs.read(&key).await?;
            (download.len, Body::from_stream(download.body))
        }
    };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    if let Some(len) = len {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    }
    Ok(response)
}
