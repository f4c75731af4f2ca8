//! The admin's hooks: finding them, deciding whether to trust them, and holding on to the bytes that were hashed.
//!
//! A path names different bytes at different times, so a hook is opened once, copied to where nobody can change it, hashed
//! there, and executed from there. Editing, replacing or removing the file afterwards changes nothing for that run.

pub(crate) mod affinity;
pub(crate) mod catalog;
pub(crate) mod hold;
pub(crate) mod manifest;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use muster_shared::{
    ids::{ActionName, Digest},
    wire::hook_digest,
};
use rustix::fs::{FileType, Mode, OFlags, Stat};

use hold::{Held, NotHeld};
use manifest::{BadManifest, Manifest};

/// How the names of files end that a package manager, an editor or an admin leaves beside the one that counts. They keep its
/// mode, and none of the rules that name it.
const LEFTOVERS: [&str; 21] = [
    ".bak",
    ".cfsaved",
    ".disabled",
    ".dpkg-bak",
    ".dpkg-del",
    ".dpkg-dist",
    ".dpkg-new",
    ".dpkg-old",
    ".dpkg-tmp",
    ".old",
    ".orig",
    ".rej",
    ".rpmnew",
    ".rpmorig",
    ".rpmsave",
    ".swo",
    ".swp",
    ".tmp",
    ".ucf-dist",
    ".ucf-new",
    ".ucf-old",
];

/// How large the two files of a hook may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizesMax {
    pub(crate) hook_bytes: u64,
    pub(crate) manifest_bytes: u64,
}

/// A hook's bytes at one moment, and its manifest's.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) held: Held,
    pub(crate) digests: Digests,
    pub(crate) manifest: Arc<Manifest>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Digests {
    pub(crate) file: Digest,
    pub(crate) manifest: Option<Digest>,
}

impl Digests {
    /// What is pinned and approved.
    pub(crate) fn whole(self) -> Digest {
        hook_digest(self.file, self.manifest)
    }
}

/// Why a file is no hook. Each text names the file and what would make it one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoHook {
    #[error("the hooks directory {path} cannot be opened: {err}")]
    NoDirectory { path: PathBuf, err: io::Error },
    #[error(
        "{path} is what was left beside another file: no name of a hook ends in {suffix} (remove it, or give it another \
         name)"
    )]
    Leftover { path: PathBuf, suffix: &'static str },
    #[error("{path} is a symbolic link: put the file itself into the hooks directory")]
    Symlink { path: PathBuf },
    #[error("{path} is not there")]
    Missing { path: PathBuf },
    #[error("{path} is not a regular file")]
    NotRegular { path: PathBuf },
    #[error(
        "{path} belongs to user {owner}: it must belong to root or to the user of the daemon (chown root)"
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error("{path} can be written by others (mode {mode:o}): take that right away (chmod go-w)")]
    Writable { path: PathBuf, mode: u32 },
    #[error("{path} is not executable (mode {mode:o}): make it so (chmod +x)")]
    NotExecutable { path: PathBuf, mode: u32 },
    #[error("{path} is longer than the {bytes_max} bytes that {setting} allows")]
    TooLong {
        path: PathBuf,
        bytes_max: u64,
        setting: &'static str,
    },
    #[error("{path} is empty: put a program or a script there")]
    Empty { path: PathBuf },
    #[error(
        "{path} is no program of this system, and no script that names its interpreter: let its first line be #! and \
         the path of one, as in #!/bin/sh"
    )]
    NotProgram { path: PathBuf },
    #[error("its manifest is not sound: {0}")]
    Manifest(BadManifest),
    #[error("{path} cannot be read: {err}")]
    Unreadable { path: PathBuf, err: io::Error },
    #[error("{0}")]
    NotHeld(NotHeld),
}

#[derive(Debug)]
pub(crate) struct HookDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl HookDir {
    /// Opens the directory itself, so that nobody can put another one in its place while it is read.
    pub(crate) fn open(path: &Path) -> Result<Self, NoHook> {
        let dir = Self::open_to_look(path)?;
        let stat = rustix::fs::fstat(&dir.fd).map_err(|err| NoHook::NoDirectory {
            path: dir.path.clone(),
            err: err.into(),
        })?;
        check_owner_and_mode(&stat, &dir.path)?;
        Ok(dir)
    }

