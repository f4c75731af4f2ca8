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
    dispatch::DispatchError,
    enroll::EnrollError,
    error_chain,
    gates::NoSurvivor,
    instances::InstanceError,
    integrity::ManifestError,
    keys::chance,
    nsk::NskError,
    oidc::{BadToken, Fault, OidcError},
    outputs::{NoRoom, OutputError, UploadRefused},
    rate::TooOften,
    rolling::PauseError,
    store::{Passing, StoreError},
    target::BadTarget,
};

/// How long a caller turned away for capacity should wait before it asks again, in seconds.
const RETRY_AFTER_SECONDS: u32 = 5;

/// One code of a problem, and with which statuses it comes.
pub(super) struct Code {
    pub(super) name: &'static str,
    pub(super) statuses: &'static [u16],
    pub(super) meaning: &'static str,
}

const fn code(name: &'static str, statuses: &'static [u16], meaning: &'static str) -> Code {
    Code {
        name,
        statuses,
        meaning,
    }
}

/// Every code there is. Clients decide by them: a code is never renamed, and one that is not here is never sent.
#[rustfmt::skip]
pub(super) const CODES: &[Code] = &[
    code("action_not_declared", &[400], "No node of the cohort declares the action."),
    code("action_not_found", &[404], "No node of the project declares the action."),
    code("bootstrap_token_expired", &[401], "The bootstrap token has expired."),
    code("bootstrap_token_invalid", &[401], "There is no such bootstrap token."),
    code("bootstrap_token_revoked", &[401], "The bootstrap token was revoked."),
    code("bootstrap_token_used", &[401], "The bootstrap token has enrolled as many nodes as it may."),
    code("builtin_action_duplicate", &[422], "A builtin is declared twice, or under the name of a hook."),
    code("builtin_action_invalid", &[422], "A builtin has no name that an action can have, or there are too many."),
    code("busy", &[503], "Too much waits to be stored; ask again."),
    code("callback_token_mismatch", &[403], "The report does not carry the token of its invocation."),
    code("capacity_exceeded", &[429], "The domain has as many live executions as it may."),
    code("caveat_unsupported", &[400], "Tuples with caveats are not supported."),
    code("cohort_mismatch", &[422], "Another number of nodes is left after the gates than was expected."),
    code("cursor_binding_mismatch", &[403], "The cursor was given to another caller, or for another list or other filters."),
    code("declared_hook_duplicate", &[400], "A hook is declared twice."),
    code("declared_hook_invalid", &[400], "A hook has no name that an action can have, or there are too many."),
    code("declared_output_too_large", &[413], "The declared output is larger than this control takes."),
    code("domain_not_found", &[404], "There is no such domain, or the caller may not see it."),
    code("execution_already_terminal", &[409], "The invocation has ended and stays as it is."),
    code("execution_not_found", &[404], "There is no such execution."),
    code("group_cycle", &[400], "The group would be nested in itself."),
    code("group_too_deep", &[400], "Groups would be nested too deep."),
    code("hook_integrity_violation", &[409], "The hook differs from its baseline on every node that could have run it."),
    code("idempotency_key_reuse", &[422], "The idempotency key was used for another request."),
    code("inline_output_too_large", &[413], "Inline output is larger than its limit; upload it."),
    code("internal_error", &[500], "The request could not be served; the cause is in the log of control."),
    code("invalid_action", &[400], "The text cannot name an action."),
    code("invalid_body", &[400], "The body is not what the operation expects."),
    code("invalid_connected", &[400], "It is neither true nor false."),
    code("invalid_created_after", &[400], "The text is no time."),
    code("invalid_created_before", &[400], "The text is no time, or none after created_after."),
    code("invalid_cursor", &[400], "The cursor is not one that this list gave this caller."),
    code("invalid_deliver_within", &[400], "The time for delivery is not within its bounds."),
    code("invalid_domain_id", &[400], "No domain is named, or what names it is no UUID."),
    code("invalid_execution_id", &[400], "What names the execution is no UUID."),
    code("invalid_idempotency_key", &[400], "The idempotency key is not one."),
    code("invalid_instance", &[400], "What names the daemon and those before it are no UUIDs, or too many."),
    code("invalid_kind", &[400], "There is no such kind."),
    code("invalid_label", &[400], "A label breaks the rules for labels."),
    code("invalid_limit", &[400], "The limit is not within its bounds."),
    code("invalid_name", &[400], "The name breaks the rules for names."),
    code("invalid_node_id", &[400], "What names the node is no UUID."),
    code("invalid_order", &[400], "There is no such order."),
    code("invalid_output", &[400], "The report names another object than the one that was offered."),
    code("invalid_overlap", &[400], "The overlap is longer than it may be."),
    code("invalid_parameters", &[400], "The parameters are larger than they may be, or not what any node of the cohort takes."),
    code("invalid_path", &[400], "A part of the path is not UTF-8."),
    code("invalid_project_id", &[400], "No project is named, or what names it is no UUID."),
    code("invalid_query", &[400], "The query names something twice or that is not known here, or is not UTF-8."),
    code("invalid_reason", &[400], "The reason says nothing, or is longer than it may be."),
    code("invalid_relation", &[400], "The resource has no such relation."),
    code("invalid_resource", &[400], "The text is no resource."),
    code("invalid_rollout", &[400], "The rollout has no steps, or steps that make no sense for this cohort."),
    code("invalid_state_transition", &[409], "The reported status does not follow the one at which the invocation rests."),
    code("invalid_status", &[400], "There is no such status."),
    code("invalid_subject", &[400], "The text is no subject."),
    code("invalid_target", &[400], "The target is not named in exactly one way, or is no UUID."),
    code("invalid_timeout", &[400], "The timeout is not within its bounds."),
    code("invalid_token_id", &[400], "What names the token is no UUID."),
    code("invalid_ttl", &[400], "The time to live is not within its bounds."),
    code("invalid_tuple_id", &[400], "What names the tuple is no UUID."),
    code("invalid_uses", &[400], "The number of uses is not within its bounds."),
    code("issuer_unavailable", &[503], "The issuer of the token cannot be asked for its keys."),
    code("invalid_violation_id", &[400], "What names the violation is no UUID."),
    code("key_rotation_not_due", &[409], "The node's key is not to be changed now."),
    code("last_operator", &[400, 409], "No token would be left that operates the domain."),
    code("malformed_selector", &[400], "The selector stops making sense at `position`."),
    code("method_not_allowed", &[405], "The path does not answer this method; `Allow` says which it does."),
    code("metrics_not_public", &[403], "Metrics are shown to the machine of control alone."),
    code("no_rollout", &[409], "The execution has no rollout."),
    code("node_cloned", &[409], "Another daemon has this node's identity; this one runs on a copy of it."),
    code("node_contested", &[503], "Another daemon with this node's identity was connected a moment ago; ask again."),
    code("node_id_mismatch", &[403], "The NSK belongs to another node."),
    code("node_name_exhausted", &[409], "Too many nodes have this hostname."),
    code("node_not_found", &[404], "There is no such node, or the caller may not act on it."),
    code("not_found", &[404], "There is nothing at this path."),
    code("nothing_held", &[409], "The rollout holds nothing back any more."),
    code("nsk_node_mismatch", &[403], "The NSK belongs to a node that the execution does not address."),
    code("nsk_revoked", &[401], "The node was decommissioned."),
    code("nsk_rotated", &[401], "The NSK was changed, and this one has ended."),
    code("output_changed", &[502], "The output store holds other bytes than those that were believed."),
    code("output_differs", &[409], "The invocation has another output already."),
    code("output_lost", &[502], "The output store has lost the output."),
    code("output_not_found", &[404], "The invocation has no output."),
    code("output_store_failed", &[502], "The output store did not give the output."),
    code("output_store_full", &[507], "The output store has no room for the upload."),
    code("output_upload_failed", &[502], "The output store gave no upload URL, or has not what the report says."),
    code("permission_denied", &[403], "The caller lacks the relation that this needs."),
    code("project_not_found", &[404], "There is no such project, or the caller may not see it."),
    code("range_not_satisfiable", &[416], "The output has no such bytes."),
    code("rate_limited", &[429], "The caller asks too often; `Retry-After` says when to come back."),
    code("refused_hook_invalid", &[400], "A refused file has no name, or too much to say, or there are too many."),
    code("request_body_too_large", &[413], "The body is larger than it may be."),
    code("request_timeout", &[408], "The body did not come in time."),
    code("resource_not_found", &[404], "There is no such resource in the project or its domain."),
    code("selector_empty_cohort", &[422], "No node that the caller may act on matches."),
    code("target_not_found", &[404], "The execution does not address this node."),
    code("token_expired", &[401], "The token has expired."),
    code("token_name_taken", &[409], "Another operator token of the domain has this name."),
    code("token_not_found", &[404], "There is no such token, or the caller may not see it."),
    code("token_not_live", &[409], "The token is revoked or expired."),
    code("token_revoked", &[401], "The operator token was revoked."),
    code("token_rotated", &[401], "The operator token was rotated, and its former secret has ended."),
    code("too_many_targets", &[422], "More nodes are left after the gates than were allowed."),
    code("tuple_not_found", &[404], "There is no such tuple that the caller may delete."),
    code("unauthenticated", &[401], "The token is missing, or none of this kind."),
    code("upload_digest_mismatch", &[400], "The upload has other bytes than were declared."),
    code("upload_length_mismatch", &[400], "The upload has another length than was declared."),
    code("upload_url_invalid", &[403], "The upload URL was not signed by this control, or has expired."),
    code("violation_not_found", &[404], "There is no such violation of a node that the caller may act on."),
    code("violation_resolved", &[409], "The violation was resolved."),
];

