//! `muster context`: which controls a person works with, kept under a name.

use std::{io, path::PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    contexts_file::{Context, Contexts, Secret},
    exit::Exit,
    failure::Failure,
    session::Session,
    settings::{Flags, parse_server},
    table::Table,
};

#[derive(Subcommand, Debug)]
pub(crate) enum ContextCommand {
    /// All contexts; their tokens are not shown
    List,
    /// Make a context the one that is used when none is named
    Use {
        /// The context, as `context list` names it
        name: String,
    },
    /// Keep --server, --ca-file, --project and a token under a name; what is not given stays as it is
    Set(SetArgs),
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// The context, which is made when there is none of that name
    name: String,
    /// Read the token from this file and keep it in the context file
    #[arg(long, value_name = "FILE", conflicts_with = "token_stdin")]
    token_file: Option<PathBuf>,
    /// Read the token from standard input and keep it in the context file
    #[arg(long)]
    token_stdin: bool,
}

/// A context without its token.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    current: bool,
    server: Option<&'a str>,
    project: Option<&'a str>,
    ca_file: Option<String>,
    has_token: bool,
    has_login: bool,
}

pub(crate) async fn run(session: &Session, command: ContextCommand) -> Result<Exit, Failure> {
    let path = session.contexts_path()?;
    let _lock = match &command {
        ContextCommand::List => None,
        ContextCommand::Use { .. } | ContextCommand::Set(_) => Some(Contexts::lock(&path).await?),
    };
    let mut contexts = Contexts::load(&path)?;
    match command {
        ContextCommand::List => {
            session.screen.list(
                &shown(&contexts),
                "contexts",
                |context| context.name.to_owned(),
                table,
            )?;
            return Ok(Exit::Success);
        }
        ContextCommand::Use { name } => {
            contexts.named(&name)?;
            session
                .screen
                .say(&format!("context {name:?} is used from now on"));
            contexts.current = Some(name);
        }
        ContextCommand::Set(args) => {
            let token = read_token(&args)?;
            let kept = contexts.contexts.entry(args.name.clone()).or_default();
            merge(kept, &session.flags, token)?;
            session
                .screen
                .say(&format!("context {:?} is kept in {}", args.name, path.display()));
            contexts.current.get_or_insert(args.name);
        }
    }
    contexts.save(&path)?;
    Ok(Exit::Success)
}

fn merge(context: &mut Context, flags: &Flags, token: Option<Secret>) -> Result<(), Failure> {
    if let Some(server) = &flags.server {
        parse_server(server).map_err(|why| Failure::Usage(format!("{server:?} from --server {why}")))?;
        if context.server.as_ref() != Some(server) {
            // A login goes to the control that it was made for.
            context.login = None;
        }
        context.server = Some(server.clone());
    }
    if let Some(file) = &flags.ca_file {
        // The context is used from any directory.
        let path =
            std::path::absolute(file).map_err(Failure::local(format!("the path of {}", file.display())))?;
        context.ca_file = Some(path);
    }
    if let Some(project) = &flags.project {
        context.project = Some(project.clone());
    }
    if token.is_some() {
        context.token = token;
        context.login = None;
    }
    Ok(())
}

fn read_token(args: &SetArgs) -> Result<Option<Secret>, Failure> {
    match &args.token_file {
        Some(path) => Secret::of_file(path, &path.display().to_string()).map(Some),
        None if args.token_stdin => Secret::read(io::stdin(), "standard input").map(Some),
        None => Ok(None),
    }
}

fn shown(contexts: &Contexts) -> Vec<Shown<'_>> {
    contexts
        .contexts
        .iter()
        .map(|(name, context)| Shown {
            name,
            current: contexts.current.as_ref() == Some(name),
            server: context.server.as_deref(),
            project: context.project.as_deref(),
            ca_file: context.ca_file.as_ref().map(|path| path.display().to_string()),
            has_token: context.token.is_some(),
            has_login: context.login.is_some(),
        })
        .collect()
}

fn table(contexts: &[Shown<'_>], _wide: bool) -> Table {
    let mut table = Table::new(
        &["CURRENT", "NAME", "SERVER", "PROJECT", "TOKEN", "CA FILE"],
        &[],
        false,
    );
    for context in contexts {
        table.row([
            if context.current { "*" } else { "" }.into(),
            context.name.into(),
            context.server.into(),
            context.project.into(),
            if context.has_login {
                "login"
            } else if context.has_token {
                "kept"
            } else {
                "-"
            }
            .into(),
            context.ca_file.as_deref().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_one_piece_leaves_the_others() {
        let mut context = Context::default();
        let server = Flags {
            server: Some("https://c:1".into()),
            ..Flags::default()
        };
        merge(
            &mut context,
            &server,
            Some(Secret::parse("tok", "a test").unwrap()),
        )
        .unwrap();
        let project = Flags {
            project: Some("p".into()),
            ..Flags::default()
        };
        merge(&mut context, &project, None).unwrap();
        assert_eq!(context.server.as_deref(), Some("https://c:1"));
        assert_eq!(context.project.as_deref(), Some("p"));
        assert!(context.token.is_some());
        assert!(
            merge(
                &mut context,
                &Flags {
                    server: Some("nope".into()),
                    ..Flags::default()
                },
                None
            )
            .is_err()
        );
    }

    #[test]
    fn a_list_of_contexts_shows_no_token() {
        let mut contexts = Contexts {
            current: Some("prod".into()),
            ..Contexts::default()
        };
        let token = Some(Secret::parse("hush", "a test").unwrap());
        contexts.contexts.insert(
            "prod".into(),
            Context {
                token,
                ..Context::default()
            },
        );
        let shown = shown(&contexts);
        assert_eq!(
            table(&shown, false).render(false),
            "CURRENT  NAME  SERVER  PROJECT  TOKEN  CA FILE\n*        prod  -       -        kept   -"
        );
        assert!(!serde_json::to_string(&shown).unwrap().contains("hush"));
    }
}
