//! What the kernel says of processes and of the machine.

use std::{fs, io, path::Path, time::Instant};

use muster_shared::{
    envelope::{KeyRing, Signer},
    ids::{EventId, ExecutionId, NodeId},
    time::Timestamp,
    wire::ActionCancel,
};
use serde_json::{Value, json};

/// Clock ticks a second, as `/proc/PID/stat` counts on every Linux there is.
const TICKS: f64 = 100.0;

/// CPU seconds of a process and of those children of it that it has waited for.
#[must_use]
pub fn cpu_s(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold anything; the fields begin behind its bracket.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|n| n.parse::<f64>().ok())
        .sum();
    ticks / TICKS
}

fn kib_of(path: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a process holds, what it shares divided among those that share it.
#[must_use]
pub fn pss_kib(pid: u32) -> Option<f64> {
    kib_of(&format!("/proc/{pid}/smaps_rollup"), "Pss")
}

#[must_use]
pub fn resident_kib(pid: u32) -> Option<f64> {
    kib_of(&format!("/proc/{pid}/status"), "VmRSS")
}

/// The most that a process held so far.
#[must_use]
pub fn peak_kib(pid: u32) -> Option<f64> {
    kib_of(&format!("/proc/{pid}/status"), "VmHWM")
}

/// How long an append of a page and its `fdatasync` take there, in milliseconds.
///
/// # Errors
/// When the file cannot be written.
pub fn sync_ms(dir: &Path) -> io::Result<Vec<f64>> {
    use std::io::Write as _;
    let mut file = tempfile::tempfile_in(dir)?;
    (0..100)
        .map(|_| {
            let begun = Instant::now();
            file.write_all(&[0; 4096])?;
            file.sync_data()?;
            Ok(begun.elapsed().as_secs_f64() * 1000.0)
        })
        .collect()
}

/// How long the signing of an event takes, and its whole check, in microseconds: what no improvement takes away.
#[must_use]
pub fn signatures_us() -> (Vec<f64>, Vec<f64>) {
    let signer = Signer::from_seed(&crate::chance());
    let mut ring = KeyRing::default();
    if ring.add(&signer.public_key()).is_err() {
        return (Vec::new(), Vec::new());
    }
    let now = Timestamp::now();
    let node = NodeId::mint(now, crate::chance());
    let message = ActionCancel {
        event_id: EventId::mint(now, crate::chance()),
        occurred_at: now,
        execution_id: ExecutionId::mint(now, crate::chance()),
        node_id: node,
        expires_at: now.plus(std::time::Duration::from_secs(600)),
    };
    let took = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6;
    (0..500)
        .filter_map(|_| {
            let begun = Instant::now();
            let sealed = signer.seal(&message).ok()?;
            let signed = took(begun);
            let raw = serde_json::to_vec(&sealed).ok()?;
            let begun = Instant::now();
            ring.open::<ActionCancel>(&raw, node, now).ok()?;
            Some((signed, took(begun)))
        })
        .unzip()
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// What a reader has to know of the machine to make sense of a figure.
#[must_use]
pub fn described(dir: &Path, descriptors: u64) -> Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let sync = sync_ms(dir).unwrap_or_default();
    let (sign, open) = signatures_us();
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": model.map(|(_, name)| name.trim()),
        "kernel": first_line("/proc/sys/kernel/osrelease"),
        "memory_kib": kib_of("/proc/meminfo", "MemTotal"),
        "load_before": first_line("/proc/loadavg"),
        "descriptors_max": descriptors,
        "sign_us": super::median(&sign),
        "open_us": super::median(&open),
        "fdatasync_ms": { "median": super::median(&sync), "p99": super::percentile(&sync, 0.99) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_something() {
        let me = std::process::id();
        assert!(resident_kib(me).unwrap() > 100.0 && peak_kib(me).unwrap() >= pss_kib(me).unwrap());
        assert!(cpu_s(me) >= 0.0);
    }
}
