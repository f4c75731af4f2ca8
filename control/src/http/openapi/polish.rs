//! What the types do not say in JSON Schema's words.

use schemars::Schema;
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Written,
}

pub(super) fn polished(schema: Schema, direction: Direction) -> Value {
    let mut value = schema.to_value();
    polish(&mut value, direction);
    value
}

/// What the types do not say in JSON Schema's words: the bounds of integers, and that what is left out when it is
/// nothing is never `null`.
pub(super) fn polish(value: &mut Value, direction: Direction) {
    match value {
        Value::Object(schema) => {
            bound_integers(schema);
            if let Some(Value::String(text)) = schema.get_mut("description") {
                *text = text.replace("[`", "`").replace("`]", "`");
            }
            if direction == Direction::Written {
                schema.remove("default");
                never_null_when_optional(schema);
            }
            schema.values_mut().for_each(|inner| polish(inner, direction));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| polish(inner, direction)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn bound_integers(schema: &mut Map<String, Value>) {
    let (min, max) = match schema.get("format").and_then(Value::as_str) {
        Some("uint16") => (json!(0), json!(u16::MAX)),
        Some("uint32") => (json!(0), json!(u32::MAX)),
        Some("uint" | "uint64") => (json!(0), json!(u64::MAX)),
        Some("int32") => (json!(i32::MIN), json!(i32::MAX)),
        Some("int64") => (json!(i64::MIN), json!(i64::MAX)),
        Some(_) | None => return,
    };
    schema.entry("minimum").or_insert(min);
    schema.entry("maximum").or_insert(max);
}

fn never_null_when_optional(schema: &mut Map<String, Value>) {
    let required: Vec<String> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for (_, property) in properties.iter_mut().filter(|(name, _)| !required.contains(name)) {
        let Value::Object(property) = property else {
            continue;
        };
        if let Some(Value::Array(types)) = property.get_mut("type") {
            types.retain(|kind| kind != "null");
            if let [only] = &types[..] {
                let only = only.clone();
                property.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(choices)) = property.get_mut("anyOf") {
            choices.retain(|choice| choice["type"] != "null");
            if let [Value::Object(only)] = &choices[..] {
                let only = only.clone();
                property.remove("anyOf");
                property.extend(only);
            }
        }
    }
}
