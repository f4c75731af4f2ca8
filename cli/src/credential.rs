//! What a request to control carries: a token as it was given, or that of a login, which is renewed before it ends.
//!
//! Issuers take a refresh token once. One process at a time renews a login, under the lock of the context file; whoever
//! waited for it finds the new token there. It is written before it is used.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_shared::time::Timestamp;
use reqwest::header::HeaderValue;

use crate::{
    contexts_file::{self, Contexts, Login, Secret},
    failure::Failure,
    issuer::Issuer,
    settings::Settings,
    text,
};

/// A token that ends so soon might not survive its request.
const RENEW_BEFORE: Duration = Duration::from_secs(30);

pub(crate) enum Credential {
    Nobody,
    Token(HeaderValue),
    Login(Box<SignedIn>),
}

pub(crate) struct SignedIn {
    context: String,
    path: PathBuf,
    login: Mutex<Login>,
}

impl Credential {
    pub(crate) fn of(settings: &Settings) -> Result<Self, Failure> {
        match settings.login() {
            Some((context, login)) if login.server != contexts_file::server_name(&settings.server()?) => {
                Err(Failure::NotSignedIn(format!(
                    "the login of context {context:?} is for {}, and goes nowhere else; choose another context, or give a token",
                    text::line(&login.server)
                )))
            }
            Some((context, login)) => Ok(Self::Login(Box::new(SignedIn {
                context: context.to_owned(),
                path: contexts_file::path()?,
                login: Mutex::new(login.clone()),
            }))),
            None => Self::token(&settings.token()?),
        }
    }

    pub(crate) fn token(token: &Secret) -> Result<Self, Failure> {
        bearer(token).map(Self::Token)
    }

    pub(crate) const fn is_login(&self) -> bool {
        matches!(self, Self::Login(_))
    }

    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, Failure> {
        match self {
            Self::Nobody => Ok(None),
            Self::Token(value) => Ok(Some(value.clone())),
            Self::Login(login) => bearer(&login.current().await?.access_token).map(Some),
        }
    }
}

fn bearer(token: &Secret) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
        .map_err(|_| Failure::Usage("the token has a character that no header can carry".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn is_due(login: &Login, now: Timestamp) -> bool {
    login.expires_at.is_some_and(|at| at <= now.plus(RENEW_BEFORE))
}

fn is_over(login: &Login, now: Timestamp) -> bool {
    login.expires_at.is_some_and(|at| at <= now)
}

impl SignedIn {
    fn ended(&self) -> Failure {
        Failure::NotSignedIn(format!(
            "the login of context {name:?} has ended; sign in again:\n  muster login --context {name}",
            name = self.context
        ))
    }

    async fn current(&self) -> Result<Login, Failure> {
        let held = self.login.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !is_due(&held, Timestamp::now()) {
            return Ok(held);
        }
        let current = self.renewed().await?;
        self.login
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&current);
        Ok(current)
    }

    async fn renewed(&self) -> Result<Login, Failure> {
        let _lock = Contexts::lock(&self.path).await?;
        let mut contexts = Contexts::load(&self.path)?;
        let context = contexts.contexts.get_mut(&self.context);
        let kept = context.and_then(|context| context.login.as_mut());
        let kept = kept.ok_or_else(|| self.ended())?;
        // The context may have been given to another control meanwhile.
        if kept.server != self.login.lock().unwrap_or_else(PoisonError::into_inner).server {
            return Err(self.ended());
        }
        let now = Timestamp::now();
        if !is_due(kept, now) {
            return Ok(kept.clone());
        }
        let Some(token) = &kept.refresh_token else {
            return if is_over(kept, now) {
                Err(self.ended())
            } else {
                Ok(kept.clone())
            };
        };
        let asked = match Issuer::discover(&kept.issuer, kept.ca_file.as_deref()).await {
            Ok(issuer) => issuer.refresh(kept, token).await,
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(Some(tokens)) => kept.take(tokens, Timestamp::now()),
            Ok(None) => return Err(self.ended()),
            // What is good for a moment more is used for that moment.
            Err(failure) if failure.is_passing() && !is_over(kept, now) => return Ok(kept.clone()),
            Err(failure) => return Err(failure),
        }
        let renewed = kept.clone();
        contexts.save(&self.path)?;
        Ok(renewed)
    }
}
