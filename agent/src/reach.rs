//! How this node reaches services: whom it trusts, by what time, through which proxy, and what it says when it cannot.

pub(crate) mod certificate;
mod names;
mod proxy;
pub(crate) mod settings;

use std::{sync::Arc, time::Duration};

use reqwest::{Client, ClientBuilder, Url};
use rustls::{
    CertificateError, RootCertStore,
    client::WebPkiServerVerifier,
    client::danger::ServerCertVerifier,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject as _},
    time_provider::TimeProvider,
};

use crate::{clock::Clock, exit};
use certificate::{Naming, Presented};
use muster_shared::time::Timestamp;
use names::Names;
use proxy::Proxies;
pub(crate) use proxy::is_loopback;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A peer whose machine acknowledges nothing of what was sent for so long is gone: no call need wait for its own end.
const PEER_SILENCE_MAX: Duration = Duration::from_secs(20);
/// Longer than from one heartbeat to the next, which finds its connection open; shorter than control keeps an idle one, so
/// that a request never meets one that is being closed.
const POOL_IDLE: Duration = Duration::from_secs(150);

#[derive(Clone, Debug)]
pub(crate) struct Reach {
    proxies: Arc<Proxies>,
    /// Authorities in PEM that are trusted besides: those of a proxy that looks into TLS.
    extra_ca: Arc<[u8]>,
    clock: Clock,
    names: Names,
}

impl Reach {
    fn new(proxies: Proxies, extra_ca: Vec<u8>) -> Self {
        Self {
            proxies: Arc::new(proxies),
            extra_ca: extra_ca.into(),
            clock: Clock::default(),
            names: Names::default(),
        }
    }

    /// The clock by which certificates are judged.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The proxy on the way to an address, as people may read it.
    pub(crate) fn proxy_on_the_way_to(&self, target: &Url) -> Option<&str> {
        self.proxies.named_on_the_way_to(target)
    }

    /// An HTTP client that trusts these authorities, and those of `extra_ca_file`, and no others.
    pub(crate) fn client(&self, authorities: &[&[u8]]) -> Result<ClientBuilder, String> {
        Ok(self.client_speaking(self.tls_to(authorities)?))
    }

    /// The TLS of such a client.
    pub(crate) fn tls_to(&self, authorities: &[&[u8]]) -> Result<rustls::ClientConfig, String> {
        let mut all = authorities.to_vec();
        if !self.extra_ca.is_empty() {
            all.push(&self.extra_ca);
        }
        let roots = Arc::new(roots(&all)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|err| err.to_string())?;
        self.tls_with(verifier)
    }

    /// The same with an idea of its own of who is trusted.
    pub(crate) fn client_with(&self, verifier: Arc<dyn ServerCertVerifier>) -> Result<ClientBuilder, String> {
        Ok(self.client_speaking(self.tls_with(verifier)?))
    }

