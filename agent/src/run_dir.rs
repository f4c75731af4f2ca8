//! The directory of one attempt to run a hook, and what can be told from it after a restart.
//!
//! **Why a hook runs at most once per request.** The first act of a supervisor is to create the file `claim`, which
//! exactly one process can do. A daemon that comes back and finds no claim creates it itself: then that attempt has
//! never run its hook and never will, because a supervisor that comes late loses the claim and leaves. Only then may
//! the daemon start another attempt. Where a supervisor holds the claim, its record decides, or its death does: no
//! record and no live process means that the hook may have run, so it is reported as lost and not run again.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use muster_shared::{
    ids::{ActionName, ExecutionId, NodeId},
    time::Timestamp,
    wire::Parameters,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::{durable, launch::Launch, outcome::Outcome, procfs};

/// Written by the daemon, read by the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) execution_id: ExecutionId,
    pub(crate) node_id: NodeId,
    pub(crate) action: ActionName,
    pub(crate) parameters: Parameters,
    pub(crate) limit_ms: u64,
    pub(crate) stop_grace_ms: u64,
    pub(crate) output_bytes_max: u64,
    pub(crate) boot_id: String,
    /// Ours to add to whatever the outcome says by itself.
    #[serde(default)]
    pub(crate) remark: Option<String>,
    #[serde(default)]
    pub(crate) launch: Launch,
}

/// Who owns the attempt.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(crate) enum Claim {
    Supervisor {
        pid: i32,
        started: u64,
        boot_id: String,
    },
    /// A daemon that restarted or was asked to cancel, to prove that the hook never ran and never will.
    Daemon,
}

pub(crate) struct RunDir(PathBuf);

/// What a started attempt turned out to be.
pub(crate) enum Found {
    Ended(Outcome),
    /// The descriptor becomes readable when the supervisor ends.
    Running(OwnedFd),
    Lost(String),
    NeverRan,
}

impl RunDir {
    pub(crate) fn of(state_dir: &Path, execution: ExecutionId, attempt: u32) -> Self {
        Self(runs_dir(state_dir).join(format!("{execution}-{attempt}")))
    }

