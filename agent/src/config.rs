//! `agent.toml` and the command line, checked once. A [`Config`] that exists is sound.

mod file;
mod limits;
mod policy;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use muster_shared::{
    drop_ins::TooManyDropIns,
    labels::{self, BadLabel, LABELS_SAID_MAX, Labels},
};
use serde::Deserialize;

use crate::{
    args::RunArgs,
    enroll::machine::FACTS_MAX,
    exit::Exit,
    hooks::manifest::{VARIABLES_MAX, check_variable},
    limits::HookLimits,
    policy::{BadPattern, PATTERNS_MAX, Policy, RULES_MAX},
    reach::{Reach, settings::RawControl},
};
use file::{RawConfig, drop_ins_in, read};
pub(crate) use limits::Limits;
use limits::{hook_limits, limits};
use policy::policy_of;

pub(crate) const STATE_DIR_DEFAULT: &str = "/var/lib/muster";
const HOOKS_DIR_DEFAULT: &str = "/etc/muster/hooks.d";
const CONFIG_DEFAULT: &str = "/etc/muster/agent.toml";

/// Who starts the supervisors of hooks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LauncherChoice {
    /// systemd where it runs this machine and the daemon is root, else the daemon itself.
    #[default]
    Auto,
    Systemd,
    Session,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) state_dir: PathBuf,
    pub(crate) hooks_dir: PathBuf,
    /// Whom to trust for an output store that is not the control service.
    pub(crate) output_ca_file: Option<PathBuf>,
    /// Files, and directories with all in them, that may be read although not every user of the machine may.
    pub(crate) readable_paths: Vec<PathBuf>,
    pub(crate) launcher: LauncherChoice,
    /// Of one hook, where nothing else is said.
    pub(crate) hook_limits: HookLimits,
    /// What hooks find in their environment, where their manifests do not say otherwise.
    pub(crate) hook_environment: BTreeMap<String, String>,
    /// What the admin calls this node. Control keeps them under `node/`, where no operator's label is.
    pub(crate) labels: Labels,
    pub(crate) limits: Limits,
    pub(crate) policy: Policy,
    pub(crate) reach: Reach,
    /// As it was said, to see whether it changed.
    control: RawControl,
    /// The command line it was read with, and is read again with.
    args: RunArgs,
}

#[derive(Debug, thiserror::Error)]
enum ConfigError {
    #[error("the configuration file {path} cannot be read: {err}")]
    Unreadable { path: PathBuf, err: io::Error },
    #[error("the configuration file {path} is malformed: {text}")]
    Malformed { path: PathBuf, text: String },
    #[error("readable_paths in {path} holds {value}, which is not absolute")]
    Relative { path: PathBuf, value: PathBuf },
    #[error("{field} = {value} in {path} is out of bounds: {min} to {max}")]
    OutOfBounds {
        path: PathBuf,
        field: &'static str,
        value: u64,
        min: u64,
        max: u64,
    },
    #[error("[control] in {path}: {why}")]
    Control { path: PathBuf, why: String },
    #[error("hooks.environment.{name} in {path}: {why}")]
    Variable {
        path: PathBuf,
        name: String,
        why: String,
    },
    #[error("hooks.environment in {path} has {count} variables; the limit is {VARIABLES_MAX}")]
    TooManyVariables { path: PathBuf, count: usize },
    #[error("[labels] in {path}: {err}")]
    Label { path: PathBuf, err: BadLabel },
    #[error("[labels] in {path} has {count} labels; the limit is {LABELS_MAX}")]
    TooManyLabels { path: PathBuf, count: usize },
    #[error("policy.{list} in {path}: {err}")]
    Pattern {
        path: PathBuf,
        list: &'static str,
        err: BadPattern,
    },
    #[error("policy.{list} in {path} has {count} patterns; the limit is {PATTERNS_MAX}")]
    TooManyPatterns {
        path: PathBuf,
        list: &'static str,
        count: usize,
    },
    #[error("policy.rule {name:?} in {path}: {why}")]
    Rule {
        path: PathBuf,
        name: String,
        why: String,
    },
    #[error("policy.rule in {path}: {count} rules; the limit is {RULES_MAX}")]
    TooManyRules { path: PathBuf, count: usize },
    #[error("{path} is not a directory of drop-ins: {err}")]
    DropIns { path: PathBuf, err: TooManyDropIns },
}

