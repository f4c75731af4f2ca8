//! `muster-control backup`: everything from which a control can be made again, copied while it serves.
//!
//! A backup is a folder that is there whole or not at all. It is made under another name, looked at as `restore` would look
//! at it, and only then gets its own. It holds keys, so nobody but its owner may read it.

pub(crate) mod copying;
pub(crate) mod dump;

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use muster_shared::{
    audit::Anchor,
    ids::{Digest, DomainId},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::{
    audit::{self, VerifyError},
    config::Config,
    keys::{DataDir, chance},
    store::{self, Store, StoreError},
};
use copying::{copy, described, private_dir, sync_dir, sync_dirs, write_private};
use dump::dump_command;

/// What a backup says of itself lies in it under this name.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The form of a backup that this release writes, and the newest that it reads.
pub(crate) const FORMAT: u32 = 1;
/// The database, in a backup as in a data directory.
pub(crate) const DATABASE: &str = "control.db";
/// What is in a backup, and as what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) muster_version: String,
    /// Everything that was answered before this instant is in it.
    pub(crate) taken_at: Timestamp,
    pub(crate) database: Database,
    /// Whether the outputs of the built-in store are in it.
    pub(crate) outputs: bool,
    pub(crate) files: Vec<Copied>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Database {
    Sqlite {
        schema_version: i64,
        /// The end of every chain of audit rows.
        chains: Vec<Chain>,
    },
    /// The rows are the database service's to copy.
    Postgresql,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Chain {
    pub(crate) domain_id: DomainId,
    #[serde(flatten)]
    pub(crate) end: Anchor,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Copied {
    /// Below the folder, and the same below a data directory.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: Digest,
}

pub(crate) struct BackupOptions {
    pub(crate) to: PathBuf,
    /// The configuration file, where it is not that of the data directory.
    pub(crate) config: Option<PathBuf>,
    pub(crate) without_outputs: bool,
}

/// What was done, and what is left to do.
#[derive(Debug, Serialize)]
pub(crate) struct BackedUp {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    #[serde(flatten)]
    pub(crate) manifest: Manifest,
    /// The command that copies the rows, where a database service holds them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dump_command: Option<String>,
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BackupError {
    #[error("{0} is there already; a backup overwrites nothing, so name another folder")]
    Exists(PathBuf),
    #[error("{0} lies in the data directory, of which it is to be a copy; name a folder elsewhere")]
    Inside(PathBuf),
    #[error("{0} has no folder to lie in")]
    NoParent(PathBuf),
    #[error("{path}")]
    Io { path: PathBuf, source: io::Error },
    #[error("the database")]
    Store(#[from] StoreError),
    #[error("the copy of the database is damaged: {0}")]
    Damaged(String),
    #[error("the copy of the database does not hold")]
    Audit(#[from] VerifyError),
    #[error("the manifest")]
    Manifest(#[from] serde_json::Error),
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io { path, source }
}

pub(crate) async fn backup(
    config: &Config,
    options: &BackupOptions,
    now: Timestamp,
) -> Result<BackedUp, BackupError> {
    let making = Making::begin(&config.data, &options.to)?;
    let mut files = Vec::new();
    let database = if config.database.is_shared() {
        Database::Postgresql
    } else {
        let copy = making.path.join(DATABASE);
        let chains = copy_database(&config.database, &copy).await?;
        files.push(described(&copy, DATABASE)?);
        chains
    };
    for (from, name) in sources(config, options)? {
        match copy(&from, &making.path.join(&name), &name) {
            Ok(copied) => files.push(copied),
            // Pruned since it was listed, or left over by an upload that was cut off.
            Err(BackupError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && name.starts_with("outputs/") => {}
            Err(err) => return Err(err),
        }
    }
    let manifest = Manifest {
        format: FORMAT,
        muster_version: env!("CARGO_PKG_VERSION").to_owned(),
        taken_at: now,
        database,
        outputs: has_outputs(config, options),
        files,
    };
    let path = making.path.join(MANIFEST);
    write_private(&path, &serde_json::to_vec_pretty(&manifest)?)?;
    let path = making.finish(&options.to)?;
    Ok(BackedUp {
        bytes: manifest.files.iter().map(|file| file.bytes).sum(),
        dump_command: config.database_url.as_deref().map(|url| dump_command(url, &path)),
        notes: notes(config, options),
        path,
        manifest,
    })
}

/// A folder under a passing name. Dropped before its end, it was never there.
struct Making {
    path: PathBuf,
    parent: PathBuf,
}

impl Making {
    fn begin(data: &DataDir, to: &Path) -> Result<Self, BackupError> {
        if fs::symlink_metadata(to).is_ok() {
            return Err(BackupError::Exists(to.to_owned()));
        }
        let name = to
            .file_name()
            .ok_or_else(|| BackupError::NoParent(to.to_owned()))?
            .to_string_lossy();
        let parent = match to.parent() {
            Some(parent) if parent != Path::new("") => parent,
            Some(_) | None => Path::new("."),
        };
        let parent = fs::canonicalize(parent).map_err(at(parent))?;
        let of_data = fs::canonicalize(data.path()).map_err(at(data.path()))?;
        if parent.starts_with(&of_data) {
            return Err(BackupError::Inside(to.to_owned()));
        }
        let chance = URL_SAFE_NO_PAD.encode(chance::<6>().map_err(at(to))?);
        let path = parent.join(format!(".{name}.{chance}.partial"));
        private_dir(&path)?;
        Ok(Self { path, parent })
    }

    /// Gives it its name, durably.
    fn finish(self, to: &Path) -> Result<PathBuf, BackupError> {
        sync_dirs(&self.path)?;
        if fs::symlink_metadata(to).is_ok() {
            return Err(BackupError::Exists(to.to_owned()));
        }
        fs::rename(&self.path, to).map_err(at(to))?;
        sync_dir(&self.parent)?;
        fs::canonicalize(to).map_err(at(to))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // Gone already once it has its name; of the others nothing may stay behind, because keys are in it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Copies the rows as they are at one moment, and looks at the copy as one would who has to live from it.
async fn copy_database(from: &store::Database, to: &Path) -> Result<Database, BackupError> {
    // SQLite would make it readable for more than its owner.
    write_private(to, b"")?;
    let store = Store::open_to_read(from).await?;
    store.copy_into(to).await?;
    store.close().await;
    fs::File::open(to)
        .and_then(|file| file.sync_all())
        .map_err(at(to))?;
    let (schema_version, chains) = look_at(to).await?;
    Ok(Database::Sqlite {
        schema_version,
        chains,
    })
}

/// Finds out whether a database is whole, and where its chains of audit rows end.
pub(crate) async fn look_at(database: &Path) -> Result<(i64, Vec<Chain>), BackupError> {
    let store = Store::open_to_read(&store::Database::Sqlite(database.to_owned())).await?;
    let damage = store.damage().await?;
    if !damage.is_empty() {
        return Err(BackupError::Damaged(damage.join("; ")));
    }
    let mut chains = Vec::new();
    for domain_id in store.all_domains().await? {
        let (end, _) = audit::verify(&store, domain_id).await?;
        chains.push(Chain { domain_id, end });
    }
    let version = store.schema_version().await?;
    store.close().await;
    Ok((version, chains))
}

/// The files beside the database, with their names below the data directory. Without one of the first no control starts.
fn sources(config: &Config, options: &BackupOptions) -> Result<Vec<(PathBuf, String)>, BackupError> {
    let data = config.data.path();
    let mut names: Vec<String> = ["ca.pem", "server.pem"].map(str::to_owned).to_vec();
    list(data, "secrets", &mut names)?;
    if has_outputs(config, options) && config.data.outputs().exists() {
        list(data, "outputs", &mut names)?;
    }
    let mut sources: Vec<_> = names.into_iter().map(|name| (data.join(&name), name)).collect();
    let settings = match &options.config {
        Some(path) => path.clone(),
        None => config.data.config(),
    };
    if settings.exists() {
        sources.push((settings, "control.toml".to_owned()));
    }
    Ok(sources)
}

const fn has_outputs(config: &Config, options: &BackupOptions) -> bool {
    config.s3.is_none() && !options.without_outputs
}

/// Every file below a folder, but for what an upload under way has not put in place.
fn list(data: &Path, folder: &str, names: &mut Vec<String>) -> Result<(), BackupError> {
    let dir = data.join(folder);
    for entry in fs::read_dir(&dir).map_err(at(&dir))? {
        let entry = entry.map_err(at(&dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A key may be a symlink to where it is kept.
        let kind = match fs::metadata(entry.path()) {
            Err(err) if err.kind() == io::ErrorKind::NotFound && folder.starts_with("outputs") => continue,
            about => about.map_err(at(&entry.path()))?,
        };
        let below = format!("{folder}/{name}");
        if kind.is_dir() {
            list(data, &below, names)?;
        } else if kind.is_file() && !name.starts_with('.') {
            names.push(below);
        }
    }
    Ok(())
}

/// What a restore from this alone would lack.
fn notes(config: &Config, options: &BackupOptions) -> Vec<String> {
    let mut notes = Vec::new();
    match &config.s3 {
        Some(s3) => {
            notes.push(format!(
                "outputs stay in the bucket {:?}: they are not in the backup",
                s3.bucket
            ));
            let secret = &s3.secret_access_key_file;
            if !secret.starts_with(config.data.path()) {
                notes.push(format!(
                    "not copied, because it lies outside of the data directory: {}",
                    secret.display()
                ));
            }
        }
        None if options.without_outputs => {
            notes.push(
                "outputs above 16 KiB are left out: a restored control answers 502 output_lost for them"
                    .to_owned(),
            );
        }
        None => {}
    }
    notes
}

/// A path that leads nowhere but below the folder that it is joined to.
pub(crate) fn is_below(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_manifest_leads_nowhere_else() {
        for good in ["ca.pem", "secrets/ca.key", "outputs/a/b/output"] {
            assert!(is_below(good), "{good}");
        }
        for bad in ["", "/etc/passwd", "../x", "secrets/../../x", "./x", "secrets/.."] {
            assert!(!is_below(bad), "{bad}");
        }
    }
}
