//! Dispatches, and what one would be.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use muster_shared::wire::{
    DispatchPreview, DispatchRequest, IDEMPOTENCY_KEY_HEADER, IDEMPOTENT_REPLAY_HEADER,
};
use tokio::sync::Semaphore;

use super::{
    auth::InProject,
    body::{OPERATOR_BODY_BYTES_MAX, parse_json, read_bytes, read_json},
    denial::refuse,
    problem::ApiError,
};
use crate::{
    authz,
    control::{Control, Shared},
    dispatch,
    idempotency::{KEY_LEN_MAX, Once},
    store::apart,
};

/// How many dispatches take their turn at writing, each on a thread; the others wait before that.
static DISPATCHING: Semaphore = Semaphore::const_new(32);

pub(super) async fn dispatch(
    State(control): State<Shared>,
    caller: InProject,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let bytes = read_bytes(body, OPERATOR_BODY_BYTES_MAX).await?;
    let once = once(&control, &headers, &bytes)?;
    let request = parse_json(&bytes)?;
    // Many statements one after another, for any number of nodes: on a thread of its own.
    let place = DISPATCHING
        .acquire()
        .await
        .map_err(|err| ApiError::internal(&err))?;
    let admitted = apart(async move {
        // Held as long as the thread is, also where the caller has gone.
        let _place = place;
        admit(control, caller, request, once).await
    });
    admitted.await.map_err(|err| ApiError::internal(&err))?
}

async fn admit(
    control: Shared,
    caller: InProject,
    request: DispatchRequest,
    once: Option<Once>,
) -> Result<Response, ApiError> {
    let InProject { operator, project } = caller;
    let dispatched =
        dispatch::dispatch(&control, &project, &operator.requester, request, once.as_ref()).await;
    let admitted = match dispatched {
        Ok(admitted) => admitted,
        Err(err) => {
            let resource = authz::project(project.id);
            return Err(refuse(&control, operator.asked(), project.domain, resource, err.into()).await);
        }
    };
    let mut response = (StatusCode::CREATED, Json(admitted.execution)).into_response();
    if admitted.again {
        let replayed = HeaderName::from_static(IDEMPOTENT_REPLAY_HEADER);
        response
            .headers_mut()
            .insert(replayed, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// What the request says of having been made before.
fn once(control: &Control, headers: &HeaderMap, body: &[u8]) -> Result<Option<Once>, ApiError> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY_HEADER).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    match Once::new(&control.key, key.as_bytes(), body) {
        Some(once) if keys.next().is_none() => Ok(Some(once)),
        Some(_) | None => Err(ApiError::bad_request(
            "invalid_idempotency_key",
            format!(
                "the header Idempotency-Key must be given once, with 1 to {KEY_LEN_MAX} visible ASCII characters"
            ),
        )),
    }
}

/// The same request as a dispatch, asked about and not carried out. A refusal leaves no trace either: nothing was
/// tried.
pub(super) async fn preview(
    State(control): State<Shared>,
    caller: InProject,
    body: Body,
) -> Result<Json<DispatchPreview>, ApiError> {
    let request: DispatchRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let InProject { operator, project } = caller;
    // A preview writes nothing, its refusals included.
    let preview = dispatch::preview(&control, &project, &operator.requester, request).await?;
    Ok(Json(preview))
}
