//! What a builtin takes: each parameter has a name and a kind, and whatever is not exactly that is refused.

use std::collections::BTreeMap;

use muster_shared::wire::{BuiltinParameter, Parameters};
use serde_json::Value;

use super::Failed;

pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) required: bool,
    /// As it would be typed.
    pub(super) default: Option<&'static str>,
    pub(super) description: &'static str,
}

/// A text that is no such thing is answered with what it should have been.
pub(super) type Grammar = fn(&str) -> Result<(), String>;

pub(super) enum Kind {
    Text(Grammar),
    Choice(&'static [&'static str]),
    Number {
        min: u64,
        max: u64,
    },
    Flag,
    /// A list, or one text with commas.
    Texts {
        max: usize,
        grammar: Grammar,
    },
}

impl Kind {
    /// As JSON Schema names it.
    const fn json_type(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Choice(_) => "string",
            Self::Number { .. } => "integer",
            Self::Flag => "boolean",
            Self::Texts { .. } => "array",
        }
    }
}

impl Parameter {
    pub(super) const fn text(name: &'static str, grammar: Grammar, description: &'static str) -> Self {
        Self {
            name,
            kind: Kind::Text(grammar),
            required: false,
            default: None,
            description,
        }
    }

    pub(super) const fn flag(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            kind: Kind::Flag,
            required: false,
            default: Some("false"),
            description,
        }
    }

    pub(super) const fn number(
        name: &'static str,
        (min, max): (u64, u64),
        default: &'static str,
        description: &'static str,
    ) -> Self {
        Self {
            name,
            kind: Kind::Number { min, max },
            required: false,
            default: Some(default),
            description,
        }
    }

    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) fn declared(&self) -> BuiltinParameter {
        BuiltinParameter {
            name: self.name.to_owned(),
            kind: Some(self.kind.json_type().to_owned()),
            required: self.required,
            default: self.default.map(str::to_owned),
            description: Some(self.description.to_owned()),
        }
    }

    fn parse(&self, value: &Value) -> Result<Argument, String> {
        match (&self.kind, value) {
            (Kind::Text(grammar), Value::String(text)) => {
                grammar(text).map(|()| Argument::Text(text.clone()))
            }
            (Kind::Choice(choices), Value::String(text)) if choices.contains(&text.as_str()) => {
                Ok(Argument::Text(text.clone()))
            }
            (Kind::Choice(choices), _) => Err(format!("must be one of {}", choices.join(", "))),
            (Kind::Number { min, max }, value) => as_number(value)
                .filter(|number| (min..=max).contains(&number))
                .map(Argument::Number)
                .ok_or_else(|| format!("must be a whole number from {min} to {max}")),
            (Kind::Flag, Value::Bool(flag)) => Ok(Argument::Flag(*flag)),
            (Kind::Flag, Value::String(text)) if text == "true" || text == "false" => {
                Ok(Argument::Flag(text == "true"))
            }
            (Kind::Flag, _) => Err("must be true or false".to_owned()),
            (Kind::Texts { max, grammar }, value) => as_texts(value, *max, *grammar),
            (Kind::Text(_), _) => Err("must be a text".to_owned()),
        }
    }
}

/// Who types `-p lines=10` sends a text.
fn as_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn as_texts(value: &Value, max: usize, grammar: Grammar) -> Result<Argument, String> {
    let texts: Option<Vec<String>> = match value {
        Value::String(text) => Some(text.split(',').map(str::to_owned).collect()),
        Value::Array(values) => values.iter().map(|one| Some(one.as_str()?.to_owned())).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    };
    let texts = texts
        .filter(|texts| !texts.is_empty() && texts.len() <= max)
        .ok_or_else(|| format!("must be a list of 1 to {max} texts"))?;
    texts.iter().try_for_each(|text| grammar(text))?;
    Ok(Argument::Texts(texts))
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Argument {
    Text(String),
    Number(u64),
    Flag(bool),
    Texts(Vec<String>),
}

/// Parameters that were checked, with the defaults of those that were left out.
#[derive(Debug)]
pub(super) struct Arguments(BTreeMap<&'static str, Argument>);

impl Arguments {
    pub(super) fn check(
        builtin: &str,
        known: &'static [Parameter],
        given: &Parameters,
    ) -> Result<Self, Failed> {
        if let Some(name) = given
            .keys()
            .find(|name| !known.iter().any(|one| one.name == **name))
        {
            let names: Vec<&str> = known.iter().map(|one| one.name).collect();
            let names = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            return Err(Failed::Parameters(format!(
                "{builtin} has no parameter {name:?}; it takes {names}"
            )));
        }
        let mut arguments = BTreeMap::new();
        for parameter in known {
            let default = parameter.default.map(|text| Value::String(text.to_owned()));
            let value = given.get(parameter.name).or(default.as_ref());
            let refused =
                |why: &str| Failed::Parameters(format!("parameter {:?} of {builtin} {why}", parameter.name));
            match value {
                Some(value) => {
                    let argument = parameter.parse(value).map_err(|why| refused(&why))?;
                    arguments.insert(parameter.name, argument);
                }
                None if parameter.required => return Err(refused("must be given")),
                None => {}
            }
        }
        Ok(Self(arguments))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name)? {
            Argument::Text(text) => Some(text),
            Argument::Number(_) | Argument::Flag(_) | Argument::Texts(_) => None,
        }
    }

    /// A number that has a default is always there.
    pub(super) fn number(&self, name: &str) -> u64 {
        match self.0.get(name) {
            Some(Argument::Number(number)) => *number,
            Some(Argument::Text(_) | Argument::Flag(_) | Argument::Texts(_)) | None => 0,
        }
    }

    pub(super) fn count(&self, name: &str) -> usize {
        usize::try_from(self.number(name)).unwrap_or(usize::MAX)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Argument::Flag(true))
    }

    pub(super) fn texts(&self, name: &str) -> &[String] {
        match self.0.get(name) {
            Some(Argument::Texts(texts)) => texts,
            Some(Argument::Text(_) | Argument::Number(_) | Argument::Flag(_)) | None => &[],
        }
    }
}

