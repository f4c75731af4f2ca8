//! What each route does, for the OpenAPI document: one function a route, beside it in the table of `routes`. The
//! examples are read and written by the types themselves, so that one which is not true does not get into the document.

use muster_shared::{
    access::{
        AuthConfig, BootstrapTokenState, CheckRequest, CheckResponse, CreateOperatorTokenRequest,
        OperatorToken, OperatorTokenSecret, RelationTuple, RelationTupleCreateRequest, RotateTokenRequest,
        WhoAmI,
    },
    audit::AuditPage,
    envelope::Envelope,
    ids::{ActionName, DomainId, NodeId, ProjectId},
    schema::selector,
    status::Status,
    time::Timestamp,
    wire::{
        AcknowledgeRequest, ActionDetail, ApproveRequest, ApproveResponse, CALLBACK_TOKEN_HEADER, Callback,
        CallbackResponse, CancelRequest, CancelResponse, CapabilityManifest, CapabilityResponse,
        DispatchPreview, DispatchRequest, EnrollRequest, EnrollResponse, Execution, ExecutionDetail,
        ExecutionTarget, HealthStatus, HeartbeatRequest, HeartbeatResponse, HookState,
        IDEMPOTENCY_KEY_HEADER, IDEMPOTENT_REPLAY_HEADER, IssueTokenRequest, IssuedToken, LabelPatch, NewNsk,
        NodeSummary, Page, PauseRequest, Rollout, RotateKeysRequest, RotateKeysResponse,
        SelectorPreviewRequest, SelectorPreviewResponse, TimelineEvent, VersionInfo, ViolationRow,
        ViolationsRequest, ViolationsResponse,
    },
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{
    cursor::{LIMIT_DEFAULT, LIMIT_MAX},
    openapi::Operation,
};
use crate::idempotency::KEY_LEN_MAX;

// ---- what several have in common

fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

fn limit(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT })
}

fn of_project(operation: Operation) -> Operation {
    operation
        .query(
            "project_id",
            "The project in which this is.",
            SchemaGenerator::subschema_for::<ProjectId>,
        )
        .required()
        .refuses(400, &["invalid_project_id"])
        .refuses(403, &["permission_denied"])
        .refuses(404, &["project_not_found"])
}

fn of_domain(operation: Operation) -> Operation {
    operation
        .query(
            "domain_id",
            "The domain; this or project_id.",
            SchemaGenerator::subschema_for::<DomainId>,
        )
        .query(
            "project_id",
            "A project of the domain; this or domain_id.",
            SchemaGenerator::subschema_for::<ProjectId>,
        )
        .refuses(400, &["invalid_domain_id", "invalid_project_id"])
        .refuses(403, &["permission_denied"])
        .refuses(404, &["domain_not_found", "project_not_found"])
}

fn paged(operation: Operation) -> Operation {
    operation
        .query("cursor", "The next_cursor of the page before.", text)
        .query("limit", "How many items the page may have.", limit)
        .refuses(400, &["invalid_cursor", "invalid_limit"])
        .refuses(403, &["cursor_binding_mismatch"])
}

fn narrowed_to_projects(operation: Operation) -> Operation {
    operation
        .query(
            "domain_id",
            "Only of this domain.",
            SchemaGenerator::subschema_for::<DomainId>,
        )
        .query(
            "project_id",
            "Only of this project.",
            SchemaGenerator::subschema_for::<ProjectId>,
        )
        .refuses(400, &["invalid_domain_id", "invalid_project_id"])
        .refuses(404, &["project_not_found"])
}

fn page(item: &Value) -> Value {
    json!({ "items": [item], "next_cursor": null })
}

const ID: &str = "01a21f9c-e873-7877-9eb0-994ca0a528fc";
const NODE: &str = "01a21f9c-d5d0-7b4e-8a4c-3f6f1f2b7a10";
const PROJECT: &str = "01a21f9c-c000-7c11-9e0d-0a2b4c6d8e01";
const DOMAIN: &str = "01a21f9c-c000-7c11-9e0d-0a2b4c6d8e00";
const AT: &str = "2026-11-27T09:30:00.000Z";
const LATER: &str = "2026-11-27T10:30:00.000Z";
const DIGEST: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

