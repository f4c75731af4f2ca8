//! What is counted for the metrics.

use muster_shared::time::Timestamp;

use super::{Store, StoreError, rows::Reader, statement::query};
use crate::metrics::Counted;

impl Store {
    /// `handed` is the last row of the outbox that is done with; overdue is what was due before `now`.
    pub(crate) async fn counted(&self, handed: i64, now: Timestamp) -> Result<Counted, StoreError> {
        let mut snapshot = self.read.snapshot().await?;
        let live = query(
            "SELECT d.id, count(e.id) AS live FROM domain d
             LEFT JOIN action_execution e ON e.domain_id = d.id AND e.terminal_status IS NULL
             GROUP BY d.id ORDER BY d.id",
        )
        .fetch_all(&mut snapshot)
        .await?;
        let outbox = query("SELECT count(*) AS waiting, min(created_at) AS oldest FROM outbox WHERE id > $1")
            .bind(handed)
            .fetch_one(&mut snapshot)
            .await?;
        let overdue = query(
            "SELECT min(due_at) AS since FROM action_execution
             WHERE terminal_status IS NULL AND due_at <= $1",
        )
        .bind(now)
        .fetch_one(&mut snapshot)
        .await?;
        snapshot.commit().await?;
        let outbox = Reader::new(&outbox, "outbox", "oldest");
        Ok(Counted {
            live: live
                .iter()
                .map(|row| {
                    let row = Reader::new(row, "domain", "id");
                    Ok((row.id("id")?, row.get("live")?))
                })
                .collect::<Result<_, super::CorruptRow>>()?,
            outbox_rows: outbox.get("waiting")?,
            outbox_oldest: outbox.at_opt("oldest")?,
            overdue_since: Reader::new(&overdue, "action_execution", "since").at_opt("since")?,
        })
    }
}
