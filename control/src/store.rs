//! The database: domain verbs over a transaction, with the SQL written out beside each, the same for SQLite and
//! PostgreSQL.
//!
//! One connection writes, so that writers queue here, in order, instead of failing on a lock; a few read. A commit is
//! durable when it returns: that is what makes a 2xx a promise.

mod access;
mod ask;
mod audit;
mod backup;
mod cancel;
mod candidates;
mod deadlines;
mod dispatch;
mod doctor;
mod engine;
mod evidence;
mod executions;
mod header;
mod hooks;
mod idempotency;
mod instances;
mod labels;
mod list;
mod metrics;
mod news;
mod node_keys;
mod nodes;
mod outbox;
mod outputs;
mod postgres;
mod replicas;
mod retention;
mod rollout;
mod rows;
#[cfg(test)]
mod schema_tests;
mod search;
mod signing;
mod sqlite;
mod statement;
mod targets;
mod tenancy;
#[cfg(test)]
pub(crate) mod testing;
mod violations;

use std::{collections::BTreeSet, sync::Arc};

use muster_shared::ids::{Digest, ExecutionId, NodeId};
use uuid::Uuid;

use ask::Questions;
use engine::{Pool, Pools, Transaction};
use statement::query;

pub(crate) use access::Presented;
pub(crate) use backup::known_schema;
pub(crate) use cancel::Unconfirmed;
pub(crate) use candidates::Order;
pub(crate) use deadlines::{Deadline, Overdue};
pub(crate) use dispatch::NewExecution;
pub(crate) use engine::{BadDatabaseUrl, Database};
pub(crate) use evidence::Room;
pub(crate) use executions::Advance;
pub(crate) use header::ExecutionHeader;
#[cfg(test)]
pub(crate) use hooks::Declared;
pub(crate) use idempotency::{Claim, Claimed};
pub(crate) use list::{Detail, Targets};
pub(crate) use news::News;
pub(crate) use nodes::{Enrolled, NewNode, NodeFilter, NodeRecord};
pub(crate) use outbox::Owed;
pub(crate) use outputs::{KeptOutput, LateOutput};
pub(crate) use retention::Settled;
pub(crate) use rows::CorruptRow;
pub(crate) use search::{Found, ListFilter};
pub(crate) use signing::SigningKey;
pub(crate) use sqlite::apart;
pub(crate) use targets::TargetState;
pub(crate) use tenancy::{BootstrapToken, NewBootstrapToken, Project};
pub(crate) use violations::{NewViolation, ViolationFilter};

use crate::nsk::KeyOwner;

/// How many rows one statement inserts: below SQLite's limit on bound values, and large enough that the
/// statement's own cost no longer shows.
const ROWS_PER_INSERT: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("the database")]
    Sql(#[from] sqlx::Error),
    #[error("the database schema")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error("an invocation is not where it was read in the same transaction")]
    Moved,
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
    /// Of a question that was asked with others.
    #[error(transparent)]
    Together(Arc<Self>),
}

/// Why a database did not do its work, where asking again may help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passing {
    /// Others were before us for too long.
    NoTurn,
    /// It could not be reached, or went away: what was under way is done or not.
    Away,
    /// Its disk is full.
    NoRoom,
    /// It was asked for more than it finds in the time that a question may take.
    TooLong,
}

impl StoreError {
    /// `None` for what will not pass by itself.
    pub(crate) fn passes(&self) -> Option<Passing> {
        match self {
            Self::Sql(err) => engine::passes(err),
            Self::Together(err) => err.passes(),
            Self::Migrate(_) | Self::Moved | Self::Corrupt(_) => None,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Store {
    write: Pool,
    read: Pool,
    lookup: Pool,
    shared: bool,
    /// By which news of this service is known from that of others.
    teller: Uuid,
    key_owners: Questions<Digest, KeyOwner>,
    targets: Questions<(ExecutionId, NodeId), TargetState>,
    owed: Questions<NodeId, Vec<Owed>>,
}

/// A write transaction. Dropped without [`Tx::commit`], it changed nothing.
pub(crate) struct Tx(Transaction, Untold);

/// What is to be told with the commit, and by whom.
struct Untold {
    teller: Uuid,
    news: BTreeSet<News>,
}

impl Store {
    /// Opens the database and brings its schema up to date; refuses one that a newer release has changed.
    pub(crate) async fn open(database: &Database) -> Result<Self, StoreError> {
        Ok(Self::of(database.open().await?, database))
    }

    /// Opens the database to look at it, also while it is served. Nothing is brought up to date.
    pub(crate) async fn open_to_read(database: &Database) -> Result<Self, StoreError> {
        Ok(Self::of(database.open_to_read().await?, database))
    }

    fn of(pools: Pools, database: &Database) -> Self {
        Self {
            write: pools.write,
            read: pools.read,
            lookup: pools.lookup,
            shared: database.is_shared(),
            teller: Uuid::now_v7(),
            key_owners: Questions::default(),
            targets: Questions::default(),
            owed: Questions::default(),
        }
    }

    /// Whether other services may write here too.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared
    }

    /// Begins to write. The lock is taken now: what is read inside stays true until the commit.
    pub(crate) async fn begin(&self) -> Result<Tx, StoreError> {
        let news = BTreeSet::new();
        let teller = self.teller;
        Ok(Tx(self.write.begin_write().await?, Untold { teller, news }))
    }

    /// Whether the database answers people: where lists have taken each connection, it does not.
    pub(crate) async fn answers(&self) -> Result<(), StoreError> {
        query("SELECT 1").execute(&self.read).await?;
        Ok(())
    }

    /// Whether the database answers nodes, which no list keeps waiting.
    pub(crate) async fn answers_nodes(&self) -> Result<(), StoreError> {
        query("SELECT 1").execute(&self.lookup).await?;
        Ok(())
    }

    pub(crate) async fn close(&self) {
        self.lookup.close().await;
        self.read.close().await;
        self.write.close().await;
    }
}

impl Tx {
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        self.notify().await?;
        Ok(self.0.commit().await?)
    }
}

#[cfg(test)]
mod tests;
