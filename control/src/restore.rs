//! `muster-control restore`: makes a data directory from a backup, and marks it as restored.
//!
//! It writes into an empty folder and nowhere else: what is there is moved away by whoever decides that it is worth less.
//! Settings and the database come last, under their names at once, so that a restore that was cut off leaves nothing that is
//! served: the unit looks for the settings, and `serve` for the database.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use muster_shared::time::Timestamp;
use serde::Serialize;

use crate::{
    backup::{
        self, BackupError, Chain, Copied, DATABASE, Database, FORMAT, MANIFEST, Manifest, at,
        copying::{copy, described, private_dir, sync_dirs},
        dump::{DUMP, quoted, without_password},
        is_below, look_at,
    },
    init::{hand_over, is_empty, is_the_admins, owner_of},
    keys::{DataDir, write_new},
    restored::Restored,
    store::known_schema,
};

const SETTINGS: &str = "control.toml";
/// The settings and the database until everything else is in its place.
const SETTINGS_ASIDE: &str = "control.toml.restoring";
const DATABASE_ASIDE: &str = "control.db.restoring";
/// A control of which all settings were the admin's has none in its backup, and its unit looks for the file.
const NO_SETTINGS: &str = "# The backup had no settings of the data directory.\n";

pub(crate) struct RestoreOptions {
    pub(crate) from: PathBuf,
    pub(crate) data_dir: PathBuf,
    /// The PostgreSQL database that is to hold the rows, where the backup has none.
    pub(crate) database_url: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RestoredTo {
    pub(crate) data_dir: PathBuf,
    #[serde(flatten)]
    pub(crate) mark: Restored,
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    /// The end of every chain of audit rows.
    pub(crate) chains: Vec<Chain>,
    /// The command that brings the rows back, where a database service holds them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) restore_command: Option<String>,
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("{0} holds no backup: it has no {MANIFEST}")]
    NoBackup(PathBuf),
    #[error("{path} is no manifest of a backup")]
    BadManifest {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("the backup has the form {0}; this muster-control reads {FORMAT} and older")]
    NewerForm(u32),
    #[error(
        "the backup's database has the schema {has}; this muster-control knows {known}: use the newer release"
    )]
    NewerSchema { has: i64, known: i64 },
    #[error("the manifest names {0:?}, which is no path below the backup")]
    BadPath(String),
    #[error("the manifest names no file {0:?}, without which no control starts")]
    Incomplete(&'static str),
    #[error("{path} is not what was backed up: it is {found}, and was {expected}")]
    Changed {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error("{0} is not empty; a restore overwrites nothing, so move it away first, or name another folder")]
    NotEmpty(PathBuf),
    #[error(transparent)]
    Copy(#[from] BackupError),
}

pub(crate) async fn restore(options: &RestoreOptions, now: Timestamp) -> Result<RestoredTo, RestoreError> {
    let manifest = read_manifest(&options.from)?;
    check(&manifest, known_schema())?;
    for file in &manifest.files {
        verify(&options.from, file)?;
    }
    let data = DataDir::new(&options.data_dir);
    let target = Target::begin(&data)?;
    for file in &manifest.files {
        let place = target.place_of(&file.path);
        let copied = copy(&options.from.join(&file.path), &place, &file.path)?;
        compare(&place, &copied, file)?;
        open_to_all_if_public(&place, &file.path)?;
    }
    let mark = Restored {
        restored_at: now,
        taken_at: manifest.taken_at,
        served_at: None,
    };
    mark.write(&data).map_err(at(data.path()))?;
    private_dir(&data.outputs())?;
    let settings = target.place_of(SETTINGS);
    if !settings.exists() {
        write_new(&settings, NO_SETTINGS.as_bytes(), 0o644).map_err(at(&settings))?;
    }
    let database = target.place_of(DATABASE);
    let chains = match manifest.database {
        Database::Sqlite { .. } => look_at(&database).await?.1,
        Database::Postgresql => Vec::new(),
    };
    hand_over(data.path(), target.owner).map_err(at(data.path()))?;
    sync_dirs(data.path())?;
    fs::rename(&settings, data.config()).map_err(at(&settings))?;
    match manifest.database {
        Database::Sqlite { .. } => fs::rename(&database, data.database()).map_err(at(&database))?,
        Database::Postgresql => {}
    }
    sync_dirs(data.path())?;
    target.keep();
    Ok(RestoredTo {
        data_dir: fs::canonicalize(data.path()).map_err(at(data.path()))?,
        mark,
        files: manifest.files.len(),
        bytes: manifest.files.iter().map(|file| file.bytes).sum(),
        chains,
        restore_command: restore_command(&manifest, options),
        notes: notes(&manifest),
    })
}

fn read_manifest(from: &Path) -> Result<Manifest, RestoreError> {
    let path = from.join(MANIFEST);
    let raw = match fs::read(&path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return Err(RestoreError::NoBackup(from.to_owned()));
        }
        raw => raw.map_err(at(&path))?,
    };
    serde_json::from_slice(&raw).map_err(|source| RestoreError::BadManifest { path, source })
}