    pub(crate) const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.0.join("output")
    }

    fn claim(&self) -> PathBuf {
        self.0.join("claim")
    }

    fn spec(&self) -> PathBuf {
        self.0.join("spec.json")
    }

    fn exit(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    /// What the supervisor says when it cannot do its work.
    pub(crate) fn complaint(&self) -> PathBuf {
        self.0.join("supervisor.err")
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        durable::private_dir(&self.0)
    }

    pub(crate) fn write_spec(&self, spec: &Spec) -> io::Result<()> {
        durable::write(&self.spec(), &serde_json::to_vec(spec)?)
    }

    pub(crate) fn read_spec(&self) -> io::Result<Spec> {
        Ok(serde_json::from_slice(&fs::read(self.spec())?)?)
    }

    /// Nobody needs it again once an attempt has its owner, and the parameters in it may be secret.
    pub(crate) fn remove_spec(&self) -> io::Result<()> {
        match fs::remove_file(self.spec()) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Whether the attempt is now the caller's.
    pub(crate) fn take_claim(&self, claim: &Claim) -> io::Result<bool> {
        durable::create_first(&self.claim(), &serde_json::to_vec(claim)?)
    }

    /// Room for the record, and for the journal's word about it, is taken before the hook starts: a hook whose output
    /// fills the disk can neither hide how it ended nor keep its node from saying so.
    pub(crate) fn reserve_record(&self) -> io::Result<File> {
        const RECORD_BYTES: u64 = 4096;
        const JOURNAL_BYTES: u64 = 256 * 1024;
        reserved(&self.room(), JOURNAL_BYTES)?;
        reserved(&self.0.join("exit.json.tmp"), RECORD_BYTES)
    }

    fn room(&self) -> PathBuf {
        self.0.join("room")
    }

    pub(crate) fn write_record(&self, mut reserved: File, outcome: &Outcome) -> io::Result<()> {
        fs::remove_file(self.room())?;
        let bytes = serde_json::to_vec(outcome)?;
        io::Write::write_all(&mut reserved, &bytes)?;
        reserved.set_len(bytes.len() as u64)?;
        reserved.sync_all()?;
        fs::rename(self.0.join("exit.json.tmp"), self.exit())?;
        durable::sync_parent(&self.exit())
    }

    fn read_record(&self) -> io::Result<Option<Outcome>> {
        match fs::read(self.exit()) {
            Ok(raw) => Ok(Some(serde_json::from_slice(&raw)?)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    fn read_claim(&self) -> io::Result<Option<Claim>> {
        match fs::read(self.claim()) {
            Ok(raw) => Ok(Some(serde_json::from_slice(&raw)?)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// The live supervisor that owns the attempt, and since when. Looks, and claims nothing.
    pub(crate) fn supervisor(&self, boot_id: &str) -> io::Result<Option<(i32, Timestamp)>> {
        let Some(Claim::Supervisor {
            pid,
            started,
            boot_id: theirs,
        }) = self.read_claim()?
        else {
            return Ok(None);
        };
        if theirs != boot_id || live(pid, started).is_none() {
            return Ok(None);
        }
        let claimed = fs::metadata(self.claim())?.modified()?;
        let since = claimed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(Some((pid, Timestamp::from_millis(0).plus(since))))
    }

    /// Finds out what became of an attempt that was to be started. See the top of this file.
    pub(crate) fn examine(&self, boot_id: &str) -> io::Result<Found> {
        // A claim that is there is read and not contended for, which a full disk would not allow.
        let claim = match self.read_claim()? {
            Some(claim) => claim,
            None => {
                self.create()?;
                if self.take_claim(&Claim::Daemon)? {
                    return Ok(Found::NeverRan);
                }
                self.read_claim()?
                    .ok_or_else(|| io::Error::other("the claim has vanished"))?
            }
        };
        let Claim::Supervisor {
            pid,
            started,
            boot_id: theirs,
        } = claim
        else {
            return Ok(Found::NeverRan);
        };
        let same_boot = theirs == boot_id;
        let supervisor = if same_boot { live(pid, started) } else { None };
        // Looked for after the process was: one that ends in between has written it by then.
        if let Some(outcome) = self.read_record()? {
            return Ok(Found::Ended(outcome));
        }
        Ok(match supervisor {
            Some(handle) => Found::Running(handle),
            None if same_boot => {
                Found::Lost("agent_restarted: the supervisor ended without a record".to_owned())
            }
            None => Found::Lost("node rebooted: the hook was cut off".to_owned()),
        })
    }

    /// The run is told and its directory of no more use. One that is gone already is as good.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

fn reserved(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::create(path)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(file),
        Err(err) => Err(err.into()),
    }
}

pub(crate) fn runs_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("runs")
}

/// Removes every run directory whose execution is not in `kept`.
pub(crate) fn sweep(runs: &Path, kept: &BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(runs) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let execution = name
            .to_str()
            .and_then(|name| name.rsplit_once('-'))
            .map(|(execution, _)| execution);
        if execution.is_some_and(|execution| !kept.contains(execution)) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Opened before its start time is compared: from then on the descriptor cannot come to mean another process.
fn live(pid: i32, started: u64) -> Option<OwnedFd> {
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    procfs::stat(pid)
        .is_some_and(|stat| stat.started == started && !stat.zombie)
        .then_some(handle)
}

/// The kernel's name for the time since it booted. Tests put a file in its place.
pub(crate) fn boot_id() -> io::Result<String> {
    let path =
        std::env::var("MUSTER_BOOT_ID_FILE").unwrap_or_else(|_| "/proc/sys/kernel/random/boot_id".to_owned());
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Ended;

    fn attempt() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().join("run"));
        run.create().unwrap();
        (dir, run)
    }

    fn me() -> Claim {
        let pid = i32::try_from(std::process::id()).unwrap();
        let started = procfs::stat(pid).unwrap().started;
        Claim::Supervisor {
            pid,
            started,
            boot_id: "now".into(),
        }
    }

    #[test]
    fn an_attempt_without_a_claim_never_ran_and_never_will() {
        let (_dir, run) = attempt();
        assert!(matches!(run.examine("now").unwrap(), Found::NeverRan));
        assert!(
            !run.take_claim(&me()).unwrap(),
            "a late supervisor must not get the attempt"
        );
        assert!(matches!(run.examine("now").unwrap(), Found::NeverRan));
    }

    #[test]
    fn a_live_supervisor_is_found_again() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        assert!(matches!(run.examine("now").unwrap(), Found::Running(_)));
    }

    #[test]
    fn a_supervisor_that_died_without_a_record_is_a_loss() {
        let (_dir, run) = attempt();
        let Claim::Supervisor {
            pid,
            started,
            boot_id,
        } = me()
        else {
            unreachable!()
        };
        // The pid lives, but it is another process than the one that claimed.
        assert!(
            run.take_claim(&Claim::Supervisor {
                pid,
                started: started + 1,
                boot_id
            })
            .unwrap()
        );
        assert!(
            matches!(run.examine("now").unwrap(), Found::Lost(why) if why.starts_with("agent_restarted"))
        );
    }

    #[test]
    fn after_a_reboot_no_process_is_mistaken_for_the_supervisor() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        assert!(
            matches!(run.examine("later").unwrap(), Found::Lost(why) if why.starts_with("node rebooted"))
        );
    }

    #[test]
    fn a_record_decides() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        let outcome = Outcome::of(Ended::Exited { code: 7 });
        run.write_record(run.reserve_record().unwrap(), &outcome).unwrap();
        assert!(matches!(run.examine("later").unwrap(), Found::Ended(found) if found == outcome));
    }
}
