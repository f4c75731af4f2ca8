//! Parameters as people type them: `key=text` and `key:=json`, and what a text means where the action says what it takes.

use serde_json::Value;

use crate::wire::Parameters;

/// The first `=` ends the key; what follows belongs to the value, byte for byte.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn parse(raw: &str) -> Result<(String, Value), String> {
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

/// The text itself, unless every schema that describes the parameter reads it as the same other thing.
#[must_use]
pub fn as_declared(name: &str, value: &Value, schemas: &[Value]) -> Value {
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

/// All of them together.
///
/// # Errors
/// A sentence that names the parameter that is given twice.
pub fn merge(params: impl IntoIterator<Item = (String, Value)>) -> Result<Parameters, String> {
    let mut all = Parameters::new();
    for (key, value) in params {
        if all.contains_key(&key) {
            return Err(format!("parameter {key:?} is given twice"));
        }
        all.insert(key, value);
    }
    Ok(all)
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
        assert!(merge(twice).is_err());
    }
}
