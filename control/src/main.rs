//! muster-control: admits dispatches, signs them onto each node's stream, records every step, and settles them.
//!
//! This file is the table of contents: arguments, then one of the commands, then an exit code.

mod access;
mod args;
mod audit;
mod authz;
mod backup;
mod callback;
mod cancel;
mod certificate;
mod commands;
mod config;
mod control;
mod deadlines;
mod decommission;
mod delivery;
mod dispatch;
mod doctor;
mod enroll;
mod gates;
mod http;
mod idempotency;
mod init;
mod instances;
mod integrity;
mod keys;
mod logging;
mod machine;
mod metrics;
mod nsk;
mod oidc;
mod outbox;
mod outputs;
mod parameters;
mod pki;
mod presence;
mod rate;
mod reconcile;
mod refusals;
mod replica;
mod restore;
mod restored;
mod retention;
mod rolling;
mod rollout;
mod serve;
mod server;
mod signing;
mod store;
mod streams;
mod target;
mod tickets;
mod together;

use std::process::ExitCode;

use clap::Parser as _;
use muster_shared::causes::chain as error_chain;

use args::Args;
use config::ConfigError;

/// What ten thousand handshakes and streams leave in pieces is put together again by this one for less than by the
/// system's (docs/performance.md has the figures).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    logging::install();
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nothing else installs a TLS provider");
    match commands::run(args.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            log::error!("{}", error_chain(&*err));
            ExitCode::from(if err.is::<ConfigError>() { 3 } else { 1 })
        }
    }
}
