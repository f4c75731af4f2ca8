//! A manifest's text, read so that whatever is wrong with it is told with its line.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use muster_shared::wire::TIMEOUT_SECONDS_MAX;
use toml::Spanned;

/// What is wrong with a manifest, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BadManifest {
    path: PathBuf,
    line: Option<usize>,
    what: String,
}

impl fmt::Display for BadManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.line {
            Some(line) => write!(f, "{path}, line {line}: {}", self.what),
            None => write!(f, "{path}: {}", self.what),
        }
    }
}

/// A manifest's text and where it stands, to say where something is wrong.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn wrong(&self, at: Option<Range<usize>>, what: impl Into<String>) -> BadManifest {
        let before = |at: Range<usize>| self.text.get(..at.start).unwrap_or(self.text);
        BadManifest {
            path: self.path.to_owned(),
            line: at.map(|at| before(at).matches('\n').count() + 1),
            what: what.into(),
        }
    }

    /// The message of the parser names a key only when it is unknown; otherwise the line does.
    pub(super) fn malformed(&self, err: &toml::de::Error) -> BadManifest {
        let line = err.span().and_then(|at| {
            let start = self.text.get(..at.start)?.rfind('\n').map_or(0, |end| end + 1);
            self.text.get(start..)?.lines().next()
        });
        let key = line.and_then(|line| Some(line.split_once('=')?.0.trim()));
        let what = match key {
            Some(key) if !key.is_empty() => format!("{key}: {}", err.message()),
            Some(_) | None => err.message().to_owned(),
        };
        self.wrong(err.span(), what)
    }

    pub(super) fn number(
        &self,
        key: &str,
        value: Option<Spanned<i64>>,
        (min, max): (u64, u64),
    ) -> Result<Option<u64>, BadManifest> {
        let Some(value) = value else { return Ok(None) };
        let found = *value.get_ref();
        match u64::try_from(found) {
            Ok(sound) if (min..=max).contains(&sound) => Ok(Some(sound)),
            Ok(_) | Err(_) => Err(self.wrong(
                Some(value.span()),
                format!("{key} = {found} is out of bounds: {min} to {max}"),
            )),
        }
    }

    pub(super) fn seconds(&self, key: &str, value: Option<Spanned<i64>>) -> Result<Option<u32>, BadManifest> {
        let seconds = self.number(key, value, (1, TIMEOUT_SECONDS_MAX.into()))?;
        Ok(seconds.and_then(|seconds| u32::try_from(seconds).ok()))
    }
}
