//! A small and strict HTTP proxy that knows CONNECT alone, and the way to hosts that nobody else can find: every name
//! under `.story` is this machine.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::Engine as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

const HEAD_BYTES_MAX: usize = 8192;

/// How it treats those who ask it.
#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// As `USER:PASSWORD`; without them it asks for them.
    pub credentials: Option<String>,
    /// It connects to nothing.
    pub refuses: bool,
    /// It looks into TLS, with an authority of its own, and trusts this one behind it.
    pub looks_inside: Option<PathBuf>,
}

pub struct ConnectProxy {
    port: u16,
    state: Arc<Mutex<State>>,
    dir: TempDir,
}

#[derive(Default)]
struct State {
    connects: Vec<String>,
    complaints: Vec<String>,
}

impl ConnectProxy {
    /// # Panics
    /// When it cannot listen.
    pub async fn start(manners: Manners) -> Self {
        crate::use_ring();
        let dir = tempfile::Builder::new()
            .prefix("muster-proxy-")
            .tempdir()
            .expect("a directory can be made");
        let inside = manners
            .looks_inside
            .as_deref()
            .map(|behind| inside(behind, dir.path()));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (manners, shared, inside) = (manners.clone(), Arc::clone(&shared), inside.clone());
                tokio::spawn(async move {
                    // How a connection ends is the business of its two ends.
                    let _ = serve(tcp, &manners, &shared, inside).await;
                });
            }
        });
        Self { port, state, dir }
    }

    /// `http://HOST:PORT`, as it is shown.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The same with credentials, as an environment has it.
    #[must_use]
    pub fn url_with(&self, userinfo: &str) -> String {
        format!("http://{userinfo}@127.0.0.1:{}", self.port)
    }

    /// The authority by which it looks into TLS.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("proxy-ca.pem")
    }

    /// Where it was asked to connect to, in order, whatever came of it.
    #[must_use]
    pub fn connects(&self) -> Vec<String> {
        lock(&self.state).connects.clone()
    }
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let complaints = lock(&self.state).complaints.clone();
            assert!(complaints.is_empty(), "the proxy was misused: {complaints:#?}");
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    mut near: TcpStream,
    manners: &Manners,
    state: &Mutex<State>,
    inside: Option<Inside>,
) -> io::Result<()> {
    let head = head(&mut near).await?;
    let mut lines = head.lines();
    let asked = lines.next().unwrap_or_default().to_owned();
    let fields: Vec<(String, &str)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
        .collect();
    let field = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
    let target = asked
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.strip_suffix(" HTTP/1.1"));
    let Some(target) = target else {
        lock(state).complaints.push(format!("it was asked for {asked:?}"));
        return refuse(&mut near, "405 Method Not Allowed").await;
    };
    {
        let mut state = lock(state);
        state.connects.push(target.to_owned());
        if field("host") != Some(target) {
            state
                .complaints
                .push(format!("{target} with the host {:?}", field("host")));
        }
        if field("authorization").is_some() {
            state.complaints.push("it was shown the key of a node".to_owned());
        }
    }
    if let Some(credentials) = &manners.credentials {
        let expected = base64::engine::general_purpose::STANDARD.encode(credentials);
        if field("proxy-authorization") != Some(&*format!("Basic {expected}")) {
            return refuse(&mut near, "407 Proxy Authentication Required").await;
        }
    } else if field("proxy-authorization").is_some() {
        lock(state)
            .complaints
            .push("it was given credentials that it never asked for".to_owned());
    }
    let (host, port) = target.rsplit_once(':').unwrap_or((target, ""));
    let known = host.ends_with(".story") || host == "127.0.0.1";
    let (true, false, Ok(port)) = (known, manners.refuses, port.parse::<u16>()) else {
        return refuse(&mut near, "403 Forbidden").await;
    };
    let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else {
        return refuse(&mut near, "502 Bad Gateway").await;
    };
    near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await?;
    let Some(inside) = inside else {
        copy_bidirectional(&mut near, &mut far).await?;
        return Ok(());
    };
    let mut near = inside.acceptor.accept(near).await?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut far = inside.connector.connect(name, far).await?;
    copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}

/// Byte by byte, because what follows the head is not the proxy's.
async fn head(tcp: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.push(tcp.read_u8().await?);
    }
    String::from_utf8(head).map_err(io::Error::other)
}

async fn refuse(tcp: &mut TcpStream, status: &str) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 {status}\r\nproxy-authenticate: Basic realm=\"story\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    tcp.write_all(answer.as_bytes()).await?;
    tcp.shutdown().await
}

/// Both ends of the TLS of a proxy that looks into it.
#[derive(Clone)]
struct Inside {
    acceptor: tokio_rustls::TlsAcceptor,
    connector: tokio_rustls::TlsConnector,
}

fn inside(behind: &Path, dir: &Path) -> Inside {
    let mut ca = rcgen::CertificateParams::new(vec![]).expect("no names are fine names");
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    ca.distinguished_name
        .push(rcgen::DnType::CommonName, "the proxy's own CA");
    let ca_key = rcgen::KeyPair::generate().expect("a key can be made");
    let ca_cert = ca.self_signed(&ca_key).expect("a CA can be made");
    std::fs::write(dir.join("proxy-ca.pem"), ca_cert.pem()).expect("the CA can be written");
    let key = rcgen::KeyPair::generate().expect("a key can be made");
    let leaf = rcgen::CertificateParams::new(vec!["control.story".to_owned(), "store.story".to_owned()])
        .and_then(|params| params.signed_by(&key, &rcgen::Issuer::from_params(&ca, &ca_key)))
        .expect("a certificate can be made");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("the key is DER");
    let server = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .expect("key and certificate fit");
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(behind)
        .expect("the CA can be read")
        .flatten()
    {
        roots.add(certificate).expect("the CA is one");
    }
    let client = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Inside {
        acceptor: Arc::new(server).into(),
        connector: Arc::new(client).into(),
    }
}
