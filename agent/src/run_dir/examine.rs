//! What became of an attempt that was to be started: told from its claim, its record and the processes that live.

use std::{fs, io, os::fd::OwnedFd, time::Duration};

use muster_shared::{time::Timestamp, wire::Base64};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde_json::json;

use super::{Claim, RunDir};
use crate::{
    durable,
    outcome::{Ended, Outcome, Output},
    procfs,
};

/// What a started attempt turned out to be.
pub(crate) enum Found {
    Ended(Outcome),
    /// The descriptor becomes readable when the supervisor ends.
    Running(OwnedFd),
    Lost(Lost),
    NeverRan,
    /// It asked for a reboot, and was ended by that or on the way to it. Only what follows can tell.
    GoingDown,
}

/// How an action was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    /// Its supervisor ended and left no record.
    WithoutRecord,
    /// The machine went down.
    WithTheMachine,
}

/// How long a machine that was asked to reboot may take to go down.
pub(crate) const DOWN_WITHIN: Duration = Duration::from_secs(300);

impl RunDir {
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
        if theirs != boot_id || live(pid, started)?.is_none() {
            return Ok(None);
        }
        let claimed = fs::metadata(self.claim())?.modified()?;
        let since = claimed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(Some((pid, Timestamp::from_millis(0).plus(since))))
    }

    /// Finds out what became of an attempt that was to be started. See the top of `run_dir.rs`. An error says nothing of the
    /// attempt, which may well be running; where it [`may_pass`], whoever asks has to ask again.
    pub(crate) fn examine(&self, boot_id: &str) -> io::Result<Found> {
        let found = self.find_out(boot_id)?;
        match found {
            Found::Running(_) => {}
            // From here on nobody writes a record, nor reads parameters, any more.
            Found::GoingDown | Found::Ended(_) | Found::Lost(_) | Found::NeverRan => {
                // It was for the journal's word about this. Where it cannot be given, that waits for other room.
                let _ = self.give_room();
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
        let supervisor = if same_boot { live(pid, started)? } else { None };
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
            None if same_boot => Found::Lost(Lost::WithoutRecord),
            None => Found::Lost(Lost::WithTheMachine),
        })
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
}

/// Whether it is this process that cannot look, for want of descriptors or of memory, which says nothing of what there is.
pub(crate) fn may_pass(err: &io::Error) -> bool {
    let passing = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::AGAIN,
        Errno::INTR,
    ];
    Errno::from_io_error(err).is_some_and(|err| passing.contains(&err))
}

/// The answer of a `reboot`, which nobody was left to write.
fn rebooted(before: &str, now: &str) -> Outcome {
    let answer = json!({ "rebooted": true, "boot_id_before": before, "boot_id": now });
    Outcome {
        output: Output::Inline {
            bytes: Base64(format!("{answer:#}\n").into_bytes()),
            total_bytes: None,
        },
        ..Outcome::of(Ended::Exited { code: 0 })
    }
}

/// Opened before its start time is compared: from then on the descriptor cannot come to mean another process. Only what is
/// seen to be gone is gone: a daemon that can open nothing for a while has seen nothing.
fn live(pid: i32, started: u64) -> io::Result<Option<OwnedFd>> {
    let Some(number) = Pid::from_raw(pid) else {
        return Ok(None);
    };
    let handle = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(handle) => handle,
        // With the last two the number is that of a thread by now, and so not a supervisor's.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
        Err(err) => return Err(err.into()),
    };
    let same = |stat: procfs::Stat| stat.started == started && !stat.zombie;
    Ok(procfs::look(pid)?.is_some_and(same).then_some(handle))
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
        assert!(matches!(
            run.examine("now").unwrap(),
            Found::Lost(Lost::WithoutRecord)
        ));
    }

    const CANNOT_LOOK: &str = "MUSTER_TEST_CANNOT_LOOK";

    #[test]
    fn who_cannot_look_has_seen_nobody_die() {
        let Claim::Supervisor { pid, started, .. } = me() else {
            unreachable!()
        };
        assert!(live(pid, started).unwrap().is_some());
        assert!(live(pid, started + 1).unwrap().is_none());
        assert!(live(i32::MAX, started).unwrap().is_none());
        if std::env::var_os(CANNOT_LOOK).is_none() {
            // The limit is that of a process of its own.
            let status = std::process::Command::new("/proc/self/exe")
                .args([
                    "--exact",
                    "run_dir::examine::tests::who_cannot_look_has_seen_nobody_die",
                ])
                .env(CANNOT_LOOK, "1")
                .status()
                .unwrap();
            assert!(status.success());
            return;
        }
        let none = rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        let err = live(pid, started).unwrap_err();
        assert!(may_pass(&err), "{err}");
    }

    #[test]
    fn after_a_reboot_no_process_is_mistaken_for_the_supervisor() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        assert!(matches!(
            run.examine("later").unwrap(),
            Found::Lost(Lost::WithTheMachine)
        ));
    }

    #[test]
    fn the_room_of_who_died_without_a_record_is_given_to_the_journal() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        drop(run.reserve_record().unwrap());
        let bytes = || fs::metadata(run.reserved()).unwrap().len();
        let reserved = bytes();
        assert!(matches!(run.examine("now").unwrap(), Found::Running(_)));
        assert_eq!(bytes(), reserved, "whoever lives may need it");
        assert!(matches!(run.examine("later").unwrap(), Found::Lost(_)));
        assert!(bytes() < reserved);
    }

    /// It is not made durable, and nothing that follows a power cut needs it.
    #[test]
    fn after_a_power_cut_the_claim_decides_whatever_became_of_the_spec() {
        for left in [
            None,
            Some(""),
            Some("{\"exec"),
            Some("\0\0\0\0{\"key\":\"hunter2\"}\n"),
        ] {
            let (_dir, run) = attempt();
            assert!(run.take_claim(&me()).unwrap());
            if let Some(left) = left {
                fs::write(run.spec(), left).unwrap();
                fs::write(run.earlier_parameters(), left).unwrap();
            }
            let found = run.examine("the next boot").unwrap();
            assert!(matches!(found, Found::Lost(Lost::WithTheMachine)), "{left:?}");
            assert!(!run.earlier_parameters().exists());
            assert_eq!(fs::read(run.spec()).unwrap_or_default(), b"", "{left:?}");
        }
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

    #[test]
    fn room_that_is_taken_anew_behind_a_record_spoils_nothing() {
        let (_dir, run) = attempt();
        assert!(run.take_claim(&me()).unwrap());
        let outcome = Outcome::of(Ended::Exited { code: 7 });
        run.write_record(run.reserve_record().unwrap(), &outcome).unwrap();
        // Whoever had opened it under its earlier name takes its room now.
        drop(durable::reserve(&run.exit(), 8192).unwrap());
        assert_eq!(fs::metadata(run.exit()).unwrap().len(), 8192);
        assert!(matches!(run.examine("later").unwrap(), Found::Ended(found) if found == outcome));
        // What is nothing but room is no record.
        fs::write(run.exit(), [0; 64]).unwrap();
        assert!(run.examine("later").is_err());
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
            let Output::Inline { bytes, .. } = outcome.output else {
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
        assert!(matches!(
            run.examine("later").unwrap(),
            Found::Lost(Lost::WithTheMachine)
        ));
    }
}
