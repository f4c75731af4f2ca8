//! `NAME.toml` beside a hook: what the hook is, what it takes, and how it is to be run. Read strictly, because what is
//! misspelt there would silently not hold.

mod source;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use muster_shared::{parameter_schema::Schema, wire::HookManifest};
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use super::affinity::{Affinity, Lane};
use crate::{
    parameters,
    run_as::{ManifestLimits, RunAs},
};
pub(crate) use source::BadManifest;
use source::Source;

const DESCRIPTION_BYTES_MAX: usize = 1024;
const AFFINITIES_MAX: usize = 16;
pub(crate) const VARIABLES_MAX: usize = 64;
const VARIABLE_BYTES_MAX: usize = 4096;

/// A sound manifest; one that says nothing stands for a hook without a manifest.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    description: Option<String>,
    pub(crate) parameters: Option<Arc<Schema>>,
    timeout_default_seconds: Option<u32>,
    pub(crate) timeout_max_seconds: Option<u32>,
    read_only: bool,
    affinity: Vec<Affinity>,
    pub(crate) output_bytes_max: Option<u64>,
    pub(crate) run_as: RunAs,
}

/// As written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    description: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    umask: Option<Spanned<String>>,
    working_directory: Option<Spanned<String>>,
    #[serde(default)]
    no_new_privs: bool,
    #[serde(default)]
    timeout: RawTimeout,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    environment: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    action: RawAction,
    parameters: Option<Spanned<toml::Table>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTimeout {
    default_seconds: Option<Spanned<i64>>,
    max_seconds: Option<Spanned<i64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    memory_bytes: Option<Spanned<i64>>,
    pids: Option<Spanned<i64>>,
    cpu_seconds: Option<Spanned<i64>>,
    open_files: Option<Spanned<i64>>,
    output_bytes: Option<Spanned<i64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAction {
    #[serde(default)]
    read_only: bool,
    affinity: Option<Spanned<Vec<String>>>,
}

impl Manifest {
    /// Reads the text of the manifest at `path`.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, BadManifest> {
        let text = std::str::from_utf8(bytes).map_err(|err| {
            let what = format!("it is not UTF-8: {err}");
            Source { path, text: "" }.wrong(None, what)
        })?;
        let source = Source { path, text };
        let raw: Raw = toml::from_str(text).map_err(|err| source.malformed(&err))?;
        let (limits, output_bytes_max) = limits(&source, raw.limits)?;
        let user = user(&source, raw.user)?;
        if let (Some(_), true) = (limits.pids, may_have_any_number(user.as_deref())) {
            return Err(source.wrong(
                None,
                "limits.pids is counted for a user and does not hold root: name another user as `user`",
            ));
        }
        let default_seconds = source.seconds("timeout.default_seconds", raw.timeout.default_seconds)?;
        let max_at = raw.timeout.max_seconds.as_ref().map(Spanned::span);
        let max_seconds = source.seconds("timeout.max_seconds", raw.timeout.max_seconds)?;
        if let (Some(default), Some(max)) = (default_seconds, max_seconds)
            && default > max
        {
            return Err(source.wrong(
                max_at,
                format!("timeout.max_seconds = {max} is less than timeout.default_seconds = {default}"),
            ));
        }
        let affinity = affinity(&source, &raw.action)?;
        Ok(Self {
            description: description(&source, raw.description)?,
            parameters: schema(&source, raw.parameters)?,
            timeout_default_seconds: default_seconds,
            timeout_max_seconds: max_seconds,
            read_only: raw.action.read_only,
            affinity,
            output_bytes_max,
            run_as: RunAs {
                user,
                umask: umask(&source, raw.umask)?,
                working_directory: working_directory(&source, raw.working_directory)?,
                no_new_privs: raw.no_new_privs,
                environment: environment(&source, raw.environment)?,
                limits,
            },
        })
    }

    pub(crate) fn lane(&self) -> Lane {
        if self.read_only {
            Lane::ReadOnly
        } else {
            Lane::Changes(self.affinity.clone())
        }
    }

    /// What of it control is told. The environment is the admin's alone.
    pub(crate) fn declared(&self) -> HookManifest {
        let limits = &self.run_as.limits;
        let named = [
            ("memory_bytes", limits.memory_bytes),
            ("pids", limits.pids),
            ("cpu_seconds", limits.cpu_seconds),
            ("open_files", limits.open_files),
            ("output_bytes", self.output_bytes_max),
        ];
        HookManifest {
            description: self.description.clone(),
            parameters: self.parameters.as_ref().map(|schema| schema.document().clone()),
            timeout_default_seconds: self.timeout_default_seconds,
            timeout_max_seconds: self.timeout_max_seconds,
            read_only: self.read_only,
            affinity: self.affinity.iter().map(ToString::to_string).collect(),
            user: self.run_as.user.clone(),
            limits: named
                .into_iter()
                .filter_map(|(name, limit)| Some((name.to_owned(), limit?)))
                .collect(),
        }
    }
}

