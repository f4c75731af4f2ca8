//! The statements about invocations, one function per fact.

use std::time::Duration;

use muster_shared::{ids::ExecutionId, time::Timestamp, wire::TIMEOUT_SECONDS_MAX};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{Bounds, JournalError};
use crate::{
    effect,
    session::{Fact, OwedOutput, Recorded, Reported, Stage},
};

pub(crate) struct Store {
    pub(super) connection: Connection,
    bounds: Bounds,
    /// Invocations that are remembered, counted once and then kept.
    rows: u64,
}

const INVOCATION: &str = "SELECT execution_id, request, attempt, stage, outcome, reported,
    EXISTS (SELECT 1 FROM cancel WHERE cancel.execution_id = invocation.execution_id) FROM invocation";

/// Cancels of what has not arrived here that are remembered; past it the oldest go.
const CANCELS_MAX: i64 = 10_000;
/// No request is good for longer, so a cancel that is older concerns none that may still arrive.
const REQUEST_LIFE_MAX: Duration = Duration::from_secs(TIMEOUT_SECONDS_MAX as u64);

/// The row of `meta` that says after which restore of control everything was told again.
const TOLD_AGAIN: &str = "told_again";
/// Invocations that one commit of the pruning forgets.
pub(super) const PRUNE_BATCH: u32 = 1000;

impl Store {
    pub(super) fn new(connection: Connection, bounds: Bounds) -> rusqlite::Result<Self> {
        let rows = connection.query_row("SELECT count(*) FROM invocation", [], |row| row.get::<_, i64>(0))?;
        Ok(Self {
            connection,
            bounds,
            rows: rows.unsigned_abs(),
        })
    }

    /// Facts that belong together become durable together. What is new may be refused for want of room, never what is
    /// to be said of what was taken.
    pub(crate) fn record(&mut self, facts: &[Fact], now: Timestamp) -> Result<(), JournalError> {
        let taken = facts.iter().filter(|fact| matches!(fact, Fact::Taken(_))).count() as u64;
        if taken > 0 {
            self.make_room(taken, now)?;
        }
        let transaction = self.connection.transaction()?;
        let mut forgotten = 0;
        for fact in facts {
            write(&transaction, fact, now)?;
            if let Fact::Ended { execution, .. } = fact {
                forgotten += forget_parameters(&transaction, *execution)?;
            }
        }
        transaction.commit()?;
        self.rows += taken;
        effect::done("a commit of the journal");
        if forgotten > 0 {
            self.empty_log();
        }
        Ok(())
    }

    /// What was forgotten still lies in the write-ahead log until that is begun anew. Should it not be possible now, the
    /// next one does it.
    fn empty_log(&self) {
        let emptied = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        match emptied {
            Ok(0) => {}
            Ok(_busy) => log::debug!("The journal's log is in use and was not emptied"),
            Err(err) => log::warn!(error:% = err; "The journal's log could not be emptied"),
        }
    }

    /// Forgets what may be forgotten, the oldest first, until so many more have their place.
    fn make_room(&mut self, more: u64, now: Timestamp) -> Result<(), JournalError> {
        const BATCH: u32 = 100;
        while let Some(full) = self.full(more)? {
            if self.forget(now, BATCH)? == 0 {
                return Err(full);
            }
        }
        Ok(())
    }

    fn full(&self, more: u64) -> Result<Option<JournalError>, JournalError> {
        let Bounds { rows_max, bytes_max } = self.bounds;
        if self.rows + more > rows_max {
            return Ok(Some(JournalError::Full {
                limit: "journal_rows_max",
                unit: "invocations",
                has: self.rows,
                max: rows_max,
            }));
        }
        let pragma = |name| {
            self.connection
                .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
        };
        let used = (pragma("page_count")? - pragma("freelist_count")?) * pragma("page_size")?;
        let used = used.unsigned_abs();
        Ok((used >= bytes_max).then_some(JournalError::Full {
            limit: "journal_bytes_max",
            unit: "bytes",
            has: used,
            max: bytes_max,
        }))
    }

