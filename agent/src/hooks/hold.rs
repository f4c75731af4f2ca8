//! Holding on to the bytes of a hook, so that what was hashed is what runs.
//!
//! They are held in sealed memory. Where the kernel lets no program run from memory, they are held in a file of the
//! daemon's own that never has a name, that nobody may write, and that no writer has open any more.

use std::{
    fmt, fs,
    fs::File,
    io::{self, Read, Write as _},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use muster_shared::ids::{Digest, Digester};
use rustix::{
    fs::{FileType, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags},
    io::Errno,
};

use crate::durable;

/// What nobody can change any more.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) fd: OwnedFd,
    pub(crate) way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    SealedMemory,
    /// Where programs may not run from memory.
    UnnamedFile,
}

impl Way {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::SealedMemory => "sealed_memory",
            Self::UnnamedFile => "unnamed_file",
        }
    }
}

/// Why there is no way to hold them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHeld {
    #[error("it cannot be read: {0}")]
    Source(io::Error),
    #[error("no sealed memory can be made for it: {0}")]
    Memory(io::Error),
    #[error(
        "{forbids} running it from memory, and {} is mounted noexec: {remedy}, or mount that file system without noexec",
        state_dir.display()
    )]
    Noexec {
        forbids: Forbids,
        state_dir: PathBuf,
        remedy: &'static str,
    },
    #[error("{forbids} running it from memory, and no file for it can be made in {}: {err}", state_dir.display())]
    File {
        forbids: Forbids,
        state_dir: PathBuf,
        err: io::Error,
    },
}

impl NotHeld {
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Memory(err) | Self::File { err, .. } => durable::is_full(err),
            Self::Source(_) | Self::Noexec { .. } => false,
        }
    }
}

/// Who keeps programs from running from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Forbids {
    Sysctl,
    Other(Errno),
}

impl Forbids {
    fn found(err: Errno) -> Self {
        // It is that of the namespace of processes that this one is in.
        match fs::read_to_string("/proc/sys/vm/memfd_noexec") {
            Ok(text) if text.trim() == "2" => Self::Sysctl,
            Ok(_) | Err(_) => Self::Other(err),
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Sysctl => "set that sysctl to 1",
            Self::Other(_) => "see the rules of SELinux or AppArmor",
        }
    }
}

impl fmt::Display for Forbids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl => f.write_str("the sysctl vm.memfd_noexec=2 forbids"),
            Self::Other(err) => write!(f, "the system forbids ({err})"),
        }
    }
}

/// Copies what can be read there. The digest is for whoever holds the copy to take: only that can change no more.
pub(crate) fn hold(source: impl Read, state_dir: &Path) -> Result<Held, NotHeld> {
    match sealable_memory() {
        Ok(memory) => {
            let mut memory = File::from(memory);
            copy(source, &mut memory, NotHeld::Memory)?;
            rustix::fs::fcntl_add_seals(&memory, sealed_flags())
                .map_err(|err| NotHeld::Memory(err.into()))?;
            Ok(Held {
                fd: memory.into(),
                way: Way::SealedMemory,
            })
        }
        Err(err @ (Errno::ACCESS | Errno::PERM)) => {
            let fd = hold_in_file(source, state_dir, Forbids::found(err))?;
            Ok(Held {
                fd,
                way: Way::UnnamedFile,
            })
        }
        Err(err) => Err(NotHeld::Memory(err.into())),
    }
}

fn copy(
    mut source: impl Read,
    copy: &mut File,
    not_written: impl Fn(io::Error) -> NotHeld,
) -> Result<(), NotHeld> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => copy.write_all(&buffer[..count]).map_err(&not_written)?,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(NotHeld::Source(err)),
        }
    }
}

const BUFFER_BYTES: usize = 64 * 1024;

fn sealable_memory() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("hook", flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 do not know the flag, and need none.
        Err(Errno::INVAL) => rustix::fs::memfd_create("hook", flags),
        made => made,
    }
}

const fn sealed_flags() -> SealFlags {
    SealFlags::WRITE
        .union(SealFlags::GROW)
        .union(SealFlags::SHRINK)
        .union(SealFlags::SEAL)
}

