//! The files as they are written, and what several of them come to.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use muster_shared::{drop_ins::drop_ins, labels::Labels};
use serde::Deserialize;

use super::{ConfigError, LauncherChoice};
use crate::reach::settings::RawControl;

/// As written; every field may be left out.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) state_dir: Option<PathBuf>,
    pub(super) hooks_dir: Option<PathBuf>,
    pub(super) output_ca_file: Option<PathBuf>,
    #[serde(default)]
    pub(super) readable_paths: Vec<PathBuf>,
    pub(super) running_max: Option<u64>,
    pub(super) queue_max: Option<u64>,
    pub(super) output_bytes_max: Option<u64>,
    pub(super) hook_bytes_max: Option<u64>,
    pub(super) manifest_bytes_max: Option<u64>,
    pub(super) stop_grace_seconds: Option<u64>,
    pub(super) heartbeat_seconds: Option<u64>,
    pub(super) idle_seconds: Option<u64>,
    pub(super) backoff_max_seconds: Option<u64>,
    pub(super) backoff_min_ms: Option<u64>,
    pub(super) retry_after_max_seconds: Option<u64>,
    pub(super) journal_keep_days: Option<u64>,
    pub(super) journal_rows_max: Option<u64>,
    pub(super) journal_bytes_max: Option<u64>,
    pub(super) output_wait_seconds: Option<u64>,
    pub(super) output_retry_seconds: Option<u64>,
    pub(super) output_keep_days: Option<u64>,
    pub(super) output_spool_bytes_max: Option<u64>,
    pub(super) output_spool_count_max: Option<u64>,
    #[serde(default)]
    pub(super) labels: Labels,
    #[serde(default)]
    pub(super) control: RawControl,
    #[serde(default)]
    pub(super) hooks: RawHooks,
    #[serde(default)]
    pub(super) policy: RawPolicy,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPolicy {
    pub(super) allow: Option<Vec<String>>,
    pub(super) deny: Option<Vec<String>>,
    pub(super) builtins: Option<bool>,
    pub(super) timeout_max_seconds: Option<u64>,
    #[serde(default)]
    pub(super) rule: Vec<RawRule>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    pub(super) name: String,
    #[serde(default)]
    pub(super) actions: Option<Vec<String>>,
    #[serde(default)]
    pub(super) callers: RawLists,
    #[serde(default)]
    pub(super) digests: RawLists,
    #[serde(default)]
    pub(super) hours: RawLists,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLists {
    pub(super) allow: Option<Vec<String>>,
    pub(super) deny: Option<Vec<String>>,
}

impl RawConfig {
    /// What a later file says wins over what an earlier one said. The policy is put together elsewhere.
    pub(super) fn then(self, later: Self) -> Self {
        Self {
            state_dir: later.state_dir.or(self.state_dir),
            hooks_dir: later.hooks_dir.or(self.hooks_dir),
            output_ca_file: later.output_ca_file.or(self.output_ca_file),
            running_max: later.running_max.or(self.running_max),
            queue_max: later.queue_max.or(self.queue_max),
            output_bytes_max: later.output_bytes_max.or(self.output_bytes_max),
            hook_bytes_max: later.hook_bytes_max.or(self.hook_bytes_max),
            manifest_bytes_max: later.manifest_bytes_max.or(self.manifest_bytes_max),
            stop_grace_seconds: later.stop_grace_seconds.or(self.stop_grace_seconds),
            heartbeat_seconds: later.heartbeat_seconds.or(self.heartbeat_seconds),
            idle_seconds: later.idle_seconds.or(self.idle_seconds),
            backoff_min_ms: later.backoff_min_ms.or(self.backoff_min_ms),
            backoff_max_seconds: later.backoff_max_seconds.or(self.backoff_max_seconds),
            retry_after_max_seconds: later.retry_after_max_seconds.or(self.retry_after_max_seconds),
            journal_keep_days: later.journal_keep_days.or(self.journal_keep_days),
            journal_rows_max: later.journal_rows_max.or(self.journal_rows_max),
            journal_bytes_max: later.journal_bytes_max.or(self.journal_bytes_max),
            output_wait_seconds: later.output_wait_seconds.or(self.output_wait_seconds),
            output_retry_seconds: later.output_retry_seconds.or(self.output_retry_seconds),
            output_keep_days: later.output_keep_days.or(self.output_keep_days),
            output_spool_bytes_max: later.output_spool_bytes_max.or(self.output_spool_bytes_max),
            output_spool_count_max: later.output_spool_count_max.or(self.output_spool_count_max),
            labels: self.labels.into_iter().chain(later.labels).collect(),
            readable_paths: [self.readable_paths, later.readable_paths].concat(),
            control: self.control.then(later.control),
            hooks: RawHooks {
                launcher: later.hooks.launcher.or(self.hooks.launcher),
                memory_max_bytes: later.hooks.memory_max_bytes.or(self.hooks.memory_max_bytes),
                pids_max: later.hooks.pids_max.or(self.hooks.pids_max),
                cpu_percent: later.hooks.cpu_percent.or(self.hooks.cpu_percent),
                environment: self
                    .hooks
                    .environment
                    .into_iter()
                    .chain(later.hooks.environment)
                    .collect(),
            },
            policy: RawPolicy::default(),
        }
    }
}

/// The table `[hooks]`.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHooks {
    pub(super) launcher: Option<LauncherChoice>,
    pub(super) memory_max_bytes: Option<u64>,
    pub(super) pids_max: Option<u64>,
    pub(super) cpu_percent: Option<u64>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
}

/// A file that somebody named must be there; the one at the usual place need not.
pub(super) fn read(path: &Path, named: bool) -> Result<RawConfig, ConfigError> {
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

/// The files of a directory that need not be there, by name.
pub(super) fn drop_ins_in(dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let unreadable = |err| ConfigError::Unreadable {
        path: dir.to_owned(),
        err,
    };
    let entries = match std::fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let listing: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    drop_ins(listing.map_err(unreadable)?).map_err(|err| ConfigError::DropIns {
        path: dir.to_owned(),
        err,
    })
}
