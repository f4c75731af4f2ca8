//! `muster login`, `logout` and `whoami`: signing in at the issuer that control trusts, and out again.

use std::path::PathBuf;

use clap::Args;
use muster_shared::{
    access::{AuthConfig, OidcConfig, WhoAmI},
    time::Timestamp,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    client::{Client, Route},
    contexts_file::{Context, Contexts, Login, server_name},
    exit::Exit,
    failure::Failure,
    issuer::{Device, Issuer, Tokens},
    session::{Session, exported},
    settings::Settings,
    table::Table,
    text,
};

/// The context that a first login makes when it is not told a name.
const CONTEXT_DEFAULT: &str = "default";

#[derive(Args, Debug)]
pub(crate) struct LoginArgs {
    /// The CA that the issuer's certificate must chain to, in PEM; the system's own CAs when left out
    #[arg(long, value_name = "FILE")]
    issuer_ca_file: Option<PathBuf>,
}

fn whoami_route() -> Route {
    Route::new(["v1", "auth", "whoami"])
}

pub(crate) async fn login(session: &Session, args: LoginArgs) -> Result<Exit, Failure> {
    let path = session.contexts_path()?;
    let mut contexts = Contexts::load(&path)?;
    let name = chosen(session, &contexts).unwrap_or_else(|| CONTEXT_DEFAULT.to_owned());
    contexts.contexts.entry(name.clone()).or_default();
    contexts.current.get_or_insert_with(|| name.clone());
    let settings = Settings::resolve(&session.flags, &exported()?, &contexts)?;
    if session.flags.context.is_none() {
        refuse_to_replace(&name, &settings, contexts.contexts.get(&name))?;
    }
    let anybody = Client::new(&settings, false)?;
    let config: AuthConfig = anybody.get(&Route::new(["v1", "auth", "config"])).await?;
    let Some(OidcConfig {
        client_id: Some(client_id),
        ..
    }) = &config.oidc
    else {
        return Err(Failure::NotSignedIn(
            "control has no issuer to sign in at; ask its operator for a token and keep it with\n  \
             muster context set NAME --token-file FILE"
                .to_owned(),
        ));
    };
    let Some(oidc) = &config.oidc else {
        return Err(Failure::Unexpected("control names no issuer".to_owned()));
    };
    let ca_file = match args.issuer_ca_file {
        Some(file) => Some(
            std::path::absolute(&file).map_err(Failure::local(format!("the path of {}", file.display())))?,
        ),
        None => contexts
            .contexts
            .get(&name)
            .and_then(|context| context.login.as_ref()?.ca_file.clone()),
    };
    let issuer = Issuer::discover(&oidc.issuer, ca_file.as_deref()).await?;
    let device = issuer.device(oidc, client_id).await?;
    // Before anybody is told that they may interrupt.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::local("listening for Ctrl-C"))?;
    session.screen.say(&invitation(&device));
    let tokens = tokio::select! {
        tokens = issuer.wait_for(&device, oidc, client_id) => tokens?,
        _ = interrupt.recv() => {
            session.screen.say("muster: not signed in: interrupted");
            return Ok(Exit::Interrupted);
        }
    };
    let me: WhoAmI = Client::with_token(&settings, &tokens.access_token)?
        .get(&whoami_route())
        .await?;
    let login = new_login(
        server_name(&settings.server()?),
        (oidc, client_id),
        ca_file,
        tokens,
    );
    keep(session, &name, &settings, login).await?;
    for variable in ["MUSTER_TOKEN", "MUSTER_TOKEN_FILE"] {
        if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
            session
                .screen
                .say(&format!("muster: {variable} is set, and wins over this login"));
        }
    }
    session
        .screen
        .say(&format!("signed in; the login is kept in context {name:?}"));
    show(session, &me)
}

fn chosen(session: &Session, contexts: &Contexts) -> Option<String> {
    let set = std::env::var("MUSTER_CONTEXT")
        .ok()
        .filter(|name| !name.is_empty());
    let flag = session.flags.context.clone();
    flag.or(set).or_else(|| contexts.current.clone())
}

