//! The URLs by which nodes put outputs into the built-in store: each for one object of one size, for a while.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use muster_shared::time::Timestamp;

use super::{Declared, Upload};
use crate::keys::{Purpose, ServerKey};

pub(super) struct SignedUrls {
    server_url: String,
    key: ServerKey,
}

/// Why a URL is not one to upload by.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadUrl {
    #[error("the URL's signature does not hold for this object and size")]
    Signature,
    #[error("the URL expired at {0}")]
    Expired(Timestamp),
}

/// What an upload's URL claims.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UploadClaim {
    length: u64,
    #[serde(default)]
    sha256: Option<String>,
    expires: i64,
    signature: String,
}

/// What a good URL was signed for. Only [`SignedUrls::check`] makes one.
pub(crate) struct SignedUpload {
    key: String,
    declared: Declared,
}

impl SignedUpload {
    /// Where it goes, and what it is to be.
    pub(super) fn into_parts(self) -> (String, Declared) {
        (self.key, self.declared)
    }
}

impl SignedUrls {
    pub(super) const fn new(server_url: String, key: ServerKey) -> Self {
        Self { server_url, key }
    }

    pub(super) fn presign(&self, key: &str, declared: Declared, expires: Timestamp) -> Upload {
        let Declared { bytes, sha256 } = declared;
        let expires = expires.as_millis();
        let signature = URL_SAFE_NO_PAD.encode(
            self.key
                .mac(Purpose::OutputUrl, signed(key, declared, expires).as_bytes()),
        );
        let sha256 = sha256
            .map(|sha256| format!("&sha256={sha256}"))
            .unwrap_or_default();
        Upload {
            url: format!(
                "{}/v1/outputs/{key}?length={bytes}{sha256}&expires={expires}&signature={signature}",
                self.server_url
            ),
            headers: BTreeMap::from([("content-length".to_owned(), bytes.to_string())]),
        }
    }

    /// Whether the URL for this object was signed here, and is good still.
    pub(super) fn check(
        &self,
        key: String,
        claim: &UploadClaim,
        now: Timestamp,
    ) -> Result<SignedUpload, BadUrl> {
        let tag = URL_SAFE_NO_PAD
            .decode(&claim.signature)
            .map_err(|_| BadUrl::Signature)?;
        let declared = Declared {
            bytes: claim.length,
            sha256: claim.sha256.as_deref().and_then(|raw| raw.parse().ok()),
        };
        // What cannot be read as a digest was not signed either.
        let readable = declared.sha256.is_some() == claim.sha256.is_some();
        let signed = signed(&key, declared, claim.expires);
        if !readable || !self.key.holds(Purpose::OutputUrl, signed.as_bytes(), &tag) {
            return Err(BadUrl::Signature);
        }
        let expires = Timestamp::from_millis(claim.expires);
        if expires <= now {
            return Err(BadUrl::Expired(expires));
        }
        Ok(SignedUpload { key, declared })
    }
}

fn signed(key: &str, declared: Declared, expires: i64) -> String {
    let Declared { bytes, sha256 } = declared;
    let sha256 = sha256.map(|sha256| sha256.to_string()).unwrap_or_default();
    format!("PUT\0{key}\0{bytes}\0{sha256}\0{expires}")
}

#[cfg(test)]
mod tests {
    use muster_shared::ids::Digest;

    use super::*;
    use crate::keys::DataDir;

    impl UploadClaim {
        /// As control reads it from the request.
        pub(in crate::outputs) fn of(url: &str) -> Self {
            let query = url.split_once('?').unwrap().1;
            let given = |name| query.split('&').find_map(|p| p.strip_prefix(name));
            let value = |name| given(name).unwrap().to_owned();
            Self {
                length: value("length=").parse().unwrap(),
                sha256: given("sha256=").map(str::to_owned),
                expires: value("expires=").parse().unwrap(),
                signature: value("signature="),
            }
        }
    }

    #[test]
    fn an_expired_or_altered_url_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("secrets")).unwrap();
        let data = DataDir::new(dir.path());
        data.write_keys().unwrap();
        let urls = SignedUrls::new("https://c".into(), data.server_key().unwrap());
        let at = Timestamp::from_millis;
        let bound_to = |sha256| {
            let declared = Declared { bytes: 5, sha256 };
            UploadClaim::of(&urls.presign("key", declared, at(1000)).url)
        };
        let claim = || bound_to(None);
        let check = |key: &str, claim: &UploadClaim, now| urls.check(key.to_owned(), claim, at(now));
        assert!(check("key", &claim(), 999).is_ok());
        assert!(matches!(check("key", &claim(), 1000), Err(BadUrl::Expired(_))));
        assert!(matches!(check("other", &claim(), 1), Err(BadUrl::Signature)));
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other").to_string());
        assert!(check("key", &bound_to(Some(one)), 1).is_ok());
        let unreadable = || Some("x".to_owned());
        for (given, sha256) in [
            (bound_to(Some(one)), None),
            (bound_to(Some(one)), Some(other)),
            (bound_to(Some(one)), unreadable()),
            (claim(), unreadable()),
        ] {
            let altered = UploadClaim { sha256, ..given };
            assert!(matches!(check("key", &altered, 1), Err(BadUrl::Signature)));
        }
        let signature = "no base64!".to_owned();
        for altered in [
            UploadClaim { length: 6, ..claim() },
            UploadClaim {
                expires: 2000,
                ..claim()
            },
            UploadClaim { signature, ..claim() },
        ] {
            assert!(matches!(check("key", &altered, 1), Err(BadUrl::Signature)));
        }
    }
}
