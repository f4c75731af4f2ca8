//! The HTTP surface: routes, who is asking, and the one place that turns errors into status codes.

mod auth;
mod body;
mod cursor;
mod linger;
mod node;
mod operator;
mod outputs;
mod problem;
mod watch;

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{get, patch, post, put},
};
use muster_shared::{time::Timestamp, wire::VersionInfo};

use crate::control::Shared;
use problem::ApiError;

pub(crate) fn router(control: Shared) -> Router {
    Router::new()
        .route(
            "/v1/projects/{project}/executions:dispatch",
            post(operator::dispatch),
        )
        .route(
            "/v1/projects/{project}/executions/dispatch",
            post(operator::dispatch),
        )
        .route(
            "/v1/projects/{project}/executions:preview",
            post(operator::preview),
        )
        .route(
            "/v1/projects/{project}/executions/preview",
            post(operator::preview),
        )
        .route(
            "/v1/projects/{project}/executions",
            get(operator::list_executions),
        )
        .route(
            "/v1/projects/{project}/executions/{execution}",
            get(operator::get_execution),
        )
        .route(
            "/v1/projects/{project}/executions/{execution}/events",
            get(watch::execution_events),
        )
        .route(
            "/v1/projects/{project}/executions/{execution}/targets/{node}/output",
            get(outputs::read),
        )
        .route("/v1/projects/{project}/hooks", get(operator::list_hooks))
        .route(
            "/v1/projects/{project}/hooks/{hook}/approve",
            post(operator::approve_hook),
        )
        .route(
            "/v1/projects/{project}/bootstrap-tokens",
            post(operator::issue_token),
        )
        .route("/v1/nodes", get(operator::list_nodes))
        .route(
            "/v1/nodes/{node}",
            get(operator::get_node).delete(operator::decommission_node),
        )
        .route("/v1/nodes/{node}/labels", patch(operator::patch_labels))
        .route("/v1/integrity-violations", get(operator::list_violations))
        .route("/v1/labels/selectors/preview", post(operator::preview_selector))
        .route("/v1/nodes:enroll", post(node::enroll))
        .route("/v1/nodes/{node}/events", get(node::events))
        .route("/v1/nodes/{node}/heartbeat", post(node::heartbeat))
        .route("/v1/nodes/{node}/capabilities", put(node::capabilities))
        .route("/v1/nodes/{node}/integrity-violations", post(node::violations))
        .route("/v1/nodes/{node}/executions/{execution}", post(node::callback))
        .route("/v1/outputs/{execution}/{node}/output", put(outputs::accept))
        .route("/v1/version", get(version))
        .route("/v1/health", get(health))
        .route("/readyz", get(ready))
        .route("/healthz", get(|| async { "ok\n" }))
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

async fn health(State(control): State<Shared>) -> Json<serde_json::Value> {
    let database = control.store.ping().await;
    if let Err(err) = &database {
        log::error!("The database does not answer: {}", crate::error_chain(err));
    }
    let (status, detail) = if database.is_ok() {
        ("ok", "answers")
    } else {
        ("down", "does not answer")
    };
    Json(serde_json::json!({
        "status": status,
        "checks": [{"name": "database", "status": status, "detail": detail}],
    }))
}

async fn ready(State(control): State<Shared>) -> Response {
    if control.stop.is_cancelled() || control.store.ping().await.is_err() {
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