// ---- executions

fn an_execution() -> Value {
    json!({
        "id": ID, "project_id": PROJECT, "domain_id": DOMAIN, "action": "backup", "type": "hook",
        "status": "succeeded", "created_at": AT, "updated_at": AT, "timeout_seconds": 300, "expires_at": LATER,
        "requested_by": format!("token:{ID}"), "selector": "role=db", "target_counts": { "succeeded": 1 },
        "targets": [{
            "node_id": NODE, "node_name": "db-1", "status": "succeeded", "created_at": AT, "updated_at": AT,
            "exit_code": 0, "started_at": AT, "ended_at": AT, "output_bytes": 3,
            "output_ref": { "kind": "inline", "inline_bytes": "aGkK" },
        }],
    })
}

fn a_dispatch() -> Value {
    json!({ "action": "backup", "selector": "role=db", "timeout_seconds": 300, "parameters": { "full": true } })
}

fn admitting(operation: Operation) -> Operation {
    operation
        .takes::<DispatchRequest>(a_dispatch())
        .refuses(
            400,
            &[
                "malformed_selector",
                "invalid_target",
                "invalid_rollout",
                "invalid_deliver_within",
                "invalid_action",
                "invalid_timeout",
                "invalid_parameters",
            ],
        )
        .refuses(400, &["action_not_declared"])
        .refuses(403, &["permission_denied"])
        .refuses(409, &["hook_integrity_violation"])
        .refuses(
            422,
            &["selector_empty_cohort", "cohort_mismatch", "too_many_targets"],
        )
        .refuses(429, &["capacity_exceeded"])
}

fn idempotency_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1, "maxLength": KEY_LEN_MAX, "pattern": "^[!-~]+$" })
}

fn dispatching(id: &'static str) -> Operation {
    admitting(Operation::new(id, "Dispatch an action to nodes"))
        .header(
            IDEMPOTENCY_KEY_HEADER,
            "Names this dispatch for 24 hours: sent again under the same key, it is made once.",
            idempotency_key,
        )
        .answers::<Execution>(201, "It is admitted, and durable.", an_execution())
        .with_headers(&[(IDEMPOTENT_REPLAY_HEADER, "`true` when it was made before.")])
        .refuses(400, &["invalid_idempotency_key"])
        .refuses(422, &["idempotency_key_reuse"])
}

pub(super) fn dispatch() -> Operation {
    dispatching("DispatchExecution")
}

pub(super) fn dispatch_newer() -> Operation {
    dispatching("DispatchExecutionNewer")
}

fn previewing(id: &'static str) -> Operation {
    admitting(Operation::new(
        id,
        "Show what a dispatch would be admitted as, and write nothing",
    ))
    .answers::<DispatchPreview>(
        200,
        "What it would be.",
        json!({
            "project_id": PROJECT, "domain_id": DOMAIN, "action": "backup", "type": "hook",
            "timeout_seconds": 300, "selector": "role=db", "target_count": 1,
            "targets": [{ "node_id": NODE, "node_name": "db-1" }],
            "dropped": [{ "reason": "action_not_declared", "count": 1, "sample": [ID] }],
        }),
    )
}

pub(super) fn preview() -> Operation {
    previewing("PreviewExecution")
}

pub(super) fn preview_newer() -> Operation {
    previewing("PreviewExecutionNewer")
}

pub(super) fn list_executions() -> Operation {
    let operation = Operation::new("ListExecutions", "List the executions of a project, newest first")
        .more("Items leave out their targets and give counts.")
        .query(
            "status",
            "Only those that rest there.",
            SchemaGenerator::subschema_for::<Status>,
        )
        .query(
            "action_name",
            "Only those of this action.",
            SchemaGenerator::subschema_for::<ActionName>,
        )
        .query(
            "node_id",
            "Only those that address this node.",
            SchemaGenerator::subschema_for::<NodeId>,
        )
        .query(
            "selector",
            "Only those that address a node which it matches.",
            selector,
        )
        .query(
            "created_after",
            "Only those from this time on.",
            SchemaGenerator::subschema_for::<Timestamp>,
        )
        .query(
            "created_before",
            "Only those before this time.",
            SchemaGenerator::subschema_for::<Timestamp>,
        );
    paged(operation)
        .answers::<Page<Execution>>(200, "A page.", page(&an_execution()))
        .refuses(
            400,
            &[
                "invalid_status",
                "invalid_action",
                "invalid_node_id",
                "malformed_selector",
            ],
        )
        .refuses(400, &["invalid_created_after", "invalid_created_before"])
}

