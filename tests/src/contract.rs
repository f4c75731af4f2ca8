//! The published surface as a judge: `tests/contract/actions-surface.openapi.json` says for each operation what a
//! request and an answer look like, and everything that crosses the wire under its name is held against it.

use serde_json::{Value, json};

use crate::{Answer, Operator, lossy::Exchange};

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

    /// The document that this control serves.
    pub async fn served(operator: &Operator) -> Self {
        Self(operator.get("/v1/openapi.json").await.expect(200).json())
    }

    /// Every operation: method, path and id.
    #[must_use]
    pub fn operations(&self) -> Vec<(String, String, String)> {
        let paths = self.0["paths"].as_object().into_iter().flatten();
        paths
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().into_iter().flatten();
                methods.map(move |(method, operation)| {
                    let id = operation["operationId"].as_str().unwrap_or_default();
                    (method.clone(), path.clone(), id.to_owned())
                })
            })
            .collect()
    }

    /// The id of the operation that a request is for.
    #[must_use]
    pub fn operation_at(&self, method: &str, path: &str) -> Option<String> {
        let paths = self.0["paths"].as_object()?;
        let fits = |template: &str| {
            let (parts, given) = (template.split('/'), path.split('/'));
            parts.clone().count() == given.clone().count()
                && parts
                    .zip(given)
                    .all(|(part, given)| part == given || part.starts_with('{'))
        };
        // A part that is spelled out is meant before one that stands for any.
        let (_, methods) = paths
            .iter()
            .filter(|(template, _)| fits(template))
            .min_by_key(|(template, _)| template.matches('{').count())?;
        Some(methods[method.to_lowercase()]["operationId"].as_str()?.to_owned())
    }

    /// Holds what was said and answered against the operation it is for; what comes in no JSON, by its status and its
    /// content type.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn judge_exchange(&self, id: &str, exchange: &Exchange) {
        if let Some(asked) = &exchange.asked {
            self.judge_request(id, asked);
        }
        let answer = &exchange.answer;
        if answer.content_type.contains("json") {
            self.judge_answer(id, answer);
        } else if !answer.bytes.is_empty() || answer.content_type.starts_with("text/event-stream") {
            let declared = &self.operation(id)["responses"][answer.status.to_string()]["content"];
            let content_type = answer.content_type.split(';').next().unwrap_or_default();
            assert!(
                declared.get(content_type).is_some(),
                "the {} of {id}: {exchange:?}",
                answer.status
            );
        }
    }

    /// Holds every example of the document against the schema that it is an example of.
    ///
    /// # Panics
    /// When one does not fit.
    #[must_use]
    pub fn judge_examples(&self) -> usize {
        let mut judged = 0;
        for (path, methods) in self.0["paths"].as_object().into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                let bodies = std::iter::once(&operation["requestBody"]);
                let answers = operation["responses"]
                    .as_object()
                    .into_iter()
                    .flat_map(|all| all.values());
                for content in bodies
                    .chain(answers)
                    .filter_map(|body| body["content"].as_object())
                {
                    for media in content.values() {
                        let named = media["examples"]
                            .as_object()
                            .into_iter()
                            .flatten()
                            .map(|(name, _)| {
                                let mut example = self.0["components"]["examples"][name]["value"].clone();
                                // One example serves the code wherever it comes.
                                example["status"] = media["schema"]["properties"]["status"]["const"].clone();
                                example
                            });
                        for example in media.get("example").cloned().into_iter().chain(named) {
                            self.judge(
                                &format!("an example of {method} {path}"),
                                &media["schema"],
                                &example,
                            );
                            judged += 1;
                        }
                    }
                }
            }
        }
        judged
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
