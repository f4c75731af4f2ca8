//! Parameters as typed: `-p key=text`, `-p key:=json`, and a file with a JSON object.

use std::{
    fs::File,
    io::{self, Read as _},
};

use clap::Args;
use muster_shared::wire::Parameters;
use serde_json::Value;

use crate::failure::Failure;

/// A longer file cannot be a parameter document, however much white space it has.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Args, Clone, Debug)]
pub(crate) struct ParamArgs {
    /// A parameter: KEY=TEXT, read as the number, list or truth value that the action declares there; KEY:=JSON in any case
    #[arg(short = 'p', long = "param", value_name = "KEY=TEXT", value_parser = parse)]
    params: Vec<(String, Value)>,
    /// A JSON object with parameters; - is standard input. -p wins over it
    #[arg(long, value_name = "FILE")]
    params_file: Option<String>,
}

impl ParamArgs {
    /// Whether a schema could change what any of them means.
    pub(crate) fn has_text(&self) -> bool {
        self.params.iter().any(|(_, value)| value.is_string())
    }

    /// None when no parameter was given at all. A text whose parameter the action declares as something else is read as
    /// that: `-p count=3` is a number where `count` is one.
    pub(crate) fn collect(&self, schemas: &[Value]) -> Result<Option<Parameters>, Failure> {
        let mut all = match &self.params_file {
            Some(path) => from_file(path)?,
            None if self.params.is_empty() => return Ok(None),
            None => Parameters::new(),
        };
        all.extend(merged(&self.typed(schemas))?);
        Ok(Some(all))
    }
}

impl ParamArgs {
    fn typed(&self, schemas: &[Value]) -> Vec<(String, Value)> {
        let typed = |(name, value): &(String, Value)| (name.clone(), as_declared(name, value, schemas));
        self.params.iter().map(typed).collect()
    }
}

/// The text itself, unless every schema that describes the parameter reads it as the same other thing.
fn as_declared(name: &str, value: &Value, schemas: &[Value]) -> Value {
    let Value::String(text) = value else {
        return value.clone();
    };
    let read: Option<Value> = serde_json::from_str(text).ok();
    let described: Vec<&Value> = schemas
        .iter()
        .filter_map(|schema| schema.get("properties")?.get(name))
        .collect();
    let fits = |property: &&Value, read: &Value| match property.get("type").and_then(Value::as_str) {
        Some("integer" | "number") => read.is_number(),
        Some("boolean") => read.is_boolean(),
        Some("array") => read.is_array(),
        Some("object") => read.is_object(),
        Some(_) | None => false,
    };
    match read {
        Some(read) if !described.is_empty() && described.iter().all(|property| fits(property, &read)) => read,
        Some(_) | None => value.clone(),
    }
}

fn merged(params: &[(String, Value)]) -> Result<Parameters, Failure> {
    let mut all = Parameters::new();
    for (key, value) in params {
        if all.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::Usage(format!("parameter {key:?} is given twice")));
        }
    }
    Ok(all)
}

/// The first `=` ends the key; what follows belongs to the value, byte for byte.
fn parse(raw: &str) -> Result<(String, Value), String> {
    let (key, text) = raw.split_once('=').ok_or("write KEY=TEXT or KEY:=JSON")?;
    let (key, value) = match key.strip_suffix(':') {
        Some(key) => {
            let value = serde_json::from_str(text).map_err(|err| format!("after := comes JSON: {err}"))?;
            (key, value)
        }
        None => (key, Value::from(text)),
    };
    if key.is_empty() {
        return Err("the key is empty".to_owned());
    }
    Ok((key.to_owned(), value))
}

fn from_file(path: &str) -> Result<Parameters, Failure> {
    let reading = || format!("reading parameters from {path}");
    let source: Box<dyn io::Read> = if path == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(Failure::local(reading()))?)
    };
    let mut bytes = Vec::new();
    source
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(Failure::local(reading()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{}: longer than {FILE_BYTES_MAX} bytes",
            reading()
        )));
    }
    serde_json::from_slice(&bytes)
        .map_err(|err| Failure::Usage(format!("{}: not a JSON object: {err}", reading())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(raw: &str) -> Value {
        parse(raw).unwrap().1
    }

    #[test]
    fn text_survives_byte_for_byte() {
        for text in [
            "a=b",
            " lead and trail ",
            "\"quoted\" 'both'",
            "line\nline\r\n",
            "",
            "ü€",
            "$(id)`id`\\",
            ":=1",
        ] {
            assert_eq!(
                parse(&format!("k={text}")).unwrap(),
                ("k".into(), json!(text)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn text_that_looks_like_json_stays_text_unless_asked() {
        assert_eq!(value("n=5"), json!("5"));
        assert_eq!(value("n:=5"), json!(5));
        assert_eq!(value("n:=[1,{\"a\":null}]"), json!([1, {"a": null}]));
        assert_eq!(value("n:=\"a=b\""), json!("a=b"));
    }

    #[test]
    fn a_text_becomes_what_every_node_declares() {
        let schema = json!({"properties": {
            "n": {"type": "integer"}, "yes": {"type": "boolean"}, "text": {"type": "string"}, "list": {"type": "array"},
        }});
        let typed = |name: &str, text: &str, schemas: &[Value]| as_declared(name, &json!(text), schemas);
        let one = [schema.clone()];
        assert_eq!(typed("n", "5", &one), json!(5));
        assert_eq!(typed("yes", "true", &one), json!(true));
        assert_eq!(typed("list", "[1]", &one), json!([1]));
        for (name, text) in [("text", "5"), ("n", "five"), ("yes", "1"), ("other", "5")] {
            assert_eq!(typed(name, text, &one), json!(text), "{name}");
        }
        assert_eq!(typed("n", "5", &[]), json!("5"));
        assert_eq!(typed("n", "5", &[schema.clone(), json!({})]), json!(5));
        let other = json!({"properties": {"n": {"type": "string"}}});
        assert_eq!(typed("n", "5", &[schema, other]), json!("5"));
        assert_eq!(
            as_declared(
                "n",
                &json!("5"),
                &[json!({"properties": {"n": {"type": ["integer", "string"]}}})]
            ),
            json!("5")
        );
    }

    #[test]
    fn what_is_no_parameter_is_refused() {
        for bad in ["", "k", "=v", ":=1", "k:=", "k:=nope", "k:=1 2"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        let twice = [("k".to_owned(), json!(1)), ("k".to_owned(), json!(2))];
        assert!(merged(&twice).is_err());
    }
}