/// Whether this release can make a control of it.
fn check(manifest: &Manifest, known: i64) -> Result<(), RestoreError> {
    if manifest.format > FORMAT {
        return Err(RestoreError::NewerForm(manifest.format));
    }
    if let Some(bad) = manifest.files.iter().find(|file| !is_below(&file.path)) {
        return Err(RestoreError::BadPath(bad.path.clone()));
    }
    let has = |name: &str| manifest.files.iter().any(|file| file.path == name);
    let mut needed = vec!["ca.pem", "server.pem", "secrets/derivation.key"];
    match manifest.database {
        Database::Sqlite { schema_version, .. } if schema_version > known => {
            let has = schema_version;
            return Err(RestoreError::NewerSchema { has, known });
        }
        Database::Sqlite { .. } => needed.push(DATABASE),
        Database::Postgresql => {}
    }
    match needed.into_iter().find(|name| !has(name)) {
        Some(missing) => Err(RestoreError::Incomplete(missing)),
        None => Ok(()),
    }
}

fn verify(from: &Path, expected: &Copied) -> Result<(), RestoreError> {
    let path = from.join(&expected.path);
    let found = described(&path, &expected.path)?;
    compare(&path, &found, expected)
}

fn compare(path: &Path, found: &Copied, expected: &Copied) -> Result<(), RestoreError> {
    if (found.bytes, found.sha256) == (expected.bytes, expected.sha256) {
        return Ok(());
    }
    let text = |copied: &Copied| format!("{} bytes, {}", copied.bytes, copied.sha256);
    Err(RestoreError::Changed {
        path: path.to_owned(),
        found: text(found),
        expected: text(expected),
    })
}

/// Clients read the certificates, and admins the settings; everything else is for control's own user.
fn open_to_all_if_public(path: &Path, name: &str) -> Result<(), BackupError> {
    let public = matches!(name, "ca.pem" | "server.pem" | SETTINGS);
    if public {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(at(path))?;
    }
    Ok(())
}

/// An empty folder that is being filled. Dropped before it is kept, it is as it was.
struct Target {
    dir: PathBuf,
    /// Whom the folder belongs to, if it was there: the service's own user, whoever restores.
    owner: Option<(u32, u32)>,
    kept: bool,
}

impl Target {
    fn begin(data: &DataDir) -> Result<Self, RestoreError> {
        let dir = data.path();
        let owner = owner_of(dir).map_err(at(dir))?;
        private_dir(dir)?;
        if !is_empty(dir).map_err(at(dir))? {
            return Err(RestoreError::NotEmpty(dir.to_owned()));
        }
        Ok(Self {
            dir: dir.to_owned(),
            owner,
            kept: false,
        })
    }