fn a_transition() -> Value {
    json!({
        "id": 7, "node_id": NODE, "node_name": "db-1", "from": "started", "to": "succeeded", "at": AT, "late": false,
    })
}

pub(super) fn get_execution() -> Operation {
    let mut example = an_execution();
    example["timeline"] = json!([a_transition()]);
    Operation::new(
        "GetExecution",
        "Show an execution with its targets and its timeline",
    )
    .answers::<ExecutionDetail>(200, "The execution.", example)
}

pub(super) fn execution_targets() -> Operation {
    paged(Operation::new(
        "ListExecutionTargets",
        "List the targets of an execution",
    ))
    .answers::<Page<ExecutionTarget>>(200, "A page.", page(&an_execution()["targets"][0]))
}

pub(super) fn execution_timeline() -> Operation {
    paged(Operation::new(
        "ListExecutionTimeline",
        "List the transitions of an execution, oldest first",
    ))
    .answers::<Page<TimelineEvent>>(200, "A page.", page(&a_transition()))
}

fn minding_the_rollout(operation: Operation) -> Operation {
    operation
        .takes::<PauseRequest>(json!({}))
        .or_nothing()
        .answers::<Execution>(200, "The execution, as it is now.", an_execution())
        .refuses(403, &["permission_denied"])
        .refuses(409, &["no_rollout", "nothing_held"])
}

pub(super) fn pause_execution() -> Operation {
    minding_the_rollout(Operation::new(
        "PauseExecution",
        "Hold back what a rollout has not released",
    ))
}

pub(super) fn resume_execution() -> Operation {
    minding_the_rollout(Operation::new("ResumeExecution", "Let a paused rollout go on"))
}

pub(super) fn cancel_execution() -> Operation {
    Operation::new("CancelExecution", "Take an execution back, whole or on one node")
        .takes::<CancelRequest>(json!({ "node_id": NODE }))
        .or_nothing()
        .answers::<CancelResponse>(
            200,
            "What became of each target.",
            json!({ "execution": an_execution(), "outcomes": [{ "node_id": NODE, "outcome": "asked" }] }),
        )
        .refuses(400, &["invalid_node_id"])
        .refuses(403, &["permission_denied"])
        .refuses(404, &["target_not_found"])
}

fn event(names: &[&str], data: &[Schema]) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "event": { "enum": names },
            "data": { "type": "string", "contentMediaType": "application/json", "contentSchema": { "anyOf": data } },
        },
        "required": ["event", "data"],
    })
}

fn timeline_events(schemas: &mut SchemaGenerator) -> Schema {
    let data = [
        schemas.subschema_for::<TimelineEvent>(),
        schemas.subschema_for::<Rollout>(),
        schemas.subschema_for::<Execution>(),
    ];
    event(&["invocation", "rollout", "settled"], &data)
}

pub(super) fn execution_events() -> Operation {
    Operation::new("WatchExecution", "Follow the timeline of an execution")
        .more(
            "Each `invocation` event carries a TimelineEvent, each `rollout` event a Rollout that has moved; the stream \
             ends with one `settled` event that carries the Execution.",
        )
        .header("last-event-id", "The id of the last event that was seen; the stream goes on after it.", text)
        .answers_events("The timeline, from its beginning.", timeline_events)
}

pub(super) fn read_output() -> Operation {
    Operation::new(
        "ReadOutput",
        "Read what an action wrote on one node, byte for byte",
    )
    .header("Range", "One range of bytes, as RFC 9110 has it.", text)
    .header(
        "If-Range",
        "The `ETag` of which a part is wanted; of another, the whole is given.",
        text,
    )
    .answers_bytes("Standard output and error, in the order written.")
    .also_answers_bytes(206, "The part that `Range` names.")
    .refuses(404, &["output_not_found"])
    .refuses(416, &["range_not_satisfiable"])
    .refuses(502, &["output_store_failed", "output_lost", "output_changed"])
}

