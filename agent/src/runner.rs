//! Runs one invocation to its end: inside the daemon what only looks, all else under a supervisor of its own. What may run,
//! and with what, is found out here, at the moment of running it.

mod breaks;
mod inside;
mod supervised;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use muster_shared::{
    ids::{Digest, NodeId},
    wire::{ActionKind, ActionRequest, DetectedBy, Parameters, Verdict},
};
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
};

use crate::{
    builtins::{self, Failed, ReloadAsked, slots::Slots},
    clock::Clock,
    config::Config,
    declare::{Poke, Pokes},
    hooks::{
        HookDir, NoHook, Pinned,
        catalog::{self, Catalog},
        manifest::Manifest,
    },
    identity,
    journal::Journal,
    launch::Launcher,
    limits::HookLimits,
    outcome::{Ended, Outcome},
    parameters, policy,
    run_as::RunAs,
    run_dir::Work,
};

pub(crate) use supervised::MISSED;
use supervised::Supervised;

pub(crate) struct Runner {
    pub(crate) settings: watch::Receiver<Arc<Config>>,
    pub(crate) node: NodeId,
    pub(crate) boot_id: String,
    pub(crate) clock: Clock,
    pub(crate) journal: Journal,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) pokes: Pokes,
    pub(crate) builtin_slots: Slots,
    pub(crate) reload: mpsc::Sender<ReloadAsked>,
    pub(crate) launcher: Launcher,
}

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
        let supervised = Supervised {
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
        self.supervised(request, attempt, supervised, stop_asked).await
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
        let supervised = Supervised {
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
            limits: HookLimits::default(),
        };
        self.supervised(request, attempt, supervised, stop_asked).await
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
                self.pokes.poke(Poke::Rescan);
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

async fn asked(mut stop_asked: StopAsked) {
    if stop_asked.wait_for(|asked| *asked).await.is_err() {
        // Nobody is left who could ask.
        std::future::pending().await
    }
}
