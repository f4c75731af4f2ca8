//! What an earlier enrolment left in the state directory: set aside before another takes its place. Nothing of it is read
//! again, so that nothing that was asked of the node that it was is run by the node that it becomes.

use std::{fs, io, path::Path};

use uuid::Uuid;

use crate::{
    durable,
    exit::Exit,
    journal,
    run_dir::{self, RunDir},
};

/// It goes first: without it no daemon starts on what is left.
const IDENTITY: &str = "identity.json";
const FILES: [&str; 8] = [
    "ca.pem",
    "instances.json",
    "journal.db",
    "journal.db-wal",
    "journal.db-shm",
    "journal.begun",
    "journal.room",
    "runs",
];

/// What opens control to whoever has it is not kept at all.
const KEYS: [&str; 2] = ["nsk", "nsk.next"];

/// A hook that runs would end without anybody to take its result.
pub(super) fn refuse_while_hooks_run(state_dir: &Path) -> Result<(), Exit> {
    let unreadable = |err: io::Error| {
        Exit::Failure(format!(
            "what runs under {} cannot be told: {err}",
            state_dir.display()
        ))
    };
    let boot_id = run_dir::boot_id().map_err(unreadable)?;
    let runs = match fs::read_dir(run_dir::runs_dir(state_dir)) {
        Ok(runs) => runs,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(unreadable(err)),
    };
    for run in runs {
        let run = RunDir::at(run.map_err(unreadable)?.path());
        if run.supervisor(&boot_id).map_err(unreadable)?.is_some() {
            return Err(Exit::Enrolment(format!(
                "a hook of the present enrolment still runs ({}): wait for its end, or cancel it",
                run.path().display()
            )));
        }
    }
    Ok(())
}

/// Moves what is there into a folder named by the new enrolment. Cut off, it goes on where it was. Answers what the admin
/// should know.
pub(super) fn set_aside(state_dir: &Path, enrollment: Uuid) -> io::Result<Vec<String>> {
    let folder = state_dir.join("earlier").join(enrollment.to_string());
    let there = |names: &[&'static str]| -> Vec<&'static str> {
        let is_there = |name: &&str| state_dir.join(name).symlink_metadata().is_ok();
        names.iter().copied().filter(is_there).collect()
    };
    let (identity, keys) = (there(&[IDENTITY]), there(&KEYS));
    if identity.is_empty() && keys.is_empty() && there(&FILES).is_empty() {
        return Ok(Vec::new());
    }
    let aside = |name: &str| {
        fs::rename(state_dir.join(name), folder.join(name))?;
        durable::sync_parent(&state_dir.join(name))
    };
    durable::private_dir(&folder)?;
    identity.into_iter().try_for_each(aside)?;
    // From here on nothing runs what is left, so it may be made unfit to run.
    let notices = without_secrets(state_dir)?;
    there(&FILES).into_iter().try_for_each(aside)?;
    for name in keys {
        fs::remove_file(state_dir.join(name))?;
    }
    durable::sync_parent(&state_dir.join(IDENTITY))?;
    durable::sync_parent(&folder.join(IDENTITY))?;
    Ok(notices)
}

/// Parameters may be secret, and nobody needs those of the earlier enrolment any more.
fn without_secrets(state_dir: &Path) -> io::Result<Vec<String>> {
    for run in run_dir::old_runs(&run_dir::runs_dir(state_dir))? {
        run.run.remove_parameters()?;
    }
    let path = journal::path(state_dir);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let folder = state_dir.join("earlier");
    Ok(match journal::retire(&path) {
        Ok(0) => Vec::new(),
        Ok(untold) => vec![format!(
            "control was not told everything of the earlier enrolment, and will not be: {untold} results or outputs are left \
             in {}",
            folder.display()
        )],
        Err(err) => vec![format!(
            "the journal of the earlier enrolment could not be read ({err}) and is set aside as it is, with the parameters \
             in it: see {}",
            folder.display()
        )],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_kept_beside_and_the_rest_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["identity.json", "journal.db", "nsk", "lock"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir(dir.path().join("runs")).unwrap();
        let id = Uuid::from_u128(7);
        let notices = set_aside(dir.path(), id).unwrap();
        assert!(notices[0].contains("could not be read"), "{notices:?}");
        let folder = dir.path().join("earlier").join(id.to_string());
        assert!(folder.join("journal.db").exists() && folder.join("runs").is_dir());
        assert!(!dir.path().join("identity.json").exists() && dir.path().join("lock").exists());
        assert!(!dir.path().join("nsk").exists() && !folder.join("nsk").exists());

        // Cut off before the new identity was written, it is done again.
        fs::write(dir.path().join("nsk"), "new").unwrap();
        assert!(set_aside(dir.path(), id).unwrap().is_empty());
        assert!(!dir.path().join("nsk").exists() && folder.join("identity.json").exists());
    }
}
