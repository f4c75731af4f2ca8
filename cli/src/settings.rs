//! Which control, which token, which CA, which project: flags win over the environment, the environment over the
//! context, unless that was named by a flag: what is typed wins over what was exported, or one fleet would be addressed
//! where another was named.

use std::path::PathBuf;

use clap::Args;
use muster_shared::ids::ProjectId;
use reqwest::Url;

use crate::{
    contexts_file::{Context, Contexts, Login, Secret},
    failure::Failure,
    text,
};

/// What every command takes comes after what it alone takes.
pub(crate) const GLOBAL: &str = "Options of every command";

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Flags {
    /// Where control answers, such as https://control.example:8443 [env: MUSTER_SERVER]
    #[arg(long, global = true, value_name = "URL", help_heading = GLOBAL)]
    pub(crate) server: Option<String>,
    /// The CA that control's certificate must chain to, in PEM [env: MUSTER_CA_FILE]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) ca_file: Option<PathBuf>,
    /// The project's id [env: MUSTER_PROJECT]
    #[arg(long, global = true, value_name = "ID", help_heading = GLOBAL)]
    pub(crate) project: Option<String>,
    /// A context of the context file; named here, it wins over the variables [env: MUSTER_CONTEXT]
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub(crate) context: Option<String>,
}

/// A value and where it was given, for the message when it is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Given<T> {
    value: T,
    origin: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Text(String),
    File(PathBuf),
    Kept {
        secret: Secret,
        /// Of its context: it goes nowhere else.
        server: Option<String>,
    },
    Login {
        context: String,
        login: Box<Login>,
    },
}

/// What was given, each piece from the first place that gives it.
#[derive(Debug)]
pub(crate) struct Settings {
    server: Option<Given<String>>,
    token: Option<Given<Token>>,
    ca_file: Option<PathBuf>,
    project: Option<Given<String>>,
}

