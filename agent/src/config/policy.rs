//! The table `[policy]` of one file, as the node goes by it. Each part is told with the file that says it.

mod rules;

use std::{path::Path, time::Duration};

use super::{ConfigError, bounded, file::RawPolicy};
use crate::policy::{BadPattern, PATTERNS_MAX, Pattern, Policy, Said};
use rules::rules_of;

pub(super) fn policy_of(raw: &RawPolicy, path: &Path) -> Result<Policy, ConfigError> {
    let list = |name: &'static str, raw: &Option<Vec<String>>| {
        let Some(raw) = raw else { return Ok(Vec::new()) };
        if raw.len() > PATTERNS_MAX {
            return Err(ConfigError::TooManyPatterns {
                path: path.to_owned(),
                list: name,
                count: raw.len(),
            });
        }
        let parsed: Result<Vec<Pattern>, BadPattern> = raw.iter().map(|raw| Pattern::parse(raw)).collect();
        let what = parsed.map_err(|err| ConfigError::Pattern {
            path: path.to_owned(),
            list: name,
            err,
        })?;
        Ok(vec![said(what, path)])
    };
    let timeout = raw.timeout_max_seconds.map(|seconds| {
        let bounds = (1, muster_shared::wire::TIMEOUT_SECONDS_MAX.into());
        bounded(path, "policy.timeout_max_seconds", seconds, bounds)
    });
    Ok(Policy {
        allow: list("allow", &raw.allow)?,
        deny: list("deny", &raw.deny)?,
        builtins: raw.builtins.map(|on| said(on, path)),
        timeout_max: timeout
            .transpose()?
            .map(|seconds| said(Duration::from_secs(seconds), path)),
        rules: rules_of(&raw.rule, path)?
            .into_iter()
            .map(|rule| said(rule, path))
            .collect(),
    })
}

fn said<T>(what: T, path: &Path) -> Said<T> {
    let file = path.to_owned();
    Said { what, file }
}
