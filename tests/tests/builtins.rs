//! The actions that are compiled in, as an operator meets them.

use std::{fs, os::unix::fs::PermissionsExt as _};

use muster_tests::{
    FakeSystemd,
    fake_systemd::Starts,
    package_root::PackageRoot,
    prelude::*,
    world::{on_node, target},
};

fn with(action: &str, node: NodeId, parameters: Value) -> Value {
    let mut dispatch = on_node(action, node);
    dispatch["parameters"] = parameters;
    dispatch
}

/// Runs it to its end: how it ended there, and the document that it left.
async fn ask(world: &World, action: &str, node: NodeId, parameters: Value) -> (ExecutionTarget, Value) {
    let ran = world.run(with(action, node, parameters)).await;
    told(world, &ran, node).await
}

async fn told(world: &World, ran: &Execution, node: NodeId) -> (ExecutionTarget, Value) {
    let target = target(ran, node).clone();
    if target.output_ref.is_none() {
        return (target, Value::Null);
    }
    let output = world.operator.output(ran.id, node).await;
    let document = serde_json::from_slice(&output)
        .unwrap_or_else(|err| panic!("{err}: {}", String::from_utf8_lossy(&output)));
    (target, document)
}

fn error(target: &ExecutionTarget) -> &str {
    target.error.as_deref().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_builtin_is_declared_with_its_parameters_and_takes_no_other() {
    let control = FakeControl::new().await;
    let _musterd = control.start_node(|_| ()).await;
    let manifests = control.manifests();
    let declared = &manifests.last().unwrap().builtin_actions;
    let names: Vec<&str> = declared.iter().map(|builtin| builtin.name.as_str()).collect();
    for name in [
        "disk.usage",
        "facts",
        "file.digest",
        "file.read",
        "hooks.list",
        "journal.read",
        "packages.install",
        "packages.list",
        "packages.refresh",
        "packages.remove",
        "packages.upgrade",
        "ping",
        "processes.list",
        "reboot",
        "services.list",
        "services.reload",
        "services.restart",
        "services.start",
        "services.status",
        "services.stop",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for builtin in declared {
        let request = ActionRequest {
            parameters: json!({"no-such-parameter": 1}).as_object().cloned(),
            ..control.request(&builtin.name, ActionKind::Builtin)
        };
        control.push(&request);
        let outcome = control.outcome(request.execution_id).await;
        let error = outcome.error.unwrap_or_default();
        assert_eq!(outcome.status, Status::Failed, "{}", builtin.name);
        assert!(
            error.starts_with("invalid_parameters") && error.contains("no-such-parameter"),
            "{error}"
        );
    }
    let status = declared
        .iter()
        .find(|builtin| builtin.name == "services.status")
        .unwrap();
    assert!(status.parameters[0].required && status.parameters[0].kind.as_deref() == Some("string"));
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_are_listed_with_the_daemon_among_them() {
    let world = World::new().await;
    let mut node = world.node("n").start().await;
    let parameters = json!({"name": node.state.to_string_lossy(), "sort": "pid"});
    let (ended, list) = ask(&world, "processes.list", node.id, parameters).await;
    assert_eq!((ended.status, ended.exit_code), (Status::Succeeded, Some(0)));
    let pid = node.daemon().pid();
    let processes = list["processes"].as_array().unwrap();
    assert!(
        processes
            .iter()
            .any(|process| process["pid"] == pid && process["name"] == "musterd"),
        "{list}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_read_where_everybody_may_or_the_admin_says_so_and_a_key_never() {
    let world = World::new().await;
    let mut node = world.node("n").start().await;
    let (ended, file) = ask(&world, "file.read", node.id, json!({"path": "/etc/passwd"})).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");
    assert_eq!(
        file["content"].as_str(),
        fs::read_to_string("/etc/passwd").ok().as_deref()
    );

    let secret = node.dir.join("secret");
    fs::write(&secret, "s").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let parameters = json!({"path": secret});
    let (ended, _) = ask(&world, "file.read", node.id, parameters.clone()).await;
    assert_eq!(ended.status, Status::Failed);
    assert!(
        error(&ended).contains("file_refused: ") && error(&ended).contains("readable_paths"),
        "{ended:?}"
    );

    node.configure(&format!("readable_paths = [{:?}]\n", node.dir));
    node.restart().await;
    let (ended, file) = ask(&world, "file.read", node.id, parameters.clone()).await;
    assert_eq!((ended.status, &file["content"]), (Status::Succeeded, &json!("s")));
    let (ended, file) = ask(&world, "file.digest", node.id, parameters).await;
    let digest = Digest::of(b"s").to_string();
    assert_eq!(
        (ended.status, &file["sha256"]),
        (Status::Succeeded, &json!(digest))
    );
    let (ended, _) = ask(
        &world,
        "file.read",
        node.id,
        json!({"path": node.state.join("nsk")}),
    )
    .await;
    assert!(error(&ended).contains("file_refused: "), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_told_and_moved_and_a_job_is_told_as_it_ended() {
    let world = World::new().await;
    let systemd = FakeSystemd::new(
        world.dir(),
        &[
            ("web.service", Starts::Well),
            ("quick.service", Starts::AtOnce),
            ("bad.service", Starts::Badly),
            ("musterd.service", Starts::Well),
            ("tidy.timer", Starts::Well),
        ],
    )
    .await;
    let mut node = world.node("n").enrolled().await;
    node.set_variable("DBUS_SYSTEM_BUS_ADDRESS", &systemd.address());
    node.start().await;
    let unit = |name: &str| json!({"unit": name});

    let (ended, list) = ask(&world, "services.list", node.id, json!({})).await;
    assert_eq!(
        (ended.status, &list["total"]),
        (Status::Succeeded, &json!(4)),
        "{ended:?}"
    );
    for name in ["web", "quick"] {
        let (ended, state) = ask(&world, "services.start", node.id, unit(name)).await;
        assert_eq!(
            (ended.status, ended.exit_code),
            (Status::Succeeded, Some(0)),
            "{ended:?}"
        );
        assert_eq!(
            (&state["job_result"], &state["active_state"]),
            (&json!("done"), &json!("active"))
        );
        assert_eq!(
            (&state["main_pid"], &state["memory_bytes"]),
            (&json!(4242), &Value::Null)
        );
    }
    let (ended, state) = ask(&world, "services.start", node.id, unit("bad")).await;
    assert_eq!((ended.status, ended.exit_code), (Status::Failed, Some(1)));
    assert!(
        error(&ended).contains("ended as failed") && error(&ended).contains("exit-code"),
        "{ended:?}"
    );
    assert_eq!(
        (&state["job_result"], &state["last_exit_code"]),
        (&json!("failed"), &json!(3))
    );

    let (ended, _) = ask(&world, "services.reload", node.id, unit("web.service")).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");
    let (ended, state) = ask(&world, "services.stop", node.id, unit("web.service")).await;
    assert_eq!(
        (ended.status, &state["sub_state"]),
        (Status::Succeeded, &json!("dead")),
        "{ended:?}"
    );
    let (ended, _) = ask(&world, "services.reload", node.id, unit("web.service")).await;
    assert!(error(&ended).contains("not applicable"), "{ended:?}");
    let (ended, state) = ask(&world, "services.status", node.id, unit("bad")).await;
    assert_eq!(
        (ended.status, &state["active_state"]),
        (Status::Succeeded, &json!("failed"))
    );
    for action in ["services.status", "services.start"] {
        let (ended, _) = ask(&world, action, node.id, unit("ghost")).await;
        assert_eq!(ended.status, Status::Failed);
        assert!(error(&ended).contains("ghost.service"), "{ended:?}");
    }

    // The daemon may be restarted and not be taken away; nor is the machine's target anybody's service.
    let (ended, _) = ask(&world, "services.restart", node.id, unit("musterd")).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");
    let (ended, _) = ask(&world, "services.stop", node.id, unit("musterd")).await;
    assert_eq!(ended.status, Status::Failed);
    let (ended, _) = ask(&world, "services.start", node.id, unit("reboot.target")).await;
    assert!(error(&ended).starts_with("invalid_parameters"), "{ended:?}");
    let expected = [
        "start web.service replace",
        "start quick.service replace",
        "start bad.service replace",
        "reload web.service replace",
        "stop web.service replace",
        "reload web.service replace",
        "start ghost.service replace",
        "restart musterd.service replace",
    ];
    assert_eq!(systemd.calls(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_outlives_the_daemon_and_is_waited_for_no_longer_than_asked() {
    let world = World::new().await;
    let systemd = FakeSystemd::new(world.dir(), &[("slow.service", Starts::Never)]).await;
    let mut node = world.node("n").enrolled().await;
    node.set_variable("DBUS_SYSTEM_BUS_ADDRESS", &systemd.address());
    node.start().await;
    let dispatched = world
        .dispatch(with("services.restart", node.id, json!({"unit": "slow"})))
        .await;
    until("systemd has the job", async || {
        (!systemd.calls().is_empty()).then_some(())
    })
    .await;
    node.kill9();
    node.start().await;
    let _ = world.operator.cancel(dispatched.id).await;
    let ran = world.settled(dispatched.id).await;
    assert_eq!(ran.status, Status::Cancelled);
    assert_eq!(
        systemd.calls(),
        ["restart slow.service replace"],
        "it was asked for once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_systemd_it_says_so() {
    let world = World::new().await;
    let mut node = world.node("n").enrolled().await;
    let nowhere = format!("unix:path={}", node.dir.join("no-bus").display());
    node.set_variable("DBUS_SYSTEM_BUS_ADDRESS", &nowhere);
    node.start().await;
    for (action, parameters) in [("services.list", json!({})), ("reboot", json!({}))] {
        let (ended, _) = ask(&world, action, node.id, parameters).await;
        assert_eq!(ended.status, Status::Failed);
        assert!(error(&ended).contains("systemd cannot be reached"), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_has_succeeded_when_the_machine_is_back() {
    let world = World::new().await;
    let systemd = FakeSystemd::new(world.dir(), &[]).await;
    let mut node = world.node("n").enrolled().await;
    let boot_id = node.dir.join("boot_id");
    fs::write(&boot_id, "first\n").unwrap();
    node.set_variable("DBUS_SYSTEM_BUS_ADDRESS", &systemd.address());
    node.set_variable("MUSTER_BOOT_ID_FILE", &boot_id.to_string_lossy());
    node.start().await;

    let dispatched = world
        .dispatch(with("reboot", node.id, json!({"message": "back soon"})))
        .await;
    until("the reboot is asked for", async || {
        (systemd.reboots().0 > 0).then_some(())
    })
    .await;
    // The machine goes down: everybody is told to end, then nobody is left.
    muster_tests::daemon::end_supervisors_under(&node.state);
    node.kill9();
    assert_eq!(
        world.operator.execution(dispatched.id).await.status,
        Status::Started
    );
    fs::write(&boot_id, "second\n").unwrap();
    node.start().await;
    let ran = world.settled(dispatched.id).await;
    let (ended, answer) = told(&world, &ran, node.id).await;
    assert_eq!(
        (ended.status, ended.exit_code),
        (Status::Succeeded, Some(0)),
        "{ended:?}"
    );
    assert_eq!(
        answer,
        json!({"rebooted": true, "boot_id_before": "first", "boot_id": "second"})
    );
    assert_eq!(
        systemd.reboots(),
        (1, Some("back soon".to_owned())),
        "it was asked for once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_that_is_refused_or_does_not_come_is_no_success() {
    let world = World::new().await;
    let systemd = FakeSystemd::new(world.dir(), &[]).await;
    let mut node = world.node("n").enrolled().await;
    node.set_variable("DBUS_SYSTEM_BUS_ADDRESS", &systemd.address());
    node.start().await;
    let mut dispatch = on_node("reboot", node.id);
    dispatch["timeout_seconds"] = json!(3);
    let ran = world.run(dispatch).await;
    assert_eq!((ran.status, systemd.reboots().0), (Status::Timeout, 1));

    let later = world
        .dispatch(with("reboot", node.id, json!({"delay_seconds": 600})))
        .await;
    until("it has started", async || {
        (world.operator.execution(later.id).await.status == Status::Started).then_some(())
    })
    .await;
    let _ = world.operator.cancel(later.id).await;
    assert_eq!(world.settled(later.id).await.status, Status::Cancelled);
    assert_eq!(systemd.reboots().0, 1);

    systemd.refuse_reboots();
    let (ended, _) = ask(&world, "reboot", node.id, json!({})).await;
    assert_eq!(ended.status, Status::Failed);
    assert!(error(&ended).contains("AccessDenied"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_come_go_and_are_told_with_their_versions() {
    let world = World::new().await;
    let root = PackageRoot::new(world.dir());
    root.publish("story-one", "1.0");
    root.publish("story-two", "7");
    let mut node = world.node("n").enrolled().await;
    root.give_to(&mut node);
    node.start().await;
    let one = json!({"packages": ["story-one"]});
    let row = |name: &str, version: &str| json!([{"name": name, "architecture": "all", "version": version}]);

    let (ended, _) = ask(&world, "packages.refresh", node.id, json!({})).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");
    let (ended, plan) = ask(
        &world,
        "packages.install",
        node.id,
        json!({"packages": "story-one", "dry_run": true}),
    )
    .await;
    assert_eq!(
        (ended.status, &plan["installed"]),
        (Status::Succeeded, &row("story-one", "1.0")),
        "{ended:?}"
    );
    assert_eq!(root.brought("story-one"), None);
    let (ended, done) = ask(&world, "packages.install", node.id, one.clone()).await;
    assert_eq!(
        (ended.status, &done["installed"]),
        (Status::Succeeded, &row("story-one", "1.0")),
        "{ended:?}"
    );
    assert_eq!(root.brought("story-one").as_deref(), Some("1.0"));
    let (ended, done) = ask(&world, "packages.install", node.id, one.clone()).await;
    assert_eq!(
        (ended.status, &done["installed"]),
        (Status::Succeeded, &json!([])),
        "{ended:?}"
    );

    root.publish("story-one", "1.1");
    let (ended, _) = ask(&world, "packages.refresh", node.id, json!({})).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");
    let (_, list) = ask(&world, "packages.list", node.id, json!({"state": "upgradable"})).await;
    let newer = json!([{"name": "story-one", "architecture": "all", "version": "1.0", "available": "1.1"}]);
    assert_eq!(list["packages"], newer);
    let (ended, done) = ask(&world, "packages.upgrade", node.id, json!({})).await;
    let upgraded =
        json!([{"name": "story-one", "architecture": "all", "version_before": "1.0", "version": "1.1"}]);
    assert_eq!(
        (ended.status, &done["upgraded"]),
        (Status::Succeeded, &upgraded),
        "{ended:?}"
    );

    let both = json!({"packages": ["story-one", "story-two"]});
    let (ended, done) = ask(&world, "packages.remove", node.id, both).await;
    assert_eq!(
        (ended.status, &done["removed"]),
        (Status::Succeeded, &row("story-one", "1.1")),
        "{ended:?}"
    );
    assert_eq!(done["not_installed"], json!(["story-two"]));
    let (_, list) = ask(&world, "packages.list", node.id, json!({})).await;
    assert_eq!((&list["total"], root.brought("story-one")), (&json!(0), None));

    let (ended, done) = ask(
        &world,
        "packages.install",
        node.id,
        json!({"packages": "story-non*"}),
    )
    .await;
    assert!(
        error(&ended).starts_with("invalid_parameters"),
        "{ended:?} {done}"
    );
    // Nor does a dot stand for any character.
    let (ended, done) = ask(
        &world,
        "packages.install",
        node.id,
        json!({"packages": "story.two"}),
    )
    .await;
    assert_eq!((ended.status, ended.exit_code), (Status::Failed, Some(100)));
    assert!(
        error(&ended).contains("Unable to locate package story.two"),
        "{ended:?}"
    );
    assert_eq!(
        (&done["installed"], root.brought("story-two")),
        (&json!([]), None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_outlives_its_daemon_and_is_made_once() {
    let world = World::new().await;
    let root = PackageRoot::new(world.dir());
    root.publish("story", "1");
    let (began, go_on) = (world.dir().join("began"), world.dir().join("go-on"));
    root.configure(&format!(
        "DPkg::Pre-Invoke {{ \"echo began >> {}; while [ ! -e {} ]; do sleep 0.1; done\"; }};",
        began.display(),
        go_on.display()
    ));
    let mut node = world.node("n").enrolled().await;
    root.give_to(&mut node);
    node.start().await;
    let (ended, _) = ask(&world, "packages.refresh", node.id, json!({})).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");

    let dispatched = world
        .dispatch(with("packages.install", node.id, json!({"packages": "story"})))
        .await;
    until("apt works", async || began.exists().then_some(())).await;
    node.kill9();
    node.start().await;
    fs::write(&go_on, "").unwrap();
    let ran = world.settled(dispatched.id).await;
    let (ended, done) = told(&world, &ran, node.id).await;
    assert_eq!(
        (ended.status, &done["installed"][0]["name"]),
        (Status::Succeeded, &json!("story")),
        "{ended:?}"
    );
    assert_eq!(fs::read_to_string(&began).unwrap(), "began\n");

    // A cancel ends apt with all that it started.
    fs::remove_file(&go_on).unwrap();
    fs::remove_file(&began).unwrap();
    let dispatched = world
        .dispatch(with("packages.remove", node.id, json!({"packages": "story"})))
        .await;
    until("apt works", async || began.exists().then_some(())).await;
    let _ = world.operator.cancel(dispatched.id).await;
    assert_eq!(world.settled(dispatched.id).await.status, Status::Cancelled);
    assert_eq!(root.brought("story").as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_waits_for_no_daemon_that_it_started_and_a_cancelled_one_tells_what_it_did() {
    let world = World::new().await;
    let root = PackageRoot::new(world.dir());
    root.publish("story-one", "1");
    root.publish("story-two", "2");
    // It has the output of apt for its own, as what a maintainer script starts has.
    root.configure("DPkg::Post-Invoke { \"sleep 3600 &\"; };");
    let mut node = world
        .node("n")
        .config("stop_grace_seconds = 60\n")
        .enrolled()
        .await;
    root.give_to(&mut node);
    node.start().await;
    let (ended, _) = ask(&world, "packages.refresh", node.id, json!({})).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");
    let (ended, done) = ask(
        &world,
        "packages.install",
        node.id,
        json!({"packages": "story-one"}),
    )
    .await;
    assert_eq!(
        (ended.status, &done["installed"][0]["name"]),
        (Status::Succeeded, &json!("story-one")),
        "{ended:?}"
    );

    let began = world.dir().join("began");
    root.configure(&format!(
        "DPkg::Post-Invoke {{ \"echo began > {}; exec sleep 3600\"; }};",
        began.display()
    ));
    let dispatched = world
        .dispatch(with(
            "packages.install",
            node.id,
            json!({"packages": "story-two"}),
        ))
        .await;
    until("apt has installed it", async || began.exists().then_some(())).await;
    let _ = world.operator.cancel(dispatched.id).await;
    let cancelled = world.settled(dispatched.id).await;
    let (ended, done) = told(&world, &cancelled, node.id).await;
    assert_eq!(
        (ended.status, &done["installed"][0]["name"]),
        (Status::Cancelled, &json!("story-two")),
        "{ended:?} {done}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_another_package_manager_is_waited_for_as_long_as_asked() {
    let world = World::new().await;
    let root = PackageRoot::new(world.dir());
    root.publish("story", "1");
    let mut node = world.node("n").enrolled().await;
    root.give_to(&mut node);
    node.start().await;
    let (ended, _) = ask(&world, "packages.refresh", node.id, json!({})).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:?}");

    let lock = fs::File::create(root.admin_dir().join("lock-frontend")).unwrap();
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let hasty = json!({"packages": "story", "lock_wait_seconds": 0});
    let (ended, done) = ask(&world, "packages.install", node.id, hasty).await;
    assert_eq!((ended.status, ended.exit_code), (Status::Failed, Some(100)));
    assert!(error(&ended).contains("lock"), "{ended:?}");
    assert_eq!(done["installed"], json!([]));

    let patient = json!({"packages": "story", "lock_wait_seconds": 300});
    let dispatched = world.dispatch(with("packages.install", node.id, patient)).await;
    until("it has started", async || {
        (world.operator.execution(dispatched.id).await.status == Status::Started).then_some(())
    })
    .await;
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::Unlock).unwrap();
    assert_eq!(world.settled(dispatched.id).await.status, Status::Succeeded);
    assert_eq!(root.brought("story").as_deref(), Some("1"));
}
