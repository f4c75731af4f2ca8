//! What crosses the wire, as published, and the fields Muster adds.
//!
//! Requests that operators write refuse unknown fields, so that a misspelt one is never silently ignored. Messages
//! between nodes and control tolerate them, so that either end may be newer.

use std::{collections::BTreeMap, fmt, num::NonZeroU32};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

#[cfg(feature = "openapi")]
use crate::schema;
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
/// The longest time that a dispatch may give its nodes to take it.
pub const DELIVER_WITHIN_SECONDS_MAX: u32 = 24 * 60 * 60;
/// How many waves a rollout may have.
pub const ROLLOUT_WAVES_MAX: usize = 32;
/// How many hooks one node may declare.
pub const HOOKS_PER_NODE_MAX: usize = 128;
/// How many builtins one node may declare.
pub const BUILTINS_PER_NODE_MAX: usize = 128;
/// How many violations one report may carry, as published.
pub const VIOLATIONS_PER_REPORT_MAX: usize = 128;
/// How many nodes one bootstrap token may enrol.
pub const BOOTSTRAP_USES_MAX: u32 = 10_000;
/// How long a bootstrap token may be good for.
pub const BOOTSTRAP_TTL_SECONDS_MIN: u64 = 5 * 60;
pub const BOOTSTRAP_TTL_SECONDS_MAX: u64 = 24 * 60 * 60;
/// The longest hostname and machine-id that are kept, in bytes.
pub const HOSTNAME_LEN_MAX: usize = 253;
pub const MACHINE_ID_LEN_MAX: usize = 64;
/// The header that carries the callback token of an invocation.
pub const CALLBACK_TOKEN_HEADER: &str = "muster-callback-token";

/// The header in which a daemon names its instance: every start is another.
pub const INSTANCE_HEADER: &str = "muster-instance";
/// The header in which it names those that it follows, parted by commas.
pub const INSTANCES_BEFORE_HEADER: &str = "muster-instances-before";
/// How many it names.
pub const INSTANCES_NAMED_MAX: usize = 32;

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

#[cfg(feature = "openapi")]
impl schemars::JsonSchema for Base64 {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Base64".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "contentEncoding": "base64",
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
        })
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schemars(transform = schema::exactly_one_target))]
pub struct DispatchRequest {
    #[cfg_attr(feature = "openapi", schemars(with = "ActionName"))]
    pub action: String,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ActionKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = TIMEOUT_SECONDS_MAX)))]
    pub timeout_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::optional_selector"))]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<NodeId>"))]
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
    /// Ours: how long a node has to take it, apart from `timeout_seconds`, which is then how long it may run. Left out,
    /// both share `timeout_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = DELIVER_WITHIN_SECONDS_MAX)))]
    pub deliver_within_seconds: Option<i64>,
    /// Ours: that it goes out in steps, and when it stops to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutRequest>,
}

/// How a dispatch goes out in steps. At least one of `waves` and `max_concurrency` says what the steps are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// How far each wave reaches into the cohort, in the order of the nodes' names. A wave opens when every target of
    /// the waves before it has ended; one over the whole cohort is added where the last does not reach that far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schemars(length(max = ROLLOUT_WAVES_MAX)))]
    pub waves: Vec<Amount>,
    /// How many targets may be released and not ended at any moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<Amount>,
    /// With more `failed` and `timeout` than this nothing more is released. 0 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<Amount>,
}

/// A count, or a percentage of the cohort such as `"10%"`; as it was asked for, sensible or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a count is expected, or a percentage such as \"10%\"")]
pub enum Amount {
    Count(i64),
    Text(String),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// What a [`RolloutRequest`] comes to for one cohort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RolloutPlan {
    pub waves: Vec<RolloutWave>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    pub max_failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RolloutWave {
    /// As it was asked for.
    pub asked: String,
    /// How many targets of the cohort are in this wave and those before it.
    pub up_to: u32,
    /// How many are in this wave alone.
    pub targets: u32,
}

/// Where the rollout of an execution stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Rollout {
    pub state: RolloutState,
    /// Why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(flatten)]
    pub plan: RolloutPlan,
    /// The wave that was released last, from 1.
    pub wave: u32,
    /// Targets that wait for their release: no node has heard of them, and their time does not run.
    pub held: u64,
    /// Targets that are released and have not ended.
    pub in_flight: u64,
    /// Targets that ended as `failed` or `timeout`.
    pub failed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// What is still held then is cancelled, paused or not.
    pub ends_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// Targets are held, and are released as those before them end.
    Rolling,
    /// Targets are held until it is resumed.
    Paused,
    /// What was held was cancelled.
    Stopped,
    /// Nothing is held any more.
    Done,
}

