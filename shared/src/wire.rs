//! What crosses the wire, as published, and the fields Muster adds.
//!
//! Requests that operators write refuse unknown fields, so that a misspelt one is never silently ignored. Messages
//! between nodes and control tolerate them, so that either end may be newer.

mod action;
mod callback;
mod capabilities;
mod dispatch;
mod enrolment;
mod event;
mod execution;
mod node;
mod rollout;
mod selector_preview;
mod service;
mod violation;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use action::*;
pub use callback::*;
pub use capabilities::*;
pub use dispatch::*;
pub use enrolment::*;
pub use event::*;
pub use execution::*;
pub use node::*;
pub use rollout::*;
pub use selector_preview::*;
pub use service::*;
pub use violation::*;

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

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "{T}Page"))]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

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
