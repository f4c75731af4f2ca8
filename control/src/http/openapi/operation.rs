//! What one route does, said by the functions of `operations` in the words of OpenAPI.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

pub(super) const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

fn anything(_: &mut SchemaGenerator) -> Schema {
    Schema::default()
}

pub(super) type Described = fn(&mut SchemaGenerator) -> Schema;

/// What one route does, for those who call it.
pub(in crate::http) struct Operation {
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) more: Option<&'static str>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) answers: Vec<Answer>,
    pub(super) problems: Vec<(u16, &'static [&'static str])>,
}

pub(super) struct Parameter {
    pub(super) place: &'static str,
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) required: bool,
    pub(super) schema: Described,
}

pub(super) struct Body {
    pub(super) schema: Option<Described>,
    pub(super) required: bool,
    pub(super) media: &'static str,
    pub(super) example: Option<Value>,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) about: &'static str,
    pub(super) headers: &'static [(&'static str, &'static str)],
    pub(super) content: Option<(&'static str, Described, Option<Value>)>,
}

impl Operation {
    pub(in crate::http) const fn new(id: &'static str, summary: &'static str) -> Self {
        Self {
            id,
            summary,
            more: None,
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(in crate::http) const fn more(mut self, text: &'static str) -> Self {
        self.more = Some(text);
        self
    }

    pub(in crate::http) fn query(
        mut self,
        name: &'static str,
        about: &'static str,
        schema: Described,
    ) -> Self {
        self.parameters.push(Parameter {
            place: "query",
            name,
            about,
            required: false,
            schema,
        });
        self
    }

    /// The parameter that was named last cannot be left out.
    pub(in crate::http) fn query_names(&self) -> Vec<&'static str> {
        let of_query = |parameter: &&Parameter| parameter.place == "query";
        self.parameters
            .iter()
            .filter(of_query)
            .map(|parameter| parameter.name)
            .collect()
    }

    pub(in crate::http) fn required(mut self) -> Self {
        if let Some(last) = self.parameters.last_mut() {
            last.required = true;
        }
        self
    }

    pub(in crate::http) fn header(
        mut self,
        name: &'static str,
        about: &'static str,
        schema: Described,
    ) -> Self {
        self.parameters.push(Parameter {
            place: "header",
            name,
            about,
            required: false,
            schema,
        });
        self
    }

    /// The JSON that it takes, with an example that is read as it would be.
    pub(in crate::http) fn takes<T: JsonSchema + DeserializeOwned>(mut self, example: Value) -> Self {
        let _: T = serde_json::from_value(example.clone()).expect("the example of a request is one");
        self.body = Some(Body {
            schema: Some(SchemaGenerator::subschema_for::<T>),
            required: true,
            media: JSON,
            example: Some(example),
        });
        self
    }

    /// The body may be left out.
    pub(in crate::http) fn or_nothing(mut self) -> Self {
        if let Some(body) = &mut self.body {
            body.required = false;
        }
        self
    }

    pub(in crate::http) fn takes_bytes(mut self) -> Self {
        self.body = Some(Body {
            schema: None,
            required: true,
            media: BYTES,
            example: None,
        });
        self
    }

    /// The JSON that it answers, with an example that is written as it would be.
    pub(in crate::http) fn answers<T: JsonSchema + DeserializeOwned + Serialize>(
        self,
        status: u16,
        about: &'static str,
        example: Value,
    ) -> Self {
        let example: T = serde_json::from_value(example).expect("the example of an answer is one");
        let example = serde_json::to_value(example).expect("the types of the wire are JSON");
        self.answers_with(
            status,
            about,
            Some((JSON, SchemaGenerator::subschema_for::<T>, Some(example))),
        )
    }

    pub(in crate::http) fn answers_text(self, status: u16, about: &'static str, media: &'static str) -> Self {
        self.answers_with(
            status,
            about,
            Some((media, SchemaGenerator::subschema_for::<String>, None)),
        )
    }

    /// An event stream: `schema` is that of one event.
    pub(in crate::http) fn answers_events(self, about: &'static str, schema: Described) -> Self {
        self.answers_with(200, about, Some(("text/event-stream", schema, None)))
    }

    pub(in crate::http) fn answers_bytes(self, about: &'static str) -> Self {
        self.answers_with(200, about, Some((BYTES, anything, None)))
    }

    pub(in crate::http) fn also_answers_bytes(self, status: u16, about: &'static str) -> Self {
        self.answers_with(status, about, Some((BYTES, anything, None)))
    }

    pub(in crate::http) fn answers_json(self, about: &'static str) -> Self {
        self.answers_with(
            200,
            about,
            Some((JSON, SchemaGenerator::subschema_for::<Map<String, Value>>, None)),
        )
    }

    pub(in crate::http) fn answers_nothing(self, about: &'static str) -> Self {
        self.answers_with(200, about, None)
    }

    fn answers_with(
        mut self,
        status: u16,
        about: &'static str,
        content: Option<(&'static str, Described, Option<Value>)>,
    ) -> Self {
        self.answers.push(Answer {
            status,
            about,
            headers: &[],
            content,
        });
        self
    }

    /// A header of the answer that was named last.
    pub(in crate::http) fn with_headers(mut self, headers: &'static [(&'static str, &'static str)]) -> Self {
        if let Some(last) = self.answers.last_mut() {
            last.headers = headers;
        }
        self
    }

    /// The codes of its own refusals; those of its key, its path and its body go without saying.
    pub(in crate::http) fn refuses(mut self, status: u16, codes: &'static [&'static str]) -> Self {
        self.problems.push((status, codes));
        self
    }
}
