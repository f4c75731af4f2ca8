//! The keys of control that sign, and their change under nodes that are here, away, or at work.

use std::fs;

use muster_shared::{envelope::Signer, ids::EventId, time::Timestamp};
use muster_tests::{
    Said,
    prelude::*,
    world::{on_node, target},
};

const BEATS: &str = "heartbeat_seconds = 1\nbackoff_max_seconds = 1\n";

async fn keys(world: &World, words: &[&str]) -> Said {
    world.control_says(&[&["keys"], words].concat()).await
}

/// The keys that sign, the oldest first.
async fn signing(world: &World) -> Vec<String> {
    let said = keys(world, &["list"]).await.expect(0).stdout;
    let live = said.lines().filter(|line| line.ends_with("  signs"));
    live.filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

async fn confirmed(world: &World) {
    until("every node has confirmed the keys", async || {
        let said = keys(world, &["list"]).await.expect(0).stdout;
        said.contains("every node has confirmed them").then_some(())
    })
    .await;
}

/// The names of the keys that the node keeps.
fn kept(node: &Musterd) -> Vec<String> {
    let raw = fs::read(node.state.join("identity.json")).expect("the node is enrolled");
    let file: Value = serde_json::from_slice(&raw).expect("it is JSON");
    let keys = file["signing_keys"].as_array().expect("it has keys").iter();
    keys.map(|key| key["keyid"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_change_under_a_node_at_work() {
    let world = World::new().await;
    let (mut node, running) = world.node("n1").config(BEATS).at_work().await;
    let before = signing(&world).await;
    let [first] = &before[..] else {
        panic!("one key: {before:?}")
    };
    let refused = keys(&world, &["retire", first]).await.expect(1);
    assert!(refused.stderr.contains("the only one"), "{}", refused.stderr);

    let _ = keys(&world, &["rotate"]).await.expect(0);
    confirmed(&world).await;
    assert_eq!(kept(&node), signing(&world).await);
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );

    let _ = keys(&world, &["retire", first]).await.expect(0);
    confirmed(&world).await;
    assert_eq!(kept(&node), signing(&world).await);
    assert!(!kept(&node).contains(first));
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );

    fs::write(node.dir.join("go"), "").expect("the hook can be let go");
    let settled = world.settled(running.id).await;
    assert_eq!(target(&settled, node.id).status, Status::Succeeded);
    assert_eq!(node.trace_lines("ran"), ["begun"]);
    node.restart().await;
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_follows_from_the_key_that_it_knows() {
    let mut world = World::new().await;
    let mut node = world.node("away").config(BEATS).start().await;
    let _ = node.stop().await;
    let before = signing(&world).await;
    let [first] = &before[..] else {
        panic!("one key: {before:?}")
    };
    let _ = keys(&world, &["rotate"]).await.expect(0);
    let refused = keys(&world, &["retire", first]).await.expect(1);
    let name = node.known_name().await;
    assert!(refused.stderr.contains(&name), "{}", refused.stderr);
    let forced = keys(&world, &["retire", first, "--force"]).await.expect(0);
    assert!(forced.stdout.contains(&name), "{}", forced.stdout);
    world.kill9();
    world.start().await;
    let queued = world.dispatch(on_node("ping", node.id)).await;
    node.start().await;
    assert_eq!(world.settled(queued.id).await.status, Status::Succeeded);
    confirmed(&world).await;
    assert_eq!(kept(&node), signing(&world).await);
    // Who enrols now knows the present keys alone.
    let late = world.node("late").config(BEATS).start().await;
    assert_eq!(kept(&late), signing(&world).await);
    assert_eq!(
        world.run(on_node("ping", late.id)).await.status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_retired_key_signed_is_refused_by_name() {
    let control = FakeControl::new().await;
    let node = control.start_node(|node| node.configure(BEATS)).await;
    let new = Signer::from_seed(&muster_tests::chance());
    let now = Timestamp::now();
    let news = |serial, retired: &str| SigningKeysRotated {
        event_id: EventId::mint(now, muster_tests::chance()),
        occurred_at: now,
        node_id: control.node_id(),
        expires_at: now.plus(Duration::from_secs(120)),
        serial,
        keys: vec![SigningKeyInfo {
            keyid: new.keyid().to_owned(),
            public_key: Base64(new.public_key().to_vec()),
        }],
        retired: vec![retired.to_owned()],
    };
    // By a key that the node does not know: nothing changes.
    let stranger = Signer::from_seed(&muster_tests::chance());
    control.push_envelope("signing_key_rotated", "1", &stranger.seal(&news(9, "x")).unwrap());
    let old = control.signer().keyid().to_owned();
    control.push_envelope(
        "signing_key_rotated",
        "2",
        &control.signer().seal(&news(2, &old)).unwrap(),
    );
    let request = control.request("ping", ActionKind::Builtin);
    control.push(&request);
    control.push_envelope("action_request", "3", &new.seal(&request).unwrap());
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    let log = node.log();
    let refusal = |reason: &str| {
        log.lines()
            .any(|line| line.contains("Refused an event") && line.contains(reason))
    };
    assert!(refusal("unknown_key") && refusal("retired_key"), "{log}");
}
