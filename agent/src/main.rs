//! `musterd`, the daemon on every node.

mod args;
mod backoff;
mod clock;
mod config;
mod durable;
mod exit;
mod identity;
mod logging;
mod outcome;
mod parameters;
mod procfs;
mod run_dir;
mod session;

fn main() {}
