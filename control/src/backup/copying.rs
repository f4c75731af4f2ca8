//! Copies files and folders durably, so that nobody but their owner may read them.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use muster_shared::ids::{Digest, Digester};

use super::{BackupError, Copied, at};

const COPY_CHUNK_BYTES: usize = 256 * 1024;

/// Copies one file, durably, and says what was copied.
pub(crate) fn copy(from: &Path, to: &Path, name: &str) -> Result<Copied, BackupError> {
    let mut source = fs::File::open(from).map_err(at(from))?;
    if let Some(dir) = to.parent() {
        private_dir(dir)?;
    }
    let mut target = create_private(to).map_err(at(to))?;
    let (bytes, sha256) = pour(&mut source, &mut target).map_err(at(from))?;
    target.sync_all().map_err(at(to))?;
    Ok(Copied {
        path: name.to_owned(),
        bytes,
        sha256,
    })
}

/// Says what lies there.
pub(crate) fn described(path: &Path, name: &str) -> Result<Copied, BackupError> {
    let mut source = fs::File::open(path).map_err(at(path))?;
    let (bytes, sha256) = pour(&mut source, &mut io::sink()).map_err(at(path))?;
    Ok(Copied {
        path: name.to_owned(),
        bytes,
        sha256,
    })
}

fn pour(source: &mut fs::File, target: &mut impl io::Write) -> io::Result<(u64, Digest)> {
    let mut chunk = vec![0; COPY_CHUNK_BYTES];
    let (mut bytes, mut digester) = (0, Digester::default());
    loop {
        match source.read(&mut chunk)? {
            0 => return Ok((bytes, digester.finish())),
            count => {
                digester.update(&chunk[..count]);
                target.write_all(&chunk[..count])?;
                bytes += count as u64;
            }
        }
    }
}

pub(crate) fn private_dir(path: &Path) -> Result<(), BackupError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(at(path))
}

pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), BackupError> {
    let written = || {
        let mut file = create_private(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    written().map_err(at(path))
}

fn create_private(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Makes the names in a folder durable, and in all below it.
pub(crate) fn sync_dirs(dir: &Path) -> Result<(), BackupError> {
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let entry = entry.map_err(at(dir))?;
        if entry.file_type().map_err(at(dir))?.is_dir() {
            sync_dirs(&entry.path())?;
        }
    }
    sync_dir(dir)
}

pub(super) fn sync_dir(dir: &Path) -> Result<(), BackupError> {
    fs::File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(at(dir))
}
