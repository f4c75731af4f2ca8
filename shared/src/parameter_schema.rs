//! The JSON Schema (draft 2020-12) of an action's parameters, parsed once and checked at both ends.
//!
//! A schema comes from a node's admin, and control checks with it what operators send: so it is held to limits. It may
//! refer only to its own `$defs` and never to itself, which bounds the work of a check by its expanded size times the
//! size of the parameters; patterns are matched in linear time. A keyword that is not known is a misspelt one, and is
//! refused.

use std::collections::BTreeSet;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use crate::wire::Parameters;

/// The largest schema, in bytes of its JSON form.
pub const SCHEMA_BYTES_MAX: usize = 16 * 1024;
/// How many subschemas a schema may have once its references are written out.
pub const SCHEMA_PARTS_MAX: usize = 2000;
/// How deep they may be nested.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// How large one compiled pattern may become, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// How many of the errors of one check are told.
const ERRORS_TOLD_MAX: usize = 3;
const ERROR_TEXT_BYTES_MAX: usize = 1024;

/// What stands in place of a value that must not be shown or stored.
pub const MASK: &str = "********";

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
const DEFS: &str = "#/$defs/";

/// Keywords whose value is no schema.
const PLAIN: [&str; 31] = [
    "$schema",
    "$comment",
    "type",
    "enum",
    "const",
    "multipleOf",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "maxContains",
    "minContains",
    "maxProperties",
    "minProperties",
    "required",
    "dependentRequired",
    "title",
    "description",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
    "examples",
    "format",
    "$defs",
];

#[derive(Debug, thiserror::Error)]
pub enum BadSchema {
    #[error("the schema has {0} bytes of JSON; the limit is {SCHEMA_BYTES_MAX}")]
    TooLarge(usize),
    #[error("the schema has more than {SCHEMA_PARTS_MAX} parts once its references are written out")]
    TooManyParts,
    #[error("the schema is nested more than {SCHEMA_DEPTH_MAX} deep")]
    TooDeep,
    #[error("{at}: {keyword:?} is no keyword that a schema of parameters may use")]
    Keyword { at: String, keyword: String },
    #[error("{at}: a schema is a table")]
    NoSchema { at: String },
    #[error(
        "{at}: $ref is {found:?}; it may only name a schema under $defs of the same manifest, as {DEFS}NAME"
    )]
    Reference { at: String, found: String },
    #[error("{at}: {found:?} leads back to itself")]
    Circle { at: String, found: String },
    #[error("$schema must be {DRAFT}, or be left out")]
    Draft,
    #[error("parameters are an object: type must be \"object\", or be left out")]
    NoObject,
    #[error("{at}: writeOnly counts only inside a property of the parameters, under `properties`")]
    WriteOnly { at: String },
    #[error("{at}: {why}")]
    Unsound { at: String, why: String },
    #[error(
        "{name:?} is writeOnly and has a default, which everybody who may see the schema reads: leave it out"
    )]
    SecretDefault { name: String },
    #[error("the default of {name:?} does not match its own schema: {why}")]
    Default { name: String, why: String },
}

/// The parameters do not match the schema. The text shows no value, because one may be secret.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(String);

/// A sound schema of parameters.
#[derive(Debug)]
pub struct Schema {
    document: Value,
    validator: Validator,
    defaults: Parameters,
    secret: BTreeSet<String>,
}

impl Schema {
    /// # Errors
    /// When it is not sound or larger than allowed.
    pub fn parse(document: Value) -> Result<Self, BadSchema> {
        let bytes = document.to_string().len();
        if bytes > SCHEMA_BYTES_MAX {
            return Err(BadSchema::TooLarge(bytes));
        }
        if document.get("$schema").is_some_and(|draft| draft != DRAFT) {
            return Err(BadSchema::Draft);
        }
        if document.get("type").is_some_and(|kind| kind != "object") {
            return Err(BadSchema::NoObject);
        }
        let secret = secret_properties(&document)?;
        let mut whole = document.clone();
        if let Some(whole) = whole.as_object_mut() {
            whole.insert("type".to_owned(), "object".into());
        }
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .offline()
            .should_validate_formats(true)
            .should_ignore_unknown_formats(false)
            .with_pattern_options(
                PatternOptions::regex()
                    .size_limit(PATTERN_BYTES_MAX)
                    .dfa_size_limit(PATTERN_BYTES_MAX),
            )
            .build(&whole)
            .map_err(|err| BadSchema::Unsound {
                at: place(err.instance_path().as_str()),
                why: err.to_string(),
            })?;
        let schema = Self {
            defaults: defaults_of(&document),
            document,
            validator,
            secret,
        };
        schema.check_defaults()?;
        Ok(schema)
    }

    /// As it was written.
    #[must_use]
    pub const fn document(&self) -> &Value {
        &self.document
    }

