//! What the schema itself keeps, whatever a statement says.

use super::*;

/// A domain, a project, a node and an execution with one target, by ids of one repeated byte.
const HISTORY: &str = "
    INSERT INTO domain (id, name, created_ms) VALUES (zeroblob(16), 'd', 1);
    INSERT INTO project (id, domain_id, name, created_ms) VALUES (zeroblob(16), zeroblob(16), 'p', 1);
    INSERT INTO bootstrap_token (id, project_id, token_hash, labels, uses_max, issued_by, created_ms, expires_ms)
        VALUES (zeroblob(16), zeroblob(16), zeroblob(32), '{}', 1, 'system', 1, 2);
    INSERT INTO node (id, domain_id, project_id, name, hostname, machine_id, nsk_hash, bootstrap_token_id,
                      enrollment_id, created_ms)
        VALUES (zeroblob(16), zeroblob(16), zeroblob(16), 'n', 'n', 'm', zeroblob(32), zeroblob(16), zeroblob(16), 1);
    INSERT INTO action_execution (id, domain_id, project_id, action_name, action_kind, timeout_seconds, live_targets,
                                  requested_by, created_ms, updated_ms, expires_ms)
        VALUES (zeroblob(16), zeroblob(16), zeroblob(16), 'ping', 'builtin', 1, 1, 'token:x', 1, 1, 2);
    INSERT INTO action_execution_target (execution_id, node_id, status, callback_token_hash, created_ms, updated_ms)
        VALUES (zeroblob(16), zeroblob(16), 'pending', zeroblob(32), 1, 1);
    INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, at_ms)
        VALUES (zeroblob(16), zeroblob(16), 'pending', 'ack', 1);
";

async fn history() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("control.db")).await.unwrap();
    sqlx::raw_sql(HISTORY).execute(&store.write).await.unwrap();
    (dir, store)
}

async fn refused(store: &Store, statement: &'static str) -> bool {
    sqlx::raw_sql(statement).execute(&store.write).await.is_err()
}

async fn count(store: &Store, statement: &'static str) -> i64 {
    sqlx::query_scalar(statement)
        .fetch_one(&store.read)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_schema_holds_what_the_rules_say() {
    let (_dir, store) = history().await;
    for statement in [
        "INSERT INTO action_execution_target (execution_id, node_id, status, callback_token_hash, created_ms, updated_ms)
            VALUES (zeroblob(16), zeroblob(16), 'pending', zeroblob(32), 1, 1)",
        "UPDATE action_execution_target SET status = 'running'",
        "UPDATE action_execution_target SET callback_token_hash = NULL",
        "UPDATE action_execution SET action_kind = 'script'",
        "UPDATE action_execution SET timeout_seconds = 0",
        "UPDATE action_execution SET terminal_status = 'started', live_targets = 0",
        // A settled header has nothing alive.
        "UPDATE action_execution SET terminal_status = 'succeeded'",
        "DELETE FROM domain",
        "DELETE FROM project",
        "DELETE FROM node",
    ] {
        assert!(refused(&store, statement).await, "{statement}");
    }
    sqlx::raw_sql("DELETE FROM action_execution")
        .execute(&store.write)
        .await
        .unwrap();
    for part in [
        "SELECT count(*) FROM action_execution_target",
        "SELECT count(*) FROM action_execution_event",
    ] {
        assert_eq!(count(&store, part).await, 0, "{part}");
    }
}

#[tokio::test]
async fn a_database_of_a_newer_control_is_refused() {
    let (dir, store) = history().await;
    sqlx::raw_sql(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
            VALUES (9999, 'of a later release', 1, zeroblob(48), 0)",
    )
    .execute(&store.write)
    .await
    .unwrap();
    store.close().await;
    let reopened = Store::open(&dir.path().join("control.db")).await;
    assert!(matches!(reopened, Err(StoreError::Migrate(_))), "it was opened");
}
