//! The node's memory: which invocations it took, how far each is, and how far control knows; and the hooks' baselines.
//!
//! Every fact is durable before the effect that depends on it. The database works on a thread of its own, which runs
//! what it is given in order. It is never re-created silently: a node that forgot what it ran could run it twice.

mod baselines;
mod schema;
mod store;

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use muster_shared::{ids::NodeId, time::Timestamp};
use tokio::sync::oneshot;

use crate::exit::Exit;
pub(crate) use baselines::Violation;
pub(crate) use schema::{open as open_store, open_to_read, retire};
pub(crate) use store::Store;

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
    /// Everything in it has still to be told to control, or could still be asked for again.
    #[error(
        "the journal holds {has} {unit} and may hold no more than {max} ({limit}), of which none may be forgotten yet"
    )]
    Full {
        limit: &'static str,
        unit: &'static str,
        has: u64,
        max: u64,
    },
}

impl JournalError {
    /// The reason code of what is refused because of it.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Full { .. } => "journal_full",
            Self::Database(err) if is_full(err) => "disk_full",
            Self::Database(_) | Self::Corrupt { .. } | Self::NoAnswer => "journal_unavailable",
        }
    }
}

/// The disk, not the journal.
fn is_full(err: &rusqlite::Error) -> bool {
    // The file that the readers of the write-ahead log share could not grow; there is no other reason for that.
    const SHARED_MEMORY_CANNOT_GROW: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
    err.sqlite_error().is_some_and(|err| {
        err.code == rusqlite::ErrorCode::DiskFull || err.extended_code == SHARED_MEMORY_CANNOT_GROW
    })
}

/// How much of what is settled is remembered. What control has still to be told, and what could be asked for again, is
/// never forgotten: past the limits nothing new is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) rows_max: u64,
    pub(crate) bytes_max: u64,
}

#[cfg(test)]
impl Bounds {
    pub(crate) const WIDE: Self = Self {
        rows_max: 1000,
        bytes_max: 1 << 30,
    };
}

pub(crate) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("journal.db")
}

/// Whether there was a journal once.
pub(crate) fn begun(state_dir: &Path) -> bool {
    path(state_dir).with_extension("begun").exists()
}

/// How long a stop waits for the database to be closed. A disk that hangs must not hold it up.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce(&mut Store) + Send>;

#[derive(Clone)]
pub(crate) struct Journal {
    work: mpsc::Sender<Work>,
}

/// Waits, when it is dropped, for the journal to be closed, which it is once nobody can ask it any more: then all that was
/// written is in the database, and no log of it is left beside it. Nothing is lost without; but whoever copies the database
/// alone, or removes what lies beside it, finds it whole after a stop.
pub(crate) struct Closing(mpsc::Receiver<Infallible>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.0.recv_timeout(CLOSE_WAIT) {
            log::warn!("The journal is not closed yet");
        }
    }
}

impl Journal {
    /// What waits for its end comes first: bound in this order, it is dropped after the journal itself.
    pub(crate) fn open(state_dir: &Path, node: NodeId, bounds: Bounds) -> Result<(Closing, Self), Exit> {
        let mut store = schema::open_with_room(&path(state_dir), node, bounds)?;
        let (work, queue) = mpsc::channel::<Work>();
        let (open, closed) = mpsc::channel();
        thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                for job in queue {
                    // One job that breaks is rolled back and goes unanswered; those after it are served.
                    let _ = catch_unwind(AssertUnwindSafe(|| job(&mut store)));
                }
                drop(store);
                drop(open);
            })
            .map_err(|err| Exit::Failure(format!("the thread of the journal could not be started: {err}")))?;
        Ok((Closing(closed), Self { work }))
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
        let mut forgotten = 0;
        loop {
            let batch = self.ask(move |store| store.prune(before)).await?;
            forgotten += batch;
            if batch < store::PRUNE_BATCH as usize {
                return Ok(forgotten);
            }
        }
    }
}

#[cfg(test)]
mod tests;
