//! The wire shapes of tokens and relation tuples. Those under `/v1/authz` are published.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{DomainId, ProjectId, RowId},
    labels::Labels,
    time::Timestamp,
};

/// An operator's token, without its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperatorToken {
    pub id: RowId,
    pub name: String,
    pub domain_id: DomainId,
    pub created_at: Timestamp,
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<Timestamp>,
    /// Until when the secret before the last rotation still counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_valid_until: Option<Timestamp>,
}

/// A token with its secret, which is shown this once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperatorTokenSecret {
    #[serde(flatten)]
    pub about: OperatorToken,
    pub token: String,
}

/// `POST /v1/operator-tokens`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateOperatorTokenRequest {
    pub name: String,
    /// Never, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}

/// `POST /v1/operator-tokens/{id}/rotate`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotateTokenRequest {
    /// How long the former secret still counts.
    #[serde(default)]
    pub overlap_seconds: u64,
}

/// A bootstrap token, without its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BootstrapTokenState {
    pub id: RowId,
    pub project_id: ProjectId,
    pub labels: Labels,
    pub uses: u32,
    pub uses_max: u32,
    pub issued_by: String,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

/// Who may what: the subject has the relation to the resource.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RelationTuple {
    pub id: RowId,
    pub subject: String,
    pub relation: String,
    pub resource: String,
    pub created_at: Timestamp,
}

/// `POST /v1/authz/relation-tuples`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RelationTupleCreateRequest {
    pub subject: String,
    pub relation: String,
    pub resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caveat_name: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caveat_context: BTreeMap<String, serde_json::Value>,
}

/// `POST /v1/authz/check`. No tuple has a caveat, so that the context of one changes no answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckRequest {
    pub subject: String,
    pub relation: String,
    pub resource: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caveat_context: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Allowed,
    Denied,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Granted,
    OutOfScope,
    InsufficientRelation,
    CaveatViolation,
    Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckResponse {
    pub decision: Decision,
    pub reason: Reason,
    /// The tuples that decided, as `resource#relation@subject`, from the subject to the resource.
    pub relation_path: Vec<String>,
    pub correlation_id: RowId,
}

/// `GET /v1/auth/config`: how a person may sign in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthConfig {
    /// The issuer whose tokens are accepted beside operator tokens; nothing else is, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcConfig>,
}

/// What a client needs to get a token of the issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OidcConfig {
    pub issuer: String,
    /// What tokens must be made out to.
    pub audience: String,
    /// The client as which `muster login` asks; without one, tokens come from elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    pub scopes: Vec<String>,
    /// The parameter by which the issuer is told the audience, if it has to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience_parameter: Option<AudienceParameter>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AudienceParameter {
    /// RFC 8707.
    Resource,
    /// What some issuers had before there was an RFC.
    Audience,
}

impl AudienceParameter {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resource => "resource",
            Self::Audience => "audience",
        }
    }
}

/// `GET /v1/auth/whoami`: whom control takes the caller for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoAmI {
    pub subject: String,
    /// What the issuer says that it is a member of, as subjects.
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
