//! The directory of one attempt to run a hook or a builtin that works apart, and what can be told from it after a restart.
//!
//! **Why a hook runs at most once per request.** The first act of a supervisor is to create the file `claim`, which
//! exactly one process can do. A daemon that comes back and finds no claim creates it itself: then that attempt has
//! never run its hook and never will, because a supervisor that comes late loses the claim and leaves. Only then may
//! the daemon start another attempt. Where a supervisor holds the claim, its record decides, or its death does: no
//! record and no live process means that the hook may have run, so it is reported as lost and not run again.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_shared::{
    ids::{ActionName, Digest, ExecutionId, NodeId},
    time::Timestamp,
    wire::{Base64, Parameters},
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    durable, effect,
    limits::Limits,
    outcome::{Ended, Outcome, Output},
    procfs,
    run_as::RunAs,
};

/// Written by the daemon, read by the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) execution_id: ExecutionId,
    pub(crate) node_id: NodeId,
    pub(crate) action: ActionName,
    /// In a file of their own, which goes once they were read.
    #[serde(skip)]
    pub(crate) parameters: Parameters,
    pub(crate) limit_ms: u64,
    pub(crate) stop_grace_ms: u64,
    pub(crate) output_bytes_max: u64,
    pub(crate) boot_id: String,
    /// Ours to add to whatever the outcome says by itself.
    #[serde(default)]
    pub(crate) remark: Option<String>,
    #[serde(default)]
    pub(crate) run_as: RunAs,
    pub(crate) work: Work,
    /// The unit of systemd that it runs in, if any, whose limits are then systemd's affair.
    #[serde(default)]
    pub(crate) unit: Option<String>,
    #[serde(default)]
    pub(crate) limits: Limits,
}

/// What the supervisor runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Work {
    /// The bytes on its standard input, which must have this digest.
    Hook { digest: Digest },
    /// Itself, as a builtin with this in its environment, that may read these paths although not everybody may.
    Builtin {
        environment: BTreeMap<String, String>,
        readable_paths: Vec<PathBuf>,
    },
}

impl Work {
    /// The reason code of an attempt that never got so far.
    pub(crate) const fn not_started(&self) -> &'static str {
        match self {
            Self::Hook { .. } => "hook_not_started",
            Self::Builtin { .. } => "builtin_not_started",
        }
    }

    pub(crate) const fn noun(&self) -> &'static str {
        match self {
            Self::Hook { .. } => "hook",
            Self::Builtin { .. } => "builtin",
        }
    }
}

/// Who owns the attempt.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(crate) enum Claim {
    Supervisor {
        pid: i32,
        started: u64,
        boot_id: String,
        /// Where the hook is, for the case that its supervisor cannot end it any more.
        #[serde(default)]
        cgroup: Option<PathBuf>,
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
    /// It asked for a reboot, and was ended by that or on the way to it. Only what follows can tell.
    GoingDown,
}

