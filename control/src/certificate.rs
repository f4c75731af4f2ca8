//! `muster-control certificate renew`: another key and another certificate for the server, under the CA of the data directory.
//!
//! Both are written and durable before either gets its name, so that only two renames lie between the pair before and the
//! new one. Cut off between the two, the command is given again: it needs the names of the certificate, and no key but
//! that of the CA. What serves goes on with the pair that it has read.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use muster_shared::time::{Timestamp, parse_duration};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::{
    config::{self, Config},
    doctor::machine::{Judge, is_served},
    init,
    keys::{DataDir, write_new, write_secret},
    pki::{self, Certified, PkiError},
    server,
};

/// One that ends sooner would have to be renewed by a program, and one that ends later outlives us.
const TTL_MIN: Duration = Duration::from_hours(24);
const TTL_MAX: Duration = Duration::from_hours(24 * 36_500);
/// What is put behind the name of a file that is not there yet, and of one that was.
const NEXT: &str = ".next";
const BEFORE: &str = ".before";

pub(crate) struct RenewOptions {
    /// Beside those that the certificate has.
    pub(crate) server_names: Vec<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) dry_run: bool,
}

/// What was done, or would be.
#[derive(Debug, Serialize)]
pub(crate) struct Renewed {
    pub(crate) dry_run: bool,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) names: Vec<String>,
    /// Those of them that the certificate before did not have.
    pub(crate) new_names: Vec<String>,
    /// Nothing where it has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<Timestamp>,
    /// Where the certificate and the key before are now.
    pub(crate) before: Vec<PathBuf>,
    /// Whether a service goes on with the certificate before until it is started anew.
    pub(crate) restart_needed: bool,
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewError {
    #[error("{0} is no data directory: run muster-control init --data-dir {0}")]
    NotInitialised(PathBuf),
    #[error(
        "{0} is not there, and nothing else can sign here: bring the key of the CA back from a backup, or sign a certificate where it is kept"
    )]
    NoCaKey(PathBuf),
    #[error("{path} cannot be read; run this as root or as control's user")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{0:?} is not a host name or an address that a certificate can carry")]
    BadName(String),
    #[error("{path}")]
    Pki { path: PathBuf, source: PkiError },
    #[error("the certificate could not be made")]
    Making(#[from] rcgen::Error),
    #[error("nothing was changed: the new certificate would be refused by whoever trusts {ca}: {why}")]
    Refused { ca: PathBuf, why: String },
    #[error("the data directory")]
    Io(#[from] io::Error),
}

/// How long a certificate may last, as the command line says it.
pub(crate) fn parse_ttl(raw: &str) -> Result<Duration, String> {
    let ttl = parse_duration(raw)?;
    if (TTL_MIN..=TTL_MAX).contains(&ttl) {
        Ok(ttl)
    } else {
        Err("it must be from 1d to 36500d".to_owned())
    }
}

pub(crate) fn renew(config: &Config, options: &RenewOptions, now: Timestamp) -> Result<Renewed, RenewError> {
    let data = &config.data;
    let ca_key_path = data.ca_key();
    let ca_key = match fs::read_to_string(&ca_key_path) {
        Ok(key) => key,
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(unreadable(&ca_key_path, err)),
        Err(_) if data.path().exists() => return Err(RenewError::NoCaKey(ca_key_path)),
        Err(_) => return Err(RenewError::NotInitialised(data.path().to_owned())),
    };
    // Of two at a time the second waits for the first.
    let turn = fs::File::open(&ca_key_path)?;
    flock(&turn, FlockOperation::LockExclusive).map_err(io::Error::from)?;

    let ca_certs = fs::read_to_string(data.ca_cert()).map_err(|err| unreadable(&data.ca_cert(), err))?;
    let issuer = pki::issuer(&ca_certs, &ca_key).map_err(|source| RenewError::Pki {
        path: ca_key_path.clone(),
        source,
    })?;
    let mut notes = Vec::new();
    let present = present_names(config, &mut notes)?;
    let names = names(&present, config, &options.server_names)?;
    let expires_at = options.ttl.map(|ttl| now.plus(ttl));
    let made = pki::server_certificate(&names, expires_at, &issuer)?;
    let chain = pki::chain(&made.certificate, &ca_certs);
    accepted(&ca_certs, &chain, &names, now).map_err(|why| RenewError::Refused {
        ca: data.ca_cert(),
        why,
    })?;
    let before = if options.dry_run {
        Vec::new()
    } else {
        put(
            data,
            &Certified {
                certificate: chain,
                ..made
            },
        )?
    };
    Ok(Renewed {
        dry_run: options.dry_run,
        certificate: data.server_cert(),
        key: data.server_tls_key(),
        new_names: names
            .iter()
            .filter(|name| !present.contains(name))
            .cloned()
            .collect(),
        names,
        expires_at,
        before,
        restart_needed: !options.dry_run && is_served(data),
        notes,
    })
}

fn unreadable(path: &Path, source: io::Error) -> RenewError {
    RenewError::Unreadable {
        path: path.to_owned(),
        source,
    }
}

/// Those of the certificate that is there, or, where it tells none, those that `init` would give it.
fn present_names(config: &Config, notes: &mut Vec<String>) -> Result<Vec<String>, RenewError> {
    let path = config.data.server_cert();
    let why = match fs::read_to_string(&path).map(|chain| pki::names_of(&chain)) {
        Ok(Ok(names)) if !names.is_empty() => return Ok(names),
        Ok(Ok(_)) => "it has none".to_owned(),
        Ok(Err(err)) => err.to_string(),
        Err(err) if err.kind() == io::ErrorKind::NotFound => "it is not there".to_owned(),
        Err(err) => return Err(unreadable(&path, err)),
    };
    notes.push(format!(
        "the names are not those of {}, but those that init would give: {why}",
        path.display()
    ));
    init::server_names(Some(&config.server_url), config.listen, &[])
        .map_err(|_| RenewError::BadName(config.server_url.clone()))
}

/// Those that were there, then the host of `server_url`, then the further ones.
fn names(present: &[String], config: &Config, further: &[String]) -> Result<Vec<String>, RenewError> {
    if let Some(bad) = further.iter().find(|name| !pki::is_server_name(name)) {
        return Err(RenewError::BadName(bad.clone()));
    }
    let host = config::host_of(&config.server_url).filter(|host| {
        // The address of nobody, where `server_url` was left to `listen`.
        pki::is_server_name(host)
            && !host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_unspecified())
    });
    let mut seen = HashSet::new();
    let all = present.iter().cloned().chain(host).chain(further.iter().cloned());
    Ok(all
        .filter(|name| seen.insert(name.to_ascii_lowercase()))
        .collect())
}

