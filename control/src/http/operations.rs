//! What each route does, for the OpenAPI document: one function a route, beside it in the table of `routes`. The
//! examples are read and written by the types themselves, so that one which is not true does not get into the document.

mod access;
mod executions;
mod hooks;
mod node;
mod nodes;
mod service;

use muster_shared::ids::{DomainId, ProjectId};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{
    cursor::{LIMIT_DEFAULT, LIMIT_MAX},
    openapi::Operation,
};

pub(super) use access::*;
pub(super) use executions::*;
pub(super) use hooks::*;
pub(super) use node::*;
pub(super) use nodes::*;
pub(super) use service::*;

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

const ID: &str = "01a21f9c-e873-7877-9eb0-994ca0a528fc";
const NODE: &str = "01a21f9c-d5d0-7b4e-8a4c-3f6f1f2b7a10";
const PROJECT: &str = "01a21f9c-c000-7c11-9e0d-0a2b4c6d8e01";
const DOMAIN: &str = "01a21f9c-c000-7c11-9e0d-0a2b4c6d8e00";
const AT: &str = "2026-11-27T09:30:00.000Z";
const LATER: &str = "2026-11-27T10:30:00.000Z";
const DIGEST: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
