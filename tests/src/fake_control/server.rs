//! The HTTP side of the fake control: TLS, routes, and the checks a real control makes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Path, State as Shares},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use futures_util::stream;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use muster_shared::{
    ids::{Digest, DomainId, ExecutionId, NodeId, ProjectId},
    status::{Mover, Refused, Status, Step},
    wire::{
        Base64, CALLBACK_TOKEN_HEADER, Callback, CallbackResponse, CapabilityManifest, CapabilityResponse,
        EnrollRequest, EnrollResponse, HeartbeatRequest, HeartbeatResponse, INLINE_OUTPUT_BYTES_MAX,
        SigningKeyInfo, ViolationsRequest, ViolationsResponse, output_key,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
};

use super::{
    BOOTSTRAP_TOKEN, faults,
    state::{AnswerWith, Link, NodeKey, Shared, State, Taken},
};
use crate::chance;

const KEEP_ALIVE: Duration = Duration::from_secs(5);
const UPLOAD_BYTES_MAX: usize = 128 << 20;
/// A header that the upload must carry, as a presigned URL may cover some.
const UPLOAD_HEADER: (&str, &str) = ("x-muster-story", "signed");

pub(super) struct Pki {
    pub(super) ca_pem: String,
    cert_der: Vec<u8>,
    key_der: Vec<u8>,
}

/// The names of its certificate; those under `.story` only a proxy of a story can find.
const NAMES: [&str; 4] = ["127.0.0.1", "localhost", "control.story", "store.story"];

/// `valid` is the first and the last year of the server's certificate.
pub(super) fn pki(valid: (i32, i32)) -> Pki {
    let mut ca = rcgen::CertificateParams::new(vec![]).expect("no names are fine names");
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().expect("a key can be made");
    let ca_cert = ca.self_signed(&ca_key).expect("a CA can be made");
    let issuer = rcgen::Issuer::from_params(&ca, &ca_key);
    let key = rcgen::KeyPair::generate().expect("a key can be made");
    let leaf = rcgen::CertificateParams::new(NAMES.map(str::to_owned))
        .and_then(|mut params| {
            params.not_before = rcgen::date_time_ymd(valid.0, 1, 1);
            params.not_after = rcgen::date_time_ymd(valid.1, 12, 31);
            params.signed_by(&key, &issuer)
        })
        .expect("a certificate can be made");
    Pki {
        ca_pem: ca_cert.pem(),
        cert_der: leaf.der().to_vec(),
        key_der: key.serialize_der(),
    }
}

/// Listens until the runtime of the story ends.
pub(super) async fn serve(shared: Arc<Shared>, pki: &Pki) {
    let key = rustls::pki_types::PrivateKeyDer::try_from(pki.key_der.clone()).expect("the key is DER");
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![pki.cert_der.clone().into()], key)
        .expect("key and certificate fit");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind(("127.0.0.1", shared.port))
        .await
        .expect("the port is free");
    let routes = routes(Arc::clone(&shared));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            if shared.state().link == Link::Away {
                continue;
            }
            // As the real one does; otherwise the small pieces of an answer wait for each other.
            let _ = tcp.set_nodelay(true);
            let hang_up = Arc::new(Notify::new());
            let service = TowerToHyperService::new(routes.clone().layer(Extension(Arc::clone(&hang_up))));
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else {
                    return;
                };
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tls), service);
                tokio::select! {
                    _ = connection => {}
                    () = hang_up.notified() => {}
                }
            });
        }
    });
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/nodes:enroll", post(enroll))
        .route("/v1/nodes/{node}/events", get(events))
        .route("/v1/nodes/{node}/heartbeat", post(heartbeat))
        .route("/v1/nodes/{node}/capabilities", put(capabilities))
        .route("/v1/nodes/{node}/integrity-violations", post(violations))
        .route("/v1/nodes/{node}/executions/{execution}", post(callback))
        .route("/upload/{execution}", put(upload))
        .fallback(unknown)
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&shared),
            faults::gate,
        ))
        .layer(DefaultBodyLimit::max(UPLOAD_BYTES_MAX))
        .with_state(shared)
}

type At<T> = Shares<Arc<T>>;

