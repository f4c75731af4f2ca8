//! Lists of a long history: the first page and a deep one.

use std::time::Instant;

use super::{Plan, engines, percentile, summary::Section, swarms::say};
use crate::{BareNode, Engine, World, operator::encoded, world::on_node};
use muster_shared::{
    status::Status,
    wire::{Callback, Execution, Page},
};

const EXECUTIONS: u32 = 1_000_000;
const EXECUTIONS_QUICK: u32 = 100_000;
const EXECUTIONS_TINY: u32 = 5_000;

/// # Errors
/// With what went wrong, in words.
pub async fn run(plan: &Plan) -> Result<Section, String> {
    let count = match (plan.is_tiny(), plan.quick) {
        (true, _) => EXECUTIONS_TINY,
        (false, true) => EXECUTIONS_QUICK,
        (false, false) => EXECUTIONS,
    };
    let mut section = Section::default();
    section.note("executions", count);
    if count < EXECUTIONS {
        section.note("fewer_than_asked", "QUICK or NODES made it so");
    }
    for (engine, p50, p99) in [
        (Engine::Sqlite, "p50_ms", "p99_ms"),
        (Engine::Postgres, "postgresql_p50_ms", "postgresql_p99_ms"),
    ] {
        let mut world = match engines::world(engine).await {
            Ok(world) => world,
            Err(why) => {
                section.missing(p99, &why);
                continue;
            }
        };
        one_settled(&world).await?;
        world.kill9();
        let begun = Instant::now();
        multiply(&world, engine, count);
        say(&format!(
            "{count} executions were made in {:.0} s",
            begun.elapsed().as_secs_f64()
        ));
        world.start().await;
        let waits = measure(plan, &world).await?;
        section.measured(p99, &waits.p99).measured(p50, &waits.p50);
    }
    Ok(section)
}

/// A history begins with one that really happened.
async fn one_settled(world: &World) -> Result<(), String> {
    let node = BareNode::enroll(world, "kept=yes").await;
    node.declare(&[]).await;
    let mut frames = node.stream().await;
    let _ = world.dispatch(on_node("ping", node.id)).await;
    let request = node.next_request(&mut frames).await;
    for status in [Status::Ack, Status::Started, Status::Succeeded] {
        let _ = node.report(&request, &Callback::of(status)).await.expect(200);
    }
    Ok(())
}

/// Copies the one execution of a database with its targets, under new ids, a second apart into the past. What the
/// columns are is the database's own word, so that a new one needs no change here.
fn multiply(world: &World, engine: Engine, count: u32) {
    let some_id = world.database().some_id();
    let mut sql = match engine {
        Engine::Sqlite => format!(
            "PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; BEGIN;
             CREATE TEMP TABLE copied (n INTEGER PRIMARY KEY, id BLOB NOT NULL);
             WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {count})
             INSERT INTO copied SELECT n, {some_id} FROM counted;"
        ),
        Engine::Postgres => format!(
            "BEGIN; CREATE TEMP TABLE copied AS SELECT n, {some_id} AS id FROM generate_series(1, {count}) n;"
        ),
    };
    for (table, key) in [
        ("action_execution", "id"),
        ("action_execution_target", "execution_id"),
    ] {
        let columns = world.database().rows(&match engine {
            Engine::Sqlite => format!("SELECT name FROM pragma_table_info('{table}')"),
            Engine::Postgres => {
                format!(
                    "SELECT column_name::text FROM information_schema.columns WHERE table_name = '{table}'"
                )
            }
        });
        let columns: Vec<String> = columns.into_iter().flatten().flatten().collect();
        let earlier = match engine {
            Engine::Sqlite => "copied.n * 1000",
            Engine::Postgres => "copied.n * interval '1 second'",
        };
        let values = columns.iter().map(|column| match &**column {
            column if column == key => "copied.id".to_owned(),
            column if column.starts_with("created_") || column.starts_with("updated_") => {
                format!("o.{column} - {earlier}")
            }
            column => format!("o.{column}"),
        });
        let (names, values) = (columns.join(", "), values.collect::<Vec<_>>().join(", "));
        sql.push_str(&format!(
            "INSERT INTO {table} ({names}) SELECT {values} FROM copied, (SELECT * FROM {table} LIMIT 1) o;"
        ));
    }
    sql.push_str(match engine {
        Engine::Sqlite => "COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
        Engine::Postgres => "COMMIT; ANALYZE;",
    });
    world.alter(&sql);
}

async fn page(world: &World, query: &str) -> Page<Execution> {
    let path = world.operator.in_project(&format!("executions?limit=50{query}"));
    world.operator.get(&path).await.expect(200).json()
}

struct Waits {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

async fn measure(plan: &Plan, world: &World) -> Result<Waits, String> {
    let first = page(world, "").await;
    let newest = first.items.first().ok_or("the history is empty")?.created_at;
    let count = if plan.is_tiny() {
        i64::from(EXECUTIONS_TINY)
    } else {
        i64::from(EXECUTIONS_QUICK)
    };
    // A cursor in the middle of what every size has.
    let middle = newest.as_millis() - count / 2 * 1000;
    let middle = muster_shared::time::Timestamp::from_millis(middle);
    let deep = page(
        world,
        &format!("&created_before={}", encoded(&middle.to_string())),
    )
    .await;
    let cursor = deep
        .next_cursor
        .ok_or("the middle of the history has no page after it")?;
    let before = format!(
        "&created_before={}&cursor={}",
        encoded(&middle.to_string()),
        encoded(&cursor)
    );
    let each = if plan.is_tiny() { 20 } else { 300 };
    let (mut p99, mut p50) = (vec![], vec![]);
    for _ in 0..if plan.quick { 1 } else { 3 } {
        let mut waits = Vec::new();
        for _ in 0..each {
            for query in ["", &*before] {
                let begun = Instant::now();
                let items = page(world, query).await.items.len();
                waits.push(begun.elapsed().as_secs_f64() * 1000.0);
                if items != 50 {
                    return Err(format!("a page has {items} executions"));
                }
            }
        }
        p99.extend(percentile(&waits, 0.99));
        p50.extend(percentile(&waits, 0.5));
    }
    Ok(Waits { p50, p99 })
}
