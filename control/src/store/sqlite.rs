//! SQLite, which is a library of this process: a statement is a call, and waits for nobody but the disk.
//!
//! Whoever may wait for a disk makes the call itself ([`apart`]), and so does who asks for little ([`here`]); otherwise a
//! thread of the runtime, on which others wait for their turn, has it made elsewhere.

use std::{
    cell::Cell,
    error::Error,
    fmt,
    future::poll_fn,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, ffi, types::ValueRef};
use sqlx::error::{DatabaseError, ErrorKind};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};

use super::statement::{Text, Value, Values};

/// How many statements a connection keeps prepared: those that this service has, in each of their sizes.
const PREPARED_MAX: usize = 512;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Does something on a thread of its own, which may wait for the disk: all its statements are plain calls. It goes on to
/// its end, whatever becomes of the caller.
pub(crate) fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        MAY_WAIT.set(true);
        let _until_the_end = MayWait;
        runtime.block_on(work)
    })
}

/// Does something that only looks up rows by their keys, here and now: they are nearly always in memory, and another
/// thread costs more than they do.
pub(super) async fn here<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        MAY_WAIT.set(true);
        let _until_the_end = MayWait;
        work.as_mut().poll(context)
    })
    .await
}

/// The thread serves others afterwards.
struct MayWait;

impl Drop for MayWait {
    fn drop(&mut self) {
        MAY_WAIT.set(false);
    }
}

/// Makes a call that may wait for the disk.
async fn waiting<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, sqlx::Error> {
    if MAY_WAIT.get() {
        return Ok(call());
    }
    let called = tokio::task::spawn_blocking(call).await;
    called.map_err(|_| sqlx::Error::WorkerCrashed)
}

/// Connections to one file, opened when they are needed.
#[derive(Clone)]
pub(super) struct Connections(Arc<Opened>);

struct Opened {
    path: PathBuf,
    writes: bool,
    busy_max: Duration,
    count: u32,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl Connections {
    pub(super) fn to(path: &Path, writes: bool, count: u32, busy_max: Duration) -> Self {
        Self(Arc::new(Opened {
            path: path.to_owned(),
            writes,
            busy_max,
            count,
            places: Arc::new(Semaphore::new(count as usize)),
            idle: Mutex::new(Vec::new()),
        }))
    }

    /// Waits for one that nobody uses.
    pub(super) async fn take(&self) -> Result<Taken, sqlx::Error> {
        let Opened { places, idle, .. } = &*self.0;
        let place = tokio::time::timeout(self.0.busy_max, Arc::clone(places).acquire_owned())
            .await
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)?;
        let known = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match known {
            Some(connection) => connection,
            None => {
                let of = Self(Arc::clone(&self.0));
                waiting(move || of.open()).await??
            }
        };
        Ok(Taken {
            connection: Some(connection),
            of: self.clone(),
            _place: place,
        })
    }

    /// A commit is durable when it returns (WAL with `synchronous = FULL`): that is what makes a 2xx a promise.
    fn open(&self) -> Result<Connection, sqlx::Error> {
        let access = if self.0.writes {
            OpenFlags::SQLITE_OPEN_READ_WRITE
        } else {
            OpenFlags::SQLITE_OPEN_READ_ONLY
        };
        let open = || {
            let connection =
                Connection::open_with_flags(&self.0.path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
            connection.busy_timeout(self.0.busy_max)?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "foreign_keys", true)?;
            connection.set_prepared_statement_cache_capacity(PREPARED_MAX);
            Ok(connection)
        };
        open().map_err(said)
    }

