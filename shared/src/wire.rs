//! What crosses the wire, as published, and the fields Muster adds.
//!
//! Requests that operators write refuse unknown fields, so that a misspelt one is never silently ignored. Messages
//! between nodes and control tolerate them, so that either end may be newer.

use std::{collections::BTreeMap, num::NonZeroU32};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use crate::{
    envelope::Addressed,
    ids::{ActionName, Digest, DomainId, EventId, ExecutionId, NodeId, ProjectId, RowId},
    labels::Labels,
    status::Status,
    time::Timestamp,
};

/// Output up to this many bytes travels inside the terminal callback; more goes to the output store.
pub const INLINE_OUTPUT_BYTES_MAX: usize = 16 * 1024;
/// The largest parameter document, in bytes of its JSON form.
pub const PARAMETERS_BYTES_MAX: usize = 64 * 1024;
/// The longest time an execution may take.
pub const TIMEOUT_SECONDS_MAX: u32 = 24 * 60 * 60;
/// The time an execution gets when nobody says how long.
pub const TIMEOUT_SECONDS_DEFAULT: u32 = 5 * 60;
/// The longest error text of a callback, in bytes; the agent cuts longer ones.
pub const ERROR_TEXT_BYTES_MAX: usize = 4096;
/// How many hooks one node may declare.
pub const HOOKS_PER_NODE_MAX: usize = 128;
/// The header that carries the callback token of an invocation.
pub const CALLBACK_TOKEN_HEADER: &str = "muster-callback-token";

/// A parameter document: a JSON object.
pub type Parameters = serde_json::Map<String, serde_json::Value>;

/// Bytes that travel as standard base64.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        STANDARD
            .decode(String::deserialize(d)?)
            .map(Self)
            .map_err(de::Error::custom)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionKind {
    /// Compiled into `musterd`.
    Builtin,
    /// An executable that the node's admin installed.
    Hook,
}

impl ActionKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Hook => "hook",
        }
    }
}

// ---- operators: dispatch and executions

/// `POST /v1/projects/{project_id}/executions:dispatch`, answered 201 with an [`Execution`].
///
/// Exactly one of `selector`, `node_id` and `all: true` names the target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchRequest {
    pub action: String,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ActionKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Ours: every node of the project, said out loud.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Ours: how many nodes must be left after the gates; with another number nothing is dispatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<NonZeroU32>,
    /// Ours: how many nodes may be left after the gates; with more nothing is dispatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_targets: Option<NonZeroU32>,
}

/// `POST /v1/projects/{project_id}/executions:preview`: what a [`DispatchRequest`] would be admitted as now. Nothing is
/// written, and what the dispatch would be refused with is the answer here too.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DispatchPreview {
    pub project_id: ProjectId,
    pub domain_id: DomainId,
    pub action: ActionName,
    #[serde(rename = "type")]
    pub kind: ActionKind,
    pub timeout_seconds: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// How many nodes it would be sent to.
    pub target_count: u64,
    /// Those nodes, by name; at most [`PREVIEW_TARGETS_MAX`] of them.
    pub targets: Vec<PreviewTarget>,
    /// Nodes that the target names and a gate dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

/// Ours: names one dispatch of one caller for 24 hours, so that it can be sent again and is made once.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// Ours: `true` on the answer to a dispatch that was made before.
pub const IDEMPOTENT_REPLAY_HEADER: &str = "idempotent-replay";

/// How many nodes a preview lists.
pub const PREVIEW_TARGETS_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewTarget {
    pub node_id: NodeId,
    pub node_name: String,
}

/// One dispatch. Lists leave `targets` empty and give `target_counts`; a single read gives both.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    pub project_id: ProjectId,
    pub domain_id: DomainId,
    pub action: ActionName,
    #[serde(rename = "type")]
    pub kind: ActionKind,
    pub status: Status,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub targets: Vec<ExecutionTarget>,
    /// Ours, as all below: how many targets rest in each status.
    #[serde(default)]
    pub target_counts: BTreeMap<Status, u64>,
    pub timeout_seconds: u32,
    pub expires_at: Timestamp,
    pub requested_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    /// Nodes that a gate dropped; only the answers to a dispatch and to a cancel carry it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

