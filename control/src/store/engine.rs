//! The two databases, and all that differs between them: how to connect, how to begin, and how values travel.
//!
//! A statement is written once, and runs on either. Writers go one after another on both: what
//! is read inside a write stays true until its commit. SQLite has one connection for that; the replicas on PostgreSQL have
//! an advisory lock, held by the transaction. The audit chain of a domain would put them in line all the same.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, Connection as _,
    postgres::PgConnectOptions,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{
    Passing, StoreError, postgres,
    rows::Row,
    sqlite::{Connections, Taken},
    statement::{self, ForEach, Statement},
};

/// How many connections read at the same time, and how many look rows up for nodes, on SQLite.
const READERS: u32 = 4;
const LOOKUPS: u32 = 4;
/// How long a writer waits for its turn, and a reader for a connection, before the caller is told to come back.
pub(super) const TURN_MAX: Duration = Duration::from_secs(30);
/// Where each statement is told of, for tests and for whoever looks for what a request costs.
pub(super) const STATEMENTS: &str = "muster_control::statement";

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

    /// Connections for everything, with the schema up to date.
    pub(super) async fn open(&self) -> Result<Pools, StoreError> {
        match self {
            Self::Sqlite(path) => {
                migrate(path).await?;
                let to = |writes, count| Pool::Sqlite(Connections::to(path, writes, count, TURN_MAX));
                Ok(Pools {
                    write: to(true, 1),
                    read: to(false, READERS),
                    lookup: to(false, LOOKUPS),
                })
            }
            Self::Postgres(options) => {
                let opened = postgres::open(options).await?;
                Ok(Pools {
                    write: Pool::Postgres(opened.write),
                    read: Pool::Postgres(opened.read),
                    lookup: Pool::Postgres(opened.lookup),
                })
            }
        }
    }

    /// One connection for everything, which changes nothing.
    pub(super) async fn open_to_read(&self) -> Result<Pools, StoreError> {
        let one = match self {
            Self::Sqlite(path) => Pool::Sqlite(Connections::to(path, false, 1, TURN_MAX)),
            Self::Postgres(options) => Pool::Postgres(postgres::open_to_read(options).await?),
        };
        Ok(Pools {
            write: one.clone(),
            read: one.clone(),
            lookup: one,
        })
    }
}

/// Makes the database if there is none, and brings its schema up to date.
async fn migrate(path: &Path) -> Result<(), StoreError> {
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(TURN_MAX)
        // Only a database that is made now takes this: it can give freed pages back.
        .auto_vacuum(SqliteAutoVacuum::Incremental)
        .connect()
        .await?;
    sqlx::migrate!("./migrations/sqlite").run(&mut connection).await?;
    Ok(connection.close().await?)
}

/// The connections of a service.
pub(super) struct Pools {
    pub(super) write: Pool,
    pub(super) read: Pool,
    /// For rows that are looked up by their keys.
    pub(super) lookup: Pool,
}

#[derive(Clone)]
pub(super) enum Pool {
    Sqlite(Connections),
    Postgres(postgres::Connections),
}

/// An open transaction. Dropped, it changed nothing.
pub(super) enum Transaction {
    Sqlite(Taken),
    Postgres(postgres::Taken),
}

impl Pool {
    /// Takes the lock of writers now.
    pub(super) async fn begin_write(&self) -> Result<Transaction, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => Transaction::Sqlite(begin(pool, "BEGIN IMMEDIATE").await?),
            Self::Postgres(pool) => Transaction::Postgres(pool.begin_write().await?),
        })
    }

    /// What is read inside comes from one moment.
    pub(super) async fn snapshot(&self) -> Result<Transaction, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => Transaction::Sqlite(begin(pool, "BEGIN").await?),
            Self::Postgres(pool) => Transaction::Postgres(pool.snapshot().await?),
        })
    }

    pub(super) async fn listen(&self, channel: &str) -> Result<Option<postgres::Listener>, sqlx::Error> {
        match self {
            Self::Sqlite(_) => Ok(None),
            Self::Postgres(pool) => pool.listen(channel).await.map(Some),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

async fn begin(pool: &Connections, sql: &str) -> Result<Taken, sqlx::Error> {
    let mut taken = pool.take().await?;
    taken.batch(sql).await?;
    Ok(taken)
}

impl Pool {
    /// A list in pieces, for statements of a row for each item.
    pub(super) fn pieces<'i, T>(&self, items: &'i [T]) -> impl Iterator<Item = &'i [T]> + use<'i, T> {
        let shared = match self {
            Self::Sqlite(_) => false,
            Self::Postgres(_) => true,
        };
        statement::pieces(items, shared)
    }
}

impl Transaction {
    /// The same.
    pub(super) fn pieces<'i, T>(&self, items: &'i [T]) -> impl Iterator<Item = &'i [T]> + use<'i, T> {
        statement::pieces(items, self.is_shared())
    }

    pub(super) const fn is_shared(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            Self::Postgres(_) => true,
        }
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(mut taken) => taken.batch("COMMIT").await,
            Self::Postgres(transaction) => transaction.commit().await,
        }
    }
}

