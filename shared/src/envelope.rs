//! The signed envelope: DSSE v1 (secure-systems-lab/dsse, protocol.md) with Ed25519 (RFC 8032).
//!
//! The bytes that were received are verified, then parsed; nothing is ever re-serialised. The only way to own a
//! [`Verified`] value is to have passed every check, so whatever runs things simply takes one. There is one copy of
//! this check.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    ids::{Digest, NodeId},
    time::Timestamp,
};

/// The longest envelope a node reads, in bytes of its JSON form.
pub const ENVELOPE_LEN_MAX: usize = 256 * 1024;
/// How many signatures one envelope may carry.
pub const SIGNATURES_MAX: usize = 8;

/// A message that names its receiver and its end.
pub trait Addressed: DeserializeOwned {
    /// Keeps a signature made for one kind of message from passing as another.
    const PAYLOAD_TYPE: &'static str;
    fn audience(&self) -> NodeId;
    fn expires_at(&self) -> Timestamp;
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Envelope {
    pub payload_type: String,
    /// Standard base64 of the payload.
    pub payload: String,
    pub signatures: Vec<EnvelopeSignature>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EnvelopeSignature {
    pub keyid: String,
    /// Standard base64 of the 64 bytes of the signature.
    pub sig: String,
}

/// A payload whose signature, audience and expiry held at the moment it was opened.
#[derive(Clone, Debug)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> std::ops::Deref for Verified<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Why an envelope was not opened. Nothing of its payload has been acted on.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the envelope is longer than {ENVELOPE_LEN_MAX} bytes")]
    TooLong,
    #[error("the envelope is malformed: {0}")]
    Malformed(String),
    #[error("the payload type is {found:?}, not {expected:?}")]
    OtherType { found: String, expected: &'static str },
    #[error("no signature is by a key of this domain")]
    UnknownKey,
    #[error("it is signed by key {0}, which was retired")]
    RetiredKey(String),
    #[error("the signature does not hold")]
    BadSignature,
    #[error("it is addressed to node {0}")]
    OtherNode(NodeId),
    #[error("it expired at {0}")]
    Expired(Timestamp),
}

/// The private half of a domain's signing key.
pub struct Signer {
    keyid: String,
    key: SigningKey,
}

impl Signer {
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        Self {
            keyid: key_id(&key.verifying_key()),
            key,
        }
    }

    #[must_use]
    pub fn keyid(&self) -> &str {
        &self.keyid
    }

    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    /// # Errors
    /// When the message cannot be written as JSON.
    pub fn seal<T: Addressed + Serialize>(&self, message: &T) -> Result<Envelope, serde_json::Error> {
        Ok(self.seal_bytes(T::PAYLOAD_TYPE, &serde_json::to_vec(message)?))
    }

    #[must_use]
    pub fn seal_bytes(&self, payload_type: &str, payload: &[u8]) -> Envelope {
        let signature = self.key.sign(&pre_authentication(payload_type, payload));
        Envelope {
            payload_type: payload_type.to_owned(),
            payload: STANDARD.encode(payload),
            signatures: vec![EnvelopeSignature {
                keyid: self.keyid.clone(),
                sig: STANDARD.encode(signature.to_bytes()),
            }],
        }
    }
}

/// A key's name is the beginning of its digest: it cannot name another key by mistake.
fn key_id(key: &VerifyingKey) -> String {
    Digest::of(key.as_bytes()).to_string()["sha256:".len()..][..16].to_owned()
}

/// The public keys of one domain, as a node pinned them.
#[derive(Clone, Default)]
pub struct KeyRing {
    keys: Vec<(String, VerifyingKey)>,
    /// The names of those that counted once.
    retired: Vec<String>,
}

impl KeyRing {
    /// Adds a key under the name that its bytes give it.
    ///
    /// # Errors
    /// When the bytes are no Ed25519 public key, or a weak one.
    pub fn add(&mut self, public_key: &[u8; 32]) -> Result<(), Refused> {
        let key = VerifyingKey::from_bytes(public_key)
            .map_err(|_| Refused::Malformed("not an Ed25519 public key".into()))?;
        if key.is_weak() {
            return Err(Refused::Malformed("a weak Ed25519 public key".into()));
        }
        self.keys.push((key_id(&key), key));
        Ok(())
    }

