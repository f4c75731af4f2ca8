//! `agent.toml` and the command line, checked once. A [`Config`] that exists is sound.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_shared::labels::{self, BadLabel, LABELS_SAID_MAX, Labels};
use serde::Deserialize;

use crate::{args::RunArgs, enroll::machine::FACTS_MAX, exit::Exit, journal::Bounds, session::OutputBounds};

pub(crate) const STATE_DIR_DEFAULT: &str = "/var/lib/muster";
const HOOKS_DIR_DEFAULT: &str = "/etc/muster/hooks.d";
const CONFIG_DEFAULT: &str = "/etc/muster/agent.toml";

/// As written; every field may be left out.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    state_dir: Option<PathBuf>,
    hooks_dir: Option<PathBuf>,
    output_ca_file: Option<PathBuf>,
    running_max: Option<u64>,
    queue_max: Option<u64>,
    output_bytes_max: Option<u64>,
    hook_bytes_max: Option<u64>,
    stop_grace_seconds: Option<u64>,
    heartbeat_seconds: Option<u64>,
    idle_seconds: Option<u64>,
    backoff_max_seconds: Option<u64>,
    journal_keep_days: Option<u64>,
    journal_rows_max: Option<u64>,
    journal_bytes_max: Option<u64>,
    output_wait_seconds: Option<u64>,
    output_retry_seconds: Option<u64>,
    output_keep_days: Option<u64>,
    output_spool_bytes_max: Option<u64>,
    output_spool_count_max: Option<u64>,
    #[serde(default)]
    labels: Labels,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) state_dir: PathBuf,
    pub(crate) hooks_dir: PathBuf,
    /// Whom to trust for an output store that is not the control service.
    pub(crate) output_ca_file: Option<PathBuf>,
    /// What the admin calls this node. Control keeps them under `node/`, where no operator's label is.
    pub(crate) labels: Labels,
    pub(crate) limits: Limits,
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Invocations that run at the same time.
    pub(crate) running_max: usize,
    /// Invocations that wait their turn; one more is refused.
    pub(crate) queue_max: usize,
    /// Output kept of one invocation; past it the middle is cut.
    pub(crate) output_bytes_max: u64,
    pub(crate) hook_bytes_max: u64,
    /// Between the polite signal and the other one.
    pub(crate) stop_grace: Duration,
    pub(crate) heartbeat: Duration,
    /// Silence on the event stream, or of the output store during an upload, after which it counts as dead.
    pub(crate) idle: Duration,
    pub(crate) backoff_max: Duration,
    /// How long past its expiry a delivered invocation is remembered.
    pub(crate) journal_keep: Duration,
    /// How many of them, and in how much room.
    pub(crate) journal: Bounds,
    /// How long an end may wait for its output to be uploaded before it is told without it.
    pub(crate) output_wait: Duration,
    /// The longest wait before an output whose end was told is tried again.
    pub(crate) output_retry: Duration,
    /// How long such an output is kept and tried.
    pub(crate) output_keep: Duration,
    /// How much all of them may take, and how many there may be; past it the oldest go.
    pub(crate) outputs: OutputBounds,
}

#[derive(Debug, thiserror::Error)]
enum ConfigError {
    #[error("the configuration file {path} cannot be read: {err}")]
    Unreadable { path: PathBuf, err: io::Error },
    #[error("the configuration file {path} is malformed: {text}")]
    Malformed { path: PathBuf, text: String },
    #[error("{field} = {value} in {path} is out of bounds: {min} to {max}")]
    OutOfBounds {
        path: PathBuf,
        field: &'static str,
        value: u64,
        min: u64,
        max: u64,
    },
    #[error("[labels] in {path}: {err}")]
    Label { path: PathBuf, err: BadLabel },
    #[error("[labels] in {path} has {count} labels; the limit is {LABELS_MAX}")]
    TooManyLabels { path: PathBuf, count: usize },
}

/// What a node may say of itself, less what the facts of the machine take.
const LABELS_MAX: usize = LABELS_SAID_MAX - FACTS_MAX;

impl Config {
    pub(crate) fn load(args: RunArgs) -> Result<Self, Exit> {
        let named = args.config.is_some();
        let path = args.config.clone().unwrap_or_else(|| CONFIG_DEFAULT.into());
        read(&path, named)
            .and_then(|raw| Self::check(raw, args, &path))
            .map_err(|err| Exit::BadConfig(err.to_string()))
    }

