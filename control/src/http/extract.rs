//! What axum reads from a path, with refusals of our own shape. Queries are read in `query`.

use axum::{extract::FromRequestParts, http::request::Parts};
use serde::de::DeserializeOwned;

use super::problem::ApiError;

/// The parts of the path that the route names.
pub(super) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(read)| Self(read))
            .map_err(|err| ApiError::bad_request("invalid_path", err.body_text()))
    }
}
