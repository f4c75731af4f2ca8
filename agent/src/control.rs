//! The control service, as a node calls it. Nothing here tries twice: who calls knows whether that is right.

use std::time::Duration;

use muster_shared::{
    ids::{ExecutionId, NodeId},
    time::Timestamp,
    wire::{
        CALLBACK_TOKEN_HEADER, Callback, CallbackResponse, CapabilityManifest, CapabilityResponse,
        EnrollRequest, EnrollResponse, HeartbeatRequest, HeartbeatResponse, NewNsk, Parameters, Problem,
        ViolationsRequest, ViolationsResponse,
    },
};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use serde::{Serialize, de::DeserializeOwned};

use crate::{effect, identity::Secret, instance::Instance, nsk::Nsk, reach::Reach, retry_after};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Control may have to read a whole object back before it believes that it is there.
const CHECKED_CALL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
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
        retry_after: Option<Duration>,
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

    /// Whether control does not know the key that was shown.
    pub(crate) const fn is_unauthorized(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status == 401,
            Self::Unreachable(_) | Self::Senseless(_) => false,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unreachable(_) | Self::Senseless(_) => None,
        }
    }
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

#[derive(Clone)]
pub(crate) struct Control {
    reach: Reach,
    http: Client,
    server: Url,
    node: NodeId,
    nsk: Nsk,
    instance: Instance,
}

impl Control {
    /// Trusts this authority and what the node's own admin trusts besides.
    pub(crate) fn new(
        reach: Reach,
        ca_pem: &[u8],
        server: Url,
        node: NodeId,
        (nsk, instance): (Nsk, Instance),
    ) -> Result<Self, String> {
        Ok(Self {
            http: reach.control_client(ca_pem)?,
            reach,
            server,
            node,
            nsk,
            instance,
        })
    }

    pub(crate) const fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The start of the daemon that speaks.
    pub(crate) const fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) const fn http(&self) -> &Client {
        &self.http
    }

    pub(crate) const fn server(&self) -> &Url {
        &self.server
    }

    /// The key in use at this moment.
    pub(crate) fn nsk(&self) -> Secret {
        self.nsk.get()
    }

    pub(crate) fn events_url(&self) -> String {
        self.node_url("events").to_string()
    }

    fn node_url(&self, rest: &str) -> Url {
        node_url(&self.server, self.node, rest)
    }

    pub(crate) async fn heartbeat(&self, beat: &HeartbeatRequest) -> Result<HeartbeatResponse, CallError> {
        self.heartbeat_with(&self.nsk(), beat).await
    }

    /// The same with a key of which it is not known whether control takes it.
    pub(crate) async fn heartbeat_with(
        &self,
        nsk: &Secret,
        beat: &HeartbeatRequest,
    ) -> Result<HeartbeatResponse, CallError> {
        let request = self.request_with(nsk, Method::POST, "heartbeat");
        self.call(request, beat, CALL_TIMEOUT).await
    }

    pub(crate) async fn fetch_nsk(&self) -> Result<NewNsk, CallError> {
        let nothing = Parameters::new();
        self.call(self.request(Method::POST, "nsk"), &nothing, CALL_TIMEOUT)
            .await
    }

    pub(crate) async fn declare(
        &self,
        manifest: &CapabilityManifest,
    ) -> Result<CapabilityResponse, CallError> {
        self.call(self.request(Method::PUT, "capabilities"), manifest, CALL_TIMEOUT)
            .await
    }

    pub(crate) async fn report_violations(
        &self,
        violations: &ViolationsRequest,
    ) -> Result<ViolationsResponse, CallError> {
        let request = self.request(Method::POST, "integrity-violations");
        self.call(request, violations, CALL_TIMEOUT).await
    }

    pub(crate) async fn callback(
        &self,
        execution: ExecutionId,
        token: &str,
        callback: &Callback,
    ) -> Result<CallbackResponse, CallError> {
        let request = self
            .request(Method::POST, &format!("executions/{execution}"))
            .header(CALLBACK_TOKEN_HEADER, token);
        let timeout = if callback.names_object() {
            CHECKED_CALL_TIMEOUT
        } else {
            CALL_TIMEOUT
        };
        let answered = self.call(request, callback, timeout).await;
        effect::done("a callback answered");
        answered
    }

    fn request(&self, method: Method, rest: &str) -> RequestBuilder {
        self.request_with(&self.nsk(), method, rest)
    }

    fn request_with(&self, nsk: &Secret, method: Method, rest: &str) -> RequestBuilder {
        self.http
            .request(method, self.node_url(rest))
            .bearer_auth(nsk.expose())
            .headers(self.instance.headers())
    }

    /// Calls as the node. That control found a copy here is heard whatever was asked.
    async fn call<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Result<T, CallError> {
        let answer = call(&self.reach, &self.server, request, body, timeout).await;
        if let Err(err) = &answer
            && err.code() == Some("node_cloned")
        {
            self.instance.refuse(&err.to_string());
        }
        answer
    }
}

