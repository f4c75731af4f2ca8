//! One version beside the one before it: control first, nodes at any time. `make test-previous` runs these stories with the binaries
//! of the commit in `tests/previous`; else both are the present version, and what they ask has to hold of that, too.

use muster_tests::{
    binaries::{binary, previous},
    prelude::*,
    world::{PATIENT, on, on_node, target},
};

const HOOKS: [(&str, &str); 4] = [
    ("greet", "#!/bin/sh\necho \"hello $MUSTER_PARAM_WHO\"\n"),
    // Above what travels with the report.
    (
        "much",
        "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x\nexit 3\n",
    ),
    ("long", "#!/bin/sh\necho begun >> @DIR@/long\nsleep 600\n"),
    ("patient", PATIENT),
];

/// A dispatch, its outputs of both kinds, a cancel, a hook that changed and its approval, a key that changes.
async fn all_that_crosses_the_wire(world: &World, node: &mut Node) {
    let ran = world
        .run(json!({"action": "greet", "node_id": node.id, "parameters": {"who": "you"}}))
        .await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
    assert_eq!(world.operator.output(ran.id, node.id).await, b"hello you\n");

    let ran = world.run(on_node("much", node.id)).await;
    let target = target(&ran, node.id);
    assert_eq!(
        (target.status, target.exit_code),
        (Status::Failed, Some(3)),
        "{ran:#?}"
    );
    assert_eq!(world.operator.output(ran.id, node.id).await.len(), 100_000);

    let asked = world.run(on_node("facts", node.id)).await;
    assert_eq!(asked.status, Status::Succeeded, "{asked:#?}");

    let before = node.trace_lines("long").len();
    let long = world.dispatch(on_node("long", node.id)).await;
    until("the hook runs", async || {
        (node.trace_lines("long").len() > before).then_some(())
    })
    .await;
    let _ = world.operator.cancel(long.id).await;
    assert_eq!(world.settled(long.id).await.status, Status::Cancelled);

    let script = format!("#!/bin/sh\necho changed {}\n", node.trace_lines("long").len());
    node.replace_hook("greet", &script).await;
    let refused = world.operator.try_dispatch(&on_node("greet", node.id)).await;
    let _ = refused.refused(409, "hook_integrity_violation");
    let digest = node.hook_digest("greet").to_string();
    let approve = [
        "hooks",
        "approve",
        "greet",
        "--digest",
        &digest,
        "--node",
        &node.id.to_string(),
    ];
    let _ = world.operator.muster(&approve).await.expect(0);
    let ran = world.run(on_node("greet", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
    node.install_hook("greet", HOOKS[0].1);
    let digest = node.hook_digest("greet").to_string();
    node.known(async |summary| {
        summary
            .actions
            .iter()
            .any(|action| action.verdict == Some(Verdict::Drift))
    })
    .await;
    let approve = [
        "hooks",
        "approve",
        "greet",
        "--digest",
        &digest,
        "--node",
        &node.id.to_string(),
    ];
    let _ = world.operator.muster(&approve).await.expect(0);
}

fn with_hooks<'w>(world: &'w World, name: &str) -> muster_tests::world::NodeToBe<'w> {
    // Nothing here waits for half a minute until a heartbeat.
    let node = world.node(name).config("heartbeat_seconds = 1\n");
    HOOKS
        .iter()
        .fold(node, |node, (name, script)| node.hook(name, script))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_works_with_the_control_of_the_version_before() {
    let world = World::of_version(previous("muster-control")).await;
    let mut node = with_hooks(&world, "one").start().await;
    all_that_crosses_the_wire(&world, &mut node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_the_version_before_works_with_control() {
    let world = World::new().await;
    let mut node = with_hooks(&world, "one")
        .of_version(previous("musterd"))
        .start()
        .await;
    all_that_crosses_the_wire(&world, &mut node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_keeps_what_was_and_what_runs() {
    let mut world = World::of_version(previous("muster-control")).await;
    let mut node = with_hooks(&world, "one")
        .of_version(previous("musterd"))
        .start()
        .await;
    all_that_crosses_the_wire(&world, &mut node).await;
    let before = world.operator.executions().await;
    let large = world.run(on_node("much", node.id)).await;
    let running = world.dispatch(on_node("patient", node.id)).await;
    until("the hook runs", async || {
        (!node.trace("ran").is_empty()).then_some(())
    })
    .await;
    let waiting = world.dispatch(on("greet", "story-node=one")).await;

    // Control first. What was there before is there, and what runs and what waits goes on.
    let _ = world.stop().await;
    world.install_control(binary("muster-control"));
    world.start().await;
    let after = world.operator.executions().await;
    for execution in &before {
        let kept = after.iter().find(|kept| kept.id == execution.id);
        let kept = kept.unwrap_or_else(|| panic!("{} is gone", execution.id));
        assert_eq!(kept.status, execution.status, "{kept:#?}");
    }
    assert_eq!(world.operator.output(large.id, node.id).await.len(), 100_000);
    let _ = node.known(async |summary| summary.connected).await;

    // Then the node, while a hook runs.
    let _ = node.stop().await;
    node.install(binary("musterd"));
    node.start().await;
    assert_eq!(world.operator.execution(running.id).await.status, Status::Started);
    std::fs::write(node.dir.join("go"), "").expect("a file can be written");
    let ended = world.settled(running.id).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:#?}");
    assert_eq!(world.operator.output(running.id, node.id).await, b"done\n");
    assert_eq!(node.trace_lines("ran").len(), 1, "it ran twice");
    assert_eq!(world.settled(waiting.id).await.status, Status::Succeeded);
    all_that_crosses_the_wire(&world, &mut node).await;
}
