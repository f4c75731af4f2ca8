//! `musterd` as the admin of a machine uses it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use muster_tests::{
    daemon::{Daemon, supervisors_under},
    prelude::*,
    world::{on_node, target},
};
use rustix::process::Signal;

/// Runs until the story lets it go.
const HOLD: &str =
    "#!/bin/sh\necho $$ > @DIR@/holds\nuntil [ -e @DIR@/go ]; do sleep 0.05; done\necho held\n";
const QUICK: &str = "#!/bin/sh\necho quick\n";

fn changes(affinity: &str) -> String {
    format!("[action]\naffinity = [\"{affinity}\"]\n")
}

fn found<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list of findings");
    findings
        .iter()
        .find(|finding| finding["check"] == check)
        .unwrap_or_else(|| panic!("no finding of {check} in {report:#}"))
}

fn nothing_of_local_runs(node: &Musterd) -> bool {
    fs::read_dir(node.state.join("local")).is_ok_and(|entries| entries.count() == 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_what_runs_and_what_waits_for_what_with_and_without_a_daemon() {
    let control = FakeControl::new().await;
    let mut node = control
        .start_node(|node| {
            node.install_hook("hold", HOLD);
            node.install_manifest("hold", &changes("db:main"));
            node.install_hook("quick", QUICK);
            node.install_manifest("quick", &changes("db"));
        })
        .await;
    let hold = control.hook_request("hold", node.hook_digest("hold"));
    let quick = control.hook_request("quick", node.hook_digest("quick"));
    control.push(&hold);
    until("the hook runs", async || {
        (!node.trace("holds").is_empty()).then_some(())
    })
    .await;
    control.push(&quick);
    let status = until("it waits", async || {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        (status["waiting"] != json!([])).then_some(status)
    })
    .await;
    assert_eq!(status["daemon"]["state"], "running");
    assert_eq!(status["daemon"]["pid"], json!(node.daemon().pid()));
    assert_eq!(status["node"]["node_id"], json!(control.node_id()));
    assert_eq!(status["link"]["connected"], json!(true));
    assert!(status["journal"]["bytes"].as_u64().unwrap() > 0);
    let running = &status["running"][0];
    assert_eq!(
        (&running["action"], &running["execution_id"]),
        (&json!("hold"), &json!(hold.execution_id))
    );
    assert_eq!(running["pid"].to_string(), node.trace("holds").trim());
    assert!(running["since"].is_string(), "{running}");
    let waiting = &status["waiting"][0];
    assert_eq!(
        (&waiting["action"], &waiting["position"]),
        (&json!("quick"), &json!(1))
    );
    assert_eq!(waiting["all_slots_taken"], json!(false));
    assert_eq!(
        waiting["behind"],
        json!([{"execution_id": hold.execution_id, "action": "hold", "affinity": ["db"]}])
    );
    let text = node.tool(&["status"]).await.expect(0).stdout;
    for words in ["connected for", "1 of 8", "1 of 64", "both change db"] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }

    // A local run keeps out of the way of what runs, unless its admin knows better.
    let said = node.tool(&["run-local", "quick"]).await.expect(126);
    assert!(
        said.stdout.is_empty() && said.stderr.contains("not_beside: the daemon runs hold"),
        "{}",
        said.stderr
    );
    let builtin = ["run-local", "services.restart", "-p", "unit=none.service"];
    let said = node.tool(&builtin).await.expect(126);
    assert!(said.stderr.contains("not_beside"), "{}", said.stderr);
    let said = node.tool(&["run-local", "quick", "--beside"]).await.expect(0);
    assert_eq!(said.stdout, "quick\n");

    node.kill9();
    let down = node.tool(&["status", "-o", "json"]).await.expect(9).json();
    assert_eq!(down["daemon"]["state"], "down");
    assert_eq!(down["link"], Value::Null);
    assert_eq!(
        down["running"][0]["pid"], running["pid"],
        "the hook lives on, and that is seen"
    );
    assert_eq!(
        (&down["waiting"][0]["action"], &down["waiting"][0]["position"]),
        (&json!("quick"), &Value::Null)
    );
    let text = node.tool(&["status"]).await.expect(9).stdout;
    assert!(
        text.contains("not running") && text.contains("runs on without a daemon"),
        "{text}"
    );

    control.launch(&mut node).await;
    fs::write(node.dir.join("go"), "").unwrap();
    for request in [&hold, &quick] {
        let outcome = control.outcome(request.execution_id).await;
        assert_eq!(outcome.status, Status::Succeeded, "{outcome:?}");
    }
    until("nothing is left", async || {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        let empty = |part: &str| status[part] == json!([]);
        (empty("running") && empty("waiting") && empty("untold")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_who_is_next_and_of_a_slot_that_is_kept() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.drop_in("slots.toml", "running_max = 2\n");
            node.install_hook("hold", HOLD);
            node.install_manifest("hold", &changes("db"));
            for name in ["db", "web"] {
                node.install_hook(name, format!("#!/bin/sh\necho {name} >> @DIR@/order\n"));
                node.install_manifest(name, &changes(name));
            }
        })
        .await;
    let hold = control.hook_request("hold", node.hook_digest("hold"));
    control.push(&hold);
    until("the hook runs", async || {
        (!node.trace("holds").is_empty()).then_some(())
    })
    .await;
    let requests = ["db", "db", "web"].map(|name| control.hook_request(name, node.hook_digest(name)));
    requests.iter().for_each(|request| control.push(request));
    let status = until("all wait", async || {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        (status["waiting"].as_array().is_some_and(|all| all.len() == 3)).then_some(status)
    })
    .await;
    let told: Vec<_> = status["waiting"].as_array().unwrap().iter().collect();
    let positions: Vec<_> = told
        .iter()
        .map(|one| (one["position"].as_u64().unwrap(), one["action"].as_str().unwrap()))
        .collect();
    assert_eq!(positions, [(1, "web"), (2, "db"), (3, "db")]);
    assert_eq!(
        (&told[0]["slot_kept_for"], &told[0]["behind"]),
        (&json!("read_only"), &json!([])),
        "it clashes with nothing, and waits all the same"
    );
    let text = node.tool(&["status"]).await.expect(0).stdout;
    let row = text.lines().find(|line| line.contains(" web ")).unwrap();
    assert!(
        row.ends_with("a slot that is not kept for what only looks (running_max)"),
        "{text}"
    );

    fs::write(node.dir.join("go"), "").unwrap();
    for request in requests.iter().chain([&hold]) {
        let outcome = control.outcome(request.execution_id).await;
        assert_eq!(outcome.status, Status::Succeeded, "{outcome:?}");
    }
    assert_eq!(node.trace("order"), "web\ndb\ndb\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_why_there_is_no_connection_and_what_is_not_told() {
    let mut world = World::new().await;
    let node = world.node("one").hook("hold", HOLD).start().await;
    let hold = world.dispatch(on_node("hold", node.id)).await;
    until("the hook runs", async || {
        (!node.trace("holds").is_empty()).then_some(())
    })
    .await;
    world.kill9();
    fs::write(node.dir.join("go"), "").unwrap();
    let status = until("the end is known and not told", async || {
        let said = node.tool(&["status", "-o", "json"]).await;
        let status = said.json();
        let lost = status["link"]["connected"] == json!(false) && status["untold"] != json!([]);
        lost.then(|| {
            let _ = said.expect(7);
            status
        })
    })
    .await;
    assert!(status["link"]["last_error"].is_string(), "{status:#}");
    assert_eq!(status["untold"][0]["execution_id"], json!(hold.id));
    assert_eq!(status["untold"][0]["status"], "succeeded");
    let text = node.tool(&["status"]).await.expect(7).stdout;
    assert!(
        text.contains("not connected for") && text.contains("NOT TOLD YET"),
        "{text}"
    );
    world.start().await;
    let settled = world.settled(hold.id).await;
    assert_eq!(target(&settled, node.id).status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_not_enrolled_is_told_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let node = Musterd::new(dir.path(), "fresh");
    let text = node.tool(&["status"]).await.expect(9).stdout;
    assert!(
        text.contains("not running") && text.contains("musterd enroll"),
        "{text}"
    );
    assert!(!node.state.exists(), "a look leaves nothing behind");
    node.install_hook("quick", QUICK);
    let said = node.tool(&["hooks", "trust", "quick"]).await.expect(4);
    assert!(said.stderr.contains("not enrolled"), "{}", said.stderr);
    let listed = node.tool(&["hooks", "list", "-o", "json"]).await.expect(0).json();
    assert_eq!(listed["hooks"][0]["verdict"], "uncatalogued");
    let report = node.tool(&["doctor", "-o", "json"]).await.expect(0).json();
    for check in ["enrolment", "control", "journal"] {
        assert_eq!(found(&report, check)["verdict"], "skip", "{report:#}");
    }
    assert_eq!(found(&report, "sealed memory")["verdict"], "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_are_listed_with_their_verdicts_and_checked_before_they_are_installed() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.install_hook("quick", QUICK);
            node.install_hook("other", QUICK);
            node.install_hook("ping", QUICK);
            node.configure("[policy]\ndeny = [\"other\"]\n");
        })
        .await;
    let pinned = node.hook_digest("quick");
    node.install_manifest("quick", "[action]\nread_only = true\n");
    let listed = node.tool(&["hooks", "list", "-o", "json"]).await.expect(0).json();
    let hook = |name: &str| {
        let hooks = listed["hooks"].as_array().unwrap();
        hooks.iter().find(|hook| hook["name"] == name).unwrap().clone()
    };
    assert_eq!(hook("quick")["verdict"], "drift");
    assert_eq!(hook("quick")["baseline"], json!(pinned));
    assert_eq!(hook("quick")["digest"], json!(node.hook_digest("quick")));
    assert_eq!(hook("other")["verdict"], "verified");
    assert!(hook("other")["denied"].as_str().unwrap().contains("policy.deny"));
    assert!(hook("ping")["refused"].as_str().unwrap().contains("builtin"));
    let text = node.tool(&["hooks", "list"]).await.expect(0).stdout;
    assert!(
        text.contains("read-only") && text.contains(&pinned.to_string()),
        "{text}"
    );

    // Beside the hooks directory, where its owner may be anybody and others may write.
    let draft = node.dir.join("draft");
    fs::create_dir(&draft).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o777)).unwrap();
    let file = draft.join("new");
    let path = file.to_str().unwrap();
    fs::write(&file, QUICK).unwrap();
    let check = async |words: &str, code: i32| {
        let said = node.tool(&["hooks", "check", path]).await.expect(code);
        assert!(said.stdout.contains(words), "{words} is not in\n{}", said.stdout);
    };
    check("chmod +x", 1).await;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    check("sha256:", 0).await;
    let manifest = draft.join("new.toml");
    fs::write(&manifest, "descripton = \"x\"\n").unwrap();
    check("new.toml, line 1", 1).await;
    fs::write(
        &manifest,
        "[parameters]\ntype = \"object\"\n[parameters.properties]\na-b = {}\na_b = {}\n",
    )
    .unwrap();
    check("a-b", 1).await;
    fs::write(&manifest, "user = \"nobody-of-that-name\"\n").unwrap();
    check("nobody-of-that-name", 1).await;
    fs::write(&manifest, "description = \"x\"\n").unwrap();
    check("Sound", 0).await;
    let said = node.tool(&["hooks", "check", "ping"]).await.expect(1);
    assert!(said.stdout.contains("builtin"), "{}", said.stdout);
    let _ = node.tool(&["hooks", "check", "absent"]).await.expect(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_hook_runs_and_one_that_was_not_meant_is_not_trusted() {
    let control = FakeControl::new().await;
    let mut node = control.start_node(|node| node.install_hook("quick", QUICK)).await;
    let old = node.hook_digest("quick");
    node.install_hook("quick", "#!/bin/sh\necho changed\n");
    let new = node.hook_digest("quick");
    let request = control.hook_request("quick", new);
    control.push(&request);
    let refused = control.outcome(request.execution_id).await;
    let local = node
        .tool(&["run-local", "quick", "-o", "json"])
        .await
        .expect(126)
        .json();
    assert_eq!(
        (refused.status, json!(refused.error)),
        (Status::Failed, local["error"].clone())
    );
    let words = local["error"].as_str().unwrap();
    assert!(words.starts_with("hook_integrity_violation: "), "{words}");

    let said = node
        .tool(&["hooks", "trust", "quick", "--digest", &old.to_string()])
        .await
        .expect(1);
    assert!(said.stderr.contains("nothing was pinned"), "{}", said.stderr);
    let trusted = node
        .tool(&[
            "hooks",
            "trust",
            "quick",
            "--digest",
            &new.to_string(),
            "-o",
            "json",
        ])
        .await
        .expect(0)
        .json();
    assert_eq!(
        (&trusted["digest"], &trusted["previous"]),
        (&json!(new), &json!(old))
    );
    let approve = trusted["approve_command"].as_str().unwrap();
    assert!(
        approve.starts_with(&format!("muster hooks approve quick --digest {new}")),
        "{approve}"
    );
    let request = control.hook_request("quick", new);
    control.push(&request);
    let outcome = control.outcome(request.execution_id).await;
    assert_eq!(outcome.status, Status::Succeeded, "{outcome:?}");

    // Also while no daemon holds the journal, and for good.
    let _ = node.stop().await;
    node.install_hook("quick", QUICK);
    let text = node.tool(&["hooks", "trust", "quick"]).await.expect(0).stdout;
    assert!(text.contains("Control has to approve it too"), "{text}");
    control.launch(&mut node).await;
    let request = control.hook_request("quick", old);
    control.push(&request);
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_run_goes_the_way_of_a_dispatch() {
    let world = World::new().await;
    let node = world
        .node("one")
        .hook("bytes", "#!/bin/sh\nprintf 'a\\377\\000b'; exit 7\n")
        .hook("count", "#!/bin/sh\ncat; echo \" $MUSTER_PARAM_N\"\n")
        .hook("denied", QUICK)
        .hook("drifts", QUICK)
        .config("[policy]\ndeny = [\"denied\"]\n")
        .prepare(|node| {
            node.install_manifest(
                "count",
                "[parameters]\ntype = \"object\"\nadditionalProperties = false\n[parameters.properties.n]\ntype = \"integer\"\n",
            );
        })
        .start()
        .await;
    let mut command = node.tool_command(&["run-local", "bytes"]);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    assert_eq!((ran.status.code(), &ran.stdout[..]), (Some(7), &b"a\xff\0b"[..]));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("failed: exit status 7"));

    let said = node.tool(&["run-local", "count", "-p", "n=3"]).await.expect(0);
    assert_eq!(said.stdout, "{\"n\":3} 3\n");
    let ping = node.tool(&["run-local", "ping"]).await.expect(0).json();
    assert_eq!((&ping["pong"], &ping["node_id"]), (&json!(true), &json!(node.id)));

    // What is refused is refused in the words that control shows.
    node.install_hook("drifts", "#!/bin/sh\necho other\n");
    for (action, parameter) in [
        ("denied", None),
        ("drifts", None),
        ("count", Some(("m", "1"))),
        ("absent", None),
    ] {
        let mut words = vec!["run-local", action, "-o", "json"];
        let typed = parameter.map(|(name, value)| format!("{name}={value}"));
        words.extend(typed.iter().flat_map(|typed| ["-p", typed.as_str()]));
        let local = node.tool(&words).await.expect(126).json();
        assert_eq!(local["status"], "failed");
        let local = local["error"].as_str().unwrap().to_owned();
        if action == "denied" {
            let dispatched = world.run(on_node(action, node.id)).await;
            assert_eq!(
                target(&dispatched, node.id).error.as_deref(),
                Some(local.as_str())
            );
        }
        let plain = node.tool(&words[..2]).await;
        assert_eq!(
            plain.stdout,
            if action == "count" { "{} \n" } else { "" },
            "{}",
            plain.stderr
        );
    }
    let said = node.tool(&["run-local", "absent"]).await.expect(126);
    assert!(said.stderr.contains("unknown_action"), "{}", said.stderr);
    assert!(nothing_of_local_runs(&node));
    let executions = node.tool(&["status", "-o", "json"]).await.expect(0).json();
    assert_eq!(executions["untold"], json!([]), "nothing of it is control's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_run_needs_no_enrolment_and_ends_with_whoever_started_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = Musterd::new(dir.path(), "fresh");
    node.install_hook("quick", QUICK);
    node.install_hook("sleeps", "#!/bin/sh\nexec sleep 600\n");
    // A child that hears nothing, in a session of its own: it has to be found, and killed.
    node.install_hook(
        "stubborn",
        "#!/bin/sh\nsetsid sh -c 'trap \"\" TERM; echo $$ > @DIR@/child; while :; do sleep 0.1; done' &\nwait\n",
    );
    node.configure("stop_grace_seconds = 1\n");
    assert_eq!(
        node.tool(&["run-local", "quick"]).await.expect(0).stdout,
        "quick\n"
    );
    let said = node
        .tool(&["run-local", "sleeps", "--timeout", "1s"])
        .await
        .expect(124);
    assert!(
        said.stderr.contains("timeout: ended after 1 s"),
        "{}",
        said.stderr
    );

    let mut running = Daemon::start(
        "musterd run-local",
        node.tool_command(&["run-local", "stubborn"]),
        &node.dir.join("local.log"),
    );
    let child = until("the child runs", async || {
        node.trace("child").trim().parse::<u32>().ok()
    })
    .await;
    running.signal(Signal::INT);
    let status = running.end().await;
    assert_eq!(status.code(), Some(130), "{}", running.log());
    assert!(running.log().contains("stopped on the node"), "{}", running.log());
    assert!(!fs::exists(format!("/proc/{child}")).unwrap(), "nobody is left");
    assert!(supervisors_under(dir.path()).is_empty());
    assert!(nothing_of_local_runs(&node));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_finds_a_healthy_node_healthy_and_names_what_is_wrong_with_another() {
    let mut world = World::new().await;
    let mut node = world.node("one").hook("quick", QUICK).start().await;
    let report = node.tool(&["doctor", "-o", "json"]).await.expect(0).json();
    for check in [
        "configuration",
        "enrolment",
        "daemon",
        "state",
        "journal",
        "hooks",
        "sealed memory",
        "dns",
        "tcp",
        "tls",
        "certificate",
        "key",
        "clock",
    ] {
        assert_eq!(found(&report, check)["verdict"], "ok", "{check} in {report:#}");
    }
    assert!(
        found(&report, "certificate")["finding"]
            .as_str()
            .unwrap()
            .contains("days")
    );

    // What is changed on the way is put back, so that each trouble stands alone.
    let _ = node.stop().await;
    let report = node.tool(&["doctor", "-o", "json"]).await.expect(0).json();
    assert_eq!(found(&report, "daemon")["verdict"], "warn");
    let trouble = async |check: &str, words: &str| {
        let said = node.tool(&["doctor", "-o", "json"]).await.expect(1);
        let report = said.json();
        let finding = found(&report, check);
        assert_eq!(finding["verdict"], "fail", "{report:#}");
        assert!(finding["finding"].as_str().unwrap().contains(words), "{finding}");
        assert!(finding["remedy"].is_string(), "{finding}");
    };
    let nsk = node.state.join("nsk");
    let key = fs::read(&nsk).unwrap();
    fs::write(&nsk, "another").unwrap();
    trouble("key", "401").await;
    fs::write(&nsk, key).unwrap();
    fs::set_permissions(&node.state, fs::Permissions::from_mode(0o777)).unwrap();
    trouble("state", "open to others").await;
    fs::set_permissions(&node.state, fs::Permissions::from_mode(0o700)).unwrap();
    node.drop_in("10.toml", "running_max = 0\n");
    trouble("configuration", "running_max").await;
    node.drop_in("10.toml", "");
    let ca = node.state.join("ca.pem");
    let pinned = fs::read(&ca).unwrap();
    let other = FakeControl::new().await;
    fs::copy(other.dir().join("ca.pem"), &ca).unwrap();
    trouble("tls", "UnknownIssuer").await;
    trouble("tls", "the server shows a certificate of \"CN=").await;
    fs::write(&ca, pinned).unwrap();
    // With its log, which may hold all of it.
    let journal = ["journal.db", "journal.db-wal", "journal.db-shm"].map(|name| node.state.join(name));
    let whole = journal.clone().map(|file| fs::read(file).ok());
    for file in &journal[1..] {
        let _ = fs::remove_file(file);
    }
    fs::write(
        &journal[0],
        "no database at all, and long enough to be taken for one ".repeat(40),
    )
    .unwrap();
    trouble("journal", "journal").await;
    for (file, bytes) in journal.iter().zip(whole) {
        match bytes {
            Some(bytes) => fs::write(file, bytes).unwrap(),
            None => drop(fs::remove_file(file)),
        }
    }
    let _ = world.stop().await;
    trouble("tcp", "no connection").await;
    let text = node.tool(&["doctor"]).await.expect(1).stdout;
    assert!(text.contains("FAIL  tcp") && text.contains("remedy: "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_command_line_is_told_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let node = Musterd::new(dir.path(), "fresh");
    for words in [
        &["run-local", "quick", "-p", "novalue"][..],
        &["run-local", "no name"],
        &["hooks", "trust", "quick", "--digest", "sha256:1"],
        &["status", "-o", "yaml"],
    ] {
        let said = node.tool(words).await.expect(2);
        assert!(said.stdout.is_empty() && !said.stderr.is_empty());
    }
    let said = node
        .tool(&["run-local", "quick", "--timeout", "2d"])
        .await
        .expect(1);
    assert!(said.stderr.contains("--timeout"), "{}", said.stderr);
    let mut help = Command::new(muster_tests::binaries::binary("musterd"));
    let help = help
        .args(["run-local", "--help"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("126 when this node refused"));
}
