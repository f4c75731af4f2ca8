//! Opening the database, its tables, and the refusal of one that is not ours.

use std::{path::Path, time::Duration};

use muster_shared::ids::NodeId;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use super::{Bounds, Store};
use crate::{durable, exit::Exit};

const REMEDY: &str = "It is not re-created, because a node that forgets what it ran could run it twice: restore it, or \
                      enrol this machine anew with `musterd enroll --force`";

const SCHEMA_VERSION: &str = "1";
/// How long a reader waits while a daemon writes.
const READ_WAIT: Duration = Duration::from_secs(5);

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- stage: how far the node is. reported: how far control is known to know, as the status it has taken.
CREATE TABLE IF NOT EXISTS invocation (
    execution_id TEXT PRIMARY KEY,
    request      TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    stage        TEXT NOT NULL CHECK (stage IN ('taken', 'started', 'ended')),
    outcome      TEXT CHECK ((stage = 'ended') = (outcome IS NOT NULL)),
    reported     TEXT NOT NULL CHECK (reported IN ('nothing', 'ack', 'started', 'terminal')),
    taken_order  INTEGER NOT NULL,
    taken_ms     INTEGER NOT NULL,
    expires_ms   INTEGER NOT NULL,
    reported_ms  INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS invocation_owed ON invocation (taken_order) WHERE reported <> 'terminal';
CREATE INDEX IF NOT EXISTS invocation_settled ON invocation (expires_ms) WHERE reported = 'terminal';

-- What control took back, also what has not arrived here yet: such a request is not run when it comes.
CREATE TABLE IF NOT EXISTS cancel (
    execution_id TEXT PRIMARY KEY,
    asked_ms     INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS cancel_asked ON cancel (asked_ms);

-- What control knows the end of, and has not got the output of yet.
CREATE TABLE IF NOT EXISTS output_owed (
    execution_id TEXT PRIMARY KEY,
    bytes        INTEGER NOT NULL,
    since_ms     INTEGER NOT NULL
) STRICT;

-- What control knows another end of, and takes no output of: it is kept here for as long as one that it wants.
CREATE TABLE IF NOT EXISTS output_kept (
    execution_id TEXT PRIMARY KEY,
    bytes        INTEGER NOT NULL,
    since_ms     INTEGER NOT NULL
) STRICT;

-- What control did not know when it was told: it was restored from a backup, or has pruned it.
CREATE TABLE IF NOT EXISTS orphan (
    execution_id TEXT PRIMARY KEY,
    since_ms     INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS baseline (
    hook        TEXT PRIMARY KEY,
    digest      TEXT NOT NULL,
    pinned_ms   INTEGER NOT NULL,
    approved_ms INTEGER
) STRICT;

-- One row per hook and digest that was seen in place of the baseline, kept so that each is reported once.
CREATE TABLE IF NOT EXISTS violation (
    hook         TEXT NOT NULL,
    observed     TEXT NOT NULL,
    expected     TEXT NOT NULL,
    detected_by  TEXT NOT NULL,
    detected_ms  INTEGER NOT NULL,
    delivered_ms INTEGER,
    PRIMARY KEY (hook, observed)
) STRICT;
";

/// What a start needs on a full disk: the log of the database and what its readers share.
const ROOM_BYTES: u64 = 512 * 1024;

/// Opens it also where the disk is full, in the room that an earlier start has taken for this.
pub(crate) fn open_with_room(path: &Path, node: NodeId, bounds: Bounds) -> Result<Store, Exit> {
    let (room, begun) = (path.with_extension("room"), path.with_extension("begun"));
    let there = std::fs::metadata(path).is_ok_and(|about| about.len() > 0);
    if begun.exists() && !there {
        // SQLite would take it for a new one.
        return Err(Exit::Journal(format!(
            "the journal {} is gone or empty, although there was one: {} says so. {REMEDY}",
            path.display(),
            begun.display()
        )));
    }
    let opened = match open(path, node, bounds) {
        Err(Exit::Failure(why)) if std::fs::remove_file(&room).is_ok() => {
            log::error!("{why}; the room kept for this is used now");
            open(path, node, bounds)
        }
        opened => opened,
    }?;
    if let Err(err) = durable::reserve(&room, ROOM_BYTES) {
        log::warn!(error:% = err; "No room could be kept for a start on a full disk");
    }
    if let Err(err) = durable::create_first(&begun, b"") {
        log::warn!(error:% = err; "That there is a journal could not be noted");
    }
    Ok(opened)
}

pub(crate) fn open(path: &Path, node: NodeId, bounds: Bounds) -> Result<Store, Exit> {
    let damaged = |err: rusqlite::Error| {
        if super::is_full(&err) {
            return Exit::Failure(format!(
                "the journal {} cannot be opened, because the disk is full: {err}",
                path.display()
            ));
        }
        Exit::Journal(format!(
            "the journal {} cannot be used: {err}. {REMEDY}",
            path.display()
        ))
    };
    create_private(path)?;
    let mut connection = Connection::open(path).map_err(damaged)?;
    prepare(&connection).map_err(damaged)?;
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(damaged)?;
    if verdict != "ok" {
        return Err(Exit::Journal(format!(
            "the journal {} is damaged: {verdict}. {REMEDY}",
            path.display()
        )));
    }
    let transaction = connection.transaction().map_err(damaged)?;
    transaction.execute_batch(TABLES).map_err(damaged)?;
    let version = meta(&transaction, "schema_version", SCHEMA_VERSION).map_err(damaged)?;
    let owner = meta(&transaction, "node_id", &node.to_string()).map_err(damaged)?;
    transaction.commit().map_err(damaged)?;
    known(path, &version)?;
    if owner != node.to_string() {
        return Err(Exit::Journal(format!(
            "the journal {} belongs to node {owner}, but this machine is enrolled as {node}: restore the right one, or enrol this machine anew with `musterd enroll --force`",
            path.display()
        )));
    }
    Store::new(connection, bounds).map_err(damaged)
}

/// Whoever looks only takes nothing in.
const LOOKED_AT: Bounds = Bounds {
    rows_max: 0,
    bytes_max: 0,
};

/// Opens it to look only, beside a daemon that works with it or without one. It is neither made nor brought up to date.
pub(crate) fn open_to_read(path: &Path) -> Result<Store, Exit> {
    let unreadable =
        |err: rusqlite::Error| Exit::Journal(format!("the journal {} cannot be read: {err}", path.display()));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(unreadable)?;
    connection.busy_timeout(READ_WAIT).map_err(unreadable)?;
    let value = |key: &str| -> rusqlite::Result<Option<String>> {
        connection
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
            .optional()
    };
    let version = value("schema_version").map_err(unreadable)?.unwrap_or_default();
    known(path, &version)?;
    Store::new(connection, LOOKED_AT).map_err(unreadable)
}

/// Takes the parameters out of a journal that nobody goes on with, because they may be secret, and counts the ends and
/// outputs in it that control was never told.
pub(crate) fn retire(path: &Path) -> rusqlite::Result<u64> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    prepare(&connection)?;
    connection.execute(
        "UPDATE invocation SET request = json_remove(request, '$.parameters')",
        [],
    )?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))?;
    let untold: i64 = connection.query_row(
        "SELECT (SELECT count(*) FROM invocation WHERE reported <> 'terminal') + (SELECT count(*) FROM output_owed)",
        [],
        |row| row.get(0),
    )?;
    Ok(untold.unsigned_abs())
}

