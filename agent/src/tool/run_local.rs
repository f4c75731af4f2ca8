//! `musterd run-local`: an action by the way of a dispatch, for the admin of the machine and without control.
//!
//! The same [`Runner`] runs it. What it needs of a node is lent to it in a directory of this run: a journal with the
//! node's baselines, and room for the run. The node's own journal is only read.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_shared::{
    ids::{ActionName, EventId, ExecutionId, NodeId},
    parameter_text,
    status::Status,
    time::Timestamp,
    wire::{
        ActionKind, ActionRequest, Base64, DetectedBy, HookManifest, Parameters, TIMEOUT_SECONDS_DEFAULT,
        TIMEOUT_SECONDS_MAX,
    },
};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde_json::Value;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};

use super::{
    desk::{self, Answer, DeskReply, Question},
    hooks::Baselines,
    render,
};
use crate::{
    args::{RunLocalArgs, View},
    builtins::{self, ReloadAsked, slots::Slots},
    clock::Clock,
    config::Config,
    declare::{self, Pokes},
    exit::{self, Exit},
    hooks::{
        affinity::Lane,
        catalog::{Catalog, State},
    },
    identity::{IdentityFile, StateLock},
    journal::{self, Bounds, Closing, Journal},
    launch::Launcher,
    logging::{copy_to_stdout, say_on_stderr},
    outcome::{Ended, Outcome, Output},
    run_dir::{self, RunDir},
    runner::Runner,
    session,
};

const ATTEMPT: u32 = 1;
/// Who asks for a local run, as the policy names it. Nobody has this name at control, where each has a kind before it.
const LOCAL_CALLER: &str = "local";
const TIMED_OUT: u8 = 124;
const REFUSED: u8 = 126;
const SIGNALLED: u8 = 128;
const STOPPED: u8 = 130;

#[derive(Serialize)]
struct Ran {
    execution_id: ExecutionId,
    action: ActionName,
    status: Status,
    exit_code: Option<i64>,
    /// What control would show.
    error: Option<String>,
    /// The bytes that the action wrote, when more than `output` has.
    output_total_bytes: Option<u64>,
    /// Null where it is no text.
    output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_base64: Option<Base64>,
}

pub(crate) async fn run(args: RunLocalArgs) -> Result<u8, Exit> {
    let view = args.tool.output;
    let config = Config::load(args.tool.place.clone())?;
    let failed = |err: io::Error| Exit::Failure(format!("the run could not be prepared: {err}"));
    // Before anything is started, so that nothing is left behind by a signal.
    let mut signals = Vec::new();
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ] {
        signals.push(signal(kind).map_err(failed)?);
    }
    let [interrupt, terminate, hangup] = &mut signals[..] else {
        return Err(Exit::Failure("the signals are not those asked for".to_owned()));
    };
    let node = super::node_or_nobody(IdentityFile::read(&config.state_dir)?.as_ref())?;
    let execution = ExecutionId::mint(Timestamp::now(), super::chance()?);
    let boot_id = run_dir::boot_id().map_err(failed)?;
    sweep(&config.state_dir, &boot_id);
    let launcher = Launcher::choose(config.launcher)?;
    let mut scratch = Scratch::make(&config.state_dir, execution)?;
    let journal = scratch.journal(&config.state_dir, node, config.limits.journal)?;
    let mut settings = config;
    let state_dir = settings.state_dir.clone();
    settings.state_dir.clone_from(&scratch.dir);
    let settings = Arc::new(settings);
    let clock = Clock::default();
    let catalog = declare::scan(Arc::clone(&settings), &journal, &clock, DetectedBy::PreDispatch)
        .await
        .map_err(|err| Exit::Journal(exit::chain(&err)))?;
    let request = request(&args, &catalog, (execution, node))?;
    if !args.beside
        && let Some(why) = in_the_way(&state_dir, &catalog, args.action.as_str())?
    {
        let outcome = Outcome::refused("not_beside", why);
        return told(&request, &outcome, &scratch, view);
    }

    let (_settings, settings_seen) = watch::channel(settings);
    let (_catalog, catalog_seen) = watch::channel(Arc::new(catalog));
    // Nobody looks again at hooks for the sake of one run.
    let (reload, reloads) = mpsc::channel(1);
    let refusing = tokio::spawn(refuse_reloads(reloads));
    let runner = Runner {
        settings: settings_seen,
        node,
        boot_id,
        clock,
        journal,
        catalog: catalog_seen,
        pokes: Pokes::default(),
        builtin_slots: Slots::new(),
        reload,
        launcher,
    };
    let (stop, stop_asked) = watch::channel(false);
    let mut work = Box::pin(runner.run(&request, ATTEMPT, stop_asked));
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            _ = interrupt.recv() => drop(stop.send_replace(true)),
            _ = terminate.recv() => drop(stop.send_replace(true)),
            _ = hangup.recv() => drop(stop.send_replace(true)),
        }
    };
    refusing.abort();
    told(&request, &outcome, &scratch, view)
}