/// What came of reading the configuration again.
#[derive(Debug)]
pub(crate) struct Reloaded {
    pub(crate) config: Config,
    /// Settings that differ and take effect only at the next start.
    pub(crate) at_next_start: Vec<&'static str>,
}

/// What a node may say of itself, less what the facts of the machine take.
const LABELS_MAX: usize = LABELS_SAID_MAX - FACTS_MAX;

impl Config {
    pub(crate) fn load(args: RunArgs) -> Result<Self, Exit> {
        Self::read(args).map_err(|err| Exit::BadConfig(err.to_string()))
    }

    /// Reads everything again. What is built into running parts stays as it is until the next start.
    pub(crate) fn reload(&self) -> Result<Reloaded, String> {
        let new = Self::read(self.args.clone()).map_err(|err| err.to_string())?;
        let (old, limits) = (self, &new.limits);
        let at_start = [
            ("state_dir", old.state_dir != new.state_dir),
            ("hooks_dir", old.hooks_dir != new.hooks_dir),
            ("output_ca_file", old.output_ca_file != new.output_ca_file),
            ("hooks.launcher", old.launcher != new.launcher),
            ("heartbeat_seconds", old.limits.heartbeat != limits.heartbeat),
            ("idle_seconds", old.limits.idle != limits.idle),
            ("backoff_min_ms", old.limits.backoff.min != limits.backoff.min),
            (
                "backoff_max_seconds",
                old.limits.backoff.max != limits.backoff.max,
            ),
            (
                "retry_after_max_seconds",
                old.limits.backoff.asked_max != limits.backoff.asked_max,
            ),
            ("control", old.control != new.control),
            (
                "journal_rows_max",
                old.limits.journal.rows_max != limits.journal.rows_max,
            ),
            (
                "journal_bytes_max",
                old.limits.journal.bytes_max != limits.journal.bytes_max,
            ),
        ];
        Ok(Reloaded {
            at_next_start: at_start
                .into_iter()
                .filter(|(_, differs)| *differs)
                .map(|(name, _)| name)
                .collect(),
            config: Self {
                state_dir: old.state_dir.clone(),
                hooks_dir: old.hooks_dir.clone(),
                output_ca_file: old.output_ca_file.clone(),
                labels: new.labels,
                limits: Limits {
                    heartbeat: old.limits.heartbeat,
                    idle: old.limits.idle,
                    backoff: old.limits.backoff,
                    journal: old.limits.journal,
                    ..new.limits
                },
                readable_paths: new.readable_paths,
                launcher: old.launcher,
                hook_limits: new.hook_limits,
                hook_environment: new.hook_environment,
                policy: new.policy,
                reach: old.reach.clone(),
                control: old.control.clone(),
                args: new.args,
            },
        })
    }

    /// `agent.toml`, then the files of `agent.d` beside it in the order of their names. Each has to be sound by itself.
    fn read(args: RunArgs) -> Result<Self, ConfigError> {
        let named = args.config.is_some();
        let main = args.config.clone().unwrap_or_else(|| CONFIG_DEFAULT.into());
        // What the policy says is told with its file, to whoever asks from whichever folder.
        let main = std::path::absolute(&main).unwrap_or(main);
        let mut files = vec![(read(&main, named)?, main.clone())];
        for path in drop_ins_in(&main.with_extension("d"))? {
            files.push((read(&path, true)?, path));
        }
        let (mut raw, mut policy) = (RawConfig::default(), Policy::default());
        for (file, path) in files {
            limits(&file, &path)?;
            check_labels(&file.labels, &path)?;
            check_readable_paths(&file.readable_paths, &path)?;
            hook_limits(&file.hooks, &path)?;
            check_environment(&file.hooks.environment, &path)?;
            policy = policy.then(policy_of(&file.policy, &path)?);
            raw = raw.then(file);
        }
        check_labels(&raw.labels, &main)?;
        check_environment(&raw.hooks.environment, &main)?;
        // Absolute from here on: supervisors work from another folder than the one this was started in.
        let either = |flag: Option<&PathBuf>, file: Option<PathBuf>, default: &str| {
            let path = flag.cloned().or(file).unwrap_or_else(|| default.into());
            std::path::absolute(&path).unwrap_or(path)
        };
        Ok(Self {
            limits: limits(&raw, &main)?,
            state_dir: either(args.state_dir.as_ref(), raw.state_dir, STATE_DIR_DEFAULT),
            hooks_dir: either(args.hooks_dir.as_ref(), raw.hooks_dir, HOOKS_DIR_DEFAULT),
            output_ca_file: raw.output_ca_file,
            labels: raw.labels,
            hook_limits: hook_limits(&raw.hooks, &main)?,
            hook_environment: raw.hooks.environment,
            readable_paths: raw.readable_paths,
            launcher: raw.hooks.launcher.unwrap_or_default(),
            policy,
            reach: raw
                .control
                .check(|name| std::env::var(name).ok())
                .map_err(|why| ConfigError::Control { path: main, why })?,
            control: raw.control,
            args,
        })
    }
}

