//! Which start of the daemon this is.
//!
//! Every start is an instance with an id of its own, which control is told with each request, together with those before
//! it: so a restart is known from a copy of the state directory that runs somewhere else at the same time. The id is on
//! disk before control hears of it, because the next start has to name it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use muster_shared::wire::{INSTANCE_HEADER, INSTANCES_BEFORE_HEADER, INSTANCES_NAMED_MAX};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

use crate::{chance, durable, exit::Exit};

/// `instances.json`: those before, the oldest first, and this one at the end.
#[derive(Default, Serialize, Deserialize)]
struct InstancesFile {
    instances: Vec<Uuid>,
    /// What control said when it found that this state directory is a copy.
    #[serde(default)]
    copy: Option<String>,
}

/// This start, as control is told of it.
#[derive(Clone)]
pub(crate) struct Instance {
    id: Uuid,
    after: String,
    refused: Arc<watch::Sender<Option<String>>>,
}

fn path_in(state_dir: &Path) -> PathBuf {
    state_dir.join("instances.json")
}

fn read(path: &Path) -> Result<InstancesFile, Exit> {
    match fs::read(path) {
        Ok(raw) => serde_json::from_slice(&raw)
            .map_err(|err| Exit::Failure(format!("{} is damaged: {err}", path.display()))),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(InstancesFile::default()),
        Err(err) => Err(Exit::Failure(format!("{} cannot be read: {err}", path.display()))),
    }
}

fn write(path: &Path, file: &InstancesFile) -> io::Result<()> {
    durable::write(path, &serde_json::to_vec(file)?)
}

/// The list with one more at its end. What is too much goes from the middle: the first is the one that control knew
/// longest ago, and the last ones are those that it may know.
fn with_one_more(mut instances: Vec<Uuid>, id: Uuid) -> Vec<Uuid> {
    if instances.len() > INSTANCES_NAMED_MAX {
        let surplus = instances.len() - INSTANCES_NAMED_MAX;
        instances.drain(1..=surplus);
    }
    instances.push(id);
    instances
}

/// What control said when it refused this state directory as a copy.
pub(crate) fn refusal(state_dir: &Path) -> Option<String> {
    read(&path_in(state_dir)).ok()?.copy
}

impl Instance {
    /// Begins one. Refuses where control has found a copy before.
    pub(crate) fn begin(state_dir: &Path) -> Result<Self, Exit> {
        let path = path_in(state_dir);
        let file = read(&path)?;
        if let Some(why) = file.copy {
            return Err(Exit::Enrolment(format!(
                "this state directory was refused as a copy: {why}"
            )));
        }
        let failed = |err: io::Error| Exit::Failure(format!("{} cannot be written: {err}", path.display()));
        let id = chance::uuid().map_err(failed)?;
        let instances = with_one_more(file.instances, id);
        let named = &instances[..instances.len() - 1];
        let after: Vec<_> = named.iter().map(Uuid::to_string).collect();
        let file = InstancesFile {
            instances: instances.clone(),
            copy: None,
        };
        // A disk that is full must not keep the node from being helped.
        if let Err(err) = write(&path, &file) {
            log::error!(error:% = err; "The start could not be noted in {}", path.display());
            return Self::unnoted(file.instances).ok_or_else(|| failed(err));
        }
        Ok(Self {
            id,
            after: after.join(","),
            refused: Arc::default(),
        })
    }

    /// Goes on as the start before, as which control knows the node.
    fn unnoted(mut instances: Vec<Uuid>) -> Option<Self> {
        instances.pop();
        let id = instances.pop()?;
        let after: Vec<_> = instances.iter().map(Uuid::to_string).collect();
        Some(Self {
            id,
            after: after.join(","),
            refused: Arc::default(),
        })
    }

    /// What every request of the node carries.
    pub(crate) fn headers(&self) -> HeaderMap {
        let text = |text: &str| HeaderValue::from_str(text).ok();
        let named = [
            (INSTANCE_HEADER, text(&self.id.to_string())),
            (INSTANCES_BEFORE_HEADER, text(&self.after)),
        ];
        named
            .into_iter()
            .filter_map(|(name, value)| Some((HeaderName::from_static(name), value?)))
            .collect()
    }

    /// Control has found that this is a copy.
    pub(crate) fn refuse(&self, why: &str) {
        self.refused.send_replace(Some(why.to_owned()));
    }

    /// Waits for that, and keeps it: the next start does not try again.
    pub(crate) async fn refused(&self, state_dir: &Path) -> Exit {
        let mut refused = self.refused.subscribe();
        // It cannot fail: the sender is here.
        let why = refused.wait_for(Option::is_some).await;
        let why = why.ok().and_then(|why| why.clone()).unwrap_or_default();
        let path = path_in(state_dir);
        let kept = read(&path).map(|file| {
            let copy = Some(why.clone());
            write(&path, &InstancesFile { copy, ..file })
        });
        if !matches!(kept, Ok(Ok(()))) {
            log::error!(
                "That control refused this state directory could not be noted in {}",
                path.display()
            );
        }
        Exit::Enrolment(format!("this state directory was refused as a copy: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_names_those_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = Instance::begin(dir.path()).unwrap();
        let second = Instance::begin(dir.path()).unwrap();
        let third = Instance::begin(dir.path()).unwrap();
        assert_eq!(first.after, "");
        assert_eq!(second.after, first.id.to_string());
        assert_eq!(third.after, format!("{},{}", first.id, second.id));
    }

    #[test]
    fn the_names_are_bounded_and_the_last_ones_are_kept() {
        let id = |n: usize| Uuid::from_u128(n as u128);
        let many = (0..100).fold(Vec::new(), |list, n| with_one_more(list, id(n)));
        assert_eq!(many.len(), INSTANCES_NAMED_MAX + 1);
        assert_eq!((many[0], many[INSTANCES_NAMED_MAX]), (id(0), id(99)));
        assert_eq!(many[INSTANCES_NAMED_MAX - 1], id(98));
    }

    #[tokio::test]
    async fn a_copy_does_not_begin_again() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance::begin(dir.path()).unwrap();
        instance.refuse("it is a copy");
        assert!(matches!(instance.refused(dir.path()).await, Exit::Enrolment(_)));
        let again = Instance::begin(dir.path()).err().unwrap().to_string();
        assert!(again.contains("it is a copy"), "{again}");
    }
}