    fn place_of(&self, name: &str) -> PathBuf {
        match name {
            DATABASE => self.dir.join(DATABASE_ASIDE),
            SETTINGS => self.dir.join(SETTINGS_ASIDE),
            name => self.dir.join(name),
        }
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // It was empty before: all that is in it, but for the admin's own, was put there by this.
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| !is_the_admins(entry)) {
            let path = entry.path();
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
}

fn restore_command(manifest: &Manifest, options: &RestoreOptions) -> Option<String> {
    match manifest.database {
        Database::Sqlite { .. } => None,
        Database::Postgresql => {
            let url = options.database_url.as_deref().map(without_password);
            Some(format!(
                "pg_restore --clean --if-exists --single-transaction --dbname={} {}",
                quoted(&url.unwrap_or_else(|| "postgres://…".to_owned())),
                quoted(&options.from.join(DUMP).display().to_string())
            ))
        }
    }
}

/// What is not as it was, and what nobody can put right but whoever restores.
fn notes(manifest: &Manifest) -> Vec<String> {
    let since = manifest.taken_at;
    let mut notes = vec![
        format!("tokens, grants and nodes that were taken back after {since} count again: take them back again"),
        format!("nodes that were enrolled, or whose key was changed, after {since} have to be enrolled anew: musterd enroll --force"),
        format!("hooks that were approved after {since} have to be approved again; until then they are shown as drift"),
        "nodes tell again what they did since, once control serves; what it does not know stays in their journals (musterd status)".to_owned(),
    ];
    if !manifest.outputs {
        notes.push("outputs of the built-in store are not in this backup".to_owned());
    }
    notes
}

impl RestoredTo {
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "restored the backup of {} to {}: {} files, {} bytes, whole\n",
            self.mark.taken_at,
            self.data_dir.display(),
            self.files,
            self.bytes
        );
        for chain in &self.chains {
            text.push_str(&format!("domain:{} {}\n", chain.domain_id, chain.end));
        }
        if let Some(command) = &self.restore_command {
            text.push_str(&format!(
                "the rows are not in it; bring them back before serving:\n    {command}\n"
            ));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }
}

impl backup::BackedUp {
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "backed up to {}: {} files, {} bytes, whole\n",
            self.path.display(),
            self.manifest.files.len(),
            self.bytes
        );
        if let Database::Sqlite { chains, .. } = &self.manifest.database {
            for chain in chains {
                text.push_str(&format!("domain:{} {}\n", chain.domain_id, chain.end));
            }
        }
        if let Some(command) = &self.dump_command {
            text.push_str(&format!(
                "the rows are not in it; copy them now, into the same folder:\n    {command}\n"
            ));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::ids::Digest;

    fn manifest(format: u32, schema_version: i64, paths: &[&str]) -> Manifest {
        Manifest {
            format,
            muster_version: "0".to_owned(),
            taken_at: Timestamp::from_millis(0),
            database: Database::Sqlite {
                schema_version,
                chains: Vec::new(),
            },
            outputs: true,
            files: paths
                .iter()
                .map(|path| Copied {
                    path: (*path).to_owned(),
                    bytes: 0,
                    sha256: Digest::of(b""),
                })
                .collect(),
        }
    }

    #[test]
    fn only_what_this_release_can_serve_is_restored() {
        let whole = ["ca.pem", "server.pem", "secrets/derivation.key", "control.db"];
        assert!(check(&manifest(FORMAT, 5, &whole), 5).is_ok());
        assert!(matches!(
            check(&manifest(FORMAT + 1, 5, &whole), 5),
            Err(RestoreError::NewerForm(_))
        ));
        assert!(matches!(
            check(&manifest(FORMAT, 6, &whole), 5),
            Err(RestoreError::NewerSchema { has: 6, known: 5 })
        ));
        assert!(matches!(
            check(&manifest(FORMAT, 5, &whole[..3]), 5),
            Err(RestoreError::Incomplete("control.db"))
        ));
        assert!(matches!(
            check(&manifest(FORMAT, 5, &["../ca.pem"]), 5),
            Err(RestoreError::BadPath(_))
        ));
        let mut rows_elsewhere = manifest(FORMAT, 0, &whole[..3]);
        rows_elsewhere.database = Database::Postgresql;
        assert!(check(&rows_elsewhere, 5).is_ok());
    }

    #[test]
    fn what_the_admin_put_there_outlives_a_restore_that_fails() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        fs::write(dir.path().join(".pgpass"), "secret").unwrap();
        let target = Target::begin(&data).unwrap();
        fs::write(target.place_of(DATABASE), "").unwrap();
        assert!(matches!(Target::begin(&data), Err(RestoreError::NotEmpty(_))));
        drop(target);
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, [".pgpass"]);
    }
}
