//! Errors as RFC 9457 problems. Only here is known which error is which status (`refusals.rs`); what a caller has no right
//! to see goes to the log, and the wire says nothing of it.

mod codes;
mod refusals;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use muster_shared::{
    ids::RowId,
    time::Timestamp,
    wire::{Dropped, Problem},
};

use crate::{
    audit::{self, Outcome},
    error_chain,
    oidc::Fault,
};
pub(super) use codes::{CODES, Code};

/// How long a caller turned away for capacity should wait before it asks again, in seconds.
const RETRY_AFTER_SECONDS: u32 = 5;

#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    detail: String,
    position: Option<u32>,
    dropped: Vec<Dropped>,
    reason: Option<&'static str>,
    /// Minted when the refusal is written down, else when it is sent.
    correlation: Option<RowId>,
    /// When to ask again, where that is known better than in general.
    retry_after_seconds: Option<u32>,
    /// What is wrong with the token, for the challenge.
    invalid_token: Option<Fault>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        debug_assert!(
            codes::is_listed(status, code),
            "{code} with {status} is not in CODES"
        );
        Self {
            status,
            code,
            detail: detail.into(),
            position: None,
            dropped: Vec::new(),
            reason: None,
            correlation: None,
            retry_after_seconds: None,
            invalid_token: None,
        }
    }

    /// A part that lies outside of the whole.
    pub(crate) fn no_such_part(whole_bytes: u64) -> Self {
        Self::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "range_not_satisfiable",
            format!("the output has {whole_bytes} bytes, and none of those that were asked for"),
        )
    }

    pub(crate) fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub(crate) fn unauthorized(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, code, detail)
    }

    pub(crate) fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    /// A denial of the published shape.
    pub(crate) fn denied(code: &'static str, reason: &'static str, detail: impl Into<String>) -> Self {
        Self {
            reason: Some(reason),
            ..Self::new(StatusCode::FORBIDDEN, code, detail)
        }
    }

    /// Gives it the id that its audit row has too.
    pub(super) fn correlated(self) -> Self {
        self.correlated_by(audit::correlation(Timestamp::now()))
    }

    pub(super) const fn correlated_by(mut self, row: Option<RowId>) -> Self {
        self.correlation = row;
        self
    }

    pub(super) const fn correlation(&self) -> Option<RowId> {
        self.correlation
    }

    pub(super) const fn code(&self) -> &'static str {
        self.code
    }

    /// The words of the refusal, with its code.
    pub(super) fn detail(&self) -> String {
        format!("{}: {}", self.code, self.detail)
    }

    /// What the audit trail calls this refusal of an operation; `None` for what is no evidence: a malformed request,
    /// something that is not there, a service that is busy.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        match self.status {
            StatusCode::FORBIDDEN => Some(Outcome::PermissionDenied),
            StatusCode::CONFLICT
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::PAYLOAD_TOO_LARGE => Some(Outcome::InvariantViolation),
            StatusCode::BAD_REQUEST if self.code == "action_not_declared" => {
                Some(Outcome::InvariantViolation)
            }
            StatusCode::SERVICE_UNAVAILABLE => None,
            status if status.is_server_error() => Some(Outcome::InternalError),
            _ => None,
        }
    }

    /// The cause is logged whole; the caller learns that there was one.
    pub(crate) fn internal(err: &(dyn std::error::Error + 'static)) -> Self {
        log::error!("A request failed: {}", error_chain(err));
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal_error",
            "the request could not be served",
        )
    }
}

impl From<ApiError> for Problem {
    fn from(err: ApiError) -> Self {
        let this = if err.correlation.is_some() {
            err
        } else {
            err.correlated()
        };
        let correlation = this.correlation;
        Self {
            kind: "about:blank".to_owned(),
            title: this.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: this.status.as_u16(),
            detail: this.detail,
            instance: correlation.map_or_else(String::new, |id| format!("urn:uuid:{id}")),
            code: Some(this.code.to_owned()),
            position: this.position.map(|at| at as usize),
            dropped: this.dropped,
            reason: this.reason.map(str::to_owned),
            correlation_id: this.reason.and(correlation).map(|id| id.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, invalid_token) = (self.status, self.invalid_token);
        let seconds = self.retry_after_seconds.unwrap_or(RETRY_AFTER_SECONDS);
        let mut response = (status, Json(Problem::from(self))).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, challenge(invalid_token));
        }
        response
    }
}

/// RFC 6750, section 3.
fn challenge(invalid_token: Option<Fault>) -> HeaderValue {
    invalid_token
        .and_then(|fault| {
            let text = format!(
                "Bearer error=\"invalid_token\", error_description=\"{}\"",
                fault.as_str()
            );
            HeaderValue::from_str(&text).ok()
        })
        .unwrap_or(HeaderValue::from_static("Bearer"))
}
