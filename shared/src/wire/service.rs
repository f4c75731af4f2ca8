//! What control says of itself.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

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
