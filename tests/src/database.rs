//! Control's database behind its back, on either engine: to look at, and for what no command does.
//!
//! The statements of stories are the same for both. What differs is spelt by the functions of [`Database`].

use std::{
    collections::BTreeMap,
    fmt::Display,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, types::ValueRef};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    hex,
    postgres::{Cluster, PgDatabase},
};

/// On which engine worlds are made that do not care; `sqlite` when it is not set.
const VARIABLE: &str = "MUSTER_TEST_ENGINE";
/// Under which control's writers queue on PostgreSQL, as `control/src/store/engine.rs` has it.
const WRITERS_LOCK: i64 = 1_299_541_875;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    /// # Panics
    /// When the environment names another.
    #[must_use]
    pub fn of_this_run() -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("sqlite") => Self::Sqlite,
            Ok("postgres") => Self::Postgres,
            Ok(other) => panic!("{VARIABLE} is sqlite or postgres, not {other}"),
        }
    }
}

pub enum Database {
    /// The data directory in which control keeps it.
    Sqlite(PathBuf),
    Postgres(PgDatabase),
}

/// One row: each value as text.
pub type Row = Vec<Option<String>>;

/// Nobody else writes while it is there.
pub enum WritesHeld {
    Sqlite(Connection),
    Postgres(PgConnection),
}

impl Database {
    /// An empty one for control to fill. SQLite's comes into being with the data directory.
    pub(crate) async fn made(engine: Engine, data: &Path, cluster: Option<std::sync::Arc<Cluster>>) -> Self {
        match (engine, cluster) {
            (Engine::Sqlite, _) => Self::Sqlite(data.to_owned()),
            (Engine::Postgres, Some(cluster)) => Self::Postgres(PgDatabase::made(cluster).await),
            (Engine::Postgres, None) => Self::Postgres(PgDatabase::made(Cluster::shared().await).await),
        }
    }

    /// # Panics
    /// On SQLite.
    #[must_use]
    pub fn postgres(&self) -> &PgDatabase {
        match self {
            Self::Sqlite(_) => panic!("this story needs PostgreSQL"),
            Self::Postgres(database) => database,
        }
    }

    /// What a query finds. Ids are in their usual form, other bytes as `\x` and hexadecimal digits.
    #[must_use]
    pub fn rows(&self, sql: &str) -> Vec<Row> {
        match self {
            Self::Sqlite(data) => sqlite_rows(&file(data), sql),
            Self::Postgres(database) => database.rows(sql),
        }
    }

    /// The one value that a query finds.
    ///
    /// # Panics
    /// When it is not one, or NULL.
    #[must_use]
    #[track_caller]
    pub fn value(&self, sql: &str) -> String {
        let rows = self.rows(sql);
        match &rows[..] {
            [row] if row.len() == 1 => row[0].clone().unwrap_or_else(|| panic!("{sql}: it is NULL")),
            _ => panic!("{sql}: one value was expected: {rows:?}"),
        }
    }

    /// The one number that a query finds.
    #[must_use]
    #[track_caller]
    pub fn number(&self, sql: &str) -> i64 {
        let value = self.value(sql);
        value
            .parse()
            .unwrap_or_else(|_| panic!("{sql}: a number was expected: {value}"))
    }

    /// The number of rows of a table, or of what stands after it: `audit WHERE seq > 1`.
    #[must_use]
    #[track_caller]
    pub fn count(&self, of: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM {of}"))
    }

    /// Every table there is.
    #[must_use]
    pub fn tables(&self) -> Vec<String> {
        let names = match self {
            Self::Sqlite(_) => {
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            }
            Self::Postgres(_) => "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
        };
        self.rows(names).into_iter().flatten().flatten().collect()
    }