fn hold_in_file(source: impl Read, state_dir: &Path, forbids: Forbids) -> Result<OwnedFd, NotHeld> {
    let failed = |err: io::Error| NotHeld::File {
        forbids,
        state_dir: state_dir.to_owned(),
        err,
    };
    // Nobody can give it a name either: that is what EXCL means here.
    let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(state_dir, flags, Mode::RUSR | Mode::WUSR).map_err(|err| failed(err.into()))?;
    let mounted = rustix::fs::fstatvfs(&file).map_err(|err| failed(err.into()))?;
    if mounted.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(NotHeld::Noexec {
            forbids,
            state_dir: state_dir.to_owned(),
            remedy: forbids.remedy(),
        });
    }
    let mut file = File::from(file);
    copy(source, &mut file, failed)?;
    close_to_writers(file).map_err(failed)
}

/// Read by others, because a manifest may name another user to run it, and no directory leads to it.
const UNNAMED_MODE: u32 = 0o555;

fn close_to_writers(file: File) -> io::Result<OwnedFd> {
    rustix::fs::fchmod(&file, Mode::from_bits_truncate(UNNAMED_MODE))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let read_only = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    drop(file);
    // A child that was forked meanwhile has the writing descriptor too, until it becomes another program.
    for _ in 0..WRITER_LOOKS_MAX {
        if !has_writer(&read_only)? {
            return Ok(read_only);
        }
        thread::sleep(WRITER_LOOK_EVERY);
    }
    Err(io::Error::other("somebody has it open for writing"))
}

const WRITER_LOOKS_MAX: u32 = 500;
const WRITER_LOOK_EVERY: Duration = Duration::from_millis(10);

/// The kernel grants a lease on reading only where nobody, in no process, has the file open for writing.
fn has_writer(file: &OwnedFd) -> io::Result<bool> {
    match lease(file, libc::F_RDLCK) {
        Ok(()) => lease(file, libc::F_UNLCK).map(|()| false),
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(err) => Err(err),
    }
}

fn lease(file: &OwnedFd, kind: i32) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper knows leases")]
    // SAFETY: the descriptor is open, and the command takes a number and no pointer.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether a descriptor that came from elsewhere holds the bytes of that digest, and nobody can change them.
///
/// That is looked at first: what is hashed afterwards is what is executed. So it does not matter through whose hands
/// the descriptor went. Of a file it is the owner, the mode and the lease that show it: whoever is neither its owner
/// nor root cannot have it open for writing now, nor open it so later.
pub(crate) fn verify(fd: OwnedFd, digest: Digest) -> io::Result<Held> {
    let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(sealed_flags()));
    let way = if sealed {
        Way::SealedMemory
    } else {
        check_unnamed_file(&fd).map_err(|why| {
            io::Error::other(format!(
                "the hook that was handed over is neither sealed memory nor a file that nobody can change: {why}"
            ))
        })?;
        Way::UnnamedFile
    };
    let found = digest_of(&fd)?;
    if found == digest {
        Ok(Held { fd, way })
    } else {
        Err(io::Error::other(format!(
            "the hook that was handed over is {found}, and not {digest}"
        )))
    }
}

fn check_unnamed_file(fd: &OwnedFd) -> Result<(), String> {
    let stat = rustix::fs::fstat(fd).map_err(|err| err.to_string())?;
    let me = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("it is not a regular file".to_owned());
    }
    if stat.st_nlink != 0 {
        return Err("it has a name".to_owned());
    }
    if stat.st_uid != me {
        return Err(format!("it belongs to user {}, and not to {me}", stat.st_uid));
    }
    if stat.st_mode & 0o222 != 0 {
        return Err(format!("it may be written (mode {:o})", stat.st_mode & 0o7777));
    }
    match has_writer(fd) {
        Ok(false) => Ok(()),
        Ok(true) => Err("somebody has it open for writing".to_owned()),
        Err(err) => Err(format!("nobody can tell who has it open for writing: {err}")),
    }
}

/// Read by position, so that neither this nor anybody who shares the descriptor moves it for the others.
pub(crate) fn digest_of(held: &impl AsFd) -> io::Result<Digest> {
    measure(held, u64::MAX).map(|(digest, _)| digest)
}

