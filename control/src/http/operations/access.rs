//! Tokens, who may what, and who did.

use muster_shared::{
    access::{
        AuthConfig, BootstrapTokenState, CheckRequest, CheckResponse, CreateOperatorTokenRequest,
        OperatorToken, OperatorTokenSecret, RelationTuple, RelationTupleCreateRequest, RotateTokenRequest,
        WhoAmI,
    },
    audit::AuditPage,
    wire::{IssueTokenRequest, IssuedToken, Page},
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{AT, DIGEST, DOMAIN, ID, LATER, PROJECT, of_domain, of_project, page, paged};
use crate::http::openapi::Operation;

fn a_bootstrap_token() -> Value {
    json!({
        "id": ID, "project_id": PROJECT, "labels": { "role": "db" }, "uses": 0, "uses_max": 1,
        "issued_by": format!("token:{ID}"), "created_at": AT, "expires_at": LATER,
    })
}

pub(in crate::http) fn issue_bootstrap_token() -> Operation {
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

pub(in crate::http) fn list_bootstrap_tokens() -> Operation {
    paged(Operation::new(
        "ListBootstrapTokens",
        "List the bootstrap tokens of a project, without their secrets",
    ))
    .answers::<Page<BootstrapTokenState>>(200, "A page.", page(&a_bootstrap_token()))
    .refuses(403, &["permission_denied"])
}

pub(in crate::http) fn revoke_bootstrap_token() -> Operation {
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

pub(in crate::http) fn list_operator_tokens() -> Operation {
    paged(of_domain(Operation::new(
        "ListOperatorTokens",
        "List the operator tokens of a domain, without their secrets",
    )))
    .answers::<Page<OperatorToken>>(200, "A page.", page(&an_operator_token()))
}

pub(in crate::http) fn issue_operator_token() -> Operation {
    of_domain(Operation::new(
        "IssueOperatorToken",
        "Issue an operator token, which may do nothing yet",
    ))
    .takes::<CreateOperatorTokenRequest>(json!({ "name": "ci", "ttl_seconds": 86_400 }))
    .answers::<OperatorTokenSecret>(201, "The token, its secret shown this once.", a_secret())
    .refuses(400, &["invalid_name", "invalid_ttl"])
    .refuses(409, &["token_name_taken"])
}

pub(in crate::http) fn revoke_operator_token() -> Operation {
    Operation::new("RevokeOperatorToken", "Revoke an operator token for good")
        .answers::<OperatorToken>(200, "The token as it is now.", an_operator_token())
        .refuses(409, &["last_operator"])
}

pub(in crate::http) fn rotate_operator_token() -> Operation {
    Operation::new("RotateOperatorToken", "Give an operator token a new secret")
        .takes::<RotateTokenRequest>(json!({ "overlap_seconds": 3600 }))
        .answers::<OperatorTokenSecret>(200, "The token, its new secret shown this once.", a_secret())
        .refuses(400, &["invalid_overlap"])
        .refuses(409, &["token_not_live"])
}

fn a_tuple() -> Value {
    json!({
        "id": ID, "subject": "group:dba#member", "relation": "act", "resource": format!("project:{PROJECT}"),
        "created_at": AT,
    })
}

pub(in crate::http) fn list_tuples() -> Operation {
    paged(of_project(Operation::new(
        "ListRelationTuples",
        "List who was granted what",
    )))
    .answers::<Page<RelationTuple>>(200, "A page.", page(&a_tuple()))
}

pub(in crate::http) fn create_tuple() -> Operation {
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

pub(in crate::http) fn delete_tuple() -> Operation {
    of_project(Operation::new("DeleteRelationTuple", "Take a relation back"))
        .answers::<RelationTuple>(200, "The tuple that stood.", a_tuple())
        .refuses(409, &["last_operator"])
}

pub(in crate::http) fn check() -> Operation {
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

pub(in crate::http) fn whoami() -> Operation {
    Operation::new("WhoAmI", "Whom control takes the caller for").answers::<WhoAmI>(
        200,
        "The subject.",
        json!({ "subject": "user:ann", "groups": ["group:oidc/admins#member"], "expires_at": LATER }),
    )
}

pub(in crate::http) fn auth_config() -> Operation {
    Operation::new("GetAuthConfig", "How a person may sign in").answers::<AuthConfig>(
        200,
        "The issuer, where there is one.",
        json!({ "oidc": {
            "issuer": "https://issuer.example", "audience": "muster", "client_id": "muster-cli",
            "scopes": ["openid", "offline_access"], "audience_parameter": "resource",
        } }),
    )
}

fn order(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["newest", "oldest"], "default": "newest" })
}

pub(in crate::http) fn list_audit() -> Operation {
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
