//! What is asked of this machine: folders, room, certificates, the address to listen on.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use muster_shared::{doctor::Finding, time::Timestamp};
use rustix::fs::{FlockOperation, flock};
use rustls::{
    CertificateError, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

use crate::{
    config::{self, Config},
    keys::DataDir,
    server,
};

/// Below so much room somebody should look after it, and below so much less nothing may be written any more.
const SPACE_WARN_BYTES: u64 = 1 << 30;
const SPACE_FAIL_BYTES: u64 = 64 << 20;
const DAY_SECONDS: u64 = 86_400;
/// From here on somebody should look after a certificate.
const CERTIFICATE_WARN_DAYS: u64 = 30;
/// No certificate is looked at further ahead.
const CERTIFICATE_DAYS_MAX: u64 = 36_500;
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// The data directory, and every secret in it.
pub(super) fn folder(data: &DataDir) -> Vec<Finding> {
    let check = "data directory";
    let shown = data.path().display();
    let about = match fs::metadata(data.path()) {
        Ok(about) => about,
        Err(err) => {
            let text = format!("{shown}: {err}");
            return vec![Finding::fail(
                check,
                text,
                format!("muster-control init --data-dir {shown}"),
            )];
        }
    };
    let mut findings = Vec::new();
    if about.mode() & 0o077 != 0 {
        findings.push(Finding::fail(
            check,
            format!(
                "{shown} has mode {:04o}: others than its owner may look into it",
                about.mode() & 0o7777
            ),
            format!("chmod 0700 {shown}"),
        ));
    }
    let secrets = data.path().join("secrets");
    match secrets_in(&secrets) {
        Ok(files) => {
            for (path, mode, uid) in &files {
                let path = path.display();
                if mode & 0o077 != 0 {
                    findings.push(Finding::fail(
                        check,
                        format!(
                            "{path} has mode {:04o}: others than its owner may read a key",
                            mode & 0o7777
                        ),
                        format!("chmod 0600 {path}; who may have read it knows it, see docs/keys.md"),
                    ));
                }
                if *uid != about.uid() {
                    findings.push(Finding::warn(
                        check,
                        format!(
                            "{path} belongs to user {uid}, and the folder to user {}",
                            about.uid()
                        ),
                        format!("chown {} {path}", about.uid()),
                    ));
                }
            }
            if findings.is_empty() {
                let text = format!("{shown} and {} secrets are private", files.len());
                findings.push(Finding::ok(check, text));
            }
        }
        Err(err) => findings.push(Finding::fail(
            check,
            format!("{}: {err}", secrets.display()),
            "run this as root or as control's user; keys that are gone come from a backup",
        )),
    }
    findings
}

/// The files of settings in which a password of the database may be read by others. The data directory is nobody else's.
pub(super) fn settings(config: &Config) -> Vec<Finding> {
    let open = config.files.iter().filter(|path| {
        let others = |path: &Path, may: u32| fs::metadata(path).is_ok_and(|about| about.mode() & may != 0);
        others(path, 0o004) && path.parent().is_some_and(|folder| others(folder, 0o001)) && has_password(path)
    });
    open.map(|path| {
        let path = path.display();
        Finding::fail(
            "configuration",
            format!("every user of this machine may read the password in database_url in {path}"),
            format!(
                "chgrp --reference={} {path} && chmod 0640 {path}; then another password, as this one may be known",
                config.data.path().display()
            ),
        )
    })
    .collect()
}

fn has_password(settings: &Path) -> bool {
    let text = fs::read_to_string(settings).unwrap_or_default();
    let table: toml::Table = toml::from_str(&text).unwrap_or_default();
    let url = table.get("database_url").and_then(toml::Value::as_str);
    url.and_then(|url| reqwest::Url::parse(url).ok())
        .is_some_and(|url| url.password().is_some() || url.query_pairs().any(|(name, _)| name == "password"))
}

fn secrets_in(dir: &Path) -> io::Result<Vec<(std::path::PathBuf, u32, u32)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let about = fs::metadata(&path)?;
        if about.is_file() {
            files.push((path, about.mode(), about.uid()));
        }
    }
    Ok(files)
}

pub(super) fn space(data: &DataDir) -> Finding {
    let check = "space";
    let shown = data.path().display();
    let remedy = "make room on that file system, or set a retention (docs/configuration.md)";
    match rustix::fs::statvfs(data.path()) {
        Err(err) => Finding::fail(check, format!("{shown}: {err}"), "see that the folder is there"),
        Ok(about) => {
            let free = about.f_bavail.saturating_mul(about.f_frsize);
            let text = format!("{} MiB are free where {shown} is", free >> 20);
            if about.f_files > 0 && about.f_favail == 0 {
                Finding::fail(check, format!("no file can be made where {shown} is"), remedy)
            } else if free < SPACE_FAIL_BYTES {
                Finding::fail(check, text, remedy)
            } else if free < SPACE_WARN_BYTES {
                Finding::warn(check, text, remedy)
            } else {
                Finding::ok(check, text)
            }
        }
    }
}

/// The server's certificate as clients judge it that trust the CA: chain, names, times; and whether its key is there.
pub(super) fn certificates(config: &Config, now: Timestamp) -> Vec<Finding> {
    let check = "certificate";
    let data = &config.data;
    let remedy = remedy_of_certificate(config);
    if let Err(err) = server::certified(data) {
        return vec![Finding::fail(check, crate::error_chain(&err), remedy)];
    }
    let judge = match Judge::new(data) {
        Ok(judge) => judge,
        Err(why) => {
            let remedy = "restore ca.pem from a backup: it is what nodes have pinned";
            return vec![Finding::fail(check, why, remedy)];
        }
    };
    let host = host_of(config);
    match judge.verdict(&host, now) {
        Err(why) => vec![Finding::fail(
            check,
            format!(
                "{} is refused by whoever trusts the CA: {why}",
                data.server_cert().display()
            ),
            remedy,
        )],
        Ok(()) => {
            let days = judge.days_left(&host, now);
            let text = if days >= CERTIFICATE_DAYS_MAX {
                format!("is of the CA, for {host}, and does not end in this century")
            } else {
                format!("is of the CA, for {host}, and ends in {days} days")
            };
            if days < CERTIFICATE_WARN_DAYS {
                vec![Finding::warn(check, text, remedy)]
            } else {
                vec![Finding::ok(check, text)]
            }
        }
    }
}

