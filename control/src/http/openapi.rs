//! The OpenAPI document, from the table of routes, the types of the wire and the table of problem codes. What every
//! route of a kind has in common, its key, its path and the refusals that come with them, is said here once; what is
//! its own, in `operations`.

mod operation;
mod polish;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use axum::http::{StatusCode, header};
use muster_shared::{
    ids::{ActionName, RowId},
    wire::{ActionCancel, ActionRequest, BaselineUpdated, Problem, SigningKeysRotated},
};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

pub(super) use operation::Operation;
use operation::{Answer, Body, Described, JSON, Parameter};
use polish::{Direction, polish, polished};

use super::{
    problem::{CODES, Code},
    routes::{ROUTES, Route, Who},
};

const PROBLEM: &str = "application/problem+json";
const TITLE: &str = "Muster control";
/// What examples are called by.
const EXAMPLE_ID: &str = "01a21f9c-e873-7877-9eb0-994ca0a528fc";

/// The document as it is served and committed.
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let mut document = document();
        // Whatever else is in the build, the order is the same.
        document.sort_all_objects();
        format!("{document:#}\n")
    });
    &TEXT
}

fn document() -> Value {
    let definitions = |settings: SchemaSettings| {
        settings
            .with(|settings| {
                settings.meta_schema = None;
                settings.definitions_path = "/components/schemas".into();
            })
            .into_generator()
    };
    // A type is not always read as it is written: what may be left out of the one is always there in the other.
    let mut schemas = Schemas {
        read: definitions(SchemaSettings::draft2020_12().for_deserialize()),
        written: definitions(SchemaSettings::draft2020_12().for_serialize()),
    };
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        let methods = paths.entry(route.path).or_default();
        methods.insert(route.method.to_lowercase(), schemas.operation(route));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Dispatches named actions to nodes and tells what became of them. Every refusal is a problem \
                            (RFC 9457) whose `code` is stable. Unknown fields of an operator's request are refused, \
                            those of a node's message tolerated.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "examples": problem_examples(),
            "schemas": schemas.components(),
            "securitySchemes": security_schemes(),
        },
    })
}

fn security_schemes() -> Value {
    let bearer = |about: &str| json!({ "type": "http", "scheme": "bearer", "description": about });
    json!({
        "operator": bearer("An operator token, as `muster-control init` and `muster tokens issue-operator` show it once."),
        "node": bearer("The NSK of the node that the path names, as its enrolment answered it."),
        "newcomer": bearer("A bootstrap token."),
        "signed": {
            "type": "apiKey", "in": "query", "name": "signature",
            "description": "Part of a URL that control signed, as the answer to a report carries it.",
        },
    })
}

struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Schemas {
    fn operation(&mut self, route: &Route) -> Value {
        let operation = (route.operation)();
        let mut described = json!({
            "operationId": operation.id,
            "summary": operation.summary,
            "tags": [route.who.as_str()],
            "security": security(route.who),
        });
        if let Some(more) = operation.more {
            described["description"] = json!(more);
        }
        let mut parameters: Vec<Value> = path_parts(route.path)
            .map(|name| self.path_parameter(name))
            .collect();
        parameters.extend(
            operation
                .parameters
                .iter()
                .map(|parameter| self.parameter(parameter)),
        );
        if !parameters.is_empty() {
            described["parameters"] = json!(parameters);
        }
        if let Some(body) = &operation.body {
            described["requestBody"] = self.body(body);
        }
        let answers = operation
            .answers
            .iter()
            .map(|answer| (answer.status.to_string(), self.answer(answer)));
        let mut responses: Map<String, Value> = answers.collect();
        for (status, codes) in problems(route, &operation) {
            responses.insert(status.to_string(), self.refusal(status, &codes));
        }
        if operation
            .parameters
            .iter()
            .any(|parameter| parameter.place == "query")
        {
            // Answered by the HTTP library, which has not read what it is about.
            let too_large = "The head of the request, its URL included, has more than 8 KiB.";
            responses.insert("431".to_owned(), json!({ "description": too_large }));
        }
        described["responses"] = Value::Object(responses);
        described
    }

    fn path_parameter(&mut self, name: &str) -> Value {
        let (schema, example) = if matches!(name, "hook" | "action") {
            (self.read(SchemaGenerator::subschema_for::<ActionName>), "backup")
        } else {
            (self.read(SchemaGenerator::subschema_for::<RowId>), EXAMPLE_ID)
        };
        json!({ "in": "path", "name": name, "required": true, "schema": schema, "example": example })
    }

    fn parameter(&mut self, parameter: &Parameter) -> Value {
        json!({
            "in": parameter.place,
            "name": parameter.name,
            "description": parameter.about,
            "required": parameter.required,
            "schema": self.read(parameter.schema),
        })
    }

    fn body(&mut self, body: &Body) -> Value {
        let schema = body.schema.map_or_else(|| json!({}), |schema| self.read(schema));
        let mut content = json!({ "schema": schema });
        if let Some(example) = &body.example {
            content["example"] = example.clone();
        }
        json!({ "required": body.required, "content": { (body.media): content } })
    }

    fn answer(&mut self, answer: &Answer) -> Value {
        let mut described = json!({ "description": answer.about });
        if let Some((media, schema, example)) = &answer.content {
            let mut content = json!({ "schema": self.written(*schema) });
            if let Some(example) = example {
                content["example"] = example.clone();
            }
            described["content"] = json!({ (*media): content });
        }
        if !answer.headers.is_empty() {
            let header = |about: &str| json!({ "description": about, "schema": { "type": "string" } });
            let headers = answer
                .headers
                .iter()
                .map(|(name, about)| ((*name).to_owned(), header(about)));
            described["headers"] = Value::Object(headers.collect());
        }
        described
    }

    fn refusal(&mut self, status: u16, codes: &BTreeSet<&str>) -> Value {
        let title = title(status);
        let mut schema = self.written(SchemaGenerator::subschema_for::<Problem>);
        schema["properties"] = json!({ "status": { "const": status }, "code": { "enum": codes } });
        let mut required = vec!["code"];
        if codes.iter().all(|code| is_denial(status, code)) {
            required.extend(["reason", "correlation_id"]);
        }
        schema["required"] = json!(required);
        let example = |code: &&str| {
            (
                (*code).to_owned(),
                json!({ "$ref": format!("#/components/examples/{code}") }),
            )
        };
        let examples: Map<String, Value> = codes.iter().map(example).collect();
        let mut described = json!({
            "description": title,
            "content": { (PROBLEM): { "schema": schema, "examples": examples } },
        });
        let text = |about: &str| json!({ "description": about, "schema": { "type": "string" } });
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            described["headers"] =
                json!({ (header::RETRY_AFTER.as_str()): text("In how many seconds to ask again.") });
        }
        if status == StatusCode::UNAUTHORIZED {
            described["headers"] = json!({ (header::WWW_AUTHENTICATE.as_str()): text("Bearer") });
        }
        described
    }

    fn read(&mut self, schema: Described) -> Value {
        polished(schema(&mut self.read), Direction::Read)
    }

    fn written(&mut self, schema: Described) -> Value {
        polished(schema(&mut self.written), Direction::Written)
    }

    fn components(mut self) -> Value {
        // What an envelope holds, which no schema can say.
        for payload in [
            SchemaGenerator::subschema_for::<ActionRequest>,
            SchemaGenerator::subschema_for::<ActionCancel>,
            SchemaGenerator::subschema_for::<BaselineUpdated>,
            SchemaGenerator::subschema_for::<SigningKeysRotated>,
        ] {
            self.written(payload);
        }
        let mut all = Map::new();
        let read = self
            .read
            .take_definitions(false)
            .into_iter()
            .map(|named| (named, Direction::Read));
        let written = self
            .written
            .take_definitions(false)
            .into_iter()
            .map(|named| (named, Direction::Written));
        for ((name, mut schema), direction) in read.chain(written) {
            polish(&mut schema, direction);
            let other = all.insert(name.clone(), schema);
            debug_assert!(
                other.is_none_or(|other| other == all[&name]),
                "{name} is read in one shape and written in another: it needs two types, or to be inlined"
            );
        }
        all["Problem"]["properties"]["code"]["enum"] = CODES.iter().map(|code| code.name).collect();
        Value::Object(all)
    }
}

/// One for each code, called by it.
fn problem_examples() -> Value {
    let example = |code: &Code| {
        let status = code.statuses.first().copied().unwrap_or_default();
        let mut problem = json!({
            "type": "about:blank", "title": title(status), "status": status, "code": code.name,
            "detail": code.meaning, "instance": format!("urn:uuid:{EXAMPLE_ID}"),
        });
        if is_denial(status, code.name) {
            problem["reason"] = json!("insufficient_relation");
            problem["correlation_id"] = json!(EXAMPLE_ID);
        }
        (
            code.name.to_owned(),
            json!({ "summary": code.meaning, "value": problem }),
        )
    };
    Value::Object(CODES.iter().map(example).collect())
}

/// Whether the problem has a reason, and the correlation of its audit row.
fn is_denial(status: u16, code: &str) -> bool {
    status == 403 && code != "metrics_not_public"
}

