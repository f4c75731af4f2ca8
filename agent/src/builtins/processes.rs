//! `processes.list`: what runs here. Environments are nobody's business, and command lines are cut.

use std::{collections::BTreeMap, fs};

use muster_shared::time::Timestamp;
use serde_json::{Value, json};

use super::{
    Context, Failed,
    parameter::{Arguments, Kind, Parameter, plain},
};
use crate::outcome::cut;

const COMMAND_BYTES_MAX: usize = 512;

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "sort",
        kind: Kind::Choice(&["memory", "cpu", "started", "pid"]),
        required: false,
        default: Some("memory"),
        description: "memory, cpu (time used so far), started (newest first) or pid",
    },
    Parameter::number(
        "limit",
        (1, 1000),
        "100",
        "How many processes are listed, 1 to 1000",
    ),
    Parameter::text(
        "name",
        plain,
        "Only processes whose name or command line holds this text",
    ),
];

struct Process {
    pid: i32,
    parent: i32,
    state: String,
    name: String,
    command: String,
    uid: u32,
    memory_bytes: u64,
    cpu_seconds: f64,
    started_ticks: u64,
    started_at: Timestamp,
}

/// What the kernel counts in.
struct Units {
    page_bytes: u64,
    ticks_per_second: f64,
    booted_at: Timestamp,
}

pub(super) fn run(arguments: &Arguments, _: &Context) -> Result<Value, Failed> {
    let unlisted = |err: std::io::Error| Failed::Work(format!("the processes cannot be listed: {err}"));
    let units = Units {
        page_bytes: rustix::param::page_size() as u64,
        ticks_per_second: f64::from(u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)),
        booted_at: booted_at()
            .ok_or_else(|| unlisted(std::io::Error::other("/proc/stat gives no boot time")))?,
    };
    let pids = fs::read_dir("/proc")
        .map_err(unlisted)?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // One that ends while it is looked at is not there.
    let wanted = arguments.text("name");
    let mut processes: Vec<Process> = pids
        .filter_map(|pid| look(pid, &units))
        .filter(|process| {
            wanted.is_none_or(|text| process.name.contains(text) || process.command.contains(text))
        })
        .collect();
    sort(&mut processes, arguments.text("sort").unwrap_or_default());
    let total = processes.len();
    processes.truncate(arguments.count("limit"));
    let users = users();
    let listed: Vec<Value> = processes
        .iter()
        .map(|process| describe(process, &users))
        .collect();
    Ok(json!({ "total": total, "truncated": listed.len() < total, "processes": listed }))
}

fn sort(processes: &mut [Process], by: &str) {
    processes.sort_by_key(|process| process.pid);
    match by {
        "memory" => processes.sort_by_key(|process| std::cmp::Reverse(process.memory_bytes)),
        "cpu" => processes.sort_by(|a, b| b.cpu_seconds.total_cmp(&a.cpu_seconds)),
        "started" => processes.sort_by_key(|process| std::cmp::Reverse(process.started_ticks)),
        _ => {}
    }
}

fn look(pid: i32, units: &Units) -> Option<Process> {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
    let stat = String::from_utf8_lossy(&read("stat")?).into_owned();
    let status = String::from_utf8_lossy(&read("status")?).into_owned();
    let command = command_line(&read("cmdline").unwrap_or_default());
    parse(&stat, &status, command, units)
}

/// `proc_pid_stat(5)`; the name may hold blanks and parentheses, so fields are counted after the last closing one.
fn parse(stat: &str, status: &str, command: String, units: &Units) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (pid, name) = head.split_once(" (")?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let started_ticks = number(19)?;
    #[expect(
        clippy::cast_precision_loss,
        reason = "ticks since boot fit 52 bits for a million years"
    )]
    let seconds = |ticks: u64| ticks as f64 / units.ticks_per_second;
    let since_boot = std::time::Duration::try_from_secs_f64(seconds(started_ticks)).ok()?;
    Some(Process {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        state: (*fields.first()?).to_owned(),
        name: name.to_owned(),
        command,
        uid: uid.split_ascii_whitespace().nth(1)?.parse().ok()?,
        memory_bytes: number(21)?.saturating_mul(units.page_bytes),
        cpu_seconds: seconds(number(11)?.saturating_add(number(12)?)),
        started_ticks,
        started_at: units.booted_at.plus(since_boot),
    })
}

fn command_line(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw).replace('\0', " ");
    cut(text.trim_end(), COMMAND_BYTES_MAX)
}

fn describe(process: &Process, users: &BTreeMap<u32, String>) -> Value {
    json!({
        "pid": process.pid,
        "parent_pid": process.parent,
        "state": process.state,
        "name": process.name,
        "command": process.command,
        "uid": process.uid,
        "user": users.get(&process.uid),
        "memory_bytes": process.memory_bytes,
        "cpu_seconds": process.cpu_seconds,
        "started_at": process.started_at,
    })
}

fn booted_at() -> Option<Timestamp> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let seconds: i64 = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    Some(Timestamp::from_millis(seconds.checked_mul(1000)?))
}

/// Those of the file: a directory service is not asked.
fn users() -> BTreeMap<u32, String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    passwd.lines().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Units = Units {
        page_bytes: 4096,
        ticks_per_second: 100.0,
        booted_at: Timestamp::from_millis(1_000_000),
    };

    fn process(line: &str) -> Option<Process> {
        parse(line, "Name:\tx\nUid:\t0\t33\t0\t0\n", "x".into(), &UNITS)
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let line = "42 (a) R (b) S 7 1 1 0 -1 4 0 0 0 0 150 50 0 0 20 0 1 0 2000 900 10 0";
        let found = process(line).unwrap();
        assert_eq!((found.pid, found.parent, found.name.as_str()), (42, 7, "a) R (b"));
        assert_eq!(
            (found.uid, found.memory_bytes, found.state.as_str()),
            (33, 40_960, "S")
        );
        assert!((found.cpu_seconds - 2.0).abs() < 1e-9);
        assert_eq!(found.started_at, Timestamp::from_millis(1_020_000));
        assert!(process("42 (a) S 7").is_none());
    }

    #[test]
    fn a_command_line_is_cut() {
        assert_eq!(command_line(b"a\0b c\0"), "a b c");
        assert_eq!(command_line(&[b'x'; 9000]).len(), COMMAND_BYTES_MAX);
    }

    #[test]
    fn the_order_is_as_asked_and_steady() {
        let line = |pid: u32, cpu: u32, memory: u32| {
            format!("{pid} (p) S 1 1 1 0 -1 4 0 0 0 0 {cpu} 0 0 0 20 0 1 0 {pid} 900 {memory} 0")
        };
        let mut all: Vec<Process> = [line(3, 1, 9), line(1, 5, 9), line(2, 9, 1)]
            .iter()
            .map(|line| process(line).unwrap())
            .collect();
        for (by, order) in [
            ("memory", [1, 3, 2]),
            ("cpu", [2, 1, 3]),
            ("started", [3, 2, 1]),
            ("pid", [1, 2, 3]),
        ] {
            sort(&mut all, by);
            assert_eq!(
                all.iter().map(|process| process.pid).collect::<Vec<_>>(),
                order,
                "{by}"
            );
        }
    }
}
