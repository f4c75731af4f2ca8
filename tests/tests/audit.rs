//! What happened is written down, and what was written down cannot be changed unnoticed.

use muster_shared::audit::{AuditPage, AuditRow};
use muster_tests::{
    prelude::*,
    world::{on, on_node},
};

async fn rows(world: &World) -> Vec<AuditRow> {
    let path = format!("/v1/audit?project_id={}&limit=200", world.operator.project);
    let page: AuditPage = world.operator.get(&path).await.expect(200).json();
    page.items
}

fn count(rows: &[AuditRow], relation: &str, outcome: &str) -> usize {
    rows.iter()
        .filter(|row| row.relation == relation && row.outcome == outcome)
        .count()
}

async fn verify(world: &World, args: &[&str], code: i32) -> muster_tests::Said {
    let args = [&["audit", "verify"][..], args].concat();
    world.operator.muster(&args).await.expect(code)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_has_its_row_in_the_order_it_was_made() {
    let world = World::new().await;
    let node = world.node("n").labels("role=web").start().await;
    let ran = world.run(on_node("ping", node.id)).await;
    let label = json!({"set": {"tier": "1"}, "remove": ["role"]});
    let path = format!("/v1/nodes/{}/labels", node.id);
    let _ = world.operator.patch(&path, &label).await.expect(200);

    let rows = rows(&world).await;
    for (relation, n) in [
        ("token.issue", 2),
        ("grant.create", 1),
        ("node.enroll", 1),
        ("actions.dispatch", 1),
        // Of `started`, which brought `ack` along, and of the end.
        ("actions.callback", 2),
        ("node.label", 1),
    ] {
        assert_eq!(count(&rows, relation, "granted"), n, "{relation}: {rows:#?}");
    }
    assert!(
        rows.windows(2).all(|pair| pair[0].seq == pair[1].seq + 1),
        "{rows:#?}"
    );
    let callback = rows
        .iter()
        .find(|row| row.relation == "actions.callback")
        .unwrap();
    assert_eq!(callback.subject, format!("node:{}", node.id));
    assert_eq!(callback.resource, format!("execution:{}", ran.id));
    assert_eq!(callback.detail.as_deref(), Some("started to succeeded"));
    assert_eq!(rows[0].detail.as_deref(), Some("tier=1 role-"));
    // Pages follow each other without a gap.
    let one = format!("/v1/audit?project_id={}&limit=1", world.operator.project);
    let first: AuditPage = world.operator.get(&one).await.expect(200).json();
    let next = format!("{one}&cursor={}", first.next_cursor.expect("there is more"));
    let second: AuditPage = world.operator.get(&next).await.expect(200).json();
    assert_eq!(
        (first.items[0].seq, second.items[0].seq),
        (rows[0].seq, rows[1].seq)
    );
    let listed = world
        .operator
        .muster(&["audit", "list", "--limit", "2"])
        .await
        .expect(0);
    assert!(listed.stdout.contains("node.label"), "{listed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_is_written_before_it_is_answered() {
    let world = World::new().await;
    let node = world.node("n").labels("role=web").start().await;
    let other = world.node("m").labels("role=web").start().await;
    world.alter(&format!(
        "UPDATE relation_tuple SET relation = 'act', resource = 'project:{}';
         INSERT INTO relation_tuple (id, domain_id, subject, relation, resource, created_at)
         SELECT {}, domain_id, subject, 'act', 'resource:{}', {} FROM relation_tuple LIMIT 1",
        world.operator.project,
        world.database().some_id(),
        other.id,
        world.database().at(0),
    ));
    // One node of the two is left out, and the dispatch goes on without it.
    let ran = world.run(on("ping", "role=web")).await;
    assert_eq!(ran.targets.len(), 1);
    let denied = world.operator.try_dispatch(&on_node("ping", node.id)).await;
    let problem = denied.refused(403, "permission_denied");
    let nobody = world.operator.try_dispatch(&on("ping", "role=none")).await;
    let _ = nobody.refused(422, "selector_empty_cohort");
    let label = json!({"set": {"tier": "1"}});
    let path = format!("/v1/nodes/{}/labels", other.id);
    let _ = world
        .operator
        .patch(&path, &label)
        .await
        .refused(403, "permission_denied");
    let domain = world
        .operator
        .get(&format!("/v1/audit?project_id={}", world.operator.project))
        .await;
    let _ = domain.refused(403, "permission_denied");
    world.alter("UPDATE relation_tuple SET relation = 'nothing'");
    let hidden = world.operator.get(&world.operator.in_project("executions")).await;
    let _ = hidden.refused(404, "project_not_found");

    world.alter(
        "UPDATE relation_tuple SET relation = 'operator',
            resource = (SELECT resource FROM audit WHERE relation = 'grant.create')
          WHERE created_at = (SELECT max(created_at) FROM relation_tuple)",
    );
    let rows = rows(&world).await;
    for (relation, outcome, n) in [
        ("insufficient_relation", "denied", 2),
        ("execution.dispatch", "permission_denied", 1),
        ("execution.dispatch", "invariant_violation", 1),
        ("node.label", "permission_denied", 1),
        ("audit.list", "permission_denied", 1),
        ("execution.list", "permission_denied", 1),
    ] {
        assert_eq!(
            count(&rows, relation, outcome),
            n,
            "{relation} {outcome}: {rows:#?}"
        );
    }
    let row = rows
        .iter()
        .find(|row| row.relation == "execution.dispatch" && row.outcome == "permission_denied")
        .unwrap();
    assert_eq!(
        row.correlation_id.map(|id| id.to_string()),
        problem.correlation_id,
        "the answer and its row have one id"
    );
    let _ = verify(&world, &[], 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_may_not_report_is_written_down() {
    let world = World::new().await;
    let (one, two) = (
        BareNode::enroll(&world, "n=one").await,
        BareNode::enroll(&world, "n=two").await,
    );
    one.declare(&[]).await;
    let ran = world.dispatch(on_node("ping", one.id)).await;
    world.leave_open();
    let body = json!({"status": "ack"});
    let own = two.callback_path(ran.id);
    let foreign = one.callback_path(ran.id);
    for (path, gate) in [(own, "node_gate"), (foreign, "path_gate")] {
        let answer = muster_tests::Answer::to(two.request(reqwest::Method::POST, &path).json(&body)).await;
        let _ = answer.refused(403, "nsk_node_mismatch");
        let relation = format!("node_execution_callback.{gate}");
        let rows = rows(&world).await;
        assert_eq!(count(&rows, &relation, "permission_denied"), 1, "{rows:#?}");
        assert_eq!(rows[0].subject, format!("node:{}", two.id));
    }
}

/// What rows that count refusals say: of whom, about what, and how many.
fn counted(rows: &[AuditRow]) -> Vec<(String, String, u64)> {
    let counts = rows.iter().filter(|row| row.relation == "refusals.counted");
    let more = |row: &AuditRow| {
        let words = row.detail.as_deref().and_then(|detail| detail.split_once(' '));
        words
            .and_then(|(number, _)| number.parse().ok())
            .expect("a number")
    };
    counts
        .map(|row| (row.subject.clone(), row.resource.clone(), more(row)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_refused_for_ever_leaves_a_short_trail_that_counts_the_rest() {
    let mut world = World::with_config(Some("[limits]\nrefusals_audited_per_hour = 3\n")).await;
    let (one, two) = (
        BareNode::enroll(&world, "n=one").await,
        BareNode::enroll(&world, "n=two").await,
    );
    one.declare(&[]).await;
    let ran = world.dispatch(on_node("ping", one.id)).await;
    world.leave_open();
    let ask = async |node: &BareNode, path: &str| {
        let call = node.request(reqwest::Method::POST, path);
        muster_tests::Answer::to(call.json(&json!({"status": "ack"}))).await
    };
    let mut answers = Vec::new();
    for n in 0..20 {
        let path = if n < 10 { &one } else { &two }.callback_path(ran.id);
        answers.push(ask(&two, &path).await.refused(403, "nsk_node_mismatch"));
    }
    let trail = rows(&world).await;
    let gates = [
        "node_execution_callback.path_gate",
        "node_execution_callback.node_gate",
    ];
    assert_eq!(
        gates.map(|gate| count(&trail, gate, "permission_denied")),
        [3, 0],
        "{trail:#?}"
    );
    assert!(
        answers[..10]
            .iter()
            .all(|problem| problem.detail == answers[0].detail && problem.correlation_id.is_some()),
        "who is refused cannot tell the difference: {answers:?}"
    );
    assert_eq!(metrics(&world).await["muster_refusals_counted_total"], 17.0);

    // What has no row takes no turn at writing.
    let held = world.database().hold_writes().await;
    let _ = ask(&two, &one.callback_path(ran.id))
        .await
        .refused(403, "nsk_node_mismatch");
    drop(held);

    // Another node has places of its own, and each refusal of an operator has its row.
    let _ = ask(&one, &two.callback_path(ran.id))
        .await
        .refused(403, "nsk_node_mismatch");
    for _ in 0..5 {
        let nobody = world.operator.try_dispatch(&on("ping", "role=none")).await;
        let _ = nobody.refused(422, "selector_empty_cohort");
    }
    let trail = rows(&world).await;
    assert_eq!(count(&trail, gates[0], "permission_denied"), 4, "{trail:#?}");
    assert_eq!(count(&trail, "execution.dispatch", "invariant_violation"), 5);
    assert!(counted(&trail).is_empty(), "there is no room yet: {trail:#?}");

    // At a stop everything is told.
    let _ = world.stop().await;
    world.start().await;
    let trail = rows(&world).await;
    let subject = format!("node:{}", two.id);
    let about = format!("resource:{}", two.id);
    assert_eq!(counted(&trail), [(subject, about, 18)]);
    let told = trail
        .iter()
        .find(|row| row.relation == "refusals.counted")
        .unwrap();
    let detail = told.detail.as_deref().unwrap();
    assert!(
        detail.ends_with(
            "10 node_execution_callback.node_gate nsk_node_mismatch, 8 node_execution_callback.path_gate nsk_node_mismatch"
        ),
        "{detail}"
    );
    let _ = verify(&world, &[], 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_counted_is_told_while_the_refusals_go_on() {
    const EACH: u64 = 800;
    // One in five seconds.
    let world = World::with_config(Some("[limits]\nrefusals_audited_per_hour = 720\n")).await;
    let (one, two) = (
        BareNode::enroll(&world, "n=one").await,
        BareNode::enroll(&world, "n=two").await,
    );
    let path = one.callback_path("00000000-0000-7000-8000-000000000000".parse().expect("an id"));
    let ask = async || {
        let call = two.request(reqwest::Method::POST, &path);
        let _ = muster_tests::Answer::to(call.json(&json!({"status": "ack"})))
            .await
            .refused(403, "nsk_node_mismatch");
    };
    let written = || {
        let count = world
            .database()
            .count("audit WHERE relation = 'node_execution_callback.path_gate'");
        u64::try_from(count).expect("a count")
    };
    for _ in 0..EACH {
        ask().await;
    }
    let mut sent = EACH;
    assert!(written() < sent, "some of them are only counted");
    let told = until("a row tells what was counted", async || {
        ask().await;
        sent += 1;
        let told = counted(&rows(&world).await);
        (!told.is_empty()).then_some(told)
    })
    .await;
    assert!(told.iter().all(|(_, _, more)| *more > 0), "{told:?}");
    until("nothing is lost", async || {
        let told: u64 = counted(&rows(&world).await).iter().map(|(_, _, more)| more).sum();
        (written() + told == sent).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_token_that_admits_nobody_any_more_leaves_a_short_trail_and_waits_for_no_writer() {
    let mut world = World::with_config(Some("[limits]\nrefusals_audited_per_hour = 2\n")).await;
    let token = world.bootstrap_token("n=one").await;
    let http = muster_tests::operator::client_with_ca(&world.operator.ca_file);
    let ask = async |operator: &muster_tests::Operator| {
        let newcomer = BareNode::enroll_request();
        muster_tests::Answer::to(BareNode::enroll_call(&http, operator, &token, &newcomer)).await
    };
    let _ = ask(&world.operator).await.expect(201);
    for _ in 0..10 {
        let _ = ask(&world.operator).await.refused(401, "bootstrap_token_used");
    }
    let held = world.database().hold_writes().await;
    let _ = ask(&world.operator).await.refused(401, "bootstrap_token_used");
    drop(held);
    let trail = rows(&world).await;
    assert_eq!(count(&trail, "node.enroll", "permission_denied"), 2, "{trail:#?}");
    let id = world
        .database()
        .value("SELECT max(subject) FROM audit WHERE relation = 'node.enroll'");
    let _ = world.stop().await;
    world.start().await;
    let about = format!("project:{}", world.operator.project);
    let trail = rows(&world).await;
    assert_eq!(counted(&trail), [(id, about, 9)]);
    assert_eq!(count(&trail, "refusals.counted", "permission_denied"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_written_fails_what_it_describes() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    world.database().refuse_rows("audit");
    let before = world.rows();
    let dispatched = world.operator.try_dispatch(&on_node("ping", node.id)).await;
    let problem = dispatched.refused(500, "internal_error");
    assert!(!problem.detail.contains("room"), "{problem:?}");
    let nobody = world.operator.try_dispatch(&on("ping", "role=none")).await;
    let _ = nobody.refused(500, "internal_error");
    assert_eq!(world.rows(), before, "what has no row did not happen");
    world.database().accept_rows("audit");
    let _ = world.run(on_node("ping", node.id)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_changes_removes_or_swaps_a_row_is_found_out() {
    let world = World::new().await;
    for _ in 0..4 {
        let _ = world.bootstrap_token("n=x").await;
    }
    let whole = verify(&world, &[], 0).await;
    let anchor = whole.stdout.trim().to_owned();
    assert_eq!(anchor.split(':').next(), Some("6"), "{whole:?}");
    let keep = "DROP TABLE IF EXISTS kept; DROP TABLE IF EXISTS kept_head;
                CREATE TABLE kept AS SELECT * FROM audit; CREATE TABLE kept_head AS SELECT * FROM audit_head";
    let restore = "DELETE FROM audit; INSERT INTO audit SELECT * FROM kept;
                   DELETE FROM audit_head; INSERT INTO audit_head SELECT * FROM kept_head";
    world.alter(keep);
    let db = world.database();
    let later = format!("UPDATE audit SET at = {} WHERE seq = 4", db.earlier("at", -1));
    let other_hash = format!("UPDATE audit SET hash = {} WHERE seq = 2", db.some_digest());
    for (tamper, named) in [
        (
            "UPDATE audit SET subject = 'token:other' WHERE seq = 3",
            "row 3 was changed",
        ),
        (&later, "row 4 was changed"),
        (&other_hash, "row 2 was changed"),
        ("DELETE FROM audit WHERE seq = 3", "row 3 is missing"),
        ("DELETE FROM audit WHERE seq = 1", "row 1 is missing"),
        ("DELETE FROM audit WHERE seq = 6", "row 6 is missing"),
        ("DELETE FROM audit", "row 1 is missing"),
        (
            "UPDATE audit SET seq = 99 WHERE seq = 3; UPDATE audit SET seq = 3 WHERE seq = 4;
             UPDATE audit SET seq = 4 WHERE seq = 99",
            "row 3 was written as row 4",
        ),
        (
            "DELETE FROM audit WHERE seq = 5; UPDATE audit SET seq = 5 WHERE seq = 6;
             UPDATE audit_head SET seq = 5",
            "row 5 was",
        ),
    ] {
        world.alter(tamper);
        let said = verify(&world, &[], 1).await;
        assert!(said.stderr.contains(named), "{tamper}: {said:?}");
        let said = world.control_says(&["audit", "verify"]).await.expect(1);
        assert!(said.stderr.contains(named), "{tamper}: {said:?}");
        world.alter(restore);
    }
    // An end that was cut off together with its record holds by itself, and not against the anchor.
    world.alter(
        "DELETE FROM audit WHERE seq = 6;
         UPDATE audit_head SET seq = 5, hash = (SELECT hash FROM audit WHERE seq = 5)",
    );
    let _ = verify(&world, &[], 0).await;
    let said = verify(&world, &["--anchor", &anchor], 1).await;
    assert!(said.stderr.contains("row 6 is missing"), "{said:?}");
    world.alter(restore);
    let _ = verify(&world, &["--anchor", &anchor], 0).await;
    let _ = world.bootstrap_token("n=x").await;
    let _ = verify(&world, &["--anchor", &anchor], 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_the_systems_own_row() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let mut ask = on_node("ping", node.id);
    ask["timeout_seconds"] = json!(1);
    let ran = world.run(ask).await;
    assert_eq!(ran.status, Status::Timeout);
    let rows = rows(&world).await;
    assert_eq!(count(&rows, "actions.timeout", "granted"), 1);
    assert_eq!(rows[0].subject, "system");
    assert_eq!(rows[0].detail, Some(format!("resource:{}", node.id)));
}

// ---- metrics

async fn metrics(world: &World) -> std::collections::BTreeMap<String, f64> {
    let text = world.operator.get("/metrics").await.expect(200).text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

fn of_domain(metrics: &std::collections::BTreeMap<String, f64>, name: &str) -> f64 {
    let mut found = metrics
        .iter()
        .filter(|(series, _)| series.starts_with(&format!("{name}{{")));
    let (series, value) = found.next().expect("the series is there");
    assert!(
        series.contains("domain_id=\"") && !series.contains(','),
        "{series}"
    );
    assert!(found.next().is_none(), "one domain has one series");
    *value
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_what_a_recount_finds() {
    let mut world = World::new().await;
    let fresh = metrics(&world).await;
    assert_eq!(of_domain(&fresh, "muster_actions_live_executions"), 0.0);
    assert_eq!(of_domain(&fresh, "muster_actions_executions_total"), 0.0);
    let node = world.node("n").start().await;
    let silent = BareNode::enroll(&world, "n=silent").await;
    silent.declare(&[]).await;
    let _ = world.run(on_node("ping", node.id)).await;
    for _ in 0..3 {
        let _ = world.dispatch(on_node("ping", silent.id)).await;
    }
    world.leave_open();
    let recount = |world: &World| -> f64 {
        let live = world
            .database()
            .count("action_execution WHERE terminal_status IS NULL");
        u32::try_from(live).expect("a story has few").into()
    };
    let now = metrics(&world).await;
    assert_eq!(recount(&world), 3.0);
    assert_eq!(of_domain(&now, "muster_actions_live_executions"), 3.0);
    assert_eq!(of_domain(&now, "muster_actions_executions_total"), 4.0);
    assert_eq!(now["muster_streams_connected"], 1.0);
    assert_eq!(now["muster_callback_duration_seconds_count"], 2.0);
    assert_eq!(now["muster_reconciler_lag_seconds"], 0.0);
    until("the outbox is handed over", async || {
        let now = metrics(&world).await;
        (now["muster_outbox_rows"] == 0.0 && now["muster_outbox_age_seconds"] == 0.0).then_some(())
    })
    .await;

    // A control that starts anew has lost its counters and none of its executions.
    let _ = world.stop().await;
    world.start().await;
    let again = metrics(&world).await;
    assert_eq!(of_domain(&again, "muster_actions_live_executions"), 3.0);
    assert_eq!(of_domain(&again, "muster_actions_executions_total"), 0.0);
}
