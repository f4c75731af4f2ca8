//! The node's memory: which invocations it took, how far each is, and how far control knows; and the hooks' baselines.
//!
//! Every fact is durable before the effect that depends on it. The database works on a thread of its own, which runs
//! what it is given in order. It is never re-created silently: a node that forgot what it ran could run it twice.

mod schema;
mod store;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use muster_shared::{ids::NodeId, time::Timestamp};
use tokio::sync::oneshot;

use crate::exit::Exit;
pub(crate) use schema::{open as open_store, open_to_read};
pub(crate) use store::{Store, Violation};

#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error("the journal could not be read or written")]
    Database(#[from] rusqlite::Error),
    #[error("column {column} of {table} row {key} makes no sense: {why}")]
    Corrupt {
        table: &'static str,
        key: String,
        column: &'static str,
        why: String,
    },
    #[error("the journal gave no answer")]
    NoAnswer,
}

pub(crate) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("journal.db")
}

type Work = Box<dyn FnOnce(&mut Store) + Send>;

#[derive(Clone)]
pub(crate) struct Journal {
    work: mpsc::Sender<Work>,
}

impl Journal {
    pub(crate) fn open(state_dir: &Path, node: NodeId) -> Result<Self, Exit> {
        let mut store = schema::open(&path(state_dir), node)?;
        let (work, queue) = mpsc::channel::<Work>();
        thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                for job in queue {
                    // One job that breaks is rolled back and goes unanswered; those after it are served.
                    let _ = catch_unwind(AssertUnwindSafe(|| job(&mut store)));
                }
            })
            .map_err(|err| Exit::Failure(format!("the thread of the journal could not be started: {err}")))?;
        Ok(Self { work })
    }

    /// Runs `job` after everything that was asked before.
    pub(crate) async fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Store) -> Result<R, JournalError> + Send + 'static,
    ) -> Result<R, JournalError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |store| drop(answer.send(job(store))));
        self.work.send(work).map_err(|_| JournalError::NoAnswer)?;
        answered.await.map_err(|_| JournalError::NoAnswer)?
    }

    pub(crate) async fn prune(&self, before: Timestamp) -> Result<usize, JournalError> {
        self.ask(move |store| store.prune(before)).await
    }
}

#[cfg(test)]
mod tests;