/// Whether clients that trust the CA take it under each of its names.
fn accepted(ca_certs: &str, chain: &str, names: &[String], now: Timestamp) -> Result<(), String> {
    let judge = Judge::of(ca_certs, chain)?;
    let mut tried = names.iter().filter(|name| !name.contains('*'));
    tried.try_for_each(|name| judge.verdict(name, now).map_err(|why| format!("{name}: {why}")))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Puts both in the place of those before, which are kept as long as they belong together. Answers where they are.
fn put(data: &DataDir, made: &Certified) -> io::Result<Vec<PathBuf>> {
    let (cert, key) = (data.server_cert(), data.server_tls_key());
    let (next_cert, next_key) = (beside(&cert, NEXT), beside(&key, NEXT));
    for leftover in [&next_cert, &next_key] {
        remove(leftover)?;
    }
    write_secret(&next_key, made.key.as_bytes())?;
    write_new(&next_cert, made.certificate.as_bytes(), 0o644)?;
    // The service has to read them, whoever made them.
    let owner = fs::metadata(data.path())?;
    for path in [&next_cert, &next_key] {
        chown(path, Some(owner.uid()), Some(owner.gid()))?;
    }
    let mut before = Vec::new();
    if server::certified(data).is_ok() {
        for path in [&cert, &key] {
            let kept = beside(path, BEFORE);
            remove(&kept)?;
            fs::hard_link(path, &kept)?;
            before.push(kept);
        }
    }
    fs::rename(&next_key, &key)?;
    fs::rename(&next_cert, &cert)?;
    for file in [&key, &cert] {
        if let Some(folder) = file.parent() {
            fs::File::open(folder)?.sync_all()?;
        }
    }
    Ok(before)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Renewed {
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![if self.dry_run {
            format!("would renew {}; nothing was changed", self.certificate.display())
        } else {
            format!("renewed {}", self.certificate.display())
        }];
        lines.push(format!("for {}", self.names.join(", ")));
        if !self.new_names.is_empty() {
            lines.push(format!("new among them: {}", self.new_names.join(", ")));
        }
        lines.push(match self.expires_at {
            Some(at) => format!("it ends at {at}"),
            None => "it has no end".to_owned(),
        });
        lines.extend(self.notes.iter().cloned());
        if !self.before.is_empty() {
            let paths: Vec<_> = self
                .before
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            lines.push(format!("those before it are {}", paths.join(" and ")));
        }
        if self.restart_needed {
            lines.push(
                "the service shows the one before until it is started anew: systemctl restart muster-control"
                    .to_owned(),
            );
        }
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Given, init::InitOptions};
    use std::os::unix::fs::PermissionsExt as _;

    const NOTHING: RenewOptions = RenewOptions {
        server_names: vec![],
        ttl: None,
        dry_run: false,
    };

    async fn made(dir: &Path) -> Config {
        let options = InitOptions {
            data_dir: dir.to_owned(),
            database_url: None,
            listen: "127.0.0.1:7443".into(),
            server_url: Some("https://control.example:7443".into()),
            server_names: vec!["alias.example".into(), "2001:db8::7".into()],
        };
        init::init(options, Timestamp::now()).await.unwrap();
        load(dir)
    }

    fn load(dir: &Path) -> Config {
        Config::load(Given {
            data_dir: dir.to_owned(),
            database_url: None,
            config: None,
            listen: None,
            server_url: None,
        })
        .unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        let both = ["server.pem", "secrets/server.key"];
        both.map(|file| fs::read_to_string(dir.join(file)).unwrap())
            .into()
    }

    #[tokio::test]
    async fn the_names_stay_and_the_key_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(dir.path()).await;
        let (first, names) = (files(dir.path()), pki::names_of(&files(dir.path())[0]).unwrap());
        assert!(names.contains(&"2001:db8::7".to_owned()) && names.contains(&"127.0.0.1".to_owned()));
        let options = RenewOptions {
            server_names: vec!["further.example".into(), "alias.example".into()],
            ttl: Some(Duration::from_hours(24 * 90)),
            dry_run: true,
        };
        let would = renew(&config, &options, Timestamp::now()).unwrap();
        assert_eq!((files(dir.path()), would.before.len()), (first.clone(), 0));
        let done = renew(
            &config,
            &RenewOptions {
                dry_run: false,
                ..options
            },
            Timestamp::now(),
        )
        .unwrap();
        assert_eq!((&would.names, &would.new_names), (&done.names, &done.new_names));
        assert_eq!(done.new_names, ["further.example"]);
        let second = files(dir.path());
        assert_eq!(
            pki::names_of(&second[0]).unwrap(),
            [names, vec!["further.example".to_owned()]].concat()
        );
        assert!(second.iter().zip(&first).all(|(new, old)| new != old));
        let kept = ["server.pem.before", "secrets/server.key.before"]
            .map(|file| fs::read_to_string(dir.path().join(file)).unwrap());
        assert_eq!(kept.to_vec(), first);
        for secret in ["secrets/server.key", "secrets/server.key.before"] {
            let about = fs::metadata(dir.path().join(secret)).unwrap();
            assert_eq!(about.permissions().mode() & 0o777, 0o600, "{secret}");
        }
        assert!(done.text().contains("new among them: further.example\n"));
    }

    #[tokio::test]
    async fn a_pair_that_was_torn_apart_or_lost_is_made_whole() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(dir.path()).await;
        let names = pki::names_of(&files(dir.path())[0]).unwrap();
        // As after a power cut between the two renames.
        fs::write(
            dir.path().join("secrets/server.key"),
            rcgen::KeyPair::generate().unwrap().serialize_pem(),
        )
        .unwrap();
        fs::write(dir.path().join("server.pem.next"), "half").unwrap();
        assert!(server::certified(&config.data).is_err());
        let done = renew(&config, &NOTHING, Timestamp::now()).unwrap();
        assert_eq!((done.names, done.before.len()), (names.clone(), 0));
        assert!(server::certified(&config.data).is_ok());
        assert!(!dir.path().join("server.pem.next").exists());

        fs::remove_file(dir.path().join("server.pem")).unwrap();
        let done = renew(&config, &NOTHING, Timestamp::now()).unwrap();
        assert!(done.notes[0].contains("it is not there"), "{:?}", done.notes);
        assert!(done.names.contains(&"control.example".to_owned()) && done.names.len() < names.len());
        assert!(server::certified(&config.data).is_ok());
    }

    #[tokio::test]
    async fn without_the_cas_own_key_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(dir.path()).await;
        let before = files(dir.path());
        let path = dir.path().join("secrets/ca.key");
        let key = fs::read_to_string(&path).unwrap();
        let refused = |text: Option<&str>, told: &str| {
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let err = renew(&config, &NOTHING, Timestamp::now()).unwrap_err();
            let err = crate::error_chain(&err);
            assert!(err.contains(told) && err.contains("ca.key"), "{err}");
        };
        refused(None, "from a backup");
        refused(Some("nonsense"), "no private key");
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        refused(Some(&other), "of no certificate in ca.pem");
        fs::write(&path, key).unwrap();
        let bad = RenewOptions {
            server_names: vec!["a b".into()],
            ..NOTHING
        };
        assert!(matches!(
            renew(&config, &bad, Timestamp::now()),
            Err(RenewError::BadName(_))
        ));
        assert_eq!(files(dir.path()), before);
        let missing = load(&dir.path().join("nowhere"));
        assert!(matches!(
            renew(&missing, &NOTHING, Timestamp::now()),
            Err(RenewError::NotInitialised(_))
        ));
    }

    /// As while one CA takes over from another.
    #[tokio::test]
    async fn of_two_cas_the_one_whose_key_is_there_signs() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(dir.path()).await;
        let other = pki::make(&["other.example".to_owned()]).unwrap();
        let path = dir.path().join("ca.pem");
        let own = fs::read_to_string(&path).unwrap();
        for both in [
            format!("{}{own}", other.ca_cert),
            format!("{own}{}", other.ca_cert),
        ] {
            fs::write(&path, both).unwrap();
            renew(&config, &NOTHING, Timestamp::now()).unwrap();
        }
    }
}
