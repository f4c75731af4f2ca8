//! What a certificate says of itself, read as far as people need it. What is trusted is not decided here.

use std::sync::Arc;

use muster_shared::time::Timestamp;
use rustls::{
    DigitallySignedStruct, Error, OtherError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use x509_parser::{parse_x509_certificate, x509::X509Name};

/// A name of any length is somebody else's, and is cut.
const NAME_CHARS_MAX: usize = 200;

/// A server whose certificate does not hold, with whose it is: where something stands between, this names it.
#[derive(Debug, thiserror::Error)]
#[error("{cause}; the server shows a certificate of {subject:?}, issued by {issuer:?}")]
pub(super) struct Presented {
    pub(super) cause: Error,
    subject: String,
    issuer: String,
}

/// Judges as another does, and tells of what it refuses whose certificate it is.
#[derive(Debug)]
pub(super) struct Naming(pub(super) Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for Naming {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verified.map_err(|cause| match names(end_entity) {
            Some((subject, issuer)) => Error::Other(OtherError(Arc::new(Presented {
                cause,
                subject,
                issuer,
            }))),
            None => cause,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Of an X.509 certificate, as far as it can be read: the names of its subject and of its issuer.
fn names(der: &[u8]) -> Option<(String, String)> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    Some((name(certificate.subject()), name(certificate.issuer())))
}

/// The end of its validity.
pub(crate) fn not_after(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    let seconds = certificate.validity().not_after.timestamp();
    Some(Timestamp::from_millis(seconds.saturating_mul(1000)))
}

/// A distinguished name as people write it: `O=Example, CN=proxy.example`.
fn name(name: &X509Name<'_>) -> String {
    let text = name.to_string();
    if text.is_empty() {
        return "a name that says nothing".to_owned();
    }
    // What it holds is written by whoever made it.
    let shown = text.replace(char::is_control, "?");
    shown.chars().take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read() {
        // Before 2050 it is written with two digits of the year, later with four.
        for (year, end) in [(2032, "2032-03-04T00:00:00Z"), (2099, "2099-03-04T00:00:00Z")] {
            let mut params = rcgen::CertificateParams::new(vec!["control.example".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 3, 4);
            let key = rcgen::KeyPair::generate().unwrap();
            let whole = params.self_signed(&key).unwrap().der().to_vec();
            assert_eq!(not_after(&whole), Some(end.parse().unwrap()));
            for length in 0..whole.len() {
                assert_eq!(
                    not_after(&whole[..length]),
                    None,
                    "it is cut off after {length} bytes"
                );
            }
        }
    }

    #[test]
    fn both_names_of_a_certificate_are_read() {
        let named = |parts: &[(rcgen::DnType, &str)]| {
            let mut params = rcgen::CertificateParams::new(vec!["control.example".to_owned()]).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, text) in parts {
                params.distinguished_name.push(kind.clone(), *text);
            }
            params
        };
        let (organization, common) = (rcgen::DnType::OrganizationName, rcgen::DnType::CommonName);
        let ca = named(&[(organization, "Example"), (common.clone(), "Proxy\u{7} CA")]);
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let issued = |params: rcgen::CertificateParams| {
            let key = rcgen::KeyPair::generate().unwrap();
            let issuer = rcgen::Issuer::from_params(&ca, &ca_key);
            params.signed_by(&key, &issuer).unwrap().der().to_vec()
        };
        let whole = issued(named(&[(common.clone(), "control.example")]));
        let (subject, issuer) = names(&whole).unwrap();
        assert_eq!(subject, "CN=control.example");
        assert_eq!(issuer, "O=Example, CN=Proxy? CA", "what rings a bell is shown");
        for length in 0..whole.len() {
            // Whatever is cut off, nothing panics.
            let _ = names(&whole[..length]);
        }
        let (subject, _) = names(&issued(named(&[]))).unwrap();
        assert_eq!(subject, "a name that says nothing");
        let (subject, _) = names(&issued(named(&[(common, &"x".repeat(5000))]))).unwrap();
        assert_eq!(subject.chars().count(), NAME_CHARS_MAX);
    }
}
