//! Runs one invocation to its end: a builtin inside the daemon, a hook under a supervisor of its own.

use std::{
    fs,
    os::fd::OwnedFd,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use muster_shared::{
    ids::{Digest, ExecutionId, NodeId},
    wire::{ActionKind, ActionRequest, Base64, DetectedBy, INLINE_OUTPUT_BYTES_MAX, Verdict},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::spawn_blocking,
};

use crate::{
    builtins::{self, Failed},
    clock::Clock,
    config::Config,
    declare::Poke,
    durable, effect,
    hooks::{
        HookDir, NoHook, Pinned,
        catalog::{self, Catalog},
    },
    journal::Journal,
    outcome::{Ended, Outcome, Output},
    parameters, procfs, readiness,
    run_dir::{Claim, Found, RunDir, Spec},
};

pub(crate) struct Runner {
    pub(crate) config: Arc<Config>,
    pub(crate) node: NodeId,
    pub(crate) boot_id: String,
    pub(crate) clock: Clock,
    pub(crate) journal: Journal,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) pokes: mpsc::Sender<Poke>,
    pub(crate) builtin_slots: Arc<Semaphore>,
}

/// Builtins that work at the same time; fewer than the threads for blocking work.
pub(crate) const BUILTINS_MAX: usize = 8;

/// Becomes true when what runs is to be stopped.
pub(crate) type StopAsked = watch::Receiver<bool>;

impl Runner {
    pub(crate) async fn run(&self, request: &ActionRequest, attempt: u32, stop_asked: StopAsked) -> Outcome {
        let limit = self.limit(request);
        match request.kind {
            ActionKind::Builtin => tokio::select! {
                outcome = self.builtin(request, attempt, limit) => outcome,
                // It only looks: what is left of it harms nobody.
                () = asked(stop_asked) => Outcome::of(Ended::Cancelled { processes_killed: 0 }),
            },
            ActionKind::Hook => match self.hook(request, attempt, limit, stop_asked).await {
                Ok(outcome) | Err(outcome) => outcome,
            },
        }
    }

    /// Waits for a supervisor that an earlier daemon started.
    pub(crate) async fn adopt(
        &self,
        execution: ExecutionId,
        attempt: u32,
        supervisor: OwnedFd,
        stop_asked: StopAsked,
    ) -> Outcome {
        let run = RunDir::of(&self.config.state_dir, execution, attempt);
        wait_for(&run, supervisor, stop_asked.clone()).await;
        self.result_of(execution, run, &stop_asked).await
    }

    /// No action outlives its deadline: from then on control has given it up.
    fn limit(&self, request: &ActionRequest) -> Duration {
        Duration::from_secs(request.timeout_seconds.into()).min(self.clock.now().until(request.deadline()))
    }

    async fn builtin(&self, request: &ActionRequest, attempt: u32, limit: Duration) -> Outcome {
        let context = builtins::Context {
            node: self.node,
            catalog: Arc::clone(&self.catalog.borrow()),
        };
        let (action, parameters) = (
            request.action.clone(),
            request.parameters.clone().unwrap_or_default(),
        );
        let slots = Arc::clone(&self.builtin_slots);
        let work = async move {
            // Held until the work is over, not only until its time is: a builtin that hangs on a dead disk keeps its
            // slot, and so can never take every thread that the daemon itself needs.
            let slot = slots.acquire_owned().await;
            // A thread of its own: a panic in there ends that action and nothing else.
            spawn_blocking(move || {
                let _slot = slot;
                builtins::run(action.as_str(), &parameters, &context)
            })
            .await
        };
        match tokio::time::timeout(limit, work).await {
            Err(_) => {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                Outcome::of(Ended::TimedOut {
                    limit_ms,
                    killed: false,
                })
            }
            Ok(Err(_panic)) => Outcome::of(Ended::Broke {
                why: "the builtin failed inside musterd".to_owned(),
            }),
            Ok(Ok(Err(Failed::Unknown))) => Outcome::refused(
                "unknown_action",
                format!("this node has no builtin {}", request.action),
            ),
            Ok(Ok(Err(Failed::Parameters(why)))) => Outcome::refused("invalid_parameters", why),
            Ok(Ok(Err(Failed::Work(why)))) => Outcome::of(Ended::Broke { why }),
            Ok(Ok(Ok(bytes))) => {
                let run = RunDir::of(&self.config.state_dir, request.execution_id, attempt);
                let ended = Ended::Exited { code: 0 };
                match keep(&run, bytes) {
                    Ok(output) => Outcome {
                        ended,
                        output,
                        remark: None,
                    },
                    Err(err) => Outcome {
                        remark: Some(format!("output_incomplete: {err}")),
                        ..Outcome::of(ended)
                    },
                }
            }
        }
    }

