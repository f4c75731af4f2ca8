//! Nodes, as operators see them.

use muster_shared::{
    schema::selector,
    wire::{LabelPatch, NodeSummary, Page, RotateKeysRequest, RotateKeysResponse},
};
use schemars::SchemaGenerator;
use serde_json::{Value, json};

use super::{AT, DOMAIN, NODE, PROJECT, narrowed_to_projects, page, paged};
use crate::http::openapi::Operation;

fn a_node() -> Value {
    json!({
        "id": NODE, "name": "db-1", "domain_id": DOMAIN, "kind": "node", "created_at": AT, "project_id": PROJECT,
        "labels": { "role": "db", "node/os": "debian" }, "connected": true, "last_seen_at": AT, "clock_skew_ms": 3,
        "binary_version": "0.1.0", "hostname": "db-1", "nsk_since": AT,
        "actions": [{ "name": "backup", "type": "hook", "verdict": "verified" }],
    })
}

pub(in crate::http) fn list_nodes() -> Operation {
    let operation = Operation::new("ListNodes", "List the nodes that the caller may act on")
        .query("selector", "Only those that it matches.", selector)
        .query(
            "connected",
            "Only those that are, or are not.",
            SchemaGenerator::subschema_for::<bool>,
        );
    paged(narrowed_to_projects(operation))
        .answers::<Page<NodeSummary>>(200, "A page.", page(&a_node()))
        .refuses(400, &["malformed_selector", "invalid_connected"])
}

pub(in crate::http) fn get_node() -> Operation {
    Operation::new("GetNode", "Show a node")
        .answers::<NodeSummary>(200, "The node.", a_node())
        .refuses(404, &["node_not_found"])
}

pub(in crate::http) fn decommission_node() -> Operation {
    Operation::new(
        "DecommissionNode",
        "Take a node out of service; its history stays",
    )
    .answers::<NodeSummary>(200, "The node as it was.", a_node())
    .refuses(403, &["permission_denied"])
    .refuses(404, &["node_not_found"])
}

pub(in crate::http) fn patch_labels() -> Operation {
    Operation::new("PatchNodeLabels", "Set and remove labels of a node")
        .takes::<LabelPatch>(json!({ "set": { "tier": "1" }, "remove": ["old"] }))
        .answers::<NodeSummary>(200, "The node as it is now.", a_node())
        .refuses(400, &["invalid_label"])
        .refuses(403, &["permission_denied"])
        .refuses(404, &["node_not_found"])
}

pub(in crate::http) fn rotate_node_keys() -> Operation {
    Operation::new("RotateNodeKeys", "Have nodes change their keys")
        .more("A node does so at its next heartbeat. Its old key counts until it has used the new one.")
        .takes::<RotateKeysRequest>(json!({ "selector": "role=db" }))
        .answers::<RotateKeysResponse>(200, "Which nodes will.", json!({ "asked": [NODE] }))
        .refuses(400, &["malformed_selector", "invalid_target"])
        .refuses(403, &["permission_denied"])
        .refuses(422, &["selector_empty_cohort"])
}
