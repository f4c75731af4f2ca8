//! The OIDC issuer at which people sign in: what it says of itself, the device flow (RFC 8628), fresh tokens for old,
//! and taking them back (RFC 7009). What it answers is a stranger's text, and tokens are in none of our messages.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use muster_shared::{access::OidcConfig, time::Timestamp};
use reqwest::{
    Response, Url,
    header::{ACCEPT, CONTENT_TYPE},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    contexts_file::{Login, Secret},
    failure::Failure,
    reach::{self, Peer},
    settings::{is_loopback, parse_server},
    text,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// No answer of an issuer is longer.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// RFC 8628, section 3.5.
const INTERVAL_DEFAULT: u64 = 5;
const SLOW_DOWN_BY: Duration = Duration::from_secs(5);
/// However slowly it is asked, a person who has signed in must not wait much longer.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// However long a code is said to be good for.
const SIGN_IN_MAX: Duration = Duration::from_secs(3600);
const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

pub(crate) struct Issuer {
    http: reqwest::Client,
    peer: Peer,
    token_endpoint: Url,
    device_endpoint: Option<Url>,
    revocation_endpoint: Option<Url>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    token_endpoint: String,
    device_authorization_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
}

/// What a person is asked to open and to type.
#[derive(Deserialize)]
pub(crate) struct Device {
    device_code: Secret,
    pub(crate) user_code: String,
    pub(crate) verification_uri: String,
    pub(crate) verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

#[derive(Deserialize)]
pub(crate) struct Tokens {
    pub(crate) access_token: Secret,
    pub(crate) refresh_token: Option<Secret>,
    expires_in: Option<u64>,
}

impl Tokens {
    pub(crate) fn expire_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.expires_in
            .map(|seconds| now.plus(Duration::from_secs(seconds)))
    }
}

/// RFC 6749, section 5.2.
#[derive(Deserialize)]
struct OauthError {
    error: String,
    error_description: Option<String>,
}

impl OauthError {
    fn words(&self) -> String {
        let why = self.error_description.as_deref().unwrap_or_default();
        let words = format!("{} {}", text::line(&self.error), text::line(why));
        text::clip(words.trim(), 300).into_owned()
    }
}

/// A request that the issuer did not grant.
enum Missed {
    Refused(OauthError),
    Failed(Failure),
}

/// What becomes of waiting for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Turn {
    AskAgain(Duration),
    Denied,
    Expired,
    Refused,
}

/// RFC 8628, section 3.5.
fn turn(error: &str, interval: Duration) -> Turn {
    match error {
        "authorization_pending" => Turn::AskAgain(interval),
        "slow_down" => Turn::AskAgain((interval + SLOW_DOWN_BY).min(INTERVAL_MAX)),
        "access_denied" => Turn::Denied,
        "expired_token" => Turn::Expired,
        _ => Turn::Refused,
    }
}

impl Issuer {
    /// Asks the issuer what it offers.
    pub(crate) async fn discover(issuer: &str, ca_file: Option<&Path>) -> Result<Self, Failure> {
        let server = endpoint(issuer)?;
        let base = issuer.trim_end_matches('/');
        let about = endpoint(&format!("{base}/.well-known/openid-configuration"))?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT);
        if is_loopback(&server) {
            builder = builder.no_proxy();
        }
        if let Some(file) = ca_file {
            builder = builder.tls_backend_preconfigured(reach::trusting(file)?);
        } else {
            // The system's own trust takes the provider of the process. A second call finds it installed.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let http = builder
            .build()
            .map_err(|err| Failure::Unexpected(format!("the HTTP client cannot be set up: {err}")))?;
        let peer = Peer {
            server,
            ca_file: ca_file.map(PathBuf::from),
        };
        let answer = http.get(about).send().await.map_err(|err| lost(&peer, &err))?;
        let found: Discovery = match read(&peer, answer).await {
            Ok(found) => found,
            Err(Missed::Failed(failure)) => return Err(failure),
            Err(Missed::Refused(why)) => return Err(Failure::NotSignedIn(why.words())),
        };
        if found.issuer != issuer {
            return Err(Failure::NotSignedIn(format!(
                "{} says that it is the issuer {:?}",
                text::line(issuer),
                text::line(&found.issuer)
            )));
        }
        let optional = |url: Option<String>| url.map(|url| endpoint(&url)).transpose();
        Ok(Self {
            http,
            peer,
            token_endpoint: endpoint(&found.token_endpoint)?,
            device_endpoint: optional(found.device_authorization_endpoint)?,
            revocation_endpoint: optional(found.revocation_endpoint)?,
        })
    }

