//! What an operator has in hand: the HTTP API with the CA, and the `muster` command.

use std::path::{Path, PathBuf};

use muster_shared::{
    ids::{ExecutionId, NodeId},
    wire::{CancelRequest, CancelResponse, Execution, Page, Problem},
};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    binaries::binary,
    wait::{PATIENCE, until, until_within},
};

/// Access to one project of one control.
#[derive(Clone)]
pub struct Operator {
    pub server: String,
    pub token: String,
    pub ca_file: PathBuf,
    pub project: String,
    /// Where `muster` looks for contexts: nothing of the person who runs the tests.
    pub home: PathBuf,
    http: reqwest::Client,
}

/// An HTTP answer, read whole.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub headers: reqwest::header::HeaderMap,
    pub bytes: Vec<u8>,
}

/// What a run of `muster` said.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Text as the value of a query parameter (RFC 3986, section 2.1).
#[must_use]
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

/// The body of a request that begins and goes on no more.
#[must_use]
pub fn stalled_body(beginning: &[u8]) -> reqwest::Body {
    let beginning = Ok::<_, std::io::Error>(beginning.to_vec());
    let stalled = futures_util::stream::once(std::future::ready(beginning));
    reqwest::Body::wrap_stream(futures_util::StreamExt::chain(
        stalled,
        futures_util::stream::pending(),
    ))
}

/// A client that trusts one CA and nothing else.
#[must_use]
pub fn client_with_ca(ca_file: &Path) -> reqwest::Client {
    let pem = std::fs::read(ca_file).expect("the CA file can be read");
    let ca = reqwest::Certificate::from_pem(&pem).expect("the CA file is PEM");
    client_trusting(ca)
}

/// # Panics
/// When the client cannot be made.
#[must_use]
pub fn client_trusting(ca: reqwest::Certificate) -> reqwest::Client {
    crate::use_ring();
    reqwest::Client::builder()
        .tls_certs_only([ca])
        .no_proxy()
        .build()
        .expect("an HTTP client can be made")
}

impl Operator {
    /// # Panics
    /// When the CA file is not one.
    #[must_use]
    pub fn new(server: String, token: String, ca_file: PathBuf, project: String, home: PathBuf) -> Self {
        let http = client_with_ca(&ca_file);
        Self {
            server,
            token,
            ca_file,
            project,
            home,
            http,
        }
    }

    /// The same place with another token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// The same access through another address.
    #[must_use]
    pub fn through(&self, server: String) -> Self {
        Self {
            server,
            ..self.clone()
        }
    }

    /// Whether control says that it serves.
    pub async fn is_ready(&self) -> bool {
        let ready = self.request(Method::GET, "/readyz").send().await;
        ready.is_ok_and(|answer| answer.status() == 200)
    }