/// How many nodes one gate dropped, and some of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dropped {
    /// `insufficient_relation`, `action_not_declared`, `hook_integrity_violation` or `invalid_parameters`.
    pub reason: String,
    pub count: u64,
    pub sample: Vec<NodeId>,
}

/// One invocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecutionTarget {
    pub node_id: NodeId,
    pub status: Status,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_ref: Option<OutputRef>,
    /// Ours, as all below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// All that the action wrote, kept or cut, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// When the node was first asked to cancel this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OutputRef {
    Inline {
        inline_bytes: Base64,
    },
    ObjectStore {
        bucket: String,
        key: String,
        sha256: Digest,
    },
}

/// `POST /v1/projects/{project_id}/executions/{execution_id}/cancel`, answered 200 with a [`CancelResponse`]. Without a
/// body, or without `node_id`, every target is meant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CancelResponse {
    /// As it is now, without output.
    pub execution: Execution,
    /// What became of each target that was meant.
    pub outcomes: Vec<CancelOutcome>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CancelOutcome {
    pub node_id: NodeId,
    pub outcome: CancelEffect,
}

/// What a cancel did to one target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelEffect {
    /// The node had not taken it, and will not run it.
    Cancelled,
    /// The node has it and is asked, or was asked before. It is `cancelled` once the node says so.
    Asked,
    /// It had ended before.
    Settled,
}

impl CancelEffect {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Asked => "asked",
            Self::Settled => "settled",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// One row of an execution's timeline; the data of an `invocation` event on
/// `GET /v1/projects/{project_id}/executions/{execution_id}/events` (`id:` is [`TimelineEvent::id`], so that
/// `Last-Event-ID` goes on where a reader stopped). The stream ends with one `settled` event whose data is the
/// [`Execution`] without output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimelineEvent {
    pub id: i64,
    pub node_id: NodeId,
    pub node_name: String,
    pub from: Option<Status>,
    pub to: Status,
    pub at: Timestamp,
    /// News that came after the invocation was settled: kept as evidence, without effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

// ---- operators: nodes, hooks, tokens

/// A node in `GET /v1/nodes`.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    #[serde(default)]
    pub actions: Vec<NodeAction>,
}

/// What a node says it can do, and whether control would let it.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// `PATCH /v1/nodes/{id}/labels`, answered with the [`NodeSummary`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelPatch {
    #[serde(default)]
    pub set: Labels,
    #[serde(default)]
    pub remove: Vec<String>,
}

/// One hook on one node, in `GET /v1/projects/{project_id}/hooks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
#[serde(deny_unknown_fields)]
pub struct ApproveRequest {
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApproveResponse {
    /// The nodes whose baseline is now this digest.
    pub approved: Vec<NodeId>,
    /// The nodes of the cohort that show another digest, or have no such hook.
    pub unchanged: Vec<NodeId>,
}

/// `POST /v1/projects/{project_id}/bootstrap-tokens`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssueTokenRequest {
    #[serde(default)]
    pub labels: Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}