    /// Every refusal on the way is an outcome too.
    async fn hook(
        &self,
        request: &ActionRequest,
        attempt: u32,
        limit: Duration,
        stop_asked: StopAsked,
    ) -> Result<Outcome, Outcome> {
        let parameters = request.parameters.clone().unwrap_or_default();
        parameters::variables(&parameters)
            .map_err(|err| Outcome::refused("invalid_parameters", err.to_string()))?;
        let pinned = self.pin(request).await?;
        self.trust(request, pinned.digest).await?;
        if *stop_asked.borrow() {
            return Err(Outcome::of(Ended::CancelledWaiting));
        }
        let run = RunDir::of(&self.config.state_dir, request.execution_id, attempt);
        let spec = Spec {
            execution_id: request.execution_id,
            node_id: self.node,
            action: request.action.clone(),
            parameters,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            stop_grace_ms: u64::try_from(self.config.limits.stop_grace.as_millis()).unwrap_or(u64::MAX),
            output_bytes_max: self.config.limits.output_bytes_max,
            boot_id: self.boot_id.clone(),
        };
        let (run, supervisor) = spawn_blocking(move || {
            let supervisor = start_supervisor(&run, &spec, pinned);
            (run, supervisor)
        })
        .await
        .map_err(|err| Outcome::of(Ended::Broke { why: err.to_string() }))?;
        let (mut child, handle) = supervisor.map_err(|err| {
            let code = if durable::is_full(&err) {
                "disk_full"
            } else {
                "hook_not_started"
            };
            Outcome::refused(code, format!("its supervisor could not be started: {err}"))
        })?;
        wait_for(&run, handle, stop_asked.clone()).await;
        // It has ended, so this does not block; without it a zombie would stay.
        if let Err(err) = child.wait() {
            log::warn!(execution_id:% = request.execution_id, error:% = err; "A supervisor could not be reaped");
        }
        Ok(self.result_of(request.execution_id, run, &stop_asked).await)
    }

