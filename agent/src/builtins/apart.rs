//! `musterd builtin NAME RUN_DIR`: a builtin that works in a process of its own, under a supervisor.
//!
//! It finds its parameters on standard input as a hook does. Its answer goes to standard output, and why it failed to a
//! file of the run directory, so that the output stays one JSON document.

use std::{
    collections::BTreeMap,
    future::Future,
    io::{self, Read as _, Write as _},
    pin::Pin,
    process::ExitCode,
};

use muster_shared::wire::{PARAMETERS_BYTES_MAX, Parameters};
use serde_json::Value;

use super::{Arguments, Failed, Work, document, find};
use crate::{args::BuiltinArgs, outcome::cut, run_dir::RunDir};

/// Words beside the exit status; the rest of the error text is for what else there is to say.
const REASON_BYTES_MAX: usize = 2048;
/// What the node's admin may have set for the daemon and a builtin needs too: where the system's bus is, which
/// configuration apt reads, and where dpkg's database is.
const PASSED_ON: [&str; 3] = ["DBUS_SYSTEM_BUS_ADDRESS", "APT_CONFIG", "DPKG_ADMINDIR"];

pub(super) type Task = Pin<Box<dyn Future<Output = Result<Done, Failed>>>>;

/// A document, also of what went wrong half way.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) document: Value,
    pub(super) failed: Option<Failure>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// That of the program that did the work, where one did; never 0.
    pub(super) exit_code: u8,
    pub(super) why: String,
}

impl Done {
    /// The document tells how far it came.
    pub(super) fn badly(document: Value, exit_code: u8, why: impl Into<String>) -> Self {
        let why = why.into();
        Self {
            document,
            failed: Some(Failure { exit_code, why }),
        }
    }

    pub(super) const fn well(document: Value) -> Self {
        Self {
            document,
            failed: None,
        }
    }
}

/// What the daemon's own environment has for a builtin.
pub(crate) fn environment() -> BTreeMap<String, String> {
    PASSED_ON
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect()
}

pub(crate) fn main(args: &BuiltinArgs) -> ExitCode {
    let run = RunDir::at(args.run_dir.clone());
    let ended = work(args).and_then(|done| {
        let bytes = document(&done.document)?;
        io::stdout()
            .write_all(&bytes)
            .map_err(|err| Failed::Work(format!("the answer could not be written: {err}")))?;
        Ok(done.failed)
    });
    let failure = match ended {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(failure)) => failure,
        Err(failed) => Failure {
            exit_code: 1,
            why: match failed {
                Failed::Unknown => format!("unknown_action: this musterd has no builtin {}", args.name),
                Failed::Parameters(why) => format!("invalid_parameters: {why}"),
                Failed::Work(why) => why,
            },
        },
    };
    if let Err(err) = run.write_reason(&cut(&failure.why, REASON_BYTES_MAX)) {
        crate::logging::say_on_stderr(&format!("{} ({err})", failure.why));
    }
    ExitCode::from(failure.exit_code)
}

fn work(args: &BuiltinArgs) -> Result<Done, Failed> {
    let unreadable = |err: io::Error| Failed::Parameters(err.to_string());
    let mut raw = Vec::new();
    let limit = u64::try_from(PARAMETERS_BYTES_MAX).unwrap_or(u64::MAX);
    io::stdin()
        .take(limit)
        .read_to_end(&mut raw)
        .map_err(unreadable)?;
    let parameters: Parameters = serde_json::from_slice(&raw).map_err(|err| unreadable(err.into()))?;
    let builtin = find(&args.name).ok_or(Failed::Unknown)?;
    let Work::Apart { run: task, .. } = builtin.work else {
        return Err(Failed::Unknown);
    };
    let arguments = Arguments::check(builtin.name, builtin.parameters, &parameters)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| Failed::Work(format!("the asynchronous runtime could not be started: {err}")))?;
    runtime.block_on(task(arguments, RunDir::at(args.run_dir.clone())))
}