/// How long a machine that was asked to reboot may take to go down.
pub(crate) const DOWN_WITHIN: Duration = Duration::from_secs(300);

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

    /// That of the daemon whose run this is.
    pub(crate) fn state_dir(&self) -> &Path {
        let runs = self.0.parent().unwrap_or(&self.0);
        runs.parent().unwrap_or(runs)
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

    fn parameters(&self) -> PathBuf {
        self.0.join("parameters.json")
    }

    fn exit(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    /// What the supervisor says when it cannot do its work.
    pub(crate) fn complaint(&self) -> PathBuf {
        self.0.join("supervisor.err")
    }

    /// Why a builtin failed, in words.
    fn reason(&self) -> PathBuf {
        self.0.join("reason")
    }

    pub(crate) fn write_reason(&self, why: &str) -> io::Result<()> {
        durable::write(&self.reason(), why.as_bytes())
    }

    pub(crate) fn read_reason(&self) -> Option<String> {
        fs::read_to_string(self.reason()).ok()
    }

    fn reboot_mark(&self) -> PathBuf {
        self.0.join("reboot-asked")
    }

    /// Durable before the reboot is asked for: whoever finds this under another boot id knows that it came to pass.
    pub(crate) fn mark_reboot(&self) -> io::Result<()> {
        durable::write(&self.reboot_mark(), b"")
    }

    pub(crate) fn unmark_reboot(&self) -> io::Result<()> {
        fs::remove_file(self.reboot_mark())?;
        durable::sync_parent(&self.reboot_mark())
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        durable::private_dir(&self.0)
    }

    /// The room for what comes after is taken first: on a full disk nothing is even begun.
    pub(crate) fn write_spec(&self, spec: &Spec) -> io::Result<()> {
        drop(self.reserve_record()?);
        durable::write(&self.parameters(), &serde_json::to_vec(&spec.parameters)?)?;
        durable::write(&self.spec(), &serde_json::to_vec(spec)?)
    }

    /// Without the parameters.
    pub(crate) fn read_spec(&self) -> io::Result<Spec> {
        Ok(serde_json::from_slice(&fs::read(self.spec())?)?)
    }

    /// Whom a line of the log about it is about. Only what is no directory of a run has no words for that.
    pub(crate) fn about(&self) -> About {
        let spec = self.read_spec().ok();
        let of = |text: fn(&Spec) -> String| spec.as_ref().map(text).unwrap_or_default();
        About {
            execution: of(|spec| spec.execution_id.to_string()),
            action: of(|spec| spec.action.to_string()),
            node: of(|spec| spec.node_id.to_string()),
        }
    }

    pub(crate) fn read_parameters(&self) -> io::Result<Parameters> {
        Ok(serde_json::from_slice(&fs::read(self.parameters())?)?)
    }

    /// Nobody needs them again once an attempt has its owner, and they may be secret.
    pub(crate) fn remove_parameters(&self) -> io::Result<()> {
        match fs::remove_file(self.parameters()) {
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
        drop(durable::reserve(&self.room(), JOURNAL_BYTES)?);
        let record = durable::reserve(&self.0.join("exit.json.tmp"), RECORD_BYTES)?;
        effect::done("room for the record");
        Ok(record)
    }

    fn room(&self) -> PathBuf {
        self.0.join("room")
    }

    /// One that is given already is as good.
    fn give_room(&self) -> io::Result<()> {
        match fs::remove_file(self.room()) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    pub(crate) fn write_record(&self, mut reserved: File, outcome: &Outcome) -> io::Result<()> {
        self.give_room()?;
        let bytes = serde_json::to_vec(outcome)?;
        io::Write::write_all(&mut reserved, &bytes)?;
        reserved.set_len(bytes.len() as u64)?;
        reserved.sync_all()?;
        effect::done("the record beside");
        fs::rename(self.0.join("exit.json.tmp"), self.exit())?;
        effect::done("the record");
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
            cgroup: _,
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
        let found = self.find_out(boot_id)?;
        match found {
            Found::Running(_) => {}
            // From here on nobody reads them any more.
            Found::GoingDown | Found::Ended(_) | Found::Lost(_) | Found::NeverRan => {
                if let Err(err) = self.remove_parameters() {
                    let about = self.about();
                    log::warn!(execution_id = about.execution, action = about.action, node_id = about.node, error:% = err;
                        "The parameters in {} could not be removed", self.0.display());
                }
            }
        }
        Ok(found)
    }

    fn find_out(&self, boot_id: &str) -> io::Result<Found> {
        // A claim that is there is read and not contended for, which a full disk would not allow.
        let claim = match self.read_claim()? {
            Some(claim) => claim,
            None => {
                if self.take_claim_at_last()? {
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
            cgroup: _,
        } = claim
        else {
            return Ok(Found::NeverRan);
        };
        let same_boot = theirs == boot_id;
        let supervisor = if same_boot { live(pid, started) } else { None };
        let rebooting = self.reboot_mark().try_exists()?;
        // Looked for after the process was: one that ends in between has written it by then.
        match self.read_record()? {
            Some(outcome) if !(rebooting && outcome.was_cut_off()) => {
                return Ok(Found::Ended(if same_boot {
                    outcome
                } else {
                    outcome.before_boot()
                }));
            }
            Some(_) | None => {}
        }
        Ok(match supervisor {
            Some(handle) => Found::Running(handle),
            None if rebooting && same_boot => Found::GoingDown,
            None if rebooting => Found::Ended(rebooted(&theirs, boot_id)),
            None if same_boot => {
                Found::Lost("agent_restarted: the supervisor ended without a record".to_owned())
            }
            None => Found::Lost("node rebooted: the action was cut off".to_owned()),
        })
    }

    /// The group that the hook was in, where a supervisor made one.
    pub(crate) fn cgroup(&self) -> Option<PathBuf> {
        match self.read_claim().ok()?? {
            Claim::Supervisor { cgroup, .. } => cgroup,
            Claim::Daemon => None,
        }
    }

    /// Nobody else wants it any more. Where the disk is full, what the attempt had reserved is room enough.
    fn take_claim_at_last(&self) -> io::Result<bool> {
        self.create()?;
        match self.take_claim(&Claim::Daemon) {
            Err(err) if durable::is_full(&err) => {
                self.give_room()?;
                self.take_claim(&Claim::Daemon)
            }
            taken => taken,
        }
    }

    /// The run is told and its directory of no more use. One that is gone already is as good.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
        effect::done("a run directory removed");
        Ok(())
    }
}

/// The answer of a `reboot`, which nobody was left to write.
fn rebooted(before: &str, now: &str) -> Outcome {
    let answer = json!({ "rebooted": true, "boot_id_before": before, "boot_id": now });
    Outcome {
        output: Output::Inline {
            bytes: Base64(format!("{answer:#}\n").into_bytes()),
        },
        ..Outcome::of(Ended::Exited { code: 0 })
    }
}

pub(crate) fn runs_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("runs")
}

/// The fields of the journal by which an action's story is found.
pub(crate) struct About {
    pub(crate) execution: String,
    pub(crate) action: String,
    pub(crate) node: String,
}

/// A directory of an attempt that lies there from before.
pub(crate) struct Old {
    pub(crate) execution: ExecutionId,
    pub(crate) run: RunDir,
    /// When something last appeared in it or went.
    pub(crate) changed: Timestamp,
}

pub(crate) fn old_runs(runs: &Path) -> io::Result<Vec<Old>> {
    let entries = match fs::read_dir(runs) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut old = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let attempt = name.to_str().and_then(|name| name.rsplit_once('-'));
        if let Some(Ok(execution)) = attempt.map(|(execution, _)| execution.parse()) {
            let since = entry
                .metadata()?
                .modified()?
                .duration_since(std::time::UNIX_EPOCH);
            let changed = Timestamp::from_millis(0).plus(since.unwrap_or_default());
            let run = RunDir(entry.path());
            old.push(Old {
                execution,
                run,
                changed,
            });
        }
    }
    Ok(old)
}

/// Opened before its start time is compared: from then on the descriptor cannot come to mean another process.
fn live(pid: i32, started: u64) -> Option<OwnedFd> {
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    procfs::stat(pid)
        .is_some_and(|stat| stat.started == started && !stat.zombie)
        .then_some(handle)
}

/// The kernel's name for the time since it booted. Tests put a file in its place, which a release does not know.
pub(crate) fn boot_id() -> io::Result<String> {
    const KERNEL: &str = "/proc/sys/kernel/random/boot_id";
    let path = if cfg!(debug_assertions) {
        std::env::var("MUSTER_BOOT_ID_FILE").unwrap_or_else(|_| KERNEL.to_owned())
    } else {
        KERNEL.to_owned()
    };
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            cgroup: None,
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
            cgroup,
        } = me()
        else {
            unreachable!()
        };
        // The pid lives, but it is another process than the one that claimed.
        assert!(
            run.take_claim(&Claim::Supervisor {
                pid,
                started: started + 1,
                boot_id,
                cgroup
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
    fn a_stop_that_was_followed_by_a_boot_was_the_shutdown() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        let outcome = Outcome::of(Ended::Stopped { processes_killed: 0 });
        run.write_record(run.reserve_record().unwrap(), &outcome).unwrap();
        let told = |boot: &str| match run.examine(boot).unwrap() {
            Found::Ended(outcome) => outcome.ended,
            Found::Running(_) | Found::Lost(_) | Found::NeverRan | Found::GoingDown => {
                panic!("it has a record")
            }
        };
        assert_eq!(told("now"), Ended::Stopped { processes_killed: 0 });
        assert_eq!(told("later"), Ended::CutOff { processes_killed: 0 });
    }

    #[test]
    fn a_record_decides() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        let outcome = Outcome::of(Ended::Exited { code: 7 });
        run.write_record(run.reserve_record().unwrap(), &outcome).unwrap();
        assert!(matches!(run.examine("later").unwrap(), Found::Ended(found) if found == outcome));
    }

    fn asked_for_a_reboot(ended: Option<Ended>) -> (tempfile::TempDir, RunDir) {
        let (dir, run) = attempt();
        // A supervisor that is gone.
        let claim = Claim::Supervisor {
            pid: i32::MAX,
            started: 1,
            boot_id: "now".into(),
            cgroup: None,
        };
        assert!(run.take_claim(&claim).unwrap());
        run.mark_reboot().unwrap();
        if let Some(ended) = ended {
            run.write_record(run.reserve_record().unwrap(), &Outcome::of(ended))
                .unwrap();
        }
        (dir, run)
    }

    #[test]
    fn a_reboot_that_was_asked_for_has_come_to_pass_under_another_boot_id_and_not_before() {
        let killed = Ended::Signalled { signal: 15 };
        let stopped = Ended::Stopped { processes_killed: 1 };
        for ended in [None, Some(killed), Some(stopped)] {
            let (_dir, run) = asked_for_a_reboot(ended);
            assert!(matches!(run.examine("now").unwrap(), Found::GoingDown));
            let Found::Ended(outcome) = run.examine("later").unwrap() else {
                panic!()
            };
            assert_eq!(outcome.ended, Ended::Exited { code: 0 });
            let Output::Inline { bytes } = outcome.output else {
                panic!()
            };
            let answer: serde_json::Value = serde_json::from_slice(&bytes.0).unwrap();
            assert_eq!(
                answer,
                json!({"rebooted": true, "boot_id_before": "now", "boot_id": "later"})
            );
        }
    }

    #[test]
    fn a_reboot_that_was_refused_is_told_as_that_and_one_that_came_by_itself_is_not_its_doing() {
        let failed = Ended::Exited { code: 1 };
        let (_dir, run) = asked_for_a_reboot(Some(failed.clone()));
        for boot_id in ["now", "later"] {
            assert!(
                matches!(run.examine(boot_id).unwrap(), Found::Ended(outcome) if outcome.ended == failed)
            );
        }
        let (_dir, run) = asked_for_a_reboot(None);
        run.unmark_reboot().unwrap();
        assert!(matches!(run.examine("now").unwrap(), Found::Lost(_)));
        assert!(
            matches!(run.examine("later").unwrap(), Found::Lost(why) if why.starts_with("node rebooted"))
        );
    }
}
