//! What the node says of itself: which actions it has, and which hooks are not as they were. Said again on every
//! connect and whenever the hooks directory changes, until control has heard it.

use std::{sync::Arc, time::Duration};

use muster_shared::{
    labels::Labels,
    message_id::HOOK_CHANGED,
    wire::{Base64, CapabilityManifest, DetectedBy, ReportedKind, ViolationReport, ViolationsRequest},
};
use tokio::sync::{mpsc, watch};

use crate::{
    backoff::{self, Backoff},
    builtins,
    clock::Clock,
    config::Config,
    control::{CallError, Control},
    enroll::machine,
    heartbeat::Binary,
    hooks::catalog::{self, Catalog, State},
    journal::{Journal, JournalError, Violation},
};

/// A request to look or to speak again. It carries no news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Poke {
    Rescan,
    Declare,
}

pub(crate) struct Declarer {
    pub(crate) settings: watch::Receiver<Arc<Config>>,
    pub(crate) control: Control,
    pub(crate) journal: Journal,
    pub(crate) clock: Clock,
    pub(crate) binary: Binary,
    pub(crate) catalog: watch::Sender<Arc<Catalog>>,
}

#[derive(Debug, thiserror::Error)]
enum Unsaid {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Looks at the hooks directory once and logs what is wrong with it.
pub(crate) async fn scan(
    config: Arc<Config>,
    journal: &Journal,
    clock: &Clock,
    detected_by: DetectedBy,
) -> Result<Catalog, JournalError> {
    let listing = tokio::task::spawn_blocking(move || catalog::look(&config.hooks_dir, config.limits.sizes))
        .await
        .map_err(|_| JournalError::NoAnswer)?;
    let now = clock.now();
    journal
        .ask(move |store| catalog::judge_all(listing, store, now, detected_by))
        .await
}

/// Says each trouble once, not at every look.
fn log_troubles(before: &Catalog, after: &Catalog) {
    if let (Some(problem), true) = (&after.problem, before.problem != after.problem) {
        log::warn!("{problem}");
    }
    for seen in after.seen.iter().filter(|seen| !before.seen.contains(seen)) {
        match &seen.state {
            State::Refused { why } => log::warn!(hook = seen.name; "A file is no hook: {why}"),
            State::Hook {
                digests, baseline, ..
            } if digests.whole() != *baseline => {
                log::warn!(message_id = HOOK_CHANGED, hook = seen.name, observed:% = digests.whole(),
                    expected:% = baseline;
                    "A hook or its manifest has changed; it will not run until its digest is approved");
            }
            State::Hook { digests, .. } => {
                log::info!(hook = seen.name, digest:% = digests.whole(); "Found a hook");
            }
        }
    }
}

impl Declarer {
    pub(crate) async fn speak(self, mut pokes: mpsc::Receiver<Poke>) {
        let mut backoff = Backoff::new(self.config().limits.backoff);
        log_troubles(&Catalog::default(), &self.catalog.borrow());
        // The first connection asks for the first declaration.
        let (mut rescan, mut declare) = (false, false);
        loop {
            if rescan {
                match self.rescan().await {
                    Ok(changed) => (rescan, declare) = (false, declare || changed),
                    Err(err) => {
                        log::error!(error:% = err; "The hooks could not be compared with their baselines")
                    }
                }
            }
            let wait = match self.say(declare).await {
                Ok(()) => {
                    declare = false;
                    backoff.reset();
                    if rescan {
                        backoff.next(backoff::chance())
                    } else {
                        Duration::MAX
                    }
                }
                Err(err) => {
                    log::warn!(error:% = err; "Control has not taken what the node says of itself");
                    let asked = match &err {
                        Unsaid::Call(call) => call.retry_after(),
                        Unsaid::Journal(_) => None,
                    };
                    backoff.next_unless_asked(asked, backoff::chance())
                }
            };
            match tokio::time::timeout(wait, pokes.recv()).await {
                Ok(Some(Poke::Rescan)) => rescan = true,
                Ok(Some(Poke::Declare)) => declare = true,
                Ok(None) => return,
                Err(_later) => {}
            }
        }
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.settings.borrow())
    }

    /// Says whether anything that is declared has changed.
    async fn rescan(&self) -> Result<bool, JournalError> {
        let after = scan(self.config(), &self.journal, &self.clock, DetectedBy::Inotify).await?;
        let before = Arc::clone(&self.catalog.borrow());
        log_troubles(&before, &after);
        let changed = before.seen != after.seen;
        self.catalog.send_replace(Arc::new(after));
        Ok(changed)
    }

    /// The facts of the machine, and what its admin calls it: his word counts where both have one.
    fn labels(&self) -> Labels {
        let mut labels = machine::facts();
        labels.extend(self.config().labels.clone());
        labels
    }

    async fn say(&self, declare: bool) -> Result<(), Unsaid> {
        if declare {
            let policy = self.config().policy.clone();
            let manifest = CapabilityManifest {
                binary_version: env!("CARGO_PKG_VERSION").to_owned(),
                binary_checksum: Base64(self.binary.checksum.as_bytes().to_vec()),
                declared_hooks: self.catalog.borrow().declared(&policy),
                builtin_actions: builtins::declared(&policy),
                refused_hooks: self.catalog.borrow().refused(),
                labels: Some(self.labels()),
            };
            let answer = self.control.declare(&manifest).await?;
            log::debug!(changed:? = answer.fields_changed; "Declared the node's actions");
        }
        let told = self
            .journal
            .ask(super::journal::Store::undelivered_violations)
            .await?;
        if told.is_empty() {
            return Ok(());
        }
        let violations = told.iter().map(report).collect();
        self.control
            .report_violations(&ViolationsRequest { violations })
            .await?;
        let now = self.clock.now();
        Ok(self
            .journal
            .ask(move |store| store.violations_delivered(&told, now))
            .await?)
    }
}

fn report(violation: &Violation) -> ViolationReport {
    ViolationReport {
        kind: ReportedKind::HookChecksum,
        detected_by: violation.detected_by,
        artifact_id: violation.hook.clone(),
        observed_checksum: Some(violation.observed),
        expected_checksum: Some(violation.expected),
    }
}
