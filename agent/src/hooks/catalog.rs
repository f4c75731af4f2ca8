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
