//! The way of one supervisor: it is started, waited for and told to stop, and then what it left is judged.
//!
//! The run directory is believed, and no answer of a start or a signal: an answer can be late or lost.

use std::{collections::BTreeSet, fs, os::fd::OwnedFd, time::Duration};

use muster_shared::{
    ids::ExecutionId,
    time::Timestamp,
    wire::{ActionRequest, Parameters},
};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::task::spawn_blocking;

use super::{Runner, StopAsked, asked};
use crate::{
    durable, launch,
    limits::HookLimits,
    outcome::{Ended, Outcome, cut},
    readiness::Life,
    run_as::RunAs,
    run_dir::{Claim, DOWN_WITHIN, Found, Lost, RunDir, Spec, Work, may_pass},
};

/// What is said of a supervisor that left no record and that this daemon saw end, or at least saw alive.
const SEEN: &str = "supervisor_lost";
/// The same of one that was gone when this daemon started.
pub(crate) const MISSED: &str = "agent_restarted";
/// How soon a run is looked at again that could not be looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What is kept of the last words of a supervisor.
const COMPLAINT_BYTES_MAX: usize = 1024;

/// What a supervisor is to run.
pub(super) struct Supervised {
    /// What nobody can change; none for a builtin, which is the supervisor's own program.
    pub(super) hook: Option<OwnedFd>,
    pub(super) parameters: Parameters,
    pub(super) secret: BTreeSet<String>,
    pub(super) limit: Duration,
    /// What an operator is told whatever comes of it.
    pub(super) remark: Option<String>,
    pub(super) output_bytes_max: u64,
    pub(super) run_as: RunAs,
    pub(super) work: Work,
    pub(super) limits: HookLimits,
}

impl Runner {
    pub(super) async fn supervised(
        &self,
        request: &ActionRequest,
        attempt: u32,
        supervised: Supervised,
        stop_asked: StopAsked,
    ) -> Result<Outcome, Outcome> {
        let config = self.config();
        if *stop_asked.borrow() {
            return Err(Outcome::of(Ended::CancelledWaiting));
        }
        let run = RunDir::of(&config.state_dir, request.execution_id, attempt);
        let spec = Spec {
            execution_id: request.execution_id,
            node_id: self.node,
            action: request.action.clone(),
            parameters: supervised.parameters,
            secret: supervised.secret,
            limit_ms: u64::try_from(supervised.limit.as_millis()).unwrap_or(u64::MAX),
            stop_grace_ms: u64::try_from(config.limits.stop_grace.as_millis()).unwrap_or(u64::MAX),
            output_bytes_max: supervised.output_bytes_max,
            boot_id: self.boot_id.clone(),
            remark: supervised.remark,
            run_as: supervised.run_as,
            unit: self
                .launcher
                .unit_of(&supervised.work, request.execution_id, self.node),
            limits: supervised.limits,
            work: supervised.work,
        };
        match self.launcher.start(&run, &spec, supervised.hook).await {
            Ok(mut supervisor) => {
                if let Some(handle) = supervisor.handle.take() {
                    wait_for(&run, handle, stop_asked.clone()).await;
                }
                if let Err(err) = supervisor.reap().await {
                    log::warn!(execution_id:% = request.execution_id, action:% = request.action,
                        node_id:% = self.node, error:% = err; "A supervisor could not be reaped");
                }
                Ok(self.result_of(run, &stop_asked).await)
            }
            Err(err) => {
                self.not_started(run, spec.work.not_started(), &err, stop_asked)
                    .await
            }
        }
    }

