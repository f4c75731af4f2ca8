//! `disk.usage`: what is mounted and how full it is.

use std::{collections::BTreeSet, fs};

use rustix::fs::StatVfs;
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

pub(super) fn run(arguments: &Arguments, _: &Context) -> Result<Value, Failed> {
    let mounts = fs::read_to_string("/proc/self/mounts")
        .map_err(|err| Failed::Work(format!("the mounted file systems cannot be listed: {err}")))?;
    let mounts: Vec<Mount> = mounts.lines().filter_map(parse).collect();
    let systems: Vec<Value> = match arguments.text("path") {
        Some(path) => vec![one(path, &mounts)?],
        None => all(&mounts),
    };
    Ok(json!({ "file_systems": systems }))
}

fn all(mounts: &[Mount]) -> Vec<Value> {
    let mut shown = BTreeSet::new();
    let real = mounts
        .iter()
        .filter(|mount| !PSEUDO.contains(&mount.kind.as_str()));
    // The last mount on a path hides those before it.
    let mut systems: Vec<Value> = real
        .rev()
        .filter(|mount| shown.insert(&mount.path))
        .filter_map(|mount| {
            let usage = rustix::fs::statvfs(mount.path.as_str())
                .ok()
                .filter(|usage| usage.f_blocks > 0)?;
            Some(describe(mount, &usage))
        })
        .collect();
    systems.reverse();
    systems
}

fn one(path: &str, mounts: &[Mount]) -> Result<Value, Failed> {
    let failed = |err: std::io::Error| Failed::Work(format!("{path} cannot be looked at: {err}"));
    let real = fs::canonicalize(path).map_err(failed)?;
    let usage = rustix::fs::statvfs(&real).map_err(|err| failed(err.into()))?;
    let holds = |mount: &&Mount| real.starts_with(&mount.path);
    let mount = mounts.iter().filter(holds).max_by_key(|mount| mount.path.len());
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
