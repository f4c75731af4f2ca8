//! Control groups: the kernel's own list of who belongs to a hook, whatever they do to leave it.
//!
//! A hook gets a group below the one its supervisor is in, so that the supervisor can end all of it and live on.
//! Where there is no cgroup v2, or it may not be written, there is none, and descent alone tells who belongs.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};

use crate::limits::HookLimits;

const ROOT: &str = "/sys/fs/cgroup";
/// The period by which the kernel counts time on a processor.
const CPU_PERIOD_MICROS: u128 = 100_000;

/// A group in cgroup v2 that holds one hook.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one below the group of this process.
    pub(crate) fn below_own(name: &str) -> io::Result<Self> {
        let own = own_v2()?;
        // Whoever may not write there may make a group and yet not move a process into it.
        rustix::fs::accessat(CWD, own.join("cgroup.procs"), Access::WRITE_OK, AtFlags::EACCESS)?;
        let path = own.join(name);
        match fs::create_dir(&path) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
            _made => {}
        }
        Ok(Self(path))
    }

    /// The limits that no group made by this process can have.
    pub(crate) fn beyond(limits: &HookLimits) -> Vec<&'static str> {
        match Self::below_own(&format!("muster-try-{}", std::process::id())) {
            Ok(group) => {
                let missing = group.limit(limits);
                let _ = group.remove();
                missing
            }
            Err(_) => limits.named(),
        }
    }

    pub(crate) const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// What a process can be born into.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.0, flags, Mode::empty())?)
    }

    /// Whoever writes a zero into it is in the group from then on.
    pub(crate) fn entrance(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(
            self.0.join("cgroup.procs"),
            flags,
            Mode::empty(),
        )?)
    }

    /// Sets what can be set, and names what cannot: a controller may be missing here.
    pub(crate) fn limit(&self, limits: &HookLimits) -> Vec<&'static str> {
        let quota = limits.cpu_time_per_second().map(|time| {
            let micros = time.as_micros() * CPU_PERIOD_MICROS / 1_000_000;
            format!("{micros} {CPU_PERIOD_MICROS}")
        });
        let wanted = [
            (
                "memory.max",
                "memory_max_bytes",
                limits.memory_max_bytes.map(|n| n.to_string()),
            ),
            ("pids.max", "pids_max", limits.pids_max.map(|n| n.to_string())),
            ("cpu.max", "cpu_percent", quota),
        ];
        let missing = |(file, name, value): (&str, &'static str, Option<String>)| {
            fs::write(self.0.join(file), value?).err().map(|_| name)
        };
        wanted.into_iter().filter_map(missing).collect()
    }

    /// Ends everybody in it at once: nobody is born in between. Kernels before 5.14 cannot.
    pub(crate) fn kill(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.kill"), "1")
    }

    /// An empty one goes; one that still holds somebody stays.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir(&self.0)
    }
}

/// What the kernel has counted in the groups of a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Processes that it killed for lack of memory.
    pub(crate) oom_kills: u64,
    /// Times that a process could not be started.
    pub(crate) forks_refused: u64,
}

impl Counts {
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            oom_kills: self.oom_kills.saturating_sub(before.oom_kills),
            forks_refused: self.forks_refused.saturating_sub(before.forks_refused),
        }
    }
}

/// Where those counts are to be read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl Counters {
    /// Of a group in cgroup v2.
    pub(crate) fn of(group: &Path) -> Self {
        let there = |name| Some(group.join(name)).filter(|path| path.exists());
        Self {
            memory: there("memory.events"),
            pids: there("pids.events"),
        }
    }

    /// Of the groups that this process is in, be they in cgroup v2 or in v1. Only for a process that shares them with
    /// nobody but its hook.
    pub(crate) fn of_own() -> Self {
        let own = own_v2().map(|group| Self::of(&group)).unwrap_or_default();
        let in_v1 = |controller: &str, name: &str| {
            let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
            let group = group_of(&membership, controller)?;
            Some(below(&Path::new(ROOT).join(controller), group).join(name)).filter(|path| path.exists())
        };
        Self {
            memory: own.memory.or_else(|| in_v1("memory", "memory.oom_control")),
            pids: own.pids.or_else(|| in_v1("pids", "pids.events")),
        }
    }

    pub(crate) fn read(&self) -> Counts {
        let count = |path: &Option<PathBuf>, key: &str| {
            let text = path.as_ref().and_then(|path| fs::read_to_string(path).ok());
            text.and_then(|text| value_of(&text, key)).unwrap_or(0)
        };
        Counts {
            oom_kills: count(&self.memory, "oom_kill"),
            forks_refused: count(&self.pids, "max"),
        }
    }
}

/// The unit of systemd that this process is in, where it is in one.
pub(crate) fn own_service() -> Option<String> {
    service_in(&fs::read_to_string("/proc/self/cgroup").ok()?)
}

fn service_in(membership: &str) -> Option<String> {
    let group = group_of(membership, "name=systemd").or_else(|| group_of(membership, ""))?;
    group
        .rsplit('/')
        .find(|part| part.ends_with(".service"))
        .map(str::to_owned)
}

fn own_v2() -> io::Result<PathBuf> {
    let membership = fs::read_to_string("/proc/self/cgroup")?;
    let group = group_of(&membership, "").ok_or(io::ErrorKind::NotFound)?;
    let beside_v1 = Path::new(ROOT).join("unified");
    let root = if beside_v1.is_dir() {
        beside_v1
    } else {
        ROOT.into()
    };
    let path = below(&root, group);
    if path.join("cgroup.procs").exists() {
        Ok(path)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn below(root: &Path, group: &str) -> PathBuf {
    root.join(group.trim_start_matches('/'))
}

/// The group of one hierarchy: `""` is cgroup v2's. A line is `number:controllers:group`.
fn group_of<'a>(membership: &'a str, controller: &str) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        controllers
            .split(',')
            .any(|one| one == controller)
            .then_some(group)
    })
}

fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(name, value)| (name == key).then(|| value.trim().parse().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str =
        "4:memory:/h/a.service\n2:cpu,cpuacct:/\n1:name=systemd:/system.slice/a.service\n0::/v2/b\n";

    #[test]
    fn a_group_is_found_in_its_hierarchy() {
        assert_eq!(group_of(HYBRID, "memory"), Some("/h/a.service"));
        assert_eq!(group_of(HYBRID, "cpuacct"), Some("/"));
        assert_eq!(group_of(HYBRID, ""), Some("/v2/b"));
        assert_eq!(group_of(HYBRID, "pids"), None);
    }

    #[test]
    fn the_own_unit_is_known_by_either_hierarchy() {
        assert_eq!(service_in(HYBRID).as_deref(), Some("a.service"));
        assert_eq!(
            service_in("0::/system.slice/musterd.service/below\n").as_deref(),
            Some("musterd.service")
        );
        assert_eq!(service_in("0::/user.slice/session-1.scope\n"), None);
    }

    #[test]
    fn counts_are_read_by_their_whole_name() {
        let events = "low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(value_of(events, "oom_kill"), Some(2));
        assert_eq!(
            value_of("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", "oom_kill"),
            Some(5)
        );
        assert_eq!(value_of("max 9\n", "max"), Some(9));
        assert_eq!(value_of("", "max"), None);
    }
}
