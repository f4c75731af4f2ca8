//! The statements about hooks: the digest that each is pinned to, and what else was seen.

use muster_shared::{
    ids::{ActionName, Digest},
    time::Timestamp,
    wire::DetectedBy,
};
use rusqlite::{OptionalExtension as _, params};

use super::{
    JournalError, Store,
    store::{from_json, parse},
};

/// Hooks and digests other than the baseline's that are remembered as seen; with more, the oldest told ones go, and of
/// those not told yet no further one is taken: control then knows of so many.
const VIOLATIONS_MAX: i64 = 1000;
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    pub(crate) hook: String,
    pub(crate) observed: Digest,
    pub(crate) expected: Digest,
    pub(crate) detected_by: DetectedBy,
}

impl Store {
    /// The baseline of a hook, which becomes `observed` when there is none.
    pub(crate) fn pin_baseline(
        &mut self,
        hook: &ActionName,
        observed: Digest,
        now: Timestamp,
    ) -> Result<Digest, JournalError> {
        if let Some(pinned) = self.baseline(hook)? {
            return Ok(pinned);
        }
        self.connection.execute(
            "INSERT INTO baseline (hook, digest, pinned_ms) VALUES (?1, ?2, ?3)",
            params![hook.as_str(), observed.to_string(), now.as_millis()],
        )?;
        Ok(observed)
    }

    pub(crate) fn baseline(&mut self, hook: &ActionName) -> Result<Option<Digest>, JournalError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT digest FROM baseline WHERE hook = ?1")?;
        let raw: Option<String> = statement
            .query_row([hook.as_str()], |row| row.get(0))
            .optional()?;
        raw.map(|raw| parse("baseline", hook.as_str(), "digest", &raw))
            .transpose()
    }

    pub(crate) fn baselines(&mut self) -> Result<Vec<(ActionName, Digest)>, JournalError> {
        let mut statement = self
            .connection
            .prepare("SELECT hook, digest FROM baseline ORDER BY hook")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        rows.map(|row| {
            let (hook, digest) = row?;
            Ok((
                parse("baseline", &hook, "hook", &hook)?,
                parse("baseline", &hook, "digest", &digest)?,
            ))
        })
        .collect()
    }

    /// Takes the word of this machine's admin. An approval of control that comes later still counts.
    pub(crate) fn trust(
        &mut self,
        hook: &ActionName,
        digest: Digest,
        now: Timestamp,
    ) -> Result<(), JournalError> {
        self.connection.execute(
            "INSERT INTO baseline (hook, digest, pinned_ms) VALUES (?1, ?2, ?3)
             ON CONFLICT (hook) DO UPDATE SET digest = excluded.digest, pinned_ms = excluded.pinned_ms",
            params![hook.as_str(), digest.to_string(), now.as_millis()],
        )?;
        Ok(())
    }

    /// Takes an operator's approval, unless one at least as new is known. Says whether it did.
    pub(crate) fn approve(
        &mut self,
        hook: &ActionName,
        digest: Digest,
        approved_at: Timestamp,
    ) -> Result<bool, JournalError> {
        let changed = self.connection.execute(
            "INSERT INTO baseline (hook, digest, pinned_ms, approved_ms) VALUES (?1, ?2, ?3, ?3)
             ON CONFLICT (hook) DO UPDATE SET digest = excluded.digest, approved_ms = excluded.approved_ms
             WHERE baseline.approved_ms IS NULL OR baseline.approved_ms < excluded.approved_ms",
            params![hook.as_str(), digest.to_string(), approved_at.as_millis()],
        )?;
        Ok(changed > 0)
    }

    pub(crate) fn record_violation(
        &mut self,
        hook: &ActionName,
        observed: Digest,
        expected: Digest,
        detected_by: DetectedBy,
        now: Timestamp,
    ) -> Result<(), JournalError> {
        let detected_by = serde_json::to_string(&detected_by).unwrap_or_default();
        let transaction = self.connection.transaction()?;
        let added = transaction.execute(
            "INSERT OR IGNORE INTO violation (hook, observed, expected, detected_by, detected_ms)
             SELECT ?1, ?2, ?3, ?4, ?5
              WHERE (SELECT count(*) FROM violation WHERE delivered_ms IS NULL) < ?6",
            params![
                hook.as_str(),
                observed.to_string(),
                expected.to_string(),
                detected_by,
                now.as_millis(),
                VIOLATIONS_MAX
            ],
        )?;
        if added > 0 {
            transaction.execute(
                "DELETE FROM violation WHERE delivered_ms IS NOT NULL AND (hook, observed) NOT IN (
                     SELECT hook, observed FROM violation ORDER BY detected_ms DESC LIMIT ?1)",
                [VIOLATIONS_MAX],
            )?;
        }
        Ok(transaction.commit()?)
    }

    /// The hook is as it should be again: the next drift is a new one. What was not delivered yet is kept.
    pub(crate) fn clear_violations(&mut self, hook: &ActionName) -> Result<(), JournalError> {
        self.connection.execute(
            "DELETE FROM violation WHERE hook = ?1 AND delivered_ms IS NOT NULL",
            [hook.as_str()],
        )?;
        Ok(())
    }

    pub(crate) fn undelivered_violations(&mut self) -> Result<Vec<Violation>, JournalError> {
        const BATCH: u32 = 64;
        let mut statement = self.connection.prepare(
            "SELECT hook, observed, expected, detected_by FROM violation
             WHERE delivered_ms IS NULL ORDER BY detected_ms LIMIT ?1",
        )?;
        let rows = statement.query_map([BATCH], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, String>(2)?,
                row.get::<_, String>(3)?,
            ))
        })?;
        rows.map(|row| {
            let (hook, observed, expected, detected_by) = row?;
            Ok(Violation {
                observed: parse("violation", &hook, "observed", &observed)?,
                expected: parse("violation", &hook, "expected", &expected)?,
                detected_by: from_json("violation", &hook, "detected_by", &detected_by)?,
                hook,
            })
        })
        .collect()
    }

    pub(crate) fn violations_delivered(
        &mut self,
        told: &[Violation],
        now: Timestamp,
    ) -> Result<(), JournalError> {
        let transaction = self.connection.transaction()?;
        for violation in told {
            transaction.execute(
                "UPDATE violation SET delivered_ms = ?3 WHERE hook = ?1 AND observed = ?2",
                params![violation.hook, violation.observed.to_string(), now.as_millis()],
            )?;
        }
        Ok(transaction.commit()?)
    }
}
