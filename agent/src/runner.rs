//! Runs one invocation to its end: inside the daemon what only looks, all else under a supervisor of its own.

mod breaks;
mod inside;

use std::{collections::BTreeSet, fs, os::fd::OwnedFd, sync::Arc, time::Duration};

use muster_shared::{
    ids::{Digest, ExecutionId, NodeId},
    time::Timestamp,
    wire::{ActionKind, ActionRequest, DetectedBy, Parameters, Verdict},
};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
};

use crate::{
    builtins::{self, Failed, ReloadAsked, slots::Slots},
    clock::Clock,
    config::Config,
    declare::Poke,
    durable,
    hooks::{
        HookDir, NoHook, Pinned,
        catalog::{self, Catalog},
        manifest::Manifest,
    },
    identity,
    journal::Journal,
    launch::{self, Launcher},
    limits::Limits,
    outcome::{Ended, Outcome, cut},
    parameters, policy, readiness,
    run_as::RunAs,
    run_dir::{Claim, DOWN_WITHIN, Found, Lost, RunDir, Spec, Work},
};

/// What a supervisor is to run.
struct Program {
    /// What nobody can change; none for a builtin, which is the supervisor's own program.
    hook: Option<OwnedFd>,
    parameters: Parameters,
    secret: BTreeSet<String>,
    limit: Duration,
    /// What an operator is told whatever comes of it.
    remark: Option<String>,
    output_bytes_max: u64,
    run_as: RunAs,
    work: Work,
    limits: Limits,
}

pub(crate) struct Runner {
    pub(crate) settings: watch::Receiver<Arc<Config>>,
    pub(crate) node: NodeId,
    pub(crate) boot_id: String,
    pub(crate) clock: Clock,
    pub(crate) journal: Journal,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) pokes: mpsc::Sender<Poke>,
    pub(crate) builtin_slots: Slots,
    pub(crate) reload: mpsc::Sender<ReloadAsked>,
    pub(crate) launcher: Launcher,
}

/// What is said of a supervisor that left no record and that this daemon saw end, or at least saw alive.
const SEEN: &str = "supervisor_lost";
/// The same of one that was gone when this daemon started.
pub(crate) const MISSED: &str = "agent_restarted";
/// What is kept of the last words of a supervisor.
const COMPLAINT_BYTES_MAX: usize = 1024;

/// Becomes true when what runs is to be stopped.
pub(crate) type StopAsked = watch::Receiver<bool>;