    /// One from which nothing runs: who else may write there is of no matter yet.
    pub(crate) fn open_to_look(path: &Path) -> Result<Self, NoHook> {
        let owned = path.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(_) if path.is_symlink() => return Err(NoHook::Symlink { path: owned }),
            Err(err) => {
                return Err(NoHook::NoDirectory {
                    path: owned,
                    err: err.into(),
                });
            }
        };
        Ok(Self { fd, path: owned })
    }

    /// The names in it that could be hooks, and of those that only look so. Manifests, hidden files and editors' backups are
    /// none.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let ignored = name.starts_with('.')
                || name.ends_with('~')
                || Path::new(&name)
                    .extension()
                    .is_some_and(|extension| extension == "toml");
            if !ignored {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens, checks and hashes one hook, and reads its manifest. What it finds may be changed a moment later.
    pub(crate) fn look(&self, name: &ActionName, max: SizesMax) -> Result<(Digests, Arc<Manifest>), NoHook> {
        let source = self.open_executable(name)?;
        self.judge(name, &source, max)
    }

    /// The same of a copy that nobody can change, to be run. The state directory is where it is held if need be.
    pub(crate) fn pin(&self, name: &ActionName, max: SizesMax, state_dir: &Path) -> Result<Pinned, NoHook> {
        let source = self.open_executable(name)?;
        let source = source.take(max.hook_bytes.saturating_add(1));
        let held = hold::hold(source, state_dir).map_err(|err| match err {
            NotHeld::Source(err) => NoHook::Unreadable {
                path: self.path.join(name.as_str()),
                err,
            },
            NotHeld::Memory(_) | NotHeld::Noexec { .. } | NotHeld::File { .. } => NoHook::NotHeld(err),
        })?;
        let (digests, manifest) = self.judge(name, &held.fd, max)?;
        Ok(Pinned {
            held,
            digests,
            manifest,
        })
    }

    fn open_executable(&self, name: &ActionName) -> Result<File, NoHook> {
        if let Some(suffix) = LEFTOVERS
            .into_iter()
            .find(|suffix| name.as_str().ends_with(suffix))
        {
            return Err(NoHook::Leftover {
                path: self.path.join(name.as_str()),
                suffix,
            });
        }
        let (source, stat) = self.open_regular(name.as_str())?;
        if stat.st_mode & 0o111 == 0 {
            return Err(NoHook::NotExecutable {
                path: self.path.join(name.as_str()),
                mode: stat.st_mode & 0o7777,
            });
        }
        Ok(source)
    }

    fn judge(
        &self,
        name: &ActionName,
        hook: &impl AsFd,
        max: SizesMax,
    ) -> Result<(Digests, Arc<Manifest>), NoHook> {
        let path = self.path.join(name.as_str());
        let bytes_max = max.hook_bytes;
        let measured = hold::measure(hook, bytes_max.saturating_add(1));
        let looked = measured.and_then(|measured| Ok((measured, hold::begins_as_program(hook)?)));
        let file = match looked {
            Err(err) => return Err(NoHook::Unreadable { path, err }),
            Ok(((_, 0), _)) => return Err(NoHook::Empty { path }),
            Ok(((_, length), _)) if length > bytes_max => {
                let setting = "hook_bytes_max";
                return Err(NoHook::TooLong {
                    path,
                    bytes_max,
                    setting,
                });
            }
            Ok((_, false)) => return Err(NoHook::NotProgram { path }),
            Ok(((digest, _), true)) => digest,
        };
        let (manifest, manifest_digest) = self.read_manifest(name, max.manifest_bytes)?;
        let digests = Digests {
            file,
            manifest: manifest_digest,
        };
        Ok((digests, Arc::new(manifest)))
    }

    /// A hook without a manifest has one that says nothing. One that cannot be read is never taken for none.
    fn read_manifest(&self, name: &ActionName, bytes_max: u64) -> Result<(Manifest, Option<Digest>), NoHook> {
        let file_name = format!("{name}.toml");
        let path = self.path.join(&file_name);
        let source = match self.open_regular(&file_name) {
            Ok((source, _)) => source,
            Err(NoHook::Missing { .. }) => return Ok((Manifest::default(), None)),
            Err(err) => return Err(err),
        };
        let mut bytes = Vec::new();
        source
            .take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|err| NoHook::Unreadable {
                path: path.clone(),
                err,
            })?;
        if bytes.len() as u64 > bytes_max {
            let setting = "manifest_bytes_max";
            return Err(NoHook::TooLong {
                path,
                bytes_max,
                setting,
            });
        }
        let manifest = Manifest::parse(&path, &bytes).map_err(NoHook::Manifest)?;
        Ok((manifest, Some(Digest::of(&bytes))))
    }

    /// Judged by the descriptor that is read, not by the path.
    fn open_regular(&self, file_name: &str) -> Result<(File, Stat), NoHook> {
        let path = self.path.join(file_name);
        // Not blocking: a pipe by that name must not hold the daemon before it is seen to be one.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let source = match rustix::fs::openat(&self.fd, file_name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(rustix::io::Errno::LOOP) => return Err(NoHook::Symlink { path }),
            Err(rustix::io::Errno::NOENT) => return Err(NoHook::Missing { path }),
            Err(rustix::io::Errno::NXIO) => return Err(NoHook::NotRegular { path }),
            Err(err) => {
                return Err(NoHook::Unreadable {
                    path,
                    err: err.into(),
                });
            }
        };
        let stat = match rustix::fs::fstat(&source) {
            Ok(stat) => stat,
            Err(err) => {
                return Err(NoHook::Unreadable {
                    path,
                    err: err.into(),
                });
            }
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(NoHook::NotRegular { path });
        }
        check_owner_and_mode(&stat, &path)?;
        Ok((source, stat))
    }
}

/// Whoever may change the file decides what runs: that must be nobody but the admin and the daemon itself.
fn check_owner_and_mode(stat: &Stat, path: &Path) -> Result<(), NoHook> {
    if stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(NoHook::Owner {
            path: path.to_owned(),
            owner: stat.st_uid,
        });
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(NoHook::Writable {
            path: path.to_owned(),
            mode: stat.st_mode & 0o7777,
        });
    }
    Ok(())
}
