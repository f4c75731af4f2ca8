//! What the types of the wire cannot say by themselves, in JSON Schema: the rules that control checks after it has
//! decoded a request. The limits are the constants that it checks against.

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::{
    access::SUBJECT_NAME_LEN_MAX,
    labels::{LABEL_KEY_LEN_MAX, LABEL_VALUE_LEN_MAX, LABELS_PER_NODE_MAX, LABELS_SAID_MAX, NODE_PREFIX},
    selector::SELECTOR_LEN_MAX,
};

/// Text without control characters.
pub const NO_CONTROL: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";
const UUID: &str = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";

/// A key that an operator gives: not under the prefix of a node.
fn label_key_given() -> Schema {
    json_schema!({
        "type": "string",
        "pattern": format!("^(?!{NODE_PREFIX})[A-Za-z0-9][A-Za-z0-9._/-]{{0,{}}}$", LABEL_KEY_LEN_MAX - 1),
    })
}

fn labels(key: &Schema, count_max: usize) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": count_max,
        "propertyNames": key,
        "additionalProperties": {
            "type": "string",
            "maxLength": LABEL_VALUE_LEN_MAX,
            "pattern": NO_CONTROL,
        },
    })
}

#[must_use]
pub fn labels_given(_: &mut SchemaGenerator) -> Schema {
    labels(&label_key_given(), LABELS_PER_NODE_MAX)
}

#[must_use]
pub fn label_keys_given(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": label_key_given() })
}

/// Labels that a node says of itself. Control puts the prefix before their keys.
#[must_use]
pub fn labels_of_a_node(_: &mut SchemaGenerator) -> Schema {
    let key = json_schema!({
        "type": "string",
        "pattern": format!("^[A-Za-z0-9._/-]{{0,{}}}$", LABEL_KEY_LEN_MAX - NODE_PREFIX.len()),
    });
    labels(&key, LABELS_SAID_MAX)
}

#[must_use]
pub fn optional_labels_of_a_node(schemas: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [labels_of_a_node(schemas), { "type": "null" }] })
}

fn name() -> String {
    format!("[A-Za-z0-9._@+-]{{1,{SUBJECT_NAME_LEN_MAX}}}")
}

#[must_use]
pub fn subject(_: &mut SchemaGenerator) -> Schema {
    let name = name();
    json_schema!({
        "type": "string",
        "pattern": format!("^(user:{name}|group:{name}#member|token:{UUID})$"),
    })
}

#[must_use]
pub fn resource(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "pattern": format!("^((domain|project|resource):{UUID}|group:{})$", name()),
    })
}

/// A selector. Its grammar stands in `selector`; in one regular expression nobody could read it.
#[must_use]
pub fn selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": SELECTOR_LEN_MAX,
        "examples": ["role=db", "role=web,tier in (1,2),!old"],
    })
}

#[must_use]
pub fn optional_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = selector(generator);
    schema.insert("type".to_owned(), serde_json::json!(["string", "null"]));
    schema
}

/// Of `selector`, `node_id` and `all: true`, one and not more.
pub fn exactly_one_target(schema: &mut Schema) {
    let present = |name: &str, value: serde_json::Value| serde_json::json!({ "required": [name], "properties": { (name): value } });
    let text = || serde_json::json!({ "type": "string" });
    schema.insert(
        "oneOf".to_owned(),
        serde_json::json!([
            present("selector", text()),
            present("node_id", text()),
            present("all", serde_json::json!({ "const": true })),
        ]),
    );
}
