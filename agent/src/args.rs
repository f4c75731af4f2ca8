//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use muster_shared::{
    ids::{ActionName, Digest},
    parameter_text,
    time::parse_duration,
};
use serde_json::Value;

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
    /// Tell whether the daemon runs and is connected, what runs, what waits and for what
    Status(ToolArgs),
    /// List this machine's hooks, check one, or trust one as it is now
    Hooks(HooksArgs),
    /// Run an action of this machine as a dispatch would, without a control service
    RunLocal(RunLocalArgs),
    /// Look for what keeps this node from working, and tell a remedy for each
    Doctor(ToolArgs),
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
    #[arg(long, env = "MUSTER_CA_SHA256", value_name = "HEX", value_parser = pin::parse)]
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

/// Of every command that looks at the node.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ToolArgs {
    #[command(flatten)]
    pub(crate) place: RunArgs,
    /// How to print it
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub(crate) output: View,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum View {
    Table,
    Json,
}

#[derive(clap::Args)]
pub(crate) struct HooksArgs {
    #[command(subcommand)]
    pub(crate) command: HooksCommand,
}

#[derive(Subcommand)]
pub(crate) enum HooksCommand {
    /// Every file of the hooks directory: its digest, its verdict, its manifest, or why it is no hook
    List(ToolArgs),
    /// Every check that a hook and its manifest must pass; exit code 1 when it fails one
    Check(CheckArgs),
    /// Pin a hook as it is now on this node. Control must approve the digest too before it can dispatch it
    Trust(TrustArgs),
}

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// A hook of the hooks directory, or a path (with a /) to a file that is not installed yet; its manifest is FILE.toml
    pub(crate) hook: String,
    #[command(flatten)]
    pub(crate) tool: ToolArgs,
}

#[derive(clap::Args)]
pub(crate) struct TrustArgs {
    /// The hook
    pub(crate) name: ActionName,
    /// The digest that you mean; when the hook has another one by now, nothing is pinned
    #[arg(long)]
    pub(crate) digest: Option<Digest>,
    #[command(flatten)]
    pub(crate) tool: ToolArgs,
}

/// Shown below `musterd run-local --help`.
const RUN_LOCAL: &str = "\
The node's policy, the checks of the hook and its manifest, its baseline, its user, its limits and its supervisor are those of
a dispatch. Nothing of it is told to control or written into the journal. It works beside a running daemon and without
enrolment. It is refused while the daemon runs what the affinity of either keeps it from running beside. The daemon takes no account
of it: it may start such an action meanwhile, and running_max does not count this one.

Its output goes to standard output as it was, once it has ended; everything else is said on standard error. Ctrl-C and
SIGTERM end it as a cancel does.

Exit codes: that of the hook; 124 when its time was over; 126 when this node refused to run it; 128 and the number of
the signal that killed it; 130 when it was stopped; else as `musterd --help` says, with the reason on standard error.";

#[derive(clap::Args)]
#[command(after_help = RUN_LOCAL)]
pub(crate) struct RunLocalArgs {
    /// The name of a hook or a builtin
    pub(crate) action: ActionName,
    /// A parameter: KEY=TEXT, read as the number, list or truth value that the manifest declares there; KEY:=JSON in any case
    #[arg(short = 'p', long = "param", value_name = "KEY=TEXT", value_parser = parameter_text::parse)]
    pub(crate) params: Vec<(String, Value)>,
    /// Run it also beside what the daemon runs and its affinity forbids
    #[arg(long)]
    pub(crate) beside: bool,
    /// How long it may take, as 30s, 5m or 2h; left out, as long as its manifest says, else 5m
    #[arg(long, value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) tool: ToolArgs,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn pages_and_completions() {
        muster_pages::Program {
            command: Args::command(),
            section: 8,
            prose: include_str!("../../docs/man/musterd.md"),
        }
        .whole();
    }
}
