//! The control service, as a node calls it. Nothing here tries twice: who calls knows whether that is right.

use std::{sync::Arc, time::Duration};

use muster_shared::{
    ids::{ExecutionId, NodeId},
    time::Timestamp,
    wire::{
        CALLBACK_TOKEN_HEADER, Callback, CallbackResponse, CapabilityManifest, CapabilityResponse,
        EnrollRequest, EnrollResponse, HeartbeatRequest, HeartbeatResponse, Problem, ViolationsRequest,
        ViolationsResponse,
    },
};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde::{Serialize, de::DeserializeOwned};

use crate::{exit, identity::Secret};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Control may have to read a whole object back before it believes that it is there.
const CHECKED_CALL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Shorter than servers keep an idle connection, so that a request never meets one that is being closed.
const POOL_IDLE: Duration = Duration::from_secs(15);
/// No answer of control is longer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("control cannot be reached: {0}")]
    Unreachable(String),
    #[error("control refused: {status}{}", describe(.problem.as_deref()))]
    Refused {
        status: u16,
        problem: Option<Box<Problem>>,
        retry_after_seconds: Option<u64>,
    },
    #[error("control gave an answer that makes no sense: {0}")]
    Senseless(String),
}

fn describe(problem: Option<&Problem>) -> String {
    problem
        .map(|problem| format!(" {}: {}", problem.code.as_deref().unwrap_or(""), problem.detail))
        .unwrap_or_default()
}

impl CallError {
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { problem, .. } => problem.as_ref()?.code.as_deref(),
            Self::Unreachable(_) | Self::Senseless(_) => None,
        }
    }

    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Self::Refused {
                retry_after_seconds, ..
            } => *retry_after_seconds,
            Self::Unreachable(_) | Self::Senseless(_) => None,
        }
    }
}

/// TLS that trusts these authorities and no others.
pub(crate) fn tls_to(authorities: &[&[u8]]) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    for pem in authorities {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|err| format!("the CA file is no PEM: {err}"))?;
            // Bundles of a system hold some that no verifier can use; what counts is that one is left.
            let _ = roots.add(certificate);
        }
    }
    if roots.is_empty() {
        return Err("the CA file holds no certificate of an authority".to_owned());
    }
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|err| err.to_string())
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
}

/// An HTTP client that trusts these authorities and no others.
pub(crate) fn http_client(authorities: &[&[u8]]) -> Result<reqwest::ClientBuilder, String> {
    let tls = tls_to(authorities)?;
    Ok(Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Duration::from_secs(30))
        .pool_max_idle_per_host(2)
        .pool_idle_timeout(POOL_IDLE)
        .user_agent(concat!("musterd/", env!("CARGO_PKG_VERSION"))))
}

/// Checks the address of a control service: TLS, and nothing behind the port.
pub(crate) fn parse_server(raw: &str) -> Result<Url, String> {
    let url = Url::parse(raw).map_err(|err| format!("{raw:?} is not an address: {err}"))?;
    if url.scheme() != "https" {
        return Err(format!(
            "{raw:?} must begin with https://: a node speaks to control over TLS only"
        ));
    }
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !plain || url.path() != "/" || url.host_str().is_none() {
        return Err(format!("{raw:?} must be https://HOST[:PORT] and no more"));
    }
    Ok(url)
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// The client for control itself: HTTPS to the pinned authority, through the proxy of the environment if there is one.
pub(crate) fn control_client(server: &Url, ca_pem: &[u8]) -> Result<Client, String> {
    let mut builder = http_client(&[ca_pem])?.https_only(true);
    if is_loopback(server) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|err| exit::chain(&err))
}

#[derive(Clone)]
pub(crate) struct Control {
    http: Client,
    server: Url,
    node: NodeId,
    nsk: Secret,
}

impl Control {
    pub(crate) const fn new(http: Client, server: Url, node: NodeId, nsk: Secret) -> Self {
        Self {
            http,
            server,
            node,
            nsk,
        }
    }

    pub(crate) const fn http(&self) -> &Client {
        &self.http
    }

    pub(crate) const fn server(&self) -> &Url {
        &self.server
    }

    pub(crate) const fn nsk(&self) -> &Secret {
        &self.nsk
    }

    pub(crate) fn events_url(&self) -> String {
        self.node_url("events").to_string()
    }

    fn node_url(&self, rest: &str) -> Url {
        let mut url = self.server.clone();
        url.set_path(&format!("/v1/nodes/{}/{rest}", self.node));
        url
    }

    pub(crate) async fn heartbeat(&self, beat: &HeartbeatRequest) -> Result<HeartbeatResponse, CallError> {
        call(self.request(Method::POST, "heartbeat"), beat, CALL_TIMEOUT).await
    }

    pub(crate) async fn declare(
        &self,
        manifest: &CapabilityManifest,
    ) -> Result<CapabilityResponse, CallError> {
        call(self.request(Method::PUT, "capabilities"), manifest, CALL_TIMEOUT).await
    }

