//! What the tests of the store need to run on either database, and to ask it how it would answer.

use muster_shared::{
    ids::Digest,
    time::Timestamp,
    wire::{Base64, BuiltinAction, CapabilityManifest, DeclaredHook, RefusedHook},
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use uuid::Uuid;

use super::{
    engine::{Database, Pool},
    statement::query,
};

/// The folder of a PostgreSQL server's socket. Without it the tests are made on SQLite.
const SERVER: &str = "MUSTER_TEST_POSTGRES";
const ENGINE: &str = "MUSTER_TEST_ENGINE";

fn server() -> Option<String> {
    let wanted = std::env::var(ENGINE).is_ok_and(|engine| engine == "postgres");
    wanted.then(|| {
        std::env::var(SERVER).unwrap_or_else(|_| panic!("{ENGINE} is postgres, and {SERVER} is not set"))
    })
}

/// A new database on the server; `None` for SQLite.
pub(super) async fn database_url() -> Option<String> {
    let at = server()?;
    let url = |database: &str| format!("postgres://postgres@localhost/{database}?host={at}");
    let name = format!(
        "unit_{}",
        muster_shared::ids::RowId::mint(Timestamp::now(), crate::keys::chance().unwrap())
            .uuid()
            .simple()
    );
    let mut connection = sqlx::PgConnection::connect(&url("postgres")).await.unwrap();
    connection
        .execute(AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .await
        .unwrap();
    Some(url(&name))
}

pub(super) async fn database(file: &std::path::Path) -> Database {
    match database_url().await {
        Some(url) => url.parse().unwrap(),
        None => Database::Sqlite(file.to_owned()),
    }
}

/// How the database would carry out a statement with whatever values.
pub(super) async fn plan(pool: &Pool, statement: &str) -> Vec<String> {
    let numbered = (1..).take_while(|n| statement.contains(&format!("${n}"))).count();
    match pool {
        Pool::Sqlite(_) => {
            let places = statement.matches('?').count().max(numbered);
            let asked = query(&format!("EXPLAIN QUERY PLAN {statement}"));
            let asked = (0..places).fold(asked, |asked, _| asked.bind(None::<i64>));
            let steps = asked.fetch_all(pool).await.unwrap();
            steps.iter().map(|step| step.try_get("detail").unwrap()).collect()
        }
        Pool::Postgres(pool) => {
            let values = vec!["NULL"; numbered].join(", ");
            let values = if values.is_empty() {
                values
            } else {
                format!("({values})")
            };
            let mut taken = pool.take().await.unwrap();
            let connection = taken.connection().unwrap();
            // The tables of a test are so small that only this asks which index there is.
            let explain = format!(
                "BEGIN; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off;
                 SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off;
                 SET LOCAL enable_mergejoin = off; SET LOCAL enable_material = off;
                 PREPARE asked AS {statement}; EXPLAIN EXECUTE asked{values}; DEALLOCATE asked; ROLLBACK"
            );
            let rows = connection
                .fetch_all(sqlx::raw_sql(AssertSqlSafe(explain)))
                .await
                .unwrap();
            rows.iter().map(|row| sqlx::Row::get(row, 0)).collect()
        }
    }
}

pub(super) fn index_name<'a>(pool: &Pool, name: &'a str) -> &'a str {
    match (pool, name) {
        (Pool::Postgres(_), "PRIMARY KEY") => "_pkey",
        (Pool::Sqlite(_) | Pool::Postgres(_), name) => name,
    }
}

/// A value of so many bytes, as SQL.
pub(super) fn zeros(bytes: usize) -> String {
    match server() {
        None => format!("zeroblob({bytes})"),
        Some(_) => format!("'\\x{}'::bytea", "00".repeat(bytes)),
    }
}

pub(super) fn id() -> String {
    match server() {
        None => "zeroblob(16)".to_owned(),
        Some(_) => format!("'{}'::uuid", Uuid::nil()),
    }
}

pub(super) fn instant(at: Timestamp) -> String {
    match server() {
        None => at.as_millis().to_string(),
        Some(_) => format!("'{at}'::timestamptz"),
    }
}

/// What a node might declare: hooks with what is in them, builtins, and files that are none with the reason.
pub(crate) fn declares(
    hooks: &[(&str, &str)],
    builtins: &[&str],
    refused: &[(&str, &str)],
) -> CapabilityManifest {
    CapabilityManifest {
        binary_version: "1".into(),
        binary_checksum: Base64(vec![0; 32]),
        declared_hooks: hooks
            .iter()
            .map(|(name, bytes)| DeclaredHook {
                name: (*name).into(),
                checksum: Digest::of(bytes.as_bytes()),
                file_checksum: None,
                manifest_checksum: None,
                manifest: None,
                denied: None,
            })
            .collect(),
        builtin_actions: builtins
            .iter()
            .map(|name| BuiltinAction {
                name: (*name).into(),
                description: None,
                parameters: vec![],
                denied: None,
            })
            .collect(),
        refused_hooks: refused
            .iter()
            .map(|(name, why)| RefusedHook {
                name: (*name).into(),
                why: (*why).into(),
            })
            .collect(),
        labels: None,
    }
}