    pub(crate) async fn device(&self, config: &OidcConfig, client_id: &str) -> Result<Device, Failure> {
        let endpoint = self.device_endpoint.as_ref().ok_or_else(|| {
            Failure::NotSignedIn(format!(
                "the issuer {} has no device flow",
                text::line(&config.issuer)
            ))
        })?;
        let scope = config.scopes.join(" ");
        let mut form = vec![("client_id", client_id), ("scope", &*scope)];
        form.extend(audience(config));
        self.post(endpoint, &form).await.map_err(|missed| match missed {
            Missed::Refused(why) => Failure::NotSignedIn(why.words()),
            Missed::Failed(failure) => failure,
        })
    }

    /// Asks until the person has signed in, or never will.
    pub(crate) async fn wait_for(
        &self,
        device: &Device,
        config: &OidcConfig,
        client_id: &str,
    ) -> Result<Tokens, Failure> {
        let mut interval =
            Duration::from_secs(device.interval.unwrap_or(INTERVAL_DEFAULT).max(1)).min(INTERVAL_MAX);
        let expired = || Failure::NotSignedIn("the code expired before it was used".to_owned());
        let limit = Duration::from_secs(device.expires_in).min(SIGN_IN_MAX);
        let mut form = vec![
            ("grant_type", DEVICE_GRANT),
            ("device_code", device.device_code.expose()),
            ("client_id", client_id),
        ];
        form.extend(audience(config));
        let asked = tokio::time::timeout(limit, async {
            loop {
                tokio::time::sleep(interval).await;
                let why = match self.post(&self.token_endpoint, &form).await {
                    Ok(tokens) => return Ok(tokens),
                    // A network that is away for a moment need not cost the person another round.
                    Err(Missed::Failed(failure)) if failure.is_passing() => {
                        interval = (interval * 2).min(INTERVAL_MAX);
                        continue;
                    }
                    Err(Missed::Failed(failure)) => return Err(failure),
                    Err(Missed::Refused(why)) => why,
                };
                interval = match turn(&why.error, interval) {
                    Turn::AskAgain(interval) => interval,
                    Turn::Denied => {
                        return Err(Failure::NotSignedIn("it was denied at the issuer".to_owned()));
                    }
                    Turn::Expired => return Err(expired()),
                    Turn::Refused => return Err(Failure::NotSignedIn(why.words())),
                };
            }
        });
        asked.await.unwrap_or_else(|_| Err(expired()))
    }

    /// A fresh token for the refresh token; `None` when that does not count any more.
    pub(crate) async fn refresh(&self, login: &Login, token: &Secret) -> Result<Option<Tokens>, Failure> {
        let mut form = vec![
            ("grant_type", "refresh_token"),
            ("refresh_token", token.expose()),
            ("client_id", &*login.client_id),
        ];
        form.extend(
            login
                .audience_parameter
                .map(|name| (name.as_str(), &*login.audience)),
        );
        match self.post(&self.token_endpoint, &form).await {
            Ok(tokens) => Ok(Some(tokens)),
            Err(Missed::Refused(why)) if why.error == "invalid_grant" => Ok(None),
            Err(Missed::Refused(why)) => Err(Failure::NotSignedIn(why.words())),
            Err(Missed::Failed(failure)) => Err(failure),
        }
    }

    /// Takes a token back. False when the issuer offers no way to.
    pub(crate) async fn revoke(&self, login: &Login, token: &Secret) -> Result<bool, Failure> {
        let Some(endpoint) = &self.revocation_endpoint else {
            return Ok(false);
        };
        let form = [
            ("token", token.expose()),
            ("token_type_hint", "refresh_token"),
            ("client_id", &*login.client_id),
        ];
        let answer = self.send(endpoint, &form).await?;
        let status = answer.status();
        if status.is_success() {
            return Ok(true);
        }
        Err(Failure::NotSignedIn(format!("the issuer answered {status}")))
    }

