//! What may go, and its going.

use std::time::Duration;

use muster_shared::{
    audit::Anchor,
    ids::{ActionName, DomainId, ExecutionId, NodeId},
    time::Timestamp,
    wire::{OutputRef, output_key},
};

use super::{
    CorruptRow, ROWS_PER_INSERT, Store, StoreError, Tx,
    engine::Pool,
    rows::Reader,
    statement::{QueryBuilder, query, query_scalar},
};

/// How many executions are looked at for one batch.
const CANDIDATES_MAX: i64 = 500;
/// How long an upload may take that began while its URL was good. Only then is its object removed: what is put there
/// later, nobody would know of.
const UPLOAD_TAKES_MAX: Duration = Duration::from_secs(60 * 60);
/// How many pages the file gives back at a time.
const PAGES_PER_STEP: u32 = 1000;

/// The settled executions of one action in one domain whose retention is over. Kept all the same are those that a node
/// may still be told of, and those to which an idempotency key leads.
pub(crate) struct Settled<'a> {
    pub(crate) domain: DomainId,
    pub(crate) action: &'a ActionName,
    /// Those that settled by then.
    pub(crate) before: Timestamp,
    now: Timestamp,
}

impl<'a> Settled<'a> {
    pub(crate) fn new(domain: DomainId, action: &'a ActionName, keep: Duration, now: Timestamp) -> Self {
        Self {
            domain,
            action,
            before: now.minus(keep),
            now,
        }
    }

    fn push_onto(&self, query: &mut QueryBuilder) {
        query
            .push(" FROM action_execution e WHERE e.terminal_status IS NOT NULL AND e.domain_id = ")
            .push_bind(self.domain.uuid());
        query
            .push(" AND e.action_name = ")
            .push_bind(self.action.as_str().to_owned());
        query.push(" AND e.updated_at <= ").push_bind(self.before);
        query.push(" AND e.expires_at <= ").push_bind(self.now);
        query
            .push(" AND NOT EXISTS (SELECT 1 FROM idempotency_key k WHERE k.execution_id = e.id AND k.expires_at > ")
            .push_bind(self.now)
            .push(")");
    }
}

impl Store {
    /// The names of a domain's actions that have settled executions: a step along the index for each name.
    pub(crate) async fn settled_actions(&self, domain: DomainId) -> Result<Vec<ActionName>, StoreError> {
        let mut names: Vec<ActionName> = Vec::new();
        loop {
            let after = names.last().map_or("", ActionName::as_str);
            let row = query(
                "SELECT action_name FROM action_execution
                 WHERE terminal_status IS NOT NULL AND domain_id = $1 AND action_name > $2
                 ORDER BY action_name LIMIT 1",
            )
            .bind(domain.uuid())
            .bind(after)
            .fetch_optional(&self.read)
            .await?;
            let Some(row) = row else { return Ok(names) };
            names.push(Reader::new(&row, "action_execution", "action_name").parsed("action_name")?);
        }
    }

    /// Some of them, the longest ago first.
    pub(crate) async fn settled(&self, settled: &Settled<'_>) -> Result<Vec<ExecutionId>, StoreError> {
        let mut query = QueryBuilder::new("SELECT e.id");
        settled.push_onto(&mut query);
        query
            .push(" ORDER BY e.updated_at LIMIT ")
            .push_bind(CANDIDATES_MAX);
        let rows = query.build().fetch_all(&self.read).await?;
        Ok(rows
            .iter()
            .map(|row| Reader::new(row, "action_execution", "id").id("id"))
            .collect::<Result<_, CorruptRow>>()?)
    }

