//! Pages: a limit, and a cursor that only this service can make, bound to the caller and the query it was made for.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use muster_shared::{
    ids::{Digest, DomainId},
    wire::Page,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{auth::Operator, denial::refuse, problem::ApiError};
use crate::{
    control::Control,
    keys::{Purpose, ServerKey},
};

pub(super) const LIMIT_DEFAULT: u32 = 50;
pub(super) const LIMIT_MAX: u32 = 200;
const TAG_LEN: usize = 32;

/// What a list takes that has nothing else to ask.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    pub(super) cursor: Option<String>,
    pub(super) limit: Option<String>,
}

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

/// One list as one caller asks for it. The limit is no part of it: pages may grow and shrink on the way.
pub(super) struct List<'a> {
    control: &'a Control,
    operator: &'a Operator,
    /// Where a cursor of another list is written down as refused.
    place: Option<(DomainId, String)>,
    bound_to: Digest,
}

impl<'a> List<'a> {
    /// `query` is everything that decides what is in the list: its name, where it is, and its filters.
    pub(super) fn new(
        control: &'a Control,
        operator: &'a Operator,
        place: Option<(DomainId, String)>,
        query: &impl Serialize,
    ) -> Self {
        let query =
            serde_json::to_vec(&(&operator.requester.subject, query)).expect("a query is always JSON");
        Self {
            control,
            operator,
            place,
            bound_to: Digest::of(&query),
        }
    }

    /// Where the page begins, if the caller goes on from one that it was given.
    pub(super) async fn position<T: DeserializeOwned>(
        &self,
        raw: Option<&str>,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = raw else { return Ok(None) };
        match open(&self.control.key, &self.bound_to, raw) {
            Ok(position) => Ok(Some(position)),
            Err(refusal) => Err(match &self.place {
                Some((domain, resource)) => {
                    let asked = self.operator.asked();
                    refuse(self.control, asked, *domain, resource.clone(), refusal).await
                }
                None => refusal,
            }),
        }
    }

    /// Cuts rows that were read one more than the page is long, and says where the next page begins.
    pub(super) fn page<T, P: Serialize>(
        &self,
        mut items: Vec<T>,
        limit: u32,
        position: impl Fn(&T) -> P,
    ) -> Page<T> {
        let limit = limit as usize;
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more);
        Page {
            next_cursor: next.map(|last| self.seal(&position(last))),
            items,
        }
    }

    /// A cursor to what comes after a position.
    pub(super) fn seal(&self, position: &impl Serialize) -> String {
        seal(&self.control.key, &self.bound_to, position)
    }
}

/// The tag, what the cursor is bound to, and the position: a cursor that was altered is told from one that is used
/// elsewhere.
fn seal(key: &ServerKey, bound_to: &Digest, position: &impl Serialize) -> String {
    let position = serde_json::to_vec(position).expect("a position is always JSON");
    let payload = [&bound_to.as_bytes()[..], &position].concat();
    let tag = key.mac(Purpose::Cursor, &payload);
    URL_SAFE_NO_PAD.encode([&tag[..], &payload].concat())
}

fn open<T: DeserializeOwned>(key: &ServerKey, bound_to: &Digest, raw: &str) -> Result<T, ApiError> {
    let invalid = || ApiError::bad_request("invalid_cursor", "the cursor is not one that control made");
    let bytes = URL_SAFE_NO_PAD.decode(raw).map_err(|_| invalid())?;
    let (tag, payload) = bytes.split_at_checked(TAG_LEN).ok_or_else(invalid)?;
    if !key.holds(Purpose::Cursor, payload, tag) {
        return Err(invalid());
    }
    let bound_len = bound_to.as_bytes().len();
    let (made_for, position) = payload.split_at_checked(bound_len).ok_or_else(invalid)?;
    if made_for != bound_to.as_bytes() {
        return Err(ApiError::denied(
            "cursor_binding_mismatch",
            "out_of_scope",
            "the cursor was given to another caller, or for another list or other filters: begin anew without it",
        ));
    }
    serde_json::from_slice(position).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::DataDir;

    #[test]
    fn a_cursor_opens_only_whole_and_where_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("secrets")).unwrap();
        let data = DataDir::new(dir.path());
        data.write_keys().unwrap();
        let key = data.server_key().unwrap();
        let (here, there) = (Digest::of(b"here"), Digest::of(b"there"));
        let cursor = seal(&key, &here, &7);
        assert_eq!(open::<u32>(&key, &here, &cursor).unwrap(), 7);
        let code = |err: ApiError| err.detail().split(':').next().unwrap().to_owned();
        assert_eq!(
            code(open::<u32>(&key, &there, &cursor).unwrap_err()),
            "cursor_binding_mismatch"
        );
        let mut bytes = URL_SAFE_NO_PAD.decode(&cursor).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            let altered = URL_SAFE_NO_PAD.encode(&bytes);
            assert_eq!(
                code(open::<u32>(&key, &here, &altered).unwrap_err()),
                "invalid_cursor",
                "byte {at}"
            );
            bytes[at] ^= 1;
        }
        for raw in ["", "!", &cursor[..20], &format!("{cursor}A")] {
            assert_eq!(
                code(open::<u32>(&key, &here, raw).unwrap_err()),
                "invalid_cursor",
                "{raw}"
            );
        }
    }
}
