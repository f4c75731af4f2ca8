//! The node's own say over what control may ask of it. Nothing that comes from control can change it.
//!
//! Deny wins over allow. Without any `allow` everything is allowed that is not denied; once one file has an `allow`, only
//! what some `allow` names is, so that an empty one allows nothing. Rules forbid more of what is left, for some callers, some
//! digests or some hours.

pub(crate) mod hours;
pub(crate) mod rule;
pub(crate) mod wall;

use std::{fmt, path::PathBuf, time::Duration};

use muster_shared::{
    ids::{ACTION_NAME_LEN_MAX, Digest},
    wire::{ActionKind, ActionRequest},
};
use serde::{Deserialize, Serialize};

use hours::Now;
use rule::{PolicyRequest, Rule};

/// How many entries one list of one file may have.
pub(crate) const PATTERNS_MAX: usize = 256;
/// How many rules one file may have.
pub(crate) const RULES_MAX: usize = 64;
/// A kind and the longest name of a user.
const CALLER_LEN_MAX: usize = 160;

/// The name of an action or of a caller, or `*` and `?` in place of parts of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pattern(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} matches no action name: 1 to {ACTION_NAME_LEN_MAX} of a-z A-Z 0-9 . _ - * ?")]
pub(crate) struct BadPattern(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} matches no caller: 1 to {CALLER_LEN_MAX} of a-z A-Z 0-9 . _ - @ + / | : * ?")]
pub(crate) struct BadCaller(String);

impl Pattern {
    pub(crate) fn parse_caller(raw: &str) -> Result<Self, BadCaller> {
        let known = |b: u8| b.is_ascii_alphanumeric() || b"._-@+/|:*?".contains(&b);
        if (1..=CALLER_LEN_MAX).contains(&raw.len()) && raw.bytes().all(known) {
            Ok(Self(raw.to_owned()))
        } else {
            Err(BadCaller(raw.to_owned()))
        }
    }

