//! `disk.usage`: what is mounted and how full it is.

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::PathBuf,
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, StatVfs};
use serde_json::{Value, json};

use super::{Context, Failed, parameter::Arguments};

/// File systems that hold no data of their own.
const PSEUDO: [&str; 25] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tracefs",
    "nfsd",
    "fuse.lxcfs",
];

struct Mount {
    source: String,
    path: String,
    kind: String,
}

/// From where the machine is looked at: from its first process where that may be, because the daemon's sandbox has mounts
/// that nobody else has; else from here.
struct View {
    machine: Option<OwnedFd>,
    mounts: Vec<Mount>,
}

impl View {
    fn new() -> io::Result<Self> {
        let (machine, text) = match Self::of_machine() {
            Ok((root, text)) => (Some(root), text),
            Err(_) => (None, fs::read_to_string("/proc/self/mounts")?),
        };
        let mounts = text.lines().filter_map(parse).collect();
        Ok(Self { machine, mounts })
    }

    fn of_machine() -> io::Result<(OwnedFd, String)> {
        let root = rustix::fs::open("/proc/1/root", PLACE | OFlags::DIRECTORY, Mode::empty())?;
        Ok((root, fs::read_to_string("/proc/1/mounts")?))
    }

    fn look(&self, path: &str) -> io::Result<OwnedFd> {
        match &self.machine {
            Some(root) => Ok(below(root, path)?),
            None => Ok(rustix::fs::openat(CWD, path, PLACE, Mode::empty())?),
        }
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Links that begin with a slash begin at that root too, where the kernel can do that: it cannot before 5.6, nor may it
/// in a unit with `RestrictSUIDSGID=`. Such a link then begins at the daemon's own root, which differs below `/tmp` alone.
fn below(root: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::openat2(root, path, PLACE, Mode::empty(), ResolveFlags::IN_ROOT) {
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            let relative = format!("./{}", path.trim_start_matches('/'));
            rustix::fs::openat(root, relative, PLACE, Mode::empty())
        }
        opened => opened,
    }
}

pub(super) fn run(arguments: &Arguments, _: &Context) -> Result<Value, Failed> {
    let view = View::new()
        .map_err(|err| Failed::Work(format!("the mounted file systems cannot be listed: {err}")))?;
    let systems: Vec<Value> = match arguments.text("path") {
        Some(path) => vec![one(path, &view)?],
        None => all(&view),
    };
    Ok(json!({ "file_systems": systems }))
}

fn all(view: &View) -> Vec<Value> {
    let mut shown = BTreeSet::new();
    let real = view
        .mounts
        .iter()
        .filter(|mount| !PSEUDO.contains(&mount.kind.as_str()));
    // The last mount on a path hides those before it.
    let mut systems: Vec<Value> = real
        .rev()
        .filter(|mount| shown.insert(&mount.path))
        .filter_map(|mount| {
            let looked = view
                .look(&mount.path)
                .and_then(|place| Ok(rustix::fs::fstatvfs(place)?));
            match looked {
                Ok(usage) if usage.f_blocks == 0 => None,
                Ok(usage) => Some(describe(mount, &usage)),
                // What cannot be looked at is not passed over in silence: it may be the one that is full.
                Err(err) => Some(json!({
                    "mounted_on": mount.path, "source": mount.source, "type": mount.kind, "error": err.to_string(),
                })),
            }
        })
        .collect();
    systems.reverse();
    systems
}

fn one(path: &str, view: &View) -> Result<Value, Failed> {
    let failed = |err: io::Error| Failed::Work(format!("{path} cannot be looked at: {err}"));
    let place = view.look(path).map_err(failed)?;
    let usage = rustix::fs::fstatvfs(&place).map_err(|err| failed(err.into()))?;
    let real: PathBuf = fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd())).map_err(failed)?;
    let holds = |mount: &&Mount| real.starts_with(&mount.path);
    let mount = view
        .mounts
        .iter()
        .filter(holds)
        .max_by_key(|mount| mount.path.len());
    let mount =
        mount.ok_or_else(|| Failed::Work(format!("{path} is on no file system that is mounted here")))?;
    Ok(describe(mount, &usage))
}

fn describe(mount: &Mount, usage: &StatVfs) -> Value {
    let bytes = |blocks: u64| blocks.saturating_mul(usage.f_frsize);
    let used = usage.f_blocks.saturating_sub(usage.f_bfree);
    // As df has it: of what is there for everybody, rounded up.
    let visible = used.saturating_add(usage.f_bavail);
    json!({
        "mounted_on": mount.path,
        "source": mount.source,
        "type": mount.kind,
        "total_bytes": bytes(usage.f_blocks),
        "used_bytes": bytes(used),
        "available_bytes": bytes(usage.f_bavail),
        "used_percent": if visible == 0 { 0 } else { used.saturating_mul(100).div_ceil(visible) },
        "inodes_total": usage.f_files,
        "inodes_free": usage.f_ffree,
    })
}

fn parse(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ').map(unescape);
    Some(Mount {
        source: fields.next()?,
        path: fields.next()?,
        kind: fields.next()?,
    })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            (first, _) => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_with_a_blank_is_read_whole() {
        let mount = parse(r"/dev/sda1 /mnt/my\040disk ext4 rw 0 0").unwrap();
        assert_eq!(
            (mount.path.as_str(), mount.kind.as_str()),
            ("/mnt/my disk", "ext4")
        );
    }
}
