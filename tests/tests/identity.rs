//! Keys of nodes that change, and machines that are not who they were.

use std::{fs, path::PathBuf};

use muster_tests::{
    Answer,
    prelude::*,
    world::{on_node, target},
};
use reqwest::Method;

const OFTEN: &str = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\n";
/// Heartbeats as often as they may be, so that what they bring comes soon.
const BEATS: &str = "heartbeat_seconds = 1\nbackoff_max_seconds = 1\n";
/// A hook that runs until its file says so.
const PATIENT: &str =
    "#!/bin/sh\necho begun >> @DIR@/ran\nwhile ! [ -e @DIR@/go ]; do sleep 0.05; done\necho done\n";

/// A control under which an old key ends with the first use of the new one.
async fn strict() -> World {
    World::with_config(Some(&format!("{OFTEN}nsk_overlap_seconds = 0\n"))).await
}

fn nsk_file(node: &Musterd) -> PathBuf {
    node.state.join("nsk")
}

fn nsk(node: &Musterd) -> String {
    fs::read_to_string(nsk_file(node)).expect("an enrolled node has a key")
}

/// What a call with this key of the node is answered.
async fn heartbeat(world: &World, id: NodeId, nsk: &str) -> Answer {
    let body = json!({"client_now": muster_shared::time::Timestamp::now(), "binary_checksum": "AAAA",
        "binary_version": "0", "nat_summary": {}});
    let request = world
        .operator
        .with_token(nsk)
        .request(Method::POST, &format!("/v1/nodes/{id}/heartbeat"));
    Answer::to(request.json(&body)).await
}

/// Fetches a new key as the daemon does.
async fn fetch(world: &World, id: NodeId, nsk: &str) -> Answer {
    let path = format!("/v1/nodes/{id}/nsk");
    Answer::to(world.operator.with_token(nsk).request(Method::POST, &path)).await
}

async fn fetched(world: &World, id: NodeId, nsk: &str) -> String {
    fetch(world, id, nsk).await.expect(201).json::<NewNsk>().nsk
}

async fn ask(world: &World, node: &str) {
    let _ = world
        .operator
        .muster(&["node", "rotate-key", node])
        .await
        .expect(0);
}

/// Waits until the node has another key than this one, and nothing of the change is left.
async fn changed(node: &mut Node, old: &str) -> String {
    let _ = node
        .known(async |summary| summary.nsk_rotation_asked_at.is_none())
        .await;
    let musterd: &Musterd = node;
    until("the new key is in its place", async || {
        let now = nsk(musterd);
        (now != old && !musterd.state.join("nsk.next").exists()).then_some(now)
    })
    .await
}

// ---- the key of a node

