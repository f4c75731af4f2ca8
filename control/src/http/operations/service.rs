//! The service itself.

use muster_shared::wire::{HealthStatus, SelectorPreviewRequest, SelectorPreviewResponse, VersionInfo};
use serde_json::json;

use super::AT;
use crate::http::openapi::Operation;

pub(in crate::http) fn preview_selector() -> Operation {
    Operation::new("PreviewLabelSelector", "Parse a selector")
        .takes::<SelectorPreviewRequest>(json!({ "expression": "role=db" }))
        .answers::<SelectorPreviewResponse>(
            200,
            "Its tree, or where it stops making sense.",
            json!({ "ast": { "op": "eq", "key": "role", "value": "db" } }),
        )
}

pub(in crate::http) fn metrics() -> Operation {
    Operation::new("GetMetrics", "Metrics for a scraper on the machine of control")
        .answers_text(200, "OpenMetrics.", "application/openmetrics-text")
        .refuses(403, &["metrics_not_public"])
}

pub(in crate::http) fn openapi() -> Operation {
    Operation::new("GetOpenApi", "This document").answers_json("OpenAPI 3.1.")
}

pub(in crate::http) fn version() -> Operation {
    Operation::new("GetVersion", "Which build answers").answers::<VersionInfo>(
        200,
        "The build.",
        json!({ "version": "0.1.0", "commit": "unknown", "date": AT }),
    )
}

pub(in crate::http) fn health() -> Operation {
    Operation::new("GetHealth", "What works and what does not").answers::<HealthStatus>(
        200,
        "Also when something is down.",
        json!({ "status": "ok", "checks": [{ "name": "database", "status": "ok", "detail": "answers" }] }),
    )
}

pub(in crate::http) fn ready() -> Operation {
    Operation::new("GetReady", "Whether requests can be served")
        .answers_text(200, "They can.", "text/plain")
        .answers_text(503, "They cannot, now.", "text/plain")
}

pub(in crate::http) fn alive() -> Operation {
    Operation::new("GetAlive", "Whether the process answers").answers_text(200, "It does.", "text/plain")
}
