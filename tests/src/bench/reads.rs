//! Lists of a long history: the first page and a deep one.

use std::{path::Path, time::Instant};

use muster_shared::{
    status::Status,
    wire::{Callback, Execution, Page},
};
use rusqlite::Connection;

use super::{Plan, percentile, summary::Section, swarms::say};
use crate::{BareNode, World, operator::encoded, world::on_node};

const EXECUTIONS: u32 = 1_000_000;
const EXECUTIONS_QUICK: u32 = 200_000;
const EXECUTIONS_TINY: u32 = 5_000;

/// # Errors
/// With what went wrong, in words.
pub async fn run(plan: &Plan) -> Result<Section, String> {
    let count = match (plan.is_tiny(), plan.quick) {
        (true, _) => EXECUTIONS_TINY,
        (false, true) => EXECUTIONS_QUICK,
        (false, false) => EXECUTIONS,
    };
    let mut world = World::new().await;
    one_settled(&world).await?;
    let path = world.data_dir().join("control.db");
    world.kill9();
    let begun = Instant::now();
    multiply(&path, count).map_err(|err| format!("the history could not be made: {err}"))?;
    say(&format!(
        "{count} executions were made in {:.0} s",
        begun.elapsed().as_secs_f64()
    ));
    world.start().await;
    let mut section = Section::default();
    section.note("executions", count);
    if count < EXECUTIONS {
        section.note("fewer_than_asked", "QUICK or NODES made it so");
    }
    measure(plan, &world, &mut section).await?;
    section.missing("postgresql_p99_ms", "the history is made in SQLite alone");
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
fn multiply(path: &Path, count: u32) -> rusqlite::Result<()> {
    let db = Connection::open(path)?;
    db.execute_batch(
        "PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; BEGIN;
         CREATE TEMP TABLE copied (n INTEGER PRIMARY KEY, id BLOB NOT NULL);",
    )?;
    db.execute(
        "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?1)
         INSERT INTO copied SELECT n, randomblob(16) FROM counted",
        [count],
    )?;
    for (table, key) in [
        ("action_execution", "id"),
        ("action_execution_target", "execution_id"),
    ] {
        let columns: Vec<String> = db
            .prepare("SELECT name FROM pragma_table_info(?1)")?
            .query_map([table], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let values = columns.iter().map(|column| match &**column {
            column if column == key => "copied.id".to_owned(),
            column if column.starts_with("created_") || column.starts_with("updated_") => {
                format!("o.{column} - copied.n * 1000")
            }
            column => format!("o.{column}"),
        });
        let (names, values) = (columns.join(", "), values.collect::<Vec<_>>().join(", "));
        db.execute_batch(&format!(
            "INSERT INTO {table} ({names}) SELECT {values} FROM copied, (SELECT * FROM {table} LIMIT 1) o"
        ))?;
    }
    db.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE);")
}

async fn page(world: &World, query: &str) -> Page<Execution> {
    let path = world.operator.in_project(&format!("executions?limit=50{query}"));
    world.operator.get(&path).await.expect(200).json()
}

async fn measure(plan: &Plan, world: &World, section: &mut Section) -> Result<(), String> {
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
    section.measured("p99_ms", &p99).measured("p50_ms", &p50);
    Ok(())
}
