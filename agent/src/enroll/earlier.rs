//! What an earlier enrolment left in the state directory: set aside before another takes its place. Nothing of it is read
//! again, so that nothing that was asked of the node that it was is run by the node that it becomes.

use std::{fs, io, path::Path};

use uuid::Uuid;

use crate::{
    durable,
    exit::Exit,
    run_dir::{self, RunDir},
};

/// The identity goes first: without it no daemon starts on what is left.
const FILES: [&str; 12] = [
    "identity.json",
    "nsk",
    "nsk.next",
    "nsk.replaced",
    "ca.pem",
    "instances.json",
    "journal.db",
    "journal.db-wal",
    "journal.db-shm",
    "journal.begun",
    "journal.room",
    "runs",
];

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

/// Moves what is there into a folder named by the new enrolment. Cut off, it goes on where it was.
pub(super) fn set_aside(state_dir: &Path, enrollment: Uuid) -> io::Result<()> {
    let folder = state_dir.join("earlier").join(enrollment.to_string());
    let there: Vec<_> = FILES
        .iter()
        .filter(|name| state_dir.join(name).symlink_metadata().is_ok())
        .collect();
    if there.is_empty() {
        return Ok(());
    }
    durable::private_dir(&folder)?;
    for name in there {
        fs::rename(state_dir.join(name), folder.join(name))?;
        durable::sync_parent(&state_dir.join(name))?;
    }
    durable::sync_parent(&folder.join(FILES[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_kept_beside_and_the_rest_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["identity.json", "journal.db", "lock"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir(dir.path().join("runs")).unwrap();
        let id = Uuid::from_u128(7);
        set_aside(dir.path(), id).unwrap();
        let folder = dir.path().join("earlier").join(id.to_string());
        assert!(folder.join("journal.db").exists() && folder.join("runs").is_dir());
        assert!(!dir.path().join("identity.json").exists() && dir.path().join("lock").exists());

        // Cut off before the new identity was written, it is done again.
        fs::write(dir.path().join("nsk"), "new").unwrap();
        set_aside(dir.path(), id).unwrap();
        assert!(folder.join("nsk").exists() && folder.join("identity.json").exists());
    }
}
