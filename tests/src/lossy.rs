//! What may stand between `muster` and control: it hands every request on, and loses answers to dispatches.

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

use crate::{Operator, World};

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
    let answer = behind
        .request(parts.method, &path)
        .headers(headers)
        .body(body)
        .send()
        .await
        .map_err(io::Error::other)?;
    let (status, kind) = (answer.status(), answer.headers().get("content-type").cloned());
    let bytes = answer.bytes().await.map_err(io::Error::other)?;
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
