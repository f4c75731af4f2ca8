//! Settings: flags win over the environment, the environment over `control.toml`, that over the defaults. A [`Config`]
//! that exists is valid.

mod files;
mod limits;
mod retention;

use std::{fs, io, net::SocketAddr, path::PathBuf};

use muster_shared::drop_ins::TooManyDropIns;
use serde::Deserialize;

use crate::{
    keys::DataDir,
    oidc::{BadOidc, OidcSettings, RawOidc},
    outputs::S3Settings,
    retention::Retention,
    store::{BadDatabaseUrl, Database},
};
use files::Files;
pub(crate) use limits::Limits;
use limits::RawLimits;
use retention::RawRetention;

/// Where control listens when nobody says otherwise.
pub(crate) const LISTEN_DEFAULT: &str = "127.0.0.1:7443";
/// Where the package keeps the state.
pub(crate) const DATA_DIR_DEFAULT: &str = "/var/lib/muster-control";

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data: DataDir,
    pub(crate) database: Database,
    /// As it was said, where it was.
    pub(crate) database_url: Option<String>,
    pub(crate) listen: SocketAddr,
    pub(crate) server_url: String,
    pub(crate) limits: Limits,
    pub(crate) retention: Retention,
    pub(crate) metrics_public: bool,
    pub(crate) s3: Option<S3Settings>,
    pub(crate) oidc: Option<OidcSettings>,
    /// Where it was read from, as far as there are such files.
    pub(crate) files: Vec<PathBuf>,
}

