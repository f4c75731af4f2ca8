//! Queries of reads: only names that the operation knows, each at most once. A filter that was mistyped must not match
//! everything in silence.

use std::{fmt::Display, str::FromStr};

use axum::{
    extract::{FromRequestParts, Query},
    http::request::Parts,
};
use muster_shared::{selector::Selector, time::Timestamp};
use serde::de::DeserializeOwned;

use super::problem::ApiError;
use crate::{control::Shared, target::BadTarget};

/// The query of a request. `T` refuses fields that it does not know.
pub(super) struct StrictQuery<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Shared> for StrictQuery<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let read = Query::from_request_parts(parts, control).await;
        let Query(query) = read.map_err(|err| {
            // The words of the parser, without those of the framework around them.
            let text = err.to_string();
            let why = text.rsplit("query string: ").next().unwrap_or(&text).to_owned();
            ApiError::bad_request("invalid_query", why)
        })?;
        Ok(Self(query))
    }
}

/// A value of the query, if it is given and what it must be.
pub(super) fn parsed<T: FromStr<Err: Display>>(
    code: &'static str,
    raw: Option<&str>,
) -> Result<Option<T>, ApiError> {
    raw.map(|raw| {
        raw.parse()
            .map_err(|err: T::Err| ApiError::bad_request(code, err.to_string()))
    })
    .transpose()
}

/// The same for ids, whose parsers do not say what they were given.
pub(super) fn id<T: FromStr>(code: &'static str, raw: Option<&str>) -> Result<Option<T>, ApiError> {
    raw.map(|raw| {
        raw.parse()
            .map_err(|_| ApiError::bad_request(code, format!("{raw:?} is not a UUID")))
    })
    .transpose()
}

pub(super) fn selector(raw: Option<&str>) -> Result<Option<Selector>, ApiError> {
    let parsed = raw.map(|text| Selector::parse(text).map_err(BadTarget::Selector));
    Ok(parsed.transpose()?)
}

pub(super) fn one_of(code: &'static str, given: Option<&str>, known: &[&str]) -> Result<(), ApiError> {
    match given {
        Some(given) if !known.contains(&given) => Err(ApiError::bad_request(
            code,
            format!("{given:?} is none of {}", known.join(", ")),
        )),
        Some(_) | None => Ok(()),
    }
}

/// From the first instant on, and before the second.
pub(super) type Window = (Option<Timestamp>, Option<Timestamp>);

pub(super) fn window(after: Option<&str>, before: Option<&str>) -> Result<Window, ApiError> {
    let after: Option<Timestamp> = parsed("invalid_created_after", after)?;
    let before: Option<Timestamp> = parsed("invalid_created_before", before)?;
    if let (Some(after), Some(before)) = (after, before)
        && before <= after
    {
        return Err(ApiError::bad_request(
            "invalid_created_before",
            format!("created_before is {before}, and created_after {after}: nothing lies between them"),
        ));
    }
    Ok((after, before))
}
