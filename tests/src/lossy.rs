//! What may stand between `muster` or a daemon and control: it hands every request on, notes what was said, and loses
//! answers to dispatches.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
};

use axum::body::{Body, Bytes};
use hyper::{Request, Response, service::service_fn};
use hyper_util::rt::TokioIo;
use muster_shared::wire::IDEMPOTENCY_KEY_HEADER;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::net::TcpListener;

use crate::{Answer, Operator, World};

/// What becomes of the answer to one dispatch, after control has given it.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// The connection ends without a word.
    HangUp,
    /// A gateway says this instead.
    Status(u16),
}

pub struct Lossy {
    /// The same access, through here.
    pub operator: Operator,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    losses: VecDeque<Loss>,
    keys: Vec<Option<String>>,
    exchanges: Vec<Exchange>,
}

/// What one side really said, and what it was really answered.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub method: String,
    /// Without its query.
    pub path: String,
    /// The JSON of the request, where there was any.
    pub asked: Option<serde_json::Value>,
    /// Without a body when it is an event stream.
    pub answer: Answer,
}

impl Lossy {
    /// Listens with control's own certificate, and loses the first answers as said.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn before(world: &World, losses: &[Loss]) -> Self {
        let seen = Arc::new(Mutex::new(Seen {
            losses: losses.iter().copied().collect(),
            keys: Vec::new(),
            exchanges: Vec::new(),
        }));
        let data = world.data_dir();
        let chain = CertificateDer::pem_file_iter(data.join("server.pem"))
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .expect("control has a certificate");
        let key = PrivateKeyDer::from_pem_file(data.join("secrets/server.key")).expect("control has a key");
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("key and certificate fit");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let behind = world.operator.clone();
        let operator = behind.through(format!("https://127.0.0.1:{port}"));
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, seen, behind) = (acceptor.clone(), Arc::clone(&shared), behind.clone());
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    let service = service_fn(|request| hand_on(request, behind.clone(), Arc::clone(&seen)));
                    // A lost answer is an error here, and that is what it is for.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(tls), service)
                        .await;
                });
            }
        });
        Self { operator, seen }
    }

    /// The idempotency key of each dispatch that came through, in order.
    ///
    /// # Panics
    /// When the proxy did.
    #[must_use]
    pub fn keys(&self) -> Vec<Option<String>> {
        self.seen.lock().expect("the proxy is sound").keys.clone()
    }

    /// Everything that came through, in the order in which it was answered.
    ///
    /// # Panics
    /// When the proxy did.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.seen.lock().expect("the proxy is sound").exchanges.clone()
    }
}

async fn hand_on(
    request: Request<hyper::body::Incoming>,
    behind: Operator,
    seen: Arc<Mutex<Seen>>,
) -> Result<Response<Body>, io::Error> {
    let (parts, body) = request.into_parts();
    let path = parts
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    let dispatch = parts.method == hyper::Method::POST && path.contains("dispatch");
    let body: Bytes = axum::body::to_bytes(Body::new(body), 1 << 20)
        .await
        .map_err(io::Error::other)?;
    let mut headers = parts.headers;
    headers.remove("host");
    let key = headers
        .get(IDEMPOTENCY_KEY_HEADER)
        .map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
    let method = parts.method.clone();
    let asked = serde_json::from_slice(&body).ok();
    let answer = behind
        .request(parts.method, &path)
        .headers(headers)
        .body(body)
        .send()
        .await
        .map_err(io::Error::other)?;
    let (status, kind) = (answer.status(), answer.headers().get("content-type").cloned());
    let content_type = kind
        .as_ref()
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let mut exchange = Exchange {
        method: method.to_string(),
        path: path.split('?').next().unwrap_or_default().to_owned(),
        asked,
        answer: Answer {
            status: status.as_u16(),
            content_type: content_type.to_owned(),
            headers: answer.headers().clone(),
            bytes: Vec::new(),
        },
    };
    let note = |exchange| seen.lock().expect("the proxy is sound").exchanges.push(exchange);
    if content_type.starts_with("text/event-stream") {
        note(exchange);
        let mut response = Response::new(Body::from_stream(answer.bytes_stream()));
        response
            .headers_mut()
            .extend(kind.map(|kind| (hyper::header::CONTENT_TYPE, kind)));
        return Ok(response);
    }
    let bytes = answer.bytes().await.map_err(io::Error::other)?;
    exchange.answer.bytes = bytes.to_vec();
    note(exchange);
    let loss = dispatch.then(|| {
        let mut seen = seen.lock().expect("the proxy is sound");
        seen.keys.push(key);
        seen.losses.pop_front()
    });
    let mut response = match loss.flatten() {
        Some(Loss::HangUp) => return Err(io::Error::other("hanging up")),
        Some(Loss::Status(status)) => {
            let mut response = Response::new(Body::from("<html>gateway</html>"));
            *response.status_mut() = hyper::StatusCode::from_u16(status).map_err(io::Error::other)?;
            return Ok(response);
        }
        None => Response::new(Body::from(bytes)),
    };
    *response.status_mut() = status;
    if let Some(kind) = kind {
        response.headers_mut().insert("content-type", kind);
    }
    Ok(response)
}
