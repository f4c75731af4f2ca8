//! Errors as RFC 9457 problems. The only module that knows which error is which status; what a caller has no right to
//! see goes to the log, and the wire says nothing of it.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use muster_shared::{
    ids::RowId,
    status::Refused,
    time::Timestamp,
    wire::{Dropped, Problem},
};

use crate::{
    access::AccessError,
    audit::Outcome,
    authz::{BadShape, BadTuple},
    callback::CallbackError,
    cancel::CancelError,
    dispatch::{BadTarget, DispatchError},
    enroll::EnrollError,
    error_chain,
    gates::NoSurvivor,
    integrity::ManifestError,
    keys::chance,
    outputs::{OutputError, UploadRefused},
    rate::TooOften,
    store::StoreError,
};

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
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            position: None,
            dropped: Vec::new(),
            reason: None,
            correlation: None,
            retry_after_seconds: None,
        }
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
    pub(super) fn correlated(mut self) -> Self {
        self.correlation = chance().ok().map(|chance| RowId::mint(Timestamp::now(), chance));
        self
    }

    pub(super) const fn correlation(&self) -> Option<RowId> {
        self.correlation
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

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let this = if self.correlation.is_some() {
            self
        } else {
            self.correlated()
        };
        let correlation = this.correlation;
        let problem = Problem {
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
        };
        let mut response = (this.status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if this.status == StatusCode::TOO_MANY_REQUESTS || this.status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = this.retry_after_seconds.unwrap_or(RETRY_AFTER_SECONDS);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if this.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(err: StoreError) -> Self {
        if let StoreError::Sql(sqlx::Error::PoolTimedOut) = err {
            log::error!("The database did not get a turn in time");
            return Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "too much is waiting to be stored; try again",
            );
        }
        Self::internal(&err)
    }
}

impl From<TooOften> for ApiError {
    fn from(err: TooOften) -> Self {
        Self {
            retry_after_seconds: u32::try_from(err.wait_seconds()).ok(),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", err.to_string())
        }
    }
}

impl From<BadTarget> for ApiError {
    fn from(err: BadTarget) -> Self {
        match &err {
            BadTarget::Selector(bad) => Self {
                position: u32::try_from(bad.position).ok(),
                ..Self::bad_request("malformed_selector", err.to_string())
            },
            BadTarget::NotOne | BadTarget::NodeId(_) => Self::bad_request("invalid_target", err.to_string()),
        }
    }
}

impl From<DispatchError> for ApiError {
    fn from(err: DispatchError) -> Self {
        let text = err.to_string();
        match err {
            DispatchError::BadTarget(target) => target.into(),
            DispatchError::BadAction(_) => Self::bad_request("invalid_action", text),
            DispatchError::BadTimeout(_) => Self::bad_request("invalid_timeout", text),
            DispatchError::ParametersTooLarge(_) => Self::bad_request("invalid_parameters", text),
            DispatchError::ParametersRefused { dropped, .. } => Self {
                dropped,
                ..Self::bad_request("invalid_parameters", text)
            },
            DispatchError::NoSurvivor { why, dropped, .. } => {
                let refusal = match why {
                    NoSurvivor::InvalidParameters => Self::bad_request("invalid_parameters", text),
                    NoSurvivor::HookIntegrityViolation => {
                        Self::new(StatusCode::CONFLICT, "hook_integrity_violation", text)
                    }
                    NoSurvivor::ActionNotDeclared => Self::bad_request("action_not_declared", text),
                    NoSurvivor::PermissionDenied => {
                        Self::denied("permission_denied", "insufficient_relation", text)
                    }
                    NoSurvivor::EmptyCohort => {
                        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "selector_empty_cohort", text)
                    }
                };
                Self { dropped, ..refusal }
            }
            // Both 422, as the cohort that is empty: the request is sound, and the fleet is not what it takes it for.
            DispatchError::CohortMismatch { dropped, .. } => Self {
                dropped,
                ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "cohort_mismatch", text)
            },
            DispatchError::TooManyTargets { dropped, .. } => Self {
                dropped,
                ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "too_many_targets", text)
            },
            DispatchError::CapacityExceeded { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "capacity_exceeded", text)
            }
            DispatchError::KeyReused => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reuse", text)
            }
            DispatchError::Store(err) => err.into(),
            DispatchError::Chance(err) => Self::internal(&err),
        }
    }
}

impl From<CancelError> for ApiError {
    fn from(err: CancelError) -> Self {
        let text = err.to_string();
        match err {
            CancelError::NoSuchExecution(_) => Self::not_found("execution_not_found", text),
            CancelError::NoSuchTarget(_) => Self::not_found("target_not_found", text),
            CancelError::PermissionDenied => Self::denied("permission_denied", "insufficient_relation", text),
            CancelError::Store(err) => err.into(),
        }
    }
}

