//! Nodes as operators see and change them, and as they speak for themselves.

use serde::{Deserialize, Serialize};

use super::{Base64, NodeAction, Parameters};
#[cfg(feature = "openapi")]
use crate::schema;
use crate::{
    ids::{DomainId, NodeId, ProjectId},
    labels::Labels,
    time::Timestamp,
};

/// The header in which a daemon names its instance: every start is another.
pub const INSTANCE_HEADER: &str = "muster-instance";

/// The header in which it names those that it follows, parted by commas.
pub const INSTANCES_BEFORE_HEADER: &str = "muster-instances-before";

/// How many it names.
pub const INSTANCES_NAMED_MAX: usize = 32;

/// A node in `GET /v1/nodes`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct NodeSummary {
    pub id: NodeId,
    pub name: String,
    pub domain_id: DomainId,
    pub kind: String,
    pub created_at: Timestamp,
    /// Ours, as all below.
    pub project_id: ProjectId,
    pub labels: Labels,
    /// Whether this control holds the node's event stream now.
    pub connected: bool,
    #[serde(default)]
    pub last_seen_at: Option<Timestamp>,
    /// The node's clock minus control's, in milliseconds, as last measured.
    #[serde(default)]
    pub clock_skew_ms: Option<i64>,
    #[serde(default)]
    pub binary_version: Option<String>,
    pub hostname: String,
    /// What an operator should know of the node's identity, such as that a copy of it was refused. Gone once the node's key was
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warned_at: Option<Timestamp>,
    /// Since when the node has its key.
    #[serde(default)]
    pub nsk_since: Option<Timestamp>,
    /// When an operator asked for another, which the node does not use yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsk_rotation_asked_at: Option<Timestamp>,
    #[serde(default)]
    pub actions: Vec<NodeAction>,
}

/// `POST /v1/projects/{project_id}/nodes/rotate-keys`: the named nodes change their keys. Exactly one of `selector`,
/// `node_id` and `all: true` names them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schemars(transform = schema::exactly_one_target))]
pub struct RotateKeysRequest {
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
pub struct RotateKeysResponse {
    pub asked: Vec<NodeId>,
}

/// `PATCH /v1/nodes/{id}/labels`, answered with the [`NodeSummary`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelPatch {
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::labels_given"))]
    pub set: Labels,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::label_keys_given"))]
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HeartbeatRequest {
    pub client_now: Timestamp,
    pub binary_checksum: Base64,
    pub binary_version: String,
    pub nat_summary: Parameters,
    /// Ours, as all below: what the machine is called now. It may have changed since the enrolment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// The number of the set of signing keys that the node has durably.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_serial: Option<u64>,
    /// The last restore of control after which the node has told again what it did; see [`Restored`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_again: Option<Timestamp>,
}

/// Control was made again from a backup, and has forgotten what came later. A node tells again, once, what it did since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Restored {
    pub restored_at: Timestamp,
    pub taken_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HeartbeatResponse {
    pub accepted_at: Timestamp,
    /// Whether the node should send its capabilities again.
    pub reconcile: bool,
    /// Whether the node should fetch a new NSK.
    pub rotate_keys: bool,
    /// Ours: whether another daemon with the node's identity was there a moment ago, so that this one gets no work yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contested: bool,
    /// Ours: the restore after which the node has still to tell again what it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
}

/// `POST /v1/nodes/{id}/nsk`, answered 201: the key that counts once it was used.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct NewNsk {
    pub nsk: String,
}