    pub(crate) async fn report_violations(
        &self,
        violations: &ViolationsRequest,
    ) -> Result<ViolationsResponse, CallError> {
        let request = self.request(Method::POST, "integrity-violations");
        call(request, violations, CALL_TIMEOUT).await
    }

    pub(crate) async fn callback(
        &self,
        execution: ExecutionId,
        token: &str,
        callback: &Callback,
    ) -> Result<CallbackResponse, CallError> {
        let request = self.request(Method::POST, &format!("executions/{execution}"));
        let timeout = if callback.names_object() {
            CHECKED_CALL_TIMEOUT
        } else {
            CALL_TIMEOUT
        };
        call(request.header(CALLBACK_TOKEN_HEADER, token), callback, timeout).await
    }

    /// Whether control takes this node's key, and what control's clock says. It reports nothing, which control refuses as
    /// such, but only to a node whose key it has taken: so it changes nothing, and no sign of life is made up.
    pub(crate) async fn probe(&self) -> Result<Option<Timestamp>, CallError> {
        let nothing = ViolationsRequest {
            violations: Vec::new(),
        };
        let response = self
            .request(Method::POST, "integrity-violations")
            .json(&nothing)
            .timeout(CALL_TIMEOUT)
            .send()
            .await
            .map_err(|err| CallError::Unreachable(exit::chain(&err.without_url())))?;
        let date = response.headers().get(reqwest::header::DATE);
        let date = date.and_then(|value| http_date(value.to_str().ok()?));
        if response.status().is_success() || response.status() == http::StatusCode::BAD_REQUEST {
            Ok(date)
        } else {
            Err(refusal(response).await)
        }
    }

    fn request(&self, method: Method, rest: &str) -> RequestBuilder {
        self.http
            .request(method, self.node_url(rest))
            .bearer_auth(self.nsk.expose())
    }
}

pub(crate) async fn enroll(
    http: &Client,
    server: &Url,
    token: &Secret,
    ask: &EnrollRequest,
) -> Result<EnrollResponse, CallError> {
    let mut url = server.clone();
    url.set_path("/v1/nodes:enroll");
    call(http.post(url).bearer_auth(token.expose()), ask, CALL_TIMEOUT).await
}

async fn call<T: DeserializeOwned>(
    request: RequestBuilder,
    body: &impl Serialize,
    timeout: Duration,
) -> Result<T, CallError> {
    let response = request
        .json(body)
        .timeout(timeout)
        .send()
        .await
        .map_err(|err| CallError::Unreachable(exit::chain(&err.without_url())))?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let bytes = body_of(response).await?;
    serde_json::from_slice(&bytes).map_err(|err| CallError::Senseless(err.to_string()))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the one form that servers may send.
fn http_date(raw: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let words: Vec<&str> = raw.split_ascii_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = words[..] else {
        return None;
    };
    let month = MONTHS.iter().position(|known| *known == month)? + 1;
    format!("{year}-{month:02}-{day}T{time}Z").parse().ok()
}

async fn refusal(response: Response) -> CallError {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(reqwest::header::RETRY_AFTER);
    let retry_after_seconds = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let problem = match body_of(response).await {
        Ok(bytes) => serde_json::from_slice(&bytes).ok(),
        Err(_) => None,
    };
    CallError::Refused {
        status,
        problem,
        retry_after_seconds,
    }
}

async fn body_of(mut response: Response) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    loop {
        let piece = response
            .chunk()
            .await
            .map_err(|err| CallError::Unreachable(exit::chain(&err.without_url())))?;
        let Some(piece) = piece else { return Ok(bytes) };
        if bytes.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(CallError::Senseless(format!(
                "it is longer than {ANSWER_BYTES_MAX} bytes"
            )));
        }
        bytes.extend_from_slice(&piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_tls_address_names_a_server() {
        assert!(parse_server("https://control.example:8443").is_ok());
        assert!(parse_server("https://[::1]:8443/").is_ok());
        for bad in [
            "http://127.0.0.1:1",
            "control.example",
            "https://a/b",
            "https://user@a",
            "https://a?x=1",
            "",
        ] {
            assert!(parse_server(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn loopback_is_known_in_every_spelling() {
        for (raw, expected) in [
            ("http://127.0.0.1:9000/x", true),
            ("http://[::1]:9000/x", true),
            ("http://localhost/x", true),
            ("http://127.0.0.1.example/x", false),
            ("http://10.0.0.1/x", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(raw).unwrap()), expected, "{raw}");
        }
    }

    #[test]
    fn a_servers_date_is_read() {
        let at = http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(at, "1994-11-06T08:49:37Z".parse().unwrap());
        for bad in [
            "",
            "now",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Foo 1994 08:49:37 GMT",
        ] {
            assert_eq!(http_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_ca_file_without_certificates_is_refused() {
        assert!(http_client(&[b"hello"]).is_err());
    }
}
