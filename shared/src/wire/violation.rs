//! Hooks that were found changed, as they are reported and looked into.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{Digest, DomainId, NodeId, RowId},
    time::Timestamp,
};

/// How many violations one report may carry, as published.
pub const VIOLATIONS_PER_REPORT_MAX: usize = 128;
/// The longest name of what was changed: an index holds it. A hook's has 255 bytes at most.
pub const ARTIFACT_ID_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ViolationsRequest {
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = VIOLATIONS_PER_REPORT_MAX)))]
    pub violations: Vec<ViolationReport>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReportedKind {
    BinaryChecksum,
    HookChecksum,
    SshHostKey,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DetectedBy {
    StartupScan,
    Inotify,
    PreDispatch,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ViolationReport {
    pub kind: ReportedKind,
    pub detected_by: DetectedBy,
    /// From 1 to [`ARTIFACT_ID_BYTES_MAX`] bytes.
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = ARTIFACT_ID_BYTES_MAX)))]
    pub artifact_id: String,
    #[serde(default)]
    pub observed_checksum: Option<Digest>,
    #[serde(default)]
    pub expected_checksum: Option<Digest>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ViolationsResponse {
    pub accepted_at: Timestamp,
    pub violation_count: u32,
}

/// A row of `GET /v1/integrity-violations`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ViolationRow {
    pub id: RowId,
    pub node_id: NodeId,
    pub domain_id: DomainId,
    /// `binary`, `hook` or `host_key`.
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["binary", "hook", "host_key"])))]
    pub kind: String,
    /// `open`, `acknowledged` or `resolved`.
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["open", "acknowledged", "resolved"])))]
    pub status: String,
    pub artifact_id: String,
    pub detected_at: Timestamp,
    #[serde(default)]
    pub acknowledged_at: Option<Timestamp>,
    #[serde(default)]
    pub acknowledged_by_subject: Option<String>,
    #[serde(default)]
    pub acknowledge_reason: Option<String>,
    /// Ours.
    #[serde(default)]
    pub observed: Option<Digest>,
    #[serde(default)]
    pub expected: Option<Digest>,
}

/// `POST /v1/integrity-violations/{id}/acknowledge`, answered 200 with the [`ViolationRow`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeRequest {
    /// 1 to [`ACKNOWLEDGE_REASON_LEN_MAX`] characters.
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = ACKNOWLEDGE_REASON_LEN_MAX)))]
    pub reason: String,
}

/// The longest reason of an acknowledgement, in characters, as published.
pub const ACKNOWLEDGE_REASON_LEN_MAX: usize = 1024;