/// The digest of no more than so many bytes, and how many they were.
pub(crate) fn measure(file: &impl AsFd, bytes_max: u64) -> io::Result<(Digest, u64)> {
    let mut digester = Digester::default();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    while at < bytes_max {
        match rustix::io::pread(file, &mut buffer, at)? {
            0 => break,
            count => {
                digester.update(&buffer[..count]);
                at += count as u64;
            }
        }
    }
    Ok((digester.finish(), at))
}

/// What a program of its own begins with. All else the kernel runs only where somebody has told it how.
pub(crate) fn begins_as_program(file: &impl AsFd) -> io::Result<bool> {
    let mut head = [0; 4];
    let count = rustix::io::pread(file, &mut head, 0)?;
    Ok(head[..count].starts_with(b"#!") || head[..count] == *b"\x7fELF")
}

/// Says by which way hooks are held on this machine. Which one it is is found out anew for each of them.
pub(crate) fn announce(state_dir: &Path) {
    match hold(io::empty(), state_dir).map(|held| held.way) {
        Ok(Way::SealedMemory) => log::info!(held_in = "sealed_memory"; "Hooks run from sealed memory"),
        Ok(Way::UnnamedFile) => {
            log::info!(held_in = "unnamed_file"; "Hooks run from unnamed files in {}, because \
            the system forbids running them from memory", state_dir.display())
        }
        Err(err) => log::warn!(error:% = err; "No hook can run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &[u8] = b"#!/bin/sh\n";

    fn in_file(bytes: &[u8], dir: &Path) -> Result<OwnedFd, NotHeld> {
        hold_in_file(bytes, dir, Forbids::Sysctl)
    }

    fn refusal(fd: OwnedFd) -> String {
        verify(fd, Digest::of(SCRIPT)).unwrap_err().to_string()
    }

    #[test]
    fn both_ways_hold_what_was_copied_and_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        for (held, way) in [
            (hold(SCRIPT, dir.path()).unwrap().fd, Way::SealedMemory),
            (in_file(SCRIPT, dir.path()).unwrap(), Way::UnnamedFile),
        ] {
            let held = File::from(held);
            assert!((&held).write_all(b"x").is_err(), "{way:?}");
            let held = verify(held.into(), Digest::of(SCRIPT)).unwrap();
            assert_eq!(held.way, way);
            let text = verify(held.fd, Digest::of(b"other")).unwrap_err().to_string();
            assert!(text.contains("and not sha256:"), "{text}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no name is left");
    }

    #[test]
    fn what_somebody_could_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let text = refusal(sealable_memory().unwrap());
        assert!(text.contains("it may be written"), "{text}");
        let text = refusal(OwnedFd::from(io::pipe().unwrap().0));
        assert!(text.contains("not a regular file"), "{text}");
        let named = dir.path().join("named");
        fs::write(&named, SCRIPT).unwrap();
        let text = refusal(File::open(&named).unwrap().into());
        assert!(text.contains("it has a name"), "{text}");
        let held = in_file(SCRIPT, dir.path()).unwrap();
        rustix::fs::fchmod(&held, Mode::from_bits_truncate(0o755)).unwrap();
        let path = format!("/proc/self/fd/{}", held.as_raw_fd());
        let writer = fs::OpenOptions::new().write(true).open(path).unwrap();
        rustix::fs::fchmod(&held, Mode::from_bits_truncate(UNNAMED_MODE)).unwrap();
        let text = refusal(held.try_clone().unwrap());
        assert!(text.contains("somebody has it open for writing"), "{text}");
        drop(writer);
        // Another test of this process may have forked meanwhile, and holds the writer a moment longer.
        while has_writer(&held).unwrap() {
            thread::sleep(WRITER_LOOK_EVERY);
        }
        // Only root may give a file away; elsewhere the case cannot be made.
        if rustix::fs::fchown(&held, Some(rustix::fs::Uid::from_raw(12345)), None).is_ok() {
            let text = refusal(held);
            assert!(text.contains("belongs to user 12345"), "{text}");
        }
    }

    #[test]
    fn a_directory_that_takes_no_file_is_named_with_what_forbids_the_memory() {
        let text = in_file(SCRIPT, Path::new("/nowhere")).unwrap_err().to_string();
        assert!(
            text.contains("vm.memfd_noexec=2") && text.contains("/nowhere"),
            "{text}"
        );
    }
}
