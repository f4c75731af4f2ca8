//! `facts`: what kind of machine this is. What cannot be found out is null, never a failure.

use std::{fs, time::Duration};

use muster_shared::time::Timestamp;
use serde_json::{Value, json};

use super::{Context, Failed, parameter::Arguments};
use crate::enroll::machine;

pub(super) fn run(_: &Arguments, context: &Context) -> Result<Value, Failed> {
    let kernel = rustix::system::uname();
    let uptime = uptime();
    Ok(json!({
        "node_id": context.node,
        "hostname": machine::hostname(),
        "machine_id": machine::machine_id(),
        "os": machine::os_release("ID"),
        "os_version": machine::os_release("VERSION_ID"),
        "os_name": machine::os_release("PRETTY_NAME"),
        "kernel": kernel.release().to_string_lossy(),
        "architecture": kernel.machine().to_string_lossy(),
        "cpus": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        "memory_total_bytes": memory("MemTotal:"),
        "memory_available_bytes": memory("MemAvailable:"),
        "swap_total_bytes": memory("SwapTotal:"),
        "load_average": load_average(),
        "uptime_seconds": uptime.map(|uptime| uptime.as_secs()),
        "booted_at": uptime.map(|uptime| Timestamp::now().minus(uptime)),
        "agent_version": env!("CARGO_PKG_VERSION"),
        "time": Timestamp::now(),
    }))
}

fn uptime() -> Option<Duration> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    Duration::try_from_secs_f64(text.split_ascii_whitespace().next()?.parse().ok()?).ok()
}

fn memory(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn load_average() -> Option<Vec<f64>> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_ascii_whitespace()
        .take(3)
        .map(|load| load.parse().ok())
        .collect()
}