/// Who has the key of the CA signs another, and who has not puts one there.
fn remedy_of_certificate(config: &Config) -> String {
    let (data, host) = (&config.data, host_of(config));
    if data.ca_key().exists() {
        return format!(
            "muster-control certificate renew --data-dir {} --server-name {host}; then restart the service",
            data.path().display()
        );
    }
    format!(
        "put a certificate of the CA for {host} into {}, its key into {}",
        data.server_cert().display(),
        data.server_tls_key().display()
    )
}

/// The host under which clients reach control.
fn host_of(config: &Config) -> String {
    config::host_of(&config.server_url).unwrap_or_default()
}

/// Judges a chain as clients do that trust the CA.
pub(crate) struct Judge {
    verifier: Arc<WebPkiServerVerifier>,
    chain: Vec<CertificateDer<'static>>,
}

impl Judge {
    fn new(data: &DataDir) -> Result<Self, String> {
        let read = |path: &Path| fs::read_to_string(path).map_err(|err| format!("{}: {err}", path.display()));
        Self::of(&read(&data.ca_cert())?, &read(&data.server_cert())?)
    }

    pub(crate) fn of(ca_certs: &str, chain: &str) -> Result<Self, String> {
        let of = |what: &str, pem: &str| {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
            all.map_err(|err| format!("{what}: {err}"))
        };
        let mut roots = RootCertStore::empty();
        for certificate in of("ca.pem", ca_certs)? {
            roots.add(certificate).map_err(|err| format!("ca.pem: {err}"))?;
        }
        let verifier = WebPkiServerVerifier::builder(Arc::new(roots))
            .build()
            .map_err(|err| format!("ca.pem: {err}"))?;
        let chain = of("server.pem", chain)?;
        Ok(Self { verifier, chain })
    }

    pub(crate) fn verdict(&self, host: &str, at: Timestamp) -> Result<(), String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|err| format!("{host:?}: {err}"))?;
        let (first, rest) = self
            .chain
            .split_first()
            .ok_or_else(|| "it holds no certificate".to_owned())?;
        let since = Duration::from_millis(at.as_millis().unsigned_abs());
        let judged =
            self.verifier
                .verify_server_cert(first, rest, &name, &[], UnixTime::since_unix_epoch(since));
        match judged {
            Ok(_) => Ok(()),
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForName))
            | Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })) => {
                Err(format!("it is not for {host}, which server_url names"))
            }
            Err(err) => Err(err.to_string()),
        }
    }

    /// How many whole days it holds from now on; it holds now.
    fn days_left(&self, host: &str, now: Timestamp) -> u64 {
        let holds = |days: u64| {
            let at = now.plus(Duration::from_secs(days * DAY_SECONDS));
            self.verdict(host, at).is_ok()
        };
        let (mut good, mut bad) = (0, CERTIFICATE_DAYS_MAX);
        if holds(bad) {
            return bad;
        }
        while bad - good > 1 {
            let between = good.midpoint(bad);
            if holds(between) {
                good = between;
            } else {
                bad = between;
            }
        }
        good
    }
}

/// Whether the address is free, or is served by the control of this data directory.
pub(super) async fn address(config: &Config) -> Finding {
    let check = "address";
    let listen = config.listen;
    if is_served(&config.data) {
        return match asked(config).await {
            Ok(()) => Finding::ok(
                check,
                format!("{listen} is served by this control, which is ready"),
            ),
            Err(why) => Finding::fail(
                check,
                format!(
                    "a muster-control serves the data directory, and gives no good answer at {listen}: {why}"
                ),
                "see its log: journalctl -u muster-control",
            ),
        };
    }
    match server::listen(listen) {
        Ok(_) => Finding::ok(
            check,
            format!("{listen} is free; nobody serves the data directory"),
        ),
        Err(err) => Finding::fail(
            check,
            crate::error_chain(&err),
            "stop what listens there (ss -ltnp), or give control another address (listen)",
        ),
    }
}

pub(crate) fn is_served(data: &DataDir) -> bool {
    let Ok(file) = fs::File::open(data.path().join("lock")) else {
        return false;
    };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

/// Asks where it listens, whatever its name leads to from here.
async fn asked(config: &Config) -> Result<(), String> {
    let pem = fs::read(config.data.ca_cert()).map_err(|err| err.to_string())?;
    let ca = reqwest::Certificate::from_pem_bundle(&pem).map_err(|err| err.to_string())?;
    let ip = match config.listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    let at = SocketAddr::new(ip, config.listen.port());
    let http = reqwest::Client::builder()
        .tls_certs_only(ca)
        .no_proxy()
        .timeout(ANSWER_WAIT)
        .resolve("localhost", at)
        .build()
        .map_err(|err| err.to_string())?;
    // The certificate that `init` makes is good for this name; of another one the handshake is answer enough.
    let url = format!("https://localhost:{}/readyz", at.port());
    match http.get(url).send().await {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("it answers {}", answer.status())),
        Err(err) => {
            let why = crate::error_chain(&err.without_url());
            if why.contains("certificate") {
                return Ok(());
            }
            Err(why)
        }
    }
}
