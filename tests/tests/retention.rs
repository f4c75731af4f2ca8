//! History is kept until it is said for how long, and then goes in order: a database that shrinks, outputs that go with
//! their executions, an audit trail that says where it begins.

use muster_shared::{
    audit::{AuditPage, AuditRow, GENESIS},
    time::Timestamp,
};
use muster_tests::{
    prelude::*,
    s3::{ACCESS_KEY_ID, BUCKET, S3, SECRET_ACCESS_KEY},
    world::on_node,
};

const TWO_HOURS_MS: i64 = 2 * 3_600_000;
const LIMITS: &str = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\n";

async fn prune(world: &World) -> Value {
    world
        .control_says(&["prune", "-o", "json"])
        .await
        .expect(0)
        .json()
}

/// Lets two hours pass for what is settled.
fn age(world: &World) {
    let earlier = |column| world.database().earlier(column, TWO_HOURS_MS);
    world.alter(&format!(
        "UPDATE action_execution SET updated_at = {}, expires_at = {} WHERE terminal_status IS NOT NULL;
         UPDATE action_execution_target SET upload_until = {} WHERE ended_at IS NOT NULL",
        earlier("updated_at"),
        earlier("expires_at"),
        earlier("upload_until"),
    ));
}

fn count(world: &World, table: &str) -> i64 {
    world.database().count(table)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_until_somebody_said_how_long_it_stays() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let ran = world.run(on_node("ping", node.id)).await;
    age(&world);
    let said = world.control_says(&["prune", "--dry-run"]).await.expect(0);
    assert!(said.stdout.contains("no retention is set"), "{said:?}");
    assert_eq!(prune(&world).await["executions"], 0);
    assert_eq!(world.operator.execution(ran.id).await.status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_goes_with_its_output_and_what_runs_stays() {
    let toml = format!("{LIMITS}[retention]\nexecutions = \"1h\"\n[retention.actions]\nkept = \"forever\"\n");
    let mut world = World::with_config(Some(&toml)).await;
    let node = world
        .node("n")
        .hook("large", "#!/bin/sh\nhead -c 50000 /dev/zero\n")
        .hook("kept", "#!/bin/sh\nhead -c 50000 /dev/zero\n")
        .start()
        .await;
    let silent = BareNode::enroll(&world, "n=silent").await;
    silent.declare(&[]).await;
    let large = world.run(on_node("large", node.id)).await;
    let small = world.run(on_node("ping", node.id)).await;
    let kept = world.run(on_node("kept", node.id)).await;
    let object = |id: ExecutionId| world.data_dir().join("outputs").join(id.to_string());
    assert!(object(large.id).exists() && object(kept.id).exists());
    let fresh = prune(&world).await;
    assert_eq!(fresh["executions"], 0, "their time is not over: {fresh}");
    age(&world);
    let live = world.dispatch(on_node("ping", silent.id)).await;
    let young = world.run(on_node("ping", node.id)).await;

    let said = world
        .control_says(&["prune", "--dry-run", "-o", "json"])
        .await
        .expect(0)
        .json();
    let due: Vec<_> = said
        .as_array()
        .unwrap()
        .iter()
        .map(|due| {
            (
                due["action"].as_str().unwrap(),
                due["executions"].as_i64().unwrap(),
            )
        })
        .collect();
    assert_eq!(due, [("large", 1), ("ping", 1)]);
    assert_eq!(count(&world, "action_execution"), 5, "a dry run removes nothing");
    let pruned = prune(&world).await;
    assert_eq!(
        (&pruned["executions"], &pruned["objects"]),
        (&json!(2), &json!(1)),
        "{pruned}"
    );
    assert!(!object(large.id).exists() && object(kept.id).exists());
    for gone in [large.id, small.id] {
        let path = world.operator.in_project(&format!("executions/{gone}"));
        let _ = world
            .operator
            .get(&path)
            .await
            .refused(404, "execution_not_found");
    }
    let listed: Vec<ExecutionId> = world.operator.executions().await.iter().map(|e| e.id).collect();
    assert_eq!(listed, [young.id, live.id, kept.id]);
    assert_eq!(count(&world, "output_garbage"), 0);
    let _ = world.operator.muster(&["audit", "verify"]).await.expect(0);
    let rows = world.operator.muster(&["audit", "list"]).await.expect(0);
    assert!(
        rows.stdout.contains("retention.executions") && rows.stdout.contains("system"),
        "{rows:?}"
    );
    // A late report about what is gone finds nothing, and the node is not held up by it.
    let again = world.run(on_node("ping", node.id)).await;
    assert_eq!(again.status, Status::Succeeded);

    // The same by the service itself, when it starts; and an object that a power cut left goes too.
    age(&world);
    let left = world
        .data_dir()
        .join("outputs")
        .join(small.id.to_string())
        .join(node.id.to_string());
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("output"), b"left").unwrap();
    world.alter(&format!(
        "INSERT INTO output_garbage (object_key, bucket, since) VALUES ('{}/{}/output', 'local', {})",
        small.id,
        node.id,
        world.database().at(0),
    ));
    let _ = world.stop().await;
    world.start().await;
    until("what is over went", async || {
        let gone = count(&world, "action_execution") == 2 && count(&world, "output_garbage") == 0;
        (gone && !left.exists()).then_some(())
    })
    .await;
    world.leave_open();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_goes_from_the_bucket_once_the_store_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, SECRET_ACCESS_KEY).expect("the secret can be written");
    let world = World::with_config(Some(&format!(
        "{LIMITS}[retention]\nexecutions = \"1h\"\n[output.s3]\nendpoint = \"{}\"\nregion = \"us-east-1\"\n\
         bucket = \"{BUCKET}\"\naccess_key_id = \"{ACCESS_KEY_ID}\"\nsecret_access_key_file = \"{}\"\npath_style = true\n",
        s3.endpoint,
        secret.display()
    )))
    .await;
    let node = world
        .node("n")
        .hook("large", "#!/bin/sh\nhead -c 50000 /dev/zero\n")
        .start()
        .await;
    let ran = world.run(on_node("large", node.id)).await;
    let key = output_key(ran.id, node.id);
    assert!(s3.object(&key).is_some());
    age(&world);
    let away = s3.pause();
    let pruned = prune(&world).await;
    assert_eq!(
        (&pruned["executions"], &pruned["objects"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(
        count(&world, "output_garbage"),
        1,
        "the row is gone, and its object is not forgotten"
    );
    let s3 = away.resume().await;
    assert_eq!(prune(&world).await["objects"], 1);
    assert_eq!(s3.object(&key), None);
    assert_eq!(count(&world, "output_garbage"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_lost_nine_tenths_of_its_history_is_smaller() {
    let toml = format!("{LIMITS}[retention]\nexecutions = \"1h\"\nbatch = 100\n");
    let world = World::with_config(Some(&toml)).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let live = world.dispatch(on_node("ping", node.id)).await;
    world.leave_open();
    let old = Timestamp::now().as_millis() - TWO_HOURS_MS;
    let output = json!({"kind": "inline", "inline_bytes": Base64(vec![7; 10_000])});
    let db = world.database();
    world.alter(&format!(
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 1000)
         INSERT INTO action_execution (id, domain_id, project_id, action_name, action_kind, timeout_seconds,
             terminal_status, live_targets, requested_by, created_at, updated_at, expires_at)
         SELECT {id}, e.domain_id, e.project_id, 'ping', 'builtin', 1, 'succeeded', 0, 'x',
                {each}, CASE i % 10 WHEN 0 THEN {far} ELSE {past} END, {past} FROM c, action_execution e;
         INSERT INTO action_execution_target (execution_id, node_id, status, callback_token_hash, output_ref,
             output_bytes, created_at, updated_at, ended_at)
         SELECT e.id, n.id, 'succeeded', {digest}, '{output}', 10000, e.created_at, {past}, {past}
         FROM action_execution e, node n WHERE e.terminal_status IS NOT NULL;
         INSERT INTO action_execution_event (execution_id, node_id, from_status, to_status, at)
         SELECT execution_id, node_id, 'started', 'succeeded', {past} FROM action_execution_target
         WHERE status = 'succeeded'",
        id = db.some_id(),
        digest = db.some_digest(),
        past = db.at(old),
        each = db.at(format!("{old} + i")),
        far = db.at(old * 2),
    ));
    let pages = |world: &World| world.database().number("PRAGMA page_count");
    let before = pages(&world);
    let pruned = prune(&world).await;
    assert_eq!(
        (&pruned["executions"], &pruned["invocations"]),
        (&json!(900), &json!(900))
    );
    assert_eq!(count(&world, "action_execution"), 101);
    assert_eq!(count(&world, "action_execution_target"), 101);
    assert_eq!(count(&world, "action_execution_event"), 100);
    let after = pages(&world);
    assert!(after * 4 < before, "{before} pages became {after}");
    assert_eq!(world.operator.execution(live.id).await.status, Status::Pending);
    let batches = "audit WHERE relation = 'retention.executions' AND subject = 'system'";
    assert_eq!(count(&world, batches), 9, "in batches, each written down");
    let _ = world.operator.muster(&["audit", "verify"]).await.expect(0);
}

/// Writes the chain anew as it would be, had everything happened two hours earlier.
async fn age_audit(world: &World) {
    let path = format!(
        "/v1/audit?project_id={}&order=oldest&limit=200",
        world.operator.project
    );
    let page: AuditPage = world.operator.get(&path).await.expect(200).json();
    let db = world.database();
    let mut previous = GENESIS;
    let mut sql = String::new();
    for row in page.items {
        let mut row = AuditRow {
            at: Timestamp::from_millis(row.at.as_millis() - TWO_HOURS_MS),
            previous_hash: previous,
            ..row
        };
        row.hash = row.computed_hash();
        previous = row.hash;
        sql.push_str(&format!(
            "UPDATE audit SET at = {}, previous_hash = {}, hash = {} WHERE seq = {};",
            db.at(row.at.as_millis()),
            db.bytes(row.previous_hash.as_bytes()),
            db.bytes(row.hash.as_bytes()),
            row.seq
        ));
    }
    sql.push_str(&format!(
        "UPDATE audit_head SET hash = {}",
        db.bytes(previous.as_bytes())
    ));
    world.alter(&sql);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_trail_says_where_it_begins_and_is_verified_from_there() {
    let toml = format!("{LIMITS}[retention]\nexecutions = \"1h\"\naudit = \"1h\"\n");
    let world = World::with_config(Some(&toml)).await;
    for _ in 0..3 {
        let _ = world.bootstrap_token("n=x").await;
    }
    age_audit(&world).await;
    let verify = async |args: &[&str], code: i32| {
        let args = [&["audit", "verify"][..], args].concat();
        world.operator.muster(&args).await.expect(code)
    };
    let old = verify(&[], 0).await.stdout.trim().to_owned();
    let _ = world.bootstrap_token("n=young").await;
    let young = verify(&[], 0).await.stdout.trim().to_owned();
    let said = world.control_says(&["prune", "--dry-run"]).await.expect(0);
    assert!(said.stdout.contains("audit: 5 rows"), "{said:?}");
    assert_eq!(prune(&world).await["audit_rows"], 5);
    assert_eq!(
        count(&world, "audit"),
        2,
        "the young row, and the one about the prune"
    );

    let said = verify(&[], 0).await;
    assert!(said.stderr.contains("up to 5 were pruned"), "{said:?}");
    let said = world.control_says(&["audit", "verify"]).await.expect(0);
    assert!(said.stdout.contains("pruned up to 5"), "{said:?}");
    // Both what went last and what is still there can be compared with what is known from before.
    let _ = verify(&["--anchor", &old], 0).await;
    let _ = verify(&["--anchor", &young], 0).await;
    let forged = format!("5:sha256:{}", "0".repeat(64));
    let said = verify(&["--anchor", &forged], 1).await;
    assert!(said.stderr.contains("written anew"), "{said:?}");
    let said = verify(&["--anchor", &forged.replacen('5', "4", 1)], 1).await;
    assert!(
        said.stderr
            .contains("row 4, of which the anchor was given, was pruned"),
        "{said:?}"
    );
    // A beginning that was only moved is no prune.
    world.alter(
        "DELETE FROM audit WHERE seq = 6;
         UPDATE audit_pruned SET seq = 6, hash = (SELECT previous_hash FROM audit WHERE seq = 7)",
    );
    let said = verify(&[], 1).await;
    assert!(
        said.stderr
            .contains("no row of the chain says that they were pruned"),
        "{said:?}"
    );
    let said = world.control_says(&["audit", "verify"]).await.expect(1);
    assert!(said.stderr.contains("no row of the chain says"), "{said:?}");
}
