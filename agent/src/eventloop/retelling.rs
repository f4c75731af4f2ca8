//! Telling again what control has forgotten: it was made anew from a backup, and this node remembers what came later.
//!
//! A few ends at a time, each as any other callback. Once all were answered for good that is noted, so that control asks no
//! more; a daemon that dies before begins anew, which changes nothing that is known by then.

use std::{collections::BTreeSet, time::Duration};

use muster_shared::{ids::ExecutionId, wire::Restored};

use super::Daemon;
use crate::{
    exit,
    journal::Store,
    session::{
        Input,
        overview::{Overview, Unknown},
    },
};

/// How many ends are told again at a time.
const PAGE: u32 = 100;
/// Control's clock, by which the backup has its instant, is known here only about.
const MARGIN: Duration = Duration::from_secs(300);

pub(super) struct Retelling {
    restored: Restored,
    /// The last one that was begun.
    after: Option<ExecutionId>,
    /// Those that control has not answered yet.
    open: BTreeSet<ExecutionId>,
}

impl Daemon {
    pub(super) async fn tell_again_after(&mut self, restored: Restored) {
        let under_way = |retelling: &Retelling| retelling.restored == restored;
        let done = *self.told_again.borrow() == Some(restored.restored_at);
        if done || self.retelling.as_ref().is_some_and(under_way) {
            return;
        }
        log::warn!(restored_at:% = restored.restored_at, taken_at:% = restored.taken_at;
            "Control was restored from a backup: what it was told since is told again");
        self.retelling = Some(Retelling {
            restored,
            after: None,
            open: BTreeSet::new(),
        });
        self.tell_more().await;
    }

    /// Goes on with the next few as soon as the last ones are answered.
    pub(super) async fn tell_more(&mut self) {
        while let Some(retelling) = &mut self.retelling {
            retelling.open.retain(|execution| self.session.knows(*execution));
            if !retelling.open.is_empty() {
                return;
            }
            let (since, after) = (retelling.restored.taken_at.minus(MARGIN), retelling.after);
            let page = self
                .journal
                .ask(move |store| store.told_since(since, after, PAGE))
                .await;
            let page = match page {
                Ok(page) => page,
                Err(err) => {
                    // Control says it again with the next heartbeat.
                    log::error!(error = exit::chain(&err); "What was told could not be read, to be told again");
                    self.retelling = None;
                    return;
                }
            };
            if page.is_empty() {
                return self.all_told_again().await;
            }
            for row in page {
                let execution = row.request.execution_id;
                let decision = self
                    .session
                    .handle(Input::TellAgain(Box::new(row)), self.clock.now());
                self.perform(decision).await;
                if let Some(retelling) = &mut self.retelling {
                    retelling.after = Some(execution);
                    retelling.open.insert(execution);
                }
            }
        }
    }

    async fn all_told_again(&mut self) {
        let Some(Retelling { restored, .. }) = self.retelling.take() else {
            return;
        };
        let at = restored.restored_at;
        match self.journal.ask(move |store| store.note_told_again(at)).await {
            Ok(()) => {
                log::info!("All that control may have forgotten was told again");
                self.told_again.send_replace(Some(at));
            }
            Err(err) => {
                log::error!(error = exit::chain(&err); "It could not be noted that all was told again")
            }
        }
    }

    /// What the session knows, and what control does not.
    pub(super) async fn overview(&self) -> Overview {
        let mut overview = self.session.overview();
        match self.journal.ask(Store::orphans).await {
            Ok(orphans) => {
                let unknown = orphans.iter().filter_map(|(row, since)| Unknown::of(row, *since));
                overview.unknown_to_control = unknown.collect();
            }
            Err(err) => {
                log::error!(error = exit::chain(&err); "What control does not know could not be read")
            }
        }
        overview
    }
}