fn check_labels(labels: &Labels, path: &Path) -> Result<(), ConfigError> {
    let path = || path.to_owned();
    for (key, value) in labels {
        labels::check_said(key, value).map_err(|err| ConfigError::Label { path: path(), err })?;
    }
    match labels.len() {
        count if count > LABELS_MAX => Err(ConfigError::TooManyLabels { path: path(), count }),
        _ => Ok(()),
    }
}

/// `PATH` and `LANG` are an admin's to say. Who the hook runs as decides the others, and what a linker is told by `LD_*`
/// would be in every program that any hook starts.
fn check_environment(variables: &BTreeMap<String, String>, path: &Path) -> Result<(), ConfigError> {
    let path = || path.to_owned();
    for (name, value) in variables {
        let given = ["HOME", "USER", "LOGNAME"].contains(&name.as_str());
        let checked = if given {
            Err("musterd sets it by whom the hook runs as".to_owned())
        } else if name.starts_with("LD_") {
            Err(
                "what the linker is told is no business of all hooks; the manifest of one may say it"
                    .to_owned(),
            )
        } else {
            check_variable(name, value)
        };
        checked.map_err(|why| ConfigError::Variable {
            path: path(),
            name: name.clone(),
            why,
        })?;
    }
    match variables.len() {
        count if count > VARIABLES_MAX => Err(ConfigError::TooManyVariables { path: path(), count }),
        _ => Ok(()),
    }
}

fn check_readable_paths(paths: &[PathBuf], path: &Path) -> Result<(), ConfigError> {
    match paths.iter().find(|path| !path.is_absolute()) {
        None => Ok(()),
        Some(relative) => Err(ConfigError::Relative {
            path: path.to_owned(),
            value: relative.clone(),
        }),
    }
}

