//! Actions and hooks as operators see and approve them.

use serde::{Deserialize, Serialize};

use super::{ActionKind, HookManifest};
#[cfg(feature = "openapi")]
use crate::schema;
use crate::{
    ids::{ActionName, Digest, NodeId},
    time::Timestamp,
};

/// What a node says it can do, and whether control would let it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct NodeAction {
    pub name: ActionName,
    #[serde(rename = "type")]
    pub kind: ActionKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The rule of the node's own policy that forbids it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
}

/// The byte-for-byte comparison of a hook's digest with its baseline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Verified,
    Drift,
    Uncatalogued,
}

impl Verdict {
    #[must_use]
    pub fn of(baseline: Option<Digest>, observed: Digest) -> Self {
        match baseline {
            Some(pinned) if pinned == observed => Self::Verified,
            Some(_) => Self::Drift,
            None => Self::Uncatalogued,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Drift => "drift",
            Self::Uncatalogued => "uncatalogued",
        }
    }
}

/// One hook on one node, in `GET /v1/projects/{project_id}/hooks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HookState {
    /// A file name that is no action name is possible where `refused` says so.
    pub name: String,
    pub node_id: NodeId,
    pub node_name: String,
    /// Of the file and its manifest; none of a file that is refused.
    #[serde(default)]
    pub observed: Option<Digest>,
    #[serde(default)]
    pub baseline: Option<Digest>,
    pub verdict: Verdict,
    #[serde(default)]
    pub pinned_at: Option<Timestamp>,
    /// Why the node takes this file for no hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// One action on one node, in `GET /v1/projects/{project_id}/actions/{name}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ActionOnNode {
    pub node_id: NodeId,
    pub node_name: String,
    #[serde(rename = "type")]
    pub kind: ActionKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Of a hook that has one. What a builtin takes is in `parameters` of the same shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<HookManifest>,
    /// The rule of the node's own policy that forbids it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
}

/// How many nodes one [`ActionDetail`] lists.
pub const ACTION_NODES_MAX: u32 = 1000;

/// `GET /v1/projects/{project_id}/actions/{name}`: what an action is, on each node that declares it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ActionDetail {
    pub name: ActionName,
    /// Whether more nodes declare it than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    pub nodes: Vec<ActionOnNode>,
}

/// `POST /v1/projects/{project_id}/hooks/{name}/approve`: makes `digest` the baseline wherever the named nodes show
/// exactly it. Exactly one of `selector`, `node_id` and `all: true` names the nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schemars(transform = schema::exactly_one_target))]
pub struct ApproveRequest {
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::optional_selector"))]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<NodeId>"))]
    pub node_id: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ApproveResponse {
    /// The nodes whose baseline is now this digest.
    pub approved: Vec<NodeId>,
    /// The nodes of the cohort that show another digest, or have no such hook.
    pub unchanged: Vec<NodeId>,
}
