//! The accept loop: TLS, time limits on what a stranger may take, and an end that is bounded.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::{server::conn::http1, service::Service as _};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use rustix::net::sockopt;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    http::Peer,
    keys::{DataDir, ServerKey},
    tickets::Tickets,
};

const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Longer than `musterd` keeps a connection that it does not use: one on which the next heartbeat comes is cheaper than a
/// handshake for each.
const REQUEST_HEAD_MAX: Duration = Duration::from_secs(165);
/// The buffer of one connection, in bytes: most hold an idle event stream.
const CONNECTION_BUFFER_BYTES: usize = 8192;
const BACKLOG: u32 = 4096;
/// A peer that acknowledges nothing for this long is gone, whatever its last segment said.
const PEER_SILENCE_MS_MAX: u32 = 60_000;
/// How long requests under way get at the end.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// How long accepting pauses when the system has nothing left to accept with.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error("{path} holds no usable certificate or key: {why}")]
    Certificate { path: String, why: String },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
}

pub(crate) fn tls(data: &DataDir, server_key: ServerKey) -> Result<TlsAcceptor, ServerError> {
    let mut config = certified(data)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ticketer = Arc::new(Tickets(server_key));
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// With the certificate and the key of the data directory, if they are one.
pub(crate) fn certified(data: &DataDir) -> Result<rustls::ServerConfig, ServerError> {
    let bad = |path: &std::path::Path, why: String| ServerError::Certificate {
        path: path.display().to_string(),
        why,
    };
    let (cert, key) = (data.server_cert(), data.server_tls_key());
    let chain = CertificateDer::pem_file_iter(&cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|err| bad(&cert, err.to_string()))?;
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|err| bad(&key, err.to_string()))?;
    rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|err| bad(&cert, err.to_string()))
}

pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let named = |source| ServerError::Listen { address, source };
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }
    .map_err(named)?;
    socket.set_reuseaddr(true).map_err(named)?;
    socket.bind(address).map_err(named)?;
    socket.listen(BACKLOG).map_err(named)
}

/// Serves until told to stop, then lets what is under way end, for a bounded time.
pub(crate) async fn serve(listener: TcpListener, tls: TlsAcceptor, app: Router, stop: &CancellationToken) {
    let service = TowerToHyperService::new(app);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (tcp, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(err) => {
                // Out of descriptors, or a peer that left the queue: the listener itself is sound.
                log::warn!("A connection could not be accepted: {err}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (tls, service, watcher) = (tls.clone(), service.clone(), graceful.watcher());
        tokio::spawn(async move {
            if let Err(err) = notice_silence(&tcp) {
                log::debug!("A socket option was refused: {err}");
            }
            let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(tcp)).await else {
                return;
            };
            let service = hyper::service::service_fn(move |mut request: hyper::Request<_>| {
                request.extensions_mut().insert(Peer(peer));
                service.call(request)
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST_HEAD_MAX)
                .max_buf_size(CONNECTION_BUFFER_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            // How a peer leaves is no news: requests that matter answer for themselves.
            let _ = watcher.watch(connection).await;
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN_MAX, graceful.shutdown()).await;
}

/// Has the kernel end a connection whose peer is gone without a word, so that no half-open stream counts as a node.
fn notice_silence(tcp: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(tcp, true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(tcp, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(tcp, 3)?;
    sockopt::set_tcp_user_timeout(tcp, PEER_SILENCE_MS_MAX)
}
