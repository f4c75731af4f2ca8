//! What a node's own admin says comes before what control asks.

use muster_tests::{
    prelude::*,
    world::{on, on_node, target},
};
use rustix::process::Signal;

const COUNT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n";

fn error_of(execution: &Execution, node: NodeId) -> (Status, String) {
    let target = target(execution, node);
    (target.status, target.error.clone().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_action_is_told_at_once_with_its_rule_and_never_runs() {
    let world = World::new().await;
    let strict = world
        .node("strict")
        .labels("role=web")
        .hook("count", COUNT)
        .config("[policy]\ndeny = [\"facts\"]\n")
        .prepare(|node| node.drop_in("10-local.toml", "[policy]\ndeny = [\"c*\"]\n"))
        .start()
        .await;
    let open = world
        .node("open")
        .labels("role=web")
        .hook("count", COUNT)
        .start()
        .await;

    // Control knows of the denial and still asks: whoever dispatches is told by the node itself.
    let ran = world.run(on("count", "role=web")).await;
    let (status, error) = error_of(&ran, strict.id);
    assert_eq!(status, Status::Failed);
    assert!(
        error.starts_with("refused_by_policy: ")
            && error.contains("\"c*\"")
            && error.contains("10-local.toml"),
        "{error}"
    );
    assert_eq!(target(&ran, open.id).status, Status::Succeeded);
    assert_eq!((strict.trace("ran").len(), open.trace_lines("ran").len()), (0, 1));
    assert!(strict.log().contains("policy"), "the node's log tells of it too");
    let facts = world.run(on_node("facts", strict.id)).await;
    assert!(error_of(&facts, strict.id).1.contains("agent.toml"));
    assert_eq!(
        target(&world.run(on_node("ping", strict.id)).await, strict.id).status,
        Status::Succeeded
    );

    let shown = world
        .operator
        .muster(&["action", "show", "count", "-o", "json"])
        .await
        .expect(0)
        .json();
    let nodes = shown["items"].as_array().expect("a list of nodes");
    let by_id: Vec<&Value> = nodes.iter().filter(|node| !node["denied"].is_null()).collect();
    assert_eq!(by_id.len(), 1, "{shown}");
    assert_eq!(by_id[0]["node_id"], json!(strict.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allow_list_shuts_out_the_rest_and_builtins_can_be_turned_off() {
    let world = World::new().await;
    let listed = world
        .node("listed")
        .hook("count", COUNT)
        .hook("other", COUNT)
        .config("[policy]\nallow = [\"count\", \"ping\"]\n")
        .start()
        .await;
    let hooks_only = world
        .node("hooks-only")
        .hook("count", COUNT)
        .config("[policy]\nbuiltins = false\n")
        .start()
        .await;
    let nothing = world
        .node("nothing")
        .hook("count", COUNT)
        .config("[policy]\nallow = []\n")
        .start()
        .await;
    for (node, action, runs) in [
        (listed.id, "count", true),
        (listed.id, "ping", true),
        (listed.id, "other", false),
        (listed.id, "facts", false),
        (hooks_only.id, "count", true),
        (hooks_only.id, "ping", false),
        (nothing.id, "count", false),
        (nothing.id, "ping", false),
    ] {
        let (status, error) = error_of(&world.run(on_node(action, node)).await, node);
        assert_eq!(status == Status::Succeeded, runs, "{action}: {error}");
        assert_eq!(
            error.starts_with("refused_by_policy: "),
            !runs,
            "{action}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_takes_effect_and_a_bad_one_changes_nothing() {
    let world = World::new().await;
    let mut node = world.node("one").hook("count", COUNT).start().await;
    assert_eq!(
        target(&world.run(on_node("count", node.id)).await, node.id).status,
        Status::Succeeded
    );

    node.drop_in(
        "50.toml",
        "heartbeat_seconds = 20\n[policy]\ndeny = [\"count\"]\n",
    );
    let reloaded = world.run(on_node("agent.reload", node.id)).await;
    assert_eq!(target(&reloaded, node.id).status, Status::Succeeded);
    let said: Value = serde_json::from_slice(&world.operator.output(reloaded.id, node.id).await).unwrap();
    assert_eq!(said["at_next_start"], json!(["heartbeat_seconds"]));
    let refused = world.run(on_node("count", node.id)).await;
    assert!(error_of(&refused, node.id).1.starts_with("refused_by_policy: "));
    let _ = node
        .known(async |summary| {
            summary
                .actions
                .iter()
                .any(|a| a.name.as_str() == "count" && a.denied.is_some())
        })
        .await;

    node.drop_in("60.toml", "[policy]\ndenny = []\n");
    let bad = world.run(on_node("agent.reload", node.id)).await;
    let (status, error) = error_of(&bad, node.id);
    assert_eq!(status, Status::Failed);
    assert!(error.contains("60.toml") && error.contains("denny"), "{error}");
    assert!(node.log().contains("The configuration stays as it was"));
    let refused = world.run(on_node("count", node.id)).await;
    assert!(
        error_of(&refused, node.id).1.starts_with("refused_by_policy: "),
        "the old one holds"
    );

    node.drop_in("60.toml", "");
    node.drop_in("50.toml", "");
    node.daemon().signal(Signal::HUP);
    let _ = node
        .known(async |summary| {
            summary
                .actions
                .iter()
                .any(|a| a.name.as_str() == "count" && a.denied.is_none())
        })
        .await;
    assert_eq!(
        target(&world.run(on_node("count", node.id)).await, node.id).status,
        Status::Succeeded
    );
    assert_eq!(node.trace_lines("ran").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capped_timeout_is_said() {
    let world = World::new().await;
    let node = world
        .node("one")
        .hook("quick", "#!/bin/sh\necho done\n")
        .hook("long", "#!/bin/sh\nexec sleep 600\n")
        .config("[policy]\ntimeout_max_seconds = 1\n")
        .start()
        .await;
    let ran = world.run(on_node("quick", node.id)).await;
    let (status, error) = error_of(&ran, node.id);
    assert_eq!(status, Status::Succeeded);
    assert!(
        error.contains("timeout_capped: to 1 s instead of 300 s, by policy.timeout_max_seconds"),
        "{error}"
    );
    let (status, error) = error_of(&world.run(on_node("long", node.id)).await, node.id);
    assert_eq!(status, Status::Timeout);
    assert!(
        error.contains("ended after 1 s") && error.contains("timeout_capped"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_cannot_be_read_keeps_the_daemon_from_starting() {
    let world = World::new().await;
    let node = world.node("one").enrolled().await;
    node.drop_in("10.toml", "[policy]\nallow = [\"a b\"]\n");
    let said = tokio::task::spawn_blocking({
        let mut command = node.run_command();
        move || command.output().expect("musterd starts")
    })
    .await
    .unwrap();
    assert!(!said.status.success());
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        text.contains("10.toml") && text.contains("policy.allow"),
        "{text}"
    );
}
