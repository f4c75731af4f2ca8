//! What the machine itself has to give: a private place with room, sealed memory, systemd.

use std::{
    fs, io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::Path,
    process::{Command, Stdio},
};

use muster_shared::doctor::Finding;
use rustix::io::FdFlags;

use crate::{
    hooks::hold::{self, Held, NotHeld, Way},
    identity, journal,
    tool::render::bytes,
};

/// Below this an output of the usual size may not fit.
const SPACE_WARN_BYTES: u64 = 256 << 20;
/// Below this not even the journal has room to go on.
const SPACE_FAIL_BYTES: u64 = 8 << 20;
const INODES_WARN: u64 = 1000;

/// Whoever else may enter it, could read the node's key; whoever may write there, could be the node.
pub(super) fn state_dir(dir: &Path) -> Vec<Finding> {
    let check = "state";
    let me = rustix::process::geteuid().as_raw();
    let stat = match fs::metadata(dir) {
        Ok(stat) => stat,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return vec![Finding::skip(
                check,
                format!("{} is not there yet; enrolment makes it", dir.display()),
            )];
        }
        Err(err) => {
            return vec![Finding::fail(
                check,
                format!("{}: {err}", dir.display()),
                "run this as root or as the user of the daemon",
            )];
        }
    };
    let mut findings = Vec::new();
    if !stat.is_dir() {
        return vec![Finding::fail(
            check,
            format!("{} is not a directory", dir.display()),
            "name a directory as state_dir",
        )];
    }
    if me != 0 && stat.uid() != me {
        findings.push(Finding::warn(
            check,
            format!("{} belongs to user {}, not to you", dir.display(), stat.uid()),
            "run this as root or as the user of the daemon",
        ));
    }
    findings.extend(open_to_others(check, dir, stat.mode(), "chmod 0700"));
    let private = [
        identity::nsk_path(dir),
        identity::identity_path(dir),
        journal::path(dir),
    ];
    for file in private {
        match fs::metadata(&file) {
            Ok(stat) => findings.extend(open_to_others(
                check,
                &file,
                stat.permissions().mode(),
                "chmod 0600",
            )),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => findings.push(Finding::fail(
                check,
                format!("{}: {err}", file.display()),
                "run this as root or as the user of the daemon",
            )),
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(check, format!("{} is private", dir.display())));
    }
    findings
}

fn open_to_others(check: &'static str, path: &Path, mode: u32, remedy: &str) -> Option<Finding> {
    let finding = format!("{} is open to others (mode {:o})", path.display(), mode & 0o7777);
    let remedy = format!("{remedy} {}", path.display());
    match mode & 0o077 {
        0 => None,
        open if open & 0o022 != 0 => Some(Finding::fail(check, finding, remedy)),
        _ => Some(Finding::warn(check, finding, remedy)),
    }
}

pub(super) fn space(dir: &Path) -> Finding {
    let check = "disk";
    // Before enrolment the room that counts is where the directory will be.
    let Some(there) = dir.ancestors().find(|path| path.exists()) else {
        return Finding::skip(check, format!("{} is nowhere yet", dir.display()));
    };
    let usage = match rustix::fs::statvfs(there) {
        Ok(usage) => usage,
        Err(err) => {
            return Finding::fail(
                check,
                format!("{} cannot be looked at: {err}", there.display()),
                "see that its file system is mounted and whole",
            );
        }
    };
    let free = usage.f_bavail.saturating_mul(usage.f_frsize);
    // File systems without a fixed number of inodes say 0 of 0.
    let few_inodes = usage.f_files > 0 && usage.f_favail < INODES_WARN;
    judge_space(there, free, few_inodes)
}

fn judge_space(there: &Path, free: u64, few_inodes: bool) -> Finding {
    let check = "disk";
    let text = format!("{} free at {}", bytes(free), there.display());
    let remedy = "make room there; journal_keep_days, output_keep_days and output_spool_bytes_max say how much musterd keeps";
    if free < SPACE_FAIL_BYTES {
        Finding::fail(check, text, remedy)
    } else if free < SPACE_WARN_BYTES {
        Finding::warn(check, text, remedy)
    } else if few_inodes {
        Finding::warn(check, format!("{text}, and few inodes"), "remove files there")
    } else {
        Finding::ok(check, text)
    }
}

