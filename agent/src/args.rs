//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use muster_shared::ids::Digest;

use crate::{enroll::pin, exit};

#[derive(Parser)]
#[command(name = "musterd", version, about = "The Muster node daemon", after_help = exit::TABLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Register this machine with a control service, once
    Enroll(EnrollArgs),
    /// Listen for actions, run them and report
    Run(RunArgs),
    /// Look after one hook (started by the daemon, not by people)
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Do one of the actions that are compiled in (started by a supervisor, not by people)
    #[command(hide = true)]
    Builtin(BuiltinArgs),
}

#[derive(clap::Args)]
pub(crate) struct EnrollArgs {
    /// Where identity, journal and runs are kept
    #[arg(long, env = "MUSTER_STATE_DIR", default_value = crate::config::STATE_DIR_DEFAULT)]
    pub(crate) state_dir: PathBuf,
    /// The control service, as https://HOST[:PORT]
    #[arg(long, env = "MUSTER_SERVER")]
    pub(crate) server: String,
    /// A file that holds the bootstrap token
    #[arg(long)]
    pub(crate) token_file: PathBuf,
    /// The certificate authority of the control service, in PEM: the only one that is trusted
    #[arg(long, env = "MUSTER_CA_FILE", required_unless_present = "ca_sha256")]
    pub(crate) ca_file: Option<PathBuf>,
    /// The SHA-256 of that certificate, which the server then has to show by itself; beside a file, the file must hold it
    #[arg(long, value_name = "HEX", value_parser = pin::parse)]
    pub(crate) ca_sha256: Option<Digest>,
    /// The configuration file, for its [control]
    #[arg(long, env = "MUSTER_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Also where this machine is enrolled already: it becomes another node, and what was asked of the one that it was is
    /// not run
    #[arg(long)]
    pub(crate) force: bool,
    /// How to print what happened
    #[arg(short = 'o', long, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Where identity, journal and runs are kept
    #[arg(long, env = "MUSTER_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Where the admin's hooks are
    #[arg(long, env = "MUSTER_HOOKS_DIR")]
    pub(crate) hooks_dir: Option<PathBuf>,
    /// The configuration file
    #[arg(long, env = "MUSTER_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct SuperviseArgs {
    pub(crate) run_dir: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct BuiltinArgs {
    pub(crate) name: String,
    pub(crate) run_dir: PathBuf,
}
