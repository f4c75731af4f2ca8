//! The node's own say over what control may ask of it. Nothing that comes from control can change it.
//!
//! Deny wins over allow. Without any `allow` everything is allowed that is not denied; once one file has an `allow`, only
//! what some `allow` names is, so that an empty one allows nothing.

use std::{path::PathBuf, time::Duration};

use muster_shared::{ids::ACTION_NAME_LEN_MAX, wire::ActionKind};

/// How many patterns one list of one file may have.
pub(crate) const PATTERNS_MAX: usize = 256;

/// The name of an action, or `*` and `?` in place of parts of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pattern(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} matches no action name: 1 to {ACTION_NAME_LEN_MAX} of a-z A-Z 0-9 . _ - * ?")]
pub(crate) struct BadPattern(String);

impl Pattern {
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
}

impl Policy {
    /// The rule that forbids an action, with the file it stands in.
    pub(crate) fn denial(&self, kind: ActionKind, name: &str) -> Option<String> {
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
        Self {
            allow: self.allow,
            deny: self.deny,
            builtins: later.builtins.or(self.builtins),
            timeout_max: later.timeout_max.or(self.timeout_max),
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
        assert_eq!(policy.denial(ActionKind::Hook, "backup"), None);
        assert_eq!(policy.denial(ActionKind::Builtin, "disk.usage"), None);
        assert_eq!(
            policy.denial(ActionKind::Builtin, "ping").unwrap(),
            "policy.deny \"p*\" in /c"
        );
        assert_eq!(
            policy.denial(ActionKind::Hook, "other").unwrap(),
            "policy.allow in /a and /b does not name it"
        );
    }

    #[test]
    fn no_allow_allows_everything_and_an_empty_one_nothing() {
        assert_eq!(Policy::default().denial(ActionKind::Hook, "x"), None);
        let nothing = Policy {
            allow: vec![said("/a", &[])],
            ..Policy::default()
        };
        assert!(nothing.denial(ActionKind::Hook, "x").is_some());
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
        assert!(both.denial(ActionKind::Hook, "a").is_some() && both.denial(ActionKind::Hook, "b").is_some());
        assert!(
            both.denial(ActionKind::Builtin, "ping")
                .unwrap()
                .contains("builtins = false in /a")
        );
        assert!(both.denial(ActionKind::Hook, "ping").is_none());
        let on = Policy {
            builtins: off(true, "/c"),
            ..Policy::default()
        };
        assert_eq!(first.then(on).denial(ActionKind::Builtin, "ping"), None);
    }
}
