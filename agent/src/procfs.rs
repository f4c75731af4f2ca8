//! What `/proc` says of processes: who they descend from, and which of two holders of one pid is meant.

use std::{collections::BTreeMap, fs, io};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) zombie: bool,
    /// In clock ticks since boot: pid and start time together name one process.
    pub(crate) started: u64,
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    look(pid).ok().flatten()
}

/// The same, where it matters whether there is none or whether nobody could look.
pub(crate) fn look(pid: i32) -> io::Result<Option<Stat>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(line) => parse(&line).map(Some).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat makes no sense: {line:?}"),
            )
        }),
        // It may end while its file is open.
        Err(err) if matches!(Errno::from_io_error(&err), Some(Errno::NOENT | Errno::SRCH)) => Ok(None),
        Err(err) => Err(err),
    }
}

/// The command name may hold spaces and parentheses, so fields are counted after the last closing one.
fn parse(line: &str) -> Option<Stat> {
    let (head, tail) = line.rsplit_once(')')?;
    let pid = head.split_once(' ')?.0.parse().ok()?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// Every live process that descends from `ancestor`. Under a subreaper that is all it ever started.
pub(crate) fn descendants(ancestor: i32) -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut children: BTreeMap<i32, Vec<Stat>> = BTreeMap::new();
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for process in pids.filter_map(stat) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut ahead = vec![ancestor];
    while let Some(parent) = ahead.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            ahead.push(child.pid);
            if !child.zombie {
                found.push(child);
            }
        }
    }
    found
}

/// Every live process whose environment began with this variable. Whoever clears its environment is not found.
pub(crate) fn with_variables(wanted: &[(&str, String)]) -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let wanted: Vec<String> = wanted
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // The start is read before the environment, so that a pid that changes hands in between is told apart.
    let holds = |process: &Stat| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        let held: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
        wanted.iter().all(|variable| held.contains(&variable.as_bytes()))
    };
    pids.filter_map(stat)
        .filter(|process| !process.zombie && holds(process))
        .collect()
}

/// Signals exactly this process: a pid that passed to another one since it was read is left alone.
pub(crate) fn signal(process: Stat, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else {
        return;
    };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if stat(process.pid).is_some_and(|now| now.started == process.started) {
        // It may have ended by itself meanwhile, which is what was wanted.
        let _ = pidfd_send_signal(&handle, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_cannot_shift_the_fields() {
        let line = "42 (a) S (b)) S 7 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        assert_eq!(
            parse(line),
            Some(Stat {
                pid: 42,
                parent: 7,
                zombie: false,
                started: 12345
            })
        );
    }

    #[test]
    fn this_process_has_a_parent_and_a_start() {
        let me = stat(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.parent > 0 && me.started > 0);
    }
}