    /// A start that failed may have had its effect all the same: an answer can be late or lost. The claim tells.
    async fn not_started(
        &self,
        run: RunDir,
        code: &str,
        err: &std::io::Error,
        stop_asked: StopAsked,
    ) -> Result<Outcome, Outcome> {
        match self.examine(&run).await {
            Ok(Found::Running(supervisor)) => {
                let about = run.about();
                log::warn!(execution_id = about.execution, action = about.action, node_id = about.node, error:% = err;
                    "A supervisor runs, although its start was said to have failed");
                wait_for(&run, supervisor, stop_asked.clone()).await;
                Ok(self.result_of(run, &stop_asked).await)
            }
            Ok(Found::GoingDown) => Ok(self.going_down(&run).await),
            Ok(found @ (Found::Ended(_) | Found::Lost(_))) => {
                Ok(self.outcome_of(&run, Ok(found), SEEN).await)
            }
            Ok(Found::NeverRan) | Err(_) => {
                launch::clear(&run).await;
                let said = spawn_blocking(move || complaint(&run)).await.ok().flatten();
                let said = said.map_or_else(String::new, |said| format!(": {said}"));
                let code = if durable::is_full(err) { "disk_full" } else { code };
                Err(Outcome::refused(
                    code,
                    format!("its supervisor could not be started: {err}{said}"),
                ))
            }
        }
    }

    pub(super) async fn adopt(
        &self,
        execution: ExecutionId,
        attempt: u32,
        supervisor: Option<OwnedFd>,
        stop_asked: StopAsked,
    ) -> Outcome {
        let run = RunDir::of(&self.config().state_dir, execution, attempt);
        if let Some(supervisor) = supervisor {
            wait_for(&run, supervisor, stop_asked.clone()).await;
        }
        self.result_of(run, &stop_asked).await
    }

