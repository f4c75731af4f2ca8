//! The node's key, and its change for another without a gap.
//!
//! The new key is on disk beside the old one before it is used, and takes the place of the old one after control has
//! taken it. Whichever step a power cut comes after, one of the two files holds a key that control knows.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use crate::{
    durable,
    exit::Exit,
    identity::{self, Secret},
};

/// The key in use, shared by everything that speaks to control.
#[derive(Clone)]
pub(crate) struct Nsk(Arc<RwLock<Secret>>);

impl Nsk {
    pub(crate) fn new(secret: Secret) -> Self {
        Self(Arc::new(RwLock::new(secret)))
    }

    pub(crate) fn get(&self) -> Secret {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, secret: Secret) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = secret;
    }
}

/// The files of both keys.
pub(crate) struct KeyFiles {
    current: PathBuf,
    next: PathBuf,
    nsk: Nsk,
    waiting: Option<Secret>,
}

impl KeyFiles {
    /// Takes up a change that was cut off.
    pub(crate) fn open(state_dir: &Path, nsk: Nsk) -> Result<Self, Exit> {
        let next = state_dir.join("nsk.next");
        let waiting = match fs::read_to_string(&next) {
            Ok(text) => Some(Secret::new(text.trim().to_owned())),
            Err(err) if err.kind() == io::ErrorKind::NotFound => None,
            Err(err) => {
                let text = format!("{} cannot be read: {err}", next.display());
                return Err(Exit::Failure(text));
            }
        };
        Ok(Self {
            current: identity::nsk_path(state_dir),
            next,
            nsk,
            waiting,
        })
    }

    /// The key that is to be used next, if there is one.
    pub(crate) fn waiting(&self) -> Option<Secret> {
        self.waiting.clone()
    }

    /// Keeps a key that was fetched. It is durable when this returns.
    pub(crate) fn keep(&mut self, secret: Secret) -> io::Result<()> {
        durable::write(&self.next, secret.expose().as_bytes())?;
        self.waiting = Some(secret);
        Ok(())
    }

    /// Control has taken the key that waited: from now on everything uses it.
    pub(crate) fn adopt(&mut self) -> io::Result<()> {
        let Some(secret) = &self.waiting else {
            return Ok(());
        };
        self.nsk.set(secret.clone());
        if !self.current.exists() {
            log::warn!(
                "The key that systemd hands over was changed: the new one lies in {}, in plain",
                self.current.display()
            );
        }
        fs::rename(&self.next, &self.current)?;
        durable::sync_parent(&self.current)?;
        self.waiting = None;
        Ok(())
    }

    /// Control knows the old key and not the one that waited: it never will.
    pub(crate) fn discard(&mut self) -> io::Result<()> {
        fs::remove_file(&self.next)?;
        durable::sync_parent(&self.next)?;
        self.waiting = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> (KeyFiles, Nsk) {
        let raw = fs::read_to_string(identity::nsk_path(dir)).unwrap();
        let nsk = Nsk::new(Secret::new(raw));
        (KeyFiles::open(dir, nsk.clone()).unwrap(), nsk)
    }

    #[test]
    fn after_each_step_the_files_hold_a_key_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(identity::nsk_path(dir.path()), "old").unwrap();
        let (mut files, nsk) = open(dir.path());
        files.keep(Secret::new("new".to_owned())).unwrap();
        assert_eq!(nsk.get().expose(), "old");

        // Cut off here: the next daemon knows both.
        let (mut files, nsk) = open(dir.path());
        assert_eq!(nsk.get().expose(), "old");
        assert_eq!(files.waiting().unwrap().expose(), "new");
        files.adopt().unwrap();
        assert_eq!(nsk.get().expose(), "new");

        let (files, nsk) = open(dir.path());
        assert_eq!(nsk.get().expose(), "new");
        assert!(files.waiting().is_none());
    }

    #[test]
    fn a_key_that_control_never_took_is_given_up_for_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(identity::nsk_path(dir.path()), "old").unwrap();
        let (mut files, nsk) = open(dir.path());
        files.keep(Secret::new("new".to_owned())).unwrap();
        files.discard().unwrap();
        assert_eq!(nsk.get().expose(), "old");
        assert!(open(dir.path()).0.waiting().is_none());
    }
}
