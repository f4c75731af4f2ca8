//! What a command works with: the screen, the settings, and control when it is needed.

use std::path::PathBuf;

use muster_shared::ids::ProjectId;

use crate::{
    client::Client,
    contexts_file::{self, Contexts},
    failure::Failure,
    render::Screen,
    settings::{Flags, Settings},
};

pub(crate) struct Session {
    pub(crate) screen: Screen,
    pub(crate) flags: Flags,
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
        Settings::resolve(&self.flags, &|name| std::env::var(name).ok(), &contexts)
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
