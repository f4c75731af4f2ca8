//! Which refusal of which use case is which problem.

use axum::http::StatusCode;

use super::ApiError;
use crate::{
    access::AccessError,
    authz::{BadShape, BadTuple},
    callback::{self, CallbackError},
    cancel::CancelError,
    dispatch::DispatchError,
    enroll::EnrollError,
    error_chain,
    gates::NoSurvivor,
    instances::InstanceError,
    integrity::ManifestError,
    nsk::NskError,
    oidc::{BadToken, OidcError},
    outputs::{NoRoom, OutputError, UploadRefused},
    rate::TooOften,
    rolling::PauseError,
    store::{Passing, StoreError},
    streams::TooManyWatches,
    target::BadTarget,
};

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
            Passing::TooLong => {
                "the database takes longer than 20 s for this; ask for less: a shorter time, or with other filters"
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

impl From<TooManyWatches> for ApiError {
    fn from(err: TooManyWatches) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_watches", err.to_string())
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
            DispatchError::ParametersTooLarge(_) | DispatchError::ParametersWithNul(_) => {
                Self::bad_request("invalid_parameters", text)
            }
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
            CallbackError::Refused(refused) => {
                Self::new(StatusCode::CONFLICT, callback::code_of(refused), text)
            }
            CallbackError::Contradicts { refused, correlation } => {
                Self::new(StatusCode::CONFLICT, callback::code_of(refused), text).correlated_by(correlation)
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
            // A daemon keeps what it has to tell, and tells it once somebody has looked into the others.
            ManifestError::TooManyViolations(_) => Self {
                retry_after_seconds: Some(60),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_violations", text)
            },
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
            EnrollError::Decommissioned { .. } => {
                Self::new(StatusCode::CONFLICT, "node_decommissioned", text)
            }
            EnrollError::NameExhausted(_) => Self::new(StatusCode::CONFLICT, "node_name_exhausted", text),
            EnrollError::TooOften(err) => err.into(),
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
            UploadRefused::Url(_) => Self::denied("upload_url_invalid", "out_of_scope", text),
            UploadRefused::WrongLength { .. } => Self::bad_request("upload_length_mismatch", text),
            UploadRefused::WrongDigest { .. } => Self::bad_request("upload_digest_mismatch", text),
            UploadRefused::Replaced => Self::new(StatusCode::CONFLICT, "upload_replaced", text),
            UploadRefused::CutOff | UploadRefused::TooSlow { .. } => {
                Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", text)
            }
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