fn bounded(path: &Path, field: &'static str, value: u64, (min, max): (u64, u64)) -> Result<u64, ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(ConfigError::OutOfBounds {
        path: path.to_owned(),
        field,
        value,
        min,
        max,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn a_rule_is_told_with_a_file_that_is_found_from_any_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("agent.toml"), "[policy]\ndeny = [\"reboot\"]\n").unwrap();
        let here = std::env::current_dir().unwrap();
        let root: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = root
            .join(dir.path().strip_prefix("/").unwrap())
            .join("agent.toml");
        let config = Config::load(RunArgs {
            state_dir: None,
            hooks_dir: None,
            config: Some(relative),
        });
        assert!(config.unwrap().policy.deny[0].file.is_absolute());
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
    fn the_environment_of_hooks_is_checked_where_it_is_written() {
        let said = "[hooks.environment]\nLANG = \"de_DE.UTF-8\"\nPATH = \"/opt/bin\"\n";
        assert_eq!(load(said).unwrap().hook_environment["PATH"], "/opt/bin");
        for (bad, why) in [
            ("MUSTER_NODE_ID = \"x\"", "given by musterd"),
            ("HOME = \"/\"", "whom the hook runs as"),
            ("USER = \"root\"", "whom the hook runs as"),
            ("LD_PRELOAD = \"/x.so\"", "linker"),
            ("\"a b\" = \"x\"", "letters, digits"),
            ("X = \"a\\u0000b\"", "no NUL"),
        ] {
            let text = load(&format!("[hooks.environment]\n{bad}\n"))
                .unwrap_err()
                .to_string();
            assert!(text.contains("hooks.environment") && text.contains(why), "{text}");
        }
        let many: String = (0..=VARIABLES_MAX).map(|n| format!("V{n} = \"x\"\n")).collect();
        let text = load(&format!("[hooks.environment]\n{many}"))
            .unwrap_err()
            .to_string();
        assert!(text.contains(&format!("the limit is {VARIABLES_MAX}")), "{text}");
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
    fn drop_ins_come_on_top_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let drop_in =
            |name: &str, text: &str| std::fs::write(dir.path().join("agent.d").join(name), text).unwrap();
        std::fs::create_dir(dir.path().join("agent.d")).unwrap();
        std::fs::write(
            &path,
            "running_max = 2\nqueue_max = 3\n[policy]\ndeny = [\"a\"]\n",
        )
        .unwrap();
        drop_in(
            "20-b.toml",
            "running_max = 4\n[policy]\ntimeout_max_seconds = 9\n",
        );
        drop_in(
            "10-a.toml",
            "running_max = 3\n[policy]\ndeny = [\"b\"]\ntimeout_max_seconds = 5\n",
        );
        drop_in(".hidden.toml", "nonsense");
        drop_in("readme.txt", "nonsense");
        let args = RunArgs {
            state_dir: None,
            hooks_dir: None,
            config: Some(path),
        };
        let config = Config::load(args).unwrap();
        assert_eq!((config.limits.running_max, config.limits.queue_max), (4, 3));
        assert_eq!(config.policy.deny.len(), 2);
        assert_eq!(
            config.policy.timeout_max.as_ref().unwrap().what,
            Duration::from_secs(9)
        );

        drop_in(
            "30-c.toml",
            "heartbeat_seconds = 5\nrunning_max = 5\noutput_wait_seconds = 6\noutput_retry_seconds = 7\n",
        );
        let reloaded = config.reload().unwrap();
        assert_eq!(reloaded.at_next_start, ["heartbeat_seconds"]);
        let limits = &reloaded.config.limits;
        assert_eq!(limits.running_max, 5);
        assert_eq!(limits.heartbeat, config.limits.heartbeat);
        let seconds = Duration::from_secs;
        assert_eq!(
            (limits.output_wait, limits.output_retry),
            (seconds(6), seconds(7))
        );
        for (bad, word) in [
            ("running_max = 0", "running_max"),
            ("[policy]\ndeny = [\"a b\"]", "a b"),
            ("[policy]\ntimeout_max_seconds = 0", "policy.timeout_max_seconds"),
            ("[policy]\ndenny = []", "denny"),
            ("[[policy.rule]]\nname = \"r\"", "says nothing"),
            (
                "[[policy.rule]]\nname = \"r\"\nhours.allow = [\"at night\"]",
                "at night",
            ),
        ] {
            drop_in("30-c.toml", bad);
            let text = config.reload().unwrap_err();
            assert!(text.contains("30-c.toml") && text.contains(word), "{text}");
        }
    }

    #[test]
    fn hooks_have_limits_of_their_own() {
        let config = load("[hooks]\nlauncher = \"session\"\nmemory_max_bytes = 33554432\n").unwrap();
        assert_eq!(config.launcher, LauncherChoice::Session);
        let expected = HookLimits {
            memory_max_bytes: Some(32 << 20),
            pids_max: Some(4096),
            cpu_percent: None,
        };
        assert_eq!(config.hook_limits, expected);
        let text = load("[hooks]\nmemory_max_bytes = 1").unwrap_err().to_string();
        assert!(
            text.contains("hooks.memory_max_bytes = 1") && text.contains("16777216"),
            "{text}"
        );
        assert!(
            load("[hooks]\nlauncher = \"docker\"")
                .unwrap_err()
                .to_string()
                .contains("docker")
        );
    }

    #[test]
    fn what_is_opened_to_be_read_is_named_whole() {
        let config = load("readable_paths = [\"/var/log\"]").unwrap();
        assert_eq!(config.readable_paths[..], [PathBuf::from("/var/log")]);
        let text = load("readable_paths = [\"log\"]").unwrap_err().to_string();
        assert!(text.contains("readable_paths") && text.contains("log"), "{text}");
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
