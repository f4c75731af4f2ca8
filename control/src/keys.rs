//! Secrets of this control service and what is derived from them.
//!
//! Every secret is a file of mode 0600 under the data directory. One server key gives the callback tokens, the cursors,
//! the URLs of the built-in output store, the keys that seal secret parameters and TLS tickets and the hashes of request bodies, each under a purpose of its own, so
//! that one can never pass as another.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use muster_shared::{
    envelope::Signer,
    ids::{Digest, ExecutionId, NodeId},
};
use ring::aead;
use sha2::Sha256;

/// What a derived value is for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    CallbackToken,
    Cursor,
    OutputUrl,
    Parameters,
    RequestBody,
    TlsTicket,
}

impl Purpose {
    const fn tag(self) -> &'static [u8] {
        match self {
            Self::CallbackToken => b"muster/callback-token/v1\0",
            Self::Cursor => b"muster/cursor/v1\0",
            Self::OutputUrl => b"muster/output-url/v1\0",
            Self::Parameters => b"muster/parameters/v1\0",
            Self::RequestBody => b"muster/request-body/v1\0",
            Self::TlsTicket => b"muster/tls-ticket/v1\0",
        }
    }
}

/// The key from which this service derives its tokens.
#[derive(Clone)]
pub(crate) struct ServerKey([u8; 32]);

impl ServerKey {
    #[cfg(test)]
    pub(crate) const fn of_tests() -> Self {
        Self([7; 32])
    }

    pub(crate) fn mac(&self, purpose: Purpose, message: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(purpose.tag());
        mac.update(message);
        mac.finalize().into_bytes().into()
    }

    /// Whether `tag` is that of the message; takes the same time for every wrong tag.
    pub(crate) fn holds(&self, purpose: Purpose, message: &[u8], tag: &[u8]) -> bool {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(purpose.tag());
        mac.update(message);
        mac.verify_slice(tag).is_ok()
    }

    /// The token with which a node reports on one invocation: derived, so that a request that is sent again carries it
    /// again, while the database holds only its hash.
    pub(crate) fn callback_token(&self, execution: ExecutionId, node: NodeId) -> String {
        let mut message = [0; 32];
        message[..16].copy_from_slice(execution.uuid().as_bytes());
        message[16..].copy_from_slice(node.uuid().as_bytes());
        format!(
            "mct_{}",
            URL_SAFE_NO_PAD.encode(self.mac(Purpose::CallbackToken, &message))
        )
    }
}

/// Seals what is owed to nodes and shown to nobody, with a key of its own for each execution.
impl ServerKey {
    pub(crate) fn seal(&self, execution: ExecutionId, clear: &[u8]) -> io::Result<Vec<u8>> {
        let nonce = chance::<{ aead::NONCE_LEN }>()?;
        let mut text = clear.to_vec();
        self.sealing_key(execution)?
            .seal_in_place_append_tag(
                aead::Nonce::assume_unique_for_key(nonce),
                aead::Aad::from(execution.uuid().as_bytes()),
                &mut text,
            )
            .map_err(|_| io::Error::other("the parameters could not be sealed"))?;
        Ok([&nonce[..], &text].concat())
    }

    /// Fails for what another key sealed, or was sealed for another execution.
    pub(crate) fn unseal(&self, execution: ExecutionId, sealed: &[u8]) -> io::Result<Vec<u8>> {
        let wrong = || io::Error::other("the sealed parameters do not open with the key of this control");
        let (nonce, text) = sealed
            .split_first_chunk::<{ aead::NONCE_LEN }>()
            .ok_or_else(wrong)?;
        let mut text = text.to_vec();
        let clear = self
            .sealing_key(execution)?
            .open_in_place(
                aead::Nonce::assume_unique_for_key(*nonce),
                aead::Aad::from(execution.uuid().as_bytes()),
                &mut text,
            )
            .map_err(|_| wrong())?;
        Ok(clear.to_vec())
    }

    fn sealing_key(&self, execution: ExecutionId) -> io::Result<aead::LessSafeKey> {
        let key = self.mac(Purpose::Parameters, execution.uuid().as_bytes());
        aead::UnboundKey::new(&aead::CHACHA20_POLY1305, &key)
            .map(aead::LessSafeKey::new)
            .map_err(|_| io::Error::other("the sealing key could not be made"))
    }
}

/// Bearer tokens by what they open; the prefix tells a person, and a scanner of leaked secrets, what was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Operator,
    Bootstrap,
    Nsk,
}

impl TokenKind {
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Operator => "mop_",
            Self::Bootstrap => "mbt_",
            Self::Nsk => "nsk_",
        }
    }

    /// A new token of 256 random bits. It is shown once; its hash is what is kept.
    pub(crate) fn mint(self) -> io::Result<String> {
        Ok(format!(
            "{}{}",
            self.prefix(),
            URL_SAFE_NO_PAD.encode(chance::<32>()?)
        ))
    }
}

/// What is kept of a bearer token. A plain hash is enough: the token has 256 random bits.
pub(crate) fn token_hash(token: &str) -> Digest {
    Digest::of(token.as_bytes())
}

/// Random bytes of the system.
pub(crate) fn chance<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|err| io::Error::other(err.to_string()))?;
    Ok(bytes)
}

/// The files of a data directory.
#[derive(Clone, Debug)]
pub(crate) struct DataDir(PathBuf);