    fn check(raw: RawConfig, args: RunArgs, path: &Path) -> Result<Self, ConfigError> {
        let within = |field, value: Option<u64>, default, min, max| {
            let value = value.unwrap_or(default);
            if (min..=max).contains(&value) {
                Ok(value)
            } else {
                Err(ConfigError::OutOfBounds {
                    path: path.to_owned(),
                    field,
                    value,
                    min,
                    max,
                })
            }
        };
        let seconds = |field, value, default, min, max| {
            within(field, value, default, min, max).map(Duration::from_secs)
        };
        let count = |field, value, default, min, max| {
            within(field, value, default, min, max).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
        };
        let limits = Limits {
            running_max: count("running_max", raw.running_max, 8, 1, 256)?,
            queue_max: count("queue_max", raw.queue_max, 64, 1, 10_000)?,
            output_bytes_max: within("output_bytes_max", raw.output_bytes_max, 64 << 20, 4096, 1 << 40)?,
            hook_bytes_max: within("hook_bytes_max", raw.hook_bytes_max, 16 << 20, 1, 1 << 30)?,
            stop_grace: seconds("stop_grace_seconds", raw.stop_grace_seconds, 10, 0, 3600)?,
            heartbeat: seconds("heartbeat_seconds", raw.heartbeat_seconds, 30, 1, 3600)?,
            idle: seconds("idle_seconds", raw.idle_seconds, 60, 2, 3600)?,
            backoff_max: seconds("backoff_max_seconds", raw.backoff_max_seconds, 60, 1, 3600)?,
            journal_keep: seconds("journal_keep_days", raw.journal_keep_days, 7, 0, 3650)? * (24 * 60 * 60),
            output_wait: seconds("output_wait_seconds", raw.output_wait_seconds, 120, 0, 3600)?,
            output_retry: seconds(
                "output_retry_seconds",
                raw.output_retry_seconds,
                600,
                1,
                24 * 60 * 60,
            )?,
            output_keep: seconds("output_keep_days", raw.output_keep_days, 7, 0, 3650)? * (24 * 60 * 60),
            journal: Bounds {
                rows_max: within("journal_rows_max", raw.journal_rows_max, 100_000, 100, 10_000_000)?,
                bytes_max: within(
                    "journal_bytes_max",
                    raw.journal_bytes_max,
                    256 << 20,
                    1 << 20,
                    1 << 40,
                )?,
            },
            outputs: OutputBounds {
                bytes_max: within(
                    "output_spool_bytes_max",
                    raw.output_spool_bytes_max,
                    1 << 30,
                    0,
                    1 << 40,
                )?,
                count_max: count(
                    "output_spool_count_max",
                    raw.output_spool_count_max,
                    1000,
                    0,
                    100_000,
                )?,
            },
        };
        // Absolute from here on: supervisors work from another folder than the one this was started in.
        let either = |flag: Option<PathBuf>, file: Option<PathBuf>, default: &str| {
            let path = flag.or(file).unwrap_or_else(|| default.into());
            std::path::absolute(&path).unwrap_or(path)
        };
        Ok(Self {
            state_dir: either(args.state_dir, raw.state_dir, STATE_DIR_DEFAULT),
            hooks_dir: either(args.hooks_dir, raw.hooks_dir, HOOKS_DIR_DEFAULT),
            output_ca_file: raw.output_ca_file,
            labels: sound_labels(raw.labels, path)?,
            limits,
        })
    }
}

fn sound_labels(labels: Labels, path: &Path) -> Result<Labels, ConfigError> {
    let path = || path.to_owned();
    for (key, value) in &labels {
        labels::check_said(key, value).map_err(|err| ConfigError::Label { path: path(), err })?;
    }
    match labels.len() {
        count if count > LABELS_MAX => Err(ConfigError::TooManyLabels { path: path(), count }),
        _ => Ok(labels),
    }
}

/// A file that somebody named must be there; the one at the usual place need not.
fn read(path: &Path, named: bool) -> Result<RawConfig, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text).map_err(|err| ConfigError::Malformed {
            path: path.to_owned(),
            text: err.to_string(),
        }),
        Err(err) if err.kind() == io::ErrorKind::NotFound && !named => Ok(RawConfig::default()),
        Err(err) => Err(ConfigError::Unreadable {
            path: path.to_owned(),
            err,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, Exit> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(RunArgs {
            state_dir: None,
            hooks_dir: Some("/h".into()),
            config: Some(path),
        })
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let config = load("state_dir = \"/s\"\nhooks_dir = \"/other\"\nrunning_max = 2\n").unwrap();
        assert_eq!((config.state_dir, config.hooks_dir), ("/s".into(), "/h".into()));
        assert_eq!((config.limits.running_max, config.limits.queue_max), (2, 64));
    }

    #[test]
    fn a_relative_path_is_made_absolute() {
        let config = load("state_dir = \"here\"\n").unwrap();
        assert_eq!(config.state_dir, std::env::current_dir().unwrap().join("here"));
    }

    #[test]
    fn an_error_names_the_field_and_its_bounds() {
        let text = load("running_max = 0").unwrap_err().to_string();
        assert!(
            text.contains("running_max = 0") && text.contains("1 to 256"),
            "{text}"
        );
        assert!(
            load("runing_max = 1")
                .unwrap_err()
                .to_string()
                .contains("runing_max")
        );
    }

    #[test]
    fn labels_are_checked_where_they_are_written() {
        let config = load("[labels]\nrack = \"r7\"\n").unwrap();
        assert_eq!(config.labels["rack"], "r7");
        let text = load("[labels]\n\"a b\" = \"x\"\n").unwrap_err().to_string();
        assert!(text.contains("[labels]") && text.contains("a b"), "{text}");
        let many: String = (0..=LABELS_MAX).map(|n| format!("l{n} = \"x\"\n")).collect();
        let text = load(&format!("[labels]\n{many}")).unwrap_err().to_string();
        assert!(text.contains(&format!("the limit is {LABELS_MAX}")), "{text}");
    }

    #[test]
    fn a_named_file_must_be_there() {
        let args = RunArgs {
            state_dir: None,
            hooks_dir: None,
            config: Some("/nowhere/agent.toml".into()),
        };
        assert!(matches!(Config::load(args), Err(Exit::BadConfig(_))));
    }
}