    async fn pin(&self, request: &ActionRequest) -> Result<Pinned, Outcome> {
        if builtins::is_builtin(request.action.as_str()) {
            return Err(Outcome::refused(
                "hook_refused",
                format!("{} is the name of a builtin", request.action),
            ));
        }
        let (config, name) = (Arc::clone(&self.config), request.action.clone());
        let pinned = spawn_blocking(move || {
            HookDir::open(&config.hooks_dir)?.pin(&name, config.limits.hook_bytes_max)
        })
        .await
        .map_err(|err| Outcome::of(Ended::Broke { why: err.to_string() }))?;
        pinned.map_err(|err| {
            let code = match err {
                NoHook::Missing { .. } => "unknown_action",
                NoHook::NoDirectory { .. }
                | NoHook::Symlink { .. }
                | NoHook::NotRegular { .. }
                | NoHook::Owner { .. }
                | NoHook::Writable { .. }
                | NoHook::NotExecutable { .. }
                | NoHook::TooLong { .. }
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

    async fn result_of(&self, execution: ExecutionId, run: RunDir, stop_asked: &StopAsked) -> Outcome {
        self.outlive(&run, stop_asked).await;
        let boot_id = self.boot_id.clone();
        let stopped = *stop_asked.borrow();
        let examined = spawn_blocking(move || match run.examine(&boot_id) {
            Ok(Found::NeverRan) if stopped => Outcome::of(Ended::CancelledWaiting),
            Ok(Found::NeverRan) => Outcome::refused("hook_not_started", complaint(&run)),
            Ok(Found::Lost(why)) => {
                end_survivors(execution);
                outcome_of(Ok(Found::Lost(why)))
            }
            found => outcome_of(found),
        });
        examined
            .await
            .unwrap_or_else(|err| Outcome::of(Ended::Broke { why: err.to_string() }))
    }

    /// An attempt that the journal has forgotten may run still, under the supervisor that has its claim. The one that was
    /// started just now has left it alone.
    async fn outlive(&self, run: &RunDir, stop_asked: &StopAsked) {
        let (attempt, boot_id) = (RunDir::at(run.path().to_owned()), self.boot_id.clone());
        if let Ok(Ok(Found::Running(other))) = spawn_blocking(move || attempt.examine(&boot_id)).await {
            wait_for(run, other, stop_asked.clone()).await;
        }
    }
}

/// Ends what a hook started and its dead supervisor can no longer end. The hook itself died with the supervisor.
pub(crate) fn end_survivors(execution: ExecutionId) {
    const ROUNDS_MAX: u32 = 20;
    let mut killed = 0;
    for _ in 0..ROUNDS_MAX {
        let survivors = procfs::with_variable("MUSTER_EXECUTION_ID", &execution.to_string());
        if survivors.is_empty() {
            break;
        }
        killed += survivors.len();
        survivors
            .into_iter()
            .for_each(|process| procfs::signal(process, Signal::KILL));
        std::thread::sleep(Duration::from_millis(20));
    }
    if killed > 0 {
        log::warn!(execution_id:% = execution, killed; "Killed what a hook had left behind its dead supervisor");
    }
}

/// The supervisor has ended, or nobody knows of one.
pub(crate) fn outcome_of(found: std::io::Result<Found>) -> Outcome {
    match found {
        Ok(Found::Ended(outcome)) => outcome,
        Ok(Found::Lost(why)) => Outcome::of(Ended::Lost { why }),
        Ok(Found::Running(_) | Found::NeverRan) => Outcome::of(Ended::Lost {
            why: "agent_restarted: the supervisor was lost".to_owned(),
        }),
        Err(err) => Outcome::of(Ended::Lost {
            why: format!("agent_restarted: the record of the run is unreadable: {err}"),
        }),
    }
}

fn complaint(run: &RunDir) -> String {
    let said = fs::read_to_string(run.complaint()).unwrap_or_default();
    let said = said.trim();
    if said.is_empty() {
        "its supervisor ended before the hook was started".to_owned()
    } else {
        said.to_owned()
    }
}

/// The sealed hook is handed over as standard input, the one descriptor that needs no arrangement.
fn start_supervisor(
    run: &RunDir,
    spec: &Spec,
    pinned: Pinned,
) -> std::io::Result<(std::process::Child, OwnedFd)> {
    run.create()?;
    if let Err(err) = run.write_spec(spec) {
        // Nothing has been started that could need it, and on a full disk others do.
        let _ = run.remove();
        return Err(err);
    }
    let mut child = Command::new("/proc/self/exe")
        .arg("supervise")
        .arg(run.path())
        .env_clear()
        .envs(effect::for_supervisor())
        .current_dir("/")
        .stdin(Stdio::from(pinned.sealed))
        .stdout(Stdio::null())
        .stderr(fs::File::create(run.complaint())?)
        .spawn()?;
    effect::done("the supervisor spawned");
    let opened = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    match opened {
        Some(Ok(handle)) => Ok((child, handle)),
        failed => {
            // Without the handle its end would go unnoticed.
            let _ = child.kill();
            let _ = child.wait();
            Err(failed.map_or_else(
                || std::io::Error::other("no pid"),
                |err| {
                    err.err()
                        .map_or_else(|| std::io::Error::other("no pidfd"), Into::into)
                },
            ))
        }
    }
}

/// Waits for the end of a supervisor, and asks it to end when told to.
async fn wait_for(run: &RunDir, supervisor: OwnedFd, stop_asked: StopAsked) {
    // A pidfd is readable once the process has ended; an error means the same to us.
    let supervisor = match readiness::of(supervisor) {
        Ok(supervisor) => supervisor,
        Err(err) => return log::error!(error:% = err; "A supervisor cannot be waited for"),
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
        log::warn!(error:% = err; "A supervisor could not be signalled");
    }
}

/// Small output stays with the journal's record of the ending; larger goes to a spool as a hook's does.
fn keep(run: &RunDir, bytes: Vec<u8>) -> std::io::Result<Output> {
    if bytes.len() <= INLINE_OUTPUT_BYTES_MAX {
        return Ok(Output::Inline { bytes: Base64(bytes) });
    }
    run.create()?;
    durable::write(&run.output(), &bytes)?;
    let total_bytes = bytes.len() as u64;
    Ok(Output::Spool {
        kept_bytes: total_bytes,
        total_bytes,
        sha256: Digest::of(&bytes),
    })
}
