//! `muster` as people type it and as programs read it.

use std::os::unix::ffi::OsStrExt as _;

use muster_tests::{operator::said_by, prelude::*};

const OK: &str = "#!/bin/sh\necho \"hello ${MUSTER_PARAM_WHO:-nobody}\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn every_ending_has_its_own_exit_code() {
    let mut world = World::new().await;
    let mut good = world
        .node("good")
        .labels("role=web")
        .hook("mixed", OK)
        .hook("slow", "#!/bin/sh\nsleep 60\n");
    good = good.hook("changes", OK);
    let mut good = good.start().await;
    let _bad = world
        .node("bad")
        .labels("role=web")
        .hook("mixed", "#!/bin/sh\nexit 9\n")
        .start()
        .await;
    let muster = async |args: &[&str]| world.operator.muster(args).await;

    let _ = muster(&["run", "ping", "--all", "--wait"]).await.expect(0);
    let _ = muster(&["run", "ping", "-l", "role=web", "--wait"])
        .await
        .expect(0);
    let said = muster(&["run", "mixed", "-l", "role=web", "--wait"])
        .await
        .expect(3);
    assert!(said.stdout.contains('9') || said.stderr.contains('9'), "{said:?}");
    let _ = muster(&[
        "run",
        "slow",
        "-l",
        "story-node=good",
        "--timeout",
        "1s",
        "--wait",
    ])
    .await
    .expect(4);

    // Refused.
    let said = muster(&["run", "ping", "-l", "role in (", "--wait"])
        .await
        .expect(5);
    assert!(
        said.stderr.contains('^') || said.stderr.contains("byte"),
        "{}",
        said.stderr
    );
    let denied = world
        .operator
        .with_token("mop_wrong")
        .muster(&["nodes"])
        .await
        .expect(5);
    assert!(
        !denied.stderr.contains("mop_wrong"),
        "a secret is in the message: {}",
        denied.stderr
    );

    // Nobody.
    good.replace_hook("changes", "#!/bin/sh\necho changed\n").await;
    let said = muster(&["run", "changes", "-l", "story-node=good", "--wait"])
        .await
        .expect(6);
    assert!(
        said.stderr.contains("hook_integrity_violation"),
        "{}",
        said.stderr
    );
    let _ = muster(&["run", "no-such-hook", "--all"]).await.expect(6);
    let _ = muster(&["run", "ping", "-l", "role=nobody", "--wait"])
        .await
        .expect(6);

    // The command line.
    for wrong in [
        &["run", "ping"][..],
        &["run", "ping", "-l", "", "--wait"],
        &["run", "ping", "-l", "a=b", "--all"],
        &["run", "ping", "--all", "--timeout", "soon"],
        &["no-such-verb"],
        &["nodes", "-o", "no-such-format"],
    ] {
        let said = muster(wrong).await.expect(2);
        assert!(
            said.stdout.is_empty() && !said.stderr.is_empty(),
            "{wrong:?}: {said:?}"
        );
    }

    // The way there.
    let count = world.operator.executions().await.len();
    let _ = world.stop().await;
    let _ = world
        .operator
        .muster(&["run", "ping", "--all", "--wait"])
        .await
        .expect(7);
    world.start().await;
    assert_eq!(world.operator.executions().await.len(), count);
    let stranger = World::new().await;
    let mut distrust = stranger.operator.muster_command();
    distrust
        .env("MUSTER_CA_FILE", &world.operator.ca_file)
        .arg("nodes");
    let _ = said_by(distrust).await.expect(7);
}

