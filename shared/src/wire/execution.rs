//! What became of a dispatch, on each node, and how it is taken back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ActionKind, Base64, Dropped, Parameters, Rollout};
use crate::{
    ids::{ActionName, Digest, DomainId, ExecutionId, NodeId, ProjectId},
    status::Status,
    time::Timestamp,
};

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
    pub exit_code: Option<i64>,
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
}
