//! The keys that sign what nodes are asked to do, and their change.
//!
//! A new key signs beside those before it, so that a node takes what is signed whichever of them it knows. Every set has a
//! serial number; a node learns of a newer set in a message that is signed by each key of which control has the private
//! half, retired ones included: one that was away follows from the key that it knows to those that count. A retired key
//! signs nothing else.

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use muster_shared::{
    envelope::{Addressed, Envelope, SIGNATURES_MAX, Signer},
    ids::{DomainId, EventId, NodeId},
    time::Timestamp,
    wire::{Base64, SigningKeyInfo, SigningKeysRotated},
};
use serde::Serialize;

use crate::{
    audit::{self, Entry},
    authz,
    control::Control,
    error_chain,
    keys::DataDir,
    nsk::KeyOwner,
    store::{Owed, SigningKey, Store, StoreError},
};

/// How many keys may sign at the same time.
pub(crate) const LIVE_MAX: usize = 4;
/// How soon a service notices that the keys were changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How many nodes an error names.
const NAMED_MAX: usize = 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SigningError {
    #[error("{LIVE_MAX} signing keys count already; retire one first")]
    TooMany,
    #[error("there is no signing key {0}")]
    NoSuchKey(String),
    #[error("signing key {0} is retired already")]
    Retired(String),
    #[error("signing key {0} is the only one that counts; rotate first")]
    Last(String),
    #[error(
        "{} not confirmed the present signing keys: {}; wait for them, or retire the key all the same with --force: they \
         learn of it when they are back", have(.0.len()), named(.0)
    )]
    Behind(Vec<String>),
    #[error("the database names no signing key that counts")]
    None,
    #[error("the private half of signing key {keyid}")]
    Secret { keyid: String, source: io::Error },
    #[error("the file of signing key {0} holds another key")]
    OtherSecret(String),
    #[error("the signing keys could not be stored")]
    Io(#[from] io::Error),
    #[error("the signing keys could not be stored")]
    Store(#[from] StoreError),
}

fn have(nodes: usize) -> String {
    if nodes == 1 {
        "1 node has".to_owned()
    } else {
        format!("{nodes} nodes have")
    }
}

pub(crate) fn named(nodes: &[String]) -> String {
    let mut text = nodes[..nodes.len().min(NAMED_MAX)].join(", ");
    if nodes.len() > NAMED_MAX {
        text.push_str(", …");
    }
    text
}

/// Every change of the keys makes it larger by one.
pub(crate) fn serial(keys: &[SigningKey]) -> u64 {
    let retired = keys.iter().filter(|key| key.retired_at.is_some()).count();
    (keys.len() + retired) as u64
}

/// Whether the key may be retired, given the nodes that do not know the present set.
fn may_retire(keys: &[SigningKey], keyid: &str, behind: &[String], force: bool) -> Result<(), SigningError> {
    let key = keys
        .iter()
        .find(|key| key.keyid == keyid)
        .ok_or_else(|| SigningError::NoSuchKey(keyid.to_owned()))?;
    if key.retired_at.is_some() {
        return Err(SigningError::Retired(keyid.to_owned()));
    }
    if keys.iter().filter(|key| key.retired_at.is_none()).count() == 1 {
        return Err(SigningError::Last(keyid.to_owned()));
    }
    if !behind.is_empty() && !force {
        return Err(SigningError::Behind(behind.to_vec()));
    }
    Ok(())
}

/// One set of keys, with the private halves.
pub(crate) struct Signers {
    pub(crate) serial: u64,
    live: Vec<Signer>,
    /// The last retired first.
    retired: Vec<Signer>,
}

impl Signers {
    pub(crate) async fn load(store: &Store, data: &DataDir) -> Result<Self, SigningError> {
        let keys = store.signing_keys().await?;
        let mut signers = Self {
            serial: serial(&keys),
            live: Vec::new(),
            retired: Vec::new(),
        };
        for key in &keys {
            match (data.signer_of(&key.keyid), key.retired_at) {
                (Ok(signer), _) if signer.public_key() != key.public_key => {
                    return Err(SigningError::OtherSecret(key.keyid.clone()));
                }
                (Ok(signer), None) => signers.live.push(signer),
                (Ok(signer), Some(_)) => signers.retired.insert(0, signer),
                (Err(source), None) => {
                    let keyid = key.keyid.clone();
                    return Err(SigningError::Secret { keyid, source });
                }
                // Whoever removed it wants no node to follow from it any more.
                (Err(_), Some(_)) => {}
            }
        }
        if signers.live.is_empty() {
            return Err(SigningError::None);
        }
        Ok(signers)
    }

    /// Seals with every key that counts.
    pub(crate) fn seal<T: Addressed + Serialize>(&self, message: &T) -> Result<Envelope, serde_json::Error> {
        seal(self.live.iter(), message)
    }

    /// Seals the news of this set, also with keys that count no more.
    fn seal_set(&self, message: &SigningKeysRotated) -> Result<Envelope, serde_json::Error> {
        seal(self.live.iter().chain(&self.retired), message)
    }

    pub(crate) fn keys(&self) -> Vec<SigningKeyInfo> {
        let info = |signer: &Signer| SigningKeyInfo {
            keyid: signer.keyid().to_owned(),
            public_key: Base64(signer.public_key().to_vec()),
        };
        self.live.iter().map(info).collect()
    }

    /// The news of this set, for one node.
    pub(crate) fn news(
        &self,
        id: EventId,
        node: NodeId,
        (now, expires_at): (Timestamp, Timestamp),
    ) -> Result<Envelope, serde_json::Error> {
        self.seal_set(&SigningKeysRotated {
            event_id: id,
            occurred_at: now,
            node_id: node,
            expires_at,
            serial: self.serial,
            keys: self.keys(),
            retired: self.retired.iter().map(|key| key.keyid().to_owned()).collect(),
        })
    }
}

fn seal<'s, T: Addressed + Serialize>(
    signers: impl Iterator<Item = &'s Signer>,
    message: &T,
) -> Result<Envelope, serde_json::Error> {
    let payload = serde_json::to_vec(message)?;
    let mut envelopes = signers
        .take(SIGNATURES_MAX)
        .map(|signer| signer.seal_bytes(T::PAYLOAD_TYPE, &payload));
    let mut sealed = envelopes
        .next()
        .expect("a set without a key that counts is never loaded");
    sealed
        .signatures
        .extend(envelopes.flat_map(|envelope| envelope.signatures));
    Ok(sealed)
}

