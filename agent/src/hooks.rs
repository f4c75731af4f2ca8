//! The admin's hooks: finding them, deciding whether to trust them, and holding on to the bytes that were hashed.
//!
//! A path names different bytes at different times, so a hook is opened once, copied to where nobody can change it, hashed
//! there, and executed from there. Editing, replacing or removing the file afterwards changes nothing for that run.

pub(crate) mod affinity;
pub(crate) mod catalog;
pub(crate) mod hold;
pub(crate) mod manifest;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        io::Write as _,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    fn dir_with(name: &str, bytes: &[u8], mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        dir
    }

    fn pin(dir: &Path, name: &str) -> Result<Pinned, NoHook> {
        let max = SizesMax {
            hook_bytes: 1024,
            manifest_bytes: 256,
        };
        let (hooks, name) = (HookDir::open(dir)?, name.parse().unwrap());
        let looked = hooks.look(&name, max).map_err(|err| err.to_string());
        let pinned = hooks.pin(&name, max, dir);
        let seen = pinned.as_ref().map(|pinned| pinned.digests);
        assert_eq!(
            looked.map(|(digests, _)| digests),
            seen.map_err(ToString::to_string),
            "a look says what a start would"
        );
        pinned
    }

    #[test]
    fn a_sound_file_is_pinned_with_its_digest() {
        let dir = dir_with("hook", b"#!/bin/sh\n", 0o755);
        assert_eq!(
            pin(dir.path(), "hook").unwrap().digests.whole(),
            Digest::of(b"#!/bin/sh\n")
        );
    }

    #[test]
    fn a_manifest_is_part_of_the_digest_and_held_to_the_rules_of_hooks() {
        let dir = dir_with("hook", b"#!x", 0o755);
        let path = dir.path().join("hook.toml");
        let mut seen = vec![pin(dir.path(), "hook").unwrap().digests.whole()];
        for text in ["", "description = \"one\"", "description = \"two\""] {
            fs::write(&path, text).unwrap();
            seen.push(pin(dir.path(), "hook").unwrap().digests.whole());
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 4, "each is another hook");
        let refused = || pin(dir.path(), "hook").unwrap_err().to_string();
        fs::write(&path, "descripton = \"x\"").unwrap();
        assert!(refused().contains("hook.toml, line 1"), "{}", refused());
        fs::write(&path, "#".repeat(257)).unwrap();
        assert!(refused().contains("manifest_bytes_max"), "{}", refused());
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(refused().contains("chmod go-w"), "{}", refused());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refused().contains("not a regular file"), "{}", refused());
        fs::remove_dir(&path).unwrap();
        symlink("/dev/null", &path).unwrap();
        assert!(refused().contains("symbolic link"), "{}", refused());
    }

    #[test]
    fn what_others_could_change_is_refused_with_the_remedy() {
        let dir = dir_with("hook", b"#!x", 0o775);
        let text = pin(dir.path(), "hook").unwrap_err().to_string();
        assert!(text.contains("chmod go-w") && text.contains("hook"), "{text}");
        let dir = dir_with("hook", b"#!x", 0o757);
        assert!(matches!(pin(dir.path(), "hook"), Err(NoHook::Writable { .. })));
        let dir = dir_with("hook", b"#!x", 0o755);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(pin(dir.path(), "hook"), Err(NoHook::Writable { .. })));
    }

    #[test]
    fn a_strangers_file_is_refused() {
        let dir = dir_with("hook", b"#!x", 0o755);
        // Only root may give a file away; elsewhere the case cannot be made.
        if std::os::unix::fs::chown(dir.path().join("hook"), Some(12345), None).is_ok() {
            assert!(matches!(
                pin(dir.path(), "hook"),
                Err(NoHook::Owner { owner: 12345, .. })
            ));
        }
    }

    #[test]
    fn a_link_is_refused_as_file_and_as_directory() {
        let dir = dir_with("hook", b"#!x", 0o755);
        symlink(dir.path().join("hook"), dir.path().join("link")).unwrap();
        assert!(matches!(pin(dir.path(), "link"), Err(NoHook::Symlink { .. })));
        let other = tempfile::tempdir().unwrap();
        symlink(dir.path(), other.path().join("hooks.d")).unwrap();
        assert!(matches!(
            HookDir::open(&other.path().join("hooks.d")),
            Err(NoHook::Symlink { .. })
        ));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let dir = dir_with("plain", b"#!x", 0o644);
        fs::create_dir(dir.path().join("folder")).unwrap();
        assert!(matches!(
            pin(dir.path(), "plain"),
            Err(NoHook::NotExecutable { .. })
        ));
        assert!(matches!(
            pin(dir.path(), "folder"),
            Err(NoHook::NotRegular { .. })
        ));
        assert!(matches!(pin(dir.path(), "absent"), Err(NoHook::Missing { .. })));
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), Mode::RWXU).unwrap();
        assert!(matches!(pin(dir.path(), "pipe"), Err(NoHook::NotRegular { .. })));
    }

    #[test]
    fn what_a_shell_would_have_to_guess_at_is_refused() {
        for (bytes, words) in [
            (b"".as_slice(), "is empty"),
            (b"echo hello\n", "#!/bin/sh"),
            (b"#", "#!/bin/sh"),
            (b"\x7fEL", "#!/bin/sh"),
        ] {
            let dir = dir_with("hook", bytes, 0o755);
            let text = pin(dir.path(), "hook").unwrap_err().to_string();
            assert!(text.contains(words) && text.contains("hook"), "{text}");
        }
        let dir = dir_with("hook", b"\x7fELF", 0o755);
        assert!(pin(dir.path(), "hook").is_ok());
    }

    #[test]
    fn the_size_is_bounded() {
        let dir = dir_with("hook", &[b'#', b'!'].repeat(512), 0o755);
        assert!(pin(dir.path(), "hook").is_ok());
        fs::write(dir.path().join("hook"), "#!x".repeat(342)).unwrap();
        assert!(matches!(pin(dir.path(), "hook"), Err(NoHook::TooLong { .. })));
    }

    #[test]
    fn bytes_changed_after_the_pinning_are_not_those_that_run() {
        let dir = dir_with("hook", b"#!/bin/sh\necho first\n", 0o755);
        let pinned = pin(dir.path(), "hook").unwrap();
        fs::write(dir.path().join("hook"), b"#!/bin/sh\necho second\n").unwrap();
        let memory = File::from(pinned.held.fd);
        assert!((&memory).write_all(b"x").is_err(), "the copy must be sealed");
        let mut text = String::new();
        io::Seek::rewind(&mut &memory).unwrap();
        (&memory).read_to_string(&mut text).unwrap();
        assert_eq!(text, "#!/bin/sh\necho first\n");
        assert_eq!(pinned.digests.file, Digest::of(text.as_bytes()));
    }

    #[test]
    fn what_is_left_beside_a_hook_is_none_whatever_left_it() {
        for (name, suffix) in [
            ("hook.dpkg-new", ".dpkg-new"),
            ("hook.toml.dpkg-dist", ".dpkg-dist"),
            ("hook.sh.rpmsave", ".rpmsave"),
            ("hook.ucf-old", ".ucf-old"),
            ("hook.bak", ".bak"),
        ] {
            let dir = dir_with(name, b"#!x", 0o755);
            let text = pin(dir.path(), name).unwrap_err().to_string();
            assert!(
                text.contains(name) && text.contains(&format!("ends in {suffix} ")),
                "{text}"
            );
            let hooks = HookDir::open(dir.path()).unwrap();
            assert_eq!(hooks.names().unwrap(), [name], "it is told, with the reason");
        }
        for name in ["bak", "hook-old", "hook.backup", "old.sh"] {
            let dir = dir_with(name, b"#!x", 0o755);
            assert!(pin(dir.path(), name).is_ok(), "{name}");
        }
    }

    #[test]
    fn manifests_hidden_files_and_backups_are_not_listed() {
        let dir = dir_with("hook", b"#!x", 0o755);
        for other in ["hook.toml", ".hidden", "hook~"] {
            fs::write(dir.path().join(other), b"x").unwrap();
        }
        assert_eq!(HookDir::open(dir.path()).unwrap().names().unwrap(), ["hook"]);
    }
}