/// Whether the table has this code with this status.
fn is_listed(status: StatusCode, name: &str) -> bool {
    CODES
        .iter()
        .any(|code| code.name == name && code.statuses.contains(&status.as_u16()))
}

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
        debug_assert!(is_listed(status, code), "{code} with {status} is not in CODES");
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
            headers.insert(header::WWW_AUTHENTICATE, challenge(this.invalid_token));
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

impl From<OidcError> for ApiError {
    fn from(err: OidcError) -> Self {
        let text = err.to_string();
        match err {
            OidcError::Bad(bad) => {
                let code = match bad {
                    BadToken::Expired(_) => "token_expired",
                    BadToken::Malformed
                    | BadToken::Algorithm
                    | BadToken::Type
                    | BadToken::Critical
                    | BadToken::NoKeyId
                    | BadToken::UnknownKey
                    | BadToken::KeyMismatch
                    | BadToken::Signature
                    | BadToken::Issuer
                    | BadToken::Audience
                    | BadToken::NoExpiry
                    | BadToken::NotYet(_)
                    | BadToken::Bound
                    | BadToken::Subject
                    | BadToken::Groups
                    | BadToken::TooManyGroups(_)
                    | BadToken::GroupsElsewhere => "unauthenticated",
                };
                Self {
                    invalid_token: Some(bad.fault()),
                    ..Self::unauthorized(code, text)
                }
            }
            OidcError::Unavailable => Self::new(StatusCode::SERVICE_UNAVAILABLE, "issuer_unavailable", text),
        }
    }
}