    /// The properties that it describes.
    pub fn properties(&self) -> impl Iterator<Item = &str> {
        self.document
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|properties| properties.keys().map(String::as_str))
    }

    /// The properties that are, or hold, something `writeOnly`.
    #[must_use]
    pub const fn secret(&self) -> &BTreeSet<String> {
        &self.secret
    }

    /// The parameters with the defaults of those left out, if that is what the schema asks for.
    ///
    /// # Errors
    /// Where they differ from it.
    pub fn complete(&self, parameters: &Parameters) -> Result<Parameters, Mismatch> {
        let mut complete = self.defaults.clone();
        complete.extend(parameters.clone());
        let document = Value::Object(complete.clone());
        let told: Vec<String> = self
            .validator
            .iter_errors(&document)
            .take(ERRORS_TOLD_MAX)
            .map(|err| format!("{}: {}", place(err.instance_path().as_str()), err.masked()))
            .collect();
        if told.is_empty() {
            return Ok(complete);
        }
        let mut text = told.join("; ");
        text.truncate(text.floor_char_boundary(ERROR_TEXT_BYTES_MAX));
        Err(Mismatch(text))
    }

    /// A default that is refused would refuse every dispatch that leaves its parameter out.
    fn check_defaults(&self) -> Result<(), BadSchema> {
        if let Some(name) = self.secret.iter().find(|name| self.defaults.contains_key(*name)) {
            return Err(BadSchema::SecretDefault { name: name.clone() });
        }
        let document = Value::Object(self.defaults.clone());
        let found = self.validator.iter_errors(&document).find_map(|err| {
            let at = err.instance_path().as_str().to_owned();
            let name = at.strip_prefix('/')?.split('/').next()?.to_owned();
            Some(BadSchema::Default {
                name,
                why: err.masked().to_string(),
            })
        });
        found.map_or(Ok(()), Err)
    }
}

/// The parameters as they may be shown and stored.
#[must_use]
pub fn masked(parameters: &Parameters, secret: &BTreeSet<String>) -> Parameters {
    let mask = |(name, value): (&String, &Value)| {
        let shown = if secret.contains(name) {
            MASK.into()
        } else {
            value.clone()
        };
        (name.clone(), shown)
    };
    parameters.iter().map(mask).collect()
}

fn place(pointer: &str) -> String {
    if pointer.is_empty() {
        "the parameters".to_owned()
    } else {
        format!("at {pointer}")
    }
}

fn defaults_of(document: &Value) -> Parameters {
    let properties = document.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flatten()
        .filter_map(|(name, property)| Some((name.clone(), property.get("default")?.clone())))
        .collect()
}

/// What part of the parameters a subschema speaks of.
#[derive(Clone, Copy)]
enum Of<'a> {
    Whole,
    Property(&'a str),
    Elsewhere,
    /// Of nothing, until something refers to it.
    Definition,
}

/// Walks a schema with its references written out.
struct Walk<'a> {
    definitions: Option<&'a Value>,
    parts: usize,
    /// The definitions that are being written out.
    within: Vec<&'a str>,
    secret: BTreeSet<String>,
}

fn secret_properties(document: &Value) -> Result<BTreeSet<String>, BadSchema> {
    let mut walk = Walk {
        definitions: document.get("$defs"),
        parts: 0,
        within: Vec::new(),
        secret: BTreeSet::new(),
    };
    walk.visit(document, Of::Whole, String::new(), 0)?;
    let definitions = document.get("$defs").and_then(Value::as_object);
    for (name, definition) in definitions.into_iter().flatten() {
        walk.visit(definition, Of::Definition, format!("/$defs/{name}"), 1)?;
    }
    Ok(walk.secret)
}