// ---- hooks

pub(super) fn get_action() -> Operation {
    Operation::new("GetAction", "Show what an action is and takes on each node that declares it").answers::<ActionDetail>(
        200,
        "The action, on at most as many nodes as the detail lists.",
        json!({ "name": "backup", "nodes": [{
            "node_id": NODE, "node_name": "db-1", "type": "hook", "verdict": "verified", "digest": DIGEST,
            "manifest": { "description": "Writes a dump.", "parameters": { "properties": { "level": { "type": "integer" } } } },
        }] }),
    )
}

pub(super) fn list_hooks() -> Operation {
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

pub(super) fn approve_hook() -> Operation {
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

// ---- tokens

fn a_bootstrap_token() -> Value {
    json!({
        "id": ID, "project_id": PROJECT, "labels": { "role": "db" }, "uses": 0, "uses_max": 1,
        "issued_by": format!("token:{ID}"), "created_at": AT, "expires_at": LATER,
    })
}

pub(super) fn issue_bootstrap_token() -> Operation {
    Operation::new("IssueBootstrapToken", "Issue a token by which nodes enrol")
        .takes::<IssueTokenRequest>(json!({ "labels": { "role": "db" }, "uses": 1, "ttl_seconds": 3600 }))
        .answers::<IssuedToken>(
            201,
            "The token, shown this once.",
            json!({
                "id": ID, "token": "mbt_…", "project_id": PROJECT, "labels": { "role": "db" }, "uses": 1,
                "expires_at": LATER,
            }),
        )
        .refuses(400, &["invalid_label", "invalid_uses", "invalid_ttl"])
        .refuses(403, &["permission_denied"])
}

pub(super) fn list_bootstrap_tokens() -> Operation {
    paged(Operation::new(
        "ListBootstrapTokens",
        "List the bootstrap tokens of a project, without their secrets",
    ))
    .answers::<Page<BootstrapTokenState>>(200, "A page.", page(&a_bootstrap_token()))
    .refuses(403, &["permission_denied"])
}

pub(super) fn revoke_bootstrap_token() -> Operation {
    Operation::new("RevokeBootstrapToken", "Revoke a bootstrap token")
        .answers::<BootstrapTokenState>(200, "The token as it is now.", a_bootstrap_token())
        .refuses(403, &["permission_denied"])
}

fn an_operator_token() -> Value {
    json!({
        "id": ID, "name": "ci", "domain_id": DOMAIN, "created_at": AT, "created_by": format!("token:{ID}"),
        "expires_at": LATER,
    })
}

fn a_secret() -> Value {
    let mut token = an_operator_token();
    token["token"] = json!("mop_…");
    token
}

pub(super) fn list_operator_tokens() -> Operation {
    paged(of_domain(Operation::new(
        "ListOperatorTokens",
        "List the operator tokens of a domain, without their secrets",
    )))
    .answers::<Page<OperatorToken>>(200, "A page.", page(&an_operator_token()))
}

pub(super) fn issue_operator_token() -> Operation {
    of_domain(Operation::new(
        "IssueOperatorToken",
        "Issue an operator token, which may do nothing yet",
    ))
    .takes::<CreateOperatorTokenRequest>(json!({ "name": "ci", "ttl_seconds": 86_400 }))
    .answers::<OperatorTokenSecret>(201, "The token, its secret shown this once.", a_secret())
    .refuses(400, &["invalid_name", "invalid_ttl"])
    .refuses(409, &["token_name_taken"])
}

pub(super) fn revoke_operator_token() -> Operation {
    Operation::new("RevokeOperatorToken", "Revoke an operator token for good")
        .answers::<OperatorToken>(200, "The token as it is now.", an_operator_token())
        .refuses(409, &["last_operator"])
}

pub(super) fn rotate_operator_token() -> Operation {
    Operation::new("RotateOperatorToken", "Give an operator token a new secret")
        .takes::<RotateTokenRequest>(json!({ "overlap_seconds": 3600 }))
        .answers::<OperatorTokenSecret>(200, "The token, its new secret shown this once.", a_secret())
        .refuses(400, &["invalid_overlap"])
        .refuses(409, &["token_not_live"])
}

// ---- who may

fn a_tuple() -> Value {
    json!({
        "id": ID, "subject": "group:dba#member", "relation": "act", "resource": format!("project:{PROJECT}"),
        "created_at": AT,
    })
}

pub(super) fn list_tuples() -> Operation {
    paged(of_project(Operation::new(
        "ListRelationTuples",
        "List who was granted what",
    )))
    .answers::<Page<RelationTuple>>(200, "A page.", page(&a_tuple()))
}

pub(super) fn create_tuple() -> Operation {
    of_project(Operation::new("CreateRelationTuple", "Grant a relation"))
        .takes::<RelationTupleCreateRequest>(
            json!({ "subject": "group:dba#member", "relation": "member", "resource": "group:operators" }),
        )
        .answers::<RelationTuple>(201, "The tuple, also when it stood before.", a_tuple())
        .refuses(
            400,
            &[
                "invalid_subject",
                "invalid_relation",
                "invalid_resource",
                "caveat_unsupported",
            ],
        )
        .refuses(400, &["group_cycle", "group_too_deep", "last_operator"])
        .refuses(404, &["resource_not_found"])
}

pub(super) fn delete_tuple() -> Operation {
    of_project(Operation::new("DeleteRelationTuple", "Take a relation back"))
        .answers::<RelationTuple>(200, "The tuple that stood.", a_tuple())
        .refuses(409, &["last_operator"])
}

pub(super) fn check() -> Operation {
    Operation::new("PostAuthzCheck", "Ask who may what, and by which tuples")
        .takes::<CheckRequest>(
            json!({ "subject": "user:ann", "relation": "act", "resource": format!("project:{PROJECT}") }),
        )
        .answers::<CheckResponse>(
            200,
            "The decision.",
            json!({
                "decision": "allowed", "reason": "granted", "correlation_id": ID,
                "relation_path": [format!("project:{PROJECT}#act@user:ann")],
            }),
        )
        .refuses(400, &["invalid_subject", "invalid_relation", "invalid_resource"])
}

pub(super) fn whoami() -> Operation {
    Operation::new("WhoAmI", "Whom control takes the caller for").answers::<WhoAmI>(
        200,
        "The subject.",
        json!({ "subject": "user:ann", "groups": ["group:oidc/admins#member"], "expires_at": LATER }),
    )
}

pub(super) fn auth_config() -> Operation {
    Operation::new("GetAuthConfig", "How a person may sign in").answers::<AuthConfig>(
        200,
        "The issuer, where there is one.",
        json!({ "oidc": {
            "issuer": "https://issuer.example", "audience": "muster", "client_id": "muster-cli",
            "scopes": ["openid", "offline_access"], "audience_parameter": "resource",
        } }),
    )
}

// ---- nodes, as operators see them

fn a_node() -> Value {
    json!({
        "id": NODE, "name": "db-1", "domain_id": DOMAIN, "kind": "node", "created_at": AT, "project_id": PROJECT,
        "labels": { "role": "db", "node/os": "debian" }, "connected": true, "last_seen_at": AT, "clock_skew_ms": 3,
        "binary_version": "0.1.0", "hostname": "db-1", "nsk_since": AT,
        "actions": [{ "name": "backup", "type": "hook", "verdict": "verified" }],
    })
}

pub(super) fn list_nodes() -> Operation {
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

pub(super) fn get_node() -> Operation {
    Operation::new("GetNode", "Show a node")
        .answers::<NodeSummary>(200, "The node.", a_node())
        .refuses(404, &["node_not_found"])
}

pub(super) fn decommission_node() -> Operation {
    Operation::new(
        "DecommissionNode",
        "Take a node out of service; its history stays",
    )
    .answers::<NodeSummary>(200, "The node as it was.", a_node())
    .refuses(403, &["permission_denied"])
    .refuses(404, &["node_not_found"])
}

pub(super) fn patch_labels() -> Operation {
    Operation::new("PatchNodeLabels", "Set and remove labels of a node")
        .takes::<LabelPatch>(json!({ "set": { "tier": "1" }, "remove": ["old"] }))
        .answers::<NodeSummary>(200, "The node as it is now.", a_node())
        .refuses(400, &["invalid_label"])
        .refuses(403, &["permission_denied"])
        .refuses(404, &["node_not_found"])
}

pub(super) fn rotate_node_keys() -> Operation {
    Operation::new("RotateNodeKeys", "Have nodes change their keys")
        .more("A node does so at its next heartbeat. Its old key counts until it has used the new one.")
        .takes::<RotateKeysRequest>(json!({ "selector": "role=db" }))
        .answers::<RotateKeysResponse>(200, "Which nodes will.", json!({ "asked": [NODE] }))
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

pub(super) fn list_violations() -> Operation {
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

pub(super) fn acknowledge_violation() -> Operation {
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

pub(super) fn preview_selector() -> Operation {
    Operation::new("PreviewLabelSelector", "Parse a selector")
        .takes::<SelectorPreviewRequest>(json!({ "expression": "role=db" }))
        .answers::<SelectorPreviewResponse>(
            200,
            "Its tree, or where it stops making sense.",
            json!({ "ast": { "op": "eq", "key": "role", "value": "db" } }),
        )
}

fn order(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["newest", "oldest"], "default": "newest" })
}

pub(super) fn list_audit() -> Operation {
    paged(of_domain(Operation::new(
        "ListAudit",
        "Read the audit trail of a domain",
    )))
    .query(
        "order",
        "Which rows come first; oldest is the order of the chain.",
        order,
    )
    .answers::<AuditPage>(
        200,
        "A page, and the end of the chain.",
        json!({
            "items": [{
                "domain_id": DOMAIN, "seq": 1, "at": AT, "subject": format!("token:{ID}"),
                "relation": "actions.dispatch", "resource": format!("execution:{ID}"), "outcome": "granted",
                "previous_hash": DIGEST, "hash": DIGEST,
            }],
            "next_cursor": null,
            "head": { "seq": 1, "hash": DIGEST },
        }),
    )
    .refuses(400, &["invalid_order"])
}

// ---- nodes, as they speak

pub(super) fn enroll() -> Operation {
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
        .refuses(409, &["node_name_exhausted"])
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

pub(super) fn node_events() -> Operation {
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

pub(super) fn heartbeat() -> Operation {
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

pub(super) fn fetch_nsk() -> Operation {
    Operation::new("FetchNsk", "Fetch a new key, where control asked for it")
        .more(
            "The key with which this is asked counts until the new one was used. Asked again before that, the answer is \
             another key, and the one before it never counts.",
        )
        .answers::<NewNsk>(201, "The new key, shown this once.", json!({ "nsk": "nsk_…" }))
        .refuses(403, &["node_id_mismatch"])
        .refuses(409, &["key_rotation_not_due"])
}

pub(super) fn capabilities() -> Operation {
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

pub(super) fn report_violations() -> Operation {
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
}

pub(super) fn callback() -> Operation {
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

pub(super) fn upload_output() -> Operation {
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
    .refuses(409, &["execution_already_terminal"])
    .refuses(507, &["output_store_full"])
}

// ---- the service itself

pub(super) fn metrics() -> Operation {
    Operation::new("GetMetrics", "Metrics for a scraper on the machine of control")
        .answers_text(200, "OpenMetrics.", "application/openmetrics-text")
        .refuses(403, &["metrics_not_public"])
}

pub(super) fn openapi() -> Operation {
    Operation::new("GetOpenApi", "This document").answers_json("OpenAPI 3.1.")
}

pub(super) fn version() -> Operation {
    Operation::new("GetVersion", "Which build answers").answers::<VersionInfo>(
        200,
        "The build.",
        json!({ "version": "0.1.0", "commit": "unknown", "date": AT }),
    )
}

pub(super) fn health() -> Operation {
    Operation::new("GetHealth", "What works and what does not").answers::<HealthStatus>(
        200,
        "Also when something is down.",
        json!({ "status": "ok", "checks": [{ "name": "database", "status": "ok", "detail": "answers" }] }),
    )
}

pub(super) fn ready() -> Operation {
    Operation::new("GetReady", "Whether requests can be served")
        .answers_text(200, "They can.", "text/plain")
        .answers_text(503, "They cannot, now.", "text/plain")
}

pub(super) fn alive() -> Operation {
    Operation::new("GetAlive", "Whether the process answers").answers_text(200, "It does.", "text/plain")
}
