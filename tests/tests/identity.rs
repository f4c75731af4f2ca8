//! Keys of nodes that change, and machines that are not who they were.

use std::{
    fs,
    path::{Path, PathBuf},
};

use muster_tests::{
    Answer,
    prelude::*,
    world::{PATIENT, on_node, target},
};
use reqwest::Method;

const OFTEN: &str = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\n";
/// Heartbeats as often as they may be, so that what they bring comes soon.
const BEATS: &str = "heartbeat_seconds = 1\nbackoff_max_seconds = 1\n";

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
    let (mut node, running) = world.node("n1").config(BEATS).at_work().await;
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
    world.alter(&format!("UPDATE node SET nsk_since = {}", world.database().at(1)));
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

// ---- two daemons, one identity

/// A second machine with a copy of a node's state directory, as it is now.
fn copy_of(world: &World, node: &Musterd, name: &str) -> Musterd {
    let copy = Musterd::new(&world.dir().join("copies"), name);
    copy.configure(BEATS);
    copy_state(&node.state, &copy.state);
    copy
}

/// The very files, as a machine that was cloned has them: what they write goes to the same place.
fn copy_hooks(node: &Musterd, copy: &Musterd) {
    for entry in fs::read_dir(&node.hooks)
        .expect("the hooks can be listed")
        .flatten()
    {
        fs::copy(entry.path(), copy.hooks.join(entry.file_name())).expect("a hook can be copied");
    }
}