#[tokio::test(flavor = "multi_thread")]
async fn json_goes_to_standard_output_alone_and_words_to_standard_error() {
    let world = World::new().await;
    let node = world
        .node("one")
        .labels("role=web")
        .hook("hello", OK)
        .start()
        .await;
    let muster = async |args: &[&str]| world.operator.muster(args).await.expect(0).json();

    let nodes = muster(&["nodes", "-o", "json"]).await;
    assert_eq!(nodes["items"][0]["id"], json!(node.id));
    assert_eq!(nodes["items"][0]["labels"]["role"], "web");
    let hooks = muster(&["hooks", "-o", "json"]).await;
    assert_eq!(hooks["items"][0]["verdict"], "verified");
    let ran = muster(&[
        "run",
        "hello",
        "-l",
        "role=web",
        "-p",
        "who=a;b $(c)",
        "--wait",
        "-o",
        "json",
    ])
    .await;
    assert_eq!(
        (&ran["status"], &ran["parameters"]["who"]),
        (&json!("succeeded"), &json!("a;b $(c)"))
    );
    let id = ran["id"].as_str().unwrap();
    let shown = muster(&["execution", "show", id, "-o", "json"]).await;
    assert_eq!(shown["targets"][0]["exit_code"], 0);
    let listed = muster(&["executions", "-o", "json"]).await;
    assert_eq!(listed["items"][0]["id"], json!(id));
    let token = muster(&[
        "tokens", "issue", "--labels", "a=b", "--uses", "2", "--ttl", "10m", "-o", "json",
    ])
    .await;
    assert_eq!((&token["uses"], &token["labels"]["a"]), (&json!(2), &json!("b")));
    let sent = muster(&["run", "ping", "--node", &node.id.to_string(), "-o", "json"]).await;
    let watched = muster(&["execution", "watch", sent["id"].as_str().unwrap(), "-o", "json"]).await;
    assert_eq!(watched["status"], "succeeded");

    let output = world
        .operator
        .muster(&["execution", "output", id, "--node", &node.id.to_string()])
        .await
        .expect(0);
    assert!(output.stdout.contains("hello a;b $(c)\n"), "{output:?}");
    let raw = world
        .operator
        .muster(&[
            "execution",
            "output",
            id,
            "--node",
            &node.id.to_string(),
            "-o",
            "raw",
        ])
        .await
        .expect(0);
    assert_eq!(raw.stdout, "hello a;b $(c)\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_for_people() {
    let mut world = World::new().await;
    let mut node = world
        .node("one")
        .labels("role=web")
        .hook("hello", OK)
        .start()
        .await;
    let table = async |world: &World, args: &[&str]| world.operator.muster(args).await.expect(0).stdout;

    let nodes = table(&world, &["nodes"]).await;
    assert!(
        nodes.lines().count() == 2 && nodes.contains("role=web"),
        "{nodes}"
    );
    assert!(
        !nodes.contains('\u{1b}'),
        "colour where there is no terminal: {nodes:?}"
    );
    let hooks = table(&world, &["hooks"]).await;
    assert!(hooks.contains("hello") && hooks.contains("verified"), "{hooks}");
    let ran = table(&world, &["run", "hello", "--all", "--wait"]).await;
    assert!(ran.contains("succeeded"), "{ran}");
    let executions = table(&world, &["executions"]).await;
    assert!(
        executions.contains("hello") && executions.contains("succeeded"),
        "{executions}"
    );

    node.replace_hook("hello", "#!/bin/sh\necho other\n").await;
    let hooks = table(&world, &["hooks"]).await;
    assert!(hooks.contains("drift"), "{hooks}");
    let digest = node.hook_digest("hello").to_string();
    let _ = table(
        &world,
        &["hooks", "approve", "hello", "--digest", &digest, "-l", "role=web"],
    )
    .await;
    let hooks = table(&world, &["hooks"]).await;
    assert!(hooks.contains("verified") && !hooks.contains("drift"), "{hooks}");
    let _ = table(&world, &["run", "hello", "--all", "--wait"]).await;

    let _ = table(
        &world,
        &["node", "label", &node.id.to_string(), "tier=1", "role-"],
    )
    .await;
    let labels = world.nodes("tier=1").await.remove(0).labels;
    assert!(!labels.contains_key("role"), "{labels:?}");

    // A watch goes on across a restart of control.
    node.install_hook(
        "wait",
        "#!/bin/sh\nwhile [ ! -e @DIR@/go ]; do sleep 0.05; done\n",
    );
    node.known(async |summary| summary.actions.iter().any(|a| a.name.as_str() == "wait"))
        .await;
    let mut waiting = world.operator.muster_command();
    waiting.args(["run", "wait", "--all", "--wait", "-o", "json"]);
    let waiting = tokio::spawn(said_by(waiting));
    until("it runs", async || {
        world
            .operator
            .executions()
            .await
            .iter()
            .any(|e| e.status == Status::Started)
            .then_some(())
    })
    .await;
    let _ = world.stop().await;
    world.start().await;
    std::fs::write(node.dir.join("go"), "").unwrap();
    let said = waiting.await.unwrap().expect(0);
    assert_eq!(said.json()["status"], "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_that_is_typed_is_the_one_that_is_asked() {
    let world = World::new().await;
    let muster = async |args: &[&str]| world.operator.muster(args).await;
    let gone = ["context", "set", "gone", "--server", "https://127.0.0.1:1"];
    let _ = muster(&gone).await.expect(0);
    // What is exported names a control that answers.
    let _ = muster(&["nodes"]).await.expect(0);
    let said = muster(&["--context", "gone", "nodes"]).await.expect(7);
    assert_eq!(said.stdout, "");

    let mut without_a_text = world.operator.muster_command();
    without_a_text
        .args(["nodes"])
        .env("MUSTER_PROJECT", std::ffi::OsStr::from_bytes(b"\xff"));
    let said = said_by(without_a_text).await.expect(2);
    assert!(
        said.stderr.contains("MUSTER_PROJECT is not UTF-8"),
        "{}",
        said.stderr
    );

    let _ = muster(&["context", "rm", "gone"]).await.expect(0);
    let said = muster(&["--context", "gone", "nodes"]).await.expect(2);
    assert!(said.stderr.contains("no context is named"), "{}", said.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_early_still_names_the_execution() {
    let world = World::new().await;
    let _node = world
        .node("one")
        .hook("slow", "#!/bin/sh\nsleep 60\n")
        .start()
        .await;
    let early = ["run", "slow", "--all", "--wait", "--wait-timeout", "1s", "-o"];
    let muster = async |format| {
        world
            .operator
            .muster(&[&early[..], &[format]].concat())
            .await
            .expect(8)
    };
    let said = muster("json").await;
    let id = said.json()["id"].as_str().expect("it has an id").to_owned();
    assert!(said.stderr.contains(&format!("execution watch {id}")), "{said:?}");
    assert_eq!(said.json()["targets"].as_array().map(Vec::len), Some(1));
    let named = muster("name").await;
    let id: ExecutionId = named.stdout.trim().parse().expect("an id alone");
    assert!(muster("table").await.stdout.is_empty());

    let mut command = world.operator.muster_command();
    command
        .args(["execution", "watch", &id.to_string(), "-o", "json"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("it starts");
    let mut told = child.stderr.take().expect("it is piped");
    let _ = tokio::io::AsyncReadExt::read_u8(&mut told)
        .await
        .expect("it tells what it sees");
    interrupt(&child);
    let ended = child.wait_with_output().await.expect("it ends");
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    let shown: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!(shown["id"], json!(id));
    for execution in world.operator.executions().await {
        let id = execution.id.to_string();
        let _ = world
            .operator
            .muster(&["execution", "cancel", &id])
            .await
            .expect(0);
        assert_eq!(world.settled(execution.id).await.status, Status::Cancelled);
    }
}

/// A program that takes a request and never answers it.
async fn silent() -> (String, tokio::sync::oneshot::Receiver<()>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let (asked, heard) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("somebody connects");
        let mut head = [0; 64];
        let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut head).await;
        let _ = asked.send(());
        std::future::pending::<()>().await;
    });
    (format!("http://127.0.0.1:{port}"), heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_interrupts_a_dispatch_is_told_that_it_may_have_been_made() {
    let world = World::new().await;
    let (server, heard) = silent().await;
    let mut command = world.operator.through(server).muster_command();
    command
        .args(["run", "ping", "--all", "--wait"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true);
    let child = command.spawn().expect("it starts");
    heard.await.expect("the dispatch is sent");
    interrupt(&child);
    let ended = child.wait_with_output().await.expect("it ends");
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(
        String::from_utf8_lossy(&ended.stderr),
        "muster: interrupted; it may have been dispatched all the same: muster executions --action ping --since 5m\n"
    );
}

/// Ctrl-C.
fn interrupt(child: &tokio::process::Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("an own child can be signalled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_is_given_or_said_to_be_missing_alike_for_one_node_and_for_many() {
    let world = World::new().await;
    let mut nodes = Vec::new();
    for name in ["one", "two"] {
        let node = world
            .node(name)
            .hook("mute", "#!/bin/sh\n")
            .hook("loud", "#!/bin/sh\nprintf 'a\\033[2Jb\\n'\n")
            .hook("slow", "#!/bin/sh\nsleep 60\n");
        nodes.push(node.start().await);
    }
    let muster = async |args: &[&str]| world.operator.muster(args).await;
    let dispatched = async |args: &[&str]| {
        let run = [&["run"], args, &["--all", "-o", "name"]].concat();
        muster(&run).await.expect(0).stdout.trim().to_owned()
    };
    let mute = dispatched(&["mute", "--wait"]).await;
    let id = nodes[0].id.to_string();
    let shown = muster(&["node", "show", &id, "-o", "name"]).await.expect(0);
    let name = shown.stdout.trim();

    let said = muster(&["execution", "output", &mute, "--node", &id])
        .await
        .expect(0);
    assert!(said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
    let said = muster(&["execution", "output", &mute]).await.expect(0);
    assert!(
        said.stdout.contains(&format!("==> {name} <==\n")) && said.stderr.is_empty(),
        "{said:?}"
    );
    let items = muster(&["execution", "output", &mute, "-o", "json"])
        .await
        .expect(0)
        .json()["items"]
        .take();
    assert_eq!(
        (items.as_array().map(Vec::len), &items[0]["output"]),
        (Some(2), &json!(""))
    );

    let slow = dispatched(&["slow"]).await;
    for args in [&["--node", &id][..], &[]] {
        let said = muster(&[&["execution", "output", &slow], args].concat())
            .await
            .expect(5);
        assert!(
            said.stdout.is_empty() && said.stderr.contains(&format!("{name}: it has not ended yet\n")),
            "{said:?}"
        );
    }
    let _ = muster(&["execution", "cancel", &slow, "--wait"]).await;

    let loud = dispatched(&["loud", "--wait"]).await;
    let said = muster(&["execution", "output", &loud, "--node", &id, "--range", "500-"])
        .await
        .expect(5);
    assert!(said.stderr.contains("its output has no such bytes"), "{said:?}");
    // A program gets every byte, and whoever looks at it no command to the terminal.
    let said = muster(&["execution", "output", &loud, "--node", &id])
        .await
        .expect(0);
    assert_eq!(said.stdout, "a\u{1b}[2Jb\n");
    let seen = on_a_terminal(&world, &format!("execution output {loud} --node {id}")).await;
    assert_eq!(seen, "a\\u{1b}[2Jb\r\n");
    let seen = on_a_terminal(&world, &format!("execution output {loud} --node {id} -o raw")).await;
    assert_eq!(seen, "a\u{1b}[2Jb\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_calls_its_hooks_commands_no_terminal() {
    let world = World::new().await;
    let node = world.node("one").hook("good", OK).start().await;
    node.install_hook("bad\u{1b}[2J\u{202e}", OK);
    for format in ["table", "name", "json"] {
        let said = until("the refusal is known", async || {
            let said = world.operator.muster(&["hooks", "-o", format]).await.expect(0);
            said.stdout.contains("bad").then_some(said)
        })
        .await;
        // JSON has its own escapes.
        let shown = if format == "json" {
            "bad\\u001b[2J\\u202e"
        } else {
            "bad\\u{1b}[2J\\u{202e}"
        };
        assert!(said.stdout.contains(shown), "{said:?}");
        assert!(said.stderr.contains("bad\\u{1b}[2J\\u{202e} on "), "{said:?}");
        let commands = |words: &str| words.contains(['\u{1b}', '\u{202e}']);
        assert!(!commands(&said.stdout) && !commands(&said.stderr), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_were_dropped_are_called_by_their_names() {
    let world = World::new().await;
    let _one = world.node("one").hook("first", OK).start().await;
    let two = world.node("two").hook("second", OK).start().await;
    let muster = async |args: &[&str]| world.operator.muster(args).await;
    let shown = muster(&["node", "show", &two.id.to_string(), "-o", "name"])
        .await
        .expect(0);
    let name = shown.stdout.trim();

    let dropped = format!("dropped 1 node: action_not_declared: {name}\n");
    for more in [&["--dry-run"][..], &["--wait"]] {
        let said = muster(&[&["run", "first", "--all"], more].concat())
            .await
            .expect(0);
        assert!(said.stderr.contains(&dropped), "{said:?}");
    }
    for more in [&["--dry-run"][..], &["--wait"]] {
        let said = muster(&[&["run", "first", "--all", "--expect", "2"], more].concat())
            .await
            .expect(5);
        assert!(said.stderr.contains(dropped.trim()), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_removed_by_its_whole_name_and_then_goes_by_its_id() {
    let world = World::new().await;
    let node = world.node("one").start().await;
    let id = node.id.to_string();
    let muster = async |args: &[&str]| world.operator.muster(args).await;
    let shown = muster(&["node", "show", &id[..13], "-o", "name"]).await.expect(0);
    let name = shown.stdout.trim();
    let _ = muster(&["run", "ping", "--node", name, "--wait"]).await.expect(0);

    let _ = muster(&["node", "rm", &id[..13]]).await.expect(5);
    let said = muster(&["node", "rm", name]).await.expect(0);
    assert_eq!(said.stderr, format!("decommissioned {name} ({id})\n"));
    let said = muster(&["executions", "--node", name]).await.expect(5);
    assert!(said.stderr.contains("removed nodes go by their id"), "{said:?}");
    let said = muster(&["executions", "--node", &id]).await.expect(0);
    assert!(said.stdout.contains("ping"), "{said:?}");
}

/// What a terminal is given, on which somebody runs `muster`.
async fn on_a_terminal(world: &World, args: &str) -> String {
    let muster = world.operator.muster_command();
    let mut terminal = tokio::process::Command::new("script");
    terminal.env_clear();
    for (name, value) in muster.as_std().get_envs() {
        terminal.env(name, value.unwrap_or_default());
    }
    let line = format!("{} {args}", muster.as_std().get_program().to_string_lossy());
    terminal.args(["-qec", &line, "/dev/null"]);
    muster_tests::operator::said_by(terminal).await.expect(0).stdout
}