async fn unknown(Shares(shared): At<Shared>, request: axum::extract::Request) -> Response {
    complain(
        &shared,
        format!("there is no {} {}", request.method(), request.uri()),
    );
    problem(404, "not_found")
}

async fn enroll(Shares(shared): At<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    if bearer(&headers) != Some(BOOTSTRAP_TOKEN) {
        complain(&shared, "enrolment with another token");
        return problem(401, "bootstrap_token_invalid");
    }
    let Ok(_ask) = read::<EnrollRequest>(&shared, &headers, &body) else {
        return problem(400, "invalid_body");
    };
    let now = shared.now();
    let node = NodeKey {
        id: NodeId::mint(now, chance()),
        nsk: format!("nsk-{}", uuid::Builder::from_random_bytes(chance()).into_uuid()),
    };
    let answer = EnrollResponse {
        node_id: node.id,
        name: "fake-node".to_owned(),
        domain_id: DomainId::mint(now, chance()),
        project_id: ProjectId::mint(now, chance()),
        nsk: node.nsk.clone(),
        signing_keys: vec![SigningKeyInfo {
            keyid: shared.keyid.clone(),
            public_key: Base64(shared.public_key.to_vec()),
        }],
        signing_serial: None,
        ca_pem: shared.ca_pem.clone(),
        notices: vec![],
    };
    shared.state().node = Some(node);
    reply(StatusCode::CREATED, &answer)
}

async fn events(
    Shares(shared): At<Shared>,
    Extension(connection): Extension<Arc<Notify>>,
    Path(node): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = refusal(&shared, &headers, &node) {
        return refusal;
    }
    if !text_of(&headers, header::ACCEPT.as_str()).contains("text/event-stream") {
        complain(
            &shared,
            "a stream is asked for without accepting text/event-stream",
        );
    }
    let (frames, frames_out) = mpsc::unbounded_channel::<Bytes>();
    // Begins as the real one does, so that the response head reaches the daemon at once.
    let _ = frames.send(Bytes::from_static(b": welcome\nretry: 100\n\n"));
    {
        let mut state = shared.state();
        state.streams_opened += 1;
        state.silent = false;
        state.stream = Some(frames.clone());
        state.stream_connection = Some(connection);
    }
    keep_alive(Arc::clone(&shared), frames.downgrade());
    drop(frames);
    let body = stream::unfold(frames_out, |mut frames| async move {
        frames
            .recv()
            .await
            .map(|frame| (Ok::<_, Infallible>(frame), frames))
    });
    (
        [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-cache"),
        ],
        Body::from_stream(body),
    )
        .into_response()
}

fn keep_alive(shared: Arc<Shared>, frames: mpsc::WeakUnboundedSender<Bytes>) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(KEEP_ALIVE).await;
            let Some(frames) = frames.upgrade() else { return };
            if !shared.state().silent && frames.send(Bytes::from_static(b": keep-alive\n\n")).is_err() {
                return;
            }
        }
    });
}

async fn heartbeat(
    Shares(shared): At<Shared>,
    Path(node): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(refusal) = refusal(&shared, &headers, &node) {
        return refusal;
    }
    let Ok(_beat) = read::<HeartbeatRequest>(&shared, &headers, &body) else {
        return problem(400, "invalid_body");
    };
    shared.state().heartbeats += 1;
    reply(
        StatusCode::OK,
        &HeartbeatResponse {
            accepted_at: shared.now(),
            reconcile: false,
            rotate_keys: false,
            contested: false,
            restored: None,
        },
    )
}

async fn capabilities(
    Shares(shared): At<Shared>,
    Path(node): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(refusal) = refusal(&shared, &headers, &node) {
        return refusal;
    }
    let Ok(manifest) = read::<CapabilityManifest>(&shared, &headers, &body) else {
        return problem(400, "invalid_body");
    };
    shared.state().manifests.push(manifest);
    reply(
        StatusCode::OK,
        &CapabilityResponse {
            accepted_at: shared.now(),
            fields_changed: vec![],
            host_key_changed: false,
        },
    )
}

