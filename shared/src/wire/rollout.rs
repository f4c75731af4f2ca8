//! A dispatch that goes out in steps.

use std::fmt;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Execution;
use crate::time::Timestamp;

/// How many waves a rollout may have.
pub const ROLLOUT_WAVES_MAX: usize = 32;

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
