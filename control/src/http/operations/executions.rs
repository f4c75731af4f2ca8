//! Dispatching, and what became of it.

use muster_shared::{
    ids::{ActionName, NodeId},
    schema::selector,
    status::Status,
    time::Timestamp,
    wire::{
        CancelRequest, CancelResponse, DispatchPreview, DispatchRequest, Execution, ExecutionDetail,
        ExecutionTarget, IDEMPOTENCY_KEY_HEADER, IDEMPOTENT_REPLAY_HEADER, Page, PauseRequest, Problem,
        Rollout, TimelineEvent,
    },
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{AT, DOMAIN, ID, LATER, NODE, PROJECT, event, page, paged, text};
use crate::{http::openapi::Operation, idempotency::KEY_LEN_MAX};

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

pub(in crate::http) fn dispatch() -> Operation {
    dispatching("DispatchExecution")
}

pub(in crate::http) fn dispatch_newer() -> Operation {
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

pub(in crate::http) fn preview() -> Operation {
    previewing("PreviewExecution")
}

pub(in crate::http) fn preview_newer() -> Operation {
    previewing("PreviewExecutionNewer")
}

pub(in crate::http) fn list_executions() -> Operation {
    let operation = Operation::new("ListExecutions", "List the executions of a project, newest first")
        .more(
            "Items leave out their targets and give counts. Where no index answers the question, a page is looked for two seconds \
             at most: it may have fewer items than `limit`, or none, and others come after it all the same, as long as there is a \
             `next_cursor`.",
        )
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

pub(in crate::http) fn get_execution() -> Operation {
    let mut example = an_execution();
    example["timeline"] = json!([a_transition()]);
    Operation::new(
        "GetExecution",
        "Show an execution with its targets and its timeline",
    )
    .answers::<ExecutionDetail>(200, "The execution.", example)
}

pub(in crate::http) fn execution_targets() -> Operation {
    paged(Operation::new(
        "ListExecutionTargets",
        "List the targets of an execution",
    ))
    .answers::<Page<ExecutionTarget>>(200, "A page.", page(&an_execution()["targets"][0]))
}

pub(in crate::http) fn execution_timeline() -> Operation {
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

pub(in crate::http) fn pause_execution() -> Operation {
    minding_the_rollout(Operation::new(
        "PauseExecution",
        "Hold back what a rollout has not released",
    ))
}

pub(in crate::http) fn resume_execution() -> Operation {
    minding_the_rollout(Operation::new("ResumeExecution", "Let a paused rollout go on"))
}

pub(in crate::http) fn cancel_execution() -> Operation {
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

fn timeline_events(schemas: &mut SchemaGenerator) -> Schema {
    let data = [
        schemas.subschema_for::<TimelineEvent>(),
        schemas.subschema_for::<Rollout>(),
        schemas.subschema_for::<Execution>(),
        schemas.subschema_for::<Problem>(),
    ];
    event(&["invocation", "rollout", "settled", "ended"], &data)
}

pub(in crate::http) fn execution_events() -> Operation {
    Operation::new("WatchExecution", "Follow the timeline of an execution")
        .more(
            "Each `invocation` event carries a TimelineEvent, each `rollout` event a Rollout that has moved; the stream \
             ends with one `settled` event that carries the Execution. A caller whose token has ended, or who may not see \
             the execution any more, is told so within five seconds by an `ended` event that carries a Problem.",
        )
        .header("last-event-id", "The id of the last event that was seen; the stream goes on after it.", text)
        .answers_events("The timeline, from its beginning.", timeline_events)
        .refuses(429, &["too_many_watches"])
}

pub(in crate::http) fn read_output() -> Operation {
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