/// The system counts processes for a user, and lets root have any number.
fn may_have_any_number(user: Option<&str>) -> bool {
    match user {
        Some(user) => user == "root",
        None => rustix::process::geteuid().is_root(),
    }
}

fn description(source: &Source<'_>, raw: Option<Spanned<String>>) -> Result<Option<String>, BadManifest> {
    let Some(raw) = raw else { return Ok(None) };
    let sound = raw.get_ref().len() <= DESCRIPTION_BYTES_MAX && !raw.get_ref().chars().any(char::is_control);
    if sound {
        return Ok(Some(raw.into_inner()));
    }
    Err(source.wrong(
        Some(raw.span()),
        format!("description has at most {DESCRIPTION_BYTES_MAX} bytes on one line"),
    ))
}

fn user(source: &Source<'_>, raw: Option<Spanned<String>>) -> Result<Option<String>, BadManifest> {
    let Some(raw) = raw else { return Ok(None) };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'$');
    let name = raw.get_ref();
    if (1..=32).contains(&name.len()) && name.bytes().all(plain) && name.bytes().any(|b| !b.is_ascii_digit())
    {
        return Ok(Some(raw.into_inner()));
    }
    Err(source.wrong(
        Some(raw.span()),
        format!("user = {name:?} is not the name of a user"),
    ))
}

fn umask(source: &Source<'_>, raw: Option<Spanned<String>>) -> Result<Option<u32>, BadManifest> {
    let Some(raw) = raw else { return Ok(None) };
    let octal = u32::from_str_radix(raw.get_ref(), 8).ok();
    match octal.filter(|mask| *mask <= 0o777 && (3..=4).contains(&raw.get_ref().len())) {
        Some(mask) => Ok(Some(mask)),
        None => Err(source.wrong(
            Some(raw.span()),
            format!(
                "umask = {:?} is not three or four octal digits, as \"0027\"",
                raw.get_ref()
            ),
        )),
    }
}

fn working_directory(
    source: &Source<'_>,
    raw: Option<Spanned<String>>,
) -> Result<Option<String>, BadManifest> {
    let Some(raw) = raw else { return Ok(None) };
    if raw.get_ref().starts_with('/') && !raw.get_ref().contains('\0') {
        return Ok(Some(raw.into_inner()));
    }
    Err(source.wrong(
        Some(raw.span()),
        format!("working_directory = {:?} is not an absolute path", raw.get_ref()),
    ))
}

fn limits(source: &Source<'_>, raw: RawLimits) -> Result<(ManifestLimits, Option<u64>), BadManifest> {
    let limits = ManifestLimits {
        memory_bytes: source.number("limits.memory_bytes", raw.memory_bytes, (1 << 20, 1 << 50))?,
        pids: source.number("limits.pids", raw.pids, (1, 1 << 22))?,
        cpu_seconds: source.number("limits.cpu_seconds", raw.cpu_seconds, (1, 1 << 32))?,
        open_files: source.number("limits.open_files", raw.open_files, (8, 1 << 20))?,
    };
    let output = source.number("limits.output_bytes", raw.output_bytes, (4096, 1 << 40))?;
    Ok((limits, output))
}