/// Where a statement runs.
pub(super) enum On<'c> {
    SqlitePool(&'c Connections),
    Sqlite(&'c mut Taken),
    PostgresPool(&'c postgres::Connections),
    Postgres(&'c mut postgres::Taken),
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

fn tell(sql: &str) {
    log::trace!(target: STATEMENTS, "{sql}");
}

fn told(statement: Statement) -> postgres::Given {
    let given = statement.for_postgres();
    tell(&given.0);
    given
}

/// Runs a statement where it is to run, with its values in that engine's form.
macro_rules! run {
    ($statement:expr, $on:expr, ($taken:ident, $given:ident) => {
        sqlite: $sqlite:expr,
        postgres: $postgres:expr $(,)?
    }) => {{
        let statement: Statement = $statement;
        match $on.into() {
            On::SqlitePool(pool) => {
                tell(statement.sql.for_sqlite());
                let ($taken, $given) = (&mut pool.take().await?, (statement.sql, statement.values));
                $sqlite
            }
            On::Sqlite($taken) => {
                tell(statement.sql.for_sqlite());
                let $given = (statement.sql, statement.values);
                $sqlite
            }
            On::PostgresPool(pool) => {
                let ($taken, $given) = (&mut pool.take().await?, told(statement));
                $postgres
            }
            On::Postgres($taken) => {
                let $given = told(statement);
                $postgres
            }
        }
    }};
}

impl Statement {
    /// Answers how many rows it changed.
    pub(super) async fn execute<'c>(self, on: impl Into<On<'c>>) -> Result<u64, sqlx::Error> {
        run!(self, on, (taken, given) => {
            sqlite: taken.execute(given.0, given.1).await,
            postgres: taken.execute(given).await,
        })
    }

    pub(super) async fn fetch_all<'c>(self, on: impl Into<On<'c>>) -> Result<Vec<Row>, sqlx::Error> {
        run!(self, on, (taken, given) => {
            sqlite: taken
                .fold(given, Vec::new(), |rows, row| {
                    rows.push(Row::Sqlite(row));
                    true
                })
                .await,
            postgres: Ok(taken.fetch_all(given).await?.into_iter().map(Row::Postgres).collect()),
        })
    }

    pub(super) async fn fetch_optional<'c>(self, on: impl Into<On<'c>>) -> Result<Option<Row>, sqlx::Error> {
        run!(self, on, (taken, given) => {
            sqlite: taken
                .fold(given, None, |first: &mut Option<Row>, row| {
                    first.get_or_insert(Row::Sqlite(row));
                    true
                })
                .await,
            postgres: Ok(taken.fetch_optional(given).await?.map(Row::Postgres)),
        })
    }

    pub(super) async fn fetch_one<'c>(self, on: impl Into<On<'c>>) -> Result<Row, sqlx::Error> {
        self.fetch_optional(on).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// Takes row by row as they come, without ever holding them all.
    pub(super) async fn fold<'c, S: Send + 'static>(
        self,
        on: impl Into<On<'c>>,
        state: S,
        step: fn(&mut S, Row) -> Result<(), StoreError>,
    ) -> Result<S, StoreError> {
        let (state, err) = run!(self, on, (taken, given) => {
            sqlite: taken
                .fold(given, (state, None), move |(state, err), row| {
                    *err = step(state, Row::Sqlite(row)).err();
                    err.is_none()
                })
                .await?,
            postgres: taken
                .fold(given, (state, None), |(state, err), row| {
                    *err = step(state, Row::Postgres(row)).err();
                    err.is_none()
                })
                .await?,
        });
        match err {
            None => Ok(state),
            Some(err) => Err(err),
        }
    }
}

impl ForEach {
    /// Answers how many rows all of them changed.
    pub(super) async fn execute(self, on: &mut Transaction) -> Result<u64, sqlx::Error> {
        match on {
            Transaction::Sqlite(taken) => {
                let (sql, rows) = self.for_sqlite();
                tell(&sql);
                taken.execute_each(sql, rows).await
            }
            Transaction::Postgres(_) => self.joined().execute(on).await,
        }
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
        // query_canceled, by its own limit
        "57014" => Some(Passing::TooLong),
        // SQLITE_FULL; disk_full
        "13" | "53100" => Some(Passing::NoRoom),
        // Class 53: no memory, no connection left. Class 08: the connection.
        code if code.starts_with("53") || code.starts_with("08") => Some(Passing::Away),
        _ => None,
    }
}