/// The set in use, which changes while the service runs.
pub(crate) struct Signing {
    data: DataDir,
    current: RwLock<Arc<Signers>>,
}

impl Signing {
    pub(crate) fn new(data: DataDir, signers: Signers) -> Self {
        Self {
            data,
            current: RwLock::new(Arc::new(signers)),
        }
    }

    pub(crate) fn current(&self) -> Arc<Signers> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, signers: Signers) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(signers);
    }
}

/// Takes up changes of the keys, and tells the nodes that are connected, until the service stops.
pub(crate) async fn watch(control: &Control) {
    while !control.stopped_within(LOOK_EVERY).await {
        match look(control).await {
            Ok(false) => {}
            Ok(true) => control.node_streams.push_to_all(&Owed::SigningKeys),
            Err(err) => log::error!(
                "A change of the signing keys could not be taken up: {}",
                error_chain(&err)
            ),
        }
    }
}

async fn look(control: &Control) -> Result<bool, SigningError> {
    if serial(&control.store.signing_keys().await?) == control.signing.current().serial {
        return Ok(false);
    }
    let signers = Signers::load(&control.store, &control.signing.data).await?;
    log::info!(serial = signers.serial; "The signing keys were changed");
    control.signing.set(signers);
    Ok(true)
}

/// Notes which set a node has. One that lacks the present one is sent it, also where the news went lost before.
pub(crate) async fn confirm(control: &Control, owner: &KeyOwner, serial: u64) -> Result<(), StoreError> {
    if serial < control.signing.current().serial {
        control
            .node_streams
            .push(owner.node, Owed::SigningKeys, Instant::now());
    }
    if serial == owner.signing_serial {
        return Ok(());
    }
    // Rare: its room is not in every heartbeat.
    let noted = async {
        let mut tx = control.store.begin().await?;
        tx.note_signing_serial(owner.node, serial).await?;
        tx.commit().await
    };
    Box::pin(noted).await
}