fn known(path: &Path, version: &str) -> Result<(), Exit> {
    if version == SCHEMA_VERSION {
        return Ok(());
    }
    Err(Exit::Journal(format!(
        "the journal {} has schema {version}; this musterd knows {SCHEMA_VERSION}",
        path.display()
    )))
}

/// SQLite gives its companions the mode of the database, so it is made before SQLite sees it: requests hold secrets.
fn create_private(path: &Path) -> Result<(), Exit> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map(drop)
        .map_err(|err| Exit::Journal(format!("the journal {} cannot be opened: {err}", path.display())))
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // What is taken out of a row must not lie in the file.
    connection.pragma_update(None, "secure_delete", "ON")?;
    connection.pragma_update(None, "cache_size", -256)?;
    connection.pragma_update(None, "wal_autocheckpoint", 256)?;
    connection.pragma_update(None, "journal_size_limit", 1 << 20)?;
    connection.set_prepared_statement_cache_capacity(16);
    Ok(())
}

/// The value of `key`, which becomes `first` when there is none yet.
fn meta(connection: &Connection, key: &str, first: &str) -> rusqlite::Result<String> {
    connection.execute(
        "INSERT OR IGNORE INTO meta (key, value) VALUES (?1, ?2)",
        params![key, first],
    )?;
    let value = connection
        .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
        .optional()?;
    Ok(value.unwrap_or_default())
}
