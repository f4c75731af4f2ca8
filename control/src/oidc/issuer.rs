//! Asking the issuer: its discovery document, and the keys that the document points to.

use std::fs;

use reqwest::{Certificate, Url, redirect};
use serde::Deserialize;

use super::{
    keys::KeySet,
    settings::{OidcSettings, checked_url, is_loopback},
};

/// The largest document that is read of an issuer.
const DOCUMENT_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum IssuerError {
    #[error("{0}")]
    CaFile(String),
    #[error("the HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("asking for {url}")]
    Http { url: Url, source: reqwest::Error },
    #[error("{url} answered {status}")]
    Status { url: Url, status: u16 },
    #[error("{0} answered with more than DOCUMENT_BYTES_MAX ({DOCUMENT_BYTES_MAX}) bytes")]
    TooLong(Url),
    #[error("{url} is not understood")]
    Malformed { url: Url, source: serde_json::Error },
    #[error("the discovery document says that it is of the issuer {0:?}")]
    OtherIssuer(String),
    #[error("the discovery document has its keys at {url:?}, which {why}")]
    KeysUrl { url: String, why: &'static str },
}

pub(super) struct Issuer {
    http: reqwest::Client,
    issuer: String,
    discovery: Url,
}

/// OpenID Connect Discovery 1.0, section 3, as far as it concerns us.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Issuer {
    pub(super) fn new(settings: &OidcSettings) -> Result<Self, IssuerError> {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("muster-control/", env!("CARGO_PKG_VERSION")))
            // A redirect could lead from https to anywhere.
            .redirect(redirect::Policy::none())
            .timeout(settings.fetch_timeout);
        if is_loopback(&settings.discovery) {
            builder = builder.no_proxy();
        }
        if let Some(path) = &settings.ca_file {
            let wrong =
                |why: String| IssuerError::CaFile(format!("oidc.ca_file is {}: {why}", path.display()));
            let pem = fs::read(path).map_err(|err| wrong(err.to_string()))?;
            let certificates = Certificate::from_pem_bundle(&pem).map_err(|err| wrong(err.to_string()))?;
            if certificates.is_empty() {
                return Err(wrong("it holds no certificate in PEM".to_owned()));
            }
            builder = builder.tls_certs_only(certificates);
        }
        Ok(Self {
            http: builder.build().map_err(IssuerError::Client)?,
            issuer: settings.rules.issuer.clone(),
            discovery: settings.discovery.clone(),
        })
    }

    pub(super) async fn keys(&self) -> Result<KeySet, IssuerError> {
        let url = self.discovery.clone();
        let bytes = self.fetch(&url).await?;
        let document: Discovery =
            serde_json::from_slice(&bytes).map_err(|source| IssuerError::Malformed { url, source })?;
        if document.issuer != self.issuer {
            return Err(IssuerError::OtherIssuer(document.issuer));
        }
        let url = checked_url(&document.jwks_uri).map_err(|why| IssuerError::KeysUrl {
            url: document.jwks_uri.clone(),
            why,
        })?;
        let bytes = self.fetch(&url).await?;
        KeySet::parse(&bytes).map_err(|source| IssuerError::Malformed { url, source })
    }

    async fn fetch(&self, url: &Url) -> Result<Vec<u8>, IssuerError> {
        let failed = |source: reqwest::Error| IssuerError::Http {
            url: url.clone(),
            source: source.without_url(),
        };
        let mut response = self.http.get(url.clone()).send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(IssuerError::Status {
                url: url.clone(),
                status: response.status().as_u16(),
            });
        }
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            if bytes.len() + piece.len() > DOCUMENT_BYTES_MAX {
                return Err(IssuerError::TooLong(url.clone()));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}
