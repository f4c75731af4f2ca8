//! What control sends on a node's stream, each in a signed envelope.

use serde::{Deserialize, Serialize};

use super::{ActionKind, Parameters, SigningKeyInfo};
use crate::{
    envelope::Addressed,
    ids::{ActionName, Digest, EventId, ExecutionId, NodeId},
    time::Timestamp,
};

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
    /// Who asked for it, for the node's own policy to judge: `token:…` or `user:…`. A control that is older does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
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
