//! `[control]` of `agent.toml`: how this node reaches control, and the stores that control names.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{
    Reach,
    proxy::{Proxies, Said},
};
use crate::identity::Secret;

/// As written; every field may be left out.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawControl {
    proxy: Option<String>,
    proxy_credentials_file: Option<PathBuf>,
    no_proxy: Option<Vec<String>>,
    proxy_loopback: Option<bool>,
    extra_ca_file: Option<PathBuf>,
}

/// An address may hold a password.
impl std::fmt::Debug for RawControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RawControl")
    }
}

impl RawControl {
    /// What a later file says wins.
    pub(crate) fn then(self, later: Self) -> Self {
        Self {
            proxy: later.proxy.or(self.proxy),
            proxy_credentials_file: later.proxy_credentials_file.or(self.proxy_credentials_file),
            no_proxy: later.no_proxy.or(self.no_proxy),
            proxy_loopback: later.proxy_loopback.or(self.proxy_loopback),
            extra_ca_file: later.extra_ca_file.or(self.extra_ca_file),
        }
    }

    /// The reason of a refusal begins with the name of the key or the variable.
    pub(crate) fn check(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Reach, String> {
        let credentials = match &self.proxy_credentials_file {
            Some(path) => Some(secret(path).map_err(|why| unusable("proxy_credentials_file", path, &why))?),
            None => None,
        };
        let extra_ca = match &self.extra_ca_file {
            Some(path) => {
                let unusable = |why: String| unusable("extra_ca_file", path, &why);
                let pem = fs::read(path).map_err(|err| unusable(err.to_string()))?;
                super::roots(&[&pem]).map_err(unusable)?;
                pem
            }
            None => Vec::new(),
        };
        let said = Said {
            proxy: self.proxy.clone(),
            credentials,
            no_proxy: self.no_proxy.clone(),
            loopback: self.proxy_loopback.unwrap_or_default(),
        };
        Ok(Reach::new(Proxies::decide(said, variable)?, extra_ca))
    }
}

fn unusable(key: &str, path: &Path, why: &str) -> String {
    format!("{key} {} cannot be used: {why}", path.display())
}

/// One that everybody may read is none.
fn secret(path: &Path) -> Result<Secret, String> {
    let read = || -> io::Result<(u32, String)> {
        let mode = fs::metadata(path)?.permissions().mode();
        Ok((mode, fs::read_to_string(path)?))
    };
    let (mode, text) = read().map_err(|err| err.to_string())?;
    if mode & 0o007 != 0 {
        return Err("everybody may read it; its mode should be 0600".to_owned());
    }
    Ok(Secret::new(text.trim_end_matches(['\r', '\n']).to_owned()))
}