/// Names that only the supervisor gives are refused, and so is what no environment can carry.
fn environment(
    source: &Source<'_>,
    raw: BTreeMap<String, Spanned<String>>,
) -> Result<BTreeMap<String, String>, BadManifest> {
    if raw.len() > VARIABLES_MAX {
        let what = format!(
            "environment has {} variables; the limit is {VARIABLES_MAX}",
            raw.len()
        );
        return Err(source.wrong(None, what));
    }
    let check = |(name, value): (String, Spanned<String>)| match check_variable(&name, value.get_ref()) {
        Ok(()) => Ok((name, value.into_inner())),
        Err(why) => Err(source.wrong(Some(value.span()), format!("environment.{name}: {why}"))),
    };
    raw.into_iter().map(check).collect()
}

pub(crate) fn check_variable(name: &str, value: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let named = !name.is_empty() && name.bytes().all(plain) && !name.as_bytes()[0].is_ascii_digit();
    if !named {
        Err("a variable's name has letters, digits and _, and no digit first".to_owned())
    } else if name.starts_with("MUSTER_") {
        Err("variables of this prefix are given by musterd".to_owned())
    } else if value.len() > VARIABLE_BYTES_MAX || value.contains('\0') {
        Err(format!(
            "a variable has at most {VARIABLE_BYTES_MAX} bytes and no NUL"
        ))
    } else {
        Ok(())
    }
}

fn affinity(source: &Source<'_>, raw: &RawAction) -> Result<Vec<Affinity>, BadManifest> {
    let Some(list) = &raw.affinity else {
        return Ok(Vec::new());
    };
    let wrong = |what: String| source.wrong(Some(list.span()), format!("action.affinity: {what}"));
    if raw.read_only {
        return Err(wrong(
            "what is read_only runs beside anything, and takes none".to_owned(),
        ));
    }
    if list.get_ref().is_empty() || list.get_ref().len() > AFFINITIES_MAX {
        return Err(wrong(format!(
            "1 to {AFFINITIES_MAX} texts; leave it out when the hook may change anything"
        )));
    }
    let parse = |raw: &String| raw.parse().map_err(|err| wrong(format!("{err}")));
    list.get_ref().iter().map(parse).collect()
}

fn schema(
    source: &Source<'_>,
    raw: Option<Spanned<toml::Table>>,
) -> Result<Option<Arc<Schema>>, BadManifest> {
    let Some(raw) = raw else { return Ok(None) };
    let at = raw.span();
    let wrong = |what: String| source.wrong(Some(at.clone()), format!("parameters: {what}"));
    let document = as_json(toml::Value::Table(raw.into_inner())).map_err(wrong)?;
    let schema = Schema::parse(document).map_err(|err| wrong(err.to_string()))?;
    parameters::check_names(schema.properties()).map_err(|err| wrong(err.to_string()))?;
    Ok(Some(Arc::new(schema)))
}