    /// Closes them once each is given back.
    pub(super) async fn close(&self) {
        let _all = self.0.places.acquire_many(self.0.count).await;
        self.0.places.close();
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A connection that is used, given back when this is dropped.
pub(super) struct Taken {
    /// None while a call is made, and after one that broke down.
    connection: Option<Connection>,
    of: Connections,
    _place: OwnedSemaphorePermit,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        // One that cannot be rolled back is closed, which does it too.
        if connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok() {
            let mut idle = self.of.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(connection);
        }
    }
}

impl Taken {
    async fn call<T: Send + 'static>(
        &mut self,
        call: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, sqlx::Error> {
        let connection = self.connection.take().ok_or(sqlx::Error::WorkerCrashed)?;
        let (connection, called) = waiting(move || {
            let called = call(&connection);
            (connection, called)
        })
        .await?;
        self.connection = Some(connection);
        called.map_err(said)
    }

    /// Begins, commits: statements without values and without rows.
    pub(super) async fn batch(&mut self, sql: impl Into<String>) -> Result<(), sqlx::Error> {
        let sql = sql.into();
        self.call(move |connection| connection.execute_batch(&sql)).await
    }

    /// Answers how many rows were changed.
    pub(super) async fn execute(&mut self, sql: Text, values: Values) -> Result<u64, sqlx::Error> {
        self.call(move |connection| {
            each_row(connection, &sql, &values, |_, _| Ok(true))?;
            Ok(connection.changes())
        })
        .await
    }

    /// One statement for each row of values, whose places are numbered. Answers how many rows they changed together.
    pub(super) async fn execute_each(&mut self, sql: String, rows: Vec<Values>) -> Result<u64, sqlx::Error> {
        self.call(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let mut changed = 0;
            for values in &rows {
                for at in 1..=statement.parameter_count() {
                    bind_from(&mut statement, at, values, at)?;
                }
                changed += statement.raw_execute()? as u64;
            }
            Ok(changed)
        })
        .await
    }

    /// Gives each row to `step` until that has enough, and answers what it made of them.
    pub(super) async fn fold<S: Send + 'static>(
        &mut self,
        (sql, values): (Text, Values),
        mut state: S,
        step: impl Fn(&mut S, SqliteRow) -> bool + Send + 'static,
    ) -> Result<S, sqlx::Error> {
        self.call(move |connection| {
            each_row(connection, &sql, &values, |columns, row| {
                let values = (0..columns.len()).map(|at| row.get_ref(at).map(Stored::of));
                let row = SqliteRow {
                    columns: Arc::clone(columns),
                    values: values.collect::<rusqlite::Result<_>>()?,
                };
                Ok(step(&mut state, row))
            })?;
            Ok(state)
        })
        .await
    }
}

fn each_row(
    connection: &Connection,
    sql: &Text,
    values: &Values,
    mut step: impl FnMut(&Arc<[Box<str>]>, &rusqlite::Row<'_>) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql.for_sqlite())?;
    for at in 1..=statement.parameter_count() {
        // A place that has a name is `$n`; the others are in order.
        let named = match sql {
            Text::Numbered(_) => statement.parameter_name(at),
            Text::InOrder(_, _) => None,
        };
        let named = named.and_then(|name| name.strip_prefix('$')?.parse::<usize>().ok());
        bind_from(&mut statement, at, values, named.unwrap_or(at))?;
    }
    let columns: Arc<[Box<str>]> = statement.column_names().into_iter().map(Box::from).collect();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        if !step(&columns, row)? {
            break;
        }
    }
    Ok(())
}

/// Binds the `n`th of the values, counted from 1, to a place.
fn bind_from(
    statement: &mut rusqlite::Statement<'_>,
    at: usize,
    values: &Values,
    n: usize,
) -> rusqlite::Result<()> {
    let value = values
        .get(n - 1)
        .ok_or(rusqlite::Error::InvalidParameterCount(at, values.len()))?;
    match value {
        Value::Int(value) => statement.raw_bind_parameter(at, value),
        Value::Bool(value) => statement.raw_bind_parameter(at, value),
        Value::Text(value) => statement.raw_bind_parameter(at, value),
        Value::Bytes(value) => statement.raw_bind_parameter(at, value),
        Value::Uuid(value) => statement.raw_bind_parameter(at, value.as_ref().map(|id| &id.as_bytes()[..])),
        Value::At(value) => {
            statement.raw_bind_parameter(at, value.map(muster_shared::time::Timestamp::as_millis))
        }
        Value::Json(value) => statement.raw_bind_parameter(at, value.as_ref().map(|json| &json.0)),
    }
}