impl ApiError {
    fn not_now(why: Passing) -> Self {
        let why = match why {
            Passing::NoTurn => "too much is waiting to be stored; try again",
            Passing::NoRoom => {
                "the disk of the database is full: nothing was stored; make room there, and try again"
            }
            Passing::Away => {
                "the database is not there, or went away before it answered; try again, with the same Idempotency-Key"
            }
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", why)
    }
}

impl From<StoreError> for ApiError {
    fn from(err: StoreError) -> Self {
        let Some(why) = err.passes() else {
            return Self::internal(&err);
        };
        log::error!("The database did not do its work: {}", error_chain(&err));
        Self::not_now(why)
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
            DispatchError::BadDeliverWithin(_) => Self::bad_request("invalid_deliver_within", text),
            DispatchError::BadRollout(_) => Self::bad_request("invalid_rollout", text),
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

impl From<PauseError> for ApiError {
    fn from(err: PauseError) -> Self {
        let text = err.to_string();
        match err {
            PauseError::NoSuchExecution(_) => Self::not_found("execution_not_found", text),
            PauseError::PermissionDenied => Self::denied("permission_denied", "insufficient_relation", text),
            PauseError::NoRollout(_) => Self::new(StatusCode::CONFLICT, "no_rollout", text),
            PauseError::NothingHeld(_) => Self::new(StatusCode::CONFLICT, "nothing_held", text),
            PauseError::Store(err) => err.into(),
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
            CallbackError::Upload(OutputError::NoRoom(full)) => {
                log::error!("An upload is turned away: {}", error_chain(&full));
                Self::new(StatusCode::BAD_GATEWAY, "output_upload_failed", full.to_string())
            }
            CallbackError::Upload(err) => {
                log::error!("An upload URL could not be made: {}", error_chain(&err));
                Self::new(StatusCode::BAD_GATEWAY, "output_upload_failed", text)
            }
            CallbackError::Unbelieved(OutputError::TooLarge { .. }) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "declared_output_too_large", text)
            }
            CallbackError::Unbelieved(err) => {
                log::warn!("An output is not there as reported: {}", error_chain(&err));
                Self::new(StatusCode::BAD_GATEWAY, "output_upload_failed", text)
            }
            CallbackError::OutputDiffers { .. } => Self::new(StatusCode::CONFLICT, "output_differs", text),
            CallbackError::Gone => Self::not_found("execution_not_found", text),
            CallbackError::Raced => Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text),
            CallbackError::NotNow(why) => Self::not_now(why),
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
            ManifestError::Label(_) => Self::bad_request("invalid_label", text),
            ManifestError::Store(err) => err.into(),
            ManifestError::Chance(err) => Self::internal(&err),
        }
    }
}