async fn violations(
    Shares(shared): At<Shared>,
    Path(node): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(refusal) = refusal(&shared, &headers, &node) {
        return refusal;
    }
    let Ok(report) = read::<ViolationsRequest>(&shared, &headers, &body) else {
        return problem(400, "invalid_body");
    };
    let count = u32::try_from(report.violations.len()).unwrap_or(u32::MAX);
    shared.state().violations.extend(report.violations);
    reply(
        StatusCode::ACCEPTED,
        &ViolationsResponse {
            accepted_at: shared.now(),
            violation_count: count,
        },
    )
}

async fn callback(
    Shares(shared): At<Shared>,
    Extension(connection): Extension<Arc<Notify>>,
    Path((node, execution)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(refusal) = refusal(&shared, &headers, &node) {
        return refusal;
    }
    let Ok(execution) = execution.parse::<ExecutionId>() else {
        complain(&shared, format!("a callback for {execution:?}, which is no id"));
        return problem(400, "invalid_execution_id");
    };
    let Ok(callback) = read::<Callback>(&shared, &headers, &body) else {
        return problem(400, "invalid_body");
    };

    let planned = shared.state().answers.pop_front();
    match planned {
        Some(AnswerWith::Status(status)) => {
            keep(&shared, execution, callback, status);
            problem(status, planned_code(status))
        }
        Some(AnswerWith::HangUp) => {
            keep(&shared, execution, callback, 0);
            break_off(&connection).await
        }
        Some(AnswerWith::TakeAndHangUp) => {
            let _ = take(&shared, execution, callback, &headers);
            break_off(&connection).await
        }
        None => take(&shared, execution, callback, &headers),
    }
}

const fn planned_code(status: u16) -> &'static str {
    match status {
        401 => "unauthenticated",
        409 => "execution_already_terminal",
        _ => "story",
    }
}

async fn break_off(connection: &Notify) -> Response {
    connection.notify_one();
    std::future::pending().await
}

fn keep(shared: &Shared, execution: ExecutionId, callback: Callback, answered: u16) {
    shared.state().callbacks.push(Taken {
        execution,
        callback,
        answered,
    });
}

/// Takes a callback as the real one does: token, status machine, output tier.
fn take(shared: &Shared, execution: ExecutionId, callback: Callback, headers: &HeaderMap) -> Response {
    let (status, answer) = match judge(
        shared,
        execution,
        &callback,
        text_of(headers, CALLBACK_TOKEN_HEADER),
    ) {
        Ok(answer) => (200, reply(StatusCode::OK, &answer)),
        Err((status, code)) => {
            complain(shared, format!("{status} {code}: {callback:?} for {execution}"));
            (status, problem(status, code))
        }
    };
    keep(shared, execution, callback, status);
    answer
}

fn judge(
    shared: &Shared,
    execution: ExecutionId,
    callback: &Callback,
    token: &str,
) -> Result<CallbackResponse, (u16, &'static str)> {
    let base = shared.base();
    let mut state = shared.state();
    let expected = state.tokens.get(&execution).ok_or((404, "execution_not_found"))?;
    if expected != token {
        return Err((403, "callback_token_mismatch"));
    }
    if let Some(output) = &callback.output {
        check_output(&state, execution, output)?;
    }
    let passed = if state.single_steps {
        &[][..]
    } else {
        &callback.passed
    };
    let steps = state.steps.entry(execution).or_default();
    let at = steps.last().copied().unwrap_or(Status::Pending);
    match at.advance_through(passed, callback.status, Mover::Node) {
        Ok(Step::Move) => {
            steps.extend(at.left_of(passed).iter().copied().map(Status::from));
            steps.push(callback.status);
        }
        Ok(Step::Already) => {}
        Err(Refused::AlreadyTerminal(_)) => return Err((409, "execution_already_terminal")),
        Err(Refused::NotAnAdvance { .. }) => return Err((409, "invalid_state_transition")),
    }
    let mut answer = CallbackResponse {
        status: callback.status,
        output_upload_url: None,
        output_upload_headers: Default::default(),
    };
    if let Some(bytes) = callback
        .declared_output_bytes
        .filter(|bytes| *bytes > INLINE_OUTPUT_BYTES_MAX as u64)
    {
        state
            .declared
            .insert(execution, (bytes, callback.declared_output_sha256));
        answer.output_upload_url = Some(format!(
            "{}/upload/{execution}",
            state.store.as_ref().unwrap_or(&base)
        ));
        answer
            .output_upload_headers
            .insert(UPLOAD_HEADER.0.to_owned(), UPLOAD_HEADER.1.to_owned());
    }
    Ok(answer)
}