    /// How many targets an execution has; past `max` nobody counts on.
    pub(crate) async fn count_targets(&self, execution: ExecutionId, max: u64) -> Result<u64, StoreError> {
        let count: i64 = query_scalar(
            "SELECT count(*) FROM (SELECT 1 FROM action_execution_target WHERE execution_id = $1 LIMIT $2) AS counted",
        )
        .bind(execution.uuid())
        .bind(i64::try_from(max).unwrap_or(i64::MAX))
        .fetch_one(&self.read)
        .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// When the oldest execution of a domain was dispatched that is still here.
    pub(crate) async fn oldest_execution(&self, domain: DomainId) -> Result<Option<Timestamp>, StoreError> {
        let row =
            query("SELECT id, created_at FROM action_execution WHERE domain_id = $1 ORDER BY id LIMIT 1")
                .bind(domain.uuid())
                .fetch_optional(&self.read)
                .await?;
        Ok(row
            .map(|row| Reader::new(&row, "action_execution", "id").at("created_at"))
            .transpose()?)
    }

    /// How many of them there are, and with how many invocations.
    pub(crate) async fn count_settled(&self, settled: &Settled<'_>) -> Result<(u64, u64), StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT count(*) AS executions, CAST(coalesce(sum((SELECT count(*) FROM action_execution_target t
                    WHERE t.execution_id = e.id)), 0) AS bigint) AS invocations",
        );
        settled.push_onto(&mut query);
        let row = query.build().fetch_one(&self.read).await?;
        let row = Reader::new(&row, "action_execution", "executions");
        Ok((row.number("executions")?, row.number("invocations")?))
    }

    /// How many rows at the beginning of a chain were written by then.
    pub(crate) async fn count_old_audit(
        &self,
        domain: DomainId,
        before: Timestamp,
    ) -> Result<u64, StoreError> {
        let row = query(
            "SELECT count(*) AS old FROM audit WHERE domain_id = $1 AND seq <
                 coalesce((SELECT seq FROM audit WHERE domain_id = $1 AND at > $2 ORDER BY seq LIMIT 1), $3)",
        )
        .bind(domain.uuid())
        .bind(before)
        .bind(i64::MAX)
        .fetch_one(&self.read)
        .await?;
        Ok(Reader::new(&row, "audit", "old").number("old")?)
    }

    /// Objects of this bucket that became garbage by now, in the order of their keys.
    pub(crate) async fn garbage(
        &self,
        bucket: &str,
        now: Timestamp,
        after: &str,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        Ok(query_scalar(
            "SELECT object_key FROM output_garbage WHERE bucket = $1 AND object_key > $2 AND since <= $3
             ORDER BY object_key LIMIT $4",
        )
        .bind(bucket)
        .bind(after)
        .bind(now)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?)
    }

    /// Gives some of the freed pages back to the file system; false when there are none. A database that was not made for
    /// that keeps them, and uses them again. SQLite alone: another database does this by itself.
    pub(crate) async fn give_back_pages(&self) -> Result<bool, StoreError> {
        const INCREMENTAL: i64 = 2;
        match &self.write {
            Pool::Sqlite(_) => {}
            Pool::Postgres(_) => return Ok(false),
        }
        let mode: i64 = query_scalar("PRAGMA auto_vacuum").fetch_one(&self.write).await?;
        let free: i64 = query_scalar("PRAGMA freelist_count")
            .fetch_one(&self.write)
            .await?;
        if mode != INCREMENTAL || free == 0 {
            return Ok(false);
        }
        let _ = query(&format!("PRAGMA incremental_vacuum({PAGES_PER_STEP})"))
            .fetch_all(&self.write)
            .await?;
        Ok(true)
    }
}

