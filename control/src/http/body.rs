//! Request bodies: read to a limit, then parsed, each failure with its own answer.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::problem::ApiError;

/// The largest body of an operator's request. Parameters have their own, smaller limit.
pub(super) const OPERATOR_BODY_BYTES_MAX: usize = 128 * 1024;
/// The largest callback: inline output as base64, error text and some air.
pub(super) const CALLBACK_BODY_BYTES_MAX: usize = 64 * 1024;
/// The largest report of capabilities or violations: as many hooks as a node may have, each with a schema of its own.
pub(super) const REPORT_BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How long a caller may take to send it.
const BODY_READ_MAX: Duration = Duration::from_secs(30);

pub(super) async fn read_json<T: DeserializeOwned>(body: Body, bytes_max: usize) -> Result<T, ApiError> {
    parse_json(&read_bytes(body, bytes_max).await?)
}

/// For a request that says enough without a body.
pub(super) async fn read_json_or_default<T: DeserializeOwned + Default>(
    body: Body,
    bytes_max: usize,
) -> Result<T, ApiError> {
    let bytes = read_bytes(body, bytes_max).await?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    parse_json(&bytes)
}

pub(super) async fn read_bytes(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let read = Limited::new(body, bytes_max).collect();
    let read = tokio::time::timeout(BODY_READ_MAX, read).await.map_err(|_| {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            format!("the body did not come within {} s", BODY_READ_MAX.as_secs()),
        )
    })?;
    let read = read.map_err(|err| {
        if err.is::<LengthLimitError>() {
            ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "request_body_too_large",
                format!("the body of this request may have at most {bytes_max} bytes"),
            )
        } else {
            ApiError::bad_request("invalid_body", "the body was cut off")
        }
    })?;
    Ok(read.to_bytes())
}

pub(super) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|err| {
        ApiError::bad_request("invalid_body", format!("the body is not what is expected: {err}"))
    })
}
