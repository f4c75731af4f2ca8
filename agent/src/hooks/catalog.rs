//! What the hooks directory holds right now, compared with the baselines of the journal.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use muster_shared::{
    ids::{ActionName, Digest},
    time::Timestamp,
    wire::{
        ActionKind, DeclaredHook, DetectedBy, HOOKS_PER_NODE_MAX, REFUSED_TEXT_BYTES_MAX, RefusedHook,
        Verdict,
    },
};

use super::{Digests, HookDir, SizesMax, affinity::Lane, manifest::Manifest};
use crate::{
    builtins,
    journal::{JournalError, Store},
    outcome::cut,
    policy::Policy,
};

/// One file of the hooks directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) state: State,
}

#[derive(Clone, Debug)]
pub(crate) enum State {
    Hook {
        digests: Digests,
        baseline: Digest,
        manifest: Arc<Manifest>,
    },
    Refused {
        why: String,
    },
}

/// The digests stand for the manifest.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Hook {
                    digests, baseline, ..
                },
                Self::Hook {
                    digests: other_digests,
                    baseline: other_baseline,
                    ..
                },
            ) => digests == other_digests && baseline == other_baseline,
            (Self::Refused { why }, Self::Refused { why: other }) => why == other,
            (Self::Hook { .. }, Self::Refused { .. }) | (Self::Refused { .. }, Self::Hook { .. }) => false,
        }
    }
}

impl Eq for State {}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) seen: Vec<Seen>,
    /// Why the directory itself could not be read.
    pub(crate) problem: Option<String>,
}

impl Catalog {
    pub(crate) const fn unknown(problem: String) -> Self {
        Self {
            seen: Vec::new(),
            problem: Some(problem),
        }
    }

    /// What the node declares to control.
    pub(crate) fn declared(&self, policy: &Policy) -> Vec<DeclaredHook> {
        let hooks = self.seen.iter().filter_map(|seen| match &seen.state {
            State::Hook {
                digests, manifest, ..
            } => Some(DeclaredHook {
                name: seen.name.clone(),
                checksum: digests.whole(),
                file_checksum: digests.manifest.map(|_| digests.file),
                manifest_checksum: digests.manifest,
                manifest: digests.manifest.map(|_| manifest.declared()),
                denied: policy.standing_denial(ActionKind::Hook, &seen.name, Some(digests.whole())),
            }),
            State::Refused { .. } => None,
        });
        hooks.take(HOOKS_PER_NODE_MAX).collect()
    }

    /// What lies in the directory and is no hook. Not every file name is one that control could keep.
    pub(crate) fn refused(&self) -> Vec<RefusedHook> {
        let refused = self.seen.iter().filter_map(|seen| match &seen.state {
            State::Refused { why } => Some(RefusedHook {
                name: cut(&seen.name, FILE_NAME_BYTES_MAX),
                why: cut(why, REFUSED_TEXT_BYTES_MAX),
            }),
            State::Hook { .. } => None,
        });
        refused.take(HOOKS_PER_NODE_MAX).collect()
    }

    /// What each hook may run beside.
    pub(crate) fn lanes(&self) -> BTreeMap<String, Lane> {
        let lanes = self.seen.iter().filter_map(|seen| match &seen.state {
            State::Hook { manifest, .. } => Some((seen.name.clone(), manifest.lane())),
            State::Refused { .. } => None,
        });
        lanes.collect()
    }
}

const FILE_NAME_BYTES_MAX: usize = 255;

/// A hook's name, digests and manifest, or why the file is none.
pub(crate) type Observed = Result<(ActionName, Digests, Arc<Manifest>), String>;

/// What the directory held at one moment, before anything is compared.
pub(crate) struct Listing {
    pub(crate) files: Vec<(String, Observed)>,
    pub(crate) problem: Option<String>,
}

/// Reads and hashes every hook. Slow where hooks are large.
pub(crate) fn look(dir: &Path, max: SizesMax) -> Listing {
    let listed = HookDir::open(dir)
        .map_err(|err| err.to_string())
        .and_then(|hooks| {
            let names = hooks
                .names()
                .map_err(|err| format!("{} cannot be listed: {err}", dir.display()))?;
            Ok((hooks, names))
        });
    match listed {
        Ok((hooks, names)) => {
            let problem = (names.len() > HOOKS_PER_NODE_MAX)
                .then(|| format!("only the first {HOOKS_PER_NODE_MAX} hooks are declared to control"));
            let observed = |name: String| {
                let file = observe(&hooks, &name, max);
                (name, file)
            };
            Listing {
                files: names.into_iter().map(observed).collect(),
                problem,
            }
        }
        Err(problem) => Listing {
            files: Vec::new(),
            problem: Some(problem),
        },
    }
}