    /// Looks until something can be seen: no action is told as lost because this daemon could open nothing for a while.
    async fn examine(&self, run: &RunDir) -> std::io::Result<Found> {
        let mut said = false;
        loop {
            let (dir, boot_id) = (RunDir::at(run.path().to_owned()), self.boot_id.clone());
            let found = spawn_blocking(move || dir.examine(&boot_id)).await?;
            let err = match found {
                Err(err) if may_pass(&err) => err,
                found => return found,
            };
            if !std::mem::replace(&mut said, true) {
                let about = run.about();
                log::warn!(execution_id = about.execution, action = about.action, node_id = about.node, error:% = err;
                    "What became of an action cannot be seen, and is looked for again");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// What became of it when nobody runs it any more. An attempt that the journal has forgotten may run still, under the
    /// supervisor that has its claim: the one that was started just now has left it alone.
    async fn end_of(&self, run: &RunDir, stop_asked: &StopAsked) -> std::io::Result<Found> {
        let found = self.examine(run).await?;
        let Found::Running(other) = found else {
            return Ok(found);
        };
        wait_for(run, other, stop_asked.clone()).await;
        self.examine(run).await
    }

    pub(super) async fn result_of(&self, run: RunDir, stop_asked: &StopAsked) -> Outcome {
        let found = self.end_of(&run, stop_asked).await;
        let stopped = *stop_asked.borrow();
        match found {
            Ok(Found::NeverRan) => {
                launch::clear(&run).await;
                if stopped {
                    return Outcome::of(Ended::CancelledWaiting);
                }
                let read = spawn_blocking(move || (run.read_spec(), complaint(&run))).await;
                let (spec, said) = read.unwrap_or_else(|err| (Err(err.into()), None));
                let code = spec.map_or("not_started", |spec| spec.work.not_started());
                let why = said.unwrap_or_else(|| "its supervisor ended before it was started".to_owned());
                Outcome::refused(code, why)
            }
            Ok(Found::GoingDown) => self.going_down(&run).await,
            found => self.outcome_of(&run, found, SEEN).await,
        }
    }

    /// A machine that goes down takes this daemon with it, and the next one tells how it went. A cancel comes too late
    /// for it.
    pub(crate) async fn going_down(&self, run: &RunDir) -> Outcome {
        let about = run.about();
        log::info!(execution_id = about.execution, action = about.action, node_id = about.node;
            "The machine was asked to reboot");
        tokio::time::sleep(DOWN_WITHIN).await;
        launch::clear(run).await;
        let why = format!(
            "the machine was asked to reboot and did not go down within {} s",
            DOWN_WITHIN.as_secs()
        );
        Outcome::of(Ended::Broke { why })
    }

    /// The supervisor has ended, or nobody knows of one. `code` says of one that left nothing to read whether it was seen.
    pub(crate) async fn outcome_of(
        &self,
        run: &RunDir,
        found: std::io::Result<Found>,
        code: &str,
    ) -> Outcome {
        match found {
            Ok(Found::Ended(outcome)) => outcome,
            Ok(Found::Lost(Lost::WithoutRecord)) => {
                let dir = RunDir::at(run.path().to_owned());
                let said = spawn_blocking(move || complaint(&dir)).await.ok().flatten();
                let said = said.map_or_else(String::new, |said| format!(": {said}"));
                let why = format!("{code}: the supervisor ended without a record{said}");
                launch::after_loss(run, why).await
            }
            Ok(Found::Lost(Lost::WithTheMachine)) => {
                launch::after_loss(run, "node rebooted: the action was cut off".to_owned()).await
            }
            Ok(Found::Running(_) | Found::NeverRan | Found::GoingDown) => Outcome::of(Ended::Lost {
                why: format!("{code}: the supervisor was lost"),
            }),
            Err(err) => Outcome::of(Ended::Lost {
                why: format!("{code}: the record of the run is unreadable: {err}"),
            }),
        }
    }
}

/// What a supervisor could not do. Where there is no journal its log is in the same file.
fn complaint(run: &RunDir) -> Option<String> {
    let said = fs::read_to_string(run.complaint()).ok()?;
    let logged = |line: &&str| {
        line.split_once(' ')
            .is_some_and(|(at, _)| at.parse::<Timestamp>().is_ok())
    };
    let lines: Vec<&str> = said.trim().lines().filter(|line| !logged(line)).collect();
    Some(cut(&lines.join(" | "), COMPLAINT_BYTES_MAX)).filter(|said| !said.is_empty())
}

/// Waits for the end of a supervisor, and asks it to end when told to.
async fn wait_for(run: &RunDir, supervisor: OwnedFd, stop_asked: StopAsked) {
    let (supervisor, unwatched) = Life::of(supervisor);
    if let Some(err) = unwatched {
        let about = run.about();
        log::warn!(execution_id = about.execution, action = about.action, node_id = about.node, error:% = err;
            "The end of a supervisor will not be told, and is looked for");
    }
    tokio::select! {
        () = supervisor.is_over() => return,
        () = asked(stop_asked) => {}
    }
    stop(run, supervisor.handle()).await;
    supervisor.is_over().await;
}

/// The claim decides: whoever takes it from the supervisor has kept the hook from starting, and a supervisor that holds it
/// hears the signal.
async fn stop(run: &RunDir, supervisor: &OwnedFd) {
    let attempt = RunDir::at(run.path().to_owned());
    let taken = spawn_blocking(move || attempt.take_claim(&Claim::Daemon)).await;
    if matches!(taken, Ok(Ok(true))) {
        return;
    }
    if let Err(err) = pidfd_send_signal(supervisor, Signal::TERM) {
        let about = run.about();
        log::warn!(execution_id = about.execution, action = about.action, node_id = about.node, error:% = err;
            "A supervisor could not be signalled");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_supervisor_complains_of_is_told_without_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().to_owned());
        assert_eq!(complaint(&run), None);
        let logged = format!("{} info The hook h runs pid=7\n", Timestamp::now());
        fs::write(run.complaint(), &logged).unwrap();
        assert_eq!(complaint(&run), None);
        fs::write(run.complaint(), format!("{logged}musterd: no room\nat all\n")).unwrap();
        assert_eq!(complaint(&run).as_deref(), Some("musterd: no room | at all"));
    }
}
