//! `muster-control init`: everything a first control needs, in a folder of its own.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, lchown},
    path::{Path, PathBuf},
};

use muster_shared::{
    access::OperatorToken,
    ids::{DomainId, ProjectId, RowId},
    time::Timestamp,
};
use serde::Serialize;

use crate::{
    audit::{self, Entry},
    authz,
    config::{self, ConfigError},
    keys::{DataDir, TokenKind, chance, token_hash, write_new, write_secret},
    pki,
    store::{Database, Store, StoreError},
};

/// What an admin puts into a data directory before anything is made there: the password of the database.
const PGPASS: &str = ".pgpass";

pub(crate) struct InitOptions {
    pub(crate) data_dir: PathBuf,
    pub(crate) database_url: Option<String>,
    pub(crate) listen: String,
    pub(crate) server_url: Option<String>,
    pub(crate) server_names: Vec<String>,
}

/// What a client needs. The token is shown here and nowhere else.
#[derive(Serialize)]
pub(crate) struct Initialised {
    pub(crate) server: String,
    pub(crate) token: String,
    pub(crate) ca_file: PathBuf,
    pub(crate) data_dir: PathBuf,
    /// By which a node knows the CA that the server shows it, without the file.
    pub(crate) ca_sha256: String,
    pub(crate) project_id: ProjectId,
    pub(crate) domain_id: DomainId,
}

impl Initialised {
    pub(crate) fn text(&self) -> String {
        format!(
            "Initialised. Start it with: {}\n\
             The token below is shown this once.\n\n\
             export MUSTER_SERVER={}\nexport MUSTER_TOKEN={}\nexport MUSTER_CA_FILE={}\nexport MUSTER_PROJECT={}\n\n\
             A node enrols with: musterd enroll --server {} --token-file FILE --ca-sha256 {}\n",
            start_command(&self.data_dir),
            self.server,
            self.token,
            self.ca_file.display(),
            self.project_id,
            self.server,
            self.ca_sha256,
        )
    }
}