    /// How many rows each of these tables holds; a condition may stand after the name.
    #[must_use]
    pub fn counts(&self, tables: impl IntoIterator<Item = (String, &'static str)>) -> BTreeMap<String, i64> {
        let each: Vec<String> = tables
            .into_iter()
            .map(|(name, condition)| format!("SELECT '{name}', count(*) FROM \"{name}\" {condition}"))
            .collect();
        let counted = self.rows(&each.join(" UNION ALL "));
        counted
            .into_iter()
            .filter_map(|mut row| {
                let rows = row.pop()??.parse().ok()?;
                Some((row.pop()??, rows))
            })
            .collect()
    }

    /// Changes it behind control's back.
    ///
    /// # Panics
    /// When a statement is not sound.
    pub fn alter(&self, sql: &str) {
        match self {
            Self::Sqlite(data) => {
                let db = opened(&file(data), OpenFlags::SQLITE_OPEN_READ_WRITE);
                db.execute_batch(sql).unwrap_or_else(|err| panic!("{sql}: {err}"));
            }
            Self::Postgres(database) => database.alter(sql),
        }
    }

    /// Keeps every other writer waiting until it is dropped.
    pub async fn hold_writes(&self) -> WritesHeld {
        match self {
            Self::Sqlite(data) => {
                let db = opened(&file(data), OpenFlags::SQLITE_OPEN_READ_WRITE);
                db.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");
                WritesHeld::Sqlite(db)
            }
            Self::Postgres(database) => {
                let mut db = database.connect().await;
                let lock = format!("SELECT pg_advisory_lock({WRITERS_LOCK})");
                crate::postgres::run(&mut db, &lock).await;
                WritesHeld::Postgres(db)
            }
        }
    }

    /// From now on no row can be inserted there.
    pub fn refuse_rows(&self, table: &str) {
        self.alter(&match self {
            Self::Sqlite(_) => format!(
                "CREATE TRIGGER {table}_is_full BEFORE INSERT ON {table}
                 BEGIN SELECT raise(ABORT, 'no room'); END"
            ),
            Self::Postgres(_) => format!(
                "CREATE FUNCTION {table}_is_full() RETURNS trigger LANGUAGE plpgsql
                 AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$;
                 CREATE TRIGGER {table}_is_full BEFORE INSERT ON {table} EXECUTE FUNCTION {table}_is_full()"
            ),
        });
    }

    /// Takes [`Self::refuse_rows`] back.
    pub fn accept_rows(&self, table: &str) {
        self.alter(&match self {
            Self::Sqlite(_) => format!("DROP TRIGGER {table}_is_full"),
            Self::Postgres(_) => format!("DROP FUNCTION {table}_is_full CASCADE"),
        });
    }

    /// An instant, from an expression that comes to milliseconds.
    #[must_use]
    pub fn at(&self, millis: impl Display) -> String {
        match self {
            Self::Sqlite(_) => format!("({millis})"),
            Self::Postgres(_) => format!("to_timestamp(({millis}) / 1000.0)"),
        }
    }

    /// The instant of a column, so many milliseconds earlier.
    #[must_use]
    pub fn earlier(&self, column: &str, millis: i64) -> String {
        match self {
            Self::Sqlite(_) => format!("({column} - {millis})"),
            Self::Postgres(_) => format!("({column} - {millis} * interval '1 millisecond')"),
        }
    }

    #[must_use]
    pub fn id(&self, id: Uuid) -> String {
        match self {
            Self::Sqlite(_) => format!("x'{}'", hex(id.as_bytes())),
            Self::Postgres(_) => format!("'{id}'::uuid"),
        }
    }

    #[must_use]
    pub fn bytes(&self, bytes: &[u8]) -> String {
        match self {
            Self::Sqlite(_) => format!("x'{}'", hex(bytes)),
            Self::Postgres(_) => format!("'\\x{}'::bytea", hex(bytes)),
        }
    }

    /// An expression that is another id for each row.
    #[must_use]
    pub const fn some_id(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "randomblob(16)",
            Self::Postgres(_) => "gen_random_uuid()",
        }
    }

    /// An expression that is another digest for each row.
    #[must_use]
    pub const fn some_digest(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "randomblob(32)",
            Self::Postgres(_) => "sha256(uuid_send(gen_random_uuid()))",
        }
    }
}

/// The database file in a data directory.
fn file(data: &Path) -> PathBuf {
    let is_database = |path: &PathBuf| path.extension().is_some_and(|e| e == "db");
    std::fs::read_dir(data)
        .expect("the data directory can be read")
        .flatten()
        .map(|entry| entry.path())
        .find(is_database)
        .expect("control keeps a database")
}

fn opened(file: &Path, flags: OpenFlags) -> Connection {
    let db = Connection::open_with_flags(file, flags).expect("the database can be opened");
    db.busy_timeout(Duration::from_secs(10))
        .expect("a wait can be set");
    db
}

fn sqlite_rows(file: &Path, sql: &str) -> Vec<Row> {
    let db = opened(file, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let mut statement = db.prepare(sql).unwrap_or_else(|err| panic!("{sql}: {err}"));
    let columns = statement.column_count();
    statement
        .query_map([], |row| {
            (0..columns)
                .map(|column| Ok(text(row.get_ref(column)?)))
                .collect()
        })
        .and_then(Iterator::collect)
        .unwrap_or_else(|err| panic!("{sql}: {err}"))
}

/// As PostgreSQL writes it.
fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Some(match Uuid::from_slice(bytes) {
            Ok(id) => id.to_string(),
            Err(_) => format!("\\x{}", hex(bytes)),
        }),
    }
}