fn security(who: Who) -> Value {
    match who {
        Who::Operator | Who::Node | Who::Newcomer | Who::Signed => json!([{ (who.as_str()): [] }]),
        Who::Here | Who::Anybody => json!([]),
    }
}

fn title(status: u16) -> &'static str {
    StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Error")
}

fn path_parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// The refusals of a route: its own, and those of its key, its path, its query and its body.
fn problems<'o>(route: &Route, operation: &'o Operation) -> BTreeMap<u16, BTreeSet<&'o str>> {
    let mut all: Vec<(u16, &[&str])> = operation.problems.clone();
    match route.who {
        Who::Operator => all.extend([
            (
                401,
                &[
                    "unauthenticated",
                    "token_revoked",
                    "token_expired",
                    "token_rotated",
                ][..],
            ),
            (400, &["invalid_query"]),
            (429, &["rate_limited"]),
            (503, &["issuer_unavailable"]),
        ]),
        Who::Node => all.extend([
            (401, &["unauthenticated", "nsk_revoked", "nsk_rotated"][..]),
            (400, &["invalid_instance"]),
            (409, &["node_cloned"]),
            (429, &["rate_limited"]),
            (503, &["node_contested"]),
        ]),
        Who::Newcomer => all.push((401, &["unauthenticated"])),
        Who::Signed | Who::Here | Who::Anybody => {}
    }
    match route.who {
        Who::Operator | Who::Node | Who::Newcomer | Who::Signed | Who::Here => {
            all.extend([(500, &["internal_error"][..]), (503, &["busy"])]);
        }
        Who::Anybody => {}
    }
    for part in path_parts(route.path) {
        all.push((400, &["invalid_path"]));
        all.extend(match part {
            "project" => [(400, &["invalid_project_id"][..]), (404, &["project_not_found"])],
            "execution" => [
                (400, &["invalid_execution_id"][..]),
                (404, &["execution_not_found"]),
            ],
            "node" => [(400, &["invalid_node_id"][..]), (400, &[])],
            "token" => [(400, &["invalid_token_id"][..]), (404, &["token_not_found"])],
            "tuple" => [(400, &["invalid_tuple_id"][..]), (404, &["tuple_not_found"])],
            "violation" => [
                (400, &["invalid_violation_id"][..]),
                (404, &["violation_not_found"]),
            ],
            "hook" => [(400, &["invalid_action"][..]), (400, &[])],
            "action" => [(400, &["invalid_action"][..]), (404, &["action_not_found"])],
            other => unreachable!("{other} is a part of a path that this does not know"),
        });
    }
    if operation
        .parameters
        .iter()
        .any(|parameter| parameter.place == "query")
    {
        all.push((400, &["invalid_query"]));
    }
    if operation.body.as_ref().is_some_and(|body| body.media == JSON) {
        all.extend([
            (400, &["invalid_body"][..]),
            (408, &["request_timeout"]),
            (413, &["request_body_too_large"]),
        ]);
    }
    let mut by_status: BTreeMap<u16, BTreeSet<&str>> = BTreeMap::new();
    for (status, codes) in all.into_iter().filter(|(_, codes)| !codes.is_empty()) {
        by_status.entry(status).or_default().extend(codes);
    }
    by_status
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renew it with: cargo run --bin muster-control -- openapi > docs/openapi.json
    #[test]
    fn the_committed_document_is_the_one_that_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == text(),
            "docs/openapi.json is stale: cargo run --bin muster-control -- openapi > docs/openapi.json"
        );
    }

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_what_it_answers() {
        let mut names = BTreeSet::new();
        for route in ROUTES {
            let operation = (route.operation)();
            assert!(
                names.insert(operation.id),
                "{} is the name of two operations",
                operation.id
            );
            assert!(!operation.answers.is_empty(), "{}", operation.id);
        }
    }

    #[test]
    fn every_refusal_is_in_the_table_of_codes_and_every_code_of_it_at_some_operation() {
        let mut said = BTreeSet::from([("not_found", 404), ("method_not_allowed", 405)]);
        for route in ROUTES {
            let operation = (route.operation)();
            for (status, codes) in problems(route, &operation) {
                for name in codes {
                    let code = CODES
                        .iter()
                        .find(|code| code.name == name)
                        .unwrap_or_else(|| panic!("{name}"));
                    assert!(
                        code.statuses.contains(&status),
                        "{}: {status} {name}",
                        operation.id
                    );
                    said.insert((code.name, status));
                }
            }
        }
        for code in CODES {
            for status in code.statuses {
                assert!(
                    said.contains(&(code.name, *status)),
                    "no operation answers {status} {}",
                    code.name
                );
            }
        }
    }
}