    pub(crate) fn parse(raw: &str) -> Result<Self, BadPattern> {
        let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'*' | b'?');
        if (1..=ACTION_NAME_LEN_MAX).contains(&raw.len()) && raw.bytes().all(known) {
            Ok(Self(raw.to_owned()))
        } else {
            Err(BadPattern(raw.to_owned()))
        }
    }

    /// In time that grows with the product of both lengths: a star that was tried too short is tried one longer.
    fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(&byte) if byte == b'?' || byte == name[n] => {
                    p += 1;
                    n += 1;
                }
                Some(_) | None => match star {
                    Some((at, taken)) => {
                        star = Some((at, taken + 1));
                        (p, n) = (at + 1, taken + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something that one file of the configuration says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Said<T> {
    pub(crate) what: T,
    pub(crate) file: PathBuf,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Policy {
    /// One entry for each file that has an `allow`.
    pub(crate) allow: Vec<Said<Vec<Pattern>>>,
    pub(crate) deny: Vec<Said<Vec<Pattern>>>,
    pub(crate) builtins: Option<Said<bool>>,
    pub(crate) timeout_max: Option<Said<Duration>>,
    pub(crate) rules: Vec<Said<Rule>>,
}

/// One thing that the policy says, for the admin of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) says: String,
    /// Its hours forbid at this moment what it is about.
    pub(crate) denies_now: bool,
}

impl Policy {
    /// The rule that forbids what is asked at this moment, with the file it stands in.
    pub(crate) fn denial(&self, request: &ActionRequest, now: Now) -> Option<String> {
        let asked = PolicyRequest {
            action: request.action.as_str(),
            caller: request.requested_by.as_deref(),
            digest: request.hook_digest,
            now,
        };
        self.denial_by_name(request.kind, asked.action)
            .or_else(|| self.by_rules(|rule| rule.against(&asked)))
    }

    /// The rule that forbids an action to everybody at any time. The digest is that of a hook.
    pub(crate) fn standing_denial(
        &self,
        kind: ActionKind,
        name: &str,
        digest: Option<Digest>,
    ) -> Option<String> {
        self.denial_by_name(kind, name)
            .or_else(|| self.by_rules(|rule| rule.against_always(name, digest)))
    }

    fn by_rules(&self, against: impl Fn(&Rule) -> Option<String>) -> Option<String> {
        self.rules.iter().find_map(|Said { what: rule, file }| {
            let why = against(rule)?;
            Some(format!(
                "policy.rule {:?} in {}: {why}",
                rule.name,
                file.display()
            ))
        })
    }

    /// All that it says.
    pub(crate) fn lines(&self, now: Now) -> Vec<Line> {
        let line = |file: &PathBuf, says: String, denies_now| Line {
            says: format!("{says} in {}", file.display()),
            denies_now,
        };
        let list = |name: &str, said: &Said<Vec<Pattern>>| {
            let names: Vec<&str> = said.what.iter().map(|pattern| pattern.0.as_str()).collect();
            line(&said.file, format!("{name} {names:?}"), false)
        };
        let mut lines: Vec<Line> = self.deny.iter().map(|said| list("deny", said)).collect();
        lines.extend(self.allow.iter().map(|said| list("allow", said)));
        lines.extend(
            self.builtins
                .iter()
                .map(|said| line(&said.file, format!("builtins = {}", said.what), false)),
        );
        lines.extend(self.timeout_max.iter().map(|said| {
            let says = format!("timeout_max_seconds = {}", said.what.as_secs());
            line(&said.file, says, false)
        }));
        lines.extend(self.rules.iter().map(|Said { what: rule, file }| Line {
            says: format!("rule {:?} in {}: {rule}", rule.name, file.display()),
            denies_now: rule.against_now(now).is_some(),
        }));
        lines
    }

    fn denial_by_name(&self, kind: ActionKind, name: &str) -> Option<String> {
        for said in &self.deny {
            if let Some(pattern) = said.what.iter().find(|pattern| pattern.matches(name)) {
                return Some(format!("policy.deny {:?} in {}", pattern.0, said.file.display()));
            }
        }
        if let (ActionKind::Builtin, Some(Said { what: false, file })) = (kind, &self.builtins) {
            return Some(format!("policy.builtins = false in {}", file.display()));
        }
        let named = |said: &Said<Vec<Pattern>>| said.what.iter().any(|pattern| pattern.matches(name));
        if self.allow.is_empty() || self.allow.iter().any(named) {
            return None;
        }
        let files: Vec<String> = self
            .allow
            .iter()
            .map(|said| said.file.display().to_string())
            .collect();
        Some(format!(
            "policy.allow in {} does not name it",
            files.join(" and ")
        ))
    }

    /// What a later file says comes on top: its lists are added, and its single values win.
    pub(crate) fn then(mut self, later: Self) -> Self {
        self.allow.extend(later.allow);
        self.deny.extend(later.deny);
        self.rules.extend(later.rules);
        Self {
            allow: self.allow,
            deny: self.deny,
            builtins: later.builtins.or(self.builtins),
            timeout_max: later.timeout_max.or(self.timeout_max),
            rules: self.rules,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(file: &str, patterns: &[&str]) -> Said<Vec<Pattern>> {
        Said {
            what: patterns.iter().map(|raw| Pattern::parse(raw).unwrap()).collect(),
            file: file.into(),
        }
    }

    #[test]
    fn a_pattern_matches_whole_names() {
        for (pattern, name, matches) in [
            ("ping", "ping", true),
            ("ping", "pings", false),
            ("pin", "ping", false),
            ("disk.*", "disk.usage", true),
            ("disk.*", "disk", false),
            ("*", "x", true),
            ("*.list", "hooks.list", true),
            ("*.list", "hooks.list.x", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "a", true),
            ("?", "ab", false),
            ("a**", "a", true),
        ] {
            assert_eq!(
                Pattern::parse(pattern).unwrap().matches(name),
                matches,
                "{pattern} {name}"
            );
        }
        let slow = Pattern::parse(&"*a".repeat(32)).unwrap();
        assert!(!slow.matches(&"a".repeat(31)));
        for bad in ["", "a b", "a/b", "[ab]", &"x".repeat(65)] {
            assert!(Pattern::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn deny_wins_and_the_rule_is_named_with_its_file() {
        let policy = Policy {
            allow: vec![said("/a", &["backup", "ping"]), said("/b", &["disk.*"])],
            deny: vec![said("/c", &["p*"])],
            ..Policy::default()
        };
        assert_eq!(policy.denial_by_name(ActionKind::Hook, "backup"), None);
        assert_eq!(policy.denial_by_name(ActionKind::Builtin, "disk.usage"), None);
        assert_eq!(
            policy.denial_by_name(ActionKind::Builtin, "ping").unwrap(),
            "policy.deny \"p*\" in /c"
        );
        assert_eq!(
            policy.denial_by_name(ActionKind::Hook, "other").unwrap(),
            "policy.allow in /a and /b does not name it"
        );
    }

    #[test]
    fn no_allow_allows_everything_and_an_empty_one_nothing() {
        assert_eq!(Policy::default().denial_by_name(ActionKind::Hook, "x"), None);
        let nothing = Policy {
            allow: vec![said("/a", &[])],
            ..Policy::default()
        };
        assert!(nothing.denial_by_name(ActionKind::Hook, "x").is_some());
    }

    #[test]
    fn a_later_file_adds_to_lists_and_replaces_single_values() {
        let off = |what, file: &str| {
            Some(Said {
                what,
                file: file.into(),
            })
        };
        let first = Policy {
            deny: vec![said("/a", &["a"])],
            builtins: off(false, "/a"),
            ..Policy::default()
        };
        let second = Policy {
            deny: vec![said("/b", &["b"])],
            ..Policy::default()
        };
        let both = first.clone().then(second);
        assert!(
            both.denial_by_name(ActionKind::Hook, "a").is_some()
                && both.denial_by_name(ActionKind::Hook, "b").is_some()
        );
        assert!(
            both.denial_by_name(ActionKind::Builtin, "ping")
                .unwrap()
                .contains("builtins = false in /a")
        );
        assert!(both.denial_by_name(ActionKind::Hook, "ping").is_none());
        let on = Policy {
            builtins: off(true, "/c"),
            ..Policy::default()
        };
        assert_eq!(first.then(on).denial_by_name(ActionKind::Builtin, "ping"), None);
    }
}
