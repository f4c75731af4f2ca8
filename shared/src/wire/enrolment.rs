//! How a machine becomes a node.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Base64;
#[cfg(feature = "openapi")]
use crate::schema;
use crate::{
    ids::{DomainId, NodeId, ProjectId, RowId},
    labels::Labels,
    time::Timestamp,
};

/// How many nodes one bootstrap token may enrol.
pub const BOOTSTRAP_USES_MAX: u32 = 10_000;

/// How long a bootstrap token may be good for.
pub const BOOTSTRAP_TTL_SECONDS_MIN: u64 = 5 * 60;

pub const BOOTSTRAP_TTL_SECONDS_MAX: u64 = 24 * 60 * 60;

/// The longest hostname and machine-id that are kept, in bytes.
pub const HOSTNAME_LEN_MAX: usize = 253;

pub const MACHINE_ID_LEN_MAX: usize = 64;

/// `POST /v1/projects/{project_id}/bootstrap-tokens`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IssueTokenRequest {
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::labels_given"))]
    pub labels: Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = BOOTSTRAP_USES_MAX)))]
    pub uses: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(range(min = BOOTSTRAP_TTL_SECONDS_MIN, max = BOOTSTRAP_TTL_SECONDS_MAX)))]
    pub ttl_seconds: Option<u64>,
}

/// The answer, and the only time the token is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct IssuedToken {
    pub id: RowId,
    pub token: String,
    pub project_id: ProjectId,
    pub labels: Labels,
    pub uses: u32,
    pub expires_at: Timestamp,
}

/// `POST /v1/nodes:enroll` with the bootstrap token as bearer, answered 201 with an [`EnrollResponse`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct EnrollRequest {
    /// Minted by the node before it asks: the same token with the same id is the same enrolment, so that a lost answer
    /// costs neither a use of the token nor a second node.
    pub enrollment_id: Uuid,
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = HOSTNAME_LEN_MAX), regex(pattern = schema::NO_CONTROL)))]
    pub hostname: String,
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = MACHINE_ID_LEN_MAX), regex(pattern = schema::NO_CONTROL)))]
    pub machine_id: String,
    /// What the node says of itself; each key is stored under the prefix `node/`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::labels_of_a_node"))]
    pub labels: Labels,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct EnrollResponse {
    pub node_id: NodeId,
    pub name: String,
    pub domain_id: DomainId,
    pub project_id: ProjectId,
    /// The Node Secret Key, shown this once.
    pub nsk: String,
    pub signing_keys: Vec<SigningKeyInfo>,
    /// Ours: the number of this set of keys. Left out, it is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_serial: Option<u64>,
    /// The CA to pin, in PEM.
    pub ca_pem: String,
    /// What an admin should know, such as another node with the same machine-id.
    #[serde(default)]
    pub notices: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SigningKeyInfo {
    pub keyid: String,
    /// An Ed25519 public key: base64 of 32 bytes.
    pub public_key: Base64,
}
