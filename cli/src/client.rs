//! Control's HTTP API: one request, its answer or why there is none.

use std::time::Duration;

use muster_shared::{
    ids::ProjectId,
    wire::{IDEMPOTENCY_KEY_HEADER, Page, Problem},
};
use reqwest::{
    Method, Response, StatusCode, Url,
    header::{AUTHORIZATION, RANGE, RETRY_AFTER},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    contexts_file::Secret,
    credential::Credential,
    failure::Failure,
    lookup::NodeNames,
    reach::{self, Peer},
    render,
    settings::{Settings, is_loopback},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For a whole request with its answer; streams have none.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A stream that has been silent for this long is dead: control sends a comment every 25 s.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How often it asks again what control turned away as too much for now, and the longest wait before that.
const TURNS_MAX: u32 = 3;
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);
/// The largest page that control gives.
const PAGE_LEN_MAX: usize = 200;
/// No problem document is longer.
const PROBLEM_BYTES_MAX: usize = 256 * 1024;

pub(crate) struct Client {
    http: reqwest::Client,
    peer: Peer,
    credential: Credential,
}

/// A request without the answer it was for.
pub(crate) struct Missed {
    pub(crate) failure: Failure,
    /// Whether control may have done what was asked all the same.
    pub(crate) maybe_done: bool,
}

impl Missed {
    pub(crate) fn into_failure(self) -> Failure {
        let mut failure = self.failure;
        if let Failure::Unreachable(why) = &mut failure
            && self.maybe_done
        {
            why.push_str("; what was asked may have been done all the same");
        }
        failure
    }
}

/// A path below the server's URL, segment by segment, and its query.
#[derive(Clone, Default)]
pub(crate) struct Route {
    segments: Vec<String>,
    query: Vec<(&'static str, String)>,
}

impl Route {
    pub(crate) fn new<const N: usize>(segments: [&str; N]) -> Self {
        Self {
            segments: segments.map(str::to_owned).to_vec(),
            query: Vec::new(),
        }
    }

    pub(crate) fn project<const N: usize>(project: ProjectId, rest: [&str; N]) -> Self {
        let mut route = Self::new(["v1", "projects", &project.to_string()]);
        route.segments.extend(rest.map(str::to_owned));
        route
    }

    pub(crate) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    fn url(&self, server: &Url) -> Url {
        let mut url = server.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(&self.segments);
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }
}

impl Client {
    /// `authorized` is false for what control tells anybody.
    pub(crate) fn new(settings: &Settings, authorized: bool) -> Result<Self, Failure> {
        let credential = if authorized {
            Credential::of(settings)?
        } else {
            Credential::Nobody
        };
        Self::carrying(settings, credential)
    }

    /// For a token that is kept nowhere yet.
    pub(crate) fn with_token(settings: &Settings, token: &Secret) -> Result<Self, Failure> {
        Self::carrying(settings, Credential::token(token)?)
    }

    fn carrying(settings: &Settings, credential: Credential) -> Result<Self, Failure> {
        let server = settings.server()?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE_MAX);
        if is_loopback(&server) {
            builder = builder.no_proxy();
        }
        let mut ca_file = None;
        if server.scheme() == "https" {
            let file = settings.ca_file()?;
            builder = builder.tls_backend_preconfigured(reach::trusting(file)?);
            ca_file = Some(file.clone());
        } else {
            builder = builder.tls_backend_preconfigured(reach::trusting_nobody()?);
        }
        let http = builder
            .build()
            .map_err(|err| Failure::Unexpected(format!("the HTTP client cannot be set up: {err}")))?;
        Ok(Self {
            http,
            peer: Peer { server, ca_file },
            credential,
        })
    }

    pub(crate) fn server(&self) -> &str {
        self.peer.server.as_str().trim_end_matches('/')
    }