impl Runner {
    pub(crate) async fn run(&self, request: &ActionRequest, attempt: u32, stop_asked: StopAsked) -> Outcome {
        // Asked again: the policy may have changed while it waited.
        if let Some(rule) = self.config().policy.denial(request, policy::wall::now()) {
            return Outcome::refused_by_policy(&rule);
        }
        match request.kind {
            ActionKind::Builtin if builtins::is_apart(request.action.as_str()) => {
                match self.builtin_apart(request, attempt, stop_asked).await {
                    Ok(outcome) | Err(outcome) => outcome,
                }
            }
            ActionKind::Builtin => {
                let (limit, remark) = self.limit(request, None);
                let outcome = tokio::select! {
                    outcome = self.builtin(request, attempt, limit) => outcome,
                    // It only looks: what is left of it harms nobody.
                    () = asked(stop_asked) => Outcome::of(Ended::Cancelled { processes_killed: 0 }),
                };
                outcome.with_remark(remark)
            }
            ActionKind::Hook => match self.hook(request, attempt, stop_asked).await {
                Ok(outcome) | Err(outcome) => outcome,
            },
        }
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.settings.borrow())
    }

    async fn adopt(
        &self,
        execution: ExecutionId,
        attempt: u32,
        supervisor: OwnedFd,
        stop_asked: StopAsked,
    ) -> Outcome {
        let run = RunDir::of(&self.config().state_dir, execution, attempt);
        wait_for(&run, supervisor, stop_asked.clone()).await;
        self.result_of(run, &stop_asked).await
    }

    /// How long it may run, and what to say when that is less than was asked for. No action outlives its deadline: from
    /// then on control has given it up.
    fn limit(
        &self,
        request: &ActionRequest,
        manifest_max: Option<(u32, String)>,
    ) -> (Duration, Option<String>) {
        let asked = Duration::from_secs(request.timeout_seconds.into());
        let of_policy = self.config().policy.timeout_max.as_ref().map(|said| {
            let rule = format!("policy.timeout_max_seconds in {}", said.file.display());
            (said.what, rule)
        });
        let of_manifest = manifest_max.map(|(seconds, rule)| (Duration::from_secs(seconds.into()), rule));
        let least = of_policy.into_iter().chain(of_manifest).min();
        let (capped, remark) = match least {
            Some((max, rule)) if max < asked => {
                let remark = format!(
                    "timeout_capped: to {} s instead of {} s, by {rule}",
                    max.as_secs(),
                    asked.as_secs()
                );
                (max, Some(remark))
            }
            Some(_) | None => (asked, None),
        };
        (capped.min(self.clock.now().until(request.deadline())), remark)
    }

    /// Every refusal on the way is an outcome too.
    async fn hook(
        &self,
        request: &ActionRequest,
        attempt: u32,
        stop_asked: StopAsked,
    ) -> Result<Outcome, Outcome> {
        let config = self.config();
        let pinned = self.pin(request).await?;
        self.trust(request, pinned.digests.whole()).await?;
        let manifest = &pinned.manifest;
        let parameters =
            accepted(request, manifest).map_err(|why| Outcome::refused("invalid_parameters", why))?;
        let manifest_max = manifest.timeout_max_seconds.map(|seconds| {
            (
                seconds,
                format!("timeout.max_seconds of the manifest of {}", request.action),
            )
        });
        let (limit, remark) = self.limit(request, manifest_max);
        let output_bytes_max = config.limits.output_bytes_max;
        let secret = manifest.parameters.as_ref().map(|schema| schema.secret().clone());
        let program = Program {
            parameters,
            secret: secret.unwrap_or_default(),
            limit,
            remark,
            output_bytes_max: manifest
                .output_bytes_max
                .map_or(output_bytes_max, |max| max.min(output_bytes_max)),
            limits: config.hook_limits.tightened_by(&manifest.run_as.limits),
            run_as: manifest.run_as.on_top_of(&config.hook_environment),
            work: Work::Hook {
                digest: pinned.digests.file,
            },
            hook: Some(pinned.held.fd),
        };
        self.supervised(request, attempt, program, stop_asked).await
    }

    async fn builtin_apart(
        &self,
        request: &ActionRequest,
        attempt: u32,
        stop_asked: StopAsked,
    ) -> Result<Outcome, Outcome> {
        let parameters = request.parameters.clone().unwrap_or_default();
        builtins::check(request.action.as_str(), &parameters)
            .map_err(|failed| outcome_of_failed(request, failed))?;
        let (limit, remark) = self.limit(request, None);
        let config = self.config();
        let program = Program {
            hook: None,
            parameters,
            secret: BTreeSet::new(),
            limit,
            remark,
            output_bytes_max: config.limits.output_bytes_max,
            run_as: RunAs::default(),
            work: Work::Builtin {
                environment: builtins::environment(),
                readable_paths: config.readable_paths.clone(),
                credentials: identity::credentials(),
            },
            // What a package manager needs is not for the limits of hooks to say.
            limits: Limits::default(),
        };
        self.supervised(request, attempt, program, stop_asked).await
    }

    async fn supervised(
        &self,
        request: &ActionRequest,
        attempt: u32,
        program: Program,
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
            parameters: program.parameters,
            secret: program.secret,
            limit_ms: u64::try_from(program.limit.as_millis()).unwrap_or(u64::MAX),
            stop_grace_ms: u64::try_from(config.limits.stop_grace.as_millis()).unwrap_or(u64::MAX),
            output_bytes_max: program.output_bytes_max,
            boot_id: self.boot_id.clone(),
            remark: program.remark,
            run_as: program.run_as,
            unit: self
                .launcher
                .unit_of(&program.work, request.execution_id, self.node),
            limits: program.limits,
            work: program.work,
        };
        match self.launcher.start(&run, &spec, program.hook).await {
            Ok(mut supervisor) => {
                if let Some(handle) = supervisor.handle.take() {
                    wait_for(&run, handle, stop_asked.clone()).await;
                }
                if let Err(err) = supervisor.reap() {
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

    async fn pin(&self, request: &ActionRequest) -> Result<Pinned, Outcome> {
        if builtins::is_builtin(request.action.as_str()) {
            return Err(Outcome::refused(
                "hook_refused",
                format!("{} is the name of a builtin", request.action),
            ));
        }
        let (config, name) = (self.config(), request.action.clone());
        let pinned = spawn_blocking(move || {
            HookDir::open(&config.hooks_dir)?.pin(&name, config.limits.sizes, &config.state_dir)
        })
        .await
        .map_err(|err| Outcome::of(Ended::Broke { why: err.to_string() }))?;
        pinned.map_err(|err| {
            let code = match &err {
                NoHook::NotHeld(why) if why.is_full() => "disk_full",
                NoHook::NotHeld(_) => "hook_not_started",
                NoHook::Missing { .. } => "unknown_action",
                NoHook::NoDirectory { .. }
                | NoHook::Leftover { .. }
                | NoHook::Symlink { .. }
                | NoHook::NotRegular { .. }
                | NoHook::Owner { .. }
                | NoHook::Writable { .. }
                | NoHook::NotExecutable { .. }
                | NoHook::TooLong { .. }
                | NoHook::Empty { .. }
                | NoHook::NotProgram { .. }
                | NoHook::Manifest(_)
                | NoHook::Unreadable { .. } => "hook_refused",
            };
            Outcome::refused(code, err.to_string())
        })
    }

    /// The bytes that are about to run must be those of the node's baseline and of control's.
    async fn trust(&self, request: &ActionRequest, observed: Digest) -> Result<(), Outcome> {
        let (name, now) = (request.action.clone(), self.clock.now());
        let baseline = self
            .journal
            .ask(move |store| catalog::judge(store, &name, observed, now, DetectedBy::PreDispatch))
            .await
            .map_err(|err| Outcome::refused(err.code(), crate::exit::chain(&err)))?;
        let why = match (Verdict::of(Some(baseline), observed), request.hook_digest) {
            (Verdict::Drift | Verdict::Uncatalogued, _) => {
                // A lost hint is made up for by the next look at the directory.
                let _ = self.pokes.try_send(Poke::Rescan);
                format!(
                    "{} is now {observed}, but its baseline on this node is {baseline}",
                    request.action
                )
            }
            (Verdict::Verified, Some(theirs)) if theirs == observed => return Ok(()),
            (Verdict::Verified, Some(theirs)) => {
                format!(
                    "{} is {observed}, but control's baseline is {theirs}",
                    request.action
                )
            }
            (Verdict::Verified, None) => format!("control named no baseline for {}", request.action),
        };
        Err(Outcome::refused("hook_integrity_violation", why))
    }

    async fn examine(&self, run: &RunDir) -> std::io::Result<Found> {
        let (run, boot_id) = (RunDir::at(run.path().to_owned()), self.boot_id.clone());
        spawn_blocking(move || run.examine(&boot_id)).await?
    }

    /// An attempt that the journal has forgotten may run still, under the supervisor that has its claim. The one that was
    /// started just now has left it alone.
    async fn outlive(&self, run: &RunDir, stop_asked: &StopAsked) {
        if let Ok(Found::Running(other)) = self.examine(run).await {
            wait_for(run, other, stop_asked.clone()).await;
        }
    }

    async fn result_of(&self, run: RunDir, stop_asked: &StopAsked) -> Outcome {
        self.outlive(&run, stop_asked).await;
        let stopped = *stop_asked.borrow();
        match self.examine(&run).await {
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

/// The parameters as the hook gets them: matched against its manifest, the defaults filled in.
fn accepted(request: &ActionRequest, manifest: &Manifest) -> Result<Parameters, String> {
    let given = request.parameters.clone().unwrap_or_default();
    let parameters = match &manifest.parameters {
        Some(schema) => schema.complete(&given).map_err(|err| err.to_string())?,
        None => given,
    };
    parameters::variables(&parameters).map_err(|err| err.to_string())?;
    Ok(parameters)
}

fn outcome_of_failed(request: &ActionRequest, failed: Failed) -> Outcome {
    match failed {
        Failed::Unknown => Outcome::refused(
            "unknown_action",
            format!("this node has no builtin {}", request.action),
        ),
        Failed::Parameters(why) => Outcome::refused("invalid_parameters", why),
        Failed::Work(why) => Outcome::of(Ended::Broke { why }),
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
    // A pidfd is readable once the process has ended; an error means the same to us.
    let supervisor = match readiness::of(supervisor) {
        Ok(supervisor) => supervisor,
        Err(err) => {
            let about = run.about();
            return log::error!(execution_id = about.execution, action = about.action, node_id = about.node, error:% = err;
                "A supervisor cannot be waited for");
        }
    };
    tokio::select! {
        _ended = supervisor.readable() => return,
        () = asked(stop_asked) => {}
    }
    stop(run, supervisor.get_ref()).await;
    drop(supervisor.readable().await);
}

async fn asked(mut stop_asked: StopAsked) {
    if stop_asked.wait_for(|asked| *asked).await.is_err() {
        // Nobody is left who could ask.
        std::future::pending().await
    }
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
