//! The codes of refusals: the table that clients decide by, and that the OpenAPI document and docs/problems.md repeat.

use axum::http::StatusCode;

/// One code of a problem, and with which statuses it comes.
pub(in crate::http) struct Code {
    pub(in crate::http) name: &'static str,
    pub(in crate::http) statuses: &'static [u16],
    pub(in crate::http) meaning: &'static str,
}

const fn code(name: &'static str, statuses: &'static [u16], meaning: &'static str) -> Code {
    Code {
        name,
        statuses,
        meaning,
    }
}

/// Every code there is. Clients decide by them: a code is never renamed, and one that is not here is never sent.
#[rustfmt::skip]
pub(in crate::http) const CODES: &[Code] = &[
    code("action_not_declared", &[400], "No node of the cohort declares the action."),
    code("action_not_found", &[404], "No node of the project declares the action."),
    code("bootstrap_token_expired", &[401], "The bootstrap token has expired."),
    code("bootstrap_token_invalid", &[401], "There is no such bootstrap token."),
    code("bootstrap_token_revoked", &[401], "The bootstrap token was revoked."),
    code("bootstrap_token_used", &[401], "The bootstrap token has enrolled as many nodes as it may."),
    code("builtin_action_duplicate", &[422], "A builtin is declared twice, or under the name of a hook."),
    code("builtin_action_invalid", &[422], "A builtin has no name that an action can have, or there are too many."),
    code("busy", &[503], "Too much waits to be stored; ask again."),
    code("callback_token_mismatch", &[403], "The report does not carry the token of its invocation."),
    code("capacity_exceeded", &[429], "The domain has as many live executions as it may."),
    code("caveat_unsupported", &[400], "Tuples with caveats are not supported."),
    code("cohort_mismatch", &[422], "Another number of nodes is left after the gates than was expected."),
    code("cursor_binding_mismatch", &[403], "The cursor was given to another caller, or for another list or other filters."),
    code("declared_hook_duplicate", &[400], "A hook is declared twice."),
    code("declared_hook_invalid", &[400], "A hook has no name that an action can have, or there are too many."),
    code("declared_output_too_large", &[413], "The declared output is larger than this control takes."),
    code("domain_not_found", &[404], "There is no such domain, or the caller may not see it."),
    code("execution_already_terminal", &[409], "The invocation has ended and stays as it is."),
    code("execution_not_found", &[404], "There is no such execution."),
    code("group_cycle", &[400], "The group would be nested in itself."),
    code("group_too_deep", &[400], "Groups would be nested too deep."),
    code("hook_integrity_violation", &[409], "The hook differs from its baseline on every node that could have run it."),
    code("idempotency_key_reuse", &[422], "The idempotency key was used for another request."),
    code("inline_output_too_large", &[413], "Inline output is larger than its limit; upload it."),
    code("internal_error", &[500], "The request could not be served; the cause is in the log of control."),
    code("invalid_action", &[400], "The text cannot name an action."),
    code("invalid_body", &[400], "The body is not what the operation expects."),
    code("invalid_connected", &[400], "It is neither true nor false."),
    code("invalid_created_after", &[400], "The text is no time."),
    code("invalid_created_before", &[400], "The text is no time, or none after created_after."),
    code("invalid_cursor", &[400], "The cursor is not one that this list gave this caller."),
    code("invalid_deliver_within", &[400], "The time for delivery is not within its bounds."),
    code("invalid_domain_id", &[400], "No domain is named, or what names it is no UUID."),
    code("invalid_execution_id", &[400], "What names the execution is no UUID."),
    code("invalid_idempotency_key", &[400], "The idempotency key is not one."),
    code("invalid_instance", &[400], "What names the daemon and those before it are no UUIDs, or too many."),
    code("invalid_kind", &[400], "There is no such kind."),
    code("invalid_label", &[400], "A label breaks the rules for labels."),
    code("invalid_limit", &[400], "The limit is not within its bounds."),
    code("invalid_name", &[400], "The name breaks the rules for names."),
    code("invalid_node_id", &[400], "What names the node is no UUID."),
    code("invalid_order", &[400], "There is no such order."),
    code("invalid_output", &[400], "The report names another object than the one that was offered."),
    code("invalid_overlap", &[400], "The overlap is longer than it may be."),
    code("invalid_parameters", &[400], "The parameters are larger than they may be, or not what any node of the cohort takes."),
    code("invalid_path", &[400], "A part of the path is not UTF-8."),
    code("invalid_project_id", &[400], "No project is named, or what names it is no UUID."),
    code("invalid_query", &[400], "The query names something twice or that is not known here, or is not UTF-8."),
    code("invalid_reason", &[400], "The reason says nothing, or is longer than it may be."),
    code("invalid_relation", &[400], "The resource has no such relation."),
    code("invalid_resource", &[400], "The text is no resource."),
    code("invalid_rollout", &[400], "The rollout has no steps, or steps that make no sense for this cohort."),
    code("invalid_state_transition", &[409], "The reported status does not follow the one at which the invocation rests."),
    code("invalid_status", &[400], "There is no such status."),
    code("invalid_subject", &[400], "The text is no subject."),
    code("invalid_target", &[400], "The target is not named in exactly one way, or is no UUID."),
    code("invalid_timeout", &[400], "The timeout is not within its bounds."),
    code("invalid_token_id", &[400], "What names the token is no UUID."),
    code("invalid_ttl", &[400], "The time to live is not within its bounds."),
    code("invalid_tuple_id", &[400], "What names the tuple is no UUID."),
    code("invalid_uses", &[400], "The number of uses is not within its bounds."),
    code("issuer_unavailable", &[503], "The issuer of the token cannot be asked for its keys."),
    code("invalid_violation_id", &[400], "What names the violation is no UUID."),
    code("key_rotation_not_due", &[409], "The node's key is not to be changed now."),
    code("last_operator", &[400, 409], "No token would be left that operates the domain."),
    code("malformed_selector", &[400], "The selector stops making sense at `position`."),
    code("method_not_allowed", &[405], "The path does not answer this method; `Allow` says which it does."),
    code("metrics_not_public", &[403], "Metrics are shown to the machine of control alone."),
    code("no_rollout", &[409], "The execution has no rollout."),
    code("node_cloned", &[409], "Another daemon has this node's identity; this one runs on a copy of it."),
    code("node_contested", &[503], "Another daemon with this node's identity was connected a moment ago; ask again."),
    code("node_decommissioned", &[409], "The node that this enrolment made was decommissioned."),
    code("node_id_mismatch", &[403], "The NSK belongs to another node."),
    code("node_name_exhausted", &[409], "Too many nodes have this hostname."),
    code("node_not_found", &[404], "There is no such node, or the caller may not act on it."),
    code("not_found", &[404], "There is nothing at this path."),
    code("nothing_held", &[409], "The rollout holds nothing back any more."),
    code("nsk_node_mismatch", &[403], "The NSK belongs to a node that the execution does not address."),
    code("nsk_revoked", &[401], "The node was decommissioned."),
    code("nsk_rotated", &[401], "The NSK was changed, and this one has ended."),
    code("output_changed", &[502], "The output store holds other bytes than those that were believed."),
    code("output_differs", &[409], "The invocation has another output already."),
    code("output_lost", &[502], "The output store has lost the output."),
    code("output_not_found", &[404], "The invocation has no output."),
    code("output_store_failed", &[502], "The output store did not give the output."),
    code("output_store_full", &[507], "The output store has no room for the upload."),
    code("output_upload_failed", &[502], "The output store gave no upload URL, or has not what the report says."),
    code("permission_denied", &[403], "The caller lacks the relation that this needs."),
    code("project_not_found", &[404], "There is no such project, or the caller may not see it."),
    code("range_not_satisfiable", &[416], "The output has no such bytes."),
    code("rate_limited", &[429], "The caller asks too often; `Retry-After` says when to come back."),
    code("refused_hook_invalid", &[400], "A refused file has no name, or too much to say, or there are too many."),
    code("request_body_too_large", &[413], "The body is larger than it may be."),
    code("request_timeout", &[408], "The body did not come in time."),
    code("resource_not_found", &[404], "There is no such resource in the project or its domain."),
    code("selector_empty_cohort", &[422], "No node that the caller may act on matches."),
    code("target_not_found", &[404], "The execution does not address this node."),
    code("token_expired", &[401], "The token has expired."),
    code("token_name_taken", &[409], "Another operator token of the domain has this name."),
    code("token_not_found", &[404], "There is no such token, or the caller may not see it."),
    code("token_not_live", &[409], "The token is revoked or expired."),
    code("token_revoked", &[401], "The operator token was revoked."),
    code("token_rotated", &[401], "The operator token was rotated, and its former secret has ended."),
    code("too_many_targets", &[422], "More nodes are left after the gates than were allowed."),
    code("too_many_violations", &[429], "The node has as many open violations as it may; acknowledge those that were looked into."),
    code("too_many_watches", &[429], "The caller watches as many executions as it may."),
    code("tuple_not_found", &[404], "There is no such tuple that the caller may delete."),
    code("unauthenticated", &[401], "The token is missing, or none of this kind."),
    code("upload_digest_mismatch", &[400], "The upload has other bytes than were declared."),
    code("upload_length_mismatch", &[400], "The upload has another length than was declared."),
    code("upload_replaced", &[409], "A newer upload of the same output began, and counts."),
    code("upload_url_invalid", &[403], "The upload URL was not signed by this control, or has expired."),
    code("violation_not_found", &[404], "There is no such violation of a node that the caller may act on."),
    code("violation_resolved", &[409], "The violation was resolved."),
];

/// Whether the table has this code with this status.
pub(super) fn is_listed(status: StatusCode, name: &str) -> bool {
    CODES
        .iter()
        .any(|code| code.name == name && code.statuses.contains(&status.as_u16()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_code_and_no_other() {
        let document = include_str!("../../../../docs/problems.md");
        let written: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
        let rows: Vec<String> = CODES
            .iter()
            .map(|code| {
                let statuses: Vec<String> = code.statuses.iter().map(u16::to_string).collect();
                format!("| `{}` | {} | {} |", code.name, statuses.join(", "), code.meaning)
            })
            .collect();
        assert_eq!(written, rows);
    }
}