impl From<InstanceError> for ApiError {
    fn from(err: InstanceError) -> Self {
        let text = err.to_string();
        match err {
            InstanceError::Cloned => Self::new(StatusCode::CONFLICT, "node_cloned", text),
            InstanceError::Contested => Self {
                retry_after_seconds: Some(1),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "node_contested", text)
            },
            InstanceError::Store(err) => err.into(),
        }
    }
}

impl From<NskError> for ApiError {
    fn from(err: NskError) -> Self {
        let text = err.to_string();
        match err {
            NskError::NotDue => Self::new(StatusCode::CONFLICT, "key_rotation_not_due", text),
            NskError::Store(err) => err.into(),
            NskError::Chance(err) => Self::internal(&err),
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
            UploadRefused::WrongDigest { .. } => Self::bad_request("upload_digest_mismatch", text),
            UploadRefused::CutOff => Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", text),
            UploadRefused::NoRoom(NoRoom::Full { .. }) => {
                log::error!("An upload is turned away: {text}");
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "output_store_full", text)
            }
            UploadRefused::Io(err) | UploadRefused::NoRoom(NoRoom::Io(err)) if is_full(&err) => {
                log::error!("An upload is turned away: {err}");
                let text = "the disk of the output store is full";
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "output_store_full", text)
            }
            UploadRefused::Io(err) | UploadRefused::NoRoom(NoRoom::Io(err)) => Self::internal(&err),
        }
    }
}

fn is_full(err: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    [StorageFull, QuotaExceeded].contains(&err.kind())
}

impl From<OutputError> for ApiError {
    fn from(err: OutputError) -> Self {
        match &err {
            // It was there, or nothing would refer to it.
            OutputError::NotFound(_) => {
                log::error!("An output is gone: {}", error_chain(&err));
                Self::new(StatusCode::BAD_GATEWAY, "output_lost", err.to_string())
            }
            OutputError::OtherBytes { .. } => {
                log::error!("An output is not given out: {}", error_chain(&err));
                Self::new(StatusCode::BAD_GATEWAY, "output_changed", err.to_string())
            }
            OutputError::Io(_)
            | OutputError::Refused(_)
            | OutputError::NoRoom(_)
            | OutputError::TooLarge { .. } => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_code_and_no_other() {
        let document = include_str!("../../../docs/problems.md");
        let written: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
        let rows: Vec<String> = CODES
            .iter()
            .map(|code| {
                let statuses: Vec<String> = code.statuses.iter().map(u16::to_string).collect();
                format!("| `{}` | {} | {} |", code.name, statuses.join(", "), code.meaning)
            })
            .collect();
        assert_eq!(written, rows);
    }
}
