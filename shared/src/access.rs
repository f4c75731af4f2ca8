//! The wire shapes of tokens and relation tuples. Those under `/v1/authz` are published.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use crate::schema;
use crate::{
    ids::{DomainId, ProjectId, RowId},
    labels::Labels,
    time::Timestamp,
};

/// The longest name of an operator token.
pub const OPERATOR_TOKEN_NAME_LEN_MAX: usize = 64;
/// How long an operator token may be good for, if not for ever.
pub const OPERATOR_TOKEN_TTL_SECONDS_MIN: u64 = 60;
pub const OPERATOR_TOKEN_TTL_SECONDS_MAX: u64 = 10 * 365 * 24 * 60 * 60;
/// How long a rotated secret may still count.
pub const ROTATION_OVERLAP_SECONDS_MAX: u64 = 7 * 24 * 60 * 60;
/// The longest name of a user or a group.
pub const SUBJECT_NAME_LEN_MAX: usize = 128;

/// An operator's token, without its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OperatorTokenSecret {
    #[serde(flatten)]
    pub about: OperatorToken,
    pub token: String,
}

/// `POST /v1/operator-tokens`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateOperatorTokenRequest {
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = OPERATOR_TOKEN_NAME_LEN_MAX), regex(pattern = r"^[A-Za-z0-9._-]+$")))]
    pub name: String,
    /// Never, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(range(min = OPERATOR_TOKEN_TTL_SECONDS_MIN, max = OPERATOR_TOKEN_TTL_SECONDS_MAX)))]
    pub ttl_seconds: Option<u64>,
}

/// `POST /v1/operator-tokens/{id}/rotate`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RotateTokenRequest {
    /// How long the former secret still counts.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(range(max = ROTATION_OVERLAP_SECONDS_MAX)))]
    pub overlap_seconds: u64,
}

/// A bootstrap token, without its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RelationTuple {
    pub id: RowId,
    pub subject: String,
    pub relation: String,
    pub resource: String,
    pub created_at: Timestamp,
}

/// `POST /v1/authz/relation-tuples`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RelationTupleCreateRequest {
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::subject"))]
    pub subject: String,
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["act", "operator", "excluded", "member"])))]
    pub relation: String,
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::resource"))]
    pub resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caveat_name: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caveat_context: BTreeMap<String, serde_json::Value>,
}

/// `POST /v1/authz/check`. No tuple has a caveat, so that the context of one changes no answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CheckRequest {
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::subject"))]
    pub subject: String,
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["act", "operator", "excluded", "member"])))]
    pub relation: String,
    #[cfg_attr(feature = "openapi", schemars(schema_with = "schema::resource"))]
    pub resource: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caveat_context: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Allowed,
    Denied,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Granted,
    OutOfScope,
    InsufficientRelation,
    CaveatViolation,
    Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CheckResponse {
    pub decision: Decision,
    pub reason: Reason,
    /// The tuples that decided, as `resource#relation@subject`, from the subject to the resource.
    pub relation_path: Vec<String>,
    pub correlation_id: RowId,
}

/// `GET /v1/auth/config`: how a person may sign in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AuthConfig {
    /// The issuer whose tokens are accepted beside operator tokens; nothing else is, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcConfig>,
}

/// What a client needs to get a token of the issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhoAmI {
    pub subject: String,
    /// What the issuer says that it is a member of, as subjects.
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