fn as_json(value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| format!("{number} is no number that JSON has"))?,
        toml::Value::Boolean(yes) => yes.into(),
        toml::Value::Datetime(at) => return Err(format!("write {at} as a text: JSON has no dates")),
        toml::Value::Array(list) => list.into_iter().map(as_json).collect::<Result<_, _>>()?,
        toml::Value::Table(table) => {
            let entry = |(key, value)| as_json(value).map(|value| (key, value));
            Value::Object(table.into_iter().map(entry).collect::<Result<_, _>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(text: &str) -> Result<Manifest, String> {
        Manifest::parse(Path::new("/h/backup.toml"), text.as_bytes()).map_err(|err| err.to_string())
    }

    const WHOLE: &str = r#"
description = "Backs up one database"
user = "backup"
umask = "0077"
working_directory = "/var/lib/backup"
no_new_privs = true

[timeout]
default_seconds = 600
max_seconds = 3600

[limits]
memory_bytes = 268_435_456
pids = 64
cpu_seconds = 900
open_files = 256
output_bytes = 1_048_576

[environment]
BACKUP_HOME = "/srv/backup"

[action]
affinity = ["database:main"]

[parameters]
required = ["database"]
additionalProperties = false
properties.database = { type = "string", pattern = "^[a-z]+$" }
properties.password = { type = "string", writeOnly = true }
properties.level = { type = "integer", default = 3, minimum = 1 }
"#;

    #[test]
    fn every_part_is_read() {
        let manifest = parse(WHOLE).unwrap();
        let run_as = &manifest.run_as;
        assert_eq!((run_as.umask, run_as.no_new_privs), (Some(0o077), true));
        assert_eq!(run_as.working_directory.as_deref(), Some("/var/lib/backup"));
        assert_eq!(run_as.environment["BACKUP_HOME"], "/srv/backup");
        assert_eq!(run_as.limits.pids, Some(64));
        let declared = serde_json::to_value(manifest.declared()).unwrap();
        assert_eq!(
            declared,
            json!({
                "description": "Backs up one database", "user": "backup", "affinity": ["database:main"],
                "timeout_default_seconds": 600, "timeout_max_seconds": 3600,
                "limits": {"memory_bytes": 268_435_456, "pids": 64, "cpu_seconds": 900, "open_files": 256,
                    "output_bytes": 1_048_576},
                "parameters": {
                    "required": ["database"], "additionalProperties": false,
                    "properties": {
                        "database": {"type": "string", "pattern": "^[a-z]+$"},
                        "password": {"type": "string", "writeOnly": true},
                        "level": {"type": "integer", "default": 3, "minimum": 1},
                    },
                },
            })
        );
        assert!(
            parse("").unwrap().parameters.is_none(),
            "an empty manifest says nothing"
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_key() {
        for (text, line, key) in [
            ("description = 3", 1, "description"),
            ("\nusr = \"x\"", 2, "usr"),
            ("[timeout]\nmax = 3", 2, "max"),
            ("[timeout]\ndefault_seconds = 0", 2, "timeout.default_seconds"),
            (
                "[timeout]\ndefault_seconds = 9\nmax_seconds = 5",
                3,
                "timeout.max_seconds",
            ),
            ("[timeout]\nmax_seconds = 86401", 2, "86400"),
            ("[limits]\n\nopen_files = -1", 3, "limits.open_files"),
            ("[limits]\nmemory_bytes = \"1G\"", 2, "memory_bytes"),
            ("umask = \"99\"", 1, "umask"),
            ("umask = \"1777\"", 1, "umask"),
            ("user = \"a b\"", 1, "user"),
            ("user = \"1000\"", 1, "user"),
            ("working_directory = \"here\"", 1, "working_directory"),
            ("[environment]\nMUSTER_X = \"1\"", 2, "MUSTER_X"),
            ("[environment]\n\"a-b\" = \"1\"", 2, "a-b"),
            ("[environment]\nN = 1", 2, "N"),
            ("[action]\nread_only = true\naffinity = [\"a\"]", 3, "affinity"),
            ("[action]\naffinity = [\"a::b\"]", 2, "affinity"),
            ("[action]\naffinity = []", 2, "affinity"),
            ("[parameters]\nrequred = []", 1, "requred"),
            (
                "[parameters.properties]\nat.default = 2020-01-01",
                1,
                "2020-01-01",
            ),
            ("x = [", 1, "x"),
        ] {
            let err = parse(text).unwrap_err();
            assert!(
                err.starts_with(&format!("/h/backup.toml, line {line}: ")),
                "{text}: {err}"
            );
            assert!(err.contains(key), "{text}: {err}");
        }
        assert!(Manifest::parse(Path::new("/h"), b"\xff").is_err());
    }

    #[test]
    fn parameters_that_would_be_one_variable_are_refused() {
        let text = "[parameters.properties]\na-b = {}\na_b = {}\n";
        assert!(parse(text).unwrap_err().contains("MUSTER_PARAM_A_B"));
    }

    #[test]
    fn a_number_of_processes_does_not_hold_root() {
        let text = "user = \"root\"\n[limits]\npids = 5\n";
        assert!(parse(text).unwrap_err().contains("limits.pids"));
        assert!(parse(&text.replace("root", "nobody")).is_ok());
    }
}