fn check_output(
    state: &State,
    execution: ExecutionId,
    output: &muster_shared::wire::CallbackOutput,
) -> Result<(), (u16, &'static str)> {
    if output
        .inline
        .as_ref()
        .is_some_and(|bytes| bytes.0.len() > INLINE_OUTPUT_BYTES_MAX)
    {
        return Err((413, "inline_output_too_large"));
    }
    let Some(key) = &output.object_key else {
        return Ok(());
    };
    let node = state
        .node
        .as_ref()
        .map(|node| node.id)
        .ok_or((401, "unauthenticated"))?;
    let uploaded = state
        .uploads
        .get(&execution)
        .ok_or((502, "output_upload_failed"))?;
    if *key != output_key(execution, node) {
        return Err((400, "invalid_output"));
    }
    if output.sha256 != Some(Digest::of(uploaded)) {
        return Err((502, "output_upload_failed"));
    }
    Ok(())
}

async fn upload(
    Shares(shared): At<Shared>,
    Path(execution): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Ok(execution) = execution.parse::<ExecutionId>() else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let declared = shared.state().declared.get(&execution).copied();
    let Some((bytes, sha256)) = declared else {
        complain(&shared, "an upload that nobody declared");
        return StatusCode::FORBIDDEN.into_response();
    };
    if bytes != body.len() as u64 {
        complain(
            &shared,
            format!("{} bytes uploaded, {bytes} declared", body.len()),
        );
        return StatusCode::FORBIDDEN.into_response();
    }
    if sha256.is_some_and(|sha256| sha256 != Digest::of(&body)) {
        complain(&shared, "other bytes are uploaded than were declared");
        return StatusCode::BAD_REQUEST.into_response();
    }
    if text_of(&headers, UPLOAD_HEADER.0) != UPLOAD_HEADER.1 {
        complain(&shared, "an upload without the headers its signature covers");
        return StatusCode::FORBIDDEN.into_response();
    }
    if headers.contains_key(header::AUTHORIZATION) {
        complain(&shared, "an upload shows the node's key to the store");
    }
    shared.state().uploads.insert(execution, body.into());
    StatusCode::OK.into_response()
}

/// The refusal, when the caller is not the node it says it is.
fn refusal(shared: &Shared, headers: &HeaderMap, node: &str) -> Option<Response> {
    let known = shared
        .state()
        .node
        .as_ref()
        .map(|node| (node.id.to_string(), node.nsk.clone()));
    let Some((id, nsk)) = known else {
        return Some(problem(401, "unauthenticated"));
    };
    if bearer(headers) != Some(&nsk) {
        complain(shared, "a request with another key than the node's own");
        return Some(problem(401, "unauthenticated"));
    }
    if node != id {
        complain(shared, format!("a request in the name of {node}"));
        return Some(problem(403, "nsk_node_mismatch"));
    }
    None
}

/// Reads a JSON body that says that it is one.
fn read<T: DeserializeOwned>(shared: &Shared, headers: &HeaderMap, body: &[u8]) -> Result<T, ()> {
    if !text_of(headers, header::CONTENT_TYPE.as_str()).starts_with("application/json") {
        complain(shared, "a body that does not say that it is application/json");
        return Err(());
    }
    serde_json::from_slice(body)
        .map_err(|err| complain(shared, format!("{err}: {}", String::from_utf8_lossy(body))))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    text_of(headers, header::AUTHORIZATION.as_str()).strip_prefix("Bearer ")
}

fn text_of<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn complain(shared: &Shared, complaint: impl Into<String>) {
    shared.state().complaints.push(complaint.into());
}

fn reply<T: Serialize>(status: StatusCode, body: &T) -> Response {
    let body = serde_json::to_vec(body).expect("an answer is JSON");
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub(super) fn problem(status: u16, code: &str) -> Response {
    let body = json!({
        "type": "about:blank", "title": code, "status": status, "detail": code, "instance": "/story", "code": code,
    });
    let status = StatusCode::from_u16(status).expect("a status of a story is one");
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        body.to_string(),
    )
        .into_response()
}