    /// A path under the operator's project.
    #[must_use]
    pub fn in_project(&self, path: &str) -> String {
        format!("/v1/projects/{}/{path}", self.project)
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.server))
            .bearer_auth(&self.token)
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::to(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        Answer::to(self.request(Method::POST, path).json(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        Answer::to(self.request(Method::PATCH, path).json(body)).await
    }

    /// A dispatch that may be refused.
    pub async fn try_dispatch(&self, body: &Value) -> Answer {
        self.post(&self.in_project("executions:dispatch"), body).await
    }

    /// Like [`Self::try_dispatch`], for closures that make the body.
    pub async fn try_dispatch_owned(&self, body: Value) -> Answer {
        self.try_dispatch(&body).await
    }

    /// A dispatch that must be admitted.
    pub async fn dispatch(&self, body: &Value) -> Execution {
        self.try_dispatch(body).await.expect(201).json()
    }

    /// A cancel of a whole execution, or of one target, that may be refused.
    pub async fn try_cancel(&self, id: ExecutionId, node: Option<NodeId>) -> Answer {
        let request = CancelRequest {
            node_id: node.map(|node| node.to_string()),
        };
        let path = self.in_project(&format!("executions/{id}/cancel"));
        Answer::to(self.request(Method::POST, &path).json(&request)).await
    }

    /// A cancel that must be taken, with what it did to each target.
    pub async fn cancel(&self, id: ExecutionId) -> CancelResponse {
        self.try_cancel(id, None).await.expect(200).json()
    }

    pub async fn execution(&self, id: ExecutionId) -> Execution {
        self.get(&self.in_project(&format!("executions/{id}")))
            .await
            .expect(200)
            .json()
    }

    pub async fn executions(&self) -> Vec<Execution> {
        let page: Page<Execution> = self
            .get(&self.in_project("executions?limit=200"))
            .await
            .expect(200)
            .json();
        page.items
    }

    /// The execution once every target has ended.
    pub async fn settled(&self, id: ExecutionId) -> Execution {
        let mut last = None;
        let settled = tokio::time::timeout(PATIENCE, async {
            until_within(PATIENCE * 2, "an execution settles", async || {
                let execution = self.execution(id).await;
                let done = execution.status.is_terminal();
                last = Some(execution.clone());
                done.then_some(execution)
            })
            .await
        })
        .await;
        settled.unwrap_or_else(|_| panic!("execution {id} does not settle: {last:#?}"))
    }

    /// The kept output of one invocation, whichever tier holds it.
    pub async fn output(&self, execution: ExecutionId, node: NodeId) -> Vec<u8> {
        let path = self.in_project(&format!("executions/{execution}/targets/{node}/output"));
        self.get(&path).await.expect(200).bytes
    }

    /// Runs the real `muster` as a program would: no terminal, access from the environment.
    pub async fn muster(&self, args: &[&str]) -> Said {
        let mut command = self.muster_command();
        command.args(args);
        said_by(command).await
    }

    /// `muster` with this operator's access in its environment.
    #[must_use]
    pub fn muster_command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(binary("muster"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("MUSTER_SERVER", &self.server)
            .env("MUSTER_TOKEN", &self.token)
            .env("MUSTER_CA_FILE", &self.ca_file)
            .env("MUSTER_PROJECT", &self.project);
        command
    }
}

/// Runs a command to its end.
pub async fn said_by(mut command: tokio::process::Command) -> Said {
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    let ran = tokio::time::timeout(PATIENCE * 2, command.output())
        .await
        .unwrap_or_else(|_| panic!("it does not end: {command:?}"))
        .unwrap_or_else(|err| panic!("{command:?} does not start: {err}"));
    Said {
        code: ran.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&ran.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&ran.stderr).into_owned(),
    }
}

impl Said {
    /// # Panics
    /// When it ended otherwise.
    #[must_use]
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout:\n{}\nstderr:\n{}",
            self.stdout, self.stderr
        );
        self
    }

    /// Standard output as one JSON document.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|err| {
            panic!(
                "no JSON on standard output: {err}\n{}\n{}",
                self.stdout, self.stderr
            )
        })
    }
}

/// Asks until it is told that it asks too often, when to come back, and by which limit.
///
/// # Panics
/// When it never is.
pub async fn until_rate_limited(limit: &str, mut ask: impl AsyncFnMut() -> Answer) {
    let refused = until("the bucket is empty", async || {
        let answer = ask().await;
        (answer.status == 429).then_some(answer)
    })
    .await;
    assert_eq!(refused.headers["retry-after"].as_bytes(), b"1");
    let problem = refused.refused(429, "rate_limited");
    assert!(problem.detail.contains(limit), "{}", problem.detail);
}

impl Answer {
    pub async fn to(request: reqwest::RequestBuilder) -> Self {
        Self::try_to(request).await.expect("the server answers")
    }

    /// # Errors
    /// When there is no whole answer, as from a server that was killed.
    pub async fn try_to(request: reqwest::RequestBuilder) -> Result<Self, reqwest::Error> {
        let response = request.send().await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let content_type = response
            .headers()
            .get("content-type")
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        Ok(Self {
            status,
            content_type,
            headers,
            bytes: response.bytes().await?.into(),
        })
    }

    /// # Panics
    /// When the status is another.
    #[must_use]
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// The problem document of a refusal with this status and code.
    ///
    /// # Panics
    /// When it is anything else.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Problem {
        let answer = self.expect(status);
        assert!(
            answer.content_type.starts_with("application/problem+json"),
            "{}",
            answer.content_type
        );
        let problem: Problem = answer.json();
        assert_eq!(problem.code.as_deref(), Some(code), "{problem:#?}");
        assert_eq!(problem.status, status, "{problem:#?}");
        problem
    }

    /// # Panics
    /// When the body is not that.
    #[must_use]
    #[track_caller]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|err| panic!("{err}: {}", self.text()))
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