fn told(request: &ActionRequest, outcome: &Outcome, scratch: &Scratch, view: View) -> Result<u8, Exit> {
    let run = RunDir::of(&scratch.dir, request.execution_id, ATTEMPT);
    tell(request, outcome, &run, view)
        .map_err(|err| Exit::Failure(format!("its output could not be printed: {err}")))?;
    Ok(code(&outcome.ended))
}

/// What the daemon runs now and this must not run beside. What the daemon starts later takes no account of this run.
fn in_the_way(state_dir: &Path, catalog: &Catalog, action: &str) -> Result<Option<String>, Exit> {
    let lanes = catalog.lanes();
    let lane = |action: &str| session::lane_of(kind_of(action), action, &lanes);
    let ours = lane(action);
    if ours == Lane::ReadOnly {
        return Ok(None);
    }
    let running = match desk::ask(state_dir, &Question::Status)? {
        DeskReply::Answered(Answer::Status(told)) => told.overview.running,
        DeskReply::NoDaemon => return Ok(None),
        DeskReply::Answered(Answer::Refused { .. } | Answer::Trusted) | DeskReply::Mute(_) => {
            return Err(Exit::StateInUse(
                "the daemon does not say what it runs, so that this might disturb it: say --beside to run it all the same"
                    .to_owned(),
            ));
        }
    };
    let other = running
        .iter()
        .find(|running| !ours.runs_beside(&lane(running.action.as_str())));
    Ok(other.map(|other| {
        format!(
            "the daemon runs {} ({}), and {action} must not run beside it: wait for its end, or say --beside",
            other.action, other.execution_id
        )
    }))
}

async fn refuse_reloads(mut reloads: mpsc::Receiver<ReloadAsked>) {
    while let Some(answer) = reloads.recv().await {
        let why = "there is no daemon in a local run: send SIGHUP to the one that is to reload".to_owned();
        drop(answer.send(Err(why)));
    }
}

fn kind_of(action: &str) -> ActionKind {
    if builtins::is_builtin(action) {
        ActionKind::Builtin
    } else {
        ActionKind::Hook
    }
}

