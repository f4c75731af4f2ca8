//! What an operator asks to be run, and what it would come to.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Execution;
use super::{ActionKind, Parameters, RolloutPlan, RolloutRequest};
use crate::ids::{ActionName, DomainId, NodeId, ProjectId};
#[cfg(feature = "openapi")]
use crate::schema;

/// The largest parameter document, in bytes of its JSON form.
pub const PARAMETERS_BYTES_MAX: usize = 64 * 1024;

/// The longest time an execution may take.
pub const TIMEOUT_SECONDS_MAX: u32 = 24 * 60 * 60;

/// The time an execution gets when nobody says how long.
pub const TIMEOUT_SECONDS_DEFAULT: u32 = 5 * 60;

/// The longest time that a dispatch may give its nodes to take it.
pub const DELIVER_WITHIN_SECONDS_MAX: u32 = 24 * 60 * 60;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_field_of_a_dispatch_is_an_error() {
        assert!(serde_json::from_str::<DispatchRequest>(r#"{"action":"ping","selecter":"a=b"}"#).is_err());
    }
}