/// The answer, and the only time the token is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IssuedToken {
    pub id: RowId,
    pub token: String,
    pub project_id: ProjectId,
    pub labels: Labels,
    pub uses: u32,
    pub expires_at: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SelectorOp {
    Eq,
    Neq,
    In,
    NotIn,
    Exists,
    Absent,
    And,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelectorAst {
    pub op: SelectorOp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<Vec<SelectorAst>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectorPreviewRequest {
    pub expression: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SelectorPreviewResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ast: Option<SelectorAst>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SelectorError>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SelectorError {
    pub position: usize,
    pub message: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VersionInfo {
    pub version: String,
    pub commit: String,
    pub date: Timestamp,
}

// ---- nodes: enrolment, heartbeat, capabilities, violations

/// `POST /v1/nodes:enroll` with the bootstrap token as bearer, answered 201 with an [`EnrollResponse`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// Minted by the node before it asks: the same token with the same id is the same enrolment, so that a lost answer
    /// costs neither a use of the token nor a second node.
    pub enrollment_id: Uuid,
    pub hostname: String,
    pub machine_id: String,
    /// What the node says of itself; each key is stored under [`crate::labels::NODE_PREFIX`].
    #[serde(default)]
    pub labels: Labels,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrollResponse {
    pub node_id: NodeId,
    pub name: String,
    pub domain_id: DomainId,
    pub project_id: ProjectId,
    /// The Node Secret Key, shown this once.
    pub nsk: String,
    pub signing_keys: Vec<SigningKeyInfo>,
    /// The CA to pin, in PEM.
    pub ca_pem: String,
    /// What an admin should know, such as another node with the same machine-id.
    #[serde(default)]
    pub notices: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SigningKeyInfo {
    pub keyid: String,
    /// An Ed25519 public key: base64 of 32 bytes.
    pub public_key: Base64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeartbeatRequest {
    pub client_now: Timestamp,
    pub binary_checksum: Base64,
    pub binary_version: String,
    pub nat_summary: Parameters,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeartbeatResponse {
    pub accepted_at: Timestamp,
    /// Whether the node should send its capabilities again.
    pub reconcile: bool,
    pub rotate_keys: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CapabilityManifest {
    pub binary_version: String,
    pub binary_checksum: Base64,
    #[serde(default)]
    pub declared_hooks: Vec<DeclaredHook>,
    #[serde(default)]
    pub builtin_actions: Vec<BuiltinAction>,
    /// Ours: files of the hooks directory that are no hooks, and why; at most [`HOOKS_PER_NODE_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_hooks: Vec<RefusedHook>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeclaredHook {
    pub name: String,
    /// Of the hook as a whole: see [`hook_digest`].
    pub checksum: Digest,
    /// Ours, as all below: of the file alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_checksum: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_checksum: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<HookManifest>,
    /// The rule of the node's own policy that forbids it. A dispatch to it is refused there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
}

/// The digest by which a hook is pinned and approved: that of its file when there is no manifest, else one over the
/// digests of both, so that neither can change without the other noticing.
#[must_use]
pub fn hook_digest(file: Digest, manifest: Option<Digest>) -> Digest {
    let Some(manifest) = manifest else { return file };
    let mut both = crate::ids::Digester::default();
    both.update(b"muster/hook-and-manifest/v1\0");
    both.update(file.as_bytes());
    both.update(manifest.as_bytes());
    both.finish()
}

/// A file of the hooks directory that is no hook.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedHook {
    pub name: String,
    pub why: String,
}

/// The longest reason of a refused hook that control keeps, in bytes.
pub const REFUSED_TEXT_BYTES_MAX: usize = 1024;

/// What the manifest of a hook says that others than its node need to know.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HookManifest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_default_seconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_max_seconds: Option<u32>,
    /// It changes nothing, and runs beside anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// What it changes. Empty: anything, so that it runs alone among those that change something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinity: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BuiltinAction {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<BuiltinParameter>,
    /// Ours: the rule of the node's own policy that forbids it. A dispatch to it is refused there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BuiltinParameter {
    pub name: String,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default)]
    pub required: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CapabilityResponse {
    pub accepted_at: Timestamp,
    pub fields_changed: Vec<String>,
    pub host_key_changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ViolationsRequest {
    pub violations: Vec<ViolationReport>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedKind {
    BinaryChecksum,
    HookChecksum,
    SshHostKey,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DetectedBy {
    StartupScan,
    Inotify,
    PreDispatch,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ViolationReport {
    pub kind: ReportedKind,
    pub detected_by: DetectedBy,
    pub artifact_id: String,
    #[serde(default)]
    pub observed_checksum: Option<Base64>,
    #[serde(default)]
    pub expected_checksum: Option<Base64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ViolationsResponse {
    pub accepted_at: Timestamp,
    pub violation_count: u32,
}

/// A row of `GET /v1/integrity-violations`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ViolationRow {
    pub id: RowId,
    pub node_id: NodeId,
    pub domain_id: DomainId,
    /// `binary`, `hook` or `host_key`.
    pub kind: String,
    /// `open`, `acknowledged` or `resolved`.
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

// ---- nodes: the stream and the callbacks

/// The payload of an `action_request` event. Without its expiry and its token nothing runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActionRequest {
    pub event_id: EventId,
    pub occurred_at: Timestamp,
    pub execution_id: ExecutionId,
    pub node_id: NodeId,
    pub action: ActionName,
    #[serde(rename = "type")]
    pub kind: ActionKind,
    #[serde(default)]
    pub parameters: Option<Parameters>,
    pub timeout_seconds: u32,
    pub callback_url: String,
    /// Ours, as all below: the instant from which the node must not start this any more.
    pub expires_at: Timestamp,
    pub callback_token: String,
    /// The digest that control holds as the hook's baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_digest: Option<Digest>,
}

impl Addressed for ActionRequest {
    const PAYLOAD_TYPE: &'static str = "application/vnd.muster.action-request+json";
    fn audience(&self) -> NodeId {
        self.node_id
    }
    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// The payload of an `action_cancel` event: an operator takes an execution back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActionCancel {
    pub event_id: EventId,
    pub occurred_at: Timestamp,
    pub execution_id: ExecutionId,
    pub node_id: NodeId,
    pub expires_at: Timestamp,
}

impl Addressed for ActionCancel {
    const PAYLOAD_TYPE: &'static str = "application/vnd.muster.action-cancel+json";
    fn audience(&self) -> NodeId {
        self.node_id
    }
    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// The payload of a `hook_baseline_updated` event: an operator approved a digest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BaselineUpdated {
    pub event_id: EventId,
    pub occurred_at: Timestamp,
    pub node_id: NodeId,
    pub expires_at: Timestamp,
    pub hook: ActionName,
    pub digest: Digest,
    /// When the operator approved it: an older approval never undoes a newer one.
    pub approved_at: Timestamp,
}

impl Addressed for BaselineUpdated {
    const PAYLOAD_TYPE: &'static str = "application/vnd.muster.hook-baseline-updated+json";
    fn audience(&self) -> NodeId {
        self.node_id
    }
    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// `POST /v1/nodes/{id}/executions/{exec_id}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Callback {
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_output_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<CallbackOutput>,
}

impl Callback {
    #[must_use]
    pub const fn of(status: Status) -> Self {
        Self {
            status,
            exit_code: None,
            error: None,
            declared_output_bytes: None,
            output: None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CallbackOutput {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<Base64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallbackResponse {
    pub status: Status,
    #[serde(default)]
    pub output_upload_url: Option<String>,
    /// Ours: headers that the signature of the URL covers, to be sent with the upload as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub output_upload_headers: BTreeMap<String, String>,
}

/// The key of an invocation's output in the store: the same for every try.
#[must_use]
pub fn output_key(execution: ExecutionId, node: NodeId) -> String {
    format!("{execution}/{node}/output")
}

// ---- errors

/// An RFC 9457 problem. `code` is the stable part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub instance: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Ours: the byte at which a selector stops making sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Ours: nodes that gates dropped, where that explains the refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
    /// Of a denial: `out_of_scope`, `insufficient_relation` or `caveat_violation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_reference_has_the_published_shape() {
        let inline = OutputRef::Inline {
            inline_bytes: Base64(b"hi\n".to_vec()),
        };
        assert_eq!(
            serde_json::to_value(&inline).unwrap(),
            serde_json::json!({"kind": "inline", "inline_bytes": "aGkK"})
        );
        let object = OutputRef::ObjectStore {
            bucket: "b".into(),
            key: "e/n/output".into(),
            sha256: Digest::of(b""),
        };
        assert_eq!(
            serde_json::to_value(&object).unwrap(),
            serde_json::json!({"kind": "object_store", "bucket": "b", "key": "e/n/output",
                "sha256": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="})
        );
    }

    #[test]
    fn a_misspelt_field_of_a_dispatch_is_an_error() {
        assert!(serde_json::from_str::<DispatchRequest>(r#"{"action":"ping","selecter":"a=b"}"#).is_err());
    }

    #[test]
    fn a_callback_of_the_published_client_parses() {
        let callback: Callback = serde_json::from_str(
            r#"{"status":"failed","exit_code":null,"error":null,"output":{"inline":"AA==","future":1}}"#,
        )
        .unwrap();
        assert_eq!(callback.output.unwrap().inline, Some(Base64(vec![0])));
        assert_eq!(callback.exit_code, None);
    }
}