    /// What control has taken, with its output, and what no valid request can name any more.
    fn forget(&mut self, before: Timestamp, batch: u32) -> Result<usize, JournalError> {
        let count = self.connection.execute(
            "DELETE FROM invocation WHERE execution_id IN (
                 SELECT execution_id FROM invocation WHERE reported = 'terminal' AND expires_ms < ?1
                    AND execution_id NOT IN (SELECT execution_id FROM output_owed)
                    AND execution_id NOT IN (SELECT execution_id FROM output_kept) ORDER BY expires_ms LIMIT ?2)",
            params![before.as_millis(), batch],
        )?;
        if count > 0 {
            self.connection.execute(
                "DELETE FROM orphan WHERE execution_id NOT IN (SELECT execution_id FROM invocation)",
                [],
            )?;
        }
        self.rows = self.rows.saturating_sub(count as u64);
        Ok(count)
    }

    /// Ends that control took since then, a page of them after `after`, in the order of their ids. What it did not know is
    /// among them: it may know it by now.
    pub(crate) fn told_since(
        &mut self,
        since: Timestamp,
        after: Option<ExecutionId>,
        limit: u32,
    ) -> Result<Vec<Recorded>, JournalError> {
        let mut statement = self.connection.prepare(&format!(
            "{INVOCATION} WHERE reported = 'terminal' AND stage = 'ended' AND attempt > 0 AND reported_ms >= ?1
                AND execution_id > ?2 ORDER BY execution_id LIMIT ?3"
        ))?;
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        let rows = statement.query_map(params![since.as_millis(), after, limit], |row| Ok(recorded(row)))?;
        rows.map(|row| row?).collect()
    }

    /// The restore of control after which all of that was told again.
    pub(crate) fn told_again(&mut self) -> Result<Option<Timestamp>, JournalError> {
        let raw: Option<String> = self
            .connection
            .query_row("SELECT value FROM meta WHERE key = ?1", [TOLD_AGAIN], |row| {
                row.get(0)
            })
            .optional()?;
        raw.map(|raw| parse("meta", TOLD_AGAIN, "value", &raw))
            .transpose()
    }

    pub(crate) fn note_told_again(&mut self, restored_at: Timestamp) -> Result<(), JournalError> {
        self.connection.execute(
            "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            params![TOLD_AGAIN, restored_at.to_string()],
        )?;
        Ok(())
    }

    /// What control does not know, the last first. A journal of an earlier release has no place for it.
    pub(crate) fn orphans(&mut self) -> Result<Vec<(Recorded, Timestamp)>, JournalError> {
        if !self.has_table("orphan")? {
            return Ok(Vec::new());
        }
        let mut statement = self
            .connection
            .prepare("SELECT execution_id, since_ms FROM orphan ORDER BY since_ms DESC, execution_id")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        drop(statement);
        let mut orphans = Vec::new();
        for (key, since) in rows {
            let recorded = self.find(parse("orphan", &key, "execution_id", &key)?)?;
            orphans.extend(recorded.map(|recorded| (recorded, Timestamp::from_millis(since))));
        }
        Ok(orphans)
    }

    /// Only a journal of an earlier release that is merely looked at lacks any.
    fn has_table(&self, name: &str) -> Result<bool, JournalError> {
        Ok(self.connection.query_row(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = ?1)",
            [name],
            |row| row.get(0),
        )?)
    }

    pub(crate) fn find(&mut self, execution: ExecutionId) -> Result<Option<Recorded>, JournalError> {
        let mut statement = self
            .connection
            .prepare_cached(&format!("{INVOCATION} WHERE execution_id = ?1"))?;
        statement
            .query_row([execution.to_string()], |row| Ok(recorded(row)))
            .optional()?
            .transpose()
    }

    /// Whether control took it back before it arrived here.
    pub(crate) fn is_cancelled(&mut self, execution: ExecutionId) -> Result<bool, JournalError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM cancel WHERE execution_id = ?1)")?;
        Ok(statement.query_row([execution.to_string()], |row| row.get(0))?)
    }

    /// What is not settled with control, in the order it was taken.
    pub(crate) fn owed(&mut self) -> Result<Vec<Recorded>, JournalError> {
        let mut statement = self.connection.prepare(&format!(
            "{INVOCATION} WHERE reported <> 'terminal' ORDER BY taken_order"
        ))?;
        let rows = statement.query_map([], |row| Ok(recorded(row)))?;
        rows.map(|row| row?).collect()
    }

    /// What control knows the end of and has not got the output of, be it that it wants none, in the order in which that was
    /// told.
    pub(crate) fn outputs_owed(&mut self) -> Result<Vec<(Recorded, OwedOutput)>, JournalError> {
        let kept = if self.has_table("output_kept")? {
            "UNION ALL SELECT execution_id, bytes, since_ms, 0 FROM output_kept"
        } else {
            ""
        };
        let mut statement = self.connection.prepare(&format!(
            "SELECT execution_id, bytes, since_ms, 1 FROM output_owed {kept} ORDER BY since_ms, execution_id",
        ))?;
        let rows = statement.query_map([], |row| {
            let key: String = row.get(0)?;
            Ok((
                key,
                row.get::<_, i64>(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, bool>(3)?,
            ))
        })?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        drop(statement);
        let mut owed = Vec::new();
        for (key, bytes, since, wanted) in rows {
            let recorded = self.find(parse("output_owed", &key, "execution_id", &key)?)?;
            let output = OwedOutput {
                bytes: bytes.try_into().unwrap_or_default(),
                since: Timestamp::from_millis(since),
                wanted,
            };
            owed.extend(recorded.map(|recorded| (recorded, output)));
        }
        Ok(owed)
    }

    /// Forgets what is older than it has to be, a batch at a time: nobody waits long for the journal meanwhile.
    pub(crate) fn prune(&mut self, before: Timestamp) -> Result<usize, JournalError> {
        self.connection.execute(
            "DELETE FROM cancel WHERE asked_ms < ?1 AND execution_id NOT IN (
                 SELECT execution_id FROM invocation WHERE reported <> 'terminal')",
            [before.minus(REQUEST_LIFE_MAX).as_millis()],
        )?;
        self.forget(before, PRUNE_BATCH)
    }

    /// What is wrong with the file itself, if anything.
    pub(crate) fn damage(&mut self) -> Result<Option<String>, JournalError> {
        let verdict: String = self
            .connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        Ok((verdict != "ok").then_some(verdict))
    }

    /// The node whose journal it is.
    pub(crate) fn owner(&mut self) -> Result<Option<String>, JournalError> {
        let mut statement = self
            .connection
            .prepare("SELECT value FROM meta WHERE key = 'node_id'")?;
        Ok(statement.query_row([], |row| row.get(0)).optional()?)
    }
}