impl<'a> Walk<'a> {
    fn visit(&mut self, schema: &'a Value, of: Of<'a>, at: String, depth: usize) -> Result<(), BadSchema> {
        self.parts += 1;
        if self.parts > SCHEMA_PARTS_MAX {
            return Err(BadSchema::TooManyParts);
        }
        if depth > SCHEMA_DEPTH_MAX {
            return Err(BadSchema::TooDeep);
        }
        let keywords = match schema {
            Value::Bool(_) if depth > 0 => return Ok(()),
            Value::Object(keywords) => keywords,
            Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(BadSchema::NoSchema { at: place(&at) });
            }
        };
        for (keyword, value) in keywords {
            let inside = format!("{at}/{keyword}");
            let part = match of {
                Of::Whole => Of::Elsewhere,
                Of::Property(_) | Of::Elsewhere | Of::Definition => of,
            };
            match keyword.as_str() {
                "$ref" => self.follow(value, of, inside, depth)?,
                "allOf" | "anyOf" | "oneOf" => self.visit_all(value, of, &inside, depth)?,
                "not" | "if" | "then" | "else" => self.visit(value, of, inside, depth + 1)?,
                "dependentSchemas" => self.visit_each(value, |_| of, &inside, depth)?,
                "properties" => {
                    let property = |name| match of {
                        Of::Whole => Of::Property(name),
                        Of::Property(_) | Of::Elsewhere | Of::Definition => of,
                    };
                    self.visit_each(value, property, &inside, depth)?;
                }
                "patternProperties" => self.visit_each(value, |_| part, &inside, depth)?,
                "prefixItems" => self.visit_all(value, part, &inside, depth)?,
                "additionalProperties"
                | "propertyNames"
                | "items"
                | "contains"
                | "unevaluatedItems"
                | "unevaluatedProperties" => self.visit(value, part, inside, depth + 1)?,
                "writeOnly" if value == &Value::Bool(true) => match of {
                    Of::Property(name) => {
                        self.secret.insert(name.to_owned());
                    }
                    Of::Definition => {}
                    Of::Whole | Of::Elsewhere => return Err(BadSchema::WriteOnly { at: place(&at) }),
                },
                "$schema" | "$defs" if depth > 0 => {
                    return Err(BadSchema::Keyword {
                        at: place(&at),
                        keyword: keyword.clone(),
                    });
                }
                plain if PLAIN.contains(&plain) => {}
                unknown => {
                    return Err(BadSchema::Keyword {
                        at: place(&at),
                        keyword: unknown.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn visit_all(&mut self, list: &'a Value, of: Of<'a>, at: &str, depth: usize) -> Result<(), BadSchema> {
        for (index, schema) in list.as_array().into_iter().flatten().enumerate() {
            self.visit(schema, of, format!("{at}/{index}"), depth + 1)?;
        }
        Ok(())
    }

    fn visit_each(
        &mut self,
        map: &'a Value,
        of: impl Fn(&'a str) -> Of<'a>,
        at: &str,
        depth: usize,
    ) -> Result<(), BadSchema> {
        for (name, schema) in map.as_object().into_iter().flatten() {
            self.visit(schema, of(name), format!("{at}/{name}"), depth + 1)?;
        }
        Ok(())
    }

    fn follow(
        &mut self,
        reference: &'a Value,
        of: Of<'a>,
        at: String,
        depth: usize,
    ) -> Result<(), BadSchema> {
        let found = reference.as_str().unwrap_or_default();
        let name = found.strip_prefix(DEFS).unwrap_or_default();
        let target = self.definitions.and_then(|definitions| definitions.get(name));
        let Some(target) = target else {
            return Err(BadSchema::Reference {
                at: place(&at),
                found: reference
                    .as_str()
                    .map_or_else(|| reference.to_string(), str::to_owned),
            });
        };
        if self.within.contains(&name) {
            return Err(BadSchema::Circle {
                at: place(&at),
                found: found.to_owned(),
            });
        }
        self.within.push(name);
        self.visit(target, of, at, depth + 1)?;
        self.within.pop();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(document: Value) -> Result<Schema, BadSchema> {
        Schema::parse(document)
    }

    fn complete(schema: &Schema, parameters: &Value) -> Result<Value, String> {
        let completed = schema.complete(parameters.as_object().unwrap());
        completed.map(Value::Object).map_err(|err| err.to_string())
    }

    #[test]
    fn parameters_are_checked_and_completed() {
        let schema = parse(json!({
            "properties": {"count": {"type": "integer", "minimum": 1, "default": 3}, "who": {"type": "string"}},
            "required": ["who", "count"],
            "additionalProperties": false,
        }))
        .unwrap();
        assert_eq!(
            complete(&schema, &json!({"who": "x"})).unwrap(),
            json!({"who": "x", "count": 3})
        );
        assert_eq!(
            complete(&schema, &json!({"who": "x", "count": 9})).unwrap()["count"],
            9
        );
        for (bad, path) in [
            (json!({"who": "x", "count": "9"}), "at /count"),
            (json!({"who": "x", "count": 0}), "at /count"),
            (json!({"count": 1}), "the parameters"),
            (json!({"who": "x", "other": 1}), "other"),
        ] {
            let text = complete(&schema, &bad).unwrap_err();
            assert!(text.contains(path), "{text}");
        }
    }

    #[test]
    fn a_refusal_shows_no_value() {
        let schema = parse(json!({
            "properties": {
                "a": {"type": "integer"}, "b": {"pattern": "^x$"}, "c": {"enum": ["x"]},
                "d": {"maxLength": 2}, "e": {"format": "ipv4"}, "f": {"anyOf": [{"type": "null"}, {"const": 1}]},
            },
        }))
        .unwrap();
        for name in ["a", "b", "c", "d", "e", "f"] {
            let text = complete(&schema, &json!({name: "canary"})).unwrap_err();
            assert!(text.contains(name) && !text.contains("canary"), "{text}");
        }
    }

    #[test]
    fn what_is_write_only_is_found_however_deep() {
        let schema = parse(json!({
            "$defs": {"secret": {"type": "string", "writeOnly": true}},
            "properties": {
                "plain": {"type": "string"},
                "direct": {"writeOnly": true},
                "by_ref": {"$ref": "#/$defs/secret"},
                "deep": {"type": "array", "items": {"properties": {"password": {"$ref": "#/$defs/secret"}}}},
            },
            "allOf": [{"properties": {"also": {"writeOnly": true}}}],
        }))
        .unwrap();
        let secret: Vec<&str> = schema.secret().iter().map(String::as_str).collect();
        assert_eq!(secret, ["also", "by_ref", "deep", "direct"]);
        let parameters = json!({"plain": "p", "direct": "canary", "deep": [{"password": "canary"}]});
        let shown = Value::Object(masked(parameters.as_object().unwrap(), schema.secret()));
        assert_eq!(shown, json!({"plain": "p", "direct": MASK, "deep": MASK}));
        let open = parse(json!({"properties": {"password": {"writeOnly": true, "default": "x"}}}));
        assert!(matches!(open, Err(BadSchema::SecretDefault { name }) if name == "password"));
        // Where no name says which parameter is meant, it could not be masked.
        for unnamed in [
            json!({"writeOnly": true}),
            json!({"additionalProperties": {"writeOnly": true}}),
            json!({"patternProperties": {"^x": {"properties": {"y": {"writeOnly": true}}}}}),
        ] {
            assert!(matches!(parse(unnamed), Err(BadSchema::WriteOnly { .. })));
        }
    }

    #[test]
    fn what_could_reach_out_or_never_end_is_refused() {
        for reference in [
            "https://example.com/s",
            "file:///etc/passwd",
            "#",
            "#/properties/a",
            "#/$defs/none",
        ] {
            assert!(
                matches!(
                    parse(json!({"properties": {"a": {"$ref": reference}}})),
                    Err(BadSchema::Reference { .. })
                ),
                "{reference}"
            );
        }
        let circle = json!({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "properties": {"x": {"$ref": "#/$defs/a"}}});
        assert!(matches!(parse(circle), Err(BadSchema::Circle { .. })));
        for keyword in ["$id", "$dynamicRef", "requred", "definitions"] {
            assert!(
                matches!(parse(json!({keyword: "x"})), Err(BadSchema::Keyword { .. })),
                "{keyword}"
            );
        }
        assert!(matches!(
            parse(json!({"$schema": "http://json-schema.org/draft-07/schema#"})),
            Err(BadSchema::Draft)
        ));
        assert!(matches!(
            parse(json!({"type": "array"})),
            Err(BadSchema::NoObject)
        ));
    }

    #[test]
    fn size_depth_and_expansion_are_bounded() {
        assert!(matches!(
            parse(json!({"title": "x".repeat(SCHEMA_BYTES_MAX)})),
            Err(BadSchema::TooLarge(_))
        ));
        let mut deep = json!({});
        for _ in 0..=SCHEMA_DEPTH_MAX {
            deep = json!({"not": deep});
        }
        assert!(matches!(parse(deep), Err(BadSchema::TooDeep)));
        // Eleven levels that each double: small to write down, large to check.
        let mut definitions = serde_json::Map::new();
        for level in 0..11 {
            let next = json!({"$ref": format!("{DEFS}d{}", level + 1)});
            definitions.insert(format!("d{level}"), json!({"allOf": [next, next]}));
        }
        definitions.insert("d11".into(), json!({}));
        let doubling = json!({"$defs": definitions, "properties": {"x": {"$ref": "#/$defs/d0"}}});
        assert!(matches!(parse(doubling), Err(BadSchema::TooManyParts)));
    }

    #[test]
    fn a_schema_that_cannot_be_meant_is_refused() {
        for (unsound, word) in [
            (
                json!({"properties": {"a": {"type": "text"}}}),
                "/properties/a/type",
            ),
            (json!({"properties": {"a": {"pattern": "("}}}), "pattern"),
            (json!({"properties": {"a": {"pattern": "(?=x)"}}}), "pattern"),
            (json!({"properties": {"a": {"format": "emial"}}}), "format"),
            (json!({"properties": {"a": 3}}), "/properties/a"),
            (
                json!({"properties": {"a": {"type": "integer", "default": "x"}}}),
                "default",
            ),
        ] {
            let text = parse(unsound).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn a_pattern_takes_no_longer_than_its_text() {
        let schema = parse(json!({"properties": {"a": {"pattern": "^(a+)+$"}}})).unwrap();
        assert!(complete(&schema, &json!({"a": format!("{}!", "a".repeat(50_000))})).is_err());
    }
}