/// Compares each hook with its baseline: pins those never seen before, records a violation for those that changed.
pub(crate) fn judge_all(
    listing: Listing,
    store: &mut Store,
    now: Timestamp,
    detected_by: DetectedBy,
) -> Result<Catalog, JournalError> {
    let mut seen = Vec::new();
    for (name, file) in listing.files {
        let state = match file {
            Ok((name, digests, manifest)) => State::Hook {
                digests,
                baseline: judge(store, &name, digests.whole(), now, detected_by)?,
                manifest,
            },
            Err(why) => State::Refused { why },
        };
        seen.push(Seen { name, state });
    }
    Ok(Catalog {
        seen,
        problem: listing.problem,
    })
}

/// One file, as a hook of that name.
pub(crate) fn observe(hooks: &HookDir, name: &str, max: SizesMax) -> Observed {
    let name: ActionName = name
        .parse()
        .map_err(|err: muster_shared::ids::BadActionName| err.to_string())?;
    if builtins::is_builtin(name.as_str()) {
        return Err(format!(
            "{name} is the name of a builtin: give the file another name"
        ));
    }
    let (digests, manifest) = hooks.look(&name, max).map_err(|err| err.to_string())?;
    Ok((name, digests, manifest))
}

/// The one comparison of a hook with its baseline: pins on first sight, records a violation on drift.
pub(crate) fn judge(
    store: &mut Store,
    name: &ActionName,
    observed: Digest,
    now: Timestamp,
    detected_by: DetectedBy,
) -> Result<Digest, JournalError> {
    let baseline = store.pin_baseline(name, observed, now)?;
    match Verdict::of(Some(baseline), observed) {
        Verdict::Drift => store.record_violation(name, observed, baseline, detected_by, now)?,
        Verdict::Verified | Verdict::Uncatalogued => store.clear_violations(name)?,
    }
    Ok(baseline)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use muster_shared::ids::NodeId;

    use super::*;
    use crate::journal;

    struct Place {
        dir: tempfile::TempDir,
        store: Store,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("hooks.d")).unwrap();
            let node = NodeId::mint(Timestamp::from_millis(0), [1; 10]);
            let store =
                journal::open_store(&dir.path().join("journal.db"), node, journal::Bounds::WIDE).unwrap();
            Self { dir, store }
        }

        fn install(&self, name: &str, bytes: &[u8]) {
            let path = self.dir.path().join("hooks.d").join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }

        fn scan(&mut self) -> Catalog {
            let max = SizesMax {
                hook_bytes: 1024,
                manifest_bytes: 1024,
            };
            let listing = look(&self.dir.path().join("hooks.d"), max);
            judge_all(
                listing,
                &mut self.store,
                Timestamp::from_millis(1),
                DetectedBy::Inotify,
            )
            .unwrap()
        }
    }

    fn hook(file: Digest, baseline: Digest) -> State {
        State::Hook {
            digests: Digests { file, manifest: None },
            baseline,
            manifest: Arc::default(),
        }
    }

    #[test]
    fn a_changed_manifest_is_a_changed_hook() {
        let mut place = Place::new();
        place.install("reload", b"#!one");
        place.install("reload.toml", b"[action]\nread_only = true\n");
        let first = place.scan();
        assert_eq!(first.lanes()["reload"], Lane::ReadOnly);
        assert!(place.store.undelivered_violations().unwrap().is_empty());
        place.install("reload.toml", b"");
        let changed = place.scan();
        assert_ne!(
            first.declared(&Policy::default()),
            changed.declared(&Policy::default())
        );
        assert_eq!(place.store.undelivered_violations().unwrap().len(), 1);
    }

    #[test]
    fn the_first_sight_is_the_baseline_and_a_change_is_a_violation_that_is_still_declared() {
        let mut place = Place::new();
        place.install("reload", b"#!one");
        let one = Digest::of(b"#!one");
        let first = place.scan();
        assert_eq!(first.seen[0].state, hook(one, one));
        assert!(place.store.undelivered_violations().unwrap().is_empty());
        place.install("reload", b"#!two");
        let changed = place.scan();
        let two = Digest::of(b"#!two");
        assert_eq!(changed.seen[0].state, hook(two, one));
        let declared = changed.declared(&Policy::default());
        assert_eq!((declared.len(), declared[0].checksum), (1, two));
        let violations = place.store.undelivered_violations().unwrap();
        assert_eq!(
            (violations.len(), violations[0].observed, violations[0].expected),
            (1, two, one)
        );
    }

    #[test]
    fn a_hook_cannot_take_the_name_of_a_builtin() {
        let mut place = Place::new();
        place.install("ping", b"#!x");
        place.install("bad name", b"#!x");
        let catalog = place.scan();
        assert!(
            catalog
                .seen
                .iter()
                .all(|seen| matches!(seen.state, State::Refused { .. }))
        );
        assert!(catalog.declared(&Policy::default()).is_empty());
        let refused = catalog.refused();
        assert_eq!((refused.len(), refused[1].name.as_str()), (2, "ping"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_said_and_is_no_failure() {
        let mut place = Place::new();
        fs::remove_dir(place.dir.path().join("hooks.d")).unwrap();
        assert!(place.scan().problem.unwrap().contains("hooks.d"));
    }
}