/// A context that nobody named keeps its control and its token: that token was shown once, and never again.
fn refuse_to_replace(name: &str, settings: &Settings, kept: Option<&Context>) -> Result<(), Failure> {
    let Some(kept) = kept else { return Ok(()) };
    let server = server_name(&settings.server()?);
    let other = kept.server.as_deref().map(|kept| kept.trim_end_matches('/'));
    let why = if other.is_some_and(|other| other != server) {
        format!("is for {}", text::line(other.unwrap_or_default()))
    } else if kept.token.is_some() {
        "keeps a token, which a login would replace".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::Usage(format!(
        "context {name:?} {why}; name the context in which the login is to be kept:\n  muster login --context NAME"
    )))
}

fn invitation(device: &Device) -> String {
    let mut words = format!(
        "To sign in, open\n  {}\nand enter the code\n  {}",
        text::line(&device.verification_uri),
        text::line(&device.user_code)
    );
    if let Some(uri) = &device.verification_uri_complete {
        words.push_str(&format!("\nor open\n  {}", text::line(uri)));
    }
    words
}

fn new_login(
    server: String,
    (oidc, client_id): (&OidcConfig, &str),
    ca_file: Option<PathBuf>,
    tokens: Tokens,
) -> Login {
    let expires_at = tokens.expire_at(Timestamp::now());
    Login {
        server,
        issuer: oidc.issuer.clone(),
        client_id: client_id.to_owned(),
        audience: oidc.audience.clone(),
        audience_parameter: oidc.audience_parameter,
        ca_file,
        access_token: tokens.access_token,
        refresh_token: tokens.refresh_token,
        expires_at,
    }
}

/// A login is for the control that it was made for, so that both are kept together.
async fn keep(session: &Session, name: &str, settings: &Settings, login: Login) -> Result<(), Failure> {
    let path = session.contexts_path()?;
    let _lock = Contexts::lock(&path).await?;
    let mut contexts = Contexts::load(&path)?;
    let context = contexts.contexts.entry(name.to_owned()).or_default();
    context.server = Some(server_name(&settings.server()?));
    if let Ok(file) = settings.ca_file() {
        let file = std::path::absolute(file).map_err(Failure::local("the path of the CA file"))?;
        context.ca_file = Some(file);
    }
    if let Some(project) = &session.flags.project {
        context.project = Some(project.clone());
    }
    context.token = None;
    context.login = Some(login);
    contexts.current.get_or_insert_with(|| name.to_owned());
    contexts.save(&path)
}

/// Forgets the login. One that the issuer does not take back ends by itself.
pub(crate) async fn logout(session: &Session) -> Result<Exit, Failure> {
    let path = session.contexts_path()?;
    let _lock = Contexts::lock(&path).await?;
    let mut contexts = Contexts::load(&path)?;
    let name = chosen(session, &contexts).ok_or_else(|| Failure::Usage("there is no context".to_owned()))?;
    contexts.named(&name)?;
    let context: Option<&mut Context> = contexts.contexts.get_mut(&name);
    let Some(login) = context.and_then(|context| context.login.take()) else {
        session
            .screen
            .say(&format!("context {name:?} has no login; nothing to do"));
        return Ok(Exit::Success);
    };
    match revoke(&login).await {
        Ok(true) => session.screen.say("signed out"),
        Ok(false) => session
            .screen
            .say("signed out; the issuer takes no token back, so that it ends by itself"),
        Err(failure) => session.screen.say(&format!(
            "{}\nthe login is forgotten; at the issuer it ends by itself",
            failure.words()
        )),
    }
    contexts.save(&path)?;
    Ok(Exit::Success)
}

async fn revoke(login: &Login) -> Result<bool, Failure> {
    let Some(token) = &login.refresh_token else {
        return Ok(false);
    };
    let issuer = Issuer::discover(&login.issuer, login.ca_file.as_deref()).await?;
    issuer.revoke(login, token).await
}

pub(crate) async fn whoami(session: &Session) -> Result<Exit, Failure> {
    let settings = session.settings()?;
    let me: WhoAmI = Client::new(&settings, true)?.get(&whoami_route()).await?;
    show(session, &me)
}

fn show(session: &Session, me: &WhoAmI) -> Result<Exit, Failure> {
    session
        .screen
        .one(me, |me| me.subject.clone(), |me, _| facts(me))?;
    Ok(Exit::Success)
}

fn facts(me: &WhoAmI) -> Table {
    let mut table = Table::default();
    table.fact("Subject", me.subject.as_str());
    for group in &me.groups {
        table.fact("Group", group.as_str());
    }
    if let Some(at) = me.expires_at {
        table.fact("Expires", at.to_string());
    }
    table
}