fn write(connection: &Connection, fact: &Fact, now: Timestamp) -> Result<(), JournalError> {
    let now = now.as_millis();
    match fact {
        Fact::Taken(request) => connection.prepare_cached(
            "INSERT INTO invocation (execution_id, request, attempt, stage, reported, taken_order, taken_ms, expires_ms)
             VALUES (?1, ?2, 0, 'taken', 'nothing', (SELECT 1 + coalesce(max(taken_order), 0) FROM invocation), ?3, ?4)",
        )?
        .execute(params![
            request.execution_id.to_string(),
            to_json("invocation", request.execution_id, "request", request.as_ref())?,
            now,
            request.deadline().as_millis()
        ])?,
        Fact::Started { execution, attempt } => connection
            .prepare_cached("UPDATE invocation SET stage = 'started', attempt = ?2 WHERE execution_id = ?1")?
            .execute(params![execution.to_string(), attempt])?,
        Fact::CancelAsked { execution } => {
            connection
                .prepare_cached("INSERT OR IGNORE INTO cancel (execution_id, asked_ms) VALUES (?1, ?2)")?
                .execute(params![execution.to_string(), now])?;
            connection
                .prepare_cached(
                    "DELETE FROM cancel WHERE execution_id IN (
                         SELECT execution_id FROM cancel WHERE execution_id NOT IN (
                             SELECT execution_id FROM invocation WHERE reported <> 'terminal')
                         ORDER BY asked_ms DESC LIMIT -1 OFFSET ?1)",
                )?
                .execute([CANCELS_MAX])?
        }
        Fact::Ended { execution, outcome } => connection
            .prepare_cached("UPDATE invocation SET stage = 'ended', outcome = ?2 WHERE execution_id = ?1")?
            .execute(params![execution.to_string(), to_json("invocation", *execution, "outcome", outcome)?])?,
        Fact::Reported { execution, reported } => {
            // Told anew, it is known or not by the answer to that.
            connection
                .prepare_cached("DELETE FROM orphan WHERE execution_id = ?1")?
                .execute([execution.to_string()])?;
            connection
            .prepare_cached("UPDATE invocation SET reported = ?2, reported_ms = ?3 WHERE execution_id = ?1")?
            .execute(params![execution.to_string(), reported.as_str(), now])?
        }
        Fact::OutputOwed { execution, output } => connection
            .prepare_cached(if output.wanted {
                "INSERT OR IGNORE INTO output_owed (execution_id, bytes, since_ms) VALUES (?1, ?2, ?3)"
            } else {
                "INSERT OR IGNORE INTO output_kept (execution_id, bytes, since_ms) VALUES (?1, ?2, ?3)"
            })?
            .execute(params![
                execution.to_string(),
                i64::try_from(output.bytes).unwrap_or(i64::MAX),
                output.since.as_millis()
            ])?,
        Fact::OutputSettled { execution } => {
            connection
                .prepare_cached("DELETE FROM output_kept WHERE execution_id = ?1")?
                .execute([execution.to_string()])?;
            connection
                .prepare_cached("DELETE FROM output_owed WHERE execution_id = ?1")?
                .execute([execution.to_string()])?
        }
        Fact::Orphaned { execution } => connection
            .prepare_cached("INSERT OR REPLACE INTO orphan (execution_id, since_ms) VALUES (?1, ?2)")?
            .execute(params![execution.to_string(), now])?,
    };
    Ok(())
}

