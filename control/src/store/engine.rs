//! The two databases, and all that differs between them: how to connect, how to begin, and how values travel.
//!
//! A statement is written once, and runs on either. Writers go one after another on both: what
//! is read inside a write stays true until its commit. SQLite has one connection for that; the replicas on PostgreSQL have
//! an advisory lock, held by the transaction. The audit chain of a domain would put them in line all the same.

use std::{path::PathBuf, str::FromStr, time::Duration};

use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres, Sqlite, SqliteConnection, SqlitePool,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
    sqlite::{
        SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
    },
};

use super::{Passing, StoreError, rows::Row, statement::Statement};

/// How many connections read at the same time.
pub(super) const READERS: u32 = 4;
/// How long a writer waits for its turn, and a reader for a connection, before the caller is told to come back.
const TURN_MAX: Duration = Duration::from_secs(30);
/// PostgreSQL ends a write that does not go on for so long: a replica that froze must not hold up the others.
const IDLE_WRITE_MAX: &str = "20s";
/// How long to wait for a connection to PostgreSQL.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// `hashtext('muster')`, once and for all: the key of the lock under which replicas write.
const TAKE_TURN: &str = "SELECT pg_advisory_xact_lock(1299541875)";
const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Where the records are.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    /// A file of this machine. It needs nothing else.
    Sqlite(PathBuf),
    /// A server, for any number of replicas.
    Postgres(Box<PgConnectOptions>),
}

#[derive(Debug, thiserror::Error)]
#[error("must be postgres://USER@HOST[:PORT]/DATABASE, with a password from PGPASSFILE or in the URL: {0}")]
pub(crate) struct BadDatabaseUrl(String);

impl FromStr for Database {
    type Err = BadDatabaseUrl;

    fn from_str(url: &str) -> Result<Self, BadDatabaseUrl> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(BadDatabaseUrl("it begins otherwise".into()));
        }
        let options: PgConnectOptions = url
            .parse()
            .map_err(|err: sqlx::Error| BadDatabaseUrl(err.to_string()))?;
        Ok(Self::Postgres(Box::new(options)))
    }
}

impl Database {
    /// Whether other services may write here too.
    pub(crate) const fn is_shared(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            Self::Postgres(_) => true,
        }
    }

    /// Whether nobody has made one there; a server says so when it is asked.
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Self::Sqlite(path) => !path.exists(),
            Self::Postgres(_) => false,
        }
    }

    /// A few words for whoever operates it; no password is among them.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Sqlite(path) => path.display().to_string(),
            Self::Postgres(options) => format!(
                "PostgreSQL at {}, database {}",
                options.get_host(),
                options.get_database().unwrap_or_else(|| options.get_username())
            ),
        }
    }

    /// The connection that writes and those that read, with the schema up to date.
    pub(super) async fn open(&self) -> Result<(Pool, Pool), StoreError> {
        match self {
            Self::Sqlite(path) => {
                let options = sqlite(path).create_if_missing(true);
                let write = SqlitePoolOptions::new()
                    .max_connections(1)
                    .acquire_timeout(TURN_MAX)
                    // SQLite itself rolls back where the disk is full. The driver goes on counting that transaction, and
                    // would begin no other.
                    .before_acquire(|writer, _| {
                        let sound = !writer.is_in_transaction();
                        Box::pin(async move { Ok(sound) })
                    })
                    // Only a database that is made now takes this: it can give freed pages back.
                    .connect_with(options.clone().auto_vacuum(SqliteAutoVacuum::Incremental))
                    .await?;
                sqlx::migrate!("./migrations/sqlite").run(&write).await?;
                let read = SqlitePoolOptions::new()
                    .max_connections(READERS)
                    .connect_with(options.read_only(true))
                    .await?;
                Ok((Pool::Sqlite(write), Pool::Sqlite(read)))
            }
            Self::Postgres(options) => {
                let (write, read) = (postgres(options, 1).await?, postgres(options, READERS).await?);
                // Takes a lock of its own: replicas that start together go one after another.
                sqlx::migrate!("./migrations/postgres").run(&write).await?;
                Ok((Pool::Postgres(write), Pool::Postgres(read)))
            }
        }
    }

    /// One connection that changes nothing.
    pub(super) async fn open_to_read(&self) -> Result<Pool, StoreError> {
        Ok(match self {
            Self::Sqlite(path) => Pool::Sqlite(
                SqlitePoolOptions::new()
                    .max_connections(1)
                    // As it is: a copy has no log beside it, and nothing may be changed to make one.
                    .connect_with(
                        SqliteConnectOptions::new()
                            .filename(path)
                            .read_only(true)
                            .busy_timeout(TURN_MAX),
                    )
                    .await?,
            ),
            Self::Postgres(options) => {
                let options = (**options)
                    .clone()
                    .options([("default_transaction_read_only", "on")]);
                Pool::Postgres(postgres(&options, 1).await?)
            }
        })
    }
}

