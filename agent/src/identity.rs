//! Who this node is: what enrolment left in the state directory, and the lock that keeps it to one daemon.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use muster_shared::{
    envelope::KeyRing,
    ids::{DomainId, NodeId, ProjectId},
    wire::SigningKeyInfo,
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{durable, exit::Exit, keyring::Keys};

/// A supervisor that was being started when its daemon died may hold the lock until it has begun.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// `identity.json`: everything but the secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IdentityFile {
    pub(crate) node_id: NodeId,
    pub(crate) name: String,
    pub(crate) domain_id: DomainId,
    pub(crate) project_id: ProjectId,
    pub(crate) server: String,
    pub(crate) signing_keys: Vec<SigningKeyInfo>,
    #[serde(default = "first_set")]
    pub(crate) signing_serial: u64,
    /// The names of keys that counted once.
    #[serde(default)]
    pub(crate) retired_keys: Vec<String>,
}

impl IdentityFile {
    /// None where the machine is not enrolled.
    pub(crate) fn read(state_dir: &Path) -> Result<Option<Self>, Exit> {
        let path = identity_path(state_dir);
        let raw = match fs::read(&path) {
            Ok(raw) => raw,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(unreadable(&path, &err)),
        };
        serde_json::from_slice(&raw)
            .map(Some)
            .map_err(|err| Exit::Failure(format!("{} is damaged: {err}", path.display())))
    }
}

pub(crate) fn not_enrolled(state_dir: &Path) -> Exit {
    Exit::Enrolment(format!(
        "this machine is not enrolled: {} is missing; run `musterd enroll` first",
        identity_path(state_dir).display()
    ))
}

/// Whoever enrolled before there were others has the first.
pub(crate) const fn first_set() -> u64 {
    1
}

pub(crate) struct Identity {
    pub(crate) node_id: NodeId,
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) keys: Keys,
    pub(crate) nsk: Secret,
    pub(crate) ca_pem: Vec<u8>,
}

/// Text that must not be printed.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

pub(crate) fn identity_path(state_dir: &Path) -> PathBuf {
    state_dir.join("identity.json")
}

pub(crate) fn nsk_path(state_dir: &Path) -> PathBuf {
    state_dir.join("nsk")
}

/// Where the service manager has put the secrets of this service.
pub(crate) fn credentials() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from)
}

/// The key in the state directory counts where there is one: it is the newest that this enrolment has. Where its admin has
/// taken it away it is the one that systemd hands over, in a folder of memory that nobody else can see.
fn nsk_to_read(state_dir: &Path, credentials: Option<PathBuf>) -> PathBuf {
    let kept = nsk_path(state_dir);
    let handed_over = credentials
        .map(|dir| dir.join("nsk"))
        .filter(|path| !kept.exists() && path.exists());
    handed_over.unwrap_or(kept)
}

pub(crate) fn ca_path(state_dir: &Path) -> PathBuf {
    state_dir.join("ca.pem")
}

impl Identity {
    pub(crate) fn load(state_dir: &Path) -> Result<Self, Exit> {
        let path = identity_path(state_dir);
        let file = IdentityFile::read(state_dir)?.ok_or_else(|| not_enrolled(state_dir))?;
        let keys = key_ring(&file.signing_keys, &file.retired_keys)
            .map_err(|why| Exit::Failure(format!("{} is damaged: {why}", path.display())))?;
        let credentials = credentials();
        let nsk_path = nsk_to_read(state_dir, credentials);
        let nsk = fs::read_to_string(&nsk_path).map_err(|err| unreadable(&nsk_path, &err))?;
        let ca_path = ca_path(state_dir);
        let ca_pem = fs::read(&ca_path).map_err(|err| unreadable(&ca_path, &err))?;
        Ok(Self {
            node_id: file.node_id,
            name: file.name.clone(),
            server: file.server.clone(),
            keys: Keys::new(state_dir, file, keys),
            nsk: Secret(nsk.trim().to_owned()),
            ca_pem,
        })
    }
}

pub(crate) fn key_ring(known: &[SigningKeyInfo], retired: &[String]) -> Result<KeyRing, String> {
    let mut keys = KeyRing::default();
    retired.iter().for_each(|keyid| keys.retire(keyid));
    for SigningKeyInfo { keyid, public_key } in known {
        let bytes: Option<&[u8; 32]> = public_key.0.as_slice().try_into().ok();
        let bytes = bytes.ok_or_else(|| format!("signing key {keyid} is not 32 bytes"))?;
        keys.add(bytes)
            .map_err(|err| format!("signing key {keyid}: {err}"))?;
    }
    if known.is_empty() {
        Err("it holds no signing key".to_owned())
    } else {
        Ok(keys)
    }
}

fn unreadable(path: &Path, err: &io::Error) -> Exit {
    Exit::Failure(format!("{} cannot be read: {err}", path.display()))
}

/// For whoever finds it locked. It is the lock that counts, so a disk too full for this stops nobody.
fn say_who(file: &File) {
    let _ = file.set_len(0);
    let _ = file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0);
}

/// As it said of itself; a supervisor that has just been started may hold it for its daemon.
fn holder(file: &File) -> String {
    let mut said = [0; 16];
    let count = file.read_at(&mut said, 0).unwrap_or(0);
    match String::from_utf8_lossy(&said[..count]).trim().parse::<u32>() {
        Ok(pid) => format!(" (pid {pid})"),
        Err(_) => String::new(),
    }
}

/// Held for as long as a process works in the state directory.
pub(crate) struct StateLock {
    _file: File,
}

impl StateLock {
    pub(crate) fn take(state_dir: &Path) -> Result<Self, Exit> {
        let failed = |err: io::Error| {
            Exit::Failure(format!(
                "the state directory {} cannot be used: {err}",
                state_dir.display()
            ))
        };
        durable::private_dir(state_dir).map_err(failed)?;
        let path = state_dir.join("lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let give_up = Instant::now() + LOCK_WAIT;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    say_who(&file);
                    return Ok(Self { _file: file });
                }
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(Exit::StateInUse(format!(
                        "another musterd{} works in {} and holds {}: one state directory serves one daemon. \
                         Stop that one first: systemctl stop musterd",
                        holder(&file),
                        state_dir.display(),
                        path.display()
                    )));
                }
                Err(err) => return Err(failed(err.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_systemd_hands_over_counts_where_none_is_kept() {
        let (state, credentials) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (kept, handed_over) = (state.path().join("nsk"), credentials.path().join("nsk"));
        let read = || nsk_to_read(state.path(), Some(credentials.path().to_owned()));
        assert_eq!(nsk_to_read(state.path(), None), kept);
        assert_eq!(read(), kept);
        fs::write(&handed_over, "handed over").unwrap();
        assert_eq!(read(), handed_over);
        // Control has changed it, or the machine was enrolled anew: the unit still hands the old one over.
        fs::write(&kept, "newer").unwrap();
        assert_eq!(read(), kept);
    }
}
