//! `muster`: what operators type.
//!
//! One file per noun asks control and shows the answer. Nothing is decided here that control decides: this program
//! checks what only it can know, such as a selector that is empty because a variable was.

mod actions;
mod args;
mod audit;
mod client;
mod contexts;
mod contexts_file;
mod credential;
mod execution;
mod execution_cancel;
mod execution_output;
mod execution_rollout;
mod execution_show;
mod executions;
mod exit;
mod failure;
mod follow;
mod grant;
mod hooks;
mod issuer;
mod login;
mod lookup;
mod nodes;
mod output_source;
mod params;
mod preview;
mod printable;
mod problem;
mod progress;
mod reach;
mod render;
mod resend;
mod run;
mod seconds;
mod session;
mod settings;
mod stopped;
mod table;
mod target;
mod text;
mod tokens;
mod version;
mod violations;
mod wait;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{
    args::{Cli, Command},
    exit::Exit,
    failure::Failure,
    render::Screen,
    session::Session,
};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            // Help for a reader that has gone away is nobody's loss.
            let _ = err.print();
            return if err.use_stderr() {
                Exit::Usage
            } else {
                Exit::Success
            }
            .into();
        }
    };
    let exit = run(cli).unwrap_or_else(|failure| {
        render::say(&failure.words());
        failure.exit()
    });
    exit.into()
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    if !cli.takes_format() {
        return Err(Failure::Usage(
            "-o raw is for `muster execution output` alone".to_owned(),
        ));
    }
    let session = Session {
        screen: Screen::new(cli.format, cli.no_color),
        flags: cli.flags,
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::local("starting"))?
        .block_on(obey(&session, cli.command))
}

async fn obey(session: &Session, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Nodes(args) => nodes::list(session, args).await,
        Command::Node(command) => nodes::run(session, command).await,
        Command::Actions(args) => actions::list(session, args).await,
        Command::Action(command) => actions::run(session, command).await,
        Command::Run(args) => run::run(session, *args).await,
        Command::Executions(args) => executions::list(session, args).await,
        Command::Execution(command) => execution::run(session, command).await,
        Command::Hooks(args) => hooks::run(session, args).await,
        Command::Violations(args) => violations::list(session, args).await,
        Command::Violation(command) => violations::run(session, command).await,
        Command::Tokens(command) => tokens::run(session, command).await,
        Command::Grant(args) => grant::run(session, args).await,
        Command::Audit(command) => audit::run(session, command).await,
        Command::Context(command) => contexts::run(session, command).await,
        Command::Login(args) => login::login(session, args).await,
        Command::Logout => login::logout(session).await,
        Command::Whoami => login::whoami(session).await,
        Command::Version => version::run(session).await,
    }
}