    /// What `musterd enroll` is to trust, as it is typed there.
    pub(crate) fn trust(&self) -> String {
        let known = self.peer.ca_file.as_deref().and_then(reach::only_authority);
        known.map_or_else(
            || "--ca-file FILE".to_owned(),
            |digest| format!("--ca-sha256 {}", digest.to_string().trim_start_matches("sha256:")),
        )
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, route: &Route) -> Result<T, Failure> {
        self.ask(Method::GET, route, None::<&()>).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        route: &Route,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.ask(Method::POST, route, Some(body)).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(
        &self,
        route: &Route,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.ask(Method::PATCH, route, Some(body)).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, route: &Route) -> Result<T, Failure> {
        self.ask(Method::DELETE, route, None::<&()>).await
    }

    /// Follows the cursor until `limit` items are there, or all of them.
    pub(crate) async fn pages<T: DeserializeOwned>(
        &self,
        route: &Route,
        limit: Option<usize>,
    ) -> Result<Page<T>, Failure> {
        self.pages_from(route, None, limit).await
    }

    /// The same from a cursor on.
    pub(crate) async fn pages_from<T: DeserializeOwned>(
        &self,
        route: &Route,
        cursor: Option<String>,
        limit: Option<usize>,
    ) -> Result<Page<T>, Failure> {
        let mut all = Page {
            items: Vec::new(),
            next_cursor: cursor,
        };
        loop {
            let wanted = limit.map_or(PAGE_LEN_MAX, |limit| (limit - all.items.len()).min(PAGE_LEN_MAX));
            let ask = route
                .clone()
                .with("limit", Some(wanted))
                .with("cursor", all.next_cursor.as_ref());
            let page: Page<T> = self.get(&ask).await?;
            if page.next_cursor.is_some() && page.next_cursor == all.next_cursor {
                return Err(Failure::Unexpected(
                    "the same page comes again and again".to_owned(),
                ));
            }
            all.items.extend(page.items);
            all.next_cursor = page.next_cursor;
            if all.next_cursor.is_none() || limit.is_some_and(|limit| all.items.len() >= limit) {
                return Ok(all);
            }
        }
    }

    /// A body of any length, to be read piece by piece.
    pub(crate) async fn open(&self, route: &Route, last_event: Option<i64>) -> Result<Response, Failure> {
        let mut request = self.request(Method::GET, route).await?;
        if let Some(id) = last_event {
            request = request.header("Last-Event-ID", id);
        }
        self.begin(request).await
    }

    async fn begin(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        // Only the head is bounded: the body comes for as long as it likes.
        let response = tokio::time::timeout(REQUEST_TIMEOUT, request.send())
            .await
            .map_err(|_| Failure::Unreachable(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())))?;
        accepted(response.map_err(|err| self.lost(&err))?)
            .await
            .map_err(|failure| self.about_login(failure))
    }

    /// Hands a body, or the part of it that `range` names, over piece by piece, for as long as `take` wants more.
    pub(crate) async fn download(
        &self,
        route: &Route,
        range: Option<&str>,
        mut take: impl FnMut(&[u8]) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let mut request = self.request(Method::GET, route).await?;
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let mut response = self.begin(request).await?;
        loop {
            let piece = response.chunk().await.map_err(|err| self.broken_off(&err))?;
            let Some(piece) = piece else { return Ok(()) };
            if !take(&piece)? {
                return Ok(());
            }
        }
    }

    fn broken_off(&self, err: &reqwest::Error) -> Failure {
        let mut failure = self.lost(err);
        if let Failure::Unreachable(why) = &mut failure {
            why.push_str(
                "; what came is not whole. Should it break off again: that is also what control does rather than give \
                 out other bytes than the node reported, and its log says so",
            );
        }
        failure
    }

    pub(crate) fn lost(&self, err: &reqwest::Error) -> Failure {
        self.peer.failure(err, SILENCE_MAX)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        route: &Route,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let asked = self.once(method, route, body, None).await;
        asked.map_err(Missed::into_failure)
    }

