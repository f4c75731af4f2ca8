//! Files that are there whole or not at all, whatever happens in between; most of them also after a power cut.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use crate::effect;

/// Writes a file that only its owner may read: its old content or its new, never a mixture, also after a power cut.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, File::sync_all)?;
    sync_parent(path)
}

/// The same for as long as the machine runs, and without waiting for its disk. After a power cut the file may be empty, or not
/// there: it is for what nobody needs then.
pub(crate) fn write_for_this_boot(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, |_| Ok(()))
}

fn put(path: &Path, bytes: &[u8], keep: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
    let temporary = beside(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    if let Err(err) = file.write_all(bytes).and_then(|()| keep(&file)) {
        // Half a file helps nobody, least of all a disk that is full.
        let _ = fs::remove_file(&temporary);
        return Err(err);
    }
    effect::done("a file beside");
    fs::rename(&temporary, path)?;
    effect::done("a rename");
    Ok(())
}

/// Creates a file with this content unless there is one by that name; says whether it did.
///
/// A hard link appears with its content or not at all, so a reader never sees half a file, and of several callers
/// exactly one is told `true`.
pub(crate) fn create_first(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| {
        effect::done("a file beside");
        fs::hard_link(&temporary, path)
    });
    effect::done("a link");
    fs::remove_file(&temporary)?;
    match linked {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(err) => Err(err),
    }
}

/// Creates a directory that only its owner may enter, with its parents.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    effect::done("a directory");
    sync_parent(path)
}

pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }?;
    effect::done("a synced directory");
    Ok(())
}

/// Whether it failed for want of room: on the disk, or of what a quota gives.
pub(crate) fn is_full(err: &io::Error) -> bool {
    matches!(
        err.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Takes room before it is needed. Where the file system cannot promise any there is nothing but hope.
pub(crate) fn reserve(path: &Path, bytes: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let had = file.metadata()?.len();
    let taken = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes);
    match taken {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(file),
        Err(err) => {
            // What was there before is somebody's, and stays as it was. Else it holds no room, and its name would say that it did.
            let _ = if had == 0 {
                fs::remove_file(path)
            } else {
                file.set_len(had)
            };
            Err(err.into())
        }
    }
}

/// Where a file is written before it gets its name, and what a stop in between leaves.
pub(crate) fn beside(path: &Path) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_written_file_is_private_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn room_that_cannot_be_had_leaves_what_was_there_as_it_was() {
        const NOBODY_HAS_AS_MUCH: u64 = 1 << 60;
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        fs::write(&old, "somebody's").unwrap();
        for path in [&new, &old] {
            assert!(reserve(path, NOBODY_HAS_AS_MUCH).is_err());
        }
        assert!(!new.exists());
        assert_eq!(fs::read(&old).unwrap(), b"somebody's");
    }

    #[test]
    fn only_the_first_creates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claim");
        assert!(create_first(&path, b"one").unwrap());
        assert!(!create_first(&path, b"two").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
