//! Several controls on one PostgreSQL: whichever is asked, it is one control.

use std::collections::BTreeSet;

use muster_tests::{
    Answer, Replicas,
    invariants::{check_durable, check_invariants},
    prelude::*,
    sse::Frames,
    wait::PATIENCE,
    world::{OFTEN, on, on_node, target},
};
use reqwest::Method;

const BEATS: &str = "heartbeat_seconds = 1\nbackoff_max_seconds = 1\n";
const COUNT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\nsleep 0.2\n";

/// The timeline of an execution, as one replica tells it.
async fn watch(operator: &Operator, id: ExecutionId) -> Frames {
    let path = operator.in_project(&format!("executions/{id}/events"));
    let response = operator.request(Method::GET, &path).send().await;
    let response = response.expect("the replica answers");
    assert_eq!(response.status(), 200);
    Frames::of(response)
}

/// What it tells until it says that the execution is settled.
async fn told(frames: &mut Frames) -> Vec<Status> {
    let mut seen = Vec::new();
    loop {
        let frame = frames.next().await.expect("the stream ends with `settled`");
        if frame.event == "settled" {
            return seen;
        }
        let event: TimelineEvent = serde_json::from_str(&frame.data).expect("a timeline event");
        seen.push(event.to);
    }
}

async fn keyed(operator: &Operator, key: &str, body: &Value) -> Answer {
    let path = operator.in_project("executions:dispatch");
    let ask = operator.request(Method::POST, &path);
    Answer::to(ask.header(IDEMPOTENCY_KEY_HEADER, key).json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_takes_a_dispatch_a_stream_and_a_callback() {
    let Some(replicas) = Replicas::new(3).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let at = |n: usize| replicas.at(n % 3);
    for n in 0..3 {
        let mut frames = node.through(&at(n)).stream().await;
        let sent = at(n + 1).dispatch(&on_node("ping", node.id)).await;
        let mut watched = watch(&at(n + 2), sent.id).await;
        let request = node.next_request(&mut frames).await;
        assert_eq!(request.execution_id, sent.id);
        for (step, status) in [Status::Ack, Status::Started, Status::Succeeded]
            .into_iter()
            .enumerate()
        {
            let there = node.through(&at(n + step));
            let _ = there.report(&request, &Callback::of(status)).await.expect(200);
        }
        // Said again elsewhere it is the same news.
        for elsewhere in 0..3 {
            let again = node.through(&at(elsewhere));
            let _ = again
                .report(&request, &Callback::of(Status::Succeeded))
                .await
                .expect(200);
            assert_eq!(at(elsewhere).execution(sent.id).await.status, Status::Succeeded);
        }
        let seen = told(&mut watched).await;
        assert!(
            seen.ends_with(&[Status::Ack, Status::Started, Status::Succeeded]),
            "{seen:?}"
        );
    }
    // A daemon, its operator and its spectator, each elsewhere.
    let daemon = replicas.world.node("real").through(at(1).server).start().await;
    let sent = at(2).dispatch(&on_node("ping", daemon.id)).await;
    assert_eq!(at(0).settled(sent.id).await.status, Status::Succeeded);
    for n in 0..3 {
        check_invariants(&replicas.world, &at(n)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_notification_delays_and_loses_nothing() {
    let Some(mut replicas) = Replicas::new(2).await else {
        return;
    };
    let relay = replicas.behind_relay(1).await;
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let (here, there) = (replicas.at(0), replicas.at(1));
    let bare = node.through(&there);
    let mut frames = bare.stream().await;
    let round = async |frames: &mut Frames| {
        let sent = here.dispatch(&on_node("ping", node.id)).await;
        let mut watched = watch(&there, sent.id).await;
        let request = bare.next_request(frames).await;
        assert_eq!(request.execution_id, sent.id);
        // Told at the one, watched at the other.
        let near = node.through(&here);
        for status in [Status::Ack, Status::Started, Status::Succeeded] {
            let _ = near.report(&request, &Callback::of(status)).await.expect(200);
        }
        let _ = told(&mut watched).await;
    };
    let before = relay.notifications();
    round(&mut frames).await;
    assert!(relay.notifications() > before, "a dispatch elsewhere is notified");

    relay.lose_notifications(true);
    let before = relay.notifications();
    round(&mut frames).await;
    assert!(relay.notifications() > before, "there were some to lose");

    // The connection that listens ends, and is made anew.
    relay.lose_notifications(false);
    relay.cut();
    until("the replica serves again", async || {
        there.is_ready().await.then_some(())
    })
    .await;
    round(&mut frames).await;
    until("it listens again", async || {
        let before = relay.notifications();
        round(&mut frames).await;
        (relay.notifications() > before).then_some(())
    })
    .await;
    check_invariants(&replicas.world, &there).await;
}

/// What is committed goes onto its stream while others wait for their turn at writing, the drain of the outbox among them.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_writer_keeps_nothing_that_is_committed_off_its_stream() {
    let Some(mut replicas) = Replicas::new(1).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[("job", Digest::of(b"one"))]).await;
    let mut frames = node.stream().await;
    let digest = Digest::of(b"one").to_string();
    let approve = ["hooks", "approve", "job", "--digest", &digest, "--all"];
    let _ = replicas.at(0).muster(&approve).await.expect(0);
    let _ = node.next_baseline(&mut frames).await;
    let db = replicas.world.database();
    let held = db.hold_writes().await;
    // Each is found when the outbox is looked at by the clock: while they come, the drain has something to delete, and may not.
    for _ in 0..6 {
        db.alter(&format!(
            "INSERT INTO outbox (event_type, node_id, hook, created_at)
             VALUES ('hook_baseline_updated', {}, 'job', now())",
            db.id(node.id.uuid())
        ));
        let told = node.next_baseline(&mut frames).await;
        assert_eq!(told.digest, Digest::of(b"one"));
    }
    drop(held);
    let said = replicas.control(0).log();
    assert!(!said.contains("The outbox could not be drained"), "{said}");
    check_invariants(&replicas.world, &replicas.at(0)).await;
}

/// The node's stream stays open while its replica is without the database for longer than the other keeps what it has
/// handed over.
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_reaches_a_node_whose_replica_was_without_the_database_meanwhile() {
    let Some(mut replicas) = Replicas::new(2).await else {
        return;
    };
    let relay = replicas.behind_relay(1).await;
    let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[("job", one)]).await;
    node.declare(&[("job", two)]).await;
    let here = replicas.at(0);
    let _ = here
        .try_dispatch(&on_node("job", node.id))
        .await
        .refused(409, "hook_integrity_violation");
    let there = node.through(&replicas.at(1));
    let mut frames = there.stream().await;
    let _ = here.dispatch(&on_node("ping", node.id)).await;
    let pending = there.next_request(&mut frames).await;

    relay.refuse(true);
    let digest = two.to_string();
    let approve = ["hooks", "approve", "job", "--digest", &digest, "--all"];
    let _ = here.muster(&approve).await.expect(0);
    let db = replicas.world.database();
    until("what the one has handed over is deleted", async || {
        (db.count("outbox") == 0).then_some(())
    })
    .await;
    relay.refuse(false);
    let ended = async {
        while let Some(frame) = frames.next().await {
            assert_ne!(frame.event, "hook_baseline_updated", "the row was gone");
        }
    };
    let ended = tokio::time::timeout(PATIENCE, ended).await;
    ended.expect("the stream ends, so that the node connects anew");
    let mut frames = there.stream().await;
    assert_eq!(there.next_baseline(&mut frames).await.digest, two);
    let said = replicas.control(1).log();
    assert!(
        said.contains("The outbox could not be read to its end for"),
        "{said}"
    );
    let _ = here.cancel(pending.execution_id).await;
    check_invariants(&replicas.world, &here).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_at_one_replica_is_cancelled_at_another() {
    let Some(replicas) = Replicas::new(2).await else {
        return;
    };
    let there = replicas.at(1).server;
    let (node, running) = replicas.world.node("n").through(there).at_work().await;
    let waiting = BareNode::enroll(&replicas.world, "n=waits").await;
    waiting.declare(&[]).await;
    let pending = replicas.at(1).dispatch(&on_node("ping", waiting.id)).await;
    let asked = replicas.at(0).cancel(running.id).await;
    assert_eq!(asked.outcomes[0].outcome, CancelEffect::Asked);
    let _ = replicas.at(0).cancel(pending.id).await;
    for n in 0..2 {
        let ended = replicas.at(n).settled(running.id).await;
        assert_eq!(target(&ended, node.id).status, Status::Cancelled, "{ended:#?}");
        let ended = replicas.at(n).settled(pending.id).await;
        assert_eq!(ended.status, Status::Cancelled, "{ended:#?}");
    }
    check_invariants(&replicas.world, &replicas.at(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_the_buffer_of_a_stream_is_not_sent_once_another_replica_has_cancelled_it() {
    const DISPATCHES: usize = 200;
    let Some(replicas) = Replicas::new(2).await else {
        return;
    };
    let (here, there) = (replicas.at(0), replicas.at(1));
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    // Nobody reads: what does not fit on the wire waits at the one replica, and is cancelled at the other.
    let mut frames = node.through(&there).stream().await;
    let mut dispatch = on_node("ping", node.id);
    dispatch["parameters"] = json!({"fill": "x".repeat(60_000)});
    let mut sent = Vec::new();
    for _ in 0..DISPATCHES {
        sent.push(here.dispatch(&dispatch).await.id);
    }
    until("all of them were handed to the stream", async || {
        let scraped = there.get("/metrics").await.expect(200).text();
        scraped.contains("\nmuster_outbox_rows 0\n").then_some(())
    })
    .await;
    for id in &sent {
        assert_eq!(here.cancel(*id).await.execution.status, Status::Cancelled);
    }
    let last = here.dispatch(&on_node("ping", node.id)).await;
    let seen = node.requests_before(&mut frames, last.id).await;
    assert!(seen < DISPATCHES, "every cancelled action was sent all the same");
    let _ = here.cancel(last.id).await;
    check_invariants(&replicas.world, &here).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_at_one_replica_reaches_a_node_at_another() {
    let Some(replicas) = Replicas::new(2).await else {
        return;
    };
    let there = replicas.at(1).server;
    let world = &replicas.world;
    let mut node = world
        .node("n")
        .through(there)
        .hook("job", "#!/bin/sh\necho one\n")
        .start()
        .await;
    node.replace_hook("job", "#!/bin/sh\necho two\n").await;
    let here = replicas.at(0);
    let _ = here
        .try_dispatch(&on_node("job", node.id))
        .await
        .refused(409, "hook_integrity_violation");
    let digest = node.hook_digest("job").to_string();
    let approve = ["hooks", "approve", "job", "--digest", &digest, "--all"];
    let _ = here.muster(&approve).await.expect(0);
    until("the node has heard of it", async || {
        let sent = here.dispatch(&on_node("job", node.id)).await;
        let ended = here.settled(sent.id).await;
        (ended.status == Status::Succeeded).then_some(())
    })
    .await;
    check_invariants(world, &here).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_changed_at_one_replica_counts_at_all() {
    let config = format!("{OFTEN}nsk_overlap_seconds = 0\n");
    let Some(replicas) = Replicas::with(2, &config, None).await else {
        return;
    };
    let there = replicas.at(1).server;
    let world = &replicas.world;
    let mut node = world.node("n").through(there).config(BEATS).start().await;
    let key = |node: &Node| std::fs::read_to_string(node.state.join("nsk")).expect("the node has a key");
    let old = key(&node);
    let name = node.id.to_string();
    let _ = replicas
        .at(0)
        .muster(&["node", "rotate-key", &name])
        .await
        .expect(0);
    let _ = node
        .known(async |summary| summary.nsk_rotation_asked_at.is_none())
        .await;
    until("the new key is in its place", async || {
        (key(&node) != old && !node.state.join("nsk.next").exists()).then_some(())
    })
    .await;
    let beat = json!({"client_now": muster_shared::time::Timestamp::now(), "binary_checksum": "AAAA",
        "binary_version": "0", "nat_summary": {}});
    for n in 0..2 {
        let heartbeat = async |nsk: &str| {
            let as_node = replicas.at(n).with_token(nsk);
            as_node
                .post(&format!("/v1/nodes/{}/heartbeat", node.id), &beat)
                .await
        };
        heartbeat(&old).await.refused(401, "nsk_rotated");
        let _ = heartbeat(&key(&node)).await.expect(200);
        let sent = replicas.at(n).dispatch(&on_node("ping", node.id)).await;
        assert_eq!(replicas.at(n).settled(sent.id).await.status, Status::Succeeded);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_decommissioned_at_one_replica_loses_its_stream_at_another() {
    let Some(replicas) = Replicas::new(2).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let mut frames = node.through(&replicas.at(1)).stream().await;
    let id = node.id.to_string();
    let _ = replicas.at(0).muster(&["node", "rm", &id]).await.expect(0);
    let ended = tokio::time::timeout(muster_tests::wait::PATIENCE, async {
        while frames.next().await.is_some() {}
    });
    ended.await.expect("the stream ends");
    for n in 0..2 {
        let again = replicas.at(n).with_token(&node.nsk);
        let again = again.get(&format!("/v1/nodes/{id}/events")).await;
        let _ = again.refused(401, "nsk_revoked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_stream_at_another_replica_takes_the_place_of_the_older() {
    let Some(replicas) = Replicas::new(2).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let mut older = node.through(&replicas.at(0)).stream().await;
    let mut newer = node.through(&replicas.at(1)).stream().await;
    let ended = tokio::time::timeout(muster_tests::wait::PATIENCE, async {
        while older.next().await.is_some() {}
    });
    ended.await.expect("the older stream ends");
    // Both replicas know that it is connected, and where.
    for n in 0..2 {
        until("the node is known as connected", async || {
            let path = format!("/v1/nodes/{}", node.id);
            let shown: NodeSummary = replicas.at(n).get(&path).await.expect(200).json();
            shown.connected.then_some(())
        })
        .await;
        let sent = replicas.at(n).dispatch(&on_node("ping", node.id)).await;
        let request = node.next_request(&mut newer).await;
        assert_eq!(request.execution_id, sent.id);
        for status in [Status::Ack, Status::Started, Status::Succeeded] {
            let _ = node.report(&request, &Callback::of(status)).await.expect(200);
        }
    }
}

/// A copy of a node's state directory follows the daemon that it was copied from, as a restarted one would.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_takes_the_place_of_one_that_is_connected_gets_no_work_from_any_replica() {
    let Some(replicas) = Replicas::new(2).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let (first, second) = (uuid::Uuid::from_u128(1), uuid::Uuid::from_u128(2));
    let ask = |at: usize, method, path: &str, instance: uuid::Uuid, before: &str| {
        let path = format!("/v1/nodes/{}/{path}", node.id);
        node.through(&replicas.at(at))
            .request(method, &path)
            .header(INSTANCE_HEADER, instance.to_string())
            .header(INSTANCES_BEFORE_HEADER, before)
    };
    let open = ask(0, Method::GET, "events", first, "").send().await;
    let mut stream = Frames::of(open.expect("control answers"));
    let _comment = tokio::time::timeout(PATIENCE, stream.next()).await;
    let beat = json!({ "client_now": muster_shared::time::Timestamp::now(), "binary_checksum": "", "binary_version": "0.0.0", "nat_summary": {} });
    let contested = async |at: usize| {
        let ask = ask(at, Method::POST, "heartbeat", second, &first.to_string());
        let answer: Value = Answer::to(ask.json(&beat)).await.expect(200).json();
        answer["contested"] == json!(true)
    };
    until("both replicas know of the stream", async || {
        let path = format!("/v1/nodes/{}", node.id);
        let shown: NodeSummary = replicas.at(1).get(&path).await.expect(200).json();
        shown.connected.then_some(())
    })
    .await;
    assert!(contested(1).await, "the one that it asked first");
    assert!(contested(0).await, "the other, which hears of it now");
    let reports = ask(0, Method::PUT, "capabilities", second, &first.to_string()).json(&json!({}));
    let _ = Answer::to(reports).await.refused(503, "node_contested");
}

// ---- at the same time

#[tokio::test(flavor = "multi_thread")]
async fn the_cap_is_exact_whoever_is_asked() {
    const CAP: usize = 7;
    let config = format!("{OFTEN}live_executions_max = {CAP}\n");
    let Some(replicas) = Replicas::with(3, &config, None).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let operators = [0, 1, 2].map(|n| replicas.at(n));
    for _round in 0..3 {
        let asks = (0..30).map(|n| operators[n % 3].try_dispatch_owned(on_node("ping", node.id)));
        let answers = futures_util::future::join_all(asks).await;
        let mut admitted = Vec::new();
        for answer in answers {
            if answer.status == 201 {
                admitted.push(answer.json::<Execution>().id);
            } else {
                let _ = answer.refused(429, "capacity_exceeded");
            }
        }
        assert_eq!(admitted.len(), CAP);
        check_durable(&replicas.world, admitted.iter().copied());
        let live = "action_execution WHERE terminal_status IS NULL";
        assert_eq!(replicas.world.database().count(live), CAP as i64);
        // Given back at one, it is free at all.
        for (n, id) in admitted.into_iter().enumerate() {
            let _ = operators[n % 3].cancel(id).await;
        }
    }
    check_invariants(&replicas.world, &operators[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_at_all_replicas_at_once_is_one_execution() {
    let Some(replicas) = Replicas::new(3).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let operators = [0, 1, 2].map(|n| replicas.at(n));
    let body = on_node("ping", node.id);
    let asks = (0..60).map(|n| keyed(&operators[n % 3], "the-same", &body));
    let answers = futures_util::future::join_all(asks).await;
    let mut ids = BTreeSet::new();
    let mut firsts = 0;
    for answer in answers {
        let answer = answer.expect(201);
        firsts += usize::from(!answer.headers.contains_key(IDEMPOTENT_REPLAY_HEADER));
        let _ = ids.insert(answer.json::<Execution>().id);
    }
    assert_eq!((ids.len(), firsts), (1, 1), "{ids:?}");
    assert_eq!(replicas.world.database().count("action_execution"), 1);
    let mut other = body.clone();
    other["timeout_seconds"] = json!(7);
    for operator in &operators {
        let _ = keyed(operator, "the-same", &other)
            .await
            .refused(422, "idempotency_key_reuse");
    }
    for id in ids {
        let _ = operators[2].cancel(id).await;
    }
    check_invariants(&replicas.world, &operators[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_replicas_sweep_and_each_invocation_times_out_once() {
    const EACH: usize = 10;
    let Some(replicas) = Replicas::new(3).await else {
        return;
    };
    let first = BareNode::enroll(&replicas.world, "n=one").await;
    first.declare(&[]).await;
    replicas.world.many_nodes(20);
    let mut sent = Vec::new();
    for n in 0..EACH * 3 {
        let mut body = on("ping", "fleet=many");
        body["timeout_seconds"] = json!(1);
        sent.push(replicas.at(n % 3).dispatch(&body).await.id);
    }
    for id in &sent {
        assert_eq!(replicas.at(1).settled(*id).await.status, Status::Timeout);
    }
    let db = replicas.world.database();
    let invocations = (sent.len() * 20) as i64;
    let ended = db.count("action_execution_event WHERE to_status = 'timeout'");
    assert_eq!(ended, invocations);
    let written = db.count("audit WHERE relation = 'actions.timeout'");
    assert_eq!(written, invocations);
    check_invariants(&replicas.world, &replicas.at(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_replicas_prune_at_once_and_nothing_is_counted_twice() {
    const TWO_HOURS_MS: i64 = 2 * 3_600_000;
    let config = format!("{OFTEN}[retention]\nexecutions = \"1h\"\nbatch = 3\n");
    let Some(mut replicas) = Replicas::with(3, &config, None).await else {
        return;
    };
    let node = BareNode::enroll(&replicas.world, "n=one").await;
    node.declare(&[]).await;
    let mut ids = Vec::new();
    for n in 0..30 {
        let sent = replicas.at(n % 3).dispatch(&on_node("ping", node.id)).await;
        let _ = replicas.at((n + 1) % 3).cancel(sent.id).await;
        ids.push(sent.id);
    }
    check_invariants(&replicas.world, &replicas.at(0)).await;
    let db = replicas.world.database();
    // The last one stays.
    let last = ids.pop().expect("there are some");
    replicas.world.alter(&format!(
        "UPDATE action_execution SET updated_at = {}, expires_at = {} WHERE id <> {}",
        db.earlier("updated_at", TWO_HOURS_MS),
        db.earlier("expires_at", TWO_HOURS_MS),
        db.id(last.uuid()),
    ));
    // Each replica prunes as it starts, and so do commands beside them.
    let _ = replicas.stop(1).await;
    let _ = replicas.stop(2).await;
    replicas.launch(1);
    replicas.launch(2);
    let world = &replicas.world;
    let prune = || world.control_says(&["prune", "-o", "json"]);
    let (a, b, c) = tokio::join!(prune(), prune(), prune());
    let by_hand: i64 = [a, b, c]
        .into_iter()
        .map(|said| said.expect(0).json()["executions"].as_i64().expect("a number"))
        .sum();
    let db = world.database();
    until("what is over went", async || {
        (db.count("action_execution") == 1).then_some(())
    })
    .await;
    assert!(by_hand <= ids.len() as i64, "{by_hand} of {}", ids.len());
    // What each batch says went, went once.
    let told: i64 = db
        .rows("SELECT detail FROM audit WHERE relation = 'retention.executions'")
        .into_iter()
        .flatten()
        .flatten()
        .map(|detail| {
            let number: String = detail.chars().take_while(char::is_ascii_digit).collect();
            number
                .parse::<i64>()
                .unwrap_or_else(|_| panic!("it begins with a number: {detail}"))
        })
        .sum();
    assert_eq!(told, ids.len() as i64);
    for n in [1, 2] {
        until("the replica serves", async || {
            replicas.at(n).is_ready().await.then_some(())
        })
        .await;
    }
    check_invariants(world, &replicas.at(2)).await;
}

// ---- leaving

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_stopped_hands_its_nodes_over_and_loses_no_action() {
    const NODES: usize = 4;
    let Some(mut replicas) = Replicas::new(2).await else {
        return;
    };
    let mut nodes = Vec::new();
    for n in 0..NODES {
        let node = replicas
            .world
            .node(&format!("n{n}"))
            .labels("fleet=drain")
            .config("backoff_max_seconds = 1\nrunning_max = 4\nqueue_max = 1000\n")
            .hook("count", COUNT);
        nodes.push(node.start().await);
    }
    let mut sent = Vec::new();
    for round in 0..4 {
        // All of them are at one replica; dispatches go to the other, and one of each before, during and after.
        let (leaves, stays) = (round % 2, 1 - round % 2);
        let operator = replicas.at(stays);
        let going = tokio::spawn(async move {
            let mut sent = Vec::new();
            for _ in 0..8 {
                sent.push(operator.dispatch(&on("count", "fleet=drain")).await.id);
            }
            sent
        });
        replicas.prefer(&[stays, leaves]);
        let ended = replicas.stop(leaves).await;
        assert!(ended.success(), "{ended}");
        sent.extend(going.await.expect("every dispatch is admitted"));
        for node in &mut nodes {
            let _ = node.known(async |summary| summary.connected).await;
        }
        replicas.start(leaves).await;
    }
    for id in &sent {
        let ended = replicas.at(0).settled(*id).await;
        assert_eq!(ended.status, Status::Succeeded, "{ended:#?}");
    }
    for node in &nodes {
        let ran = node.trace_lines("ran");
        let distinct: BTreeSet<&String> = ran.iter().collect();
        assert_eq!(
            (ran.len(), distinct.len()),
            (sent.len(), sent.len()),
            "{}",
            node.name
        );
    }
    check_invariants(&replicas.world, &replicas.at(1)).await;
}