    fn tls_with(&self, verifier: Arc<dyn ServerCertVerifier>) -> Result<rustls::ClientConfig, String> {
        let time = Arc::new(ControlsTime(self.clock.clone()));
        Ok(rustls::ClientConfig::builder_with_details(provider(), time)
            .with_safe_default_protocol_versions()
            .map_err(|err| err.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Naming(verifier)))
            .with_no_client_auth())
    }

    fn client_speaking(&self, tls: rustls::ClientConfig) -> ClientBuilder {
        let proxies = Arc::clone(&self.proxies);
        Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEP_ALIVE)
            .tcp_keepalive_interval(KEEP_ALIVE_INTERVAL)
            .tcp_keepalive_retries(3)
            .tcp_user_timeout(PEER_SILENCE_MAX)
            .pool_max_idle_per_host(2)
            .pool_idle_timeout(POOL_IDLE)
            .dns_resolver(self.names.clone())
            .no_proxy()
            .proxy(reqwest::Proxy::custom(move |target| {
                proxies.on_the_way_to(target)
            }))
            .user_agent(concat!("musterd/", env!("CARGO_PKG_VERSION")))
    }

    /// The client for control itself: HTTPS to the pinned authority.
    pub(crate) fn control_client(&self, ca_pem: &[u8]) -> Result<Client, String> {
        let builder = self.client(&[ca_pem])?.https_only(true);
        builder.build().map_err(|err| exit::chain(&err))
    }

    /// Why a request to this address failed: the way that it took, what went wrong there, and what may help.
    pub(crate) fn why(&self, target: &Url, err: reqwest::Error) -> String {
        let way = self
            .proxies
            .named_on_the_way_to(target)
            .filter(|_| err.is_connect());
        let way = way
            .map(|proxy| format!("through the proxy {proxy}: "))
            .unwrap_or_default();
        let certificate = certificate_trouble(&err).cloned();
        // The address of an upload holds its signature.
        let text = exit::chain(&err.without_url());
        let advice = match certificate {
            Some(trouble) => self.advice(&trouble),
            None if text.contains("proxy authorization required") => {
                "; the proxy wants credentials, or others (control.proxy_credentials_file)".to_owned()
            }
            None if text.contains("tunnel error: unsuccessful") => {
                "; the proxy refuses to connect to it".to_owned()
            }
            None => String::new(),
        };
        format!("{way}{text}{advice}")
    }

    fn advice(&self, trouble: &CertificateError) -> String {
        let ours = self.clock.now();
        if let Some((sense, limit)) = out_of_time(trouble) {
            let limit = limit.map(|at| format!(" {at}")).unwrap_or_default();
            return format!(
                "; clock_skew: this node's clock says {ours}, and the certificate {sense}{limit}: set the clock, or \
                 renew the certificate if the clock is right"
            );
        }
        if *trouble == CertificateError::UnknownIssuer {
            return "; it is signed by none of the authorities that this node trusts: where a proxy looks into TLS, \
                    name its CA in control.extra_ca_file"
                .to_owned();
        }
        String::new()
    }
}

/// In which way a certificate and the clock disagree.
fn out_of_time(trouble: &CertificateError) -> Option<(&'static str, Option<Timestamp>)> {
    let at = |time: &UnixTime| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Some(Timestamp::from_millis(seconds.saturating_mul(1000)))
    };
    if let CertificateError::NotValidYetContext { not_before, .. } = trouble {
        Some(("begins at", at(not_before)))
    } else if let CertificateError::ExpiredContext { not_after, .. } = trouble {
        Some(("ended at", at(not_after)))
    } else if *trouble == CertificateError::NotValidYet {
        Some(("has not begun", None))
    } else if *trouble == CertificateError::Expired {
        Some(("has ended", None))
    } else {
        None
    }
}

/// What rustls said of the certificate, however deep it lies.
fn certificate_trouble<'e>(err: &'e (dyn std::error::Error + 'static)) -> Option<&'e CertificateError> {
    let mut at = Some(err);
    while let Some(err) = at {
        // An I/O error shows the source of what it wraps, not what it wraps.
        let wrapped = err.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        let tls = match wrapped {
            Some(inner) => inner.downcast_ref::<rustls::Error>(),
            None => err.downcast_ref::<rustls::Error>(),
        };
        let presented = match tls {
            Some(rustls::Error::Other(other)) => other.0.downcast_ref::<Presented>(),
            Some(_) | None => None,
        };
        let cause = presented.map(|presented| &presented.cause);
        if let Some(rustls::Error::InvalidCertificate(trouble)) = cause.or(tls) {
            return Some(trouble);
        }
        at = match wrapped {
            Some(inner) => Some(inner),
            None => err.source(),
        };
    }
    None
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn roots(authorities: &[&[u8]]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for pem in authorities {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|err| format!("the CA file is no PEM: {err}"))?;
            // Bundles of a system hold some that no verifier can use; what counts is that one is left.
            let _ = roots.add(certificate);
        }
    }
    if roots.is_empty() {
        Err("the CA file holds no certificate of an authority".to_owned())
    } else {
        Ok(roots)
    }
}

/// Certificates are judged by control's time once it is known: a node whose clock is set wrong stays connected.
#[derive(Debug)]
struct ControlsTime(Clock);

impl TimeProvider for ControlsTime {
    fn current_time(&self) -> Option<UnixTime> {
        let ms = u64::try_from(self.0.now().as_millis()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(ms)))
    }
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&*self.proxies, f)
    }
}

#[cfg(test)]
mod tests;