/// The variables that count; an empty one is as good as unset.
pub(crate) const VARIABLES: [&str; 6] = [
    "MUSTER_SERVER",
    "MUSTER_TOKEN",
    "MUSTER_TOKEN_FILE",
    "MUSTER_CA_FILE",
    "MUSTER_PROJECT",
    "MUSTER_CONTEXT",
];

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    pub(crate) fn resolve(flags: &Flags, env: Env<'_>, contexts: &Contexts) -> Result<Self, Failure> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let (name, context) = chosen(flags, &env, contexts)?;
        let of_context = format!("context {name:?}");
        let typed = flags.context.is_some();
        let first = |flag: &Option<String>, option: &str, variable: &str, kept: Option<String>| {
            let given = |value: &String, origin: &str| Given {
                value: value.clone(),
                origin: origin.to_owned(),
            };
            let exported = env(variable).map(|value| given(&value, variable));
            let kept = kept.map(|value| given(&value, &of_context));
            let rest = if typed {
                kept.or(exported)
            } else {
                exported.or(kept)
            };
            flag.as_ref().map(|value| given(value, option)).or(rest)
        };
        let server = first(&flags.server, "--server", "MUSTER_SERVER", context.server.clone());
        let exported = || {
            let text = env("MUSTER_TOKEN").map(|text| Given {
                value: Token::Text(text),
                origin: "MUSTER_TOKEN".to_owned(),
            });
            text.or_else(|| {
                let path = PathBuf::from(env("MUSTER_TOKEN_FILE")?);
                Some(Given {
                    origin: format!("{} (MUSTER_TOKEN_FILE)", path.display()),
                    value: Token::File(path),
                })
            })
        };
        let kept = || {
            let login = context.login.clone().map(|login| Token::Login {
                context: name.clone(),
                login: Box::new(login),
            });
            let secret = || {
                Some(Token::Kept {
                    secret: context.token.clone()?,
                    server: context.server.clone(),
                })
            };
            Some(Given {
                value: login.or_else(secret)?,
                origin: of_context.clone(),
            })
        };
        let (exported_ca, kept_ca) = (env("MUSTER_CA_FILE").map(PathBuf::from), context.ca_file.clone());
        let ca_file = flags.ca_file.clone().or(if typed {
            kept_ca.or(exported_ca)
        } else {
            exported_ca.or(kept_ca)
        });
        Ok(Self {
            token: if typed {
                kept().or_else(exported)
            } else {
                exported().or_else(kept)
            },
            server,
            ca_file,
            project: first(
                &flags.project,
                "--project",
                "MUSTER_PROJECT",
                context.project.clone(),
            ),
        })
    }

    pub(crate) const fn has_server(&self) -> bool {
        self.server.is_some()
    }

    pub(crate) fn server(&self) -> Result<Url, Failure> {
        let Some(Given { value, origin }) = &self.server else {
            return Err(missing("server", "--server URL", "MUSTER_SERVER", "--server URL"));
        };
        parse_server(value).map_err(|why| Failure::Usage(format!("{value:?} from {origin} {why}")))
    }

    pub(crate) fn ca_file(&self) -> Result<&PathBuf, Failure> {
        self.ca_file
            .as_ref()
            .ok_or_else(|| missing("CA file", "--ca-file FILE", "MUSTER_CA_FILE", "--ca-file FILE"))
    }

    pub(crate) fn project(&self) -> Result<ProjectId, Failure> {
        let Some(Given { value, origin }) = &self.project else {
            return Err(missing(
                "project",
                "--project ID",
                "MUSTER_PROJECT",
                "--project ID",
            ));
        };
        value
            .parse()
            .map_err(|_| Failure::Usage(format!("{value:?} from {origin} is not a project's id")))
    }

    /// The login that counts, with the name of its context, where nothing was given before it.
    pub(crate) fn login(&self) -> Option<(&str, &Login)> {
        match &self.token.as_ref()?.value {
            Token::Login { context, login } => Some((context, login)),
            Token::Text(_) | Token::File(_) | Token::Kept { .. } => None,
        }
    }

    fn must_be_for(&self, kept_for: Option<&str>, origin: &str) -> Result<(), Failure> {
        let Some(kept_for) = kept_for else {
            return Ok(());
        };
        if goes_to(kept_for, &self.server()?) {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "the token of {origin} is for {}, and goes nowhere else; choose another context, or give a token",
            text::line(kept_for)
        )))
    }

    pub(crate) fn token(&self) -> Result<Secret, Failure> {
        let Some(Given { value, origin }) = &self.token else {
            return Err(Failure::Usage(
                "no token is given: set MUSTER_TOKEN_FILE or MUSTER_TOKEN, or keep one with\n  \
                 muster context set NAME --token-file FILE\nor, where control has an issuer, sign in with\n  \
                 muster login"
                    .to_owned(),
            ));
        };
        match value {
            Token::Text(text) => Secret::parse(text, origin),
            Token::File(path) => Secret::of_file(path, origin),
            Token::Kept { secret, server } => {
                self.must_be_for(server.as_deref(), origin)?;
                Secret::parse(secret.expose(), origin)
            }
            Token::Login { login, .. } => Ok(login.access_token.clone()),
        }
    }
}

/// A token that was kept for one control is not shown to another.
fn goes_to(kept_for: &str, asked: &Url) -> bool {
    parse_server(kept_for).is_ok_and(|kept_for| kept_for.origin() == asked.origin())
}

fn chosen(
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
    contexts: &Contexts,
) -> Result<(String, Context), Failure> {
    let name = flags
        .context
        .clone()
        .or_else(|| env("MUSTER_CONTEXT"))
        .or_else(|| contexts.current.clone());
    match name {
        Some(name) => contexts.named(&name).cloned().map(|context| (name, context)),
        None => Ok((String::new(), Context::default())),
    }
}

fn missing(what: &str, flag: &str, variable: &str, of_context: &str) -> Failure {
    Failure::Usage(format!(
        "no {what} is given: use {flag}, set {variable}, or keep it with\n  muster context set NAME {of_context}"
    ))
}

/// Control speaks TLS; plain HTTP never leaves this machine.
pub(crate) fn parse_server(raw: &str) -> Result<Url, String> {
    let url = Url::parse(raw).map_err(|err| format!("is not a URL: {err}"))?;
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        "http" => return Err("is plain HTTP to another machine; use https".to_owned()),
        other => return Err(format!("begins with {other}; use https")),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("holds a user name or a password; tokens are given apart".to_owned());
    }
    if url.host_str().is_none_or(str::is_empty) || url.query().is_some() || url.fragment().is_some() {
        return Err("is not scheme, host and port".to_owned());
    }
    Ok(url)
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
