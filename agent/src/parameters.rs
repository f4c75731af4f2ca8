//! Parameters as a hook meets them: JSON on standard input, and one environment variable each. Never a shell.

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::wire::Parameters;
use serde_json::Value;

const PREFIX: &str = "MUSTER_PARAM_";
const NAME_LEN_MAX: usize = 128;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadParameters {
    #[error(
        "parameter {0:?} cannot be an environment variable: its name must have 1 to {NAME_LEN_MAX} bytes"
    )]
    Name(String),
    #[error("parameters {0:?} and {1:?} would be the same environment variable {PREFIX}{2}")]
    Collision(String, String, String),
    #[error("the value of parameter {0:?} holds a NUL character, which no environment variable can carry")]
    Nul(String),
}

/// Whether each of these parameters can have a variable of its own.
pub(crate) fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), BadParameters> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for name in names {
        let variable = variable(name)?;
        if let Some(other) = seen.insert(variable.clone(), name) {
            return Err(BadParameters::Collision(
                other.to_owned(),
                name.to_owned(),
                variable,
            ));
        }
    }
    Ok(())
}

fn variable(name: &str) -> Result<String, BadParameters> {
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Err(BadParameters::Name(name.to_owned()));
    }
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    Ok(name.chars().map(plain).collect())
}

/// Refuses what would be ambiguous rather than choosing for the operator.
pub(crate) fn variables(parameters: &Parameters) -> Result<BTreeMap<String, String>, BadParameters> {
    let mut named: BTreeMap<String, (&str, String)> = BTreeMap::new();
    for (name, value) in parameters {
        let text = as_text(value);
        if text.contains('\0') {
            return Err(BadParameters::Nul(name.clone()));
        }
        let variable = variable(name)?;
        if let Some((other, _)) = named.insert(variable.clone(), (name, text)) {
            return Err(BadParameters::Collision(other.to_owned(), name.clone(), variable));
        }
    }
    Ok(named
        .into_iter()
        .map(|(variable, (_, text))| (format!("{PREFIX}{variable}"), text))
        .collect())
}

/// Every text in which the secret ones among the parameters may be seen: as a variable has them, as the file of all has
/// them, and each text inside of one.
pub(crate) fn texts_of(parameters: &Parameters, secret: &BTreeSet<String>) -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    for (name, value) in parameters {
        if secret.contains(name) {
            texts.insert(as_text(value));
            add_texts(value, &mut texts);
        }
    }
    texts
}

fn add_texts(value: &Value, texts: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            let quoted = value.to_string();
            texts.extend([text.clone(), quoted[1..quoted.len() - 1].to_owned()]);
        }
        Value::Array(items) => items.iter().for_each(|item| add_texts(item, texts)),
        Value::Object(fields) => fields.values().for_each(|field| add_texts(field, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_secret_is_known_in_every_form_in_which_a_hook_is_given_it() {
        let parameters =
            json!({ "pin": 12345, "key": "a\"b", "all": { "deep": ["inner"] }, "open": "shown" });
        let secret = ["pin", "key", "all", "absent"].map(str::to_owned).into();
        let texts = texts_of(parameters.as_object().unwrap(), &secret);
        let known: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(
            known,
            ["12345", "a\"b", "a\\\"b", "inner", r#"{"deep":["inner"]}"#]
        );
    }

    fn of(value: &Value) -> Result<BTreeMap<String, String>, BadParameters> {
        variables(value.as_object().unwrap())
    }

    #[test]
    fn strings_go_verbatim_and_the_rest_as_json() {
        let hostile = "a;$(reboot)\n\"'`\\ ü";
        let variables =
            of(&json!({"text": hostile, "dry-run": true, "n": 1.5, "list": [1, "x"], "none": null})).unwrap();
        assert_eq!(variables["MUSTER_PARAM_TEXT"], hostile);
        assert_eq!(variables["MUSTER_PARAM_DRY_RUN"], "true");
        assert_eq!(variables["MUSTER_PARAM_N"], "1.5");
        assert_eq!(variables["MUSTER_PARAM_LIST"], "[1,\"x\"]");
        assert_eq!(variables["MUSTER_PARAM_NONE"], "null");
    }

    #[test]
    fn what_would_be_ambiguous_is_refused() {
        assert!(matches!(
            of(&json!({"a-b": 1, "a_b": 2})),
            Err(BadParameters::Collision(..))
        ));
        assert!(matches!(
            of(&json!({"A": 1, "a": 2})),
            Err(BadParameters::Collision(..))
        ));
        assert!(matches!(of(&json!({"": 1})), Err(BadParameters::Name(_))));
        assert!(matches!(of(&json!({"a": "x\u{0}y"})), Err(BadParameters::Nul(_))));
    }
}
