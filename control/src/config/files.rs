//! The files that a control is configured by, and what several of them come to.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_shared::drop_ins::drop_ins;
use serde::de::DeserializeOwned;

use super::{ConfigError, DATA_DIR_DEFAULT, Raw};
use crate::keys::DataDir;

/// The file of the admin, for a control whose state is where the package keeps it.
const CONFIG_DEFAULT: &str = "/etc/muster/control.toml";

/// Each counts over those before it.
pub(super) struct Files(Vec<File>);

struct File {
    path: PathBuf,
    /// One that was named has to be there; that of `init` and that of the package need not.
    must_be: bool,
}

impl Files {
    /// What `init` wrote; the admin's file that was named, or that of the package; the drop-ins in the directory beside that
    /// which has its name.
    pub(super) fn of(data: &DataDir, named: Option<PathBuf>) -> Result<Self, ConfigError> {
        let mut files = vec![File {
            path: data.config(),
            must_be: false,
        }];
        let must_be = named.is_some();
        let installed =
            || (data.path() == Path::new(DATA_DIR_DEFAULT)).then(|| PathBuf::from(CONFIG_DEFAULT));
        if let Some(path) = named.or_else(installed) {
            let beside = drop_ins_in(&path.with_extension("d"))?;
            files.push(File { path, must_be });
            files.extend(beside.into_iter().map(|path| File { path, must_be: true }));
        }
        Ok(Self(files))
    }

    /// Each single value of a later file wins. Each file is sound by itself, so that an error names it.
    pub(super) fn read(&self) -> Result<Raw, ConfigError> {
        let (mut table, mut raw) = (toml::Table::new(), Raw::default());
        for file in &self.0 {
            let Some(text) = file.text()? else { continue };
            let _: Raw = file.parse(&text)?;
            lay_over(&mut table, file.parse(&text)?);
            raw = table.clone().try_into().map_err(|err| file.malformed(&err))?;
        }
        Ok(raw)
    }

    pub(super) fn paths(self) -> Vec<PathBuf> {
        self.0.into_iter().map(|file| file.path).collect()
    }
}

impl File {
    /// None where it need not be there, and is not.
    fn text(&self) -> Result<Option<String>, ConfigError> {
        match fs::read_to_string(&self.path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound && !self.must_be => Ok(None),
            Err(source) => Err(ConfigError::Unreadable {
                path: self.path.clone(),
                source,
            }),
            Ok(text) => Ok(Some(text)),
        }
    }

    fn parse<T: DeserializeOwned>(&self, text: &str) -> Result<T, ConfigError> {
        toml::from_str(text).map_err(|err| self.malformed(&err))
    }

    fn malformed(&self, err: &toml::de::Error) -> ConfigError {
        ConfigError::Malformed {
            path: self.path.clone(),
            why: err.to_string(),
        }
    }
}

fn drop_ins_in(dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable {
        path: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let listing: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    drop_ins(listing.map_err(unreadable)?).map_err(|source| ConfigError::DropIns {
        path: dir.to_owned(),
        source,
    })
}

fn lay_over(below: &mut toml::Table, above: toml::Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => lay_over(below, above),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::drop_ins::DROP_INS_MAX;

    use super::*;
    use crate::config::{Config, Given, tests::given};

    #[test]
    fn the_admins_file_is_laid_over_what_init_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let (init, admin) = (dir.path().join("control.toml"), dir.path().join("admin.toml"));
        fs::write(
            &init,
            "listen = \"127.0.0.1:1\"\n[limits]\nlive_executions_max = 5\n",
        )
        .unwrap();
        fs::write(&admin, "[limits]\nrequests_burst = 7\n").unwrap();
        let both = || Given {
            config: Some(admin.clone()),
            ..given(dir.path())
        };
        let config = Config::load(both()).unwrap();
        let limits = config.limits;
        assert_eq!(
            (
                config.listen.port(),
                limits.live_executions_max,
                limits.requests_burst.get()
            ),
            (1, 5, 7)
        );
        fs::write(&admin, "listen = \"127.0.0.1:2\"\n").unwrap();
        assert_eq!(Config::load(both()).unwrap().listen.port(), 2);
        for (bad, sound) in [(&init, &admin), (&admin, &init)] {
            fs::write(bad, "listne = 1").unwrap();
            fs::write(sound, "").unwrap();
            let err = Config::load(both()).unwrap_err().to_string();
            assert!(
                err.contains(&bad.display().to_string()) && err.contains("listne"),
                "{err}"
            );
        }
    }

    #[test]
    fn drop_ins_come_over_the_admins_file_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let admin = dir.path().join("admin.toml");
        let beside = dir.path().join("admin.d");
        fs::create_dir(&beside).unwrap();
        fs::write(
            &admin,
            "listen = \"127.0.0.1:1\"\n[limits]\nlive_executions_max = 5\nrequests_burst = 6\n",
        )
        .unwrap();
        fs::write(
            beside.join("20-b.toml"),
            "[limits]\nlive_executions_max = 8\n[retention]\nexecutions = \"7d\"\n",
        )
        .unwrap();
        fs::write(
            beside.join("10-a.toml"),
            "listen = \"127.0.0.1:2\"\n[limits]\nlive_executions_max = 7\n",
        )
        .unwrap();
        fs::write(beside.join(".hidden.toml"), "nonsense").unwrap();
        fs::write(beside.join("readme.txt"), "nonsense").unwrap();
        let load = || {
            Config::load(Given {
                config: Some(admin.clone()),
                ..given(dir.path())
            })
        };
        let config = load().unwrap();
        assert_eq!(
            (
                config.listen.port(),
                config.limits.live_executions_max,
                config.limits.requests_burst.get()
            ),
            (2, 8, 6)
        );
        assert_eq!(
            config.files[1..],
            [admin.clone(), beside.join("10-a.toml"), beside.join("20-b.toml")]
        );
        fs::write(beside.join("30-c.toml"), "listne = 1").unwrap();
        let err = load().unwrap_err().to_string();
        assert!(err.contains("30-c.toml") && err.contains("listne"), "{err}");
        for count in 0..=DROP_INS_MAX {
            fs::write(beside.join(format!("{count}.toml")), "").unwrap();
        }
        let err = load().unwrap_err().to_string();
        assert!(err.contains("admin.d") && err.contains("128"), "{err}");
    }

    #[test]
    fn a_named_file_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Given {
            config: Some(dir.path().join("other.toml")),
            ..given(dir.path())
        };
        assert!(matches!(
            Config::load(missing),
            Err(ConfigError::Unreadable { .. })
        ));
    }
}
