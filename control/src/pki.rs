//! The private CA that `init` makes, and the server certificate under it.

use std::net::IpAddr;

use muster_shared::ids::Digest;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

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
    let issuer = Issuer::from_params(&ca, &ca_key);

    let server_key = KeyPair::generate()?;
    let mut server = CertificateParams::new(names.to_vec())?;
    server
        .distinguished_name
        .push(DnType::CommonName, "muster-control");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_cert = server.signed_by(&server_key, &issuer)?;
    Ok(Pki {
        ca_cert: ca_cert.pem(),
        ca_sha256: Digest::of(ca_cert.der()).to_string().replace("sha256:", ""),
        ca_key: ca_key.serialize_pem(),
        // The chain carries the CA too: a client that pins it by digest needs to see it.
        server_cert: format!("{}{}", server_cert.pem(), ca_cert.pem()),
        server_key: server_key.serialize_pem(),
    })
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