/// A commit is durable when it returns (WAL with `synchronous = FULL`): that is what makes a 2xx a promise.
fn sqlite(path: &PathBuf) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(TURN_MAX)
}

async fn postgres(options: &PgConnectOptions, connections: u32) -> Result<PgPool, sqlx::Error> {
    let turn_max = format!("{}s", TURN_MAX.as_secs());
    let options = options.clone().application_name("muster-control").options([
        // As for SQLite, whatever the server's default is.
        ("synchronous_commit", "on"),
        ("lock_timeout", turn_max.as_str()),
        ("idle_in_transaction_session_timeout", IDLE_WRITE_MAX),
    ]);
    let connect = PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(TURN_MAX)
        .connect_with(options);
    match tokio::time::timeout(CONNECT_MAX, connect).await {
        Ok(pool) => pool,
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

#[derive(Clone)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// An open transaction. Dropped, it changed nothing.
pub(super) enum Transaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>),
    Postgres(sqlx::Transaction<'static, Postgres>),
}

impl Pool {
    /// Takes the lock of writers now.
    pub(super) async fn begin_write(&self) -> Result<Transaction, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => Transaction::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
            Self::Postgres(pool) => {
                let mut transaction = pool.begin().await?;
                // Not in one statement with the BEGIN: where the lock is not given, the driver would not know of the
                // transaction that failed, and the next writer would be given a connection in the middle of it.
                sqlx::query(TAKE_TURN).execute(&mut *transaction).await?;
                Transaction::Postgres(transaction)
            }
        })
    }

    /// What is read inside comes from one moment.
    pub(super) async fn snapshot(&self) -> Result<Transaction, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => Transaction::Sqlite(pool.begin().await?),
            Self::Postgres(pool) => Transaction::Postgres(pool.begin_with(BEGIN_SNAPSHOT).await?),
        })
    }

    pub(super) async fn listen(&self, channel: &str) -> Result<Option<PgListener>, sqlx::Error> {
        match self {
            Self::Sqlite(_) => Ok(None),
            Self::Postgres(pool) => {
                let mut listener = PgListener::connect_with(pool).await?;
                listener.listen(channel).await?;
                Ok(Some(listener))
            }
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

impl Transaction {
    pub(super) const fn is_shared(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            Self::Postgres(_) => true,
        }
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(transaction) => transaction.commit().await,
            Self::Postgres(transaction) => transaction.commit().await,
        }
    }
}

