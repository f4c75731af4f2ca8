//! The database fails, or whoever writes to it dies: what was promised is there, what is there is whole, and what was not
//! promised can be asked again.

use std::{fs::File, io::Write as _, process::Command, sync::Arc};

use muster_shared::time::Timestamp;
use muster_tests::{
    Answer, Database, Engine, PgRelay, Replicas, chance,
    invariants::{check_durable, check_invariants},
    postgres::{self, Cluster},
    postgres_relay::Lost,
    prelude::*,
    world::{Setup, on, on_node},
};
use reqwest::Method;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

const COUNT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n";
const RESTLESS: &str = "backoff_max_seconds = 1\nrunning_max = 4\nqueue_max = 1000\n";

fn ask(operator: &Operator, key: &str, body: &Value) -> reqwest::RequestBuilder {
    let path = operator.in_project("executions:dispatch");
    let ask = operator.request(Method::POST, &path).json(body);
    ask.header(IDEMPOTENCY_KEY_HEADER, key)
}

fn moment(ms_max: u64) -> Duration {
    Duration::from_millis(u64::from_ne_bytes(chance()) % ms_max)
}

/// Dispatches under a key until it is admitted, as a client does that wants it done: what is answered 5xx, or not at all, is
/// asked again.
async fn dispatched(operator: &Operator, body: &Value) -> ExecutionId {
    let key = format!("{:x}", u128::from_ne_bytes(chance()));
    let deadline = Instant::now() + muster_tests::wait::PATIENCE;
    loop {
        match Answer::try_to(ask(operator, &key, body)).await {
            Ok(answer) if answer.status == 201 => return answer.json::<Execution>().id,
            Ok(answer) => assert!(
                answer.status >= 500,
                "a dispatch is refused: {} {}",
                answer.status,
                answer.text()
            ),
            Err(_) => {}
        }
        assert!(Instant::now() < deadline, "the dispatch is never admitted");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Dispatches until it is told to stop.
async fn keeps_dispatching(operator: Operator, body: Value, stop: watch::Receiver<bool>) -> Vec<ExecutionId> {
    let mut admitted = Vec::new();
    while !*stop.borrow() {
        admitted.push(dispatched(&operator, &body).await);
        sleep(Duration::from_millis(20)).await;
    }
    admitted
}

/// Each of these executions ran on each of these nodes, once.
fn check_runs(nodes: &[Node], sent: &[ExecutionId]) {
    for node in nodes {
        let mut ran = node.trace_lines("ran");
        let mut expected: Vec<String> = sent.iter().map(ToString::to_string).collect();
        ran.sort();
        expected.sort();
        assert_eq!(ran, expected, "{}", node.name);
    }
}

// ---- whoever writes dies

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_killed_while_it_dispatches_to_a_thousand_leaves_all_or_nothing() {
    const AWAY: u32 = 1000;
    const HERE: usize = 3;
    let Some(mut replicas) = Replicas::new(2).await else {
        return;
    };
    let mut nodes = Vec::new();
    for n in 0..HERE {
        let node = replicas
            .world
            .node(&format!("n{n}"))
            .labels("fleet=many")
            .config(RESTLESS);
        nodes.push(node.start().await);
    }
    replicas.world.many_nodes(AWAY);
    let mut admitted = Vec::new();
    for _round in 0..8 {
        let operator = replicas.at(1);
        let key = format!("{:x}", u128::from_ne_bytes(chance()));
        let mut body = on("ping", "fleet=many");
        body["timeout_seconds"] = json!(3600);
        let call = ask(&operator, &key, &body);
        let going = tokio::spawn(Answer::try_to(call));
        sleep(moment(250)).await;
        replicas.kill9(1);
        if let Ok(answer) = going.await.expect("it is answered or not") {
            assert_eq!(answer.status, 201, "{}", answer.text());
            admitted.push(answer.json::<Execution>().id);
        }
        replicas.start(1).await;
        // Whatever became of it, said again at the other it is one.
        let again = Answer::to(ask(&replicas.at(0), &key, &body)).await.expect(201);
        admitted.push(again.json::<Execution>().id);
    }
    admitted.sort();
    admitted.dedup();
    assert_eq!(admitted.len(), 8, "one execution for each key");
    check_durable(&replicas.world, admitted.iter().copied());
    let db = replicas.world.database();
    let sizes = db.rows("SELECT execution_id, count(*) FROM action_execution_target GROUP BY execution_id");
    let whole = (AWAY as usize + HERE).to_string();
    assert_eq!(sizes.len(), 8);
    assert!(
        sizes.iter().all(|row| row[1].as_deref() == Some(whole.as_str())),
        "{sizes:?}"
    );
    for id in &admitted {
        until("the nodes that are here have run it", async || {
            let counts = replicas.at(0).execution(*id).await.target_counts;
            (counts.get(&Status::Succeeded).copied().unwrap_or_default() as usize == HERE).then_some(())
        })
        .await;
        let _ = replicas.at(1).cancel(*id).await;
        assert_eq!(replicas.at(0).settled(*id).await.status, Status::Cancelled);
    }
    check_invariants(&replicas.world, &replicas.at(1)).await;
}

// ---- the database dies

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_restarted_and_crashes_under_load_and_nothing_promised_is_lost() {
    if postgres::left_out() {
        return;
    }
    let cluster = Cluster::own(&[]).await;
    let config = muster_tests::world::OFTEN;
    let Some(replicas) = Replicas::with(2, config, Some(cluster.clone())).await else {
        return;
    };
    let mut nodes = Vec::new();
    for n in 0..3 {
        let node = replicas
            .world
            .node(&format!("n{n}"))
            .labels("fleet=load")
            .config(RESTLESS)
            .hook("count", COUNT);
        nodes.push(node.start().await);
    }
    let (stop, stopped) = watch::channel(false);
    let load: Vec<_> = [0, 1]
        .map(|n| {
            let body = on("count", "fleet=load");
            tokio::spawn(keeps_dispatching(replicas.at(n), body, stopped.clone()))
        })
        .into();
    for round in 0..4 {
        sleep(Duration::from_millis(500) + moment(500)).await;
        if round % 2 == 0 {
            cluster.stop().await;
        } else {
            cluster.crash().await;
        }
        sleep(moment(1500)).await;
        cluster.start().await;
        // Each comes back by itself, and takes something new before the next time.
        for n in [0, 1] {
            let _ = dispatched(&replicas.at(n), &on("ping", "fleet=load")).await;
        }
    }
    stop.send_replace(true);
    let mut sent = Vec::new();
    for going in load {
        sent.extend(going.await.expect("every dispatch is admitted in the end"));
    }
    assert!(!sent.is_empty());
    check_durable(&replicas.world, sent.iter().copied());
    let all = replicas.world.database().rows("SELECT id FROM action_execution");
    for id in all.into_iter().flatten().flatten() {
        let id = id.parse().expect("an id");
        assert_eq!(replicas.at(0).settled(id).await.status, Status::Succeeded);
    }
    check_runs(&nodes, &sent);
    for n in [0, 1] {
        check_invariants(&replicas.world, &replicas.at(n)).await;
    }
}

// ---- the answer to a commit is lost

/// One control that reaches its database by a relay.
async fn relayed() -> Option<(World, PgRelay)> {
    if postgres::left_out() {
        return None;
    }
    let mut world = World::made(Setup {
        engine: Engine::Postgres,
        ..Setup::default()
    })
    .await;
    let relay = PgRelay::before(world.database().postgres().cluster.socket());
    let _ = world.stop().await;
    world.reach_database_by(relay.socket());
    world.start().await;
    Some((world, relay))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_whose_commit_was_ambiguous_is_told_truly_when_it_is_sent_again() {
    let Some((world, relay)) = relayed().await else {
        return;
    };
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let body = on_node("ping", node.id);
    for (n, lost) in [Lost::Itself, Lost::Answer, Lost::Itself, Lost::Answer]
        .into_iter()
        .enumerate()
    {
        let key = format!("key-{n}");
        relay.lose_commit_of("INSERT INTO action_execution_target", lost);
        let first = Answer::to(ask(&world.operator, &key, &body)).await;
        assert_eq!(relay.commits_lost(), n + 1, "the commit went lost");
        assert!(
            first.status >= 500,
            "nobody knows: {} {}",
            first.status,
            first.text()
        );
        let there = world.database().count("action_execution");
        assert_eq!(there as usize, n + usize::from(lost == Lost::Answer));
        let again = Answer::to(ask(&world.operator, &key, &body)).await.expect(201);
        let replayed = again.headers.contains_key(IDEMPOTENT_REPLAY_HEADER);
        assert_eq!(replayed, lost == Lost::Answer);
        let id = again.json::<Execution>().id;
        assert_eq!(world.database().count("action_execution") as usize, n + 1);
        let _ = world.operator.cancel(id).await;
    }
    check_invariants(&world, &world.operator).await;
}

/// A machine that loses its power says nothing to those who are connected, and nor does a wall that begins to swallow packets.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_falls_silent_in_the_middle_of_a_commit_is_not_waited_for_without_end() {
    let Some((world, relay)) = relayed().await else {
        return;
    };
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let body = on_node("ping", node.id);
    relay.lose_commit_of("INSERT INTO action_execution_target", Lost::EveryWord);
    // Longer than a client waits that gives nothing for lost.
    let first = ask(&world.operator, "the-key", &body).timeout(Duration::from_secs(120));
    let first = Answer::to(first).await.refused(503, "busy");
    assert!(first.detail.contains("same Idempotency-Key"), "{first:?}");
    let again = Answer::to(ask(&world.operator, "the-key", &body))
        .await
        .expect(201);
    assert!(
        again.headers.contains_key(IDEMPOTENT_REPLAY_HEADER),
        "it was committed"
    );
    assert_eq!(world.database().count("action_execution"), 1);
    let _ = world.operator.cancel(again.json::<Execution>().id).await;
    check_invariants(&world, &world.operator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_whose_commit_was_ambiguous_is_taken_once() {
    let Some((world, relay)) = relayed().await else {
        return;
    };
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let mut frames = node.stream().await;
    for lost in [Lost::Itself, Lost::Answer] {
        let sent = world.dispatch(on_node("ping", node.id)).await;
        let request = node.next_request(&mut frames).await;
        for status in [Status::Ack, Status::Started, Status::Succeeded] {
            let before = relay.commits_lost();
            relay.lose_commit_of("INSERT INTO action_execution_event", lost);
            let first = node.report(&request, &Callback::of(status)).await;
            assert_eq!(relay.commits_lost(), before + 1, "the commit went lost");
            assert!(
                first.status >= 500,
                "nobody knows: {} {}",
                first.status,
                first.text()
            );
            let _ = node.report(&request, &Callback::of(status)).await.expect(200);
        }
        assert_eq!(world.settled(sent.id).await.status, Status::Succeeded);
    }
    check_invariants(&world, &world.operator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_behind_connections_that_are_cut_at_random_tells_each_end_once() {
    let Some((world, relay)) = relayed().await else {
        return;
    };
    let node = world
        .node("n")
        .config(RESTLESS)
        .hook("count", COUNT)
        .start()
        .await;
    let relay = Arc::new(relay);
    let (stop, stopped) = watch::channel(false);
    let cutting = {
        let relay = relay.clone();
        tokio::spawn(async move {
            while !*stopped.borrow() {
                sleep(moment(400)).await;
                match chance::<1>()[0] % 3 {
                    0 => relay.cut(),
                    1 => relay.lose_commit_of("INSERT INTO action_execution_event", Lost::Answer),
                    _ => relay.lose_commit_of("INSERT INTO action_execution_target", Lost::Answer),
                }
            }
        })
    };
    let mut sent = Vec::new();
    for _ in 0..30 {
        sent.push(dispatched(&world.operator, &on_node("count", node.id)).await);
    }
    stop.send_replace(true);
    cutting.await.expect("it only cuts");
    for id in &sent {
        until("control answers again", async || {
            let path = world.operator.in_project(&format!("executions/{id}"));
            let answer = world.operator.get(&path).await;
            (answer.status == 200 && answer.json::<Execution>().status.is_terminal()).then_some(())
        })
        .await;
        assert_eq!(world.settled(*id).await.status, Status::Succeeded);
    }
    check_runs(std::slice::from_ref(&node), &sent);
    check_invariants(&world, &world.operator).await;
}

// ---- there is no way to the database for a while

/// A refusal that says when to come back.
fn busy(answer: Answer) {
    assert!(
        answer.headers.contains_key("retry-after"),
        "{:?} {}",
        answer.headers,
        answer.text()
    );
    let _ = answer.refused(503, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_too_long_for_postgres_is_told_to_come_back_and_nothing_is_half_done() {
    if !postgres::left_out() {
        waits_too_long_on(Engine::Postgres).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_too_long_for_sqlite_is_told_to_come_back_and_nothing_is_half_done() {
    waits_too_long_on(Engine::Sqlite).await;
}

async fn waits_too_long_on(engine: Engine) {
    let world = World::made(Setup {
        engine,
        ..Setup::default()
    })
    .await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let before = world.rows();
    let held = world.database().hold_writes().await;
    // More than there are connections, so that some wait for one and some for the lock.
    let asks = (0..20).map(|_| world.operator.try_dispatch_owned(on_node("ping", node.id)));
    let answers = futures_util::future::join_all(asks).await;
    for answer in answers {
        busy(answer);
    }
    // What only reads goes on meanwhile.
    let _ = world
        .operator
        .get(&world.operator.in_project("executions"))
        .await
        .expect(200);
    assert_eq!(world.rows(), before);
    drop(held);
    let sent = until("it goes on by itself", async || {
        let answer = world.operator.try_dispatch(&on_node("ping", node.id)).await;
        (answer.status == 201).then(|| answer.json::<Execution>().id)
    })
    .await;
    let _ = world.operator.cancel(sent).await;
    check_invariants(&world, &world.operator).await;
}

/// Nothing keeps a reader of SQLite waiting; of PostgreSQL, whoever changes a table by hand does.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_too_long_to_read_is_told_to_come_back_and_what_is_alive_says_so() {
    if postgres::left_out() {
        return;
    }
    let world = World::made(Setup {
        engine: Engine::Postgres,
        ..Setup::default()
    })
    .await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let Database::Postgres(database) = world.database() else {
        panic!("it is on PostgreSQL")
    };
    let mut admin = database.connect().await;
    postgres::run(
        &mut admin,
        "BEGIN; LOCK TABLE node_label IN ACCESS EXCLUSIVE MODE",
    )
    .await;
    let nodes = format!("/v1/nodes?project_id={}", world.operator.project);
    // More than there are connections, so that some wait for one and some for the table.
    let asks = futures_util::future::join_all((0..8).map(|_| world.operator.get(&nodes)));
    let alive = async {
        // By then every connection is taken.
        sleep(Duration::from_secs(5)).await;
        let asked = Answer::to(world.operator.request(Method::GET, "/v1/health"));
        let health = tokio::time::timeout(Duration::from_secs(15), asked).await;
        let health: Value = health.expect("health waits for nobody").expect(200).json();
        assert_eq!(health["status"], "down");
        assert!(!world.operator.is_ready().await);
    };
    let (answers, ()) = tokio::join!(asks, alive);
    for answer in answers {
        busy(answer);
    }
    postgres::run(&mut admin, "ROLLBACK").await;
    let _ = world.operator.get(&nodes).await.expect(200);
    let sent = dispatched(&world.operator, &on_node("ping", node.id)).await;
    let _ = world.operator.cancel(sent).await;
    check_invariants(&world, &world.operator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_503_and_comes_back_by_itself() {
    let Some((world, relay)) = relayed().await else {
        return;
    };
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let before = world.rows();
    relay.refuse(true);
    let asked = Answer::to(ask(&world.operator, "k", &on_node("ping", node.id)));
    let path = world.operator.in_project("executions");
    let read = world.operator.get(&path);
    let (asked, read) = tokio::join!(asked, read);
    for answer in [asked, read] {
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
    }
    assert!(!world.operator.is_ready().await, "it says that it cannot serve");
    assert_eq!(world.rows(), before);
    relay.refuse(false);
    let sent = dispatched(&world.operator, &on_node("ping", node.id)).await;
    assert!(world.operator.is_ready().await);
    let _ = world.operator.cancel(sent).await;
    check_invariants(&world, &world.operator).await;
}

// ---- two transactions that commit in another order than they wrote

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_late_with_a_lower_number_is_delivered_all_the_same() {
    let Some(replicas) = Replicas::new(2).await else {
        return;
    };
    let world = &replicas.world;
    let (one, two) = (
        BareNode::enroll(world, "n=one").await,
        BareNode::enroll(world, "n=two").await,
    );
    for node in [&one, &two] {
        node.declare(&[]).await;
    }
    let mut to_one = one.through(&replicas.at(1)).stream().await;
    let mut to_two = two.through(&replicas.at(1)).stream().await;
    // A dispatch to the first node, as control writes it: its pattern is one that was sent and is over.
    let pattern = world.dispatch(on_node("ping", one.id)).await.id;
    let request = one.next_request(&mut to_one).await;
    for status in [Status::Ack, Status::Started, Status::Succeeded] {
        let _ = one.report(&request, &Callback::of(status)).await.expect(200);
    }
    let db = world.database();
    let late = ExecutionId::mint(Timestamp::now(), chance());
    let (late_id, pattern) = (db.id(late.uuid()), db.id(pattern.uuid()));
    let mut writer = db.postgres().connect().await;
    postgres::run(
        &mut writer,
        &format!(
            "BEGIN;
             INSERT INTO action_execution (id, domain_id, project_id, action_name, action_kind, timeout_seconds,
                 live_targets, requested_by, created_at, updated_at, expires_at, due_at)
             SELECT {late_id}, domain_id, project_id, action_name, action_kind, 300, 1, requested_by, now(), now(),
                    now() + interval '5 minutes', now() + interval '5 minutes'
               FROM action_execution WHERE id = {pattern};
             INSERT INTO action_execution_target (execution_id, node_id, status, callback_token_hash, created_at,
                 updated_at, released_at, deliver_by, expires_at)
             SELECT {late_id}, node_id, 'pending', callback_token_hash, now(), now(), now(),
                    now() + interval '5 minutes', now() + interval '5 minutes'
               FROM action_execution_target WHERE execution_id = {pattern};
             INSERT INTO outbox (event_type, node_id, execution_id, created_at)
             VALUES ('action_request', {}, {late_id}, now())",
            db.id(one.id.uuid()),
        ),
    )
    .await;
    // What is written after it and committed before it has higher numbers, and is handed over.
    let sent = replicas.at(0).dispatch(&on_node("ping", two.id)).await;
    let request = two.next_request(&mut to_two).await;
    assert_eq!(request.execution_id, sent.id);
    for status in [Status::Ack, Status::Started, Status::Succeeded] {
        let _ = two.report(&request, &Callback::of(status)).await.expect(200);
    }
    postgres::run(&mut writer, "COMMIT").await;
    // The node connects no second time, and has it.
    let request = one.next_request(&mut to_one).await;
    assert_eq!(request.execution_id, late);
    let _ = replicas.at(0).cancel(late).await;
    assert_eq!(replicas.at(1).settled(late).await.status, Status::Cancelled);
    for n in [0, 1] {
        check_invariants(world, &replicas.at(n)).await;
    }
}

// ---- a full disk

/// Set to `skip` where no file system may be mounted, to leave the story out.
const MOUNT: &str = "MUSTER_STORY_MOUNT";

#[tokio::test(flavor = "multi_thread")]
async fn control_on_a_full_disk_refuses_what_it_cannot_keep_and_goes_on_once_there_is_room() {
    if std::env::var(MOUNT).is_ok_and(|value| value == "skip") {
        return;
    }
    let may_mount = Command::new("unshare").args(["--mount", "true"]).status();
    assert!(
        may_mount.is_ok_and(|status| status.success()),
        "this story mounts a file system, which needs root; to leave it out, set {MOUNT}=skip"
    );
    let mut world = World::made(Setup {
        engine: Engine::Sqlite,
        ..Setup::default()
    })
    .await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let _ = world.stop().await;
    let seen = world.start_on_small_disk("8m").await;
    let first = world.dispatch(on_node("ping", node.id)).await.id;

    let filler = seen.join("filler");
    let mut file = File::create(&filler).expect("the directory is the story's own");
    while file.write_all(&[0; 4096]).is_ok() {}
    let mut admitted = vec![first];
    let mut refusals = 0;
    // The log of the database may hold some room that it has already.
    let refused = until("there is no room left", async || {
        let answer = world.operator.try_dispatch(&on_node("ping", node.id)).await;
        if answer.status == 201 {
            admitted.push(answer.json::<Execution>().id);
            return None;
        }
        refusals += 1;
        (refusals == 3).then_some(answer)
    })
    .await;
    assert!(
        refused.status == 503 || refused.status == 507,
        "{} {}",
        refused.status,
        refused.text()
    );
    assert!(
        refused.headers.contains_key("retry-after"),
        "{:?}",
        refused.headers
    );
    assert!(
        refused.text().contains("disk of the database is full"),
        "{}",
        refused.text()
    );
    // All that was admitted is there, and can be read.
    for id in &admitted {
        assert_eq!(world.operator.execution(*id).await.status, Status::Pending);
    }

    // Its room is free once nobody has it open.
    drop(file);
    std::fs::remove_file(filler).expect("the directory is the story's own");
    let sent = until("it goes on by itself", async || {
        let answer = world.operator.try_dispatch(&on_node("ping", node.id)).await;
        (answer.status == 201).then(|| answer.json::<Execution>().id)
    })
    .await;
    admitted.push(sent);
    // It would not come up on what a torn write leaves.
    world.stop_on_small_disk(&seen).await;
    world.start().await;
    // Nothing of what was refused is there.
    assert_eq!(
        world.database().count("action_execution") as usize,
        admitted.len()
    );
    for id in &admitted {
        let _ = world.operator.cancel(*id).await;
    }
    check_durable(&world, admitted);
    check_invariants(&world, &world.operator).await;
}
