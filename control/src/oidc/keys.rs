//! The issuer's public keys (RFC 7517) and for how long they count. Pure: the time is passed in.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;

/// How a token may be signed: with a key that the issuer alone has. A shared secret proves nothing of who signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alg {
    Rs256,
    Ps256,
    Es256,
    EdDsa,
}

impl Alg {
    pub(crate) fn parse(raw: &str) -> Option<Self> {
        match raw {
            "RS256" => Some(Self::Rs256),
            "PS256" => Some(Self::Ps256),
            "ES256" => Some(Self::Es256),
            // The second is the name of RFC 9864.
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    kid: String,
    public: Public,
    /// The one algorithm that the issuer has it for, where it says so.
    alg: Option<Alg>,
}

impl Key {
    pub(crate) fn is_for(&self, alg: Alg) -> bool {
        let fits = match self.public {
            Public::Rsa { .. } => matches!(alg, Alg::Rs256 | Alg::Ps256),
            Public::P256(_) => alg == Alg::Es256,
            Public::Ed25519(_) => alg == Alg::EdDsa,
        };
        fits && self.alg.is_none_or(|only| only == alg)
    }

    /// RSA keys below 2048 bits sign nothing.
    pub(crate) fn signed(&self, alg: Alg, message: &[u8], signature: &[u8]) -> bool {
        let verified = match (&self.public, alg) {
            (Public::Rsa { n, e }, Alg::Rs256) => RsaPublicKeyComponents { n, e }.verify(
                &signature::RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            (Public::Rsa { n, e }, Alg::Ps256) => RsaPublicKeyComponents { n, e }.verify(
                &signature::RSA_PSS_2048_8192_SHA256,
                message,
                signature,
            ),
            (Public::P256(point), Alg::Es256) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Public::Ed25519(x), Alg::EdDsa) => {
                UnparsedPublicKey::new(&signature::ED25519, x).verify(message, signature)
            }
            (Public::Rsa { .. } | Public::P256(_) | Public::Ed25519(_), _) => return false,
        };
        verified.is_ok()
    }
}

#[derive(Deserialize)]
struct RawSet {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct RawKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// What the issuer signs with, as far as it is of use here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeySet(Vec<Key>);

impl KeySet {
    /// Keys of other kinds or for other purposes are none of ours; they may stand beside those that are.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let raw: RawSet = serde_json::from_slice(bytes)?;
        let usable = |key| serde_json::from_value(key).ok().and_then(usable);
        Ok(Self(raw.keys.into_iter().filter_map(usable).collect()))
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The key of that id; where several have it, the one that is for the algorithm.
    fn find(&self, kid: &str, alg: Alg) -> Option<&Key> {
        let mut named = self.0.iter().filter(|key| key.kid == kid);
        let first = named.clone().next();
        named.find(|key| key.is_for(alg)).or(first)
    }
}

fn usable(raw: RawKey) -> Option<Key> {
    let bytes = |part: Option<String>| URL_SAFE_NO_PAD.decode(part?).ok();
    let signs = raw.purpose.is_none_or(|purpose| purpose == "sig")
        && raw.key_ops.is_none_or(|ops| ops.iter().any(|op| op == "verify"));
    if !signs {
        return None;
    }
    let public = match (&*raw.kty, raw.crv.as_deref()) {
        ("RSA", _) => Public::Rsa {
            n: bytes(raw.n)?,
            e: bytes(raw.e)?,
        },
        ("EC", Some("P-256")) => {
            let (x, y) = (bytes(raw.x)?, bytes(raw.y)?);
            // An uncompressed point (SEC 1, section 2.3.3).
            Public::P256([&[4], &*x, &*y].concat())
        }
        ("OKP", Some("Ed25519")) => Public::Ed25519(bytes(raw.x)?),
        _ => return None,
    };
    let alg = match raw.alg {
        Some(alg) => Some(Alg::parse(&alg)?),
        None => None,
    };
    Some(Key {
        kid: raw.kid?,
        public,
        alg,
    })
}

/// How long keys count, and how often the issuer may be asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) keys_max_age: Duration,
    pub(crate) ask_every: Duration,
}

/// What was last heard of the issuer.
#[derive(Default)]
pub(crate) struct Cache {
    held: Option<(Arc<KeySet>, Instant)>,
    asked_at: Option<Instant>,
    failed: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    Use(Key),
    /// It counts, and it is time to look whether it still does.
    UseAndAsk(Key),
    Ask,
    /// The issuer has no such key, as far as was heard of late.
    Unknown,
    /// The issuer could not be asked.
    Unavailable,
}

impl Cache {
    pub(crate) fn look(&self, (kid, alg): (&str, Alg), times: Times, now: Instant) -> Lookup {
        // A stranger makes up key ids as fast as it likes; the issuer is asked at its own pace.
        let may_ask = self
            .asked_at
            .is_none_or(|at| now.saturating_duration_since(at) >= times.ask_every);
        let age = |at: &Instant| now.saturating_duration_since(*at);
        let counting = self.held.as_ref().filter(|(_, at)| age(at) < times.keys_max_age);
        let found = counting.and_then(|(keys, at)| Some((keys.find(kid, alg)?, at)));
        match found {
            Some((key, at)) if may_ask && age(at) >= times.keys_max_age / 2 => Lookup::UseAndAsk(key.clone()),
            Some((key, _)) => Lookup::Use(key.clone()),
            None if may_ask => Lookup::Ask,
            None if self.failed || counting.is_none() => Lookup::Unavailable,
            None => Lookup::Unknown,
        }
    }

    /// Takes what the issuer said in place of all that it said before.
    pub(crate) fn answered(&mut self, keys: KeySet, now: Instant) {
        self.held = Some((Arc::new(keys), now));
        self.asked_at = Some(now);
        self.failed = false;
    }

    /// What it said before goes on counting for its time.
    pub(crate) fn missed(&mut self, now: Instant) {
        self.asked_at = Some(now);
        self.failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    const TIMES: Times = Times {
        keys_max_age: Duration::from_secs(600),
        ask_every: Duration::from_secs(30),
    };

    fn set(kids: &[&str]) -> KeySet {
        let keys: Vec<_> = kids
            .iter()
            .map(|kid| serde_json::json!({"kty": "OKP", "crv": "Ed25519", "x": X, "kid": kid}))
            .collect();
        KeySet::parse(serde_json::json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_key_is_for_the_algorithms_of_its_kind_and_for_the_one_it_names() {
        let parse = |key: serde_json::Value| {
            KeySet::parse(serde_json::json!({ "keys": [key] }).to_string().as_bytes()).unwrap()
        };
        let rsa = |extra: &str| {
            let text = format!(r#"{{"kty":"RSA","kid":"a","n":"AQAB","e":"AQAB"{extra}}}"#);
            parse(serde_json::from_str(&text).unwrap())
        };
        assert!(rsa("").0[0].is_for(Alg::Rs256) && rsa("").0[0].is_for(Alg::Ps256));
        assert!(!rsa("").0[0].is_for(Alg::Es256) && !rsa("").0[0].is_for(Alg::EdDsa));
        let only = rsa(r#","alg":"PS256""#);
        assert!(only.0[0].is_for(Alg::Ps256) && !only.0[0].is_for(Alg::Rs256));
        for other in [
            r#","use":"enc""#,
            r#","key_ops":["encrypt"]"#,
            r#","alg":"RSA-OAEP""#,
            r#","alg":"HS256""#,
        ] {
            assert_eq!(rsa(other).len(), 0, "{other}");
        }
        let secret = serde_json::json!({"kty": "oct", "kid": "a", "k": "AQAB", "alg": "HS256"});
        assert_eq!(parse(secret).len(), 0);
        assert_eq!(parse(serde_json::json!("no key")).len(), 0);
    }

    #[test]
    fn keys_count_for_their_time_and_the_issuer_is_asked_at_its_pace() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let look = |cache: &Cache, kid, s| cache.look((kid, Alg::EdDsa), TIMES, at(s));
        let mut cache = Cache::default();
        assert_eq!(look(&cache, "a", 0), Lookup::Ask);

        // Down from the start.
        cache.missed(at(0));
        assert_eq!(look(&cache, "a", 1), Lookup::Unavailable);
        assert_eq!(look(&cache, "a", 30), Lookup::Ask);

        let a = set(&["a"]);
        cache.answered(a.clone(), at(100));
        assert_eq!(look(&cache, "a", 101), Lookup::Use(a.0[0].clone()));
        assert_eq!(look(&cache, "made-up", 101), Lookup::Unknown);
        assert_eq!(look(&cache, "made-up", 129), Lookup::Unknown);
        assert_eq!(look(&cache, "made-up", 130), Lookup::Ask);
        assert_eq!(look(&cache, "a", 400), Lookup::UseAndAsk(a.0[0].clone()));

        // Gone in the meantime: what was heard counts for its time and not longer.
        cache.missed(at(400));
        assert_eq!(look(&cache, "a", 401), Lookup::Use(a.0[0].clone()));
        assert_eq!(look(&cache, "b", 401), Lookup::Unavailable);
        cache.missed(at(699));
        assert_eq!(look(&cache, "a", 699), Lookup::Use(a.0[0].clone()));
        assert_eq!(look(&cache, "a", 700), Lookup::Unavailable);

        // A key that the issuer took back is gone with the next answer.
        cache.answered(set(&["b"]), at(800));
        assert_eq!(look(&cache, "a", 801), Lookup::Unknown);
        assert!(matches!(look(&cache, "b", 801), Lookup::Use(_)));
    }
}