    async fn post<T: DeserializeOwned>(&self, url: &Url, form: &[(&str, &str)]) -> Result<T, Missed> {
        let answer = self.send(url, form).await.map_err(Missed::Failed)?;
        read(&self.peer, answer).await
    }

    async fn send(&self, url: &Url, form: &[(&str, &str)]) -> Result<Response, Failure> {
        // The query of a URL has the encoding of a form.
        let mut encoded = url.clone();
        encoded.query_pairs_mut().clear().extend_pairs(form);
        let body = encoded.query().unwrap_or_default().to_owned();
        self.http
            .post(url.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json")
            .body(body)
            .send()
            .await
            .map_err(|err| lost(&self.peer, &err))
    }
}

fn audience(config: &OidcConfig) -> Option<(&str, &str)> {
    config
        .audience_parameter
        .map(|name| (name.as_str(), &*config.audience))
}

/// Tokens are sent there, so that plain HTTP must not leave this machine.
fn endpoint(raw: &str) -> Result<Url, Failure> {
    parse_server(raw)
        .map_err(|why| Failure::NotSignedIn(format!("{:?} of the issuer {why}", text::line(raw))))
}

fn lost(peer: &Peer, err: &reqwest::Error) -> Failure {
    match peer.failure(err, REQUEST_TIMEOUT) {
        Failure::Unreachable(why) | Failure::Untrusted(why) => Failure::IssuerUnreachable(why),
        failure @ (Failure::Usage(_)
        | Failure::Refused { .. }
        | Failure::NoSuch(_)
        | Failure::NoMatch(_)
        | Failure::IssuerUnreachable(_)
        | Failure::NotSignedIn(_)
        | Failure::Unexpected(_)
        | Failure::Local { .. }
        | Failure::StreamEnded(_)
        | Failure::Stopped(_)
        | Failure::InterruptedSending { .. }) => failure,
    }
}

async fn read<T: DeserializeOwned>(peer: &Peer, mut answer: Response) -> Result<T, Missed> {
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(piece) = answer
        .chunk()
        .await
        .map_err(|err| Missed::Failed(lost(peer, &err)))?
    {
        body.extend_from_slice(&piece);
        if body.len() > ANSWER_BYTES_MAX {
            let why = format!("the issuer's answer is longer than {ANSWER_BYTES_MAX} bytes");
            return Err(Missed::Failed(Failure::Unexpected(why)));
        }
    }
    if status.is_server_error() {
        let why = format!("{} answered {status}", peer.server);
        return Err(Missed::Failed(Failure::IssuerUnreachable(why)));
    }
    if !status.is_success() {
        return Err(match serde_json::from_slice(&body) {
            Ok(why) => Missed::Refused(why),
            Err(_) => Missed::Failed(Failure::Unexpected(format!("the issuer answered {status}"))),
        });
    }
    // The error's own words could quote a token.
    serde_json::from_slice(&body).map_err(|_| {
        Missed::Failed(Failure::Unexpected(
            "the issuer's answer is not what was asked for".to_owned(),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_issuer_sets_the_pace_and_the_end_of_asking() {
        let five = Duration::from_secs(5);
        assert_eq!(turn("authorization_pending", five), Turn::AskAgain(five));
        assert_eq!(turn("slow_down", five), Turn::AskAgain(five * 2));
        assert_eq!(turn("slow_down", INTERVAL_MAX), Turn::AskAgain(INTERVAL_MAX));
        assert_eq!(turn("access_denied", five), Turn::Denied);
        assert_eq!(turn("expired_token", five), Turn::Expired);
        assert_eq!(turn("invalid_client", five), Turn::Refused);
    }

    #[test]
    fn tokens_go_nowhere_in_the_clear() {
        assert!(endpoint("https://id.example/token").is_ok());
        assert!(endpoint("http://127.0.0.1:1/token").is_ok());
        assert!(endpoint("http://id.example/token").is_err());
    }
}
