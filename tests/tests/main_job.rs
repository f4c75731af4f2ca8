//! The main job: dispatch by label, run on real nodes, see the truth.

use std::time::{Duration, Instant};

use muster_shared::labels::Labels;
use muster_tests::{
    prelude::*,
    world::{on, on_node, target},
};

const ECHO_NAME: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\nbasename @DIR@\n";

fn inline(execution: &Execution, node: NodeId) -> Vec<u8> {
    match &target(execution, node).output_ref {
        Some(OutputRef::Inline { inline_bytes }) => inline_bytes.0.clone(),
        other => panic!("no inline output: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_reaches_its_nodes_and_no_other() {
    let world = World::new().await;
    let web1 = world
        .node("web-1")
        .labels("role=web,zone=a")
        .hook("name", ECHO_NAME)
        .start()
        .await;
    let web2 = world
        .node("web-2")
        .labels("role=web,zone=b")
        .hook("name", ECHO_NAME)
        .start()
        .await;
    let db1 = world
        .node("db-1")
        .labels("role=db,zone=a")
        .hook("name", ECHO_NAME)
        .start()
        .await;

    let ran = world.run(on("name", "role=web")).await;
    assert_eq!(ran.status, Status::Succeeded);
    assert_eq!(ran.kind, ActionKind::Hook);
    assert_eq!(ran.targets.len(), 2);
    assert_eq!(inline(&ran, web1.id), b"web-1\n");
    assert_eq!(inline(&ran, web2.id), b"web-2\n");
    assert_eq!(target(&ran, web1.id).exit_code, Some(0));
    for node in [&web1, &web2] {
        assert_eq!(node.trace_lines("ran"), [ran.id.to_string()]);
    }
    assert_eq!(db1.trace("ran"), "");

    let ran = world.run(on("name", "zone in (a), role!=web")).await;
    assert_eq!(
        ran.targets.iter().map(|t| t.node_id).collect::<Vec<_>>(),
        [db1.id]
    );

    let ran = world.run(json!({"action": "ping", "all": true})).await;
    assert_eq!(
        (ran.status, ran.kind, ran.targets.len()),
        (Status::Succeeded, ActionKind::Builtin, 3)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_builtin_of_the_first_slice_answers() {
    let world = World::new().await;
    let node = world.node("n").hook("a-hook", "#!/bin/sh\n").start().await;
    for builtin in ["ping", "facts", "hooks.list", "disk.usage"] {
        let ran = world.run(on_node(builtin, node.id)).await;
        assert_eq!(
            (ran.status, ran.kind),
            (Status::Succeeded, ActionKind::Builtin),
            "{builtin}: {ran:#?}"
        );
    }
    let listed = world.run(on_node("hooks.list", node.id)).await;
    assert!(
        String::from_utf8(inline(&listed, node.id))
            .unwrap()
            .contains("a-hook")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_code_and_a_signal_are_reported_as_they_were() {
    let world = World::new().await;
    let node = world
        .node("n")
        .hook("three", "#!/bin/sh\necho out\necho err >&2\nexit 3\n")
        .hook("killed", "#!/bin/sh\nkill -9 $$\n")
        .start()
        .await;

    let ran = world.run(on_node("three", node.id)).await;
    let ended = target(&ran, node.id);
    assert_eq!(
        (ran.status, ended.status, ended.exit_code),
        (Status::Failed, Status::Failed, Some(3))
    );
    assert_eq!(inline(&ran, node.id), b"out\nerr\n");

    let ran = world.run(on_node("killed", node.id)).await;
    let ended = target(&ran, node.id);
    assert_eq!((ended.status, ended.exit_code), (Status::Failed, None));
    assert!(
        ended.error.as_ref().is_some_and(|e| e.contains("signal 9")),
        "{ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_error_keep_the_order_in_which_they_were_written() {
    let world = World::new().await;
    let script = "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do echo out$i; echo err$i >&2; done\n";
    let node = world.node("n").hook("both", script).start().await;
    let ran = world.run(on_node("both", node.id)).await;
    let expected: String = (1..10).map(|i| format!("out{i}\nerr{i}\n")).collect();
    assert_eq!(String::from_utf8(inline(&ran, node.id)).unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_is_no_text_comes_back_byte_for_byte() {
    let world = World::new().await;
    // Every byte there is, without a trailing newline.
    let octal: String = (0..=255).map(|byte| format!("\\{byte:03o}")).collect();
    let node = world
        .node("n")
        .hook("bytes", &format!("#!/bin/sh\nprintf '{octal}'\n"))
        .start()
        .await;
    let ran = world.run(on_node("bytes", node.id)).await;
    let expected: Vec<u8> = (0..=255).collect();
    assert_eq!(inline(&ran, node.id), expected);
    assert_eq!(world.operator.output(ran.id, node.id).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_reach_a_hook_untouched_and_never_a_shell() {
    let world = World::new().await;
    let script = "#!/bin/sh\ncat > @DIR@/stdin\nprintf '%s' \"$MUSTER_PARAM_TEXT\" > @DIR@/text\n\
                  printf '%s' \"$MUSTER_PARAM_COUNT\" > @DIR@/count\nenv > @DIR@/env\n";
    let node = world.node("n").hook("take", script).start().await;
    let nasty =
        "a;b $(touch @DIR@/pwned) `id` \"double\" 'single' \\ | & > < * ? ~ #\n second line \u{fc} \t end ";
    let nasty = nasty.replace("@DIR@", &node.dir.to_string_lossy());
    let parameters = json!({"text": nasty, "count": 7, "nested": {"deep": [1, null, true]}});

    let mut dispatch = on_node("take", node.id);
    dispatch["parameters"] = parameters.clone();
    let ran = world.run(dispatch).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
    assert_eq!(ran.parameters.map(Value::Object), Some(parameters.clone()));

    let on_stdin: Value = serde_json::from_str(&node.trace("stdin")).unwrap();
    assert_eq!(on_stdin, parameters);
    assert_eq!(node.trace("text"), nasty);
    assert_eq!(node.trace("count"), "7");
    assert!(!node.dir.join("pwned").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_finds_a_clean_environment_and_an_end_on_its_input() {
    let world = World::new().await;
    let script = "#!/bin/sh\ncat >/dev/null\nread line && echo \"got $line\"\nenv | sort\nls /proc/$$/fd | tr '\\n' ' '\n";
    let node = world.node("n").hook("look", script).start().await;
    let ran = world.run(on_node("look", node.id)).await;
    let seen = String::from_utf8(inline(&ran, node.id)).unwrap();
    assert!(!seen.contains("got "), "{seen}");
    assert!(
        seen.contains(&format!("MUSTER_EXECUTION_ID={}", ran.id)),
        "{seen}"
    );
    let nsk = std::fs::read_to_string(node.state.join("nsk")).unwrap();
    assert!(
        !seen.contains(nsk.trim()),
        "the node's key is in a hook's environment"
    );
    assert!(seen.contains("LANG=C.UTF-8"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_past_the_inline_limit_comes_back_from_the_store() {
    let world = World::new().await;
    let node = world
        .node("n")
        .hook("at", "#!/bin/sh\nhead -c 16384 /dev/zero | tr '\\0' x\n")
        .hook("past", "#!/bin/sh\nhead -c 16385 /dev/zero | tr '\\0' y\n")
        .start()
        .await;

    let ran = world.run(on_node("at", node.id)).await;
    assert!(inline(&ran, node.id) == [b'x'; 16384], "other bytes");

    let ran = world.run(on_node("past", node.id)).await;
    let expected = vec![b'y'; 16385];
    let ended = target(&ran, node.id);
    let Some(OutputRef::ObjectStore { key, sha256, .. }) = &ended.output_ref else {
        panic!("{ended:#?}")
    };
    assert_eq!(*key, output_key(ran.id, node.id));
    assert_eq!(*sha256, Digest::of(&expected));
    assert_eq!(ended.output_bytes, Some(16385));
    assert!(
        world.operator.output(ran.id, node.id).await == expected,
        "other bytes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn five_megabytes_of_noise_come_back_whole() {
    let world = World::new().await;
    let script = "#!/bin/sh\nhead -c 5242880 /dev/urandom > @DIR@/noise\ncat @DIR@/noise\nexit 4\n";
    let node = world.node("n").hook("noise", script).start().await;
    let ran = world.run(on_node("noise", node.id)).await;
    let ended = target(&ran, node.id);
    assert_eq!((ended.status, ended.exit_code), (Status::Failed, Some(4)));
    let expected = std::fs::read(node.dir.join("noise")).unwrap();
    assert_eq!(expected.len(), 5 << 20);
    let Some(OutputRef::ObjectStore { sha256, .. }) = &ended.output_ref else {
        panic!("{ended:#?}")
    };
    assert_eq!(*sha256, Digest::of(&expected));
    assert!(
        world.operator.output(ran.id, node.id).await == expected,
        "the bytes differ"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_nodes_output_limit_the_middle_is_cut_and_the_cut_is_said() {
    let world = World::new().await;
    let script = "#!/bin/sh\necho first\nhead -c 300000 /dev/zero | tr '\\0' m\necho last\n";
    let node = world
        .node("n")
        .config("output_bytes_max = 65536\n")
        .hook("flood", script)
        .start()
        .await;
    let ran = world.run(on_node("flood", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded);
    let kept = world.operator.output(ran.id, node.id).await;
    let told = target(&ran, node.id);
    assert!(told.output_truncated);
    assert_eq!(
        (told.output_bytes, told.output_total_bytes),
        (Some(kept.len() as u64), Some(300_011))
    );
    assert!(
        kept.starts_with(b"first\n") && kept.ends_with(b"last\n"),
        "{} bytes",
        kept.len()
    );
    assert!(kept.len() < 70_000, "{} bytes", kept.len());
    let text = String::from_utf8(kept).unwrap();
    let cut = text.find(|c: char| !"firstlam\n".contains(c));
    assert!(cut.is_some(), "nothing says that the middle is gone");
}

/// Processes of this machine whose command line has that text.
fn alive(mark: &str) -> usize {
    std::fs::read_dir("/proc")
        .expect("/proc is mounted")
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|cmdline| String::from_utf8_lossy(cmdline).replace('\0', " ").contains(mark))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_the_whole_tree_and_nothing_waits_for_open_pipes() {
    let world = World::new().await;
    // Distinct lengths tell these sleeps from any other on the machine.
    let [a, b, c] = muster_tests::chance::<3>().map(|byte| 100_000 + u32::from(byte) * 1000);
    let (a, b, c) = (a + 1, b + 2, c + 3);
    let script = format!(
        "#!/bin/sh\nsleep {a} &\nsetsid sleep {b} &\nsetsid sh -c 'trap \"\" TERM; sleep {c}; sleep {c}' &\n\
         echo started\nwait\n"
    );
    let node = world
        .node("n")
        .config("stop_grace_seconds = 1\n")
        .hook("tree", &script)
        .start()
        .await;

    let began = std::time::Instant::now();
    let mut dispatch = on_node("tree", node.id);
    dispatch["timeout_seconds"] = json!(2);
    let ran = world.run(dispatch).await;
    assert_eq!(ran.status, Status::Timeout, "{ran:#?}");
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(1900) && took < Duration::from_secs(20),
        "{took:?}"
    );
    until("no process of the hook is left", async || {
        [a, b, c]
            .iter()
            .all(|n| alive(&format!("sleep {n}")) == 0)
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_whose_output_a_stranger_holds_and_fills_is_told_as_it_ended() {
    let world = World::new().await;
    let script = "#!/bin/sh\necho first\necho $$ > @DIR@/pid\nwhile ! [ -e @DIR@/held ]; do sleep 0.05; done\nexit 3\n";
    let node = world
        .node("n")
        .config("output_bytes_max = 65536\n")
        .hook("held", script)
        .start()
        .await;
    let sent = world.dispatch(on_node("held", node.id)).await;
    let pid = until("the hook runs", async || {
        let said = std::fs::read_to_string(node.dir.join("pid")).ok()?;
        said.ends_with('\n').then(|| said.trim().to_owned())
    })
    .await;
    // As with a program that a service manager started for the hook, with its output: no process below the supervisor.
    let pipe = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/fd/1"))
        .expect("the hook has an output");
    let mut stranger = std::process::Command::new("yes")
        .stdout(pipe)
        .spawn()
        .expect("there is a yes");
    std::fs::write(node.dir.join("held"), "").expect("the directory is the story's own");
    let settled = world.settled(sent.id).await;
    // It lived as long as somebody read.
    assert!(!stranger.wait().expect("it was started here").success());
    assert_eq!(target(&settled, node.id).exit_code, Some(3), "{settled:#?}");
    let kept = world.operator.output(sent.id, node.id).await;
    assert!(kept.starts_with(b"first\n"), "{} bytes", kept.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_off_runs_what_it_missed_once_even_across_a_restart_of_control() {
    let mut world = World::new().await;
    let mut node = world.node("n").hook("name", ECHO_NAME).start().await;
    let _ = node.stop().await;

    let waiting = world.dispatch(on_node("name", node.id)).await;
    assert_eq!(waiting.status, Status::Pending);
    let _ = world.stop().await;
    world.start().await;
    assert_eq!(world.operator.execution(waiting.id).await.status, Status::Pending);

    node.start().await;
    let ran = world.settled(waiting.id).await;
    assert_eq!(ran.status, Status::Succeeded);
    node.restart().await;
    let again = world.run(on_node("name", node.id)).await;
    assert_eq!(
        node.trace_lines("ran"),
        [waiting.id.to_string(), again.id.to_string()]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_acknowledged_is_sent_again_after_a_while() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=silent").await;
    node.declare(&[]).await;
    let mut frames = node.stream().await;
    let begun = Instant::now();
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let first = node.next_request(&mut frames).await;
    let again = node.next_request(&mut frames).await;
    // Not at the next look, which may come in the same moment: who was handed it just now has it.
    assert!(begun.elapsed() > Duration::from_secs(14), "{:?}", begun.elapsed());
    assert_eq!((first.execution_id, again.execution_id), (sent.id, sent.id));
    // What is acknowledged is not.
    let _ = node.report(&again, &Callback::of(Status::Ack)).await.expect(200);
    let third = tokio::time::timeout(Duration::from_secs(32), node.next_request(&mut frames)).await;
    assert!(third.is_err());
    for status in [Status::Started, Status::Succeeded] {
        let exit_code = status.is_terminal().then_some(0);
        let callback = Callback {
            exit_code,
            ..Callback::of(status)
        };
        let _ = node.report(&again, &callback).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_never_comes_times_out_and_does_not_run_later() {
    let world = World::new().await;
    let mut node = world.node("n").hook("name", ECHO_NAME).start().await;
    let _ = node.stop().await;
    let mut dispatch = on_node("name", node.id);
    dispatch["timeout_seconds"] = json!(1);
    let ran = world.run(dispatch).await;
    assert_eq!(ran.status, Status::Timeout);

    node.start().await;
    let later = world.run(on_node("name", node.id)).await;
    assert_eq!(node.trace_lines("ran"), [later.id.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_survives_an_outage_of_control_and_a_restart_of_the_daemon() {
    let mut world = World::new().await;
    let script = "#!/bin/sh\ntouch @DIR@/begun\nwhile [ ! -e @DIR@/go ]; do sleep 0.05; done\necho kept\n";
    let mut node = world.node("n").hook("wait", script).start().await;
    let sent = world.dispatch(on_node("wait", node.id)).await;
    until("the hook runs", async || {
        node.dir.join("begun").exists().then_some(())
    })
    .await;

    world.kill9();
    node.kill9();
    std::fs::write(node.dir.join("go"), "").unwrap();
    until("the hook ends without anybody", async || {
        muster_tests::daemon::supervisors_under(&node.dir)
            .is_empty()
            .then_some(())
    })
    .await;
    world.start().await;
    node.start().await;
    let ran = world.settled(sent.id).await;
    assert_eq!(
        (ran.status, inline(&ran, node.id)),
        (Status::Succeeded, b"kept\n".to_vec()),
        "{ran:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_hook_outlives_a_polite_restart_of_its_daemon() {
    let world = World::new().await;
    let script =
        "#!/bin/sh\necho $$ >> @DIR@/begun\nwhile [ ! -e @DIR@/go ]; do sleep 0.05; done\necho kept\n";
    let mut node = world.node("n").hook("wait", script).start().await;
    let sent = world.dispatch(on_node("wait", node.id)).await;
    until("the hook runs", async || {
        node.dir.join("begun").exists().then_some(())
    })
    .await;

    node.restart().await;
    assert_eq!(world.operator.execution(sent.id).await.status, Status::Started);
    std::fs::write(node.dir.join("go"), "").unwrap();
    let ran = world.settled(sent.id).await;
    assert_eq!(
        (ran.status, inline(&ran, node.id)),
        (Status::Succeeded, b"kept\n".to_vec()),
        "{ran:#?}"
    );
    assert_eq!(node.trace_lines("begun").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_in_one_state_directory_is_refused() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let mut second = tokio::process::Command::from(node.run_command());
    second.kill_on_drop(true);
    let ended = tokio::time::timeout(Duration::from_secs(30), second.output())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        ended.status.code(),
        Some(5),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_timeline_tells_every_transition_in_order() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let path = world
        .operator
        .in_project(&format!("executions/{}/events", sent.id));
    let response = world
        .operator
        .request(reqwest::Method::GET, &path)
        .send()
        .await
        .unwrap();
    let mut frames = muster_tests::sse::Frames::of(response);
    let mut seen = Vec::new();
    let mut ids = Vec::new();
    loop {
        let frame = frames.next().await.expect("the stream ends with `settled`");
        if frame.event == "settled" {
            let settled: Execution = serde_json::from_str(&frame.data).unwrap();
            assert_eq!(settled.status, Status::Succeeded);
            break;
        }
        let event: TimelineEvent = serde_json::from_str(&frame.data).unwrap();
        assert_eq!((event.node_id, frame.id), (node.id, event.id.to_string()));
        seen.push(event.to);
        ids.push(event.id);
    }
    assert_eq!(frames.next().await, None);
    seen.retain(|status| *status != Status::Pending);
    assert_eq!(seen, [Status::Ack, Status::Started, Status::Succeeded]);
    assert!(ids.is_sorted());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_says_labels_of_itself_and_none_of_an_operators() {
    let world = World::new().await;
    let words = "[labels]\nrack = \"r7\"\nrole = \"db\"\nos = \"ours\"\n";
    let mut node = world.node("n").labels("role=web").config(words).start().await;
    let labels = async || {
        let path = format!("/v1/nodes/{}", node.id);
        let shown: NodeSummary = world.operator.get(&path).await.expect(200).json();
        shown.labels
    };
    let said = |labels: &Labels, key: &str| labels.get(key).cloned().unwrap_or_default();
    until("it has said them", async || {
        (said(&labels().await, "node/rack") == "r7").then_some(())
    })
    .await;
    let now = labels().await;
    assert_eq!(
        (said(&now, "role"), said(&now, "node/role")),
        ("web".into(), "db".into())
    );
    assert_eq!(
        said(&now, "node/os"),
        "ours",
        "its admin's word counts more than what was found"
    );
    assert_eq!(said(&now, "node/arch"), std::env::consts::ARCH);
    world
        .operator
        .try_dispatch(&on("ping", "role=db"))
        .await
        .refused(422, "selector_empty_cohort");
    let ran = world.run(on("ping", "node/rack=r7")).await;
    assert_eq!(ran.targets.len(), 1);

    let _ = node.stop().await;
    node.configure("[labels]\nrack = \"r8\"\n");
    node.launch();
    until("it says them anew", async || {
        let path = format!("/v1/nodes/{}", node.id);
        let shown: NodeSummary = world.operator.get(&path).await.expect(200).json();
        let labels = shown.labels;
        (said(&labels, "node/rack") == "r8" && !labels.contains_key("node/role")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_decide_where_the_next_dispatch_goes() {
    let world = World::new().await;
    let node = world.node("n").labels("role=web").start().await;
    let path = format!("/v1/nodes/{}/labels", node.id);
    let patch = json!({"set": {"role": "db", "tier": "1"}, "remove": []});
    let changed: NodeSummary = world.operator.patch(&path, &patch).await.expect(200).json();
    assert_eq!(changed.labels.get("role").map(String::as_str), Some("db"));
    world
        .operator
        .try_dispatch(&on("ping", "role=web"))
        .await
        .refused(422, "selector_empty_cohort");
    let ran = world.run(on("ping", "role=db,tier=1")).await;
    assert_eq!(ran.targets.len(), 1);
    let removed = json!({"remove": ["tier"]});
    let changed: NodeSummary = world.operator.patch(&path, &removed).await.expect(200).json();
    assert!(!changed.labels.contains_key("tier"));
}