/// Nobody needs the parameters of what has ended, and some are secret. Says how many rows had any.
fn forget_parameters(connection: &Connection, execution: ExecutionId) -> Result<usize, JournalError> {
    let mut statement = connection.prepare_cached(
        "UPDATE invocation SET request = json_remove(request, '$.parameters')
         WHERE execution_id = ?1 AND json_type(request, '$.parameters') = 'object'",
    )?;
    Ok(statement.execute([execution.to_string()])?)
}

fn recorded(row: &Row<'_>) -> Result<Recorded, JournalError> {
    let key: String = row.get(0)?;
    let outcome: Option<String> = row.get(4)?;
    let stage: String = row.get(3)?;
    let attempt = row.get(2)?;
    let stage = match (stage.as_str(), outcome) {
        ("taken", None) => Stage::Taken,
        ("started", None) => Stage::Started,
        ("ended", Some(outcome)) => Stage::Ended(from_json("invocation", &key, "outcome", &outcome)?),
        (other, _) => return Err(corrupt("invocation", &key, "stage", other.to_owned())),
    };
    let reported: String = row.get(5)?;
    Ok(Recorded {
        request: from_json("invocation", &key, "request", &row.get::<_, String>(1)?)?,
        attempt,
        stage,
        cancel_asked: row.get(6)?,
        reported: Reported::parse(&reported)
            .ok_or_else(|| corrupt("invocation", &key, "reported", reported.clone()))?,
    })
}

fn corrupt(table: &'static str, key: &str, column: &'static str, why: String) -> JournalError {
    JournalError::Corrupt {
        table,
        key: key.to_owned(),
        column,
        why,
    }
}

pub(super) fn parse<T: std::str::FromStr<Err: ToString>>(
    table: &'static str,
    key: &str,
    column: &'static str,
    raw: &str,
) -> Result<T, JournalError> {
    raw.parse()
        .map_err(|err: T::Err| corrupt(table, key, column, err.to_string()))
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    table: &'static str,
    key: &str,
    column: &'static str,
    raw: &str,
) -> Result<T, JournalError> {
    serde_json::from_str(raw).map_err(|err| corrupt(table, key, column, err.to_string()))
}

fn to_json(
    table: &'static str,
    key: ExecutionId,
    column: &'static str,
    value: &impl serde::Serialize,
) -> Result<String, JournalError> {
    serde_json::to_string(value).map_err(|err| corrupt(table, &key.to_string(), column, err.to_string()))
}
