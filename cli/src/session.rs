//! What a command works with: the screen, the settings, and control when it is needed.

use std::{
    env::{self, VarError},
    path::PathBuf,
};

use muster_shared::ids::ProjectId;

use crate::{
    client::Client,
    contexts_file::{self, Contexts},
    failure::Failure,
    render::Screen,
    settings::{Flags, Settings, VARIABLES},
};

pub(crate) struct Session {
    pub(crate) screen: Screen,
    pub(crate) flags: Flags,
}

/// The variables as they are. One that is no text is not taken for unset: another control would be asked.
pub(crate) fn exported() -> Result<impl Fn(&str) -> Option<String>, Failure> {
    for name in VARIABLES {
        if let Err(VarError::NotUnicode(_)) = env::var(name) {
            return Err(Failure::Usage(format!("{name} is not UTF-8")));
        }
    }
    Ok(|name: &str| env::var(name).ok())
}

impl Session {
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        let contexts = match self.contexts_path() {
            Ok(path) => {
                let contexts = Contexts::load(&path)?;
                if contexts_file::is_exposed(&path) {
                    let path = path.display();
                    self.screen
                        .say(&format!("muster: {path} can be read by others: chmod 600 {path}"));
                }
                contexts
            }
            // Without a home there are no contexts; flags and the environment may well be enough.
            Err(_) => Contexts::default(),
        };
        Settings::resolve(&self.flags, &exported()?, &contexts)
    }

    pub(crate) fn contexts_path(&self) -> Result<PathBuf, Failure> {
        contexts_file::path()
    }

    /// Control and the project in it, as nearly every command needs them.
    pub(crate) fn control(&self) -> Result<(Client, ProjectId), Failure> {
        let settings = self.settings()?;
        let client = Client::new(&settings, true)?;
        Ok((client, settings.project()?))
    }
}
