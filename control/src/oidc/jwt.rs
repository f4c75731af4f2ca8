//! Whether a bearer is a token of the issuer for us, and whose. Pure: keys and the time are passed in.
//!
//! Access tokens (RFC 9068) and ID tokens look much the same, and several issuers give access tokens without a type of
//! their own. The audience decides: what is not made out to us is refused, and so is what says that it is neither.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use muster_shared::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys::{Alg, Key};
use crate::authz;

/// Types of a token that may open anything; a logout token, for one, may not.
const TYPES: [&str; 3] = ["at+jwt", "application/at+jwt", "jwt"];

/// What is asked of every token.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) issuer: String,
    pub(crate) audience: String,
    pub(crate) subject_claim: String,
    pub(crate) groups_claim: String,
    pub(crate) groups_max: usize,
    /// How far the issuer's clock may be from ours.
    pub(crate) leeway: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BadToken {
    #[error("it is no JWT")]
    Malformed,
    #[error("its algorithm is none of RS256, PS256, ES256 and EdDSA")]
    Algorithm,
    #[error("its type is not that of an access token")]
    Type,
    #[error("it has critical extensions that are not known here")]
    Critical,
    #[error("it names no key (kid)")]
    NoKeyId,
    #[error("the issuer has no key with its kid")]
    UnknownKey,
    #[error("its key is not for its algorithm")]
    KeyMismatch,
    #[error("its signature does not hold")]
    Signature,
    #[error("it is from another issuer")]
    Issuer,
    #[error("it is made out to another audience")]
    Audience,
    #[error("it does not say when it expires")]
    NoExpiry,
    #[error("it expired at {0}")]
    Expired(Timestamp),
    #[error("it is not valid before {0}")]
    NotYet(Timestamp),
    #[error("it is bound to a key of its holder, and that proof is not taken here")]
    Bound,
    #[error("it has no subject that a tuple could name")]
    Subject,
    #[error("its claim of groups is no list of names")]
    Groups,
    #[error("it has more groups than oidc.groups_max ({0}) allows")]
    TooManyGroups(usize),
    #[error("the issuer left its groups out because they are too many; have it send fewer")]
    GroupsElsewhere,
}

/// What a client is told of a bad token in the challenge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Malformed,
    Algorithm,
    Key,
    Signature,
    Issuer,
    Audience,
    Expired,
    NotYetValid,
    Bound,
    Subject,
    Groups,
}

impl Fault {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::Key => "key",
            Self::Signature => "signature",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Bound => "bound",
            Self::Subject => "subject",
            Self::Groups => "groups",
        }
    }
}

impl BadToken {
    pub(crate) const fn fault(self) -> Fault {
        match self {
            Self::Malformed | Self::Type | Self::Critical => Fault::Malformed,
            Self::Algorithm => Fault::Algorithm,
            Self::NoKeyId | Self::UnknownKey | Self::KeyMismatch => Fault::Key,
            Self::Signature => Fault::Signature,
            Self::Issuer => Fault::Issuer,
            Self::Audience => Fault::Audience,
            Self::NoExpiry | Self::Expired(_) => Fault::Expired,
            Self::NotYet(_) => Fault::NotYetValid,
            Self::Bound => Fault::Bound,
            Self::Subject => Fault::Subject,
            Self::Groups | Self::TooManyGroups(_) | Self::GroupsElsewhere => Fault::Groups,
        }
    }
}

/// Who a token is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    pub(crate) subject: String,
    /// The members of its groups, as subjects.
    pub(crate) groups: Vec<String>,
    pub(crate) expires_at: Timestamp,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    typ: Option<String>,
    kid: Option<String>,
    crit: Option<Value>,
}

/// A token taken apart, of which nothing is believed yet.
pub(crate) struct Presented<'t> {
    pub(crate) alg: Alg,
    pub(crate) kid: String,
    signed: &'t str,
    payload: &'t str,
    signature: Vec<u8>,
}

/// Whether a bearer means to be a JWT: three parts, the first a JSON object.
pub(crate) fn is_shaped(bearer: &str) -> bool {
    bearer.starts_with("ey") && bearer.bytes().filter(|b| *b == b'.').count() == 2
}