    /// Notes that a key counts no more, so that its signature is called what it is.
    pub fn retire(&mut self, keyid: &str) {
        self.keys.retain(|(known, _)| known != keyid);
        self.retired.push(keyid.to_owned());
    }

    /// Opens an envelope that was addressed to `me` and has not expired at `now`.
    ///
    /// # Errors
    /// With the first check that did not hold.
    pub fn open<T: Addressed>(&self, raw: &[u8], me: NodeId, now: Timestamp) -> Result<Verified<T>, Refused> {
        if raw.len() > ENVELOPE_LEN_MAX {
            return Err(Refused::TooLong);
        }
        let envelope: Envelope =
            serde_json::from_slice(raw).map_err(|err| Refused::Malformed(err.to_string()))?;
        if envelope.payload_type != T::PAYLOAD_TYPE {
            return Err(Refused::OtherType {
                found: envelope.payload_type,
                expected: T::PAYLOAD_TYPE,
            });
        }
        let payload = STANDARD
            .decode(&envelope.payload)
            .map_err(|err| Refused::Malformed(format!("payload: {err}")))?;
        self.verify(&envelope, &payload)?;
        let message: T =
            serde_json::from_slice(&payload).map_err(|err| Refused::Malformed(format!("payload: {err}")))?;
        if message.audience() != me {
            return Err(Refused::OtherNode(message.audience()));
        }
        if message.expires_at() <= now {
            return Err(Refused::Expired(message.expires_at()));
        }
        Ok(Verified(message))
    }

    fn verify(&self, envelope: &Envelope, payload: &[u8]) -> Result<(), Refused> {
        if envelope.signatures.len() > SIGNATURES_MAX {
            return Err(Refused::Malformed(format!(
                "more than {SIGNATURES_MAX} signatures"
            )));
        }
        let message = pre_authentication(&envelope.payload_type, payload);
        let mut outcome = Refused::UnknownKey;
        for EnvelopeSignature { keyid, sig } in &envelope.signatures {
            let Some((_, key)) = self.keys.iter().find(|(known, _)| known == keyid) else {
                if self.retired.contains(keyid) && matches!(outcome, Refused::UnknownKey) {
                    outcome = Refused::RetiredKey(keyid.clone());
                }
                continue;
            };
            let held = STANDARD
                .decode(sig)
                .ok()
                .and_then(|bytes| Signature::from_slice(&bytes).ok())
                .is_some_and(|signature| key.verify_strict(&message, &signature).is_ok());
            if held {
                return Ok(());
            }
            outcome = Refused::BadSignature;
        }
        Err(outcome)
    }
}

/// DSSE's PAE: lengths in front of both parts, so that no two messages share their signed bytes.
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Order {
        node: NodeId,
        until: Timestamp,
    }

    impl Addressed for Order {
        const PAYLOAD_TYPE: &'static str = "application/vnd.muster.order+json";
        fn audience(&self) -> NodeId {
            self.node
        }
        fn expires_at(&self) -> Timestamp {
            self.until
        }
    }

