//! Starting the supervisor of a hook or of a builtin, outside the daemon's life: by systemd in a unit of its own, or by the daemon in a
//! session of its own.
//!
//! Either way the supervisor of a hook is handed what nobody can change as its standard input and looks at it again
//! itself, so nothing depends on who carried it there. And either way a failed start proves nothing: who runs the attempt is decided by
//! the claim in its run directory.

mod systemd;

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use muster_shared::ids::{ExecutionId, NodeId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::task::spawn_blocking;

use crate::{
    cgroup::Cgroup,
    config::LauncherChoice,
    effect,
    exit::Exit,
    limits::HookLimits,
    outcome::{Ended, Outcome},
    procfs,
    run_dir::{RunDir, Spec, Work},
};

/// How soon a supervisor is reaped again that was not there to be reaped yet.
const REAP_AGAIN: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Launcher {
    /// Each supervisor in a unit of its own: it inherits nothing of the daemon's.
    Systemd {
        /// Our own program, as it was found at the start: an upgrade puts the next version in its place.
        program: PathBuf,
        /// The unit of this daemon, where it is in one.
        own_unit: Option<String>,
    },
    /// Each supervisor in a session of its own: it inherits what holds the daemon.
    Session,
}

/// A supervisor that was started.
pub(crate) struct Supervisor {
    /// Becomes readable when it ends. None when it has ended already.
    pub(crate) handle: Option<OwnedFd>,
    child: Option<Child>,
}

impl Supervisor {
    /// It has ended; without this a zombie would stay. Nobody is held up should it not have.
    pub(crate) async fn reap(self) -> io::Result<()> {
        let Some(mut child) = self.child else {
            return Ok(());
        };
        while child.try_wait()?.is_none() {
            tokio::time::sleep(REAP_AGAIN).await;
        }
        Ok(())
    }
}

impl Launcher {
    /// By the setting, and by what the machine is.
    pub(crate) fn choose(setting: LauncherChoice) -> Result<Self, Exit> {
        // The same sign that sd_booted(3) goes by.
        let booted = Path::new("/run/systemd/system").is_dir();
        let root = rustix::process::geteuid().is_root();
        match (setting, booted, root) {
            (LauncherChoice::Session, _, _)
            | (LauncherChoice::Auto, false, _)
            | (LauncherChoice::Auto, _, false) => Ok(Self::Session),
            (LauncherChoice::Auto | LauncherChoice::Systemd, true, true) => {
                let program = std::env::current_exe()
                    .map_err(|err| Exit::Failure(format!("the path of musterd is not known: {err}")))?;
                let own_unit = crate::cgroup::own_service();
                Ok(Self::Systemd { program, own_unit })
            }
            (LauncherChoice::Systemd, false, _) => Err(Exit::BadConfig(
                "hooks.launcher = \"systemd\": this machine does not run systemd".to_owned(),
            )),
            (LauncherChoice::Systemd, _, false) => Err(Exit::BadConfig(
                "hooks.launcher = \"systemd\": musterd does not run as root".to_owned(),
            )),
        }
    }

    /// The name of the unit that it is to run in.
    pub(crate) fn unit_of(&self, work: &Work, execution: ExecutionId, node: NodeId) -> Option<String> {
        match self {
            Self::Systemd { own_unit, .. } => {
                Some(systemd::unit_name(work, own_unit.as_deref(), execution, node))
            }
            Self::Session => None,
        }
    }

    /// Once every unit was asked how its hook ended, those that failed need not be kept.
    pub(crate) async fn sweep(&self, node: NodeId) {
        match self {
            Self::Systemd { own_unit, .. } => systemd::sweep(own_unit.as_deref(), node).await,
            Self::Session => {}
        }
    }

    pub(crate) fn announce(&self, limits: &HookLimits) {
        match self {
            Self::Systemd { .. } => log::info!(launcher = "systemd"; "Each hook runs in a unit of its own"),
            Self::Session => {
                log::info!(launcher = "session"; "Each hook runs in a session of its own, and inherits what holds musterd");
                let beyond = Cgroup::beyond(limits);
                if !beyond.is_empty() {
                    log::warn!(
                        "[hooks] {} cannot be enforced: musterd may make no control group with a controller for it",
                        beyond.join(", ")
                    );
                }
            }
        }
    }

    /// `spec` names the unit that [`Self::unit_of`] gave, and `hook` is what the supervisor is handed.
    pub(crate) async fn start(
        &self,
        run: &RunDir,
        spec: &Spec,
        hook: Option<OwnedFd>,
    ) -> io::Result<Supervisor> {
        let (dir, written) = (RunDir::at(run.path().to_owned()), spec.clone());
        let complaint = spawn_blocking(move || {
            let earlier = dir.path().try_exists()?;
            dir.create()?;
            if let Err(err) = dir.write_spec(&written) {
                // Nothing has been started that could need it, and on a full disk others do. But what lay there before is
                // that of an attempt which the journal forgot: its claim says that the hook runs, or ran.
                if !earlier {
                    let _ = dir.remove();
                }
                return Err(err);
            }
            fs::File::create(dir.complaint())
        })
        .await??;
        match self {
            Self::Systemd { program, own_unit } => {
                let unit = systemd::NewUnit {
                    name: spec.unit.as_deref().unwrap_or_default(),
                    program,
                    own_unit: own_unit.as_deref(),
                    run: run.path(),
                    spec,
                };
                let handle = systemd::start(unit, hook, complaint.into()).await?;
                Ok(Supervisor { handle, child: None })
            }
            Self::Session => {
                let run = run.path().to_owned();
                let started = spawn_blocking(move || start_in_session(&run, hook, complaint)).await?;
                effect::done("the supervisor spawned");
                started
            }
        }
    }
}

fn start_in_session(run: &Path, hook: Option<OwnedFd>, complaint: fs::File) -> io::Result<Supervisor> {
    let mut child = Command::new("/proc/self/exe")
        .arg("supervise")
        .arg(run)
        .env_clear()
        .envs(effect::for_supervisor())
        .current_dir("/")
        .stdin(hook.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::null())
        .stderr(complaint)
        .spawn()?;
    let opened = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    match opened {
        Some(Ok(handle)) => Ok(Supervisor {
            handle: Some(handle),
            child: Some(child),
        }),
        failed => {
            // Without the handle its end would go unnoticed.
            let _ = child.kill();
            let _ = child.wait();
            Err(match failed {
                Some(Err(err)) => err.into(),
                Some(Ok(_)) | None => io::Error::other("the kernel gave a pid that is none"),
            })
        }
    }
}

/// Ends what a hook started and its dead supervisor can no longer end, and finds out why that one died, as far as
/// anybody knows. The hook itself died with its supervisor.
pub(crate) async fn after_loss(run: &RunDir, why: String) -> Outcome {
    let dir = RunDir::at(run.path().to_owned());
    let read = spawn_blocking(move || (dir.read_spec(), dir.cgroup())).await;
    let Ok((Ok(spec), group)) = read else {
        return Outcome::of(Ended::Lost { why });
    };
    if let Some(unit) = &spec.unit {
        return systemd::after_loss(unit, &spec, why).await;
    }
    let ended = spawn_blocking(move || end_survivors(&spec, group.map(Cgroup::at))).await;
    if let Err(err) = ended {
        log::warn!(error:% = err; "What a hook left behind could not be ended");
    }
    Outcome::of(Ended::Lost { why })
}

/// A unit that no longer runs anything, or that must not, is cleared away, so that none pile up.
pub(crate) async fn clear(run: &RunDir) {
    let dir = RunDir::at(run.path().to_owned());
    if let Ok(Ok(spec)) = spawn_blocking(move || dir.read_spec()).await
        && let Some(unit) = &spec.unit
    {
        systemd::clear(unit, &spec).await;
    }
}

fn end_survivors(spec: &Spec, group: Option<Cgroup>) {
    const ROUNDS_MAX: u32 = 20;
    let execution = spec.execution_id;
    // Several nodes may live on one machine, and each may have been sent the same execution.
    let theirs = [
        ("MUSTER_EXECUTION_ID", execution.to_string()),
        ("MUSTER_NODE_ID", spec.node_id.to_string()),
    ];
    let mut killed = 0;
    for _ in 0..ROUNDS_MAX {
        let survivors = procfs::with_variables(&theirs);
        if let Some(group) = &group {
            // Whoever cleared its environment is still in here.
            let _ = group.kill();
        }
        if survivors.is_empty()
            && group
                .as_ref()
                .is_none_or(|group| group.remove().is_ok() || !group.path().exists())
        {
            break;
        }
        killed += survivors.len();
        for process in survivors {
            procfs::signal(process, Signal::KILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    if killed > 0 {
        log::warn!(execution_id:% = execution, action:% = spec.action, node_id:% = spec.node_id, killed;
            "Killed what a hook had left behind its dead supervisor");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::{Claim, Found};

    #[tokio::test]
    async fn a_start_that_fails_leaves_the_claim_of_an_attempt_that_the_journal_forgot() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().join("run"));
        run.create().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let supervisor = Claim::Supervisor {
            pid,
            started: procfs::stat(pid).unwrap().started,
            boot_id: "now".into(),
            cgroup: None,
        };
        assert!(run.take_claim(&supervisor).unwrap());
        // No file can come into this place.
        fs::create_dir(run.path().join("spec.json.tmp")).unwrap();
        assert!(
            Launcher::Session
                .start(&run, &Spec::of_hook(b"x"), None)
                .await
                .is_err()
        );
        assert!(matches!(run.examine("now").unwrap(), Found::Running(_)));
    }
}