impl<'t> Presented<'t> {
    pub(crate) fn parse(raw: &'t str) -> Result<Self, BadToken> {
        let (signed, signature) = raw.rsplit_once('.').ok_or(BadToken::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(BadToken::Malformed)?;
        let decoded = |part| URL_SAFE_NO_PAD.decode(part).map_err(|_| BadToken::Malformed);
        let header: Header = serde_json::from_slice(&decoded(header)?).map_err(|_| BadToken::Malformed)?;
        let alg = Alg::parse(&header.alg).ok_or(BadToken::Algorithm)?;
        if header.crit.is_some() {
            return Err(BadToken::Critical);
        }
        let of_access = |typ: &String| TYPES.iter().any(|known| known.eq_ignore_ascii_case(typ));
        if !header.typ.as_ref().is_none_or(of_access) {
            return Err(BadToken::Type);
        }
        Ok(Self {
            alg,
            kid: header.kid.ok_or(BadToken::NoKeyId)?,
            signed,
            payload,
            signature: decoded(signature)?,
        })
    }

    /// Believes the token if the key signed it and it is for us now.
    pub(crate) fn check(&self, key: &Key, rules: &Rules, now: Timestamp) -> Result<Caller, BadToken> {
        if !key.is_for(self.alg) {
            return Err(BadToken::KeyMismatch);
        }
        if !key.signed(self.alg, self.signed.as_bytes(), &self.signature) {
            return Err(BadToken::Signature);
        }
        let payload = URL_SAFE_NO_PAD
            .decode(self.payload)
            .map_err(|_| BadToken::Malformed)?;
        let claims = serde_json::from_slice(&payload).map_err(|_| BadToken::Malformed)?;
        caller(&claims, rules, now)
    }
}

fn caller(claims: &Map<String, Value>, rules: &Rules, now: Timestamp) -> Result<Caller, BadToken> {
    if claims.get("iss").and_then(Value::as_str) != Some(&rules.issuer) {
        return Err(BadToken::Issuer);
    }
    let ours = |audience: &Value| audience.as_str() == Some(&rules.audience);
    let made_out_to_us = match claims.get("aud") {
        Some(Value::Array(audiences)) => audiences.iter().any(ours),
        Some(audience) => ours(audience),
        None => false,
    };
    if !made_out_to_us {
        return Err(BadToken::Audience);
    }
    let expires_at = instant(claims, "exp")?.ok_or(BadToken::NoExpiry)?;
    if expires_at.plus(rules.leeway) <= now {
        return Err(BadToken::Expired(expires_at));
    }
    for claim in ["nbf", "iat"] {
        if let Some(at) = instant(claims, claim)?.filter(|at| *at > now.plus(rules.leeway)) {
            return Err(BadToken::NotYet(at));
        }
    }
    if claims.contains_key("cnf") {
        return Err(BadToken::Bound);
    }
    let subject = claims
        .get(&rules.subject_claim)
        .and_then(Value::as_str)
        .and_then(authz::issued_user)
        .ok_or(BadToken::Subject)?;
    Ok(Caller {
        subject,
        groups: groups(claims, rules)?,
        expires_at,
    })
}

/// A group that no tuple could name grants nothing and takes nothing away, so it is left out. Groups must not be left out
/// otherwise: one of them may be excluded.
fn groups(claims: &Map<String, Value>, rules: &Rules) -> Result<Vec<String>, BadToken> {
    let elsewhere = claims.get("_claim_names").and_then(Value::as_object);
    if elsewhere.is_some_and(|names| names.contains_key(&rules.groups_claim)) {
        return Err(BadToken::GroupsElsewhere);
    }
    let named = match claims.get(&rules.groups_claim) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(named)) => named.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    if named.len() > rules.groups_max {
        return Err(BadToken::TooManyGroups(rules.groups_max));
    }
    let names: Option<Vec<&str>> = named.iter().map(Value::as_str).collect();
    let mut groups: Vec<_> = names
        .ok_or(BadToken::Groups)?
        .into_iter()
        .filter_map(authz::issued_group)
        .collect();
    groups.sort();
    groups.dedup();
    Ok(groups)
}

/// A claim in seconds, which may have a fraction.
fn instant(claims: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, BadToken> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let seconds = value.as_f64().filter(|s| (0.0..1e12).contains(s));
    let seconds = seconds.ok_or(BadToken::Malformed)?;
    let since = Duration::try_from_secs_f64(seconds).map_err(|_| BadToken::Malformed)?;
    Ok(Some(Timestamp::from_millis(0).plus(since)))
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