    fn me() -> NodeId {
        NodeId::mint(at(0), [1; 10])
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn ring(signer: &Signer) -> KeyRing {
        let mut ring = KeyRing::default();
        ring.add(&signer.public_key()).unwrap();
        ring
    }

    fn sealed(signer: &Signer) -> Envelope {
        signer
            .seal(&Order {
                node: me(),
                until: at(100),
            })
            .unwrap()
    }

    fn open(keys: &KeyRing, envelope: &Envelope, now: i64) -> Result<Verified<Order>, Refused> {
        keys.open(&serde_json::to_vec(envelope).unwrap(), me(), at(now))
    }

    #[test]
    fn the_signed_bytes_are_those_of_the_dsse_text() {
        // The example of the protocol's own document.
        assert_eq!(
            pre_authentication("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn an_envelope_of_the_domain_opens() {
        let signer = Signer::from_seed(&[7; 32]);
        assert_eq!(open(&ring(&signer), &sealed(&signer), 99).unwrap().node, me());
    }

    #[test]
    fn it_expires_at_the_stated_instant() {
        let signer = Signer::from_seed(&[7; 32]);
        assert!(matches!(
            open(&ring(&signer), &sealed(&signer), 100),
            Err(Refused::Expired(_))
        ));
    }

    #[test]
    fn another_nodes_envelope_stays_shut() {
        let signer = Signer::from_seed(&[7; 32]);
        let other = NodeId::mint(at(0), [2; 10]);
        let envelope = signer
            .seal(&Order {
                node: other,
                until: at(100),
            })
            .unwrap();
        assert!(matches!(open(&ring(&signer), &envelope, 0), Err(Refused::OtherNode(n)) if n == other));
    }

    #[test]
    fn another_domains_key_is_unknown_and_a_borrowed_name_does_not_help() {
        let (ours, theirs) = (Signer::from_seed(&[7; 32]), Signer::from_seed(&[8; 32]));
        let mut envelope = sealed(&theirs);
        assert!(matches!(
            open(&ring(&ours), &envelope, 0),
            Err(Refused::UnknownKey)
        ));
        envelope.signatures[0].keyid = ours.keyid().to_owned();
        assert!(matches!(
            open(&ring(&ours), &envelope, 0),
            Err(Refused::BadSignature)
        ));
    }

    #[test]
    fn one_good_signature_among_foreign_ones_is_enough_for_a_rotation() {
        let (old, new) = (Signer::from_seed(&[7; 32]), Signer::from_seed(&[8; 32]));
        let mut envelope = sealed(&old);
        envelope.signatures.extend(sealed(&new).signatures);
        assert!(open(&ring(&old), &envelope, 0).is_ok());
        assert!(open(&ring(&new), &envelope, 0).is_ok());
    }

    #[test]
    fn a_retired_key_opens_nothing_and_is_called_so() {
        let (old, new) = (Signer::from_seed(&[7; 32]), Signer::from_seed(&[8; 32]));
        let mut keys = ring(&old);
        keys.add(&new.public_key()).unwrap();
        keys.retire(old.keyid());
        assert!(matches!(
            open(&keys, &sealed(&old), 0),
            Err(Refused::RetiredKey(keyid)) if keyid == old.keyid()
        ));
        let mut both = sealed(&old);
        both.signatures.extend(sealed(&new).signatures);
        assert!(open(&keys, &both, 0).is_ok());
    }

    #[test]
    fn a_signature_for_one_kind_of_message_is_none_for_another() {
        let signer = Signer::from_seed(&[7; 32]);
        let mut envelope = sealed(&signer);
        envelope.payload_type = "application/vnd.muster.other+json".into();
        assert!(matches!(
            open(&ring(&signer), &envelope, 0),
            Err(Refused::OtherType { .. })
        ));
    }

    #[test]
    fn a_weak_key_is_never_pinned() {
        assert!(KeyRing::default().add(&[0; 32]).is_err());
    }

    #[test]
    fn an_oversized_envelope_is_not_even_parsed() {
        let signer = Signer::from_seed(&[7; 32]);
        let raw = vec![b' '; ENVELOPE_LEN_MAX + 1];
        assert!(matches!(
            ring(&signer).open::<Order>(&raw, me(), at(0)),
            Err(Refused::TooLong)
        ));
    }

    proptest! {
        #[test]
        fn no_changed_byte_passes(position in 0usize..10_000, bit in 0u8..8) {
            let signer = Signer::from_seed(&[7; 32]);
            let mut raw = serde_json::to_vec(&sealed(&signer)).unwrap();
            let position = position % raw.len();
            raw[position] ^= 1 << bit;
            let opened = ring(&signer).open::<Order>(&raw, me(), at(0));
            // A changed byte may at most rename JSON white space; what opens must be what was sealed.
            if let Ok(order) = opened {
                prop_assert_eq!(order.until, at(100));
            }
        }
    }
}
