//! A certificate authority that is known by nothing but its digest, as somebody knows it who was told a command line.
//!
//! The server shows the authority beside its own certificate. It counts only if its SHA-256 is the one that was told,
//! and only if the server's certificate holds under it, for this name and now. All that happens before a byte of a
//! request is sent, so the bootstrap token never reaches a server that does not pass.

use std::sync::Arc;

use muster_shared::ids::Digest;
use rustls::{
    DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

use crate::reach;

#[derive(Debug)]
pub(super) struct PinnedByDigest {
    digest: Digest,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the server shows no authority with the SHA-256 that --ca-sha256 names: it is another service, something stands \
     between, or it does not show its authority at all, and then --ca-file is needed"
)]
struct NotShown;

/// 64 hexadecimal digits; `sha256:` before them, colons and capitals are as tools print them.
pub(crate) fn parse(text: &str) -> Result<Digest, String> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.strip_prefix("sha256:").unwrap_or(&text).replace(':', "");
    if digits.len() != 64 {
        return Err("a SHA-256 has 64 hexadecimal digits".to_owned());
    }
    format!("sha256:{digits}")
        .parse()
        .map_err(|_| "a SHA-256 has 64 hexadecimal digits".to_owned())
}

/// Whether one of these certificates is it.
pub(super) fn is_among(digest: Digest, pem: &[u8]) -> bool {
    CertificateDer::pem_slice_iter(pem)
        .flatten()
        .any(|certificate| Digest::of(&certificate) == digest)
}

impl PinnedByDigest {
    pub(super) fn new(digest: Digest) -> Self {
        Self {
            digest,
            provider: reach::provider(),
        }
    }
}

impl ServerCertVerifier for PinnedByDigest {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates
            .iter()
            .find(|certificate| Digest::of(certificate) == self.digest)
            .ok_or_else(|| Error::Other(OtherError(Arc::new(NotShown))))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|err| Error::General(err.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ca {
        params: rcgen::CertificateParams,
        key: rcgen::KeyPair,
        der: CertificateDer<'static>,
    }

    fn ca() -> Ca {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Ca { params, key, der }
    }

    fn leaf(ca: &Ca) -> CertificateDer<'static> {
        let issuer = rcgen::Issuer::from_params(&ca.params, &ca.key);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["control.example".to_owned()]).unwrap();
        params.signed_by(&key, &issuer).unwrap().der().clone()
    }

    fn holds(
        pin: &CertificateDer<'_>,
        leaf: &CertificateDer<'_>,
        shown: &[CertificateDer<'_>],
        name: &str,
    ) -> bool {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        PinnedByDigest::new(Digest::of(pin))
            .verify_server_cert(leaf, shown, &name, &[], now)
            .is_ok()
    }

    #[test]
    fn only_a_certificate_under_the_very_authority_holds() {
        let (ours, theirs) = (ca(), ca());
        let (good, bad) = (leaf(&ours), leaf(&theirs));
        let shown = [ours.der.clone()];
        assert!(holds(&ours.der, &good, &shown, "control.example"));
        assert!(!holds(&ours.der, &good, &shown, "other.example"));
        assert!(!holds(&ours.der, &good, &[], "control.example"));
        assert!(!holds(&theirs.der, &good, &shown, "control.example"));
        // Whoever stands between can show our authority, and has no certificate under it.
        assert!(!holds(&ours.der, &bad, &shown, "control.example"));
        assert!(!holds(
            &ours.der,
            &bad,
            &[ours.der.clone(), theirs.der.clone()],
            "control.example"
        ));
        // The digest of the server's own certificate is not that of an authority.
        assert!(!holds(&good, &good, &shown, "control.example"));
        assert!(!holds(
            &good,
            &good,
            std::slice::from_ref(&good),
            "control.example"
        ));
    }

    #[test]
    fn a_digest_is_read_as_tools_print_it() {
        let digest = Digest::of(b"x");
        let hex = digest.to_string()["sha256:".len()..].to_owned();
        let pairs: Vec<String> = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).to_uppercase())
            .collect();
        for text in [
            hex.clone(),
            digest.to_string(),
            hex.to_uppercase(),
            pairs.join(":"),
            format!("SHA256:{hex}\n"),
        ] {
            assert_eq!(parse(&text), Ok(digest), "{text}");
        }
        for text in [
            "",
            "sha256:",
            &hex[1..],
            &format!("{hex}0"),
            &format!("{}g", &hex[1..]),
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