/// Where systemd is, the unit serves the usual data directory.
fn start_command(data_dir: &Path) -> String {
    if Path::new("/run/systemd/system").is_dir() && data_dir == Path::new(config::DATA_DIR_DEFAULT) {
        "systemctl enable --now muster-control".to_owned()
    } else {
        format!("muster-control serve --data-dir {}", data_dir.display())
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("{0} is initialised already; serve it, or name another folder")]
    Already(PathBuf),
    #[error(
        "{0} is not empty and not a finished data directory (a former init was cut off?); empty it, or name another folder"
    )]
    NotEmpty(PathBuf),
    #[error("{0:?} is not a host name or an address that a certificate can carry")]
    BadName(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the data directory")]
    Io(#[from] io::Error),
    #[error("the certificates")]
    Pki(#[from] rcgen::Error),
    #[error("{0} holds a control already; for a replica of it, copy that one's data directory")]
    InUse(String),
    #[error("the database")]
    Store(#[from] StoreError),
}

/// The configuration appears last: a folder that has it is whole, and belongs to whom it did before, whoever filled it.
pub(crate) async fn init(options: InitOptions, now: Timestamp) -> Result<Initialised, InitError> {
    let listen: SocketAddr = options
        .listen
        .parse()
        .map_err(|_| ConfigError::Listen(options.listen.clone()))?;
    let names = server_names(options.server_url.as_deref(), listen, &options.server_names)?;
    let server = config::check_server_url(
        options
            .server_url
            .unwrap_or_else(|| format!("https://{}:{}", bracketed(&names[0]), listen.port())),
    )?;
    let data = DataDir::new(&options.data_dir);
    let database = config::database(&data, options.database_url.clone())?;
    let owner = owner_of(data.path())?;
    // A server is asked before anything is made here.
    let server_store = if database.is_shared() {
        Some(open_unused(&database).await?)
    } else {
        None
    };
    make_empty(&data, &database)?;

    let pki = pki::make(&names)?;
    write_new(&data.ca_cert(), pki.ca_cert.as_bytes(), 0o644)?;
    write_secret(&data.ca_key(), pki.ca_key.as_bytes())?;
    write_new(&data.server_cert(), pki.server_cert.as_bytes(), 0o644)?;
    write_secret(&data.server_tls_key(), pki.server_key.as_bytes())?;
    let signer = data.write_keys()?;

    let store = match server_store {
        Some(store) => store,
        None => Store::open(&database).await?,
    };
    let (domain, project) = (DomainId::mint(now, chance()?), ProjectId::mint(now, chance()?));
    let (token, token_id) = (TokenKind::Operator.mint()?, RowId::mint(now, chance()?));
    let mut tx = store.begin().await?;
    tx.insert_domain(domain, "default", now).await?;
    tx.insert_project(project, domain, "default", now).await?;
    tx.insert_signing_key(signer.keyid(), domain, &signer.public_key(), now)
        .await?;
    let about = OperatorToken {
        id: token_id,
        name: "init".to_owned(),
        domain_id: domain,
        created_at: now,
        created_by: audit::SYSTEM.to_owned(),
        expires_at: None,
        revoked_at: None,
        rotated_at: None,
        previous_valid_until: None,
    };
    tx.insert_operator_token(&about, token_hash(&token)).await?;
    let grant = (&*format!("token:{token_id}"), "operator", &*authz::domain(domain));
    tx.insert_relation(RowId::mint(now, chance()?), (domain, None), grant, now)
        .await?;
    let (subject, relation, resource) = grant;
    let entries = [
        Entry::granted(audit::SYSTEM, "token.issue", subject.to_owned()).with(&about.name),
        Entry::granted(audit::SYSTEM, "grant.create", resource.to_owned())
            .with(authz::notation(resource, relation, subject)),
    ];
    tx.append_audit(domain, &entries, now).await?;
    tx.commit().await?;
    store.close().await;

    let mut settings = format!(
        "# Where control listens, and the URL under which nodes and operators reach it.\nlisten = \"{listen}\"\nserver_url = \"{server}\"\n"
    );
    // There may be a password in it.
    let mode = if options.database_url.is_some() {
        0o600
    } else {
        0o644
    };
    if let Some(url) = &options.database_url {
        settings.push_str(&format!(
            "database_url = {}\n",
            serde_json::Value::from(url.as_str())
        ));
    }
    let aside = data.config().with_extension("new");
    write_new(&aside, settings.as_bytes(), mode)?;
    hand_over(data.path(), owner)?;
    fs::rename(&aside, data.config())?;
    fs::File::open(data.path())?.sync_all()?;
    Ok(Initialised {
        server,
        token,
        ca_file: fs::canonicalize(data.ca_cert())?,
        data_dir: fs::canonicalize(data.path())?,
        ca_sha256: pki.ca_sha256,
        project_id: project,
        domain_id: domain,
    })
}

async fn open_unused(database: &Database) -> Result<Store, InitError> {
    let store = Store::open(database).await?;
    match store.first_domain().await? {
        None => Ok(store),
        Some(_) => Err(InitError::InUse(database.shown())),
    }
}

fn make_empty(data: &DataDir, database: &Database) -> Result<(), InitError> {
    let private = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    private(data.path())?;
    if data.config().exists() && !database.is_missing() {
        return Err(InitError::Already(data.path().to_owned()));
    }
    if !is_empty(data.path())? {
        return Err(InitError::NotEmpty(data.path().to_owned()));
    }
    private(&data.path().join("secrets"))?;
    private(&data.outputs())?;
    Ok(())
}

/// Whom a folder belongs to, if it is there: the service's own user, whoever fills it.
pub(crate) fn owner_of(dir: &Path) -> io::Result<Option<(u32, u32)>> {
    match fs::metadata(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        about => about.map(|about| Some((about.uid(), about.gid()))),
    }
}

/// Whether nothing is in a data directory but what an admin may have put there before.
pub(crate) fn is_empty(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        if !is_the_admins(&entry?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether it was there before, and is neither ours to remove nor to write.
pub(crate) fn is_the_admins(entry: &fs::DirEntry) -> bool {
    entry.file_name() == PGPASS
}

/// Gives everything in a folder to whom the folder belongs.
pub(crate) fn hand_over(dir: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((uid, gid)) = owner else {
        return Ok(());
    };
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let about = entry.metadata()?;
        if about.uid() != uid {
            match lchown(&path, Some(uid), Some(gid)) {
                // Root has put it there, and who fills the folder is somebody else.
                Err(err) if err.kind() == io::ErrorKind::PermissionDenied && is_the_admins(&entry) => {}
                given => {
                    given.map_err(|err| io::Error::new(err.kind(), format!("{}: {err}", path.display())))?
                }
            }
        }
        if about.is_dir() {
            hand_over(&path, owner)?;
        }
    }
    Ok(())
}

/// The names of the certificate, the one for the URL first: those that were asked for, the address that is listened on,
/// this host, and loopback for a first try.
pub(crate) fn server_names(
    server_url: Option<&str>,
    listen: SocketAddr,
    further: &[String],
) -> Result<Vec<String>, InitError> {
    let mut names = further.to_vec();
    if let Some(host) = server_url.and_then(config::host_of) {
        names.insert(0, host);
    }
    if !listen.ip().is_unspecified() {
        names.push(listen.ip().to_string());
    }
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if pki::is_server_name(&hostname) {
        names.push(hostname);
    }
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    if let Some(bad) = names.iter().find(|name| !pki::is_server_name(name)) {
        return Err(InitError::BadName(bad.clone()));
    }
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}

/// An IPv6 address goes in brackets in a URL.
fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject as _;

    fn options(dir: &Path) -> InitOptions {
        InitOptions {
            data_dir: dir.to_owned(),
            database_url: None,
            listen: "127.0.0.1:7443".into(),
            server_url: None,
            server_names: vec![],
        }
    }

    #[tokio::test]
    async fn a_folder_is_initialised_once_and_a_half_made_one_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let made = init(options(dir.path()), Timestamp::now()).await.unwrap();
        assert_eq!(made.server, "https://127.0.0.1:7443");
        assert!(made.ca_file.is_absolute());
        let ca = rustls::pki_types::CertificateDer::from_pem_file(&made.ca_file).unwrap();
        let digest = muster_shared::ids::Digest::of(&ca);
        assert_eq!(format!("sha256:{}", made.ca_sha256), digest.to_string());
        assert!(matches!(
            init(options(dir.path()), Timestamp::now()).await,
            Err(InitError::Already(_))
        ));
        fs::remove_file(dir.path().join("control.toml")).unwrap();
        assert!(matches!(
            init(options(dir.path()), Timestamp::now()).await,
            Err(InitError::NotEmpty(_))
        ));
    }

    #[tokio::test]
    async fn a_password_of_the_admin_is_not_in_the_way_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let pgpass = dir.path().join(".pgpass");
        fs::write(&pgpass, "*:*:*:*:secret\n").unwrap();
        init(options(dir.path()), Timestamp::now()).await.unwrap();
        assert_eq!(fs::read_to_string(&pgpass).unwrap(), "*:*:*:*:secret\n");
    }

    #[tokio::test]
    async fn what_root_makes_belongs_to_whom_the_folder_belongs() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = (u32::MAX - 7, u32::MAX - 8);
        if lchown(dir.path(), Some(theirs.0), Some(theirs.1)).is_err() {
            // Only root can give anything away.
            return;
        }
        fs::write(dir.path().join(".pgpass"), "").unwrap();
        init(options(dir.path()), Timestamp::now()).await.unwrap();
        let mut folders = vec![dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            assert_eq!(owner_of(&folder).unwrap(), Some(theirs));
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                assert_eq!(owner_of(&path).unwrap(), Some(theirs), "{}", path.display());
                if path.is_dir() {
                    folders.push(path);
                }
            }
        }
    }

    #[test]
    fn the_certificate_names_what_the_url_names() {
        let listen = "0.0.0.0:7443".parse().unwrap();
        let names = server_names(Some("https://control.example:7443"), listen, &[]).unwrap();
        assert_eq!(names[0], "control.example");
        assert!(!names.contains(&"0.0.0.0".to_owned()));
        assert!(matches!(
            server_names(None, listen, &["a b".into()]),
            Err(InitError::BadName(_))
        ));
    }
}
