//! `[oidc]` of control.toml. What exists here is valid.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use muster_shared::access::{AudienceParameter, OidcConfig};
use reqwest::Url;
use serde::Deserialize;

use super::{jwt::Rules, keys::Times};

const TEXT_LEN_MAX: usize = 1024;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadOidc {
    #[error("oidc.issuer is {url:?}; it {why}")]
    Issuer { url: String, why: &'static str },
    #[error("oidc.{name} is {value:?}; it must have 1 to {TEXT_LEN_MAX} visible characters")]
    Text { name: &'static str, value: String },
    #[error("oidc.{name} is {value}; it must be from {min} to {max}")]
    OutOfBounds {
        name: &'static str,
        value: u64,
        min: u64,
        max: u64,
    },
    #[error(
        "oidc.ask_every_seconds is {ask_every} and oidc.keys_max_age_seconds {max_age}; keys would stop counting before the issuer may be asked again"
    )]
    AskedTooSeldom { ask_every: u64, max_age: u64 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawOidc {
    issuer: String,
    audience: String,
    client_id: Option<String>,
    scopes: Option<Vec<String>>,
    audience_parameter: Option<AudienceParameter>,
    subject_claim: Option<String>,
    groups_claim: Option<String>,
    ca_file: Option<PathBuf>,
    groups_max: Option<u64>,
    leeway_seconds: Option<u64>,
    keys_max_age_seconds: Option<u64>,
    ask_every_seconds: Option<u64>,
    fetch_timeout_seconds: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct OidcSettings {
    pub(super) rules: Rules,
    pub(super) times: Times,
    pub(super) discovery: Url,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) fetch_timeout: Duration,
    /// What anybody is told.
    pub(super) told: OidcConfig,
}

impl RawOidc {
    pub(crate) fn check(self) -> Result<OidcSettings, BadOidc> {
        let within = |name, value: Option<u64>, default, (min, max)| {
            let value = value.unwrap_or(default);
            let sound = (min..=max).contains(&value);
            sound.then_some(value).ok_or(BadOidc::OutOfBounds {
                name,
                value,
                min,
                max,
            })
        };
        let seconds =
            |name, value, default, bounds| within(name, value, default, bounds).map(Duration::from_secs);
        let issuer = text("issuer", self.issuer)?;
        let audience = text("audience", self.audience)?;
        let scopes = self
            .scopes
            .unwrap_or_else(|| vec!["openid".to_owned(), "offline_access".to_owned()]);
        let told = OidcConfig {
            issuer: issuer.clone(),
            audience: audience.clone(),
            client_id: self.client_id.map(|id| text("client_id", id)).transpose()?,
            scopes: scopes
                .into_iter()
                .map(|scope| text("scopes", scope))
                .collect::<Result<_, _>>()?,
            audience_parameter: self.audience_parameter,
        };
        let times = Times {
            keys_max_age: seconds(
                "keys_max_age_seconds",
                self.keys_max_age_seconds,
                600,
                (1, 86_400),
            )?,
            ask_every: seconds("ask_every_seconds", self.ask_every_seconds, 30, (1, 3600))?,
        };
        if times.ask_every >= times.keys_max_age {
            return Err(BadOidc::AskedTooSeldom {
                ask_every: times.ask_every.as_secs(),
                max_age: times.keys_max_age.as_secs(),
            });
        }
        let groups_max = within("groups_max", self.groups_max, 200, (0, 1000))?;
        let claim = |name, value: Option<String>, default: &str| {
            text(name, value.unwrap_or_else(|| default.to_owned()))
        };
        Ok(OidcSettings {
            discovery: discovery(&issuer)?,
            rules: Rules {
                issuer,
                audience,
                subject_claim: claim("subject_claim", self.subject_claim, "sub")?,
                groups_claim: claim("groups_claim", self.groups_claim, "groups")?,
                groups_max: usize::try_from(groups_max).unwrap_or(usize::MAX),
                leeway: seconds("leeway_seconds", self.leeway_seconds, 30, (0, 300))?,
            },
            times,
            ca_file: self.ca_file,
            fetch_timeout: seconds("fetch_timeout_seconds", self.fetch_timeout_seconds, 5, (1, 60))?,
            told,
        })
    }
}

fn text(name: &'static str, value: String) -> Result<String, BadOidc> {
    let sound = (1..=TEXT_LEN_MAX).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic());
    if sound {
        Ok(value)
    } else {
        Err(BadOidc::Text { name, value })
    }
}

/// Where an issuer describes itself: its own URL, byte for byte, and the well-known path.
fn discovery(issuer: &str) -> Result<Url, BadOidc> {
    let bad = |why| BadOidc::Issuer {
        url: issuer.to_owned(),
        why,
    };
    let url = checked_url(issuer).map_err(bad)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("must have no query and no fragment"));
    }
    let base = issuer.trim_end_matches('/');
    checked_url(&format!("{base}/.well-known/openid-configuration")).map_err(bad)
}

/// Keys that came over plain HTTP could be anybody's, unless they never left this machine.
pub(super) fn checked_url(raw: &str) -> Result<Url, &'static str> {
    let url = Url::parse(raw).map_err(|_| "is not a URL")?;
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        _ => return Err("must begin with https://, or with http:// on this machine"),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must have no user name and no password");
    }
    Ok(url)
}

pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(toml: &str) -> Result<OidcSettings, BadOidc> {
        toml::from_str::<RawOidc>(toml).unwrap().check()
    }

    #[test]
    fn an_issuer_is_described_below_its_own_url() {
        for (issuer, at) in [
            (
                "https://id.example",
                "https://id.example/.well-known/openid-configuration",
            ),
            (
                "https://id.example/",
                "https://id.example/.well-known/openid-configuration",
            ),
            (
                "https://id.example/realms/a",
                "https://id.example/realms/a/.well-known/openid-configuration",
            ),
            (
                "http://127.0.0.1:1",
                "http://127.0.0.1:1/.well-known/openid-configuration",
            ),
        ] {
            let settings = check(&format!("issuer = \"{issuer}\"\naudience = \"a\"")).unwrap();
            assert_eq!(settings.discovery.as_str(), at);
            assert_eq!(settings.rules.issuer, issuer, "compared as it was written");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (toml, named) in [
            ("issuer = \"http://id.example\"", "https"),
            ("issuer = \"ftp://id.example\"", "https"),
            ("issuer = \"id.example\"", "is not a URL"),
            ("issuer = \"https://u:p@id.example\"", "user name"),
            ("issuer = \"https://id.example?a=b\"", "query"),
            ("issuer = \"\"", "oidc.issuer"),
            ("issuer = \"https://i\"\ngroups_claim = \"\"", "oidc.groups_claim"),
            (
                "issuer = \"https://i\"\nleeway_seconds = 301",
                "oidc.leeway_seconds",
            ),
            (
                "issuer = \"https://i\"\nask_every_seconds = 0",
                "oidc.ask_every_seconds",
            ),
            ("issuer = \"https://i\"\ngroups_max = 1001", "oidc.groups_max"),
        ] {
            let err = check(&format!("{toml}\naudience = \"a\""))
                .unwrap_err()
                .to_string();
            assert!(err.contains(named), "{toml}: {err}");
        }
        for toml in [
            "issuer = \"https://i\"",
            "audience = \"a\"",
            "algorithms = [\"HS256\"]",
        ] {
            assert!(toml::from_str::<RawOidc>(toml).is_err(), "{toml}");
        }
    }
}