/// Where a statement runs.
pub(super) enum On<'c> {
    SqlitePool(&'c SqlitePool),
    Sqlite(&'c mut SqliteConnection),
    PostgresPool(&'c PgPool),
    Postgres(&'c mut PgConnection),
}

impl<'c> From<&'c Pool> for On<'c> {
    fn from(pool: &'c Pool) -> Self {
        match pool {
            Pool::Sqlite(pool) => Self::SqlitePool(pool),
            Pool::Postgres(pool) => Self::PostgresPool(pool),
        }
    }
}

impl<'c> From<&'c mut Transaction> for On<'c> {
    fn from(transaction: &'c mut Transaction) -> Self {
        match transaction {
            Transaction::Sqlite(transaction) => Self::Sqlite(transaction),
            Transaction::Postgres(transaction) => Self::Postgres(transaction),
        }
    }
}

/// Runs a statement where it is to run, with its values in that engine's form.
macro_rules! run {
    ($statement:expr, $on:expr, $query:ident, $executor:ident => $sqlite:expr, $postgres:expr) => {{
        let Statement { sql, values } = $statement;
        match $on.into() {
            On::SqlitePool($executor) => {
                let $query = sqlx::__query_with_result(AssertSqlSafe(sql.for_sqlite()), values.for_sqlite());
                $sqlite
            }
            On::Sqlite($executor) => {
                let $query = sqlx::__query_with_result(AssertSqlSafe(sql.for_sqlite()), values.for_sqlite());
                $sqlite
            }
            On::PostgresPool($executor) => {
                let $query = sqlx::__query_with_result(AssertSqlSafe(sql.for_postgres()), values.for_postgres());
                $postgres
            }
            On::Postgres($executor) => {
                let $query = sqlx::__query_with_result(AssertSqlSafe(sql.for_postgres()), values.for_postgres());
                $postgres
            }
        }
    }};
}

impl Statement {
    /// Answers how many rows it changed.
    pub(super) async fn execute<'c>(self, on: impl Into<On<'c>>) -> Result<u64, sqlx::Error> {
        run!(self, on, query, e => Ok(query.execute(e).await?.rows_affected()), Ok(query.execute(e).await?.rows_affected()))
    }

    pub(super) async fn fetch_all<'c>(self, on: impl Into<On<'c>>) -> Result<Vec<Row>, sqlx::Error> {
        run!(self, on, query, e =>
            Ok(query.fetch_all(e).await?.into_iter().map(Row::Sqlite).collect()),
            Ok(query.fetch_all(e).await?.into_iter().map(Row::Postgres).collect()))
    }

    pub(super) async fn fetch_optional<'c>(self, on: impl Into<On<'c>>) -> Result<Option<Row>, sqlx::Error> {
        run!(self, on, query, e =>
            Ok(query.fetch_optional(e).await?.map(Row::Sqlite)),
            Ok(query.fetch_optional(e).await?.map(Row::Postgres)))
    }

    pub(super) async fn fetch_one<'c>(self, on: impl Into<On<'c>>) -> Result<Row, sqlx::Error> {
        self.fetch_optional(on).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// Row by row, as they come.
    pub(super) fn fetch<'c>(
        self,
        on: impl Into<On<'c>>,
    ) -> impl Stream<Item = Result<Row, sqlx::Error>> + Send + Unpin + 'c {
        run!(self, on, query, e =>
            query.fetch(e).map_ok(Row::Sqlite).boxed(),
            query.fetch(e).map_ok(Row::Postgres).boxed())
    }
}

/// By the codes of PostgreSQL (its manual, appendix A), and what the drivers say themselves.
pub(super) fn passes(err: &sqlx::Error) -> Option<Passing> {
    let Some(said) = err.as_database_error() else {
        let away = matches!(
            err,
            sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed
        );
        let no_turn = matches!(err, sqlx::Error::PoolTimedOut);
        return no_turn
            .then_some(Passing::NoTurn)
            .or(away.then_some(Passing::Away));
    };
    let code = said.code()?;
    match &*code {
        // lock_not_available, serialization_failure, deadlock_detected; SQLITE_BUSY
        "55P03" | "40001" | "40P01" | "5" => Some(Passing::NoTurn),
        // idle_in_transaction_session_timeout, and whatever ends or forbids a connection
        "25P03" | "57P01" | "57P02" | "57P03" => Some(Passing::Away),
        // SQLITE_FULL; disk_full
        "13" | "53100" => Some(Passing::NoRoom),
        // Class 53: no memory, no connection left. Class 08: the connection.
        code if code.starts_with("53") || code.starts_with("08") => Some(Passing::Away),
        _ => None,
    }
}
