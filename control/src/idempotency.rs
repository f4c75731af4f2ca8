//! One dispatch per key: a request that is sent again under the key of the first leads to the execution of the first.
//!
//! A key is claimed by an insert under a primary key, in the transaction that writes the execution, and before any gate
//! is asked. There is one writer: while the first request under a key is under way, a second one waits for its turn and
//! then finds what became of it. It replays it, or, when the first was refused and so left nothing, takes the key.

use std::time::Duration;

use muster_shared::{
    ids::{Digest, ExecutionId},
    time::Timestamp,
};

use crate::{
    authz::Requester,
    control::Control,
    keys::{Purpose, ServerKey},
    store::{Claim, Claimed, Project, Store, StoreError, Tx},
};

/// How long a key leads to its execution.
const KEPT_FOR: Duration = Duration::from_hours(24);
/// How many expired keys one round forgets.
const FORGET_BATCH: u32 = 500;
/// The longest key, in bytes.
pub(crate) const KEY_LEN_MAX: usize = 255;

/// What makes two requests of one caller the same.
pub(crate) struct Once {
    key: String,
    body: Digest,
}

impl Once {
    /// `None` when the key is not one: 1 to 255 visible characters of ASCII. The hash of the body is keyed, because a
    /// short secret in it could be guessed from a plain one.
    pub(crate) fn new(server: &ServerKey, key: &[u8], body: &[u8]) -> Option<Self> {
        let sound = (1..=KEY_LEN_MAX).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
        sound.then(|| Self {
            key: String::from_utf8_lossy(key).into_owned(),
            body: Digest::from_bytes(server.mac(Purpose::RequestBody, body)),
        })
    }
}

pub(crate) enum ClaimOutcome {
    /// The key is this execution's, once the transaction commits.
    First(Tx),
    /// The request was made before.
    Again(Claimed),
    /// The key was used before, for another request.
    Reused,
}

/// Claims the key for an execution that is about to be admitted, or finds whose it is.
pub(crate) async fn claim(
    control: &Control,
    project: &Project,
    requester: &Requester,
    once: &Once,
    execution: ExecutionId,
    now: Timestamp,
) -> Result<ClaimOutcome, StoreError> {
    let claim = Claim {
        project: project.id,
        subject: &requester.subject,
        key: &once.key,
        body: once.body,
        execution,
        now,
        expires_at: now.plus(KEPT_FOR),
    };
    // What was answered before needs no turn at writing.
    if let Some(before) = control.store.claimed(&claim).await? {
        return Ok(found(once, before));
    }
    let mut tx = control.store.begin().await?;
    if tx.claim_key(&claim).await? {
        return Ok(ClaimOutcome::First(tx));
    }
    drop(tx);
    let before = control.store.claimed(&claim).await?;
    let before = before.ok_or(StoreError::Sql(sqlx::Error::RowNotFound))?;
    Ok(found(once, before))
}

fn found(once: &Once, before: Claimed) -> ClaimOutcome {
    if before.body == once.body {
        ClaimOutcome::Again(before)
    } else {
        ClaimOutcome::Reused
    }
}

/// Removes some of the keys whose time is over, and says how many.
pub(crate) async fn forget(store: &Store, now: Timestamp) -> Result<u64, StoreError> {
    if !store.any_key_expired(now).await? {
        return Ok(0);
    }
    let mut tx = store.begin().await?;
    let gone = tx.forget_keys(now, FORGET_BATCH).await?;
    tx.commit().await?;
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_visible_ascii_and_not_long() {
        let sound = |key: &[u8]| Once::new(&ServerKey::of_tests(), key, b"{}").is_some();
        for good in [&b"a"[..], b"!~", b"\"8e03978e-40d5\"", &[b'k'; KEY_LEN_MAX]] {
            assert!(sound(good), "{good:?}");
        }
        for bad in [
            &b""[..],
            b"a b",
            b"a\tb",
            b"\x7f",
            "ä".as_bytes(),
            &[b'k'; KEY_LEN_MAX + 1],
        ] {
            assert!(!sound(bad), "{bad:?}");
        }
    }
}