impl RolloutState {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rolling => "rolling",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Done => "done",
        }
    }
}

/// `POST /v1/projects/{project_id}/executions/{execution_id}/pause` and `…/resume`, answered 200 with the [`Execution`]
/// without output. The body may be left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {}

/// `POST /v1/projects/{project_id}/executions:preview`: what a [`DispatchRequest`] would be admitted as now. Nothing is
/// written, and what the dispatch would be refused with is the answer here too.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_within_seconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutPlan>,
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct PreviewTarget {
    pub node_id: NodeId,
    pub node_name: String,
}

/// How many targets an answer about one execution carries. The others follow in pages.
pub const EXECUTION_TARGETS_MAX: u32 = 1000;

/// One dispatch. Lists leave `targets` empty and give `target_counts`; every other answer gives both, and of the targets
/// the first [`EXECUTION_TARGETS_MAX`] in the order of their nodes' ids.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_within_seconds: Option<u32>,
    /// The latest deadline of a target that was released.
    pub expires_at: Timestamp,
    pub requested_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    /// Nodes that a gate dropped; only the answers to a dispatch and to a cancel carry it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

impl Execution {
    /// How many targets it has, whether they are among [`Self::targets`] or not.
    #[must_use]
    pub fn target_count(&self) -> u64 {
        self.target_counts.values().sum()
    }
}

/// `GET /v1/projects/{project_id}/executions/{execution_id}`: an [`Execution`] with inline output, and its history.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExecutionDetail {
    #[serde(flatten)]
    pub execution: Execution,
    /// Ours, as all below: where the targets go on, at `…/targets?cursor=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets_cursor: Option<String>,
    /// The oldest events, late ones included.
    #[serde(default)]
    pub timeline: Vec<TimelineEvent>,
    /// Where the timeline goes on, at `…/timeline?cursor=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline_cursor: Option<String>,
}

/// How many nodes one gate dropped, and some of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Dropped {
    /// `insufficient_relation`, `action_not_declared`, `hook_integrity_violation` or `invalid_parameters`.
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["insufficient_relation", "action_not_declared", "hook_integrity_violation", "invalid_parameters"])))]
    pub reason: String,
    pub count: u64,
    pub sample: Vec<NodeId>,
}

/// One invocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
    /// How much of the output is kept, or is to be once it was uploaded, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// All that the action wrote, where the node said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_total_bytes: Option<u64>,
    /// The node's limit cut the middle out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_truncated: bool,
    /// Why an output that there is, is not here. It says nothing of how the action ended, and goes when the output comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// When the node was first asked to cancel this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<Timestamp>,
    /// Whether a rollout holds it back: then its node knows nothing of it, and its time does not run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// When it was released. This and the next two are given of what a rollout has released, and of a dispatch with
    /// `deliver_within_seconds`; in any other they are those of the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    /// Until when the node may take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_by: Option<Timestamp>,
    /// Until when it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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

impl OutputRef {
    /// Of the bytes, whichever tier they are in.
    #[must_use]
    pub fn digest(&self) -> Digest {
        match self {
            Self::Inline { inline_bytes } => Digest::of(&inline_bytes.0),
            Self::ObjectStore { sha256, .. } => *sha256,
        }
    }
}

