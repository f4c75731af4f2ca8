//! What an action changes, as `database:main:users`: from the broad to the narrow, so that whatever changes the broad
//! changes the narrow too.

use std::{fmt, str::FromStr};

const LEN_MAX: usize = 128;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Affinity(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an affinity: words of a-z A-Z 0-9 . _ - / joined by colons, {LEN_MAX} bytes at most")]
pub(crate) struct BadAffinity(String);

impl FromStr for Affinity {
    type Err = BadAffinity;
    fn from_str(raw: &str) -> Result<Self, BadAffinity> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        let word = |word: &str| !word.is_empty() && word.bytes().all(plain);
        if raw.len() <= LEN_MAX && raw.split(':').all(word) {
            Ok(Self(raw.to_owned()))
        } else {
            Err(BadAffinity(raw.to_owned()))
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Affinity {
    fn touches(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.0.split(':'), other.0.split(':'));
        ours.zip(theirs).all(|(ours, theirs)| ours == theirs)
    }
}

/// What may run beside what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// It changes nothing.
    ReadOnly,
    /// It changes these; none named means that it may change anything.
    Changes(Vec<Affinity>),
}

impl Lane {
    /// What of ours the other one changes too.
    pub(crate) fn shared_with(&self, other: &Self) -> Vec<String> {
        match (self, other) {
            (Self::ReadOnly, _) | (_, Self::ReadOnly) => Vec::new(),
            (Self::Changes(ours), Self::Changes(theirs)) => ours
                .iter()
                .filter(|ours| theirs.iter().any(|theirs| ours.touches(theirs)))
                .map(ToString::to_string)
                .collect(),
        }
    }

    /// Whether the two may run at the same time.
    pub(crate) fn runs_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ReadOnly, _) | (_, Self::ReadOnly) => true,
            (Self::Changes(ours), Self::Changes(theirs)) => {
                let apart = |ours: &Affinity| !theirs.iter().any(|theirs| ours.touches(theirs));
                !ours.is_empty() && !theirs.is_empty() && ours.iter().all(apart)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(affinities: &[&str]) -> Lane {
        Lane::Changes(affinities.iter().map(|raw| raw.parse().unwrap()).collect())
    }

    #[test]
    fn what_touches_the_same_runs_one_after_the_other() {
        for (ours, theirs, beside) in [
            (changes(&["db:main"]), changes(&["db:main"]), false),
            (changes(&["db:main"]), changes(&["db:other"]), true),
            (changes(&["db"]), changes(&["db:main"]), false),
            (changes(&["db"]), changes(&["dbx"]), true),
            (changes(&["a", "b"]), changes(&["c", "b:x"]), false),
            (changes(&[]), changes(&["db"]), false),
            (changes(&[]), changes(&[]), false),
            (Lane::ReadOnly, changes(&[]), true),
            (Lane::ReadOnly, Lane::ReadOnly, true),
        ] {
            assert_eq!(ours.runs_beside(&theirs), beside, "{ours:?} {theirs:?}");
            assert_eq!(theirs.runs_beside(&ours), beside, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn an_affinity_has_words_in_all_its_places() {
        for bad in ["", ":", "a:", ":a", "a b", "ü", &"x".repeat(129)] {
            assert!(bad.parse::<Affinity>().is_err(), "{bad:?}");
        }
    }
}
