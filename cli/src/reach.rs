//! Why control cannot be reached, in words that name what to look at.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_shared::ids::Digest;
use reqwest::Url;
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::failure::Failure;

/// Trusts what the CA file holds and nothing else, in TLS 1.3 and 1.2.
pub(crate) fn trusting(ca_file: &Path) -> Result<ClientConfig, Failure> {
    let wrong = |why: String| Failure::Usage(format!("the CA file {}: {why}", ca_file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca_file).map_err(|err| wrong(err.to_string()))? {
        let certificate = certificate.map_err(|err| wrong(err.to_string()))?;
        roots.add(certificate).map_err(|err| wrong(err.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("it holds no certificate in PEM".to_owned()));
    }
    with_roots(roots)
}

/// The digest of the certificate in the CA file; none where it holds several, of which the server shows but one.
pub(crate) fn only_authority(ca_file: &Path) -> Option<Digest> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(ca_file).ok()?.collect();
    match &certificates[..] {
        [Ok(certificate)] => Some(Digest::of(certificate)),
        _ => None,
    }
}

/// For plain HTTP on this machine: whatever speaks TLS there is not who was asked.
pub(crate) fn trusting_nobody() -> Result<ClientConfig, Failure> {
    with_roots(RootCertStore::empty())
}

fn with_roots(roots: RootCertStore) -> Result<ClientConfig, Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|err| Failure::Unexpected(format!("TLS cannot be set up: {err}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Whom was asked, and whom we trust to answer.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) server: Url,
    pub(crate) ca_file: Option<PathBuf>,
}

impl Peer {
    fn name(&self) -> String {
        let host = self.server.host_str().unwrap_or_default();
        self.server
            .port_or_known_default()
            .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Puts a transport error into words; `limit` is how long an answer may take.
    pub(crate) fn failure(&self, err: &reqwest::Error, limit: Duration) -> Failure {
        let name = self.name();
        if let Some(tls) = find::<rustls::Error>(err) {
            return self.tls_failure(tls);
        }
        if err.is_timeout() {
            return if err.is_connect() {
                Failure::Unreachable(format!("{name} took longer than 5 s to connect"))
            } else {
                Failure::Unreachable(format!("{name} gave no answer within {} s", limit.as_secs()))
            };
        }
        let cut = |err: &io::Error| err.kind() == io::ErrorKind::UnexpectedEof;
        let why = if find(err).is_some_and(cut) {
            "the connection was cut".to_owned()
        } else {
            innermost(err)
        };
        Failure::Unreachable(format!("{name}: {why}"))
    }

    fn tls_failure(&self, err: &rustls::Error) -> Failure {
        let name = self.name();
        let ca = self
            .ca_file
            .as_deref()
            .unwrap_or(Path::new("-"))
            .display()
            .to_string();
        let rustls::Error::InvalidCertificate(why) = err else {
            // A server without TLS, a middlebox, an alert.
            return Failure::Unreachable(format!("TLS with {name}: {err}"));
        };
        let host = self.server.host_str().unwrap_or_default();
        Failure::Untrusted(if is_foreign(why) {
            format!("the certificate of {name} does not chain to the CA in {ca}")
        } else if matches!(
            why,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        ) {
            format!("the certificate of {name} is not made out to {host} (checked with the CA in {ca})")
        } else {
            format!("the certificate of {name} does not hold: {err} (checked with the CA in {ca})")
        })
    }
}

/// Signed by another CA, or by another one of the same name.
fn is_foreign(why: &CertificateError) -> bool {
    matches!(
        why,
        CertificateError::UnknownIssuer | CertificateError::BadSignature
    )
}

/// Looks for a cause of one type, also inside the I/O errors that hide theirs.
fn find<'a, T: Error + 'static>(err: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(err);
    while let Some(err) = next {
        if let Some(found) = err.downcast_ref::<T>() {
            return Some(found);
        }
        let wrapped = err.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped
            .map(|inner| inner as &(dyn Error + 'static))
            .or_else(|| err.source());
    }
    None
}

/// The cause at the end of the chain says most: `Connection refused`, not `error sending request`.
fn innermost(err: &reqwest::Error) -> String {
    let mut last: &dyn Error = err;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
