//! What the schema itself keeps, whatever a statement says.

use muster_shared::time::Timestamp;
use sqlx::AssertSqlSafe;

use super::{engine::Pool, statement::query_scalar, *};

/// A domain, a project, a node and an execution with one target, by ids of one repeated byte.
const HISTORY: &str = "
    INSERT INTO domain (id, name, created_at) VALUES ($ID, 'd', $AT);
    INSERT INTO project (id, domain_id, name, created_at) VALUES ($ID, $ID, 'p', $AT);
    INSERT INTO bootstrap_token (id, project_id, token_hash, labels, uses_max, issued_by, created_at, expires_at)
        VALUES ($ID, $ID, $HASH, '{}', 1, 'system', $AT, $AT);
    INSERT INTO node (id, domain_id, project_id, name, hostname, machine_id, nsk_hash, bootstrap_token_id,
                      enrollment_id, created_at)
        VALUES ($ID, $ID, $ID, 'n', 'n', 'm', $HASH, $ID, $ID, $AT);
    INSERT INTO action_execution (id, domain_id, project_id, action_name, action_kind, timeout_seconds, live_targets,
                                  requested_by, created_at, updated_at, expires_at)
        VALUES ($ID, $ID, $ID, 'ping', 'builtin', 1, 1, 'token:x', $AT, $AT, $AT);
    INSERT INTO action_execution_target (execution_id, node_id, status, callback_token_hash, created_at, updated_at)
        VALUES ($ID, $ID, 'pending', $HASH, $AT, $AT);
    INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, at)
        VALUES ($ID, $ID, 'pending', 'ack', $AT);
";

/// A statement with its ids, hashes and instants in the form of the database.
fn with_values(statement: &str) -> String {
    statement
        .replace("$ID", &testing::id())
        .replace("$HASH", &testing::zeros(32))
        .replace("$AT", &testing::instant(Timestamp::from_millis(1)))
}

async fn run(store: &Store, statements: &str) -> Result<(), sqlx::Error> {
    match &store.write {
        Pool::Sqlite(pool) => pool.take().await?.batch(statements).await,
        Pool::Postgres(pool) => {
            let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
            statements
                .execute(pool.take().await?.connection()?)
                .await
                .map(drop)
        }
    }
}

async fn history() -> (tempfile::TempDir, Database, Store) {
    let dir = tempfile::tempdir().unwrap();
    let database = testing::database(&dir.path().join("control.db")).await;
    let store = Store::open(&database).await.unwrap();
    run(&store, &with_values(HISTORY)).await.unwrap();
    (dir, database, store)
}

async fn refused(store: &Store, statement: &str) -> bool {
    run(store, &with_values(statement)).await.is_err()
}

async fn count(store: &Store, statement: &'static str) -> i64 {
    query_scalar(statement).fetch_one(&store.read).await.unwrap()
}

#[tokio::test]
async fn the_schema_holds_what_the_rules_say() {
    let (_dir, _, store) = history().await;
    for statement in [
        "INSERT INTO action_execution_target (execution_id, node_id, status, callback_token_hash, created_at, updated_at)
            VALUES ($ID, $ID, 'pending', $HASH, $AT, $AT)",
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
    run(&store, "DELETE FROM action_execution").await.unwrap();
    for part in [
        "SELECT count(*) FROM action_execution_target",
        "SELECT count(*) FROM action_execution_event",
    ] {
        assert_eq!(count(&store, part).await, 0, "{part}");
    }
}

/// PostgreSQL plans its own checks of references by the setting of whoever writes: anew for each row they cost more than
/// the rows.
#[tokio::test]
async fn what_is_found_by_its_key_is_planned_once() {
    let (_dir, _, store) = history().await;
    let Pool::Postgres(_) = &store.write else {
        return;
    };
    for (pool, plans) in [
        (&store.write, "force_generic_plan"),
        (&store.lookup, "force_generic_plan"),
        (&store.read, "force_custom_plan"),
    ] {
        let mode: String = query_scalar("SHOW plan_cache_mode")
            .fetch_one(pool)
            .await
            .unwrap();
        assert_eq!(mode, plans);
    }
}

#[tokio::test]
async fn a_database_of_a_newer_control_is_refused() {
    let (_dir, database, store) = history().await;
    let later = format!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
            VALUES (9999, 'of a later release', true, {}, 0)",
        testing::zeros(48)
    );
    run(&store, &later).await.unwrap();
    store.close().await;
    let reopened = Store::open(&database).await;
    assert!(matches!(reopened, Err(StoreError::Migrate(_))), "it was opened");
}

/// What ran where is evidence. A step back would have to throw it away.
#[tokio::test]
async fn the_step_back_is_refused_with_a_reason() {
    let (_dir, _, store) = history().await;
    let Pool::Postgres(pool) = &store.write else {
        return;
    };
    let migrations = sqlx::migrate!("./migrations/postgres");
    let mut taken = pool.take().await.unwrap();
    let connection = taken.connection().unwrap();
    let refused = migrations.undo(&mut *connection, 0).await.unwrap_err();
    let sqlx::migrate::MigrateError::ExecuteMigration(sqlx::Error::Database(why), _) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(why.code().as_deref(), Some("0A000"));
    for back in migrations
        .iter()
        .filter(|step| step.migration_type.is_down_migration())
    {
        let refused = sqlx::raw_sql(back.sql.clone())
            .execute(&mut *connection)
            .await
            .unwrap_err();
        let why = refused.as_database_error().unwrap();
        assert_eq!(why.code().as_deref(), Some("0A000"), "{}", back.description);
        let reason = format!("migration {} cannot be undone", back.version);
        assert!(why.message().starts_with(&reason), "{why}");
    }
    assert_eq!(
        count(&store, "SELECT count(*) FROM action_execution_event").await,
        1
    );
}
