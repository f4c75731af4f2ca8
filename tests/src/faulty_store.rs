//! An output store that goes wrong: it hands every request on to a real one, byte for byte and under the name that was
//! signed, but for the uploads that a story wants to fail.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use muster_shared::time::Timestamp;
use tokio::net::TcpListener;

use crate::s3::S3;

/// What becomes of one upload.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It is read, and answered so.
    Status(u16),
    /// It is read, and answered as by a service that has no such bucket.
    NoBucket,
    /// The connection ends after so many bytes of it.
    CutAfter(usize),
    /// Nothing is read and nothing is said.
    Stall,
    /// It is handed on once its address has run out, so that the store refuses it itself.
    UntilExpired,
}

#[derive(Default)]
struct State {
    next: VecDeque<Fault>,
    always: Option<Fault>,
    uploads: usize,
    /// What the store itself answered to those whose address had run out.
    late: Vec<u16>,
}

pub struct FaultyStore {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl FaultyStore {
    /// # Panics
    /// When it cannot listen.
    pub async fn before(s3: &S3) -> Self {
        crate::use_ring();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(Mutex::new(State::default()));
        let http = reqwest::Client::builder()
            .no_proxy()
            .build()
            .expect("an HTTP client can be made");
        let (shared, behind) = (Arc::clone(&state), s3.endpoint.clone());
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (shared, behind, http) = (Arc::clone(&shared), behind.clone(), http.clone());
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        serve(request, behind.clone(), http.clone(), Arc::clone(&shared))
                    });
                    // A connection that breaks is what this is for.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(tcp), service)
                        .await;
                });
            }
        });
        let endpoint = format!("http://127.0.0.1:{port}");
        Self { endpoint, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the store is sound")
    }

    /// Lets the next uploads fail so, one each.
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().next.extend(faults);
    }

    pub fn fail_always(&self, fault: Fault) {
        self.state().always = Some(fault);
    }

    pub fn heal(&self) {
        *self.state() = State {
            uploads: self.uploads(),
            ..State::default()
        };
    }

    /// What the store itself answered to uploads whose address had run out.
    #[must_use]
    pub fn late_answers(&self) -> Vec<u16> {
        self.state().late.clone()
    }

    /// How many uploads were begun.
    #[must_use]
    pub fn uploads(&self) -> usize {
        self.state().uploads
    }
}

async fn serve(
    request: Request<Incoming>,
    behind: String,
    http: reqwest::Client,
    state: Arc<Mutex<State>>,
) -> Result<Response<Body>, io::Error> {
    if request.method() != Method::PUT {
        return hand_on(request, &behind, &http).await;
    }
    let fault = {
        let mut state = state.lock().expect("the store is sound");
        state.uploads += 1;
        state.next.pop_front().or(state.always)
    };
    match fault {
        None => hand_on(request, &behind, &http).await,
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::Status(status)) => refused(request, status, "Story").await,
        Some(Fault::NoBucket) => refused(request, 404, "NoSuchBucket").await,
        Some(Fault::CutAfter(bytes)) => {
            let mut body = Body::new(request.into_body()).into_data_stream();
            let mut seen = 0;
            while seen < bytes {
                let piece = body.try_next().await.map_err(io::Error::other)?;
                seen += piece.map_or(bytes, |piece| piece.len());
            }
            Err(io::Error::other("hanging up"))
        }
        Some(Fault::UntilExpired) => {
            let query = request.uri().query().unwrap_or_default().to_owned();
            while !expired(&query) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let (parts, body) = request.into_parts();
            let bytes = axum::body::to_bytes(Body::new(body), usize::MAX)
                .await
                .map_err(io::Error::other)?;
            // The store refuses it from its head alone and may hang up on the rest; then its word was lost, and is asked
            // for again.
            let answer = loop {
                let again = Request::from_parts(parts.clone(), Body::from(bytes.clone()));
                if let Ok(answer) = hand_on(again, &behind, &http).await {
                    break answer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let mut state = state.lock().expect("the store is sound");
            state.late.push(answer.status().as_u16());
            Ok(answer)
        }
    }
}

async fn refused(request: Request<Incoming>, status: u16, code: &str) -> Result<Response<Body>, io::Error> {
    let mut body = Body::new(request.into_body()).into_data_stream();
    while body.next().await.is_some() {}
    let mut response = Response::new(Body::from(format!("<Error><Code>{code}</Code></Error>")));
    *response.status_mut() = StatusCode::from_u16(status).map_err(io::Error::other)?;
    Ok(response)
}

/// Whether the instants that a signed address names are over.
fn expired(query: &str) -> bool {
    let value = |name: &str| {
        let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
        value.unwrap_or_else(|| panic!("no {name} in {query}")).to_owned()
    };
    let date = value("X-Amz-Date=");
    let spelled = format!(
        "{}-{}-{}T{}:{}:{}Z",
        &date[..4],
        &date[4..6],
        &date[6..8],
        &date[9..11],
        &date[11..13],
        &date[13..15]
    );
    let signed: Timestamp = spelled.parse().expect("the address has its date");
    let lasts: i64 = value("X-Amz-Expires=").parse().expect("the address has its life");
    Timestamp::now().as_millis() > signed.as_millis() + (lasts + 1) * 1000
}

async fn hand_on<B>(
    request: Request<B>,
    behind: &str,
    http: &reqwest::Client,
) -> Result<Response<Body>, io::Error>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut ask = http
        .request(parts.method.clone(), format!("{behind}{path}"))
        .headers(parts.headers);
    if parts.method == Method::PUT {
        ask = ask.body(reqwest::Body::wrap_stream(Body::new(body).into_data_stream()));
    }
    let answer = ask.send().await.map_err(io::Error::other)?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut response = Response::new(Body::from_stream(answer.bytes_stream()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}
