//! Pages: a limit, and a cursor that only this service can make, for the caller it was made for.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Serialize, de::DeserializeOwned};

use super::problem::ApiError;
use crate::keys::{Purpose, ServerKey};

pub(super) const LIMIT_DEFAULT: u32 = 50;
pub(super) const LIMIT_MAX: u32 = 200;

pub(super) fn parse_limit(raw: Option<&str>) -> Result<u32, ApiError> {
    let Some(raw) = raw else { return Ok(LIMIT_DEFAULT) };
    raw.parse()
        .ok()
        .filter(|n| (1..=LIMIT_MAX).contains(n))
        .ok_or_else(|| {
            ApiError::bad_request(
                "invalid_limit",
                format!("limit is {raw:?}; it must be from 1 to {LIMIT_MAX}"),
            )
        })
}

/// The `scope` binds a cursor to its caller and its list.
pub(super) fn seal<T: Serialize>(key: &ServerKey, scope: &str, position: &T) -> String {
    let payload = serde_json::to_vec(position).expect("a position is always JSON");
    let tag = key.mac(Purpose::Cursor, &bound(scope, &payload));
    URL_SAFE_NO_PAD.encode([&tag[..], &payload].concat())
}

pub(super) fn open<T: DeserializeOwned>(key: &ServerKey, scope: &str, raw: &str) -> Result<T, ApiError> {
    let invalid = || ApiError::bad_request("invalid_cursor", "the cursor is not one that this list gave you");
    let bytes = URL_SAFE_NO_PAD.decode(raw).map_err(|_| invalid())?;
    let (tag, payload) = bytes.split_at_checked(32).ok_or_else(invalid)?;
    if !key.holds(Purpose::Cursor, &bound(scope, payload), tag) {
        return Err(invalid());
    }
    serde_json::from_slice(payload).map_err(|_| invalid())
}

fn bound(scope: &str, payload: &[u8]) -> Vec<u8> {
    [scope.as_bytes(), b"\0", payload].concat()
}

/// Cuts a list that was read one longer than the page, and says where the next page begins.
pub(super) fn paginate<T>(
    mut items: Vec<T>,
    limit: u32,
    position: impl Fn(&T) -> String,
) -> (Vec<T>, Option<String>) {
    let limit = limit as usize;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = more.then(|| items.last().map(position)).flatten();
    (items, next)
}
