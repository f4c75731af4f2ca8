//! Which files of the directory beside a configuration file count, and in which order. Both programs go by it; they look into
//! the directory themselves.

use std::path::PathBuf;

/// More are somebody else's directory.
pub const DROP_INS_MAX: usize = 128;

/// A directory that cannot be one of drop-ins.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has {0} files *.toml; the limit is {DROP_INS_MAX}")]
pub struct TooManyDropIns(pub usize);

/// The files `*.toml` among all that a directory has, in the order of their names. Hidden ones are those of an editor at work.
pub fn drop_ins(mut listing: Vec<PathBuf>) -> Result<Vec<PathBuf>, TooManyDropIns> {
    listing.retain(|path| {
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        !hidden && path.extension().is_some_and(|extension| extension == "toml")
    });
    if listing.len() > DROP_INS_MAX {
        return Err(TooManyDropIns(listing.len()));
    }
    listing.sort();
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names
            .iter()
            .map(|name| PathBuf::from(format!("/etc/muster/agent.d/{name}")))
            .collect()
    }

    #[test]
    fn what_an_editor_or_a_package_manager_leaves_does_not_count() {
        let left = [
            "b.toml",
            ".b.toml.swp",
            ".#a.toml",
            "a.toml",
            "a.toml~",
            "a.toml.dpkg-new",
            "readme",
        ];
        assert_eq!(drop_ins(paths(&left)), Ok(paths(&["a.toml", "b.toml"])));
    }

    #[test]
    fn one_more_than_the_limit_is_refused() {
        let named = |count| {
            (0..count)
                .map(|n| PathBuf::from(format!("{n:03}.toml")))
                .collect::<Vec<_>>()
        };
        assert_eq!(drop_ins(named(DROP_INS_MAX)), Ok(named(DROP_INS_MAX)));
        assert_eq!(
            drop_ins(named(DROP_INS_MAX + 1)),
            Err(TooManyDropIns(DROP_INS_MAX + 1))
        );
    }
}
