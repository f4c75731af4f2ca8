//! What the hooks directory holds right now, compared with the baselines of the journal.

use std::path::Path;

use muster_shared::{
    ids::{ActionName, Digest},
    time::Timestamp,
    wire::{DeclaredHook, DetectedBy, HOOKS_PER_NODE_MAX, Verdict},
};

use super::HookDir;
use crate::{
    builtins,
    journal::{JournalError, Store},
};

/// One file of the hooks directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) state: State,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Hook { digest: Digest, baseline: Digest },
    Refused { why: String },
}

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
    pub(crate) fn declared(&self) -> Vec<DeclaredHook> {
        let hooks = self.seen.iter().filter_map(|seen| match &seen.state {
            State::Hook { digest, .. } => Some(DeclaredHook {
                name: seen.name.clone(),
                checksum: *digest,
            }),
            State::Refused { .. } => None,
        });
        hooks.take(HOOKS_PER_NODE_MAX).collect()
    }
}

/// A hook's name and digest, or why the file is none.
type Observed = Result<(ActionName, Digest), String>;

/// What the directory held at one moment, before anything is compared.
pub(crate) struct Listing {
    files: Vec<(String, Observed)>,
    problem: Option<String>,
}

/// Reads and hashes every hook. Slow where hooks are large.
pub(crate) fn look(dir: &Path, bytes_max: u64) -> Listing {
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
                let file = observe(&hooks, &name, bytes_max);
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
            Ok((name, digest)) => State::Hook {
                digest,
                baseline: judge(store, &name, digest, now, detected_by)?,
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

fn observe(hooks: &HookDir, name: &str, bytes_max: u64) -> Observed {
    let name: ActionName = name
        .parse()
        .map_err(|err: muster_shared::ids::BadActionName| err.to_string())?;
    if builtins::is_builtin(name.as_str()) {
        return Err(format!(
            "{name} is the name of a builtin: give the file another name"
        ));
    }
    let pinned = hooks.pin(&name, bytes_max).map_err(|err| err.to_string())?;
    Ok((name, pinned.digest))
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
            let listing = look(&self.dir.path().join("hooks.d"), 1024);
            judge_all(
                listing,
                &mut self.store,
                Timestamp::from_millis(1),
                DetectedBy::Inotify,
            )
            .unwrap()
        }
    }

    #[test]
    fn the_first_sight_is_the_baseline_and_a_change_is_a_violation_that_is_still_declared() {
        let mut place = Place::new();
        place.install("reload", b"one");
        let one = Digest::of(b"one");
        let first = place.scan();
        assert_eq!(
            first.seen[0].state,
            State::Hook {
                digest: one,
                baseline: one
            }
        );
        assert!(place.store.undelivered_violations().unwrap().is_empty());
        place.install("reload", b"two");
        let changed = place.scan();
        let two = Digest::of(b"two");
        assert_eq!(
            changed.seen[0].state,
            State::Hook {
                digest: two,
                baseline: one
            }
        );
        assert_eq!(
            changed.declared(),
            [DeclaredHook {
                name: "reload".into(),
                checksum: two
            }]
        );
        let violations = place.store.undelivered_violations().unwrap();
        assert_eq!(
            (violations.len(), violations[0].observed, violations[0].expected),
            (1, two, one)
        );
    }

    #[test]
    fn a_hook_cannot_take_the_name_of_a_builtin() {
        let mut place = Place::new();
        place.install("ping", b"x");
        place.install("bad name", b"x");
        let catalog = place.scan();
        assert!(
            catalog
                .seen
                .iter()
                .all(|seen| matches!(seen.state, State::Refused { .. }))
        );
        assert!(catalog.declared().is_empty());
    }

    #[test]
    fn a_directory_that_is_not_there_is_said_and_is_no_failure() {
        let mut place = Place::new();
        fs::remove_dir(place.dir.path().join("hooks.d")).unwrap();
        assert!(place.scan().problem.unwrap().contains("hooks.d"));
    }
}