/// What control would have sent. It takes the hook as it is now: whether that is its baseline, the runner asks.
fn request(
    args: &RunLocalArgs,
    catalog: &Catalog,
    (execution, node): (ExecutionId, NodeId),
) -> Result<ActionRequest, Exit> {
    let name = args.action.as_str();
    let kind = kind_of(name);
    let seen = catalog.seen.iter().find(|seen| seen.name == name);
    let (digest, manifest) = match seen.map(|seen| &seen.state) {
        Some(State::Hook {
            digests, manifest, ..
        }) => (Some(digests.whole()), Some(manifest.declared())),
        Some(State::Refused { .. }) | None => (None, None),
    };
    let now = Timestamp::now();
    let timeout_seconds = timeout(args.timeout, manifest.as_ref())?;
    Ok(ActionRequest {
        event_id: EventId::mint(now, super::chance()?),
        occurred_at: now,
        execution_id: execution,
        node_id: node,
        action: args.action.clone(),
        kind,
        parameters: Some(parameters(&args.params, manifest.as_ref())?),
        timeout_seconds,
        callback_url: String::new(),
        // Nothing waits for it, so its own time limit is the only one.
        expires_at: now.plus(Duration::from_secs(2 * u64::from(TIMEOUT_SECONDS_MAX))),
        run_until: None,
        callback_token: String::new(),
        hook_digest: digest,
        requested_by: Some(LOCAL_CALLER.to_owned()),
    })
}

fn parameters(given: &[(String, Value)], manifest: Option<&HookManifest>) -> Result<Parameters, Exit> {
    let schemas: Vec<Value> = manifest
        .and_then(|manifest| manifest.parameters.clone())
        .into_iter()
        .collect();
    let typed = given.iter().map(|(name, value)| {
        let value = parameter_text::as_declared(name, value, &schemas);
        (name.clone(), value)
    });
    parameter_text::merge(typed).map_err(Exit::Failure)
}

fn timeout(asked: Option<Duration>, manifest: Option<&HookManifest>) -> Result<u32, Exit> {
    let Some(asked) = asked else {
        let of_manifest = manifest.and_then(|manifest| manifest.timeout_default_seconds);
        return Ok(of_manifest.unwrap_or(TIMEOUT_SECONDS_DEFAULT));
    };
    match u32::try_from(asked.as_secs()) {
        Ok(seconds) if (1..=TIMEOUT_SECONDS_MAX).contains(&seconds) => Ok(seconds),
        Ok(_) | Err(_) => Err(Exit::Failure(format!(
            "--timeout is {} s; it must be 1 to {TIMEOUT_SECONDS_MAX} s",
            asked.as_secs()
        ))),
    }
}

fn tell(request: &ActionRequest, outcome: &Outcome, run: &RunDir, view: View) -> io::Result<()> {
    let callback = outcome.callback();
    match view {
        View::Table => {
            match &outcome.output {
                Output::None => {}
                Output::Inline { bytes, .. } => copy_to_stdout(&mut &bytes.0[..])?,
                Output::Spool { .. } => copy_to_stdout(&mut File::open(run.output())?)?,
            }
            if let Some(error) = &callback.error {
                say_on_stderr(&format!(
                    "musterd: {} {}: {}",
                    request.action,
                    callback.status,
                    render::line(error)
                ));
            }
        }
        View::Json => {
            let bytes = match &outcome.output {
                Output::None => Vec::new(),
                Output::Inline { bytes, .. } => bytes.0.clone(),
                Output::Spool { .. } => fs::read(run.output())?,
            };
            let (output, output_base64) = match String::from_utf8(bytes) {
                Ok(text) => (Some(text), None),
                Err(err) => (None, Some(Base64(err.into_bytes()))),
            };
            render::document(&Ran {
                execution_id: request.execution_id,
                action: request.action.clone(),
                status: callback.status,
                exit_code: callback.exit_code,
                error: callback.error,
                output_total_bytes: callback.output_total_bytes,
                output,
                output_base64,
            });
        }
    }
    Ok(())
}

/// As a shell would have it.
fn code(ended: &Ended) -> u8 {
    match ended {
        Ended::Exited { code } => u8::try_from(*code).unwrap_or(exit::FOUND_BAD),
        Ended::Signalled { signal } => u8::try_from(*signal).unwrap_or(0).saturating_add(SIGNALLED),
        // The kernel kills by SIGKILL.
        Ended::OutOfMemory { code, .. } => {
            let code = code.and_then(|code| u8::try_from(code).ok());
            code.unwrap_or(SIGNALLED.saturating_add(9))
        }
        Ended::TimedOut { .. } | Ended::Expired => TIMED_OUT,
        Ended::Refused { .. } => REFUSED,
        Ended::Stopped { .. } | Ended::Cancelled { .. } | Ended::CancelledWaiting | Ended::Withdrawn => {
            STOPPED
        }
        Ended::Broke { .. } | Ended::Lost { .. } | Ended::CutOff { .. } => exit::FOUND_BAD,
    }
}

