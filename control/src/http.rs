//! The HTTP surface: routes, who is asking, and the one place that turns errors into status codes.

mod access;
mod audit;
mod auth;
mod body;
mod cancel;
mod cursor;
mod denial;
mod executions;
mod extract;
mod linger;
mod metrics;
mod node;
mod node_keys;
mod openapi;
mod operations;
mod operator;
mod outputs;
mod problem;
mod query;
mod range;
mod rollout;
mod routes;
mod violations;
mod watch;

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

use crate::control::Shared;
pub(crate) use metrics::Peer;
pub(crate) use openapi::text as openapi_text;
use problem::ApiError;

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
    let database = control.store.ping().await;
    if let Err(err) = &database {
        log::error!("The database does not answer: {}", crate::error_chain(err));
    }
    let (status, detail) = if database.is_ok() {
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
    if control.node_streams.opens_no_more() || control.store.ping().await.is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response();
    }
    "ready\n".into_response()
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
