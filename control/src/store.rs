//! The database: domain verbs over a transaction, with the SQL written out beside each.
//!
//! One connection writes, so that writers queue here, in order, instead of failing on a lock; a few read. A commit is
//! durable when it returns (WAL with `synchronous = FULL`): that is what makes a 2xx a promise.

mod access;
mod audit;
mod backup;
mod cancel;
mod doctor;
mod executions;
mod hooks;
mod idempotency;
mod instances;
mod list;
mod metrics;
mod node_keys;
mod nodes;
mod outbox;
mod retention;
mod rollout;
mod rows;
#[cfg(test)]
mod schema_tests;
mod signing;
mod tenancy;

use std::{path::Path, time::Duration};

use sqlx::{
    Sqlite, SqlitePool, Transaction,
    sqlite::{
        SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
    },
};

pub(crate) use access::Presented;
pub(crate) use backup::known_schema;
pub(crate) use executions::{
    Advance, Deadline, Detail, ExecutionHeader, KeptOutput, LateOutput, NewExecution, Overdue, TargetState,
};
#[cfg(test)]
pub(crate) use hooks::DeclaredBefore;
pub(crate) use hooks::{NewViolation, ViolationFilter};
pub(crate) use idempotency::{Claim, Claimed};
pub(crate) use list::ListFilter;
pub(crate) use nodes::{NewNode, NodeFilter, NodeRecord, Order};
pub(crate) use outbox::Owed;
pub(crate) use retention::Settled;
pub(crate) use rows::CorruptRow;
pub(crate) use signing::SigningKey;
pub(crate) use tenancy::{BootstrapToken, NewBootstrapToken, Project};

/// How many connections read at the same time.
const READERS: u32 = 4;
/// How long a writer waits for its turn before the caller is told to come back.
const WRITE_TURN_MAX: Duration = Duration::from_secs(30);
/// How many rows one statement inserts: below SQLite's limit on bound values, and large enough that the
/// statement's own cost no longer shows.
const ROWS_PER_INSERT: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("the database")]
    Sql(#[from] sqlx::Error),
    #[error("the database schema")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
}

#[derive(Clone)]
pub(crate) struct Store {
    write: SqlitePool,
    read: SqlitePool,
}

/// A write transaction. Dropped without [`Tx::commit`], it changed nothing.
pub(crate) struct Tx(Transaction<'static, Sqlite>);

impl Store {
    /// Opens the database and brings its schema up to date; refuses one that a newer release has changed.
    pub(crate) async fn open(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(WRITE_TURN_MAX);
        let write = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(WRITE_TURN_MAX)
            // Only a database that is made now takes this: it can give freed pages back.
            .connect_with(options.clone().auto_vacuum(SqliteAutoVacuum::Incremental))
            .await?;
        sqlx::migrate!("./migrations").run(&write).await?;
        let read = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self { write, read })
    }

    /// Opens the database to look at it, also while it is served. Nothing is brought up to date.
    pub(crate) async fn open_to_read(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .busy_timeout(WRITE_TURN_MAX);
        let read = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options)
            .await?;
        Ok(Self {
            write: read.clone(),
            read,
        })
    }

    /// Begins to write. The lock is taken now: what is read inside stays true until the commit.
    pub(crate) async fn begin(&self) -> Result<Tx, StoreError> {
        Ok(Tx(self.write.begin_with("BEGIN IMMEDIATE").await?))
    }

    /// Whether the database answers.
    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.read).await?;
        Ok(())
    }

    pub(crate) async fn close(&self) {
        self.read.close().await;
        self.write.close().await;
    }
}

impl Tx {
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        Ok(self.0.commit().await?)
    }
}

#[cfg(test)]
mod tests;