/// What flags and environment said.
pub(crate) struct Given {
    pub(crate) data_dir: PathBuf,
    pub(crate) database_url: Option<String>,
    pub(crate) config: Option<PathBuf>,
    pub(crate) listen: Option<String>,
    pub(crate) server_url: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{path} cannot be read")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is not a configuration: {why}")]
    Malformed { path: PathBuf, why: String },
    #[error("{path} is not a directory of drop-ins: {source}")]
    DropIns { path: PathBuf, source: TooManyDropIns },
    #[error("listen is {0:?}; it must be an address and a port, such as {LISTEN_DEFAULT}")]
    Listen(String),
    #[error("server_url is {0:?}; it must be https://host[:port] without a path")]
    ServerUrl(String),
    #[error("database_url {0}")]
    DatabaseUrl(#[from] BadDatabaseUrl),
    #[error("database_password_file is {0}, and {1}")]
    DatabasePassword(PathBuf, &'static str),
    #[error("{0}")]
    Oidc(#[from] BadOidc),
    #[error("{name} is {value}; it must be from {min} to {max}")]
    OutOfBounds {
        name: &'static str,
        value: u64,
        min: u64,
        max: u64,
    },
    #[error("{name} is {value:?}: {why}")]
    Retention {
        name: String,
        value: String,
        why: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    database_url: Option<String>,
    database_password_file: Option<PathBuf>,
    listen: Option<String>,
    server_url: Option<String>,
    #[serde(default)]
    metrics_public: bool,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    output: RawOutput,
    oidc: Option<RawOidc>,
    #[serde(default)]
    retention: RawRetention,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOutput {
    s3: Option<S3Settings>,
}

impl Config {
    pub(crate) fn load(given: Given) -> Result<Self, ConfigError> {
        let data = DataDir::new(given.data_dir);
        let files = Files::of(&data, given.config)?;
        let raw = files.read()?;
        let database_url = given.database_url.or(raw.database_url);
        let listen = given
            .listen
            .or(raw.listen)
            .unwrap_or_else(|| LISTEN_DEFAULT.to_owned());
        let listen: SocketAddr = listen.parse().map_err(|_| ConfigError::Listen(listen))?;
        let server_url = given
            .server_url
            .or(raw.server_url)
            .unwrap_or_else(|| format!("https://{listen}"));
        Ok(Self {
            database: with_password(database(&data, database_url.clone())?, raw.database_password_file)?,
            database_url,
            data,
            listen,
            server_url: check_server_url(server_url)?,
            limits: raw.limits.check()?,
            retention: raw.retention.check()?,
            metrics_public: raw.metrics_public,
            s3: raw.output.s3,
            oidc: raw.oidc.map(RawOidc::check).transpose()?,
            files: files.paths(),
        })
    }
}

/// The database that was named, or the file in the data directory.
pub(crate) fn database(data: &DataDir, url: Option<String>) -> Result<Database, ConfigError> {
    match url {
        Some(url) => Ok(url.parse()?),
        None => Ok(Database::Sqlite(data.database())),
    }
}

/// The password in a file of its own: one that systemd hands over, for example. It counts before all others.
fn with_password(database: Database, file: Option<PathBuf>) -> Result<Database, ConfigError> {
    let Some(path) = file else {
        return Ok(database);
    };
    let Database::Postgres(options) = database else {
        return Err(ConfigError::DatabasePassword(path, "there is no database_url"));
    };
    match fs::read_to_string(&path) {
        Err(source) => Err(ConfigError::Unreadable { path, source }),
        Ok(text) => match text.trim_end_matches(['\r', '\n']) {
            "" => Err(ConfigError::DatabasePassword(path, "it is empty")),
            password => Ok(Database::Postgres(Box::new(options.password(password)))),
        },
    }
}

/// The host that a URL names, an IPv6 address without its brackets.
pub(crate) fn host_of(url: &str) -> Option<String> {
    let host = reqwest::Url::parse(url).ok()?.host_str()?.to_owned();
    Some(host.trim_matches(['[', ']']).to_owned())
}

pub(crate) fn check_server_url(url: String) -> Result<String, ConfigError> {
    let sound = reqwest::Url::parse(&url)
        .is_ok_and(|u| u.scheme() == "https" && u.has_host() && u.path() == "/" && u.query().is_none());
    if sound {
        Ok(url.trim_end_matches('/').to_owned())
    } else {
        Err(ConfigError::ServerUrl(url))
    }
}

fn within(
    name: &'static str,
    value: Option<u64>,
    default: u64,
    min: u64,
    max: u64,
) -> Result<u64, ConfigError> {
    let value = value.unwrap_or(default);
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError::OutOfBounds {
            name,
            value,
            min,
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use muster_shared::ids::DomainId;

    use super::*;
    use crate::retention::Keep;

    pub(super) fn given(dir: &Path) -> Given {
        Given {
            data_dir: dir.to_owned(),
            database_url: None,
            config: None,
            listen: None,
            server_url: None,
        }
    }

    #[test]
    fn what_is_given_wins_over_the_file_and_the_file_over_the_default() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            Config::load(given(dir.path())).unwrap().listen.to_string(),
            LISTEN_DEFAULT
        );
        fs::write(
            dir.path().join("control.toml"),
            "listen = \"127.0.0.1:1\"\n[limits]\nlive_executions_max = 5\n",
        )
        .unwrap();
        let config = Config::load(given(dir.path())).unwrap();
        assert_eq!((config.listen.port(), config.limits.live_executions_max), (1, 5));
        let config = Config::load(Given {
            listen: Some("127.0.0.1:2".into()),
            ..given(dir.path())
        })
        .unwrap();
        assert_eq!(
            (config.listen.port(), config.server_url.as_str()),
            (2, "https://127.0.0.1:2")
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for (text, named) in [
            ("listne = 1", "listne"),
            ("[limits]\nlive_executions_max = 0", "live_executions_max"),
            ("[limits]\nrequests_per_second = 0", "requests_per_second"),
            ("[limits]\nrequests_burst = 100001", "requests_burst"),
            ("[limits]\nrollout_seconds_max = 0", "rollout_seconds_max"),
            ("[limits]\noutput_store_bytes_max = 1", "output_store_bytes_max"),
            ("[limits]\nrestore_grace_seconds = 3601", "restore_grace_seconds"),
            ("[limits]\nupload_url_seconds = 604801", "upload_url_seconds"),
            ("listen = \"nowhere\"", "nowhere"),
            ("server_url = \"http://c\"", "http://c"),
            ("server_url = \"https://c/path\"", "https://c/path"),
            ("[output.s3]\nregion = \"r\"", "bucket"),
            ("[oidc]\nissuer = \"https://i\"", "audience"),
            (
                "[oidc]\nissuer = \"http://i.example\"\naudience = \"a\"",
                "oidc.issuer",
            ),
            ("[retention]\nexecution = \"90d\"", "execution"),
            ("[retention]\nexecutions = \"90\"", "retention.executions"),
            ("[retention]\nexecutions = \"soon\"", "retention.executions"),
            ("[retention]\nbatch = 0", "retention.batch"),
            ("[retention]\naudit = \"30d\"", "retention.audit"),
            (
                "[retention]\nexecutions = \"7d\"\naudit = \"30d\"\n[retention.actions]\ndeploy = \"forever\"",
                "retention.audit",
            ),
            ("[retention.actions]\nping = \"1m\"", "retention.actions.ping"),
            ("[retention.actions]\n\"../p\" = \"7d\"", "retention.actions"),
            ("[retention.domains.x]\naudit = \"7d\"", "retention.domains"),
            (
                "[retention]\nexecutions = \"90d\"\naudit = \"89d\"",
                "retention.audit",
            ),
            (
                "[retention]\naudit = \"30d\"\n[retention.actions]\nping = \"31d\"",
                "retention.audit",
            ),
        ] {
            fs::write(dir.path().join("control.toml"), text).unwrap();
            let err = Config::load(given(dir.path())).unwrap_err().to_string();
            assert!(err.contains(named), "{text}: {err}");
        }
    }

    #[test]
    fn nothing_is_pruned_until_a_retention_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let (domain, ping) = (DomainId::from(uuid::Uuid::nil()), "ping".parse().unwrap());
        let unset = Config::load(given(dir.path())).unwrap().retention;
        assert_eq!(unset.of_action(domain, &ping), Keep::Forever);
        assert_eq!(unset.of_audit(domain), Keep::Forever);
        let text = "[retention]\nexecutions = \"90d\"\naudit = \"400d\"\nbatch = 7
             [retention.actions]\nping = \"7d\"\ndeploy = \"300d\"
             [retention.domains.01900000-0000-7000-8000-000000000001]\nexecutions = \"401d\"\naudit = \"forever\"";
        fs::write(dir.path().join("control.toml"), text).unwrap();
        let set = Config::load(given(dir.path())).unwrap().retention;
        let days = |n: u64| Keep::For(Duration::from_hours(24 * n));
        assert_eq!(set.batch, 7);
        assert_eq!(set.of_action(domain, &ping), days(7));
        assert_eq!(set.of_action(domain, &"deploy".parse().unwrap()), days(300));
        let own = "01900000-0000-7000-8000-000000000001".parse().unwrap();
        assert_eq!(set.of_action(own, &ping), days(401));
    }

    #[test]
    fn the_password_of_the_database_may_be_in_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let load = |url: &str| {
            let text = format!("{url}\ndatabase_password_file = {file:?}\n");
            fs::write(dir.path().join("control.toml"), text).unwrap();
            Config::load(given(dir.path()))
        };
        let url = "database_url = \"postgres://muster@db.example/muster\"";
        assert!(matches!(load(url), Err(ConfigError::Unreadable { .. })));
        fs::write(&file, "\n").unwrap();
        assert!(load(url).unwrap_err().to_string().contains("it is empty"));
        fs::write(&file, "open sesame\n").unwrap();
        let Database::Postgres(options) = load(url).unwrap().database else {
            panic!("it is PostgreSQL");
        };
        // What of it is shown is no secret.
        assert!(format!("{options:?}").contains("open sesame"));
        assert!(!load(url).unwrap().database.shown().contains("sesame"));
        let err = load("").unwrap_err().to_string();
        assert!(
            err.contains("database_password_file") && err.contains("no database_url"),
            "{err}"
        );
    }
}
