use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use serde_json::json;

use super::*;
use crate::oidc::keys::{Cache, KeySet, Lookup, Times};

const NOW: i64 = 1_900_000_000;

fn rules() -> Rules {
    Rules {
        issuer: "https://id.example".into(),
        audience: "muster".into(),
        subject_claim: "sub".into(),
        groups_claim: "groups".into(),
        groups_max: 3,
        leeway: Duration::from_secs(30),
    }
}

fn claims() -> Value {
    json!({"iss": "https://id.example", "aud": ["other", "muster"], "sub": "alice", "exp": NOW + 60, "iat": NOW,
           "groups": ["ops", "two words", "ops", "/web"]})
}

fn judged(change: impl FnOnce(&mut Map<String, Value>)) -> Result<Caller, BadToken> {
    let mut claims = claims();
    change(claims.as_object_mut().unwrap());
    let rules = Rules {
        groups_max: 4,
        ..rules()
    };
    caller(
        claims.as_object().unwrap(),
        &rules,
        Timestamp::from_millis(NOW * 1000),
    )
}

fn with(name: &str, value: Value) -> Result<Caller, BadToken> {
    judged(|claims| {
        claims.insert(name.to_owned(), value);
    })
}

fn without(name: &str) -> Result<Caller, BadToken> {
    judged(|claims| {
        claims.remove(name);
    })
}

#[test]
fn a_caller_is_a_user_and_the_members_of_its_groups() {
    let caller = judged(|_| {}).unwrap();
    assert_eq!(caller.subject, "user:alice");
    assert_eq!(caller.groups, ["group:oidc//web#member", "group:oidc/ops#member"]);
    assert_eq!(caller.expires_at.as_millis(), (NOW + 60) * 1000);
    assert_eq!(
        with("groups", json!("ops")).unwrap().groups,
        ["group:oidc/ops#member"]
    );
    assert!(without("groups").unwrap().groups.is_empty());
    assert!(with("aud", json!("muster")).is_ok());
}

#[test]
fn each_claim_that_is_not_as_it_must_be_refuses_the_token() {
    let at = |s| Timestamp::from_millis((NOW + s) * 1000);
    for (found, right) in [
        (with("iss", json!("https://id.example/")), BadToken::Issuer),
        (with("iss", json!(["https://id.example"])), BadToken::Issuer),
        (without("iss"), BadToken::Issuer),
        (with("aud", json!("muster2")), BadToken::Audience),
        (with("aud", json!([])), BadToken::Audience),
        (without("aud"), BadToken::Audience),
        (without("exp"), BadToken::NoExpiry),
        (with("exp", json!(NOW - 30)), BadToken::Expired(at(-30))),
        (with("exp", json!("never")), BadToken::Malformed),
        (with("exp", json!(1e300)), BadToken::Malformed),
        (with("nbf", json!(NOW + 31)), BadToken::NotYet(at(31))),
        (with("iat", json!(NOW + 31)), BadToken::NotYet(at(31))),
        (with("cnf", json!({"jkt": "x"})), BadToken::Bound),
        (without("sub"), BadToken::Subject),
        (with("sub", json!("")), BadToken::Subject),
        (with("sub", json!("a b")), BadToken::Subject),
        (with("sub", json!(7)), BadToken::Subject),
        (with("groups", json!([1])), BadToken::Groups),
        (with("groups", json!({})), BadToken::Groups),
        (
            with("groups", json!(["a", "b", "c", "d", "e"])),
            BadToken::TooManyGroups(4),
        ),
        (
            with("_claim_names", json!({"groups": "src1"})),
            BadToken::GroupsElsewhere,
        ),
    ] {
        assert_eq!(found, Err(right));
    }
    assert!(with("exp", json!(NOW - 29)).is_ok(), "the leeway");
    assert!(with("nbf", json!(NOW + 30)).is_ok(), "the leeway");
}

/// A key of an issuer's, and as the issuer publishes it.
fn keys() -> (Ed25519KeyPair, Key) {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": x}]});
    let set = KeySet::parse(set.to_string().as_bytes()).unwrap();
    let (mut cache, now) = (Cache::default(), std::time::Instant::now());
    cache.answered(set, now);
    let times = Times {
        keys_max_age: Duration::from_secs(60),
        ask_every: Duration::from_secs(1),
    };
    let Lookup::Use(key) = cache.look(("k", Alg::EdDsa), times, now) else {
        panic!("the key is there")
    };
    (pair, key)
}

fn token(pair: &Ed25519KeyPair, header: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(&claims()));
    let signature = URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn judge(key: &Key, token: &str) -> Result<Caller, BadToken> {
    let rules = Rules {
        groups_max: 4,
        ..rules()
    };
    Presented::parse(token)?.check(key, &rules, Timestamp::from_millis(NOW * 1000))
}

#[test]
fn a_signature_is_believed_and_nothing_that_was_changed_after_it() {
    let (pair, key) = keys();
    let good = token(&pair, &json!({"alg": "EdDSA", "kid": "k", "typ": "at+jwt"}));
    assert!(judge(&key, &good).is_ok());
    let parts: Vec<_> = good.split('.').collect();
    let forged = URL_SAFE_NO_PAD.encode(claims().to_string().replace("alice", "root"));
    for bad in [
        format!("{}.{forged}.{}", parts[0], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        token(&keys().0, &json!({"alg": "EdDSA", "kid": "k"})),
    ] {
        assert_eq!(judge(&key, &bad), Err(BadToken::Signature), "{bad}");
    }
}

#[test]
fn a_header_that_asks_for_anything_else_is_refused() {
    let (pair, key) = keys();
    for (header, right) in [
        (json!({"alg": "none", "kid": "k"}), BadToken::Algorithm),
        (json!({"alg": "HS256", "kid": "k"}), BadToken::Algorithm),
        (json!({"alg": "eddsa", "kid": "k"}), BadToken::Algorithm),
        (json!({"alg": "RS256", "kid": "k"}), BadToken::KeyMismatch),
        (json!({"alg": "EdDSA"}), BadToken::NoKeyId),
        (
            json!({"alg": "EdDSA", "kid": "k", "typ": "logout+jwt"}),
            BadToken::Type,
        ),
        (
            json!({"alg": "EdDSA", "kid": "k", "crit": ["b64"]}),
            BadToken::Critical,
        ),
        (json!({"kid": "k"}), BadToken::Malformed),
        (json!([]), BadToken::Malformed),
    ] {
        assert_eq!(judge(&key, &token(&pair, &header)), Err(right), "{header}");
    }
    for typ in ["JWT", "application/at+jwt", "AT+JWT"] {
        let header = json!({"alg": "EdDSA", "kid": "k", "typ": typ});
        assert!(judge(&key, &token(&pair, &header)).is_ok(), "{typ}");
    }
    for raw in ["", ".", "..", "a.b", "ey.ey.ey", "e30.e30.e30=", "💥.e30.e30"] {
        assert_eq!(judge(&key, raw), Err(BadToken::Malformed), "{raw:?}");
    }
    assert!(!is_shaped("mop_abc") && !is_shaped("ey.a") && is_shaped("eyJ.e30.x"));
}
