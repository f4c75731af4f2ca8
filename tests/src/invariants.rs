//! What holds of control's records whatever happened to it, once nothing is under way.

use muster_shared::ids::ExecutionId;

use crate::{Database, Operator, World, until};

/// Every header with what it says and what its targets say.
const HEADERS: &str = "
    SELECT e.id, coalesce(e.terminal_status, 'live'), e.live_targets, e.held_targets, e.failed_targets,
           CASE WHEN t.live > 0 THEN 'live'
                WHEN t.timeout > 0 THEN 'timeout'
                WHEN t.failed > 0 THEN 'failed'
                WHEN t.cancelled > 0 THEN 'cancelled'
                ELSE 'succeeded' END,
           t.live, t.held, t.failed + t.timeout
      FROM action_execution e
      JOIN (SELECT execution_id,
                   count(CASE WHEN status IN ('pending', 'ack', 'started') THEN 1 END) AS live,
                   count(CASE WHEN status = 'pending' AND released_at IS NULL THEN 1 END) AS held,
                   count(CASE WHEN status = 'failed' THEN 1 END) AS failed,
                   count(CASE WHEN status = 'timeout' THEN 1 END) AS timeout,
                   count(CASE WHEN status = 'cancelled' THEN 1 END) AS cancelled
              FROM action_execution_target GROUP BY execution_id) t ON t.execution_id = e.id";

/// A status that one invocation came to more than once.
const REPEATED: &str = "
    SELECT execution_id, node_id, to_status, count(*) FROM action_execution_event
     WHERE NOT late GROUP BY execution_id, node_id, to_status HAVING count(*) > 1";

/// An invocation whose last event is not the status that it rests in.
const UNTOLD: &str = "
    SELECT t.execution_id, t.node_id, t.status FROM action_execution_target t
     WHERE t.status <> 'pending' AND t.status <> coalesce(
           (SELECT v.to_status FROM action_execution_event v
             WHERE v.execution_id = t.execution_id AND v.node_id = t.node_id AND NOT v.late
             ORDER BY v.id DESC LIMIT 1), 'nothing')";

/// A header without targets: half of a dispatch.
const WITHOUT_TARGETS: &str = "
    SELECT e.id FROM action_execution e
     WHERE NOT EXISTS (SELECT 1 FROM action_execution_target t WHERE t.execution_id = e.id)";

/// Holds the whole database of a world to what must be true of it, and one control's word to the database.
///
/// # Panics
/// When something is not as it must be.
pub async fn check_invariants(world: &World, control: &Operator) {
    let db = world.database();
    for row in db.rows(HEADERS) {
        assert_eq!(
            row[1..5],
            row[5..9],
            "a header is the fold of its targets: {row:?}"
        );
    }
    for (what, sql) in [
        ("an invocation comes to each status once", REPEATED),
        ("what an invocation came to is told", UNTOLD),
        ("a dispatch is whole", WITHOUT_TARGETS),
    ] {
        let found = db.rows(sql);
        assert!(found.is_empty(), "{what}: {found:#?}");
    }
    until("the outbox is handed over", async || {
        // On PostgreSQL it lies there a while for the other replicas.
        let left = match db {
            Database::Sqlite(_) => db.count("outbox"),
            Database::Postgres(_) => {
                let scraped = control.get("/metrics").await.expect(200).text();
                scraped_value(&scraped, "muster_outbox_rows ").expect("the gauge is there")
            }
        };
        (left == 0).then_some(())
    })
    .await;
    let live = db.count("action_execution WHERE terminal_status IS NULL");
    let scraped = control.get("/metrics").await.expect(200).text();
    let told = scraped_value(&scraped, "muster_actions_live_executions{");
    assert_eq!(told, Some(live), "the gauge is a recount:\n{scraped}");
    let _ = control.muster(&["audit", "verify"]).await.expect(0);
    let _ = world.control_says(&["audit", "verify"]).await.expect(0);
}

/// The value of the one series whose line begins so.
fn scraped_value(scraped: &str, begins: &str) -> Option<i64> {
    let line = scraped.lines().find(|line| line.starts_with(begins))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Every dispatch that was answered 201 is there.
///
/// # Panics
/// When one is missing.
pub fn check_durable(world: &World, admitted: impl IntoIterator<Item = ExecutionId>) {
    let db = world.database();
    let there: std::collections::BTreeSet<String> = db
        .rows("SELECT id FROM action_execution")
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    for id in admitted {
        assert!(
            there.contains(&id.to_string()),
            "{id} was answered 201 and is missing"
        );
    }
}
