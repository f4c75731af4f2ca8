//! The published surface as a judge: `tests/contract/actions-surface.openapi.json` says for each operation what a
//! request and an answer look like, and everything that crosses the wire under its name is held against it.

use serde_json::{Value, json};

use crate::Answer;

pub struct Contract(Value);

impl Contract {
    /// # Panics
    /// When the file in this repository is not JSON.
    #[must_use]
    pub fn published() -> Self {
        let text = include_str!("../contract/actions-surface.openapi.json");
        let mut document = serde_json::from_str(text).expect("the published surface is JSON");
        say_null_as_json_schema_does(&mut document);
        Self(document)
    }

    fn operation(&self, id: &str) -> &Value {
        self.0["paths"]
            .as_object()
            .into_iter()
            .flatten()
            .flat_map(|(_, methods)| methods.as_object().into_iter().flatten())
            .map(|(_, operation)| operation)
            .find(|operation| operation["operationId"] == id)
            .unwrap_or_else(|| panic!("the published surface has no operation {id}"))
    }

    /// Holds a request body against the operation's schema.
    ///
    /// # Panics
    /// When it does not fit.
    #[track_caller]
    pub fn judge_request(&self, id: &str, body: &Value) {
        let schema = &self.operation(id)["requestBody"]["content"]["application/json"]["schema"];
        self.judge(&format!("the request of {id}"), schema, body);
    }

    /// Holds an answer against what the operation may answer with this status, content type included.
    ///
    /// # Panics
    /// When it does not fit.
    #[track_caller]
    pub fn judge_answer(&self, id: &str, answer: &Answer) {
        let what = format!("the {} of {id}", answer.status);
        let declared = &self.operation(id)["responses"][answer.status.to_string()];
        let content = declared["content"]
            .as_object()
            .unwrap_or_else(|| panic!("{what} is not among those published"));
        let content_type = answer.content_type.split(';').next().unwrap_or_default();
        let schema = &content
            .get(content_type)
            .unwrap_or_else(|| panic!("{what} comes as {content_type:?}: {}", answer.text()))["schema"];
        self.judge(&what, schema, &answer.json());
    }

    /// Holds the payload of an event against its schema.
    ///
    /// # Panics
    /// When it does not fit.
    #[track_caller]
    pub fn judge_event(&self, schema: &str, payload: &Value) {
        let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
        self.judge(schema, &reference, payload);
    }

    #[track_caller]
    fn judge(&self, what: &str, schema: &Value, instance: &Value) {
        let mut root = schema.clone();
        root["components"] = self.0["components"].clone();
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&root)
            .expect("the published schemas are schemas");
        let faults: Vec<String> = validator
            .iter_errors(instance)
            .map(|fault| format!("{}: {fault}", fault.instance_path()))
            .collect();
        assert!(
            faults.is_empty(),
            "{what} bends the published surface: {faults:#?}\n{instance:#}"
        );
    }
}

/// `nullable: true` is how OpenAPI 3.0 said it; JSON Schema, and so 3.1, has it in the type.
fn say_null_as_json_schema_does(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.remove("nullable") == Some(Value::Bool(true))
                && let Some(kind) = fields.get("type").cloned()
            {
                fields.insert("type".to_owned(), json!([kind, "null"]));
            }
            fields.values_mut().for_each(say_null_as_json_schema_does);
        }
        Value::Array(items) => items.iter_mut().for_each(say_null_as_json_schema_does),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
