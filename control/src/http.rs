//! The HTTP surface: routes, who is asking, and the one place that turns errors into status codes.

mod access;
mod audit;
mod auth;
mod body;
mod cancel;
mod cursor;
mod denial;
mod dispatch;
mod executions;
mod extract;
mod hooks;
mod linger;
mod metrics;
mod node;
mod node_keys;
mod node_stream;
mod nodes;
mod openapi;
mod operations;
mod outputs;
mod problem;
mod query;
mod range;
mod rollout;
mod routes;
mod violations;
mod watch;

use std::time::Duration;

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use muster_shared::{
    time::Timestamp,
    wire::{Health, HealthCheck, HealthStatus, VersionInfo},
};

use crate::control::{Control, Shared};
pub(crate) use metrics::Peer;
pub(crate) use openapi::text as openapi_text;
use problem::ApiError;

/// Who asks for health or readiness hears within this time, whether the database does or not.
const DATABASE_ANSWERS_MAX: Duration = Duration::from_secs(3);

pub(crate) fn router(control: Shared) -> Router {
    routes::router()
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::map_request(linger::wrap))
        .with_state(control)
}

async fn version() -> Json<VersionInfo> {
    Json(VersionInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("MUSTER_BUILD_COMMIT").unwrap_or("unknown").to_owned(),
        date: option_env!("MUSTER_BUILD_DATE")
            .and_then(|d| d.parse().ok())
            .unwrap_or(Timestamp::from_millis(0)),
    })
}

async fn openapi_document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::text()).into_response()
}

async fn health(State(control): State<Shared>) -> Json<HealthStatus> {
    let (status, detail) = if database_answers(&control).await {
        (Health::Ok, "answers")
    } else {
        (Health::Down, "does not answer")
    };
    Json(HealthStatus {
        status,
        checks: vec![HealthCheck {
            name: "database".to_owned(),
            status,
            detail: detail.to_owned(),
        }],
    })
}

async fn ready(State(control): State<Shared>) -> Response {
    if control.node_streams.opens_no_more() || !database_answers(&control).await {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response();
    }
    "ready\n".into_response()
}

async fn database_answers(control: &Control) -> bool {
    let why = match tokio::time::timeout(DATABASE_ANSWERS_MAX, control.store.answers()).await {
        Ok(Ok(())) => return true,
        Ok(Err(err)) => crate::error_chain(&err),
        Err(_) => format!("nothing came within {DATABASE_ANSWERS_MAX:?}"),
    };
    log::error!("The database does not answer: {why}");
    false
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("there is nothing at {}", uri.path()),
    )
}

async fn wrong_method(uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("{} does not answer this method", uri.path()),
    )
}