#[tokio::test(flavor = "multi_thread")]
async fn a_node_changes_its_key_while_a_hook_runs_and_keeps_its_stream() {
    let world = strict().await;
    let mut node = world
        .node("n1")
        .config(BEATS)
        .hook("patient", PATIENT)
        .start()
        .await;
    let running = world.dispatch(on_node("patient", node.id)).await;
    until("the hook runs", async || {
        (!node.trace("ran").is_empty()).then_some(())
    })
    .await;
    let opened = node.log().matches("The event stream is open").count();

    let old = nsk(&node);
    let before = node.known(async |_| true).await.nsk_since;
    ask(&world, &node.id.to_string()).await;
    let new = changed(&mut node, &old).await;
    let summary = node.known(async |summary| summary.connected).await;
    assert!(summary.nsk_since > before, "{summary:#?}");
    heartbeat(&world, node.id, &old).await.refused(401, "nsk_rotated");
    let _ = heartbeat(&world, node.id, &new).await.expect(200);

    fs::write(node.dir.join("go"), "").expect("the hook can be let go");
    let settled = world.settled(running.id).await;
    assert_eq!(target(&settled, node.id).status, Status::Succeeded);
    assert_eq!(node.trace_lines("ran"), ["begun"]);
    let pinged = world.run(on_node("ping", node.id)).await;
    assert_eq!(pinged.status, Status::Succeeded);
    assert_eq!(
        node.log().matches("The event stream is open").count(),
        opened,
        "the stream was torn"
    );
    assert!(
        !node.log().contains(&new) && !node.log().contains(&old),
        "a key was logged"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_key_counts_a_little_longer_for_what_is_under_way() {
    let world = World::new().await;
    let bare = BareNode::enroll(&world, "n=1").await;
    fetch(&world, bare.id, &bare.nsk)
        .await
        .refused(409, "key_rotation_not_due");
    ask(&world, &bare.id.to_string()).await;
    let told: HeartbeatResponse = heartbeat(&world, bare.id, &bare.nsk).await.expect(200).json();
    assert!(told.rotate_keys);
    let new = fetched(&world, bare.id, &bare.nsk).await;
    let told: HeartbeatResponse = heartbeat(&world, bare.id, &bare.nsk).await.expect(200).json();
    assert!(told.rotate_keys, "it was not used yet");
    let told: HeartbeatResponse = heartbeat(&world, bare.id, &new).await.expect(200).json();
    assert!(!told.rotate_keys);
    let told: HeartbeatResponse = heartbeat(&world, bare.id, &bare.nsk).await.expect(200).json();
    assert!(!told.rotate_keys, "only the key that counts is changed");
    fetch(&world, bare.id, &bare.nsk)
        .await
        .refused(409, "key_rotation_not_due");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_after_any_step_of_a_change_leaves_a_key_that_counts() {
    let mut world = strict().await;
    let mut node = world.node("n1").config(BEATS).enrolled().await;
    let id = node.id.to_string();
    let next = node.state.join("nsk.next");

    // Control answers, and the node dies before it has written anything: it fetches another.
    let first = nsk(&node);
    ask(&world, &id).await;
    let lost = fetched(&world, node.id, &first).await;
    world.kill9();
    world.start().await;
    node.start().await;
    let second = changed(&mut node, &first).await;
    assert_ne!(second, lost);
    heartbeat(&world, node.id, &lost)
        .await
        .refused(401, "unauthenticated");
    heartbeat(&world, node.id, &first)
        .await
        .refused(401, "nsk_rotated");

    // The node has written it, and dies before it was used.
    node.kill9();
    ask(&world, &id).await;
    let third = fetched(&world, node.id, &second).await;
    fs::write(&next, &third).expect("the key can be written");
    world.kill9();
    world.start().await;
    node.start().await;
    assert_eq!(changed(&mut node, &second).await, third);
    heartbeat(&world, node.id, &second)
        .await
        .refused(401, "nsk_rotated");

    // It was used, and the node dies before it is in its place: the old one has ended by then.
    node.kill9();
    ask(&world, &id).await;
    let fourth = fetched(&world, node.id, &third).await;
    fs::write(&next, &fourth).expect("the key can be written");
    let _ = heartbeat(&world, node.id, &fourth).await.expect(200);
    heartbeat(&world, node.id, &third)
        .await
        .refused(401, "nsk_rotated");
    world.kill9();
    world.start().await;
    node.start().await;
    assert_eq!(changed(&mut node, &third).await, fourth);

    // What is written is a key that control never took, or has forgotten: the old one stays.
    node.kill9();
    fs::write(&next, "nsk_nobody").expect("the key can be written");
    node.start().await;
    until("the key that does not count is given up", async || {
        (!next.exists()).then_some(())
    })
    .await;
    assert_eq!(nsk(&node), fourth);
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_cut_off_by_a_kill_ends_with_one_key_and_no_work_lost() {
    let mut world = strict().await;
    let mut node = world
        .node("n1")
        .config(BEATS)
        .hook("count", "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n")
        .start()
        .await;
    let mut ran = Vec::new();
    for round in 0..6 {
        let old = nsk(&node);
        let begun = || node.log().matches("Control asks to change").count();
        let before = begun();
        ask(&world, &node.id.to_string()).await;
        ran.push(world.dispatch(on_node("count", node.id)).await.id);
        until("the change begins", async || (begun() > before).then_some(())).await;
        if round % 2 == 0 {
            node.kill9();
            node.start().await;
        } else {
            world.kill9();
            world.start().await;
        }
        let _ = changed(&mut node, &old).await;
    }
    for id in &ran {
        assert_eq!(world.settled(*id).await.status, Status::Succeeded);
    }
    let mut traces = node.trace_lines("ran");
    traces.sort();
    let mut expected: Vec<String> = ran.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(traces, expected, "each ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_too_old_is_changed_without_being_asked_for() {
    let world = World::with_config(Some(&format!("{OFTEN}nsk_days_max = 1\n"))).await;
    let mut node = world.node("n1").config(BEATS).start().await;
    let old = nsk(&node);
    world.alter("UPDATE node SET nsk_since_ms = 1");
    let new = changed(&mut node, &old).await;
    assert_ne!(new, old);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_changed_by_selector_and_by_nobody_who_may_not() {
    let world = World::new().await;
    let one = BareNode::enroll(&world, "role=web").await;
    let two = BareNode::enroll(&world, "role=db").await;
    let said = world
        .operator
        .muster(&["node", "rotate-key", "-l", "role=web", "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(said["asked"], json!([one.id]));
    let told: HeartbeatResponse = heartbeat(&world, two.id, &two.nsk).await.expect(200).json();
    assert!(!told.rotate_keys);
    let path = world.operator.in_project("nodes/rotate-keys");
    world
        .operator
        .post(&path, &json!({"selector": "role=none"}))
        .await
        .refused(422, "selector_empty_cohort");
    let nobody = world.operator.with_token(&one.nsk);
    nobody
        .post(&path, &json!({"all": true}))
        .await
        .refused(401, "unauthenticated");
    let shown = world
        .operator
        .muster(&["node", "show", &one.id.to_string()])
        .await
        .expect(0);
    assert!(shown.stdout.contains("asked to change it"), "{}", shown.stdout);
}
