//! What a certificate says of itself, read as far as people need it. What is trusted is not decided here.

use std::sync::Arc;

use muster_shared::time::Timestamp;
use rustls::{
    DigitallySignedStruct, Error, OtherError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const VERSION: u8 = 0xa0;
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
    let (issuer, rest) = issuer(der)?;
    // The validity is between them.
    let (SEQUENCE, subject, _) = element(element(rest)?.2)? else {
        return None;
    };
    Some((name(subject), name(issuer)))
}

/// The end of its validity.
pub(crate) fn not_after(der: &[u8]) -> Option<Timestamp> {
    let (_, rest) = issuer(der)?;
    let (SEQUENCE, validity, _) = element(rest)? else {
        return None;
    };
    let (_, _, rest) = element(validity)?;
    let (tag, time, _) = element(rest)?;
    instant(tag, std::str::from_utf8(time).ok()?)
}

/// The issuer is the third part of what is signed, or the fourth where a version stands before; and what comes after it.
fn issuer(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (SEQUENCE, certificate, _) = element(der)? else {
        return None;
    };
    let (SEQUENCE, mut signed, _) = element(certificate)? else {
        return None;
    };
    if let (VERSION, _, rest) = element(signed)? {
        signed = rest;
    }
    // The serial number, and the algorithm.
    for _ in 0..2 {
        signed = element(signed)?.2;
    }
    let (SEQUENCE, issuer, rest) = element(signed)? else {
        return None;
    };
    Some((issuer, rest))
}

/// A distinguished name by those of its parts that people know: `O=Example, CN=proxy.example`.
fn name(mut der: &[u8]) -> String {
    let mut parts = Vec::new();
    while let Some((SET, set, rest)) = element(der) {
        der = rest;
        if let Some(part) = part(set) {
            parts.push(part);
        }
    }
    if parts.is_empty() {
        return "a name that says nothing".to_owned();
    }
    // What it holds is written by whoever made it.
    let shown = parts.join(", ").replace(char::is_control, "?");
    shown.chars().take(NAME_CHARS_MAX).collect()
}

fn part(set: &[u8]) -> Option<String> {
    const UTF8: u8 = 0x0c;
    const PRINTABLE: u8 = 0x13;
    const IA5: u8 = 0x16;
    let (SEQUENCE, pair, _) = element(set)? else {
        return None;
    };
    let (OBJECT_ID, kind, rest) = element(pair)? else {
        return None;
    };
    let kind = match kind {
        [0x55, 4, 3] => "CN",
        [0x55, 4, 6] => "C",
        [0x55, 4, 10] => "O",
        [0x55, 4, 11] => "OU",
        _ => return None,
    };
    match element(rest)? {
        (UTF8 | PRINTABLE | IA5, text, _) => Some(format!("{kind}={}", String::from_utf8_lossy(text))),
        _ => None,
    }
}

/// One element of DER: its tag, its content, and what comes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = bytes
                .iter()
                .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn instant(tag: u8, text: &str) -> Option<Timestamp> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let digits = text
        .strip_suffix('Z')
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    let full = match (tag, digits.len()) {
        // Two digits name a year from 1950 to 2049.
        (UTC_TIME, 12) if digits.as_bytes()[0] >= b'5' => format!("19{digits}"),
        (UTC_TIME, 12) => format!("20{digits}"),
        (GENERALIZED_TIME, 14) => digits.to_owned(),
        (_, _) => return None,
    };
    let part = |from: usize| &full[from..from + 2];
    format!(
        "{}-{}-{}T{}:{}:{}Z",
        &full[..4],
        part(4),
        part(6),
        part(8),
        part(10),
        part(12)
    )
    .parse()
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        match u8::try_from(content.len()) {
            Ok(short @ 0..=0x7f) => out.push(short),
            _ => {
                out.push(0x82);
                out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
            }
        }
        out.extend(content);
        out
    }

    fn certificate(version: bool, end: &[u8]) -> Vec<u8> {
        let validity = [der(0x17, b"200101000000Z"), end.to_vec()].concat();
        let mut signed = if version {
            der(0xa0, &der(2, &[2]))
        } else {
            Vec::new()
        };
        signed.extend(der(2, &[1; 20]));
        signed.extend(der(0x30, &[]));
        signed.extend(der(0x30, &[0; 300]));
        signed.extend(der(0x30, &validity));
        signed.extend(der(0x30, b"the rest"));
        der(0x30, &[der(0x30, &signed), der(0x30, &[])].concat())
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        let at = |raw: &str| Some(raw.parse::<Timestamp>().unwrap());
        let utc = der(0x17, b"320304050607Z");
        assert_eq!(not_after(&certificate(true, &utc)), at("2032-03-04T05:06:07Z"));
        assert_eq!(not_after(&certificate(false, &utc)), at("2032-03-04T05:06:07Z"));
        let late = der(0x18, b"20991231235959Z");
        assert_eq!(not_after(&certificate(true, &late)), at("2099-12-31T23:59:59Z"));
        let whole = certificate(true, &utc);
        for length in 0..whole.len() {
            // Whatever is cut off, nothing panics.
            let _ = not_after(&whole[..length]);
        }
        assert_eq!(not_after(&certificate(true, &der(0x17, b"whenever"))), None);
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
