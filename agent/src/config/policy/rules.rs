//! The rules of the policy, `[[policy.rule]]`.

use std::path::Path;

use crate::{
    config::{
        ConfigError,
        file::{RawLists, RawRule},
    },
    policy::{
        PATTERNS_MAX, Pattern, RULES_MAX,
        rule::{Lists, Rule},
    },
};

const NAME_LEN_MAX: usize = 64;

pub(super) fn rules_of(raw: &[RawRule], path: &Path) -> Result<Vec<Rule>, ConfigError> {
    if raw.len() > RULES_MAX {
        return Err(ConfigError::TooManyRules {
            path: path.to_owned(),
            count: raw.len(),
        });
    }
    let checked = |raw: &RawRule| {
        rule_of(raw).map_err(|why| ConfigError::Rule {
            path: path.to_owned(),
            name: raw.name.clone(),
            why,
        })
    };
    raw.iter().map(checked).collect()
}

fn rule_of(raw: &RawRule) -> Result<Rule, String> {
    if raw.name.is_empty() || raw.name.len() > NAME_LEN_MAX || raw.name.chars().any(char::is_control) {
        return Err(format!(
            "its name must be 1 to {NAME_LEN_MAX} bytes without control characters"
        ));
    }
    let actions = raw
        .actions
        .as_deref()
        .map(|raw| list("actions", raw, |raw| said(Pattern::parse(raw))));
    let rule = Rule {
        name: raw.name.clone(),
        actions: actions.transpose()?.unwrap_or_default(),
        callers: lists("callers", &raw.callers, |raw| said(Pattern::parse_caller(raw)))?,
        digests: lists("digests", &raw.digests, |raw| {
            raw.parse().map_err(|err| format!("{raw:?} is no digest: {err}"))
        })?,
        hours: lists("hours", &raw.hours, |raw| said(raw.parse()))?,
    };
    if raw.actions.as_ref().is_some_and(Vec::is_empty) {
        return Err("its actions are none: leave them out if it is for every action".to_owned());
    }
    if rule.callers.is_empty() && rule.digests.is_empty() && rule.hours.is_empty() {
        return Err("it says nothing: give it allow or deny of callers, digests or hours".to_owned());
    }
    Ok(rule)
}

fn lists<T>(
    name: &str,
    raw: &RawLists,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Lists<T>, String> {
    let of = |what: &str, raw: &[String]| list(&format!("{name}.{what}"), raw, &parse);
    Ok(Lists {
        allow: raw.allow.as_deref().map(|raw| of("allow", raw)).transpose()?,
        deny: of("deny", raw.deny.as_deref().unwrap_or_default())?,
    })
}

fn list<T>(name: &str, raw: &[String], parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    if raw.len() > PATTERNS_MAX {
        return Err(format!(
            "{name} has {} entries; the limit is {PATTERNS_MAX}",
            raw.len()
        ));
    }
    raw.iter()
        .map(|raw| parse(raw).map_err(|why| format!("{name}: {why}")))
        .collect()
}

fn said<T, E: std::fmt::Display>(parsed: Result<T, E>) -> Result<T, String> {
    parsed.map_err(|err| err.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::RawPolicy;

    fn read(text: &str) -> Result<Vec<Rule>, String> {
        let raw: RawPolicy = toml::from_str(text).map_err(|err| err.to_string())?;
        rules_of(&raw.rule, Path::new("/a.toml")).map_err(|err| err.to_string())
    }

    #[test]
    fn a_rule_is_read_whole() {
        let text = "[[rule]]\nname = \"night\"\nactions = [\"reboot\"]\ncallers.allow = [\"token:x\"]\n\
                    callers.deny = [\"user:*\"]\nhours.allow = [\"Sat 02:00-05:00\", \"22:00-23:00 UTC\"]\n";
        assert_eq!(
            read(text).unwrap()[0].to_string(),
            "reboot: callers.allow [\"token:x\"], callers.deny [\"user:*\"]; \
             hours.allow [\"Sat 02:00-05:00\", \"22:00-23:00 UTC\"]"
        );
    }

    #[test]
    fn what_is_not_sound_names_file_rule_and_list() {
        let digest = "digests.deny = [\"sha256:12\"]";
        let many = format!("callers.deny = {:?}", vec!["a"; PATTERNS_MAX + 1]);
        for (said, word) in [
            ("", "says nothing"),
            ("actions = [\"a\"]", "says nothing"),
            ("actions = []\nhours.allow = []", "actions are none"),
            ("actions = [\"a b\"]\nhours.allow = []", "actions"),
            (digest, "digests.deny"),
            ("callers.allow = [\"a b\"]", "callers.allow"),
            ("hours.allow = [\"noon\"]", "hours.allow"),
            (many.as_str(), "the limit is 256"),
        ] {
            let why = read(&format!("[[rule]]\nname = \"r\"\n{said}\n")).unwrap_err();
            assert!(
                why.contains(word) && why.contains("policy.rule \"r\" in /a.toml"),
                "{why}"
            );
        }
        assert!(read("[[rule]]\nname = \"\"\nhours.allow = []").is_err());
        assert!(read("[[rule]]\nhours.allow = []").unwrap_err().contains("name"));
        assert!(read("[[rule]]\nname = \"r\"\nhour.allow = []").is_err());
        let rules = "[[rule]]\nname = \"r\"\nhours.allow = []\n".repeat(RULES_MAX + 1);
        assert!(read(&rules).unwrap_err().contains("the limit is 64"));
    }
}