/// Hooks run from there, or from an unnamed file where programs may not run from memory. Tried with a script, as they are.
pub(super) fn held_hook(state_dir: &Path) -> Finding {
    let check = "sealed memory";
    let held = match hold::hold(b"#!/bin/sh\nexit 0\n".as_slice(), state_dir) {
        Ok(held) => held,
        Err(NotHeld::File { .. }) if !state_dir.exists() => {
            return Finding::skip(
                check,
                format!(
                    "the system forbids running hooks from memory, and {}, where they would be held instead, is not there yet",
                    state_dir.display()
                ),
            );
        }
        Err(err) => {
            let remedy = "let programs run from memory, or let the file system of state_dir have them";
            return Finding::fail(check, format!("no hook can run: {err}"), remedy);
        }
    };
    let (held_in, remedy) = match held.way {
        Way::SealedMemory => (
            "sealed memory".to_owned(),
            "see the sysctl vm.memfd_noexec and the rules of SELinux or AppArmor",
        ),
        Way::UnnamedFile => (
            format!(
                "unnamed files in {}, because the system forbids running them from memory",
                state_dir.display()
            ),
            "see how that file system is mounted, and the rules of SELinux or AppArmor",
        ),
    };
    match run_held(&held) {
        Ok(true) => Finding::ok(check, format!("hooks run from {held_in}")),
        Ok(false) => Finding::fail(check, format!("a program ran from {held_in}, and failed"), remedy),
        Err(err) => Finding::fail(check, format!("no program runs from {held_in}: {err}"), remedy),
    }
}

fn run_held(held: &Held) -> io::Result<bool> {
    // The interpreter opens it by this name after the exec.
    rustix::io::fcntl_setfd(&held.fd, FdFlags::empty())?;
    let status = Command::new(format!("/proc/self/fd/{}", held.fd.as_raw_fd()))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success())
}

pub(super) fn systemd() -> Finding {
    let check = "systemd";
    let manages = Path::new("/run/systemd/system").is_dir();
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let root = rustix::process::geteuid().is_root();
    match (manages, unified, root) {
        (true, true, true) => Finding::ok(check, "it manages this machine, with unified control groups (v2)"),
        (true, true, false) => Finding::warn(
            check,
            "it manages this machine, but only root may make units of the system",
            "run musterd as root where hooks are to run as other users or in units of their own",
        ),
        (true, false, _) => Finding::warn(
            check,
            "it manages this machine, with control groups v1",
            "boot with systemd.unified_cgroup_hierarchy=1 where hooks are to have limits as a whole",
        ),
        (false, ..) => Finding::warn(
            check,
            "it does not manage this machine: no hook can have a unit of its own; the log of musterd says which limits of [hooks] cannot be enforced",
            "nothing, where that is enough; else run musterd on a machine with systemd",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::doctor::CheckVerdict;

    #[test]
    fn little_room_is_a_warning_and_none_a_failure() {
        let verdict = |free, few| judge_space(Path::new("/x"), free, few).verdict;
        assert_eq!(verdict(1 << 30, false), CheckVerdict::Ok);
        assert_eq!(verdict(1 << 30, true), CheckVerdict::Warn);
        assert_eq!(verdict(SPACE_WARN_BYTES - 1, false), CheckVerdict::Warn);
        assert_eq!(verdict(0, false), CheckVerdict::Fail);
    }

    #[test]
    fn what_others_may_write_fails_and_what_they_may_read_warns() {
        let verdict = |mode| {
            open_to_others("state", Path::new("/x"), mode, "chmod 0700").map(|finding| finding.verdict)
        };
        assert_eq!(verdict(0o40700), None);
        assert_eq!(verdict(0o40750), Some(CheckVerdict::Warn));
        assert_eq!(verdict(0o40770), Some(CheckVerdict::Fail));
        assert_eq!(verdict(0o100602), Some(CheckVerdict::Fail));
    }

    #[test]
    fn this_machine_runs_what_is_held() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(held_hook(dir.path()).verdict, CheckVerdict::Ok);
    }
}
