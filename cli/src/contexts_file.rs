//! `config.toml`: the contexts that a person keeps. It holds tokens, so only its owner may read it.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use muster_shared::{access::AudienceParameter, time::Timestamp};
use serde::{Deserialize, Serialize};

use crate::{failure::Failure, issuer::Tokens};

/// No token is longer, with its line break.
const TOKEN_BYTES_MAX: u64 = 16 * 1024;

/// A credential that no message shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn of_file(path: &Path, origin: &str) -> Result<Self, Failure> {
        let file = fs::File::open(path)
            .map_err(|err| Failure::Usage(format!("reading the token from {origin}: {err}")))?;
        Self::read(file, origin)
    }

    /// Reads a file or standard input that holds nothing else.
    pub(crate) fn read(source: impl io::Read, origin: &str) -> Result<Self, Failure> {
        let mut text = String::new();
        source
            .take(TOKEN_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|err| Failure::Usage(format!("reading the token from {origin}: {err}")))?;
        Self::parse(&text, origin)
    }

    /// Takes what a file or a variable held, without the line break that editors leave.
    pub(crate) fn parse(raw: &str, origin: &str) -> Result<Self, Failure> {
        let token = raw.trim();
        if token.is_empty() {
            return Err(Failure::Usage(format!("the token from {origin} is empty")));
        }
        if !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Failure::Usage(format!(
                "the token from {origin} has a character that no token has; is it the right file?"
            )));
        }
        Ok(Self(token.to_owned()))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// A control as a login and its context name it.
pub(crate) fn server_name(server: &reqwest::Url) -> String {
    server.as_str().trim_end_matches('/').to_owned()
}

/// A person's sign-in at an issuer, and what renewing it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The control that it was made for, and to which alone it is sent.
    pub(crate) server: String,
    pub(crate) issuer: String,
    pub(crate) client_id: String,
    pub(crate) audience: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) audience_parameter: Option<AudienceParameter>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) access_token: Secret,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh_token: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<Timestamp>,
}

impl Login {
    /// Takes new tokens. An issuer that sends no new refresh token lets the old one count on.
    pub(crate) fn take(&mut self, tokens: Tokens, now: Timestamp) {
        self.expires_at = tokens.expire_at(now);
        self.access_token = tokens.access_token;
        if tokens.refresh_token.is_some() {
            self.refresh_token = tokens.refresh_token;
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<String>,
    /// Instead of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) login: Option<Login>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

impl Contexts {
    pub(crate) fn named(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<_> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() {
                "there is none yet".into()
            } else {
                known.join(", ")
            };
            Failure::Usage(format!("no context is named {name:?} (known: {known})"))
        })
    }

    /// Keeps every other process from changing the file until the lock is dropped.
    pub(crate) async fn lock(path: &Path) -> Result<fs::File, Failure> {
        let lock = path.with_extension("lock");
        let doing = Failure::local(format!("locking {}", lock.display()));
        let locked = tokio::task::spawn_blocking(move || {
            if let Some(dir) = lock.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            let mut options = fs::OpenOptions::new();
            let file = options
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&lock)?;
            file.lock()?;
            Ok(file)
        });
        locked.await.map_err(io::Error::other).flatten().map_err(doing)
    }

    /// A file that is not there holds no contexts.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(err) => return Err(Failure::local(format!("reading {}", path.display()))(err)),
        };
        toml::from_str(&text).map_err(|err| {
            // The error's own display would quote the line, and the line may hold a token.
            let at = err.span().map_or(0, |span| {
                text[..span.start.min(text.len())].matches('\n').count() + 1
            });
            Failure::Usage(format!("{}, line {at}: {}", path.display(), err.message()))
        })
    }

    /// Replaces the file in one step, so that a crash leaves the old one or the new one.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self)
            .map_err(|err| Failure::Usage(format!("the contexts cannot be written: {err}")))?;
        write_private(path, text.as_bytes()).map_err(Failure::local(format!("writing {}", path.display())))
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path
        .parent()
        .ok_or_else(|| io::Error::other("it has no directory"))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let fresh = path.with_extension(format!("toml.{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// Where the file is.
pub(crate) fn path() -> Result<PathBuf, Failure> {
    let set = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    set("XDG_CONFIG_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".config")))
        .map(|config| config.join("muster/config.toml"))
        .ok_or_else(|| Failure::Usage("neither XDG_CONFIG_HOME nor HOME says where contexts are".to_owned()))
}

/// Whether others than its owner may read the file.
pub(crate) fn is_exposed(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("muster-cli-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_is_saved_is_private_and_loads_again() {
        let dir = scratch("contexts");
        let path = dir.join("deep/config.toml");
        let mut contexts = Contexts {
            current: Some("prod".into()),
            ..Contexts::default()
        };
        let prod = Context {
            server: Some("https://control:8443".into()),
            token: Some(Secret::parse("op_abc\n", "a test").unwrap()),
            ..Context::default()
        };
        contexts.contexts.insert("prod".into(), prod);
        contexts.save(&path).unwrap();
        contexts.save(&path).unwrap();
        assert!(!is_exposed(&path));
        assert_eq!(Contexts::load(&path).unwrap(), contexts);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn no_file_is_no_contexts_and_a_broken_one_names_its_line_not_its_content() {
        let path = scratch("broken.toml");
        assert_eq!(Contexts::load(&path).unwrap(), Contexts::default());
        fs::write(&path, "[contexts.a]\ntokn = \"hush\"\n").unwrap();
        let words = Contexts::load(&path).unwrap_err().words();
        fs::remove_file(&path).unwrap();
        assert!(words.contains("line 2") && !words.contains("hush"), "{words}");
    }

    #[test]
    fn a_token_is_never_shown() {
        assert_eq!(
            format!("{:?}", Secret::parse("op_abc", "a test").unwrap()),
            "<secret>"
        );
        assert!(Secret::parse(" \n", "a test").is_err());
        assert!(Secret::parse("two words", "a test").is_err());
    }
}
