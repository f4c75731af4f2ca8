//! Callers who signed in at an OpenID Connect issuer: their bearer is a JWT, judged by [`jwt`] with the keys that the
//! issuer publishes. An issuer that is away opens nothing and shuts no other door: operator tokens need it not.

mod issuer;
mod jwt;
mod keys;
mod settings;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use muster_shared::{access::OidcConfig, time::Timestamp};

pub(crate) use jwt::{BadToken, Caller, Fault, is_shaped};
pub(crate) use settings::{BadOidc, OidcSettings, RawOidc};

use crate::error_chain;
use issuer::Issuer;
pub(crate) use issuer::IssuerError;
use jwt::Presented;
use keys::{Alg, Cache, Key, Lookup};

#[derive(Debug, thiserror::Error)]
pub(crate) enum OidcError {
    #[error("the token does not count: {0}")]
    Bad(#[from] BadToken),
    #[error("the issuer's keys could not be fetched, so that its tokens cannot be judged now")]
    Unavailable,
}

pub(crate) struct Oidc {
    settings: OidcSettings,
    issuer: Issuer,
    cache: Mutex<Cache>,
    /// Held while the issuer is asked: whoever waits for it finds the answer.
    asking: tokio::sync::Mutex<()>,
}

impl Oidc {
    /// Asks nobody yet: control starts whether or not the issuer is there.
    pub(crate) fn new(settings: OidcSettings) -> Result<Arc<Self>, IssuerError> {
        Ok(Arc::new(Self {
            issuer: Issuer::new(&settings)?,
            settings,
            cache: Mutex::default(),
            asking: tokio::sync::Mutex::new(()),
        }))
    }

    /// Asks the issuer now, whatever is known of it. Answers how many of its keys can sign.
    pub(crate) async fn probe(&self) -> Result<usize, IssuerError> {
        Ok(self.issuer.keys().await?.len())
    }

    /// What a client needs to get a token.
    pub(crate) fn config(&self) -> OidcConfig {
        self.settings.told.clone()
    }

    /// Whose token it is, if it counts now.
    pub(crate) async fn caller(self: &Arc<Self>, bearer: &str, now: Timestamp) -> Result<Caller, OidcError> {
        let presented = Presented::parse(bearer)?;
        let key = self.key(&presented.kid, presented.alg).await?;
        Ok(presented.check(&key, &self.settings.rules, now)?)
    }

    async fn key(self: &Arc<Self>, kid: &str, alg: Alg) -> Result<Key, OidcError> {
        if let Lookup::Ask = self.look(kid, alg) {
            let _asking = self.asking.lock().await;
            // Another one may have asked while this one waited.
            if let Lookup::Ask = self.look(kid, alg) {
                self.ask().await;
            }
        }
        match self.look(kid, alg) {
            Lookup::Use(key) => Ok(key),
            Lookup::UseAndAsk(key) => {
                self.ask_meanwhile();
                Ok(key)
            }
            Lookup::Unknown => Err(BadToken::UnknownKey.into()),
            Lookup::Ask | Lookup::Unavailable => Err(OidcError::Unavailable),
        }
    }

    fn look(&self, kid: &str, alg: Alg) -> Lookup {
        self.cache().look((kid, alg), self.settings.times, Instant::now())
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody who has a good key waits for the issuer.
    fn ask_meanwhile(self: &Arc<Self>) {
        let this = self.clone();
        tokio::spawn(async move {
            if let Ok(_asking) = this.asking.try_lock() {
                this.ask().await;
            }
        });
    }

    async fn ask(&self) {
        let answer = self.issuer.keys().await;
        let now = Instant::now();
        match answer {
            Ok(keys) => {
                log::debug!("The issuer has {} keys that can sign", keys.len());
                self.cache().answered(keys, now);
            }
            Err(err) => {
                let issuer = &self.settings.rules.issuer;
                log::warn!(
                    "The keys of the issuer {issuer} could not be fetched: {}",
                    error_chain(&err)
                );
                self.cache().missed(now);
            }
        }
    }
}
