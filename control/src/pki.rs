//! The private CA that `init` makes, and the server certificates under it.

use std::{net::IpAddr, time::Duration};

use muster_shared::{ids::Digest, time::Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SigningKey, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

/// PEM texts of a new CA and a server certificate.
pub(crate) struct Pki {
    pub(crate) ca_cert: String,
    /// As 64 hexadecimal digits.
    pub(crate) ca_sha256: String,
    pub(crate) ca_key: String,
    pub(crate) server_cert: String,
    pub(crate) server_key: String,
}

/// Makes a CA for this installation and a certificate for the names under which control is reached.
pub(crate) fn make(names: &[String]) -> Result<Pki, rcgen::Error> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::default();
    ca.distinguished_name
        .push(DnType::CommonName, "Muster private CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_cert = ca.self_signed(&ca_key)?;
    let server = server_certificate(names, None, &Issuer::from_params(&ca, &ca_key))?;
    Ok(Pki {
        ca_cert: ca_cert.pem(),
        ca_sha256: Digest::of(ca_cert.der()).to_string().replace("sha256:", ""),
        ca_key: ca_key.serialize_pem(),
        server_cert: chain(&server.certificate, &ca_cert.pem()),
        server_key: server.key,
    })
}

/// PEM texts of a certificate and its key.
pub(crate) struct Certified {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A new key, and a certificate for it. One to which no end is given lasts as long as any can.
pub(crate) fn server_certificate(
    names: &[String],
    end: Option<Timestamp>,
    issuer: &Issuer<'_, impl SigningKey>,
) -> Result<Certified, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut server = CertificateParams::new(names.to_vec())?;
    server
        .distinguished_name
        .push(DnType::CommonName, "muster-control");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    if let Some(end) = end {
        let since = Duration::from_millis(end.as_millis().unsigned_abs());
        server.not_after = date_time_ymd(1970, 1, 1) + since;
    }
    Ok(Certified {
        certificate: server.signed_by(&key, issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

/// What a server shows. It carries the CA too: a client that pins it by digest needs to see it.
pub(crate) fn chain(certificate: &str, ca: &str) -> String {
    format!("{certificate}{ca}")
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PkiError {
    #[error("it is no private key in PEM that signs certificates")]
    Key(#[source] rcgen::Error),
    #[error("it is no certificate in PEM: {0}")]
    Malformed(String),
    #[error("it is the key of no certificate in ca.pem")]
    OtherCa,
    #[error("the CA that it belongs to cannot sign")]
    Issuer(#[source] rcgen::Error),
}

/// The CA of which this is the key, among those of a `ca.pem`: there are two while one takes over from another.
pub(crate) fn issuer(ca_certs: &str, ca_key: &str) -> Result<Issuer<'static, KeyPair>, PkiError> {
    let key = KeyPair::from_pem(ca_key).map_err(PkiError::Key)?;
    for certificate in CertificateDer::pem_slice_iter(ca_certs.as_bytes()) {
        let certificate = certificate.map_err(|err| PkiError::Malformed(err.to_string()))?;
        let (_, parsed) =
            parse_x509_certificate(&certificate).map_err(|err| PkiError::Malformed(err.to_string()))?;
        if *parsed.public_key().subject_public_key.data == *key.public_key_raw() {
            return Issuer::from_ca_cert_der(&certificate, key).map_err(PkiError::Issuer);
        }
    }
    Err(PkiError::OtherCa)
}

/// The names and addresses for which the first certificate of a chain was made.
pub(crate) fn names_of(chain: &str) -> Result<Vec<String>, PkiError> {
    let malformed = |err: &dyn std::fmt::Display| PkiError::Malformed(err.to_string());
    let first = CertificateDer::from_pem_slice(chain.as_bytes()).map_err(|err| malformed(&err))?;
    let (_, parsed) = parse_x509_certificate(&first).map_err(|err| malformed(&err))?;
    let names = parsed.subject_alternative_name().map_err(|err| malformed(&err))?;
    let names = names.map(|extension| &*extension.value.general_names);
    Ok(names.unwrap_or_default().iter().filter_map(name_of).collect())
}

/// Clients look for nothing but a host's name or its address.
fn name_of(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::DNSName(name) = name {
        return Some((*name).to_owned());
    }
    let GeneralName::IPAddress(octets) = name else {
        return None;
    };
    let four = <[u8; 4]>::try_from(*octets).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(*octets).map(IpAddr::from));
    Some(address.ok()?.to_string())
}

/// A host name or an address, as a certificate can carry it.
pub(crate) fn is_server_name(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
        || (!name.is_empty()
            && name.len() <= 253
            && name.split('.').all(|label| {
                (1..=63).contains(&label.len())
                    && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            }))
}