fn node_url(server: &Url, node: NodeId, rest: &str) -> Url {
    let mut url = server.clone();
    url.set_path(&format!("/v1/nodes/{node}/{rest}"));
    url
}

/// Whether control takes a node's key, and what control's clock says. It reports nothing, which control refuses as such,
/// but only to a node whose key it has taken: so it changes nothing, and no sign of life is made up. Nor does it say which
/// start of the daemon speaks: it is none.
pub(crate) async fn probe(
    (reach, http): (&Reach, &Client),
    server: &Url,
    (node, nsk): (NodeId, &Secret),
) -> Result<Option<Timestamp>, CallError> {
    let unreachable = |err| CallError::Unreachable(reach.why(server, err));
    let nothing = ViolationsRequest {
        violations: Vec::new(),
    };
    let response = http
        .post(node_url(server, node, "integrity-violations"))
        .bearer_auth(nsk.expose())
        .json(&nothing)
        .timeout(CALL_TIMEOUT)
        .send()
        .await
        .map_err(unreachable)?;
    let date = response.headers().get(reqwest::header::DATE);
    let date = date.and_then(|value| retry_after::instant(value.to_str().ok()?));
    if response.status().is_success() || response.status() == reqwest::StatusCode::BAD_REQUEST {
        Ok(date)
    } else {
        Err(refusal(response, unreachable).await)
    }
}

pub(crate) async fn enroll(
    reach: &Reach,
    http: &Client,
    server: &Url,
    token: &Secret,
    ask: &EnrollRequest,
) -> Result<EnrollResponse, CallError> {
    let mut url = server.clone();
    url.set_path("/v1/nodes:enroll");
    let request = http.post(url).bearer_auth(token.expose());
    call(reach, server, request, ask, CALL_TIMEOUT).await
}

async fn call<T: DeserializeOwned>(
    reach: &Reach,
    server: &Url,
    request: RequestBuilder,
    body: &impl Serialize,
    timeout: Duration,
) -> Result<T, CallError> {
    let unreachable = |err| CallError::Unreachable(reach.why(server, err));
    let response = request
        .json(body)
        .timeout(timeout)
        .send()
        .await
        .map_err(unreachable)?;
    if !response.status().is_success() {
        return Err(refusal(response, unreachable).await);
    }
    let bytes = body_of(response, unreachable).await?;
    serde_json::from_slice(&bytes).map_err(|err| CallError::Senseless(err.to_string()))
}

async fn refusal(response: Response, unreachable: impl Fn(reqwest::Error) -> CallError) -> CallError {
    let status = response.status().as_u16();
    let header = |name| response.headers().get(name)?.to_str().ok();
    let retry_after = header(reqwest::header::RETRY_AFTER)
        .and_then(|asked| retry_after::wait(asked, header(reqwest::header::DATE), Timestamp::now()));
    let problem = match body_of(response, unreachable).await {
        Ok(bytes) => serde_json::from_slice(&bytes).ok(),
        Err(_) => None,
    };
    CallError::Refused {
        status,
        problem,
        retry_after,
    }
}

async fn body_of(
    mut response: Response,
    unreachable: impl Fn(reqwest::Error) -> CallError,
) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    loop {
        let piece = response.chunk().await.map_err(&unreachable)?;
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
}
