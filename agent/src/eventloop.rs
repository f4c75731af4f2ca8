//! The daemon: one loop that hears everything, asks the session what to do, makes it durable and does it.

mod assembly;
mod performing;
mod recovery;
mod retelling;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use muster_shared::{
    envelope::Verified,
    ids::ExecutionId,
    message_id::{ACTION_ENDED, POLICY_REFUSED},
    status::Status,
    time::Timestamp,
    wire::{ActionCancel, ActionRequest, BaselineUpdated, Restored},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use retelling::Retelling;

use crate::{
    builtins::ReloadAsked,
    clock::Clock,
    config::{Config, Reloaded},
    declare::{Poke, Pokes},
    exit::{self, Exit},
    identity::Identity,
    instance::Instance,
    journal::Journal,
    kick::Kicker,
    outcome::Outcome,
    policy,
    report::Reporter,
    resident::Program,
    runner::Runner,
    service::{self, Service},
    session::{Decision, Delivered, Input, Session},
    tool::desk::OverviewAsked,
};

const PRUNE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The clock may be stepped while the loop sleeps, so it never sleeps longer.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// What control says, and what becomes of the work that was begun. Reloads, hangups and the questions of `musterd status`
/// reach the loop by ways of their own.
pub(crate) enum Event {
    Connected,
    /// Control takes this daemon for the node's own.
    Admitted,
    /// The stream is down, or never came up.
    Disconnected {
        why: String,
    },
    Requested(Box<Verified<ActionRequest>>),
    CancelAsked(Verified<ActionCancel>),
    Approved(Verified<BaselineUpdated>),
    Ended {
        execution: ExecutionId,
        outcome: Outcome,
    },
    Delivered {
        execution: ExecutionId,
        status: Status,
        delivered: Delivered,
    },
    OutputSettled {
        execution: ExecutionId,
        unknown: bool,
    },
    /// Control was made again from a backup.
    Restored(Restored),
}

struct Daemon {
    config: Arc<Config>,
    settings: watch::Sender<Arc<Config>>,
    reloads: mpsc::Receiver<ReloadAsked>,
    overviews: mpsc::Receiver<OverviewAsked>,
    hangups: Signal,
    clock: Clock,
    journal: Journal,
    session: Session,
    runner: Arc<Runner>,
    reporter: Arc<Reporter>,
    pokes: Pokes,
    kicker: Kicker,
    /// Runs and deliveries; each ends in the event that it is for.
    work: JoinSet<Event>,
    /// The way to everything that runs.
    stops: BTreeMap<ExecutionId, watch::Sender<bool>>,
    /// The way to every output that follows its end.
    uploads: BTreeMap<ExecutionId, watch::Sender<bool>>,
    /// Facts that the journal would not take yet, and the effects that must wait for them; or facts that may wait, and go
    /// with the next ones.
    backlog: Decision,
    retry_at: Option<Instant>,
    prune_at: Instant,
    /// Whether that was done since the start.
    pruned: bool,
    program: Program,
    /// Whether anything was heard since its pages were given back.
    stirred: bool,
    /// What is being told again, because control was restored from a backup.
    retelling: Option<Retelling>,
    /// The last restore after which that was done.
    told_again: watch::Sender<Option<Timestamp>>,
    service: Service,
    server: String,
}

pub(crate) async fn run(
    config: Config,
    identity: Identity,
    instance: Instance,
    journal: Journal,
) -> Result<(), Exit> {
    let failed = |err: std::io::Error| Exit::Failure(format!("the daemon could not start: {err}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let (events, heard) = mpsc::channel(64);
    let mut tasks = JoinSet::new();
    let state_dir = config.state_dir.clone();
    let speaker = instance.clone();
    let mut daemon = Daemon::assemble(config, (identity, speaker), journal, events, &mut tasks).await?;
    daemon.recover().await?;
    tokio::select! {
        ended = daemon.work_on(heard) => ended,
        // Everything that lives on its own has to live on; one that ended would be missed without a word.
        Some(task) = tasks.join_next() => Err(Exit::Failure(format!("a part of the daemon ended: {task:?}"))),
        refused = instance.refused(&state_dir) => Err(refused),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }?;
    // Nothing is lost by stopping here: what is owed is in the journal, and supervisors outlive their daemon.
    let running = daemon.session.running();
    log::info!(running; "Stopping");
    service::stopping(&format!(
        "Stopping; {running} action(s) run on and are taken up again"
    ));
    Ok(())
}

impl Daemon {
    async fn work_on(&mut self, mut heard: mpsc::Receiver<Event>) -> Result<(), Exit> {
        loop {
            self.service.went_round();
            let wake_at = self.wake_at();
            tokio::select! {
                event = heard.recv() => match event {
                    Some(event) => self.hear(event).await,
                    None => return Err(Exit::Failure("the event stream's task ended".to_owned())),
                },
                Some(done) = self.work.join_next() => match done {
                    Ok(event) => self.hear(event).await,
                    Err(err) => return Err(Exit::Failure(format!("a run or a delivery broke: {err}"))),
                },
                Some(answer) = self.reloads.recv() => {
                    let reloaded = self.reload().await;
                    drop(answer.send(reloaded));
                }
                Some(answer) = self.overviews.recv() => drop(answer.send(self.overview().await)),
                Some(()) = self.hangups.recv() => drop(self.reload().await),
                () = sleep_until(wake_at) => self.wake().await,
            }
        }
    }

    /// Reads the configuration again. One that is not sound changes nothing. Answers which settings wait for the next
    /// start. Either way whatever waits to be tried again is tried now.
    async fn reload(&mut self) -> Result<Vec<&'static str>, String> {
        let reloaded = self.read_again().await;
        self.kicker.kick();
        reloaded
    }

    async fn read_again(&mut self) -> Result<Vec<&'static str>, String> {
        let Reloaded {
            config,
            at_next_start,
        } = self.config.reload().inspect_err(|why| {
            log::error!("The configuration stays as it was: {why}");
        })?;
        log::info!(limits:? = config.limits, policy:? = config.policy, at_next_start:?;
            "Read the configuration again");
        self.config = Arc::new(config);
        self.settings.send_replace(Arc::clone(&self.config));
        let limits = &self.config.limits;
        self.session
            .set_limits(limits.running_max, limits.queue_max, limits.outputs);
        // Both what there is and what is allowed of it may be another now.
        self.pokes.poke(Poke::Rescan);
        self.pokes.poke(Poke::Declare);
        let decision = self.session.handle(Input::Woken, self.clock.now());
        self.perform(decision).await;
        Ok(at_next_start)
    }

    fn wake_at(&self) -> Instant {
        let queue = self
            .session
            .next_wake()
            .map(|at| Instant::now() + self.clock.now().until(at));
        let latest = (Instant::now() + SLEEP_MAX).min(self.prune_at);
        [queue, self.retry_at, self.service.next_round()]
            .into_iter()
            .flatten()
            .fold(latest, Instant::min)
    }

    async fn wake(&mut self) {
        if self.prune_at <= Instant::now() {
            self.prune().await;
        }
        let decision = self.session.handle(Input::Woken, self.clock.now());
        self.perform(decision).await;
        if self.work.is_empty() && std::mem::take(&mut self.stirred) {
            self.program.give_back();
        }
    }

    /// By control's clock: what a wrong one takes for old is gone for good.
    async fn prune(&mut self) {
        if !self.clock.is_known() {
            self.prune_at = Instant::now() + SLEEP_MAX;
            return;
        }
        self.prune_at = Instant::now() + PRUNE_INTERVAL;
        let before = self.clock.now().minus(self.config.limits.journal_keep);
        let first = !std::mem::replace(&mut self.pruned, true);
        match self.journal.prune(before).await {
            Ok(0) if !first => {}
            Ok(count) => {
                if count > 0 {
                    log::info!(count; "Forgot invocations that were settled long ago");
                }
                self.sweep_after_pruning().await;
            }
            Err(err) => log::warn!(error:% = exit::chain(&err); "The journal could not be pruned"),
        }
    }

    async fn hear(&mut self, event: Event) {
        self.stirred = true;
        let input = match event {
            Event::Connected => {
                self.service.ready(&format!("Connected to {}", self.server));
                self.reporter.nudge();
                self.pokes.poke(Poke::Declare);
                return;
            }
            Event::Disconnected { why } => {
                return self
                    .service
                    .ready(&format!("Not connected to {}: {why}", self.server));
            }
            Event::Approved(approval) => return self.approve(approval.into_inner()).await,
            Event::CancelAsked(cancel) => match self.look_up_cancel(cancel.execution_id).await {
                Some(input) => input,
                None => return,
            },
            Event::Requested(request) => match self.look_up(Box::new(request.into_inner())).await {
                Some(input) => input,
                None => return,
            },
            Event::Ended { execution, outcome } => {
                self.stops.remove(&execution);
                let outcome = self.session.judged(execution, outcome);
                log_end(&self.session, execution, &outcome);
                Input::Ended { execution, outcome }
            }
            Event::Delivered {
                execution,
                status,
                delivered,
            } => Input::Delivered {
                execution,
                status,
                delivered,
            },
            Event::Admitted => {
                // What time it is, is known by now.
                self.prune_at = self.prune_at.min(Instant::now());
                Input::Admitted
            }
            Event::OutputSettled { execution, unknown } => {
                self.uploads.remove(&execution);
                Input::OutputSettled { execution, unknown }
            }
            Event::Restored(restored) => return self.tell_again_after(restored).await,
        };
        let decision = self.session.handle(input, self.clock.now());
        self.perform(decision).await;
        self.tell_more().await;
    }

    /// The journal is asked before anything is taken: what was settled long ago is known only there.
    async fn look_up(&mut self, request: Box<ActionRequest>) -> Option<Input> {
        let execution = request.execution_id;
        let denied = self.config.policy.denial(&request, policy::wall::now());
        if let Some(rule) = &denied {
            log::warn!(message_id = POLICY_REFUSED, execution_id:% = execution, action:% = request.action,
                node_id:% = request.node_id; "Control asks for what the node's own policy forbids: {rule}");
        }
        self.session.set_lanes(self.runner.catalog.borrow().lanes());
        if self.session.knows(execution) {
            return Some(Input::Requested {
                request,
                recorded: None,
                cancelled: false,
                denied: None,
            });
        }
        let (action, node) = (request.action.clone(), request.node_id);
        let asked = self
            .journal
            .ask(move |store| Ok((store.find(execution)?, store.is_cancelled(execution)?)));
        match asked.await {
            Ok((recorded, cancelled)) => Some(Input::Requested {
                request,
                recorded: recorded.map(Box::new),
                // A cancel that the journal has not taken yet is as good as one that it has.
                cancelled: cancelled || self.backlog.cancels(execution),
                denied,
            }),
            Err(err) => {
                // It may have run before, so it must not run now. Control sends it again.
                log::error!(execution_id:% = execution, action:% = action, node_id:% = node, error:% = exit::chain(&err);
                    "A request was put aside, because the journal could not be asked about it");
                None
            }
        }
    }

    async fn look_up_cancel(&self, execution: ExecutionId) -> Option<Input> {
        if let Some(request) = self.session.request(execution) {
            log_cancel(request);
            let settled = false;
            return Some(Input::CancelAsked { execution, settled });
        }
        if self.backlog.cancels(execution) {
            // It waits for the journal already.
            return None;
        }
        match self.journal.ask(move |store| store.find(execution)).await {
            Ok(recorded) => {
                match &recorded {
                    Some(recorded) => log_cancel(&recorded.request),
                    None => log::info!(execution_id:% = execution, node_id:% = self.runner.node;
                        "Control asks to cancel an action that has not come here yet"),
                }
                Some(Input::CancelAsked {
                    execution,
                    settled: recorded.is_some(),
                })
            }
            Err(err) => {
                log::error!(execution_id:% = execution, node_id:% = self.runner.node, error:% = exit::chain(&err);
                    "A cancel was put aside, because the journal could not be asked about it");
                None
            }
        }
    }

    async fn approve(&self, approval: BaselineUpdated) {
        let BaselineUpdated {
            hook,
            digest,
            approved_at,
            ..
        } = approval;
        let name = hook.clone();
        match self
            .journal
            .ask(move |store| store.approve(&hook, digest, approved_at))
            .await
        {
            Ok(true) => {
                log::info!(hook:% = name, digest:% = digest; "An operator approved a hook");
                self.pokes.poke(Poke::Rescan);
            }
            Ok(false) => log::debug!(hook:% = name; "An approval that is known already"),
            Err(err) => {
                log::error!(hook:% = name, error:% = exit::chain(&err); "An approval could not be recorded");
            }
        }
    }
}

fn log_cancel(request: &ActionRequest) {
    log::info!(execution_id:% = request.execution_id, action:% = request.action, node_id:% = request.node_id;
        "Control asks to cancel an action");
}

fn log_end(session: &Session, execution: ExecutionId, outcome: &Outcome) {
    let Some(request) = session.request(execution) else {
        return;
    };
    let (action, node, status) = (&request.action, request.node_id, outcome.status());
    match outcome.callback().error {
        None => {
            log::info!(message_id = ACTION_ENDED, execution_id:% = execution, action:% = action, node_id:% = node,
            status:% = status; "An action ended")
        }
        Some(error) => {
            log::info!(message_id = ACTION_ENDED, execution_id:% = execution, action:% = action, node_id:% = node,
            status:% = status, error; "An action ended")
        }
    }
}
