//! Names and digests, each parsed once where it enters.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::time::Timestamp;

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A time-ordered UUIDv7 (RFC 9562, section 5.7) of this instant and these ten random bytes.
            #[must_use]
            pub fn mint(now: Timestamp, chance: [u8; 10]) -> Self {
                let ms = u64::try_from(now.as_millis()).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(ms, &chance).into_uuid())
            }

            #[must_use]
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        #[cfg(feature = "openapi")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": "uuid" })
            }
        }

        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(raw: &str) -> Result<Self, uuid::Error> {
                // Only the hyphenated form: one id has one spelling in URLs, logs and object keys.
                if raw.len() != uuid::fmt::Hyphenated::LENGTH {
                    return Err(Uuid::try_parse("").expect_err("the empty text is no UUID"));
                }
                Uuid::try_parse(raw).map(Self)
            }
        }
    )+};
}

uuid_ids! {
    /// A tenant: capacity and signing keys belong to it.
    DomainId,
    /// Where permission is asked.
    ProjectId,
    /// A machine that was enrolled.
    NodeId,
    /// One dispatch of one action to a cohort.
    ExecutionId,
    /// One event on a node's stream.
    EventId,
    /// Anything else that only needs to be told apart: tokens, violations, tuples.
    RowId,
}

/// The longest action name, in bytes.
pub const ACTION_NAME_LEN_MAX: usize = 64;

/// The name of a builtin or a hook: it is a file name, a label value and a URL segment without escaping.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ActionName(String);

/// The text cannot name an action.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not an action name: 1 to {ACTION_NAME_LEN_MAX} of a-z A-Z 0-9 . _ -, first a letter or digit"
)]
pub struct BadActionName(String);

impl ActionName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ActionName {
    type Error = BadActionName;
    fn try_from(raw: String) -> Result<Self, BadActionName> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let sound = (1..=ACTION_NAME_LEN_MAX).contains(&raw.len())
            && raw.bytes().all(plain)
            && raw.as_bytes()[0].is_ascii_alphanumeric();
        if sound {
            Ok(Self(raw))
        } else {
            Err(BadActionName(raw))
        }
    }
}

impl FromStr for ActionName {
    type Err = BadActionName;
    fn from_str(raw: &str) -> Result<Self, BadActionName> {
        raw.to_owned().try_into()
    }
}

impl From<ActionName> for String {
    fn from(name: ActionName) -> Self {
        name.0
    }
}

impl fmt::Display for ActionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(feature = "openapi")]
impl schemars::JsonSchema for ActionName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ActionName".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The name of a builtin or a hook.",
            "type": "string",
            "minLength": 1,
            "maxLength": ACTION_NAME_LEN_MAX,
            "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$",
        })
    }
}

/// A SHA-256 digest (FIPS 180-4): base64 on the wire, `sha256:<hex>` for people.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The text is not a SHA-256 digest.
#[derive(Debug, thiserror::Error)]
#[error("not a SHA-256 digest: expected base64 of 32 bytes or sha256:<64 hex digits>")]
pub struct BadDigest;

impl Digest {
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    #[must_use]
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.0)
    }
}

/// Hashes a stream of bytes that is never held whole.
#[derive(Clone, Default)]
pub struct Digester(Sha256);

impl Digester {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl FromStr for Digest {
    type Err = BadDigest;
    fn from_str(raw: &str) -> Result<Self, BadDigest> {
        if let Some(hex) = raw.strip_prefix("sha256:") {
            return from_hex(hex).map(Self).ok_or(BadDigest);
        }
        STANDARD
            .decode(raw)
            .ok()
            .and_then(|b| b.try_into().ok())
            .map(Self)
            .ok_or(BadDigest)
    }
}

fn from_hex(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_base64())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
impl schemars::JsonSchema for Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }

    fn inline_schema() -> bool {
        // It has two spellings where it is read, and one where it is written.
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        const BASE64: &str = "[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=";
        let pattern = if generator.contract().is_deserialize() {
            format!("^({BASE64}|sha256:[0-9A-Fa-f]{{64}})$")
        } else {
            format!("^{BASE64}$")
        };
        schemars::json_schema!({ "type": "string", "pattern": pattern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_names_that_could_leave_the_hooks_directory_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a b",
            ".hidden",
            "-rf",
            "ü",
            "a\0",
            "a\n",
            &"x".repeat(65),
        ] {
            assert!(bad.parse::<ActionName>().is_err(), "{bad:?}");
        }
        for good in ["ping", "disk.usage", "Backup_2.sh", &"x".repeat(64)] {
            assert!(good.parse::<ActionName>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_digest_has_two_spellings_and_one_value() {
        let digest = Digest::of(b"abc");
        assert_eq!(
            digest.to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        assert_eq!(digest.to_base64().parse::<Digest>().unwrap(), digest);
        for bad in [
            "",
            "sha256:",
            "sha256:zz",
            "sha256:+a7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "YWJj",
            "sha256:ééééééééééééééééééééééééééééééé",
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_minted_later_sort_later() {
        let early = ExecutionId::mint(Timestamp::from_millis(1_000), [0xff; 10]);
        let late = ExecutionId::mint(Timestamp::from_millis(1_001), [0; 10]);
        assert!(early < late);
        assert_eq!(early.uuid().get_version_num(), 7);
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = NodeId::mint(Timestamp::from_millis(5), [7; 10]);
        assert_eq!(id.to_string().parse::<NodeId>().unwrap(), id);
        assert!(id.uuid().simple().to_string().parse::<NodeId>().is_err());
        assert!(format!("{{{id}}}").parse::<NodeId>().is_err());
    }
}