/// Any text that a file or a message could hold.
pub(super) fn plain(text: &str) -> Result<(), String> {
    const BYTES_MAX: usize = 1024;
    if text.is_empty() || text.len() > BYTES_MAX || text.chars().any(char::is_control) {
        return Err(format!(
            "must be a text of 1 to {BYTES_MAX} bytes without control characters, not {text:?}"
        ));
    }
    Ok(())
}

pub(super) fn absolute_path(text: &str) -> Result<(), String> {
    const BYTES_MAX: usize = 4095;
    if !text.starts_with('/') || text.len() > BYTES_MAX || text.contains('\0') {
        return Err(format!("must be an absolute path, not {text:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const KNOWN: &[Parameter] = &[
        Parameter::number("lines", (1, 100), "10", ""),
        Parameter::flag("dry_run", ""),
        Parameter::text("path", absolute_path, "").required(),
        Parameter {
            name: "packages",
            kind: Kind::Texts {
                max: 2,
                grammar: plain,
            },
            required: false,
            default: None,
            description: "",
        },
        Parameter {
            name: "sort",
            kind: Kind::Choice(&["up", "down"]),
            required: false,
            default: Some("up"),
            description: "",
        },
    ];

    fn check(given: &Value) -> Result<Arguments, String> {
        match Arguments::check("x", KNOWN, given.as_object().unwrap()) {
            Ok(arguments) => Ok(arguments),
            Err(Failed::Parameters(why)) => Err(why),
            Err(other @ (Failed::Unknown | Failed::Work(_))) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_left_out_has_its_default_and_texts_count_as_what_they_say() {
        let arguments = check(&json!({"path": "/x"})).unwrap();
        assert_eq!(
            (arguments.number("lines"), arguments.flag("dry_run")),
            (10, false)
        );
        assert_eq!(
            (arguments.text("sort"), arguments.texts("packages").len()),
            (Some("up"), 0)
        );
        let given = json!({"path": "/x", "lines": "7", "dry_run": "true", "packages": "a,b"});
        let arguments = check(&given).unwrap();
        assert_eq!((arguments.number("lines"), arguments.flag("dry_run")), (7, true));
        assert_eq!(arguments.texts("packages"), ["a", "b"]);
    }

    #[test]
    fn what_is_not_exactly_as_declared_is_refused_with_its_name() {
        for (given, named) in [
            (json!({}), "path"),
            (json!({"path": "x"}), "absolute"),
            (json!({"path": 1}), "path"),
            (json!({"path": "/x", "lines": 0}), "1 to 100"),
            (json!({"path": "/x", "lines": -1}), "1 to 100"),
            (json!({"path": "/x", "lines": 1.5}), "1 to 100"),
            (json!({"path": "/x", "lines": ""}), "1 to 100"),
            (json!({"path": "/x", "dry_run": "yes"}), "true or false"),
            (json!({"path": "/x", "packages": []}), "1 to 2"),
            (json!({"path": "/x", "packages": ["a", "b", "c"]}), "1 to 2"),
            (json!({"path": "/x", "packages": ["a", 1]}), "1 to 2"),
            (json!({"path": "/x", "packages": ["a", ""]}), "packages"),
            (json!({"path": "/x", "sort": "left"}), "up, down"),
            (json!({"path": "/x", "pth": "/x"}), "pth"),
        ] {
            let why = check(&given).unwrap_err();
            assert!(why.contains(named), "{given}: {why}");
        }
    }
}
