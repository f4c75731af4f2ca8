//! Nodes, as they speak.

use muster_shared::{
    envelope::Envelope,
    wire::{
        CALLBACK_TOKEN_HEADER, Callback, CallbackResponse, CapabilityManifest, CapabilityResponse,
        EnrollRequest, EnrollResponse, HeartbeatRequest, HeartbeatResponse, NewNsk, ViolationsRequest,
        ViolationsResponse,
    },
};
use schemars::{Schema, SchemaGenerator};
use serde_json::json;

use super::{AT, DIGEST, DOMAIN, ID, NODE, PROJECT, event, text};
use crate::http::openapi::Operation;

pub(in crate::http) fn enroll() -> Operation {
    Operation::new("EnrollNode", "Enrol a node")
        .more("The same token with the same enrollment_id is the same node, which gets a new NSK.")
        .takes::<EnrollRequest>(json!({
            "enrollment_id": ID, "hostname": "db-1", "machine_id": "8b7c2d0f5a4e4e3fa1b2c3d4e5f60718",
            "labels": { "os": "debian" },
        }))
        .answers::<EnrollResponse>(
            201,
            "The node's credentials, shown this once.",
            json!({
                "node_id": NODE, "name": "db-1", "domain_id": DOMAIN, "project_id": PROJECT, "nsk": "nsk_…",
                "signing_keys": [{ "keyid": "ed25519:…", "public_key": DIGEST }],
                "ca_pem": "-----BEGIN CERTIFICATE-----\n…", "notices": [],
            }),
        )
        .refuses(400, &["invalid_label"])
        .refuses(
            401,
            &[
                "bootstrap_token_invalid",
                "bootstrap_token_revoked",
                "bootstrap_token_expired",
                "bootstrap_token_used",
            ],
        )
        .refuses(429, &["rate_limited"])
        .refuses(409, &["node_decommissioned", "node_name_exhausted"])
}

fn node_stream(schemas: &mut SchemaGenerator) -> Schema {
    let data = [schemas.subschema_for::<Envelope>()];
    event(
        &[
            "action_request",
            "action_cancel",
            "hook_baseline_updated",
            "signing_key_rotated",
        ],
        &data,
    )
}

pub(in crate::http) fn node_events() -> Operation {
    Operation::new("NodeEvents", "The stream of what a node is asked to do")
        .more(
            "Each event carries an Envelope whose payload is an ActionRequest (`action_request`), an ActionCancel \
             (`action_cancel`), a BaselineUpdated (`hook_baseline_updated`) or a SigningKeysRotated \
             (`signing_key_rotated`). The stream does not end; a newer one \
             of the same node closes it.",
        )
        .answers_events("The stream, beginning with all that the node is owed.", node_stream)
        .refuses(403, &["node_id_mismatch"])
}

pub(in crate::http) fn heartbeat() -> Operation {
    Operation::new("PostNodeHeartbeat", "Say that the node is there")
        .takes::<HeartbeatRequest>(json!({
            "client_now": AT, "binary_checksum": DIGEST, "binary_version": "0.1.0", "nat_summary": {},
        }))
        .answers::<HeartbeatResponse>(
            200,
            "What control would have the node do.",
            json!({ "accepted_at": AT, "reconcile": false, "rotate_keys": false }),
        )
        .refuses(403, &["node_id_mismatch"])
}

pub(in crate::http) fn fetch_nsk() -> Operation {
    Operation::new("FetchNsk", "Fetch a new key, where control asked for it")
        .more(
            "The key with which this is asked counts until the new one was used. Asked again before that, the answer is \
             another key, and the one before it never counts.",
        )
        .answers::<NewNsk>(201, "The new key, shown this once.", json!({ "nsk": "nsk_…" }))
        .refuses(403, &["node_id_mismatch"])
        .refuses(409, &["key_rotation_not_due"])
}

pub(in crate::http) fn capabilities() -> Operation {
    Operation::new("PutNodeCapabilities", "Declare what the node can do")
        .takes::<CapabilityManifest>(json!({
            "binary_version": "0.1.0", "binary_checksum": DIGEST,
            "declared_hooks": [{ "name": "backup", "checksum": DIGEST }],
            "builtin_actions": [{ "name": "ping", "description": "answers" }],
            "labels": { "os": "debian", "rack": "r7" },
        }))
        .answers::<CapabilityResponse>(
            200,
            "Which fields changed.",
            json!({ "accepted_at": AT, "fields_changed": ["declared_hooks"], "host_key_changed": false }),
        )
        .refuses(
            400,
            &[
                "declared_hook_invalid",
                "declared_hook_duplicate",
                "refused_hook_invalid",
                "invalid_label",
            ],
        )
        .refuses(403, &["node_id_mismatch"])
        .refuses(422, &["builtin_action_invalid", "builtin_action_duplicate"])
}

pub(in crate::http) fn report_violations() -> Operation {
    Operation::new("PostNodeIntegrityViolations", "Report what was found changed")
        .takes::<ViolationsRequest>(json!({
            "violations": [{
                "kind": "hook_checksum", "detected_by": "pre_dispatch", "artifact_id": "backup",
                "observed_checksum": DIGEST, "expected_checksum": DIGEST,
            }],
        }))
        .answers::<ViolationsResponse>(
            202,
            "They are recorded.",
            json!({ "accepted_at": AT, "violation_count": 1 }),
        )
        .refuses(403, &["node_id_mismatch"])
        .refuses(429, &["too_many_violations"])
}

pub(in crate::http) fn callback() -> Operation {
    Operation::new("PostNodeExecutionCallback", "Report that an invocation advanced")
        .more("What is answered 200 is durable. A report that is sent again changes nothing.")
        .header(
            CALLBACK_TOKEN_HEADER,
            "The callback token of the invocation, as its action request carried it. A domain may be set not to \
             require it.",
            text,
        )
        .takes::<Callback>(json!({ "status": "succeeded", "exit_code": 0, "output": { "inline": "aGkK" } }))
        .answers::<CallbackResponse>(200, "It is taken.", json!({ "status": "succeeded" }))
        .refuses(400, &["invalid_output"])
        .refuses(403, &["nsk_node_mismatch", "callback_token_mismatch"])
        .refuses(409, &["invalid_state_transition", "execution_already_terminal", "output_differs"])
        .refuses(413, &["inline_output_too_large", "declared_output_too_large"])
        .refuses(502, &["output_upload_failed"])
}

pub(in crate::http) fn upload_output() -> Operation {
    Operation::new(
        "UploadOutput",
        "Upload an output to the URL that a report was answered with",
    )
    .query(
        "length",
        "As the URL has it.",
        SchemaGenerator::subschema_for::<u64>,
    )
    .required()
    .query(
        "expires",
        "As the URL has it.",
        SchemaGenerator::subschema_for::<i64>,
    )
    .required()
    .query(
        "sha256",
        "As the URL has it, where the digest was declared.",
        text,
    )
    .query("signature", "As the URL has it.", text)
    .required()
    .takes_bytes()
    .answers_nothing("It is kept.")
    .refuses(400, &["upload_length_mismatch", "upload_digest_mismatch"])
    .refuses(403, &["upload_url_invalid"])
    .refuses(404, &["not_found"])
    .refuses(408, &["request_timeout"])
    .refuses(409, &["execution_already_terminal", "upload_replaced"])
    .refuses(507, &["output_store_full"])
}