/// `POST /v1/projects/{project_id}/executions/{execution_id}/cancel`, answered 200 with a [`CancelResponse`]. Without a
/// body, or without `node_id`, every target is meant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<NodeId>"))]
    pub node_id: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CancelResponse {
    /// As it is now, without output.
    pub execution: Execution,
    /// What became of each target that was meant.
    pub outcomes: Vec<CancelOutcome>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CancelOutcome {
    pub node_id: NodeId,
    pub outcome: CancelEffect,
}

/// What a cancel did to one target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "{T}Page"))]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// One row of an execution's timeline; the data of an `invocation` event on
/// `GET /v1/projects/{project_id}/executions/{execution_id}/events` (`id:` is [`TimelineEvent::id`], so that
/// `Last-Event-ID` goes on where a reader stopped). Between them, of an execution that rolls out, a `rollout` event whose
/// data is the [`Rollout`] comes whenever that has moved. The stream ends with one `settled` event whose data is the
/// [`Execution`] without output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectorPreviewRequest {
    pub expression: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SelectorPreviewResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ast: Option<SelectorAst>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SelectorError>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SelectorError {
    pub position: usize,
    pub message: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct VersionInfo {
    pub version: String,
    pub commit: String,
    pub date: Timestamp,
}

/// `GET /v1/health`, answered 200 also when something is down: the body says what.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HealthStatus {
    pub status: Health,
    pub checks: Vec<HealthCheck>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HealthCheck {
    pub name: String,
    pub status: Health,
    pub detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Ok,
    Down,
}

// ---- nodes: enrolment, heartbeat, capabilities, violations

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

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CapabilityManifest {
    pub binary_version: String,
    pub binary_checksum: Base64,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(length(max = HOOKS_PER_NODE_MAX)))]
    pub declared_hooks: Vec<DeclaredHook>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(length(max = BUILTINS_PER_NODE_MAX)))]
    pub builtin_actions: Vec<BuiltinAction>,
    /// Ours: what the node says of itself, each key stored under the prefix `node/` in place of all that it said before.
    /// Left out, what it said before stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(schema_with = "schema::optional_labels_of_a_node")
    )]
    pub labels: Option<Labels>,
    /// Ours: files of the hooks directory that are no hooks, and why; at most [`HOOKS_PER_NODE_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schemars(length(max = HOOKS_PER_NODE_MAX)))]
    pub refused_hooks: Vec<RefusedHook>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DeclaredHook {
    #[cfg_attr(feature = "openapi", schemars(with = "ActionName"))]
    pub name: String,
    /// Of the hook as a whole: see [`hook_digest`].
    pub checksum: Digest,
    /// Ours, as all below: of the file alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_checksum: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_checksum: Option<Digest>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "only_an_object"
    )]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<HookManifest>"))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RefusedHook {
    /// At most 255 bytes.
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = 255)))]
    pub name: String,
    /// At most [`REFUSED_TEXT_BYTES_MAX`] bytes.
    #[cfg_attr(feature = "openapi", schemars(length(max = REFUSED_TEXT_BYTES_MAX)))]
    pub why: String,
}

/// A struct whose fields may all be left out would else be read from a list too.
fn only_an_object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let object: Option<serde_json::Map<String, serde_json::Value>> = Option::deserialize(deserializer)?;
    object
        .map(|object| serde_json::from_value(object.into()).map_err(serde::de::Error::custom))
        .transpose()
}

/// The longest reason of a refused hook that control keeps, in bytes.
pub const REFUSED_TEXT_BYTES_MAX: usize = 1024;

/// What the manifest of a hook says that others than its node need to know.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema), schemars(inline))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BuiltinAction {
    #[cfg_attr(feature = "openapi", schemars(with = "ActionName"))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CapabilityResponse {
    pub accepted_at: Timestamp,
    pub fields_changed: Vec<String>,
    pub host_key_changed: bool,
}

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
    pub artifact_id: String,
    #[serde(default)]
    pub observed_checksum: Option<Base64>,
    #[serde(default)]
    pub expected_checksum: Option<Base64>,
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

// ---- nodes: the stream and the callbacks

/// The payload of an `action_request` event. Without its expiry and its token nothing runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
    /// Ours, as all below: the instant from which the node must not take this any more.
    pub expires_at: Timestamp,
    /// The instant at which what was taken in time is to have ended, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_until: Option<Timestamp>,
    pub callback_token: String,
    /// The digest that control holds as the hook's baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_digest: Option<Digest>,
}

impl ActionRequest {
    /// When what was taken in time is to have ended.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.run_until.unwrap_or(self.expires_at)
    }
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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

/// The payload of a `signing_key_rotated` event: the keys that count from now on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SigningKeysRotated {
    pub event_id: EventId,
    pub occurred_at: Timestamp,
    pub node_id: NodeId,
    pub expires_at: Timestamp,
    /// Every change makes it larger: an older set never takes the place of a newer one.
    pub serial: u64,
    pub keys: Vec<SigningKeyInfo>,
    /// The names of keys that counted once.
    #[serde(default)]
    pub retired: Vec<String>,
}

impl Addressed for SigningKeysRotated {
    const PAYLOAD_TYPE: &'static str = "application/vnd.muster.signing-key-rotated+json";
    fn audience(&self) -> NodeId {
        self.node_id
    }
    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// `POST /v1/nodes/{id}/executions/{exec_id}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
    /// Ours, as all below. The digest of what was declared: the store then takes those bytes and no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_output_sha256: Option<Digest>,
    /// All that the action wrote, kept or cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_total_bytes: Option<u64>,
    /// Of a terminal status: why its output is not with it. It may follow with a re-post of the same status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
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
            declared_output_sha256: None,
            output_total_bytes: None,
            output_error: None,
        }
    }

    /// Whether it says that its output lies in the store, which control looks into before it answers.
    #[must_use]
    pub fn names_object(&self) -> bool {
        self.output
            .as_ref()
            .is_some_and(|output| output.object_key.is_some())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CallbackOutput {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<Base64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
