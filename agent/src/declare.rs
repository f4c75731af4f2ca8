//! What the node says of itself: which actions it has, and which hooks are not as they were. Said again on every
//! connect and whenever the hooks directory changes, until control has heard it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use muster_shared::{
    labels::Labels,
    message_id::HOOK_CHANGED,
    wire::{Base64, CapabilityManifest, DetectedBy, ReportedKind, ViolationReport, ViolationsRequest},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

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
    kick::Kicks,
};

/// A request to look or to speak again. It carries no news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Poke {
    Rescan,
    Declare,
}

/// What was asked for and not begun yet. One request of a kind stands for all of that kind, so none is ever lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pokes(Arc<Poked>);

#[derive(Debug, Default)]
struct Poked {
    rescan: AtomicBool,
    declare: AtomicBool,
    news: Notify,
}

impl Pokes {
    pub(crate) fn poke(&self, poke: Poke) {
        self.of(poke).store(true, Ordering::Release);
        self.0.news.notify_one();
    }

    /// Whether this was asked for since it was last taken.
    pub(crate) fn take(&self, poke: Poke) -> bool {
        self.of(poke).swap(false, Ordering::AcqRel)
    }

    /// For the one who takes them.
    pub(crate) async fn poked(&self) {
        self.0.news.notified().await;
    }

    fn of(&self, poke: Poke) -> &AtomicBool {
        match poke {
            Poke::Rescan => &self.0.rescan,
            Poke::Declare => &self.0.declare,
        }
    }
}

pub(crate) struct Declarer {
    pub(crate) settings: watch::Receiver<Arc<Config>>,
    pub(crate) control: Control,
    pub(crate) journal: Journal,
    pub(crate) clock: Clock,
    pub(crate) binary: Binary,
    pub(crate) catalog: watch::Sender<Arc<Catalog>>,
    pub(crate) pokes: Pokes,
    pub(crate) kicks: Kicks,
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
    pub(crate) async fn speak(mut self) {
        let bounds = self.config().limits.backoff;
        let (mut looks, mut backoff) = (Backoff::new(bounds), Backoff::new(bounds));
        log_troubles(&Catalog::default(), &self.catalog.borrow());
        // The first connection asks for the first declaration.
        let (mut rescan, mut declare) = (false, false);
        // What control has asked for holds, whatever else is news but the word of the node's own admin.
        let mut not_before: Option<Instant> = None;
        loop {
            rescan |= self.pokes.take(Poke::Rescan);
            declare |= self.pokes.take(Poke::Declare);
            let mut look_again = Duration::MAX;
            if rescan {
                match self.rescan().await {
                    Ok(changed) => {
                        (rescan, declare) = (false, declare || changed);
                        looks.reset();
                    }
                    Err(err) => {
                        log::error!(error:% = err; "The hooks could not be compared with their baselines");
                        look_again = looks.next(backoff::chance());
                    }
                }
            }
            let left = not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                // What follows is what they were for.
                self.kicks.forget();
            }
            let speak_again = if !left.is_zero() {
                left
            } else if let Err(err) = self.say(declare).await {
                log::warn!(error:% = err; "Control has not taken what the node says of itself");
                let asked = match &err {
                    Unsaid::Call(call) => call.retry_after(),
                    Unsaid::Journal(_) => None,
                };
                let wait = backoff.next_unless_asked(asked, backoff::chance());
                not_before = asked
                    .is_some_and(|asked| !asked.is_zero())
                    .then(|| Instant::now() + wait);
                wait
            } else {
                declare = false;
                not_before = None;
                backoff.reset();
                Duration::MAX
            };
            tokio::select! {
                () = self.pokes.poked() => {}
                () = sleep(speak_again.min(look_again)) => {}
                () = self.kicks.kicked() => {
                    not_before = None;
                    backoff.reset();
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_poked(pokes: &Pokes) -> bool {
        let wait = Duration::from_millis(50);
        tokio::time::timeout(wait, pokes.poked()).await.is_ok()
    }

    #[tokio::test]
    async fn no_poke_is_lost_however_many_of_the_other_kind_there_are() {
        let pokes = Pokes::default();
        assert!(!is_poked(&pokes).await);
        for _ in 0..100 {
            pokes.poke(Poke::Rescan);
        }
        pokes.poke(Poke::Declare);
        assert!(is_poked(&pokes).await);
        assert!(pokes.take(Poke::Rescan) && pokes.take(Poke::Declare));
        assert!(!pokes.take(Poke::Rescan) && !pokes.take(Poke::Declare));
        assert!(!is_poked(&pokes).await, "all of them are one piece of news");
        // One that comes while they are being worked on is for the next round.
        pokes.poke(Poke::Declare);
        assert!(is_poked(&pokes).await && pokes.take(Poke::Declare));
    }
}
