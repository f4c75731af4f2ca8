//! What a node's own admin says comes before what control asks.

use muster_shared::time::Timestamp;
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

/// Hours of two hours around this moment, or of the two after it, by a clock that is this much ahead of UTC.
fn hours(open: bool, ahead: u64) -> String {
    let now = Timestamp::now().as_millis().unsigned_abs() / 60_000 + ahead * 60;
    let begin = if open { now - 60 } else { now + 60 };
    let clock = |minute: u64| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
    format!("{}-{}", clock(begin), clock(begin + 120))
}

fn rule(about: &str) -> String {
    format!("[[policy.rule]]\nname = \"the rule\"\n{about}\n")
}

/// Makes one rule the whole of a drop-in, and has the daemon read it.
async fn say(world: &World, node: &Node, about: &str) {
    node.drop_in("20-rule.toml", &rule(about));
    let reloaded = world.run(on_node("agent.reload", node.id)).await;
    assert_eq!(target(&reloaded, node.id).status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_holds_for_who_asks_for_it() {
    let world = World::new().await;
    let node = world.node("one").hook("count", COUNT).start().await;
    let ran = world.run(on_node("count", node.id)).await;
    let caller = ran.requested_by.clone();
    assert!(caller.starts_with("token:"), "{caller}");

    let about = |callers: &str| format!("actions = [\"c*\"]\ncallers.{callers}");
    for (callers, runs, words) in [
        (format!("allow = [\"{caller}\"]"), true, ""),
        (
            "allow = [\"user:*\"]".to_owned(),
            false,
            "callers.allow is not for token:",
        ),
        (
            "deny = [\"token:*\"]".to_owned(),
            false,
            "callers.deny \"token:*\" is for token:",
        ),
        ("deny = [\"user:*\"]".to_owned(), true, ""),
    ] {
        say(&world, &node, &about(&callers)).await;
        let (status, error) = error_of(&world.run(on_node("count", node.id)).await, node.id);
        assert_eq!(status == Status::Succeeded, runs, "{callers}: {error}");
        if !runs {
            assert!(
                error.starts_with("refused_by_policy: ")
                    && error.contains("policy.rule \"the rule\" in ")
                    && error.contains("20-rule.toml")
                    && error.contains(words),
                "{error}"
            );
        }
        // Other actions are none of its business.
        let ping = world.run(on_node("ping", node.id)).await;
        assert_eq!(target(&ping, node.id).status, Status::Succeeded);
    }
    assert_eq!(node.trace_lines("ran").len(), 3);

    // Whoever sits at the machine has a name of his own.
    let said = node.tool(&["run-local", "count"]).await.expect(0);
    assert!(!said.stderr.contains("refused"), "{}", said.stderr);
    node.drop_in("20-rule.toml", &rule("callers.allow = [\"token:*\"]"));
    let said = node.tool(&["run-local", "count"]).await.expect(126);
    assert!(
        said.stderr.contains("callers.allow is not for local"),
        "{}",
        said.stderr
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_that_does_not_say_who_asks_opens_no_rule_for_callers() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.install_hook("count", COUNT);
            node.configure(&rule("actions = [\"count\"]\ncallers.allow = [\"*\"]"));
        })
        .await;
    let older = control.hook_request("count", node.hook_digest("count"));
    assert_eq!(older.requested_by, None);
    control.push(&older);
    let ended = control.outcome(older.execution_id).await;
    let error = ended.error.unwrap_or_default();
    assert_eq!(ended.status, Status::Failed);
    assert!(
        error.starts_with("refused_by_policy: ") && error.contains("does not say yet who asked"),
        "{error}"
    );
    let newer = ActionRequest {
        requested_by: Some("user:ann".to_owned()),
        ..control.hook_request("count", node.hook_digest("count"))
    };
    control.push(&newer);
    assert_eq!(
        control.outcome(newer.execution_id).await.status,
        Status::Succeeded
    );
    assert_eq!(node.trace_lines("ran").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_opens_an_action_at_its_hours_and_everybody_is_told_of_it() {
    let world = World::new().await;
    let mut node = world
        .node("one")
        .hook("count", COUNT)
        .prepare(|node| {
            node.set_variable("TZ", "EAST-05:00");
            let shut = format!("actions = [\"count\"]\nhours.allow = [\"{}\"]", hours(false, 5));
            node.configure(&rule(&shut));
        })
        .start()
        .await;
    let (status, error) = error_of(&world.run(on_node("count", node.id)).await, node.id);
    assert_eq!(status, Status::Failed);
    assert!(
        error.starts_with("refused_by_policy: ")
            && error.contains("policy.rule \"the rule\" in ")
            && error.contains("hours.allow is not for ")
            && error.contains(" here, "),
        "{error}"
    );
    assert!(
        node.log()
            .contains("Control asks for what the node's own policy forbids")
    );

    // The admin of the machine is told the same by every way, and whoever dispatches of no denial that passes by itself.
    let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
    assert_eq!(status["policy"][0]["denies_now"], true, "{status}");
    let text = node.tool(&["status"]).await.expect(0).stdout;
    assert!(
        text.contains("rule \"the rule\"") && text.contains("denied by its hours"),
        "{text}"
    );
    let report = node.tool(&["doctor", "-o", "json"]).await.json();
    let policy = |report: &Value| {
        let findings = report["findings"].as_array().expect("findings");
        let found = findings.iter().find(|finding| finding["check"] == "policy");
        found.expect("one of the policy").clone()
    };
    assert!(
        policy(&report)["finding"]
            .as_str()
            .unwrap()
            .contains("denied by its hours now"),
        "{report}"
    );
    let said = node.tool(&["run-local", "count"]).await.expect(126);
    assert!(said.stderr.contains("hours.allow is not for "), "{}", said.stderr);
    let known = node
        .known(async |summary| summary.actions.iter().any(|a| a.name.as_str() == "count"))
        .await;
    assert!(known.actions.iter().all(|action| action.denied.is_none()));
    assert_eq!(node.trace("ran"), "");

    // The files say another thing by now, and the daemon has not read them.
    let open = |ahead, utc: &str| {
        let hours = hours(true, ahead);
        format!("actions = [\"count\"]\nhours.allow = [\"{hours}{utc}\"]")
    };
    node.configure(&rule(&open(5, "")));
    let report = node.tool(&["doctor", "-o", "json"]).await.json();
    assert_eq!(policy(&report)["verdict"], "warn", "{report}");
    node.daemon().signal(Signal::HUP);
    until("the daemon goes by the new policy", async || {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        (status["policy"][0]["denies_now"] == false).then_some(())
    })
    .await;
    assert_eq!(
        target(&world.run(on_node("count", node.id)).await, node.id).status,
        Status::Succeeded
    );
    node.configure(&rule(&open(0, " UTC")));
    let reloaded = world.run(on_node("agent.reload", node.id)).await;
    assert_eq!(target(&reloaded, node.id).status, Status::Succeeded);
    assert_eq!(
        target(&world.run(on_node("count", node.id)).await, node.id).status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_judged_by_the_rules_when_its_turn_comes() {
    let world = World::new().await;
    let node = world
        .node("one")
        .hook("count", COUNT)
        .hook(
            "hold",
            "#!/bin/sh\ntouch @DIR@/held\nuntil [ -e @DIR@/go ]; do sleep 0.05; done\n",
        )
        .start()
        .await;
    let holding = world.dispatch(on_node("hold", node.id)).await;
    until("it holds", async || node.dir.join("held").exists().then_some(())).await;
    let waiting = world.dispatch(on_node("count", node.id)).await;
    until("it waits", async || {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        (status["waiting"][0]["action"] == "count").then_some(())
    })
    .await;
    say(
        &world,
        &node,
        "actions = [\"count\"]\nhours.deny = [\"00:00-24:00\"]",
    )
    .await;
    std::fs::write(node.dir.join("go"), "").expect("it is let go");
    let waited = world.settled(waiting.id).await;
    let (status, error) = error_of(&waited, node.id);
    assert_eq!(status, Status::Failed);
    assert!(error.contains("hours.deny \"00:00-24:00\" is for "), "{error}");
    assert_eq!(world.settled(holding.id).await.status, Status::Succeeded);
    assert_eq!(node.trace("ran"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_holds_for_the_digest_of_a_hook_and_control_shows_it() {
    let world = World::new().await;
    let mut node = world.node("one").hook("count", COUNT).start().await;
    let digest = node.hook_digest("count");
    say(&world, &node, &format!("digests.allow = [\"{digest}\"]")).await;
    assert_eq!(
        target(&world.run(on_node("count", node.id)).await, node.id).status,
        Status::Succeeded
    );
    say(&world, &node, &format!("digests.deny = [\"{digest}\"]")).await;
    let (status, error) = error_of(&world.run(on_node("count", node.id)).await, node.id);
    assert_eq!(status, Status::Failed);
    assert!(
        error.starts_with("refused_by_policy: ") && error.contains(&format!("is for {digest}")),
        "{error}"
    );
    let known = node
        .known(async |summary| {
            let count = summary.actions.iter().find(|a| a.name.as_str() == "count");
            count.is_some_and(|action| action.denied.is_some())
        })
        .await;
    assert!(
        known
            .actions
            .iter()
            .all(|a| a.name.as_str() == "count" || a.denied.is_none()),
        "builtins have no digest"
    );
    let listed = node.tool(&["hooks", "list"]).await.expect(0).stdout;
    assert!(listed.contains("denied by policy.rule \"the rule\""), "{listed}");
    assert_eq!(node.trace_lines("ran").len(), 1);
}