/// A value, taken out of its row as it is: that a text is one is asked by whoever reads it, so that one that is none spoils
/// no other row.
enum Stored {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl Stored {
    fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(n) => Self::Integer(n),
            ValueRef::Real(n) => Self::Real(n),
            ValueRef::Text(text) => Self::Text(text.to_vec()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }

    fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Null => ValueRef::Null,
            Self::Integer(n) => ValueRef::Integer(*n),
            Self::Real(n) => ValueRef::Real(*n),
            Self::Text(text) => ValueRef::Text(text),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }
    }
}

/// A row, taken out of the statement that found it.
pub(super) struct SqliteRow {
    columns: Arc<[Box<str>]>,
    values: Vec<Stored>,
}

impl SqliteRow {
    pub(super) fn try_get<'r, T: FromSqlite<'r>>(&'r self, column: &str) -> Result<T, sqlx::Error> {
        let at = self.columns.iter().position(|name| **name == *column);
        self.at(at.ok_or_else(|| sqlx::Error::ColumnNotFound(column.to_owned()))?)
    }

    pub(super) fn at<'r, T: FromSqlite<'r>>(&'r self, at: usize) -> Result<T, sqlx::Error> {
        let value = self
            .values
            .get(at)
            .ok_or_else(|| sqlx::Error::ColumnNotFound(at.to_string()))?;
        T::from_sqlite(value.as_ref()).map_err(|why| sqlx::Error::ColumnDecode {
            index: at.to_string(),
            source: why.into(),
        })
    }
}

/// What a column of SQLite can be read as.
pub(super) trait FromSqlite<'r>: Sized {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String>;
}

fn another(wanted: &str, value: ValueRef<'_>) -> String {
    format!("{} where {wanted} is expected", value.data_type())
}

impl<'r> FromSqlite<'r> for i64 {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        match value {
            ValueRef::Integer(n) => Ok(n),
            ValueRef::Null | ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => {
                Err(another("a number", value))
            }
        }
    }
}

impl<'r> FromSqlite<'r> for bool {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        Ok(i64::from_sqlite(value)? != 0)
    }
}

impl<'r> FromSqlite<'r> for &'r str {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        match value {
            ValueRef::Text(text) => std::str::from_utf8(text).map_err(|err| err.to_string()),
            ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Blob(_) => {
                Err(another("a text", value))
            }
        }
    }
}

impl<'r> FromSqlite<'r> for String {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        <&str>::from_sqlite(value).map(str::to_owned)
    }
}

impl<'r> FromSqlite<'r> for &'r [u8] {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        match value {
            ValueRef::Blob(bytes) => Ok(bytes),
            ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Text(_) => {
                Err(another("bytes", value))
            }
        }
    }
}

impl<'r> FromSqlite<'r> for Vec<u8> {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        <&[u8]>::from_sqlite(value).map(<[u8]>::to_vec)
    }
}

impl<'r> FromSqlite<'r> for uuid::Uuid {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        Self::from_slice(<&[u8]>::from_sqlite(value)?).map_err(|err| err.to_string())
    }
}

impl<'r, T: FromSqlite<'r>> FromSqlite<'r> for Option<T> {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        match value {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => {
                T::from_sqlite(value).map(Some)
            }
        }
    }
}

/// What SQLite said, in the form that both databases share.
fn said(err: rusqlite::Error) -> sqlx::Error {
    let rusqlite::Error::SqliteFailure(code, text) = &err else {
        return sqlx::Error::Protocol(err.to_string());
    };
    let text = text.clone().unwrap_or_else(|| code.to_string());
    let code = code.extended_code;
    sqlx::Error::Database(Box::new(Said { code, text }))
}

#[derive(Debug)]
struct Said {
    /// An extended result code.
    code: i32,
    text: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(code: {}) {}", self.code, self.text)
    }
}

