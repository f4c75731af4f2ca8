//! What an operator can do before, instead of and again after a dispatch: look first, say how many, repeat safely, and
//! be held to a rate.

use std::collections::BTreeMap;

use muster_tests::{
    Answer,
    lossy::{Loss, Lossy},
    operator::until_rate_limited,
    prelude::*,
    world::{on, on_node},
};

/// How many rows each table has that a refusal must leave alone: the trail of what was refused grows.
fn apart_from_evidence(world: &World) -> BTreeMap<String, i64> {
    let mut rows = everything(world);
    rows.retain(|table, _| !table.starts_with("audit"));
    rows
}

/// Rows of every table, without exception.
fn everything(world: &World) -> BTreeMap<String, i64> {
    let db = world.database();
    db.counts(db.tables().into_iter().map(|name| (name, "")))
}

// ---- dry run

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_who_would_and_who_would_not_and_writes_nothing() {
    let world = World::new().await;
    let web = world
        .node("web")
        .labels("role=web")
        .hook("mine", "#!/bin/sh\n")
        .start()
        .await;
    let bare = world.node("bare").labels("role=web").start().await;
    let before = everything(&world);
    let mut ask = on("mine", "role=web");
    ask["timeout_seconds"] = json!(77);
    for path in ["executions:preview", "executions/preview"] {
        let answer = world
            .operator
            .post(&world.operator.in_project(path), &ask)
            .await
            .expect(200);
        let preview: DispatchPreview = answer.json();
        let [target] = &preview.targets[..] else {
            panic!("{preview:#?}")
        };
        assert_eq!((preview.target_count, target.node_id), (1, web.id));
        let web_now: NodeSummary = world
            .operator
            .get(&format!("/v1/nodes/{}", web.id))
            .await
            .expect(200)
            .json();
        assert_eq!(target.node_name, web_now.name);
        assert_eq!(
            (preview.kind, preview.timeout_seconds, preview.selector.as_deref()),
            (ActionKind::Hook, 77, Some("role=web"))
        );
        let [dropped] = &preview.dropped[..] else {
            panic!("{preview:#?}")
        };
        assert_eq!(
            (dropped.reason.as_str(), dropped.count, &dropped.sample[..]),
            ("action_not_declared", 1, &[bare.id][..])
        );
    }
    let args = ["run", "mine", "-l", "role=web", "--dry-run"];
    let said = world.operator.muster(&args).await.expect(0);
    assert!(said.stdout.contains(&web.id.to_string()), "{}", said.stdout);
    assert!(!said.stdout.contains(&bare.id.to_string()), "{}", said.stdout);
    assert!(said.stderr.contains("nothing was sent"), "{}", said.stderr);
    assert!(said.stderr.contains("action_not_declared"), "{}", said.stderr);
    let said = world
        .operator
        .muster(&[&args[..], &["-o", "json"]].concat())
        .await
        .expect(0);
    assert_eq!(said.json()["target_count"], 1);
    assert_eq!(everything(&world), before);

    // What was shown is what happens.
    let ran = world.run(ask).await;
    assert_eq!(ran.targets.len(), 1);
    assert_eq!(ran.targets[0].node_id, web.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_is_refused_as_the_dispatch_would_be() {
    let world = World::with_config(Some("[limits]\nlive_executions_max = 1\n")).await;
    let mut node = world
        .node("n")
        .labels("role=web")
        .hook("mine", "#!/bin/sh\n")
        .start()
        .await;
    node.replace_hook("mine", "#!/bin/sh\n# other\n").await;
    let away = world.node("away").labels("role=db").enrolled().await;
    let path = world.operator.in_project("executions:preview");
    let mut asks = vec![
        json!({"action": "ping"}),
        json!({"action": "ping", "selector": "role=web,"}),
        json!({"action": "no such", "all": true}),
        json!({"action": "ping", "all": true, "timeout_seconds": 0}),
        json!({"action": "ping", "all": true, "selecter": "x"}),
        on("ping", "role=typo"),
        on("nosuch", "role=web"),
        on("mine", "role=web"),
        on_node("mine", node.id),
        on_node("ping", away.id),
        json!({"action": "ping", "all": true, "expect": 5}),
        json!({"action": "ping", "all": true, "expect": 0}),
    ];
    let compare = async |ask: &Value| {
        let before = everything(&world);
        let shown = world.operator.post(&path, ask).await;
        assert_eq!(everything(&world), before, "{ask}");
        let real = world.operator.try_dispatch(ask).await;
        let mut told = [shown.json::<Problem>(), real.json::<Problem>()];
        for problem in &mut told {
            problem.instance.clear();
            problem.correlation_id = None;
        }
        assert!(real.status >= 400, "{ask}: {}", real.text());
        assert_eq!(
            serde_json::to_value(&told[0]).unwrap(),
            serde_json::to_value(&told[1]).unwrap(),
            "{ask}"
        );
        told[0].code.clone().unwrap()
    };
    let mut codes = Vec::new();
    for ask in asks.drain(..) {
        codes.push(compare(&ask).await);
    }
    assert_eq!(
        codes,
        [
            "invalid_target",
            "malformed_selector",
            "invalid_action",
            "invalid_timeout",
            "invalid_body",
            "selector_empty_cohort",
            "action_not_declared",
            "hook_integrity_violation",
            "hook_integrity_violation",
            "action_not_declared",
            "cohort_mismatch",
            "invalid_body",
        ]
    );
    for (args, code) in [
        (&["-l", "role=typo"][..], 6),
        (&["-l", "role=web,"], 5),
        (&["--all", "--expect", "7"], 5),
    ] {
        let line = [&["run", "ping", "--dry-run"], args].concat();
        let said = world.operator.muster(&line).await.expect(code);
        assert_eq!(said.stdout, "");
    }
    // The limit of the domain as well: one execution that nobody ends.
    node.kill9();
    let open = world.dispatch(on_node("ping", node.id)).await;
    until("the outbox is empty", async || {
        (everything(&world)["outbox"] == 0).then_some(())
    })
    .await;
    assert_eq!(compare(&on_node("ping", node.id)).await, "capacity_exceeded");
    node.start().await;
    let _ = world.settled(open.id).await;
}

// ---- how many

#[tokio::test(flavor = "multi_thread")]
async fn a_cohort_of_another_size_than_was_said_gets_nothing() {
    let world = World::new().await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(world.node(name).labels("role=web").start().await);
    }
    let before = apart_from_evidence(&world);
    for (field, number, code) in [
        ("expect", 2, "cohort_mismatch"),
        ("expect", 4, "cohort_mismatch"),
        ("max_targets", 2, "too_many_targets"),
    ] {
        let mut ask = on("ping", "role=web");
        ask[field] = json!(number);
        let problem = world.operator.try_dispatch(&ask).await.refused(422, code);
        assert!(problem.detail.starts_with("3 nodes"), "{}", problem.detail);
        assert!(problem.detail.contains(&number.to_string()), "{}", problem.detail);
    }
    for (field, bad) in [
        ("expect", json!(0)),
        ("expect", json!(-1)),
        ("expect", json!("3")),
        ("max_targets", json!(0)),
        ("max_targets", json!(1_u64 << 32)),
    ] {
        let mut ask = on("ping", "role=web");
        ask[field] = bad;
        let _ = world
            .operator
            .try_dispatch(&ask)
            .await
            .refused(400, "invalid_body");
    }
    let run = async |args: &[&str]| {
        let line = [&["run", "ping", "-l", "role=web"], args].concat();
        world.operator.muster(&line).await
    };
    let said = run(&["--expect", "2"]).await.expect(5);
    assert!(said.stderr.contains("cohort_mismatch"), "{}", said.stderr);
    let said = run(&["--max-targets", "2"]).await.expect(5);
    assert!(said.stderr.contains("too_many_targets"), "{}", said.stderr);
    let _ = run(&["--expect", "0"]).await.expect(2);
    assert_eq!(apart_from_evidence(&world), before);

    let _ = run(&["--expect", "3", "--max-targets", "3", "--wait"])
        .await
        .expect(0);
    // It counts who is left, not who matches: the label moved away between the look and the act.
    let labels = format!("/v1/nodes/{}/labels", nodes[0].id);
    let _ = world
        .operator
        .patch(&labels, &json!({"set": {"role": "db"}}))
        .await
        .expect(200);
    let _ = run(&["--expect", "3"]).await.expect(5);
    let _ = run(&["--expect", "2", "--wait"]).await.expect(0);
}

// ---- sending again

async fn keyed(operator: &Operator, key: &str, body: &Value) -> Answer {
    let path = operator.in_project("executions:dispatch");
    let ask = operator.request(reqwest::Method::POST, &path);
    Answer::to(ask.header(IDEMPOTENCY_KEY_HEADER, key).json(body)).await
}

fn replayed(answer: &Answer) -> bool {
    answer
        .headers
        .get(IDEMPOTENT_REPLAY_HEADER)
        .is_some_and(|value| value == "true")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_one_dispatch_whatever_has_changed_since() {
    let mut world = World::new().await;
    let node = world
        .node("n")
        .labels("role=web")
        .hook("mine", "#!/bin/sh\n")
        .start()
        .await;
    let bare = world.node("bare").labels("role=web").start().await;
    let other = world.another_operator();
    let ask = on("mine", "role=web");
    let first = keyed(&world.operator, "k", &ask).await.expect(201);
    assert!(!replayed(&first));
    let first: Execution = first.json();
    let _ = world.settled(first.id).await;
    let before = apart_from_evidence(&world);

    let again = keyed(&world.operator, "k", &ask).await.expect(201);
    assert!(replayed(&again));
    let again: Execution = again.json();
    assert_eq!((again.id, again.status), (first.id, Status::Succeeded));
    assert_eq!(again.dropped.len(), 1, "who was dropped is told again");
    assert_eq!(again.dropped[0].sample, [bare.id]);

    // Another request, were it only by its white space, is not the same.
    let path = world.operator.in_project("executions:dispatch");
    let spaced = world
        .operator
        .request(reqwest::Method::POST, &path)
        .header(IDEMPOTENCY_KEY_HEADER, "k")
        .header("content-type", "application/json")
        .body(format!(" {ask}"));
    let _ = Answer::to(spaced).await.refused(422, "idempotency_key_reuse");
    let _ = keyed(&world.operator, "k", &on("ping", "role=web"))
        .await
        .refused(422, "idempotency_key_reuse");
    for bad in ["", "a b", &"k".repeat(256)] {
        let _ = keyed(&world.operator, bad, &ask)
            .await
            .refused(400, "invalid_idempotency_key");
    }
    assert_eq!(apart_from_evidence(&world), before);

    // A key is its caller's own.
    let theirs = keyed(&other, "k", &ask).await.expect(201);
    assert!(!replayed(&theirs));
    let theirs: Execution = theirs.json();
    assert_ne!(theirs.id, first.id);
    let _ = world.settled(theirs.id).await;

    // Neither a cohort that is gone nor a restart changes the answer.
    let labels = format!("/v1/nodes/{}/labels", node.id);
    let _ = world
        .operator
        .patch(&labels, &json!({"set": {"role": "db"}}))
        .await
        .expect(200);
    world.kill9();
    world.start().await;
    let again = keyed(&world.operator, "k", &ask).await.expect(201);
    assert!(replayed(&again));
    assert_eq!(again.json::<Execution>().id, first.id);

    // A refusal leaves its key free.
    let _ = keyed(&world.operator, "r", &ask)
        .await
        .refused(400, "action_not_declared");
    let ran = keyed(&world.operator, "r", &on_node("ping", node.id))
        .await
        .expect(201);
    let _ = world.settled(ran.json::<Execution>().id).await;

    // After its time a key is free again, and is forgotten.
    world.alter("UPDATE idempotency_key SET expires_at = created_at");
    until("expired keys are forgotten", async || {
        (everything(&world)["idempotency_key"] == 0).then_some(())
    })
    .await;
    let anew = keyed(&world.operator, "k", &on_node("ping", node.id))
        .await
        .expect(201);
    assert!(!replayed(&anew));
    let _ = world.settled(anew.json::<Execution>().id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once_under_one_key_are_one_execution() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let ask = on_node("ping", node.id);
    let mut tasks = Vec::new();
    for _ in 0..50 {
        let (operator, ask) = (world.operator.clone(), ask.clone());
        tasks.push(tokio::spawn(async move { keyed(&operator, "same", &ask).await }));
    }
    let mut first = 0;
    let mut ids = std::collections::BTreeSet::new();
    for task in tasks {
        let answer = task.await.expect("the request ends").expect(201);
        first += u32::from(!replayed(&answer));
        ids.insert(answer.json::<Execution>().id.to_string());
    }
    assert_eq!((first, ids.len()), (1, 1));
    let rows = apart_from_evidence(&world);
    assert_eq!((rows["action_execution"], rows["idempotency_key"]), (1, 1));
    let [ref only] = world.operator.executions().await[..] else {
        panic!("one execution")
    };
    let _ = world.settled(only.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_whose_answer_was_lost_is_sent_again_and_made_once() {
    let world = World::new().await;
    let _node = world.node("n").labels("role=web").start().await;
    let losses = [Loss::HangUp, Loss::Status(502), Loss::Status(504)];
    let lossy = Lossy::before(&world, &losses).await;
    let line = ["run", "ping", "-l", "role=web", "--wait", "-o", "name"];
    let said = lossy.operator.muster(&line).await.expect(0);
    assert_eq!(
        said.stderr.matches("sending it again under the same key").count(),
        losses.len(),
        "{}",
        said.stderr
    );
    let keys = lossy.keys();
    assert_eq!(keys.len(), losses.len() + 1);
    assert!(
        keys.iter().all(|key| key.is_some() && *key == keys[0]),
        "{keys:?}"
    );
    let executions = world.operator.executions().await;
    assert_eq!(executions.len(), 1, "{executions:#?}");
    assert_eq!(said.stdout.trim(), executions[0].id.to_string());

    // The next one has a key of its own.
    let _ = lossy.operator.muster(&line).await.expect(0);
    assert_ne!(lossy.keys().last(), keys.first());
    assert_eq!(world.operator.executions().await.len(), 2);
}

// ---- how often

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_asks_too_often_is_told_when_to_come_back_and_muster_does() {
    let config = "[limits]\nrequests_per_second = 1\nrequests_burst = 3\n";
    let world = World::with_config(Some(config)).await;
    let other = world.another_operator();
    let path = world.operator.in_project("executions");
    until_rate_limited("limits.requests_per_second", async || {
        world.operator.get(&path).await
    })
    .await;
    // One caller's haste is nobody else's.
    let _ = other.get(&path).await.expect(200);
    // A body is not waited for, and nothing is written.
    let before = apart_from_evidence(&world);
    let answers = [0; 5].map(|_| {
        world
            .operator
            .try_dispatch_owned(json!({"action": "ping", "all": true}))
    });
    let mut turned_away = 0;
    for answer in answers {
        turned_away += u32::from(answer.await.status == 429);
    }
    assert!(turned_away > 0);
    assert_eq!(apart_from_evidence(&world), before);

    until("muster is turned away, says so and comes back", async || {
        let said = world.operator.muster(&["executions"]).await.expect(0);
        (said.stderr.contains("asking again in 1 s") && said.stderr.contains("rate_limited")).then_some(())
    })
    .await;
}
