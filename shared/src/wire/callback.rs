//! What a node says of an invocation, and what it is answered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Base64;
use crate::{
    ids::{Digest, ExecutionId, NodeId},
    status::{Passed, Status},
};

/// Output up to this many bytes travels inside the terminal callback; more goes to the output store.
pub const INLINE_OUTPUT_BYTES_MAX: usize = 16 * 1024;

/// The longest error text of a callback, in bytes; the agent cuts longer ones.
pub const ERROR_TEXT_BYTES_MAX: usize = 4096;

/// The header that carries the callback token of an invocation.
pub const CALLBACK_TOKEN_HEADER: &str = "muster-callback-token";

/// `POST /v1/nodes/{id}/executions/{exec_id}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Callback {
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
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
    /// What the invocation went through on its way to `status` since control answered last, in its order: taken together
    /// with it, each as a step of its own, as if they had been reported one after another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<Passed>,
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
            passed: Vec::new(),
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

#[cfg(test)]
mod tests {
    use super::*;

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