    /// One request under a key, if there is one. What control turns away as too much for now was not done, and is asked
    /// again when control says so.
    pub(crate) async fn once<T: DeserializeOwned>(
        &self,
        method: Method,
        route: &Route,
        body: Option<&impl Serialize>,
        key: Option<&str>,
    ) -> Result<T, Missed> {
        let mut turns = 0;
        loop {
            let missed = match self.send(method.clone(), route, body, key).await {
                Ok(answer) => return Ok(answer),
                Err(missed) => missed,
            };
            let Some(wait) = missed.failure.turned_away_for().filter(|_| turns < TURNS_MAX) else {
                return Err(missed);
            };
            turns += 1;
            let wait = wait.min(TURN_WAIT_MAX);
            render::say(&format!(
                "{}; asking again in {} s ({turns} of {TURNS_MAX})",
                missed.failure.words(),
                wait.as_secs()
            ));
            tokio::time::sleep(wait).await;
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        route: &Route,
        body: Option<&impl Serialize>,
        key: Option<&str>,
    ) -> Result<T, Missed> {
        let changes = method != Method::GET;
        let request = self.request(method, route).await;
        let mut request = request
            .map_err(|failure| Missed {
                failure,
                maybe_done: false,
            })?
            .timeout(REQUEST_TIMEOUT);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_KEY_HEADER, key);
        }
        let failed = |err: reqwest::Error| {
            let failure = self.peer.failure(&err, REQUEST_TIMEOUT);
            let passing = matches!(failure, Failure::Unreachable(_));
            Missed {
                maybe_done: changes && passing && !err.is_connect(),
                failure,
            }
        };
        let response = request.send().await.map_err(failed)?;
        // A gateway that lost control's answer speaks for itself.
        let gateway = matches!(response.status().as_u16(), 502..=504);
        let refused = |failure| Missed {
            failure,
            maybe_done: changes && gateway,
        };
        let response = accepted(response)
            .await
            .map_err(|failure| refused(self.about_login(failure)))?;
        let path = response.url().path().to_owned();
        let bytes = response.bytes().await.map_err(failed)?;
        serde_json::from_slice(&bytes).map_err(|err| {
            refused(Failure::Unexpected(format!(
                "the answer of {path} is not understood: {err}"
            )))
        })
    }

    async fn request(&self, method: Method, route: &Route) -> Result<reqwest::RequestBuilder, Failure> {
        let request = self.http.request(method, route.url(&self.peer.server));
        Ok(match self.credential.header().await? {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        })
    }

    /// A login that control does not take is remedied by another.
    fn about_login(&self, mut failure: Failure) -> Failure {
        if let Failure::Refused { problem, .. } = &mut failure
            && problem.status == 401
            && self.credential.is_login()
        {
            problem.detail.push_str("; sign in again: muster login");
        }
        failure
    }
}

/// A 2xx answer, or the refusal in its stead.
async fn accepted(mut response: Response) -> Result<Response, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let path = response.url().path().to_owned();
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map(Duration::from_secs);
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() > PROBLEM_BYTES_MAX {
            break;
        }
    }
    Err(refusal(status, &path, &body, retry_after))
}

fn refusal(status: StatusCode, path: &str, body: &[u8], retry_after: Option<Duration>) -> Failure {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => Failure::Refused {
            problem: Box::new(problem),
            selector: None,
            names: NodeNames::new(),
            retry_after,
        },
        // Not control's own words: a proxy in between, or something else behind this address.
        Err(_) if matches!(status.as_u16(), 502..=504) => {
            Failure::Unreachable(format!("HTTP {status} for {path}"))
        }
        Err(_) if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Failure::Unexpected(format!(
            "HTTP {status} for {path}: the request's head is too large; if you signed in, have the issuer put fewer groups into the token"
        )),
        Err(_) => Failure::Unexpected(format!(
            "HTTP {status} for {path}; does control answer at this address?"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_route_is_escaped_segment_by_segment_below_the_servers_own_path() {
        let route = Route::new(["v1", "nodes", "a/b ?"])
            .with("selector", Some("a=b&c"))
            .with("status", None::<&str>);
        let url = |server: &str| route.url(&Url::parse(server).unwrap()).to_string();
        assert_eq!(
            url("https://c:1"),
            "https://c:1/v1/nodes/a%2Fb%20%3F?selector=a%3Db%26c"
        );
        assert_eq!(
            url("https://c:1/base/"),
            "https://c:1/base/v1/nodes/a%2Fb%20%3F?selector=a%3Db%26c"
        );
    }

    #[test]
    fn an_answer_that_is_no_problem_document_is_no_refusal() {
        assert_eq!(
            refusal(StatusCode::NOT_FOUND, "/v1/x", b"<html>", None).exit(),
            Exit::Other
        );
        assert_eq!(
            refusal(StatusCode::BAD_GATEWAY, "/v1/x", b"", None).exit(),
            Exit::Unreachable
        );
        let problem = br#"{"type":"about:blank","title":"t","status":403,"detail":"d","instance":"/v1/x"}"#;
        assert_eq!(
            refusal(StatusCode::FORBIDDEN, "/v1/x", problem, None).exit(),
            Exit::Refused
        );
    }
}
