//! Actions and hooks, and those that were found changed.

use muster_shared::{
    ids::NodeId,
    wire::{
        AcknowledgeRequest, ActionDetail, ApproveRequest, ApproveResponse, HookState, Page, ViolationRow,
    },
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{AT, DIGEST, DOMAIN, ID, NODE, narrowed_to_projects, page, paged};
use crate::http::openapi::Operation;

pub(in crate::http) fn get_action() -> Operation {
    Operation::new("GetAction", "Show what an action is and takes on each node that declares it").answers::<ActionDetail>(
        200,
        "The action, on at most as many nodes as the detail lists.",
        json!({ "name": "backup", "nodes": [{
            "node_id": NODE, "node_name": "db-1", "type": "hook", "verdict": "verified", "digest": DIGEST,
            "manifest": { "description": "Writes a dump.", "parameters": { "properties": { "level": { "type": "integer" } } } },
        }] }),
    )
}

pub(in crate::http) fn list_hooks() -> Operation {
    paged(Operation::new(
        "ListHooks",
        "List the hooks on the nodes of a project, and their baselines",
    ))
    .answers::<Page<HookState>>(
        200,
        "A page.",
        page(&json!({
            "name": "backup", "node_id": NODE, "node_name": "db-1", "observed": DIGEST, "baseline": DIGEST,
            "verdict": "verified", "pinned_at": AT,
        })),
    )
}

pub(in crate::http) fn approve_hook() -> Operation {
    Operation::new(
        "ApproveHook",
        "Make a digest the baseline wherever the named nodes show it",
    )
    .takes::<ApproveRequest>(json!({ "digest": DIGEST, "selector": "role=db" }))
    .answers::<ApproveResponse>(
        200,
        "Which nodes took it.",
        json!({ "approved": [NODE], "unchanged": [] }),
    )
    .refuses(400, &["malformed_selector", "invalid_target"])
    .refuses(403, &["permission_denied"])
    .refuses(422, &["selector_empty_cohort"])
}

fn violation_kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["binary", "hook", "host_key"] })
}

fn violation_status(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["open", "acknowledged", "resolved"] })
}

fn a_violation() -> Value {
    json!({
        "id": ID, "node_id": NODE, "domain_id": DOMAIN, "kind": "hook", "status": "open",
        "artifact_id": "backup", "detected_at": AT, "observed": DIGEST, "expected": DIGEST,
    })
}

pub(in crate::http) fn list_violations() -> Operation {
    let operation = Operation::new(
        "ListIntegrityViolations",
        "List what was found changed, newest first",
    )
    .query(
        "node_id",
        "Only on this node.",
        SchemaGenerator::subschema_for::<NodeId>,
    )
    .query("kind", "Only of this kind.", violation_kind)
    .query("status", "Only those in this status.", violation_status);
    paged(narrowed_to_projects(operation))
        .answers::<Page<ViolationRow>>(200, "A page.", page(&a_violation()))
        .refuses(400, &["invalid_node_id", "invalid_kind", "invalid_status"])
}

pub(in crate::http) fn acknowledge_violation() -> Operation {
    Operation::new(
        "AcknowledgeIntegrityViolation",
        "Say that somebody looked into a violation",
    )
    .takes::<AcknowledgeRequest>(json!({ "reason": "A hotfix, by hand." }))
    .answers::<ViolationRow>(200, "The violation as it is now.", a_violation())
    .refuses(400, &["invalid_reason"])
    .refuses(403, &["permission_denied"])
    .refuses(409, &["violation_resolved"])
}