impl Tx {
    /// Removes settled executions with their targets, events, outbox rows and idempotency keys, and notes their objects as
    /// garbage. Answers how many executions went, with how many invocations.
    pub(crate) async fn prune_executions(
        &mut self,
        executions: &[ExecutionId],
        bucket: &str,
        now: Timestamp,
    ) -> Result<(u64, u64), StoreError> {
        let mut count = QueryBuilder::new("SELECT count(*) FROM action_execution_target WHERE ");
        push_ids(&mut count, "execution_id", executions);
        let invocations: i64 = count.build_scalar().fetch_one(&mut self.0).await?;
        // Whoever was given a URL may have uploaded, whatever was reported since. Inline output is not read for that.
        let mut query = QueryBuilder::new(
            "SELECT execution_id, node_id, upload_until,
                    CASE WHEN length(CAST(output_ref AS text)) <= 2048 THEN output_ref END AS output_ref
             FROM action_execution_target WHERE upload_until IS NOT NULL AND ",
        );
        push_ids(&mut query, "execution_id", executions);
        let rows = query.build().fetch_all(&mut self.0).await?;
        let mut garbage = Vec::new();
        for row in &rows {
            let row = Reader::new(row, "action_execution_target", "execution_id");
            let (execution, node): (ExecutionId, NodeId) = (row.id("execution_id")?, row.id("node_id")?);
            let bucket = match row.json_opt("output_ref")? {
                Some(OutputRef::ObjectStore { bucket, .. }) => bucket,
                Some(OutputRef::Inline { .. }) | None => bucket.to_owned(),
            };
            let last_upload = row.at("upload_until")?.plus(UPLOAD_TAKES_MAX);
            garbage.push((output_key(execution, node), bucket, now.max(last_upload)));
        }
        for chunk in garbage.chunks(ROWS_PER_INSERT) {
            QueryBuilder::new("INSERT INTO output_garbage (object_key, bucket, since) ")
                .push_values(chunk, |columns, (key, bucket, since)| {
                    columns
                        .push_bind(key.clone())
                        .push_bind(bucket.clone())
                        .push_bind(*since);
                })
                .push(" ON CONFLICT (bucket, object_key) DO NOTHING")
                .build()
                .execute(&mut self.0)
                .await?;
        }
        let mut delete =
            QueryBuilder::new("DELETE FROM action_execution WHERE terminal_status IS NOT NULL AND ");
        push_ids(&mut delete, "id", executions);
        let gone = delete.build().execute(&mut self.0).await?;
        Ok((gone, u64::try_from(invocations).unwrap_or(0)))
    }

    /// Removes rows from the beginning of a chain that were written by then, and keeps the last of them as the anchor of
    /// the others. Answers how many went, and that anchor.
    pub(crate) async fn prune_audit(
        &mut self,
        domain: DomainId,
        before: Timestamp,
        limit: u32,
    ) -> Result<Option<(u64, Anchor)>, StoreError> {
        let rows =
            query("SELECT domain_id, seq, hash, at FROM audit WHERE domain_id = $1 ORDER BY seq LIMIT $2")
                .bind(domain.uuid())
                .bind(i64::from(limit))
                .fetch_all(&mut self.0)
                .await?;
        let mut old: Option<(u64, Anchor)> = None;
        for row in &rows {
            let row = Reader::new(row, "audit", "domain_id");
            if row.at("at")? > before {
                break;
            }
            let anchor = Anchor {
                seq: row.number("seq")?,
                hash: row.digest("hash")?,
            };
            old = Some((old.map_or(0, |(n, _)| n) + 1, anchor));
        }
        let Some((_, last)) = old else { return Ok(None) };
        let seq = i64::try_from(last.seq).unwrap_or(i64::MAX);
        query("DELETE FROM audit WHERE domain_id = $1 AND seq <= $2")
            .bind(domain.uuid())
            .bind(seq)
            .execute(&mut self.0)
            .await?;
        query(
            "INSERT INTO audit_pruned (domain_id, seq, hash) VALUES ($1, $2, $3)
             ON CONFLICT (domain_id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash",
        )
        .bind(domain.uuid())
        .bind(seq)
        .bind(&last.hash.as_bytes()[..])
        .execute(&mut self.0)
        .await?;
        Ok(old)
    }

    pub(crate) async fn forget_garbage(&mut self, bucket: &str, keys: &[String]) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut query = QueryBuilder::new("DELETE FROM output_garbage WHERE bucket = ");
        query
            .push_bind(bucket.to_owned())
            .push(" AND ")
            .push_in("object_key", keys);
        query.build().execute(&mut self.0).await?;
        Ok(())
    }
}

fn push_ids(query: &mut QueryBuilder, column: &str, executions: &[ExecutionId]) {
    query.push_in(column, executions.iter().map(|id| id.uuid()));
}