impl DataDir {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("control.db")
    }
    pub(crate) fn ca_cert(&self) -> PathBuf {
        self.0.join("ca.pem")
    }
    pub(crate) fn ca_key(&self) -> PathBuf {
        self.0.join("secrets/ca.key")
    }
    pub(crate) fn server_cert(&self) -> PathBuf {
        self.0.join("server.pem")
    }
    pub(crate) fn server_tls_key(&self) -> PathBuf {
        self.0.join("secrets/server.key")
    }
    pub(crate) fn outputs(&self) -> PathBuf {
        self.0.join("outputs")
    }
    pub(crate) fn config(&self) -> PathBuf {
        self.0.join("control.toml")
    }
    /// What says that this directory was made from a backup.
    pub(crate) fn restored(&self) -> PathBuf {
        self.0.join("restored.json")
    }
    fn derivation_key(&self) -> PathBuf {
        self.0.join("secrets/derivation.key")
    }
    fn signing_seed(&self) -> PathBuf {
        self.0.join("secrets/domain-signing.key")
    }

    pub(crate) fn write_keys(&self) -> io::Result<Signer> {
        let seed = chance::<32>()?;
        write_secret(&self.derivation_key(), &chance::<32>()?)?;
        write_secret(&self.signing_seed(), &seed)?;
        Ok(Signer::from_seed(&seed))
    }

    pub(crate) fn server_key(&self) -> io::Result<ServerKey> {
        read_key(&self.derivation_key()).map(ServerKey)
    }

    /// The private half of a signing key: in the file of its name, or in that of the first.
    pub(crate) fn signer_of(&self, keyid: &str) -> io::Result<Signer> {
        let named = self.signing_seed_of(keyid);
        let path = if named.exists() {
            named
        } else {
            self.signing_seed()
        };
        let signer = Signer::from_seed(&read_key(&path)?);
        if signer.keyid() == keyid {
            return Ok(signer);
        }
        let text = format!("{}: not the key {keyid}", path.display());
        Err(io::Error::new(io::ErrorKind::NotFound, text))
    }

    /// Makes a further signing key. It is durable when this returns, and belongs to whom the first belongs to: the service
    /// has to read it, whoever added it.
    pub(crate) fn write_signing_key(&self) -> io::Result<Signer> {
        use std::os::unix::fs::{MetadataExt as _, chown};
        let seed = chance::<32>()?;
        let signer = Signer::from_seed(&seed);
        let path = self.signing_seed_of(signer.keyid());
        write_secret(&path, &seed)?;
        let owner = fs::metadata(self.path())?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
        fs::File::open(self.0.join("secrets"))?.sync_all()?;
        Ok(signer)
    }

    fn signing_seed_of(&self, keyid: &str) -> PathBuf {
        self.0.join(format!("secrets/signing-{keyid}.key"))
    }
}

/// Writes a file that only its owner reads, and that never exists half written or open to others.
pub(crate) fn write_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_new(path, bytes, 0o600)
}

pub(crate) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = |err: io::Error| io::Error::new(err.kind(), format!("{}: {err}", path.display()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(name)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(name)
}

fn read_key(path: &Path) -> io::Result<[u8; 32]> {
    let name = |err: io::Error| io::Error::new(err.kind(), format!("{}: {err}", path.display()));
    let mut key = [0; 32];
    let mut file = fs::File::open(path).map_err(name)?;
    file.read_exact(&mut key).map_err(name)?;
    if file.read(&mut [0; 1]).map_err(name)? != 0 {
        return Err(name(io::Error::new(
            io::ErrorKind::InvalidData,
            "longer than the 32 bytes of a key",
        )));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::time::Timestamp;

    #[test]
    fn a_callback_token_is_the_same_again_and_of_one_invocation_only() {
        let key = ServerKey([7; 32]);
        let execution = ExecutionId::mint(Timestamp::from_millis(1), [1; 10]);
        let (a, b) = (
            NodeId::mint(Timestamp::from_millis(1), [2; 10]),
            NodeId::mint(Timestamp::from_millis(1), [3; 10]),
        );
        assert_eq!(key.callback_token(execution, a), key.callback_token(execution, a));
        assert_ne!(key.callback_token(execution, a), key.callback_token(execution, b));
        assert_ne!(
            key.callback_token(execution, a),
            ServerKey([8; 32]).callback_token(execution, a)
        );
    }

    #[test]
    fn a_tag_for_one_purpose_is_none_for_another() {
        let key = ServerKey([7; 32]);
        let tag = key.mac(Purpose::Cursor, b"x");
        assert!(key.holds(Purpose::Cursor, b"x", &tag));
        assert!(!key.holds(Purpose::OutputUrl, b"x", &tag));
        assert!(!key.holds(Purpose::Cursor, b"x", &tag[..31]));
    }

    #[test]
    fn what_is_sealed_opens_for_its_execution_only() {
        let key = ServerKey([7; 32]);
        let [one, other] = [1, 2].map(|n| ExecutionId::mint(Timestamp::from_millis(1), [n; 10]));
        let sealed = key.seal(one, b"canary").unwrap();
        assert!(!sealed.windows(6).any(|bytes| bytes == b"canary"));
        assert_eq!(key.unseal(one, &sealed).unwrap(), b"canary");
        assert!(key.unseal(other, &sealed).is_err());
        assert!(ServerKey([8; 32]).unseal(one, &sealed).is_err());
        assert!(key.unseal(one, &sealed[..5]).is_err());
        assert_ne!(sealed, key.seal(one, b"canary").unwrap());
    }

    #[test]
    fn a_secret_is_born_private_and_never_overwritten() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_secret(&path, &[1; 32]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            write_secret(&path, &[2; 32]).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(read_key(&path).unwrap(), [1; 32]);
        write_secret(&dir.path().join("long"), &[1; 33]).unwrap();
        assert!(read_key(&dir.path().join("long")).is_err());
    }
}
