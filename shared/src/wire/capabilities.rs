//! What a node says it can do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Base64;
#[cfg(feature = "openapi")]
use crate::schema;
use crate::{ids::Digest, labels::Labels, time::Timestamp};

/// How many hooks one node may declare.
pub const HOOKS_PER_NODE_MAX: usize = 128;

/// How many builtins one node may declare.
pub const BUILTINS_PER_NODE_MAX: usize = 128;

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
    #[cfg_attr(feature = "openapi", schemars(with = "crate::ids::ActionName"))]
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
    #[cfg_attr(feature = "openapi", schemars(with = "crate::ids::ActionName"))]
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
