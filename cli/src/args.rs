//! The command line: every noun, every verb, and what holds for all of them.

use clap::{Parser, Subcommand};

use crate::{
    actions::{self, ActionCommand},
    audit::AuditCommand,
    contexts::ContextCommand,
    execution::ExecutionCommand,
    executions, exit,
    grant::GrantArgs,
    hooks::HooksArgs,
    login::LoginArgs,
    nodes::{self, NodeCommand},
    render::Format,
    run::RunArgs,
    settings::{Flags, GLOBAL},
    tokens::TokensCommand,
    violations::{self, ViolationCommand},
};

/// Run one named action on many machines and see what happened on each.
#[derive(Parser, Debug)]
#[command(name = "muster", version, after_help = exit::table(), after_long_help = long_help())]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) flags: Flags,
    /// How results are shown on standard output; words go to standard error
    #[arg(
        short = 'o',
        long = "output",
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    #[arg(help_heading = GLOBAL)]
    pub(crate) format: Format,
    /// No colours, also where standard output is a terminal [env: NO_COLOR]
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) no_color: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List nodes
    Nodes(nodes::ListArgs),
    /// Show, label or remove one node, or have nodes change their keys
    #[command(subcommand)]
    Node(NodeCommand),
    /// List what can be run, and on how many nodes
    Actions(actions::ListArgs),
    /// Show what one action is and takes
    #[command(subcommand)]
    Action(ActionCommand),
    /// Run an action on the nodes of a selector, on one node, or on all
    Run(Box<RunArgs>),
    /// List executions, newest first
    Executions(executions::ListArgs),
    /// Show, watch, pause, resume, cancel or read one execution
    #[command(subcommand)]
    Execution(ExecutionCommand),
    /// List hooks and their verdicts, or approve a digest
    Hooks(HooksArgs),
    /// List integrity violations
    Violations(violations::ListArgs),
    /// Acknowledge one integrity violation
    #[command(subcommand)]
    Violation(ViolationCommand),
    /// Mint, list, rotate and revoke what lets a machine enrol and an operator in
    #[command(subcommand)]
    Tokens(TokensCommand),
    /// Grant a relation, take it away, or list who may what
    Grant(GrantArgs),
    /// List who asked for what, and verify that record
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Keep servers, projects and tokens under names
    #[command(subcommand)]
    Context(ContextCommand),
    /// Sign in at the OIDC issuer that control trusts, and keep the login in the context
    Login(LoginArgs),
    /// Take the context's login back at the issuer, and forget it
    Logout,
    /// Show whom control takes you for
    Whoami,
    /// Show the versions of this program and of control
    Version,
}

impl Cli {
    /// Bytes as they are make sense of an output alone.
    pub(crate) const fn takes_format(&self) -> bool {
        let raw = matches!(self.format, Format::Raw);
        !raw || matches!(self.command, Command::Execution(ExecutionCommand::Output(_)))
    }
}

fn long_help() -> String {
    format!(
        "Environment:\n  \
         MUSTER_SERVER, MUSTER_CA_FILE, MUSTER_PROJECT, MUSTER_CONTEXT  as the flags\n  \
         MUSTER_TOKEN, MUSTER_TOKEN_FILE                                the token, or a file that holds it\n\n\
         Flags win over the environment, the environment over the context ({}), unless --context names it.\n\n{}",
        "~/.config/muster/config.toml",
        exit::table()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn pages_and_completions() {
        muster_pages::Program {
            command: Cli::command(),
            section: 1,
            prose: include_str!("../../docs/man/muster.md"),
        }
        .whole();
    }

    #[test]
    fn the_help_of_run_names_the_way_for_a_secret_and_the_bounds_of_the_timeout() {
        let mut command = Cli::command();
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "a secret goes through --params-file -",
            "at most 24h. 30 means seconds",
        ] {
            assert!(help.contains(said), "{help}");
        }
    }

    #[test]
    fn raw_bytes_are_asked_of_an_output_alone() {
        let takes = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap().takes_format();
        assert!(!takes("muster nodes -o raw"));
        assert!(takes(
            "muster execution output 01900000-0000-7000-8000-000000000001 -o raw"
        ));
    }

    #[test]
    fn misuse_ends_with_the_code_for_usage() {
        for line in [
            "muster",
            "muster run ping",
            "muster run ../ping --all",
            "muster run ping --all --wait-timeout 5s",
            "muster run ping --all --timeout 0",
            "muster execution show 019",
            "muster execution cancel 019",
            "muster execution pause 019",
            "muster run ping --all --waves=",
            "muster run ping --all --deliver-within 0",
            "muster execution cancel 01900000-0000-7000-8000-000000000001 --wait-timeout 5s",
            "muster execution output 01900000-0000-7000-8000-000000000001 --head-bytes 0",
            "muster execution output 01900000-0000-7000-8000-000000000001 --head-bytes 1 --tail-bytes 1",
            "muster execution output 01900000-0000-7000-8000-000000000001 --range 1-0",
            "muster execution output 01900000-0000-7000-8000-000000000001 --save a --tail-bytes 1",
            "muster execution output 01900000-0000-7000-8000-000000000001 --save a --out-dir b",
            "muster executions --limit 0",
            "muster executions --status done",
            "muster executions --since yesterday",
            "muster executions -l ",
            "muster nodes --connected --away",
            "muster violation ack 01900000-0000-7000-8000-000000000001",
            "muster hooks approve h --all",
            "muster node label n",
            "muster node rotate-key",
            "muster node rotate-key n --all",
            "muster nodes -o xml",
            "muster grant user:a act",
            "muster grant --list --delete",
            "muster audit verify --anchor 5",
            "muster tokens rotate",
        ] {
            let err = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(err.exit_code(), 2, "{line}");
        }
    }
}
