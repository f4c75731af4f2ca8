//! The nodes that a request names.

use muster_shared::{
    ids::NodeId,
    selector::{BadSelector, Selector},
};

/// Exactly one of three ways.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Selector { text: String, selector: Selector },
    Node(NodeId),
    All,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BadTarget {
    #[error("name the target in exactly one way: selector, node_id, or all: true")]
    NotOne,
    #[error("node_id {0:?} is not a UUID")]
    NodeId(String),
    #[error("the selector is malformed: {0}")]
    Selector(#[from] BadSelector),
}

impl Target {
    pub(crate) fn parse(selector: Option<&str>, node: Option<&str>, all: bool) -> Result<Self, BadTarget> {
        match (selector, node, all) {
            (Some(text), None, false) => Ok(Self::Selector {
                text: text.to_owned(),
                selector: Selector::parse(text)?,
            }),
            (None, Some(node), false) => node
                .parse()
                .map(Self::Node)
                .map_err(|_| BadTarget::NodeId(node.to_owned())),
            (None, None, true) => Ok(Self::All),
            _ => Err(BadTarget::NotOne),
        }
    }

    pub(crate) const fn selector(&self) -> Option<&Selector> {
        match self {
            Self::Selector { selector, .. } => Some(selector),
            Self::Node(_) | Self::All => None,
        }
    }

    pub(crate) const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Node(node) => Some(*node),
            Self::Selector { .. } | Self::All => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Selector { text, .. } => Some(text),
            Self::Node(_) | Self::All => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_in_exactly_one_way() {
        let node = Some("0198c5f0-0000-7000-8000-000000000000");
        for (selector, node, all, sound) in [
            (Some("a=b"), None, false, true),
            (None, node, false, true),
            (None, None, true, true),
            (None, None, false, false),
            (Some("a=b"), node, false, false),
            (Some("a=b"), None, true, false),
            (None, node, true, false),
        ] {
            assert_eq!(Target::parse(selector, node, all).is_ok(), sound);
        }
        assert!(matches!(
            Target::parse(None, Some("x"), false),
            Err(BadTarget::NodeId(_))
        ));
        assert!(matches!(
            Target::parse(Some(" "), None, false),
            Err(BadTarget::Selector(_))
        ));
    }
}