fn local_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("local")
}

/// The directory of one local run, gone with it.
struct Scratch {
    dir: PathBuf,
    closing: Option<Closing>,
    _lock: StateLock,
}

impl Scratch {
    fn make(state_dir: &Path, execution: ExecutionId) -> Result<Self, Exit> {
        let dir = local_dir(state_dir).join(execution.to_string());
        Ok(Self {
            _lock: StateLock::take(&dir)?,
            closing: None,
            dir,
        })
    }

    /// One that knows the node's baselines and nothing else.
    fn journal(&mut self, state_dir: &Path, node: NodeId, bounds: Bounds) -> Result<Journal, Exit> {
        let baselines = Baselines::open(state_dir)?.all()?;
        let mut store = journal::open_store(&journal::path(&self.dir), node, bounds)?;
        for (hook, digest) in baselines {
            store
                .trust(&hook, digest, Timestamp::now())
                .map_err(|err| Exit::Journal(exit::chain(&err)))?;
        }
        drop(store);
        let (closing, journal) = Journal::open(&self.dir, node, bounds)?;
        self.closing = Some(closing);
        Ok(journal)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.closing.take());
        if let Err(err) = fs::remove_dir_all(&self.dir) {
            log::warn!(error:% = err; "The directory {} could not be removed", self.dir.display());
        }
    }
}

/// Removes what local runs left that were killed, once no supervisor works there any more.
fn sweep(state_dir: &Path, boot_id: &str) {
    let Ok(entries) = fs::read_dir(local_dir(state_dir)) else {
        return;
    };
    for dir in entries.flatten().map(|entry| entry.path()) {
        let name = dir.file_name().and_then(|name| name.to_str());
        let execution = name.and_then(|name| name.parse::<ExecutionId>().ok());
        let Some(execution) = execution else { continue };
        let Ok(lock) = File::open(dir.join("lock")) else {
            continue;
        };
        let free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        let works = RunDir::of(&dir, execution, ATTEMPT).supervisor(boot_id);
        if free && matches!(works, Ok(None)) {
            // The next run finds it again.
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_as_a_shell_would_have_it() {
        for (ended, expected) in [
            (Ended::Exited { code: 0 }, 0),
            (Ended::Exited { code: 7 }, 7),
            (Ended::Signalled { signal: 9 }, 137),
            (
                Ended::TimedOut {
                    limit_ms: 1,
                    killed: false,
                },
                124,
            ),
            (
                Ended::Refused {
                    code: "x".into(),
                    why: "y".into(),
                },
                126,
            ),
            (Ended::Stopped { processes_killed: 0 }, 130),
            (Ended::Lost { why: "z".into() }, 1),
        ] {
            assert_eq!(code(&ended), expected, "{ended:?}");
        }
    }

    #[test]
    fn the_manifest_says_how_long_unless_the_admin_does() {
        let manifest = HookManifest {
            timeout_default_seconds: Some(9),
            ..HookManifest::default()
        };
        assert_eq!(timeout(None, Some(&manifest)).unwrap(), 9);
        assert_eq!(timeout(None, None).unwrap(), TIMEOUT_SECONDS_DEFAULT);
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(timeout(seconds(3), Some(&manifest)).unwrap(), 3);
        for bad in [0, u64::from(TIMEOUT_SECONDS_MAX) + 1, u64::MAX] {
            assert!(timeout(seconds(bad), None).is_err(), "{bad}");
        }
    }
}
