//! The keys that sign what this node is asked to do: pinned at enrolment, and followed from there. A set that is taken is on
//! disk before it counts.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_shared::{envelope::KeyRing, wire::SigningKeysRotated};
use tokio::sync::Notify;

use crate::{
    durable,
    identity::{self, IdentityFile},
};

#[derive(Clone)]
pub(crate) struct Keys {
    held: Arc<Mutex<Held>>,
    news: Arc<Notify>,
}

struct Held {
    path: PathBuf,
    file: IdentityFile,
    ring: Arc<KeyRing>,
}

impl Keys {
    pub(crate) fn new(state_dir: &Path, file: IdentityFile, ring: KeyRing) -> Self {
        let held = Held {
            path: identity::identity_path(state_dir),
            file,
            ring: Arc::new(ring),
        };
        Self {
            held: Arc::new(Mutex::new(held)),
            news: Arc::new(Notify::new()),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ring(&self) -> Arc<KeyRing> {
        Arc::clone(&self.held().ring)
    }

    /// The set that is durable here.
    pub(crate) fn serial(&self) -> u64 {
        self.held().file.signing_serial
    }

    /// A newer set was taken, now or since this was asked last.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Takes a newer set. False for one that is known, or older.
    pub(crate) fn take(&self, news: &SigningKeysRotated) -> Result<bool, String> {
        let mut held = self.held();
        if news.serial <= held.file.signing_serial {
            return Ok(false);
        }
        let ring = identity::key_ring(&news.keys, &news.retired)?;
        let mut file = held.file.clone();
        file.signing_keys.clone_from(&news.keys);
        file.retired_keys.clone_from(&news.retired);
        file.signing_serial = news.serial;
        let bytes = serde_json::to_vec_pretty(&file).map_err(|err| err.to_string())?;
        durable::write(&held.path, &bytes).map_err(|err| err.to_string())?;
        held.file = file;
        held.ring = Arc::new(ring);
        self.news.notify_one();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::{
        envelope::Signer,
        ids::{DomainId, EventId, NodeId, ProjectId},
        time::Timestamp,
        wire::{Base64, SigningKeyInfo},
    };

    fn info(seed: u8) -> SigningKeyInfo {
        let signer = Signer::from_seed(&[seed; 32]);
        SigningKeyInfo {
            keyid: signer.keyid().to_owned(),
            public_key: Base64(signer.public_key().to_vec()),
        }
    }

    #[test]
    fn a_newer_set_is_durable_and_an_older_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = Timestamp::from_millis(0);
        let file = IdentityFile {
            node_id: NodeId::mint(at, [1; 10]),
            name: "n".to_owned(),
            domain_id: DomainId::mint(at, [1; 10]),
            project_id: ProjectId::mint(at, [1; 10]),
            server: "https://x".to_owned(),
            signing_keys: vec![info(1)],
            signing_serial: 1,
            retired_keys: vec![],
        };
        let ring = identity::key_ring(&file.signing_keys, &[]).unwrap();
        let keys = Keys::new(dir.path(), file.clone(), ring);
        let news = |serial, seeds: &[u8]| SigningKeysRotated {
            event_id: EventId::mint(at, [1; 10]),
            occurred_at: at,
            node_id: file.node_id,
            expires_at: at,
            serial,
            keys: seeds.iter().copied().map(info).collect(),
            retired: vec![],
        };
        assert_eq!(keys.take(&news(2, &[1, 2])), Ok(true));
        assert_eq!(keys.take(&news(1, &[3])), Ok(false));
        assert!(keys.take(&news(3, &[])).is_err(), "a set without a key is none");
        assert_eq!(keys.serial(), 2);
        let raw = std::fs::read(identity::identity_path(dir.path())).unwrap();
        let kept: IdentityFile = serde_json::from_slice(&raw).unwrap();
        assert_eq!((kept.signing_serial, kept.signing_keys.len()), (2, 2));
    }
}
