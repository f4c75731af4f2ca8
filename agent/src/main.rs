//! `musterd`, the daemon on every node.
//!
//! This file is the table of contents: arguments, then one of the commands, then an exit code.

mod args;
mod backoff;
mod builtins;
mod cgroup;
mod chance;
mod clock;
mod config;
mod control;
mod declare;
mod durable;
mod effect;
mod enroll;
mod eventloop;
mod exit;
mod heartbeat;
mod hooks;
mod identity;
mod instance;
mod journal;
mod keyring;
mod kick;
mod launch;
mod limits;
mod link;
mod logging;
mod nsk;
mod outcome;
mod parameters;
mod policy;
mod procfs;
mod reach;
mod readiness;
mod report;
mod resident;
mod retry_after;
mod run_as;
mod run_dir;
mod runner;
mod service;
mod session;
mod stream;
mod supervise;
mod systemd;
mod tool;
mod unharmed;

use std::{process::ExitCode, time::Duration};

use clap::Parser as _;

use args::{Args, Command};
use exit::Exit;

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Enroll(args) => enroll(&args).map(|()| exit::DONE),
        Command::Run(args) => run(args).map(|()| exit::DONE),
        Command::Status(args) => tool::status::run(args),
        Command::Hooks(args) => tool::hooks::run(args.command),
        Command::RunLocal(args) => run_local(args),
        Command::Doctor(args) => tool::doctor::run(args),
        Command::Supervise(args) => supervise::main(&args.run_dir).map(|()| exit::DONE),
        Command::Builtin(args) => return builtins::main(&args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(exit) => exit.explain_and_code(),
    }
}

fn enroll(args: &args::EnrollArgs) -> Result<(), Exit> {
    logging::install();
    runtime()?.block_on(enroll::enroll(args))
}

fn run(args: args::RunArgs) -> Result<(), Exit> {
    logging::install();
    let config = config::Config::load(args)?;
    let lock = identity::StateLock::take(&config.state_dir)?;
    let identity = identity::Identity::load(&config.state_dir)?;
    let (closing, journal) =
        journal::Journal::open(&config.state_dir, identity.node_id, config.limits.journal)?;
    let instance = instance::Instance::begin(&config.state_dir)?;
    let runtime = runtime()?;
    let stopped = runtime.block_on(eventloop::run(config, identity, instance, journal));
    // A builtin that hangs on a dead disk must not hold up the stop; supervisors live on by themselves.
    runtime.shutdown_timeout(Duration::from_millis(500));
    drop(closing);
    drop(lock);
    stopped
}

fn run_local(args: args::RunLocalArgs) -> Result<u8, Exit> {
    logging::install_at(log::LevelFilter::Warn);
    let runtime = runtime()?;
    let ended = runtime.block_on(tool::run_local::run(args));
    runtime.shutdown_timeout(Duration::from_millis(500));
    ended
}

/// One thread for everything that waits; blocking work gets a few more, which leave when idle.
fn runtime() -> Result<tokio::runtime::Runtime, Exit> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(16)
        .thread_keep_alive(Duration::from_secs(5))
        .thread_stack_size(512 * 1024)
        .build()
        .map_err(|err| Exit::Failure(format!("the asynchronous runtime could not be started: {err}")))
}
