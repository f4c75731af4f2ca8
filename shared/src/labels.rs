//! Labels: what a node is called by, and the rules their text obeys.
//!
//! A key under [`NODE_PREFIX`] was said by the node itself. Operators and bootstrap tokens own every other key,
//! so that a node can never grant itself a label that a selector trusts.

use std::collections::BTreeMap;

/// The keys that a node may speak for itself.
pub const NODE_PREFIX: &str = "node/";

/// The longest label key, in bytes.
pub const LABEL_KEY_LEN_MAX: usize = 63;
/// The longest label value, in bytes.
pub const LABEL_VALUE_LEN_MAX: usize = 255;
/// How many labels one node may carry.
pub const LABELS_PER_NODE_MAX: usize = 64;

/// How many of them a node may say of itself.
pub const LABELS_SAID_MAX: usize = LABELS_PER_NODE_MAX / 2;

pub type Labels = BTreeMap<String, String>;

/// A label that would not be found again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadLabel {
    #[error(
        "{0:?} is not a label key: 1 to {LABEL_KEY_LEN_MAX} of a-z A-Z 0-9 . _ / -, first a letter or digit"
    )]
    Key(String),
    #[error("the value of label {0:?} is longer than {LABEL_VALUE_LEN_MAX} bytes or has a control character")]
    Value(String),
    #[error("label {0:?} begins with {NODE_PREFIX:?}, which only a node may say of itself")]
    Reserved(String),
    #[error("{0} labels are more than the {LABELS_PER_NODE_MAX} a node may carry")]
    TooMany(usize),
    #[error("{0} labels are more than the {LABELS_SAID_MAX} that a node may say of itself")]
    TooManySaid(usize),
    #[error("{0:?} is not a label: write key=value")]
    NoEquals(String),
    #[error("label {0:?} is given twice")]
    Twice(String),
}

pub(crate) const fn is_key_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'/' | b'-')
}

/// # Errors
/// When the text breaks the rule that the error states.
pub fn check_key(key: &str) -> Result<(), BadLabel> {
    let sound = (1..=LABEL_KEY_LEN_MAX).contains(&key.len())
        && key.bytes().all(is_key_byte)
        && key.as_bytes()[0].is_ascii_alphanumeric();
    if sound {
        Ok(())
    } else {
        Err(BadLabel::Key(key.to_owned()))
    }
}

/// # Errors
/// When key or value break the rule that the error states.
pub fn check(key: &str, value: &str) -> Result<(), BadLabel> {
    check_key(key)?;
    if value.len() > LABEL_VALUE_LEN_MAX || value.chars().any(char::is_control) {
        return Err(BadLabel::Value(key.to_owned()));
    }
    Ok(())
}

/// Checks labels that an operator or a bootstrap token gives.
///
/// # Errors
/// When a label breaks a rule or speaks under the node's own prefix.
pub fn check_given(labels: &Labels) -> Result<(), BadLabel> {
    for (key, value) in labels {
        check(key, value)?;
        if key.starts_with(NODE_PREFIX) {
            return Err(BadLabel::Reserved(key.clone()));
        }
    }
    if labels.len() > LABELS_PER_NODE_MAX {
        Err(BadLabel::TooMany(labels.len()))
    } else {
        Ok(())
    }
}

/// Checks a label that a node says of itself, by its key without the prefix.
///
/// # Errors
/// When key or value break the rule that the error states, once the prefix is before the key.
pub fn check_said(key: &str, value: &str) -> Result<(), BadLabel> {
    check(&format!("{NODE_PREFIX}{key}"), value)
}

/// Parses `key=value,key=value`, as command lines carry labels.
///
/// # Errors
/// When a part is not a label, or a key comes twice.
pub fn parse_list(raw: &str) -> Result<Labels, BadLabel> {
    let mut labels = Labels::new();
    for part in raw.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| BadLabel::NoEquals(part.to_owned()))?;
        check(key, value)?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(BadLabel::Twice(key.to_owned()));
        }
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_labels_as_typed() {
        let labels = parse_list("role=web, tier=1,empty=").unwrap();
        assert_eq!(labels["role"], "web");
        assert_eq!(labels["empty"], "");
        assert_eq!(parse_list("role").unwrap_err(), BadLabel::NoEquals("role".into()));
        assert_eq!(parse_list("a=1,a=2").unwrap_err(), BadLabel::Twice("a".into()));
        assert!(matches!(parse_list("=x").unwrap_err(), BadLabel::Key(_)));
    }

    #[test]
    fn nobody_but_the_node_speaks_under_its_prefix() {
        let labels = parse_list("node/os=debian").unwrap();
        assert_eq!(
            check_given(&labels).unwrap_err(),
            BadLabel::Reserved("node/os".into())
        );
    }
}
