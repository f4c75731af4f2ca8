//! `muster context`: which controls a person works with, kept under a name.

use std::{fs::File, io, path::PathBuf};

use clap::{Args, Subcommand};
use muster_shared::ids::ProjectId;
use serde::Serialize;

use crate::{
    contexts_file::{Context, Contexts, Secret},
    exit::Exit,
    failure::Failure,
    session::{Session, exported},
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
    /// Keep --server, --ca-file, --project and a token under a name; what is not given stays as it is, but for the token of
    /// another server
    Set(SetArgs),
    /// Forget a context with its token and its login
    Rm {
        /// The context, as `context list` names it
        name: String,
    },
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
        ContextCommand::Use { .. } | ContextCommand::Set(_) | ContextCommand::Rm { .. } => {
            if session.flags.context.is_some() {
                return Err(Failure::Usage(
                    "--context says nothing here: the name of the context is an argument".to_owned(),
                ));
            }
            Some(Contexts::lock(&path).await?)
        }
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
            session.screen.say(&used(&name, exported()?("MUSTER_CONTEXT")));
            contexts.current = Some(name);
        }
        ContextCommand::Set(args) => {
            let token = read_token(&args)?;
            let kept = contexts.contexts.entry(args.name.clone()).or_default();
            if let Some(forgotten) = merge(kept, &session.flags, token)? {
                session.screen.say(&forgotten);
            }
            session
                .screen
                .say(&format!("context {:?} is kept in {}", args.name, path.display()));
            contexts.current.get_or_insert(args.name);
        }
        ContextCommand::Rm { name } => {
            let was = contexts.named(&name)?.clone();
            contexts.contexts.remove(&name);
            contexts.current.take_if(|current| *current == name);
            session.screen.say(&format!("context {name:?} is forgotten"));
            if was.login.is_some() {
                session.screen.say(
                    "its login was not taken back at the issuer, and ends by itself; `muster logout` before would have done it",
                );
            }
        }
    }
    contexts.save(&path)?;
    Ok(Exit::Success)
}

fn used(name: &str, exported: Option<String>) -> String {
    let said = format!("context {name:?} is used from now on");
    match exported.filter(|exported| !exported.is_empty() && exported != name) {
        Some(exported) => {
            format!("{said}, but not where MUSTER_CONTEXT is set as it is here, to {exported:?}")
        }
        None => said,
    }
}

/// Says what was forgotten on the way, if anything was.
fn merge(context: &mut Context, flags: &Flags, token: Option<Secret>) -> Result<Option<String>, Failure> {
    let mut forgotten = None;
    if let Some(server) = &flags.server {
        parse_server(server).map_err(|why| Failure::Usage(format!("{server:?} from --server {why}")))?;
        if context.server.as_ref() != Some(server) {
            // Both go to the control that they were made for, and nowhere else.
            let had = context.login.take().map(|_| "login").or_else(|| {
                let held = context.server.is_some() && token.is_none();
                let kept = if held { context.token.take() } else { None };
                kept.map(|_| "token")
            });
            forgotten = had.map(|what| format!("its {what} was for another server, and is forgotten"));
        }
        context.server = Some(server.clone());
    }
    if let Some(file) = &flags.ca_file {
        // The context is used from any directory.
        let path =
            std::path::absolute(file).map_err(Failure::local(format!("the path of {}", file.display())))?;
        File::open(&path)
            .map_err(|err| Failure::Usage(format!("{} from --ca-file: {err}", path.display())))?;
        context.ca_file = Some(path);
    }
    if let Some(project) = &flags.project {
        project
            .parse::<ProjectId>()
            .map_err(|_| Failure::Usage(format!("{project:?} from --project is not a project's id")))?;
        context.project = Some(project.clone());
    }
    if token.is_some() {
        context.token = token;
        context.login = None;
    }
    Ok(forgotten)
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

    const PROJECT: &str = "01900000-0000-7000-8000-000000000001";

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
            project: Some(PROJECT.into()),
            ..Flags::default()
        };
        merge(&mut context, &project, None).unwrap();
        assert_eq!(context.server.as_deref(), Some("https://c:1"));
        assert_eq!(context.project.as_deref(), Some(PROJECT));
        assert!(context.token.is_some());
        assert_eq!(merge(&mut context, &server, None).unwrap(), None);
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
    fn a_token_is_forgotten_with_its_server() {
        let to = |server: &str| Flags {
            server: Some(server.into()),
            ..Flags::default()
        };
        let token = || Some(Secret::parse("tok", "a test").unwrap());
        let mut context = Context::default();
        merge(&mut context, &Flags::default(), token()).unwrap();
        // Until it has a server, it may be for any.
        assert_eq!(merge(&mut context, &to("https://a:1"), None).unwrap(), None);
        assert!(context.token.is_some());
        let said = merge(&mut context, &to("https://b:1"), None).unwrap().unwrap();
        assert!(said.contains("token"), "{said}");
        assert!(context.token.is_none());
        merge(&mut context, &to("https://c:1"), token()).unwrap();
        assert!(context.token.is_some());
    }

    #[test]
    fn what_could_not_be_used_is_not_kept() {
        let bad_project = Flags {
            project: Some("garbage".into()),
            ..Flags::default()
        };
        let no_file = Flags {
            ca_file: Some("/nowhere/ca.pem".into()),
            ..Flags::default()
        };
        for flags in [bad_project, no_file] {
            assert!(merge(&mut Context::default(), &flags, None).is_err());
        }
    }

    #[test]
    fn a_variable_that_wins_is_named() {
        assert_eq!(used("b", None), "context \"b\" is used from now on");
        assert_eq!(used("b", Some("b".into())), used("b", Some(String::new())));
        assert!(used("b", Some("a".into())).ends_with("MUSTER_CONTEXT is set as it is here, to \"a\""));
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