impl Error for Said {}

impl DatabaseError for Said {
    fn message(&self) -> &str {
        &self.text
    }

    fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some(self.code.to_string().into())
    }

    fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        match self.code {
            ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY => ErrorKind::UniqueViolation,
            ffi::SQLITE_CONSTRAINT_FOREIGNKEY => ErrorKind::ForeignKeyViolation,
            ffi::SQLITE_CONSTRAINT_NOTNULL => ErrorKind::NotNullViolation,
            ffi::SQLITE_CONSTRAINT_CHECK => ErrorKind::CheckViolation,
            _ => ErrorKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEFLY: Duration = Duration::from_millis(50);

    /// A file with one table of texts, and so many connections to it.
    fn connections(count: u32) -> (tempfile::TempDir, Connections) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("texts.db");
        let made = Connection::open(&path).unwrap();
        made.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE texts (text TEXT)")
            .unwrap();
        (dir, Connections::to(&path, true, count, BRIEFLY))
    }

    async fn rows(of: &Connections) -> Vec<SqliteRow> {
        let statement = (
            Text::Numbered("SELECT text FROM texts ORDER BY rowid".into()),
            Values::default(),
        );
        let step = |rows: &mut Vec<SqliteRow>, row| {
            rows.push(row);
            true
        };
        let mut taken = of.take().await.unwrap();
        taken.fold(statement, Vec::new(), step).await.unwrap()
    }

    #[tokio::test]
    async fn a_text_that_is_none_spoils_no_other_row() {
        let (_dir, texts) = connections(1);
        let insert = "INSERT INTO texts VALUES (CAST(x'ff' AS TEXT)), ('sound')";
        texts.take().await.unwrap().batch(insert).await.unwrap();
        let rows = rows(&texts).await;
        assert!(rows[0].try_get::<&str>("text").is_err());
        assert_eq!(rows[1].try_get::<&str>("text").unwrap(), "sound");
        assert!(rows[1].try_get::<i64>("text").is_err() && rows[1].try_get::<&str>("other").is_err());
    }

    #[tokio::test]
    async fn what_was_not_committed_goes_with_its_transaction_and_the_connection_is_of_use_again() {
        let (_dir, texts) = connections(1);
        let mut taken = texts.take().await.unwrap();
        taken.batch("BEGIN IMMEDIATE").await.unwrap();
        taken.batch("INSERT INTO texts VALUES ('lost')").await.unwrap();
        drop(taken);
        assert!(rows(&texts).await.is_empty());
        let mut taken = texts.take().await.unwrap();
        taken.batch("BEGIN IMMEDIATE").await.unwrap();
        taken.batch("INSERT INTO texts VALUES ('kept')").await.unwrap();
        taken.batch("COMMIT").await.unwrap();
        drop(taken);
        assert_eq!(rows(&texts).await.len(), 1);
    }

    #[tokio::test]
    async fn whoever_gets_no_connection_in_time_is_told_so_and_nobody_gets_one_after_the_close() {
        let (_dir, texts) = connections(2);
        let (first, second) = (texts.take().await.unwrap(), texts.take().await.unwrap());
        assert!(matches!(texts.take().await, Err(sqlx::Error::PoolTimedOut)));
        drop((first, second));
        texts.close().await;
        assert!(matches!(texts.take().await, Err(sqlx::Error::PoolClosed)));
    }

    #[tokio::test]
    async fn calls_are_the_same_on_a_thread_that_may_wait_and_the_thread_forgets_that_it_may() {
        let (_dir, texts) = connections(1);
        let counted = texts.clone();
        let count = apart(async move {
            assert!(MAY_WAIT.get());
            rows(&counted).await.len()
        });
        assert_eq!(count.await.unwrap(), 0);
        assert_eq!(here(rows(&texts)).await.len(), 0);
        assert!(!MAY_WAIT.get());
        assert!(!tokio::task::spawn_blocking(|| MAY_WAIT.get()).await.unwrap());
    }
}