/// Adds a key. Its private half is on disk before anybody hears of it.
pub(crate) async fn rotate(
    store: &Store,
    data: &DataDir,
    domain: DomainId,
    now: Timestamp,
) -> Result<String, SigningError> {
    let live = |keys: &[SigningKey]| keys.iter().filter(|key| key.retired_at.is_none()).count();
    if live(&store.signing_keys().await?) >= LIVE_MAX {
        return Err(SigningError::TooMany);
    }
    let signer = data.write_signing_key()?;
    let mut tx = store.begin().await?;
    tx.insert_signing_key(signer.keyid(), domain, &signer.public_key(), now)
        .await?;
    let entry = Entry::granted(audit::SYSTEM, "signing_key.rotate", authz::domain(domain));
    tx.append_audit(domain, &[entry.with(signer.keyid())], now)
        .await?;
    tx.commit().await?;
    Ok(signer.keyid().to_owned())
}

/// Takes a key out of use. Answers the nodes that do not know the present set.
pub(crate) async fn retire(
    store: &Store,
    domain: DomainId,
    (keyid, force): (&str, bool),
    now: Timestamp,
) -> Result<Vec<String>, SigningError> {
    let mut tx = store.begin().await?;
    let keys = store.signing_keys().await?;
    let behind = store.nodes_without_keys(serial(&keys)).await?;
    may_retire(&keys, keyid, &behind, force)?;
    tx.retire_signing_key(keyid, now).await?;
    let entry = Entry::granted(audit::SYSTEM, "signing_key.retire", authz::domain(domain));
    let detail = format!("{keyid}, with {} nodes that had not confirmed", behind.len());
    tx.append_audit(domain, &[entry.with(detail)], now).await?;
    tx.commit().await?;
    Ok(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(keyid: &str, retired: bool) -> SigningKey {
        SigningKey {
            keyid: keyid.to_owned(),
            public_key: [0; 32],
            created_at: Timestamp::from_millis(0),
            retired_at: retired.then(|| Timestamp::from_millis(1)),
        }
    }

    #[test]
    fn every_change_has_a_larger_serial() {
        assert_eq!(serial(&[key("a", false)]), 1);
        assert_eq!(serial(&[key("a", false), key("b", false)]), 2);
        assert_eq!(serial(&[key("a", true), key("b", false)]), 3);
    }

    #[test]
    fn a_key_is_retired_when_another_counts_and_every_node_knows_it() {
        let keys = [key("a", false), key("b", false), key("c", true)];
        let away = ["web-1".to_owned()];
        assert!(may_retire(&keys, "a", &[], false).is_ok());
        assert!(may_retire(&keys, "a", &away, true).is_ok());
        let text = may_retire(&keys, "a", &away, false).unwrap_err().to_string();
        assert!(text.contains("web-1") && text.contains("--force"), "{text}");
        assert!(matches!(
            may_retire(&keys, "c", &[], true),
            Err(SigningError::Retired(_))
        ));
        assert!(matches!(
            may_retire(&keys, "x", &[], true),
            Err(SigningError::NoSuchKey(_))
        ));
        assert!(matches!(
            may_retire(&keys[1..], "b", &[], true),
            Err(SigningError::Last(_))
        ));
    }

    #[test]
    fn what_is_sealed_opens_for_who_knows_any_of_the_keys() {
        use muster_shared::envelope::KeyRing;
        let signers = Signers {
            serial: 3,
            live: vec![Signer::from_seed(&[1; 32]), Signer::from_seed(&[2; 32])],
            retired: vec![Signer::from_seed(&[3; 32])],
        };
        let node = NodeId::mint(Timestamp::from_millis(0), [1; 10]);
        let at = Timestamp::from_millis;
        let news = signers
            .news(EventId::mint(at(0), [1; 10]), node, (at(0), at(10)))
            .unwrap();
        let raw = serde_json::to_vec(&news).unwrap();
        for seed in [1, 2, 3] {
            let mut ring = KeyRing::default();
            ring.add(&Signer::from_seed(&[seed; 32]).public_key()).unwrap();
            let opened = ring.open::<SigningKeysRotated>(&raw, node, at(1)).unwrap();
            assert_eq!(
                (opened.serial, opened.keys.len(), opened.retired.len()),
                (3, 2, 1)
            );
        }
    }
}