fn copy_state(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory can be made");
    for entry in fs::read_dir(from).expect("the state can be listed").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_state(&entry.path(), &target);
        } else if entry.path().is_file() {
            // Not the socket at which the daemon is asked.
            fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

/// Waits until the daemon gives up as one that is not what it says.
async fn is_refused(copy: &mut Musterd) {
    let status = copy.daemon().end().await;
    assert_eq!(status.code(), Some(4), "{}", copy.log());
    assert!(copy.log().contains("musterd enroll --force"), "{}", copy.log());
    copy.kill9();
}

async fn warning(world: &World, node: NodeId) -> Option<String> {
    let summary: NodeSummary = world
        .operator
        .get(&format!("/v1/nodes/{node}"))
        .await
        .expect(200)
        .json();
    summary.warning
}

async fn audited(world: &World, relation: &str) -> usize {
    let said = world
        .operator
        .muster(&["audit", "list", "-o", "json"])
        .await
        .expect(0);
    said.stdout.matches(&format!("\"{relation}\"")).count()
}

const COUNT_BESIDE: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/counted\n";
const COUNT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_runs_beside_its_node_is_found_out_and_runs_nothing() {
    let world = World::new().await;
    let mut node = world.node("n1").config(BEATS).hook("count", COUNT).start().await;
    let mut copy = copy_of(&world, &node, "copy");
    copy_hooks(&node, &copy);
    copy.launch();
    until("control hears of the copy", async || {
        copy.log().contains("musterd is up").then_some(())
    })
    .await;
    let execution = world.dispatch(on_node("count", node.id)).await;
    is_refused(&mut copy).await;

    let settled = world.settled(execution.id).await;
    assert_eq!(
        target(&settled, node.id).status,
        Status::Succeeded,
        "{settled:#?}"
    );
    assert_eq!(node.trace_lines("ran"), [execution.id.to_string()]);
    let summary = node.known(async |summary| summary.connected).await;
    let told = summary.warning.expect("an operator is told");
    assert!(
        told.contains("was refused") && told.contains("rotate-key"),
        "{told}"
    );
    let listed = world.operator.muster(&["nodes"]).await.expect(0);
    assert!(listed.stdout.contains("connected (warning)"), "{}", listed.stdout);
    assert_eq!(audited(&world, "node.cloned").await, 1);

    // It does not try again: nobody is disturbed by its restarts.
    let streams = node.log().matches("The event stream is open").count();
    copy.launch();
    is_refused(&mut copy).await;
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );
    assert_eq!(node.log().matches("The event stream is open").count(), streams);

    // A new key makes the copied one worthless, and the warning is done with.
    let old = nsk(&node);
    ask(&world, &node.id.to_string()).await;
    let _ = changed(&mut node, &old).await;
    assert_eq!(warning(&world, node.id).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_when_a_node_was_copied_is_run_by_one_of_the_two() {
    let world = World::new().await;
    let to_be = world.node("n1").config(BEATS).hook("count", COUNT_BESIDE);
    let (mut node, running) = to_be.at_work().await;
    let waits = world.dispatch(on_node("count", node.id)).await;
    until("the node has taken it", async || {
        let now = world.operator.execution(waits.id).await;
        (target(&now, node.id).status == Status::Ack).then_some(())
    })
    .await;
    node.kill9();
    fs::write(node.dir.join("go"), "").expect("the hook can be let go");
    let runs = node.state.join("runs");
    until("the hook's end is on record", async || {
        let run = fs::read_dir(&runs).expect("it ran").flatten().next()?;
        run.path().join("exit.json").exists().then_some(())
    })
    .await;

    // Both know that it is next. The first that control hears of is the node.
    let mut copy = copy_of(&world, &node, "copy");
    copy_hooks(&node, &copy);
    copy.launch();
    for execution in [running.id, waits.id] {
        let settled = world.settled(execution).await;
        assert_eq!(
            target(&settled, node.id).status,
            Status::Succeeded,
            "{settled:#?}"
        );
    }
    node.launch();
    is_refused(&mut node).await;
    assert_eq!(
        node.trace_lines("counted"),
        [waits.id.to_string()],
        "{}",
        node.log()
    );
    copy.kill9();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_missed_a_restart_of_its_node_is_refused_once_its_node_is_heard() {
    let world = World::new().await;
    let mut node = world.node("n1").config(BEATS).start().await;
    let mut copy = copy_of(&world, &node, "copy");
    node.restart().await;
    // Control knows of a stream a moment before its node says so.
    let opened = |node: &Node| node.log().matches("The event stream is open").count();
    until("both of its streams are in its log", async || {
        (opened(&node) == 2).then_some(())
    })
    .await;
    copy.launch();
    is_refused(&mut copy).await;
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );
    assert_eq!(opened(&node), 2, "the node was disturbed");
    assert!(warning(&world, node.id).await.is_some());
    node.restart().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_state_directory_is_let_in_when_nobody_else_is_there_and_said() {
    let mut world = World::new().await;
    let mut node = world.node("n1").config(BEATS).start().await;
    let _ = node.stop().await;
    let backup = node.dir.join("backup");
    copy_state(&node.state, &backup);
    node.start().await;
    let _ = node.stop().await;
    let _ = world.stop().await;
    world.alter(&format!(
        "UPDATE node SET last_seen_at = {}",
        world.database().at(1)
    ));
    world.start().await;
    fs::remove_dir_all(&node.state).expect("the state can be removed");
    copy_state(&backup, &node.state);
    node.start().await;
    let told = warning(&world, node.id).await.expect("an operator is told");
    assert!(told.contains("restored"), "{told}");
    assert_eq!(audited(&world, "node.restored").await, 1);
    assert_eq!(
        world.run(on_node("ping", node.id)).await.status,
        Status::Succeeded
    );
    node.restart().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_daemon_is_let_in_beside_what_is_left_of_its_old_connection() {
    let world = World::new().await;
    let bare = BareNode::enroll(&world, "n=1").await;
    bare.declare(&[]).await;
    let [first, second] =
        [(); 2].map(|()| uuid::Builder::from_random_bytes(muster_tests::chance()).into_uuid());
    let stream = async |instance: uuid::Uuid, before: &str| {
        let request = bare
            .request(Method::GET, &format!("/v1/nodes/{}/events", bare.id))
            .header(INSTANCE_HEADER, instance.to_string());
        let response = request
            .header(INSTANCES_BEFORE_HEADER, before)
            .send()
            .await
            .expect("control answers");
        assert_eq!(response.status(), 200);
        muster_tests::sse::Frames::of(response)
    };
    let mut old = stream(first, "").await;
    let mut new = stream(second, &first.to_string()).await;
    let execution = world.dispatch(on_node("ping", bare.id)).await;
    let request = bare.next_request(&mut new).await;
    assert_eq!(request.execution_id, execution.id);
    assert!(
        old.next().await.is_none(),
        "the old stream has ended, and brought nothing"
    );
    assert_eq!(
        warning(&world, bare.id).await,
        None,
        "a restart is nothing to be told of"
    );
    world.leave_open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_called_otherwise_is_told_and_locked_out_by_nobody() {
    let world = World::new().await;
    let bare = BareNode::enroll(&world, "n=1").await;
    let beat = async |hostname: &str, machine_id: &str| {
        let body = json!({"client_now": muster_shared::time::Timestamp::now(), "binary_checksum": "AAAA",
            "binary_version": "0", "nat_summary": {}, "hostname": hostname, "machine_id": machine_id});
        let path = format!("/v1/nodes/{}/heartbeat", bare.id);
        let _ = Answer::to(bare.request(Method::POST, &path).json(&body))
            .await
            .expect(200);
    };
    let shown = async || {
        let said = world
            .operator
            .muster(&["node", "show", &bare.id.to_string()])
            .await;
        said.expect(0).stdout
    };
    beat("bare", "one").await;
    beat("renamed", "one").await;
    assert!(shown().await.contains("renamed"), "{}", shown().await);
    beat("renamed", "two").await;
    let text = shown().await;
    assert!(text.contains("machine-id was one, and is two"), "{text}");
    let before = audited(&world, "node.machine_changed").await;
    beat("renamed", "two").await;
    assert_eq!(audited(&world, "node.machine_changed").await, before, "told once");
}

// ---- enrolled anew

/// Enrols a machine that is enrolled already.
async fn enroll_anew(world: &World, musterd: &Musterd, labels: &str) -> NodeId {
    let token = world.bootstrap_token(labels).await;
    let file = musterd.dir.join("another-token");
    fs::write(&file, token).expect("the token can be written");
    let mut command = tokio::process::Command::from(musterd.command("enroll"));
    command
        .args(["--force", "-o", "json", "--server", &world.operator.server])
        .arg("--token-file")
        .arg(file)
        .arg("--ca-file")
        .arg(&world.operator.ca_file);
    let said = muster_tests::operator::said_by(command).await.expect(0).json();
    said["node_id"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .expect("it is a node")
}

async fn connected(world: &World, id: NodeId) -> NodeSummary {
    until("the node that was enrolled anew is there", async || {
        let answer = world.operator.get(&format!("/v1/nodes/{id}")).await.expect(200);
        let summary: NodeSummary = answer.json();
        (summary.connected && !summary.actions.is_empty()).then_some(summary)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn work_queued_for_an_earlier_enrolment_is_not_run() {
    let world = World::new().await;
    let mut node = world.node("n1").config(BEATS).hook("count", COUNT).start().await;
    let done = world.run(on_node("count", node.id)).await;
    let _ = node.stop().await;
    let queued = world.dispatch(on_node("count", node.id)).await;

    let refused = node
        .try_enroll(&world.operator.server, "mbt_any", &world.operator.ca_file)
        .await
        .expect(4);
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    let earlier = node.id;
    let anew = enroll_anew(&world, &node, "role=anew").await;
    assert_ne!(anew, earlier);
    node.launch();
    let _ = connected(&world, anew).await;
    let fresh = world.run(on_node("count", anew)).await;
    assert_eq!(fresh.status, Status::Succeeded);
    assert_eq!(
        node.trace_lines("ran"),
        [done.id.to_string(), fresh.id.to_string()],
        "what was queued for the earlier enrolment ran"
    );

    let _ = world
        .operator
        .muster(&["node", "rm", &earlier.to_string()])
        .await
        .expect(0);
    let settled = world.settled(queued.id).await;
    let ended = target(&settled, earlier);
    assert_eq!(ended.status, Status::Cancelled);
    assert!(
        ended
            .error
            .as_deref()
            .is_some_and(|why| why.contains("taken out of service")),
        "{ended:#?}"
    );
    assert_eq!(node.trace_lines("ran").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_enrolled_anew_is_a_node_of_its_own() {
    let world = World::new().await;
    let mut node = world.node("n1").config(BEATS).start().await;
    let mut copy = copy_of(&world, &node, "copy");
    copy.launch();
    is_refused(&mut copy).await;
    let anew = enroll_anew(&world, &copy, "role=anew").await;
    copy.launch();
    let _ = connected(&world, anew).await;
    for id in [node.id, anew] {
        assert_eq!(world.run(on_node("ping", id)).await.status, Status::Succeeded);
    }
    let _ = node.known(async |summary| summary.connected).await;
    assert!(copy.daemon().ended().is_none(), "{}", copy.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_secret_of_an_earlier_enrolment_is_kept() {
    const SECRET: &str = "correct-horse-battery";
    let world = World::new().await;
    let mut node = world
        .node("n1")
        .config(BEATS)
        .hook("patient", PATIENT)
        .start()
        .await;
    let mut ask = on_node("patient", node.id);
    ask["parameters"] = json!({ "word": SECRET });
    let running = world.dispatch(ask).await;
    until("the hook runs", async || {
        (!node.trace("ran").is_empty()).then_some(())
    })
    .await;
    node.kill9();
    let old = nsk(&node);
    // It ends while nobody is there to hear of it.
    fs::write(node.dir.join("go"), "").expect("the hook can be let go");
    let runs = node.state.join("runs");
    until("the hook's end is on record", async || {
        let run = fs::read_dir(&runs).expect("it ran").flatten().next()?;
        run.path().join("exit.json").exists().then_some(())
    })
    .await;
    assert!(holds(&node.state, SECRET), "the journal knows what was asked");

    let anew = enroll_anew(&world, &node, "role=anew").await;
    assert!(!holds(&node.state, SECRET), "a parameter is left");
    assert!(!holds(&node.state, &old), "a key is left");
    node.launch();
    let _ = connected(&world, anew).await;
    world.leave_open();
    assert!(!world.operator.execution(running.id).await.status.is_terminal());
}

/// Whether any file below has the text.
fn holds(dir: &Path, text: &str) -> bool {
    fs::read_dir(dir)
        .expect("the directory can be listed")
        .flatten()
        .any(|entry| {
            let path = entry.path();
            if path.is_dir() {
                holds(&path, text)
            } else {
                let bytes = fs::read(&path).unwrap_or_default();
                bytes.windows(text.len()).any(|window| window == text.as_bytes())
            }
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_on_which_a_hook_runs_is_not_enrolled_anew() {
    let world = World::new().await;
    let (mut node, running) = world.node("n1").config(BEATS).at_work().await;
    node.kill9();
    let token = world.bootstrap_token("role=anew").await;
    let file = node.dir.join("another-token");
    fs::write(&file, token).expect("the token can be written");
    let mut command = tokio::process::Command::from(node.command("enroll"));
    command
        .args(["--force", "--server", &world.operator.server, "--token-file"])
        .arg(file)
        .arg("--ca-file")
        .arg(&world.operator.ca_file);
    let said = muster_tests::operator::said_by(command).await.expect(4);
    assert!(said.stderr.contains("still runs"), "{}", said.stderr);
    fs::write(node.dir.join("go"), "").expect("the hook can be let go");
    node.start().await;
    assert_eq!(world.settled(running.id).await.status, Status::Succeeded);
}