impl From<CallbackError> for ApiError {
    fn from(err: CallbackError) -> Self {
        let text = err.to_string();
        match err {
            CallbackError::InlineOutputTooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "inline_output_too_large", text)
            }
            CallbackError::DeclaredTooLarge { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "declared_output_too_large", text)
            }
            CallbackError::BadOutput { .. } => Self::bad_request("invalid_output", text),
            CallbackError::Refused(Refused::AlreadyTerminal(_)) => {
                Self::new(StatusCode::CONFLICT, "execution_already_terminal", text)
            }
            CallbackError::Refused(Refused::NotAnAdvance { .. }) => {
                Self::new(StatusCode::CONFLICT, "invalid_state_transition", text)
            }
            CallbackError::Upload(err) => {
                log::error!("An upload URL could not be made: {}", error_chain(&err));
                Self::new(StatusCode::BAD_GATEWAY, "output_upload_failed", text)
            }
            CallbackError::Gone => Self::not_found("execution_not_found", text),
            CallbackError::Raced => Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text),
            CallbackError::Store(err) => err.into(),
        }
    }
}

impl From<ManifestError> for ApiError {
    fn from(err: ManifestError) -> Self {
        let text = err.to_string();
        match err {
            ManifestError::HookInvalid(_) | ManifestError::TooManyHooks(_) => {
                Self::bad_request("declared_hook_invalid", text)
            }
            ManifestError::HookDuplicate(_) => Self::bad_request("declared_hook_duplicate", text),
            ManifestError::TooManyRefused(_) | ManifestError::RefusedInvalid(_) => {
                Self::bad_request("refused_hook_invalid", text)
            }
            ManifestError::BuiltinInvalid(_) | ManifestError::TooManyBuiltins(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "builtin_action_invalid", text)
            }
            ManifestError::BuiltinDuplicate(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "builtin_action_duplicate", text)
            }
            ManifestError::Store(err) => err.into(),
            ManifestError::Chance(err) => Self::internal(&err),
        }
    }
}

impl From<EnrollError> for ApiError {
    fn from(err: EnrollError) -> Self {
        let text = err.to_string();
        match err {
            EnrollError::BadUses(_) => Self::bad_request("invalid_uses", text),
            EnrollError::BadTtl(_) => Self::bad_request("invalid_ttl", text),
            EnrollError::BadLabel(_) => Self::bad_request("invalid_label", text),
            EnrollError::BadHost => Self::bad_request("invalid_body", text),
            EnrollError::TokenInvalid => Self::unauthorized("bootstrap_token_invalid", text),
            EnrollError::TokenRevoked(_) => Self::unauthorized("bootstrap_token_revoked", text),
            EnrollError::TokenExpired(_) => Self::unauthorized("bootstrap_token_expired", text),
            EnrollError::TokenUsed(_) => Self::unauthorized("bootstrap_token_used", text),
            EnrollError::NameExhausted(_) => Self::new(StatusCode::CONFLICT, "node_name_exhausted", text),
            EnrollError::Store(err) => err.into(),
            EnrollError::Chance(err) => Self::internal(&err),
        }
    }
}

impl From<AccessError> for ApiError {
    fn from(err: AccessError) -> Self {
        let text = err.to_string();
        match err {
            AccessError::BadName(_) => Self::bad_request("invalid_name", text),
            AccessError::BadTtl(_) => Self::bad_request("invalid_ttl", text),
            AccessError::BadOverlap(_) => Self::bad_request("invalid_overlap", text),
            AccessError::NameTaken(_) => Self::new(StatusCode::CONFLICT, "token_name_taken", text),
            AccessError::NotLive => Self::new(StatusCode::CONFLICT, "token_not_live", text),
            AccessError::LastOperator => Self::new(StatusCode::CONFLICT, "last_operator", text),
            // The published operation has no 409.
            AccessError::ExcludesLastOperator => Self::bad_request("last_operator", text),
            AccessError::Shape(BadShape::Subject(_)) => Self::bad_request("invalid_subject", text),
            AccessError::Shape(BadShape::Resource(_)) => Self::bad_request("invalid_resource", text),
            AccessError::Tuple(BadTuple::Relation { .. }) => Self::bad_request("invalid_relation", text),
            AccessError::Tuple(BadTuple::Cycle(_)) => Self::bad_request("group_cycle", text),
            AccessError::Tuple(BadTuple::TooDeep(_)) => Self::bad_request("group_too_deep", text),
            AccessError::Caveat => Self::bad_request("caveat_unsupported", text),
            AccessError::NoSuchResource(_) => Self::not_found("resource_not_found", text),
            AccessError::OfTheDomain(_) => Self::denied("permission_denied", "insufficient_relation", text),
            AccessError::Store(err) => err.into(),
            AccessError::Chance(err) => Self::internal(&err),
        }
    }
}

impl From<UploadRefused> for ApiError {
    fn from(err: UploadRefused) -> Self {
        let text = err.to_string();
        match err {
            UploadRefused::BadSignature | UploadRefused::Expired(_) => {
                Self::denied("upload_url_invalid", "out_of_scope", text)
            }
            UploadRefused::WrongLength { .. } => Self::bad_request("upload_length_mismatch", text),
            UploadRefused::CutOff => Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", text),
            UploadRefused::Io(err) => Self::internal(&err),
        }
    }
}

impl From<OutputError> for ApiError {
    fn from(err: OutputError) -> Self {
        match &err {
            OutputError::NotFound(_) => Self::not_found("output_not_found", err.to_string()),
            OutputError::Io(_) | OutputError::Refused(_) => {
                log::error!("An output could not be read: {}", error_chain(&err));
                Self::new(
                    StatusCode::BAD_GATEWAY,
                    "output_store_failed",
                    "the output store did not give the output",
                )
            }
        }
    }
}
