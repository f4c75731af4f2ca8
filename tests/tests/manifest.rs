//! What a manifest says holds: how the hook is run, what it takes, and what nobody gets to see.

use std::path::Path;

use muster_tests::{
    Answer,
    prelude::*,
    world::{on, on_node, target},
};

const SHOW: &str = "#!/bin/sh
cat > @DIR@/stdin
env | sort > @DIR@/env
(umask; pwd; id -u; id -g; id -G; ulimit -n; ulimit -t; grep NoNewPrivs /proc/self/status) > @DIR@/self
";

fn error_of(execution: &Execution, node: NodeId) -> (Status, String) {
    let target = target(execution, node);
    (target.status, target.error.clone().unwrap_or_default())
}

fn with(mut body: Value, parameters: &Value) -> Value {
    body["parameters"] = parameters.clone();
    body
}

/// A directory that any user may write into.
fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut at = dir.to_owned();
    while at != Path::new("/tmp") && at.parent().is_some() {
        let mode = if at == dir { 0o777 } else { 0o755 };
        let _ = std::fs::set_permissions(&at, std::fs::Permissions::from_mode(mode));
        at.pop();
    }
}

// ---- what a manifest is

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_manifest_refuses_its_hook_and_says_where() {
    let world = World::new().await;
    let mut node = world.node("one").hook("good", "#!/bin/sh\n").start().await;
    node.install_hook("bad", "#!/bin/sh\n");
    node.install_manifest("bad", "description = \"x\"\n[limits]\nopen_fils = 5\n");
    let listed = until("the refusal is known", async || {
        let said = world
            .operator
            .muster(&["hooks", "-o", "json"])
            .await
            .expect(0)
            .json();
        let items = said["items"].as_array()?.clone();
        items
            .iter()
            .any(|hook| hook["name"] == "bad" && hook["refused"].is_string())
            .then_some(items)
    })
    .await;
    let why = listed.iter().find(|hook| hook["name"] == "bad").unwrap()["refused"]
        .as_str()
        .unwrap();
    assert!(
        why.contains("bad.toml, line 3") && why.contains("open_fils"),
        "{why}"
    );
    let table = world.operator.muster(&["hooks"]).await.expect(0);
    assert!(
        table.stdout.contains("refused") && table.stderr.contains("open_fils"),
        "{}",
        table.stdout
    );
    let _ = world
        .operator
        .try_dispatch(&on_node("bad", node.id))
        .await
        .refused(400, "action_not_declared");

    // Nothing of it was pinned: once mended it is a hook like any other.
    node.install_manifest("bad", "description = \"x\"\n");
    let _ = node
        .known(async |summary| summary.actions.iter().any(|a| a.name.as_str() == "bad"))
        .await;
    assert_eq!(
        target(&world.run(on_node("bad", node.id)).await, node.id).status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_manifest_is_drift_until_it_is_approved() {
    let world = World::new().await;
    let mut node = world
        .node("one")
        .hook("job", "#!/bin/sh\n")
        .prepare(|node| node.install_manifest("job", "[timeout]\nmax_seconds = 60\n"))
        .start()
        .await;
    assert_eq!(
        target(&world.run(on_node("job", node.id)).await, node.id).status,
        Status::Succeeded
    );
    node.install_manifest("job", "user = \"root\"\n");
    let drifted = async |summary: &NodeSummary| {
        summary
            .actions
            .iter()
            .any(|a| a.name.as_str() == "job" && a.verdict == Some(Verdict::Drift))
    };
    let _ = node.known(drifted).await;
    let _ = world
        .operator
        .try_dispatch(&on_node("job", node.id))
        .await
        .refused(409, "hook_integrity_violation");
    let digest = node.hook_digest("job").to_string();
    let _ = world
        .operator
        .muster(&["hooks", "approve", "job", "--digest", &digest, "--all"])
        .await
        .expect(0);
    until("the approval has reached the node", async || {
        let ran = world.run(on_node("job", node.id)).await;
        (target(&ran, node.id).status == Status::Succeeded).then_some(())
    })
    .await;
    // Taking the manifest away is a change like any other.
    std::fs::remove_file(node.hooks.join("job.toml")).unwrap();
    let _ = node.known(drifted).await;
}

// ---- how a hook is run

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_as_its_manifest_says() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become another user.
        return;
    }
    let world = World::new().await;
    let node = world
        .node("one")
        .hook("show", SHOW)
        .prepare(|node| {
            open_to_all(&node.dir);
            node.install_manifest(
                "show",
                "user = \"nobody\"\numask = \"0027\"\nworking_directory = \"/usr\"\nno_new_privs = true\n\
                 [limits]\nopen_files = 64\ncpu_seconds = 50\npids = 4000\nmemory_bytes = 1_000_000_000\n\
                 [environment]\nGREETING = \"grüß dich\"\nLANG = \"C\"\n\
                 [parameters.properties]\nwho = { type = \"string\", default = \"world\" }\nnumber = { type = \"integer\" }\n",
            );
        })
        .start()
        .await;
    let ran = world
        .run(with(on_node("show", node.id), &json!({"number": 3})))
        .await;
    assert_eq!(error_of(&ran, node.id), (Status::Succeeded, String::new()));
    let own = node.trace_lines("self");
    assert_eq!(own[0], "0027");
    assert_eq!(own[1], "/usr");
    assert!(
        own[2] != "0" && own[3] != "0" && !own[4].split(' ').any(|group| group == "0"),
        "{own:?}"
    );
    assert_eq!((own[5].as_str(), own[6].as_str()), ("64", "50"));
    assert!(own[7].ends_with('1'), "{own:?}");
    let stdin: Value = serde_json::from_str(&node.trace("stdin")).unwrap();
    assert_eq!(stdin, json!({"who": "world", "number": 3}));
    let env = node.trace_lines("env");
    for line in [
        "GREETING=grüß dich",
        "LANG=C",
        "USER=nobody",
        "LOGNAME=nobody",
        "MUSTER_PARAM_WHO=world",
        "MUSTER_PARAM_NUMBER=3",
        "MUSTER_ACTION=show",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ] {
        assert!(env.iter().any(|found| found == line), "{line} in {env:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_of_a_hook_is_the_documented_one_and_the_admin_says_what_differs() {
    let world = World::new().await;
    let show = "#!/bin/sh\nprintf '\u{fc}\\n'\nenv | grep -v '^_=' | sort > @DIR@/env\n";
    let node = world
        .node("one")
        .hook("show", show)
        .hook("own", show)
        .prepare(|node| {
            node.install_manifest("own", "[environment]\nLANG = \"C\"\n");
            // Nothing of the daemon's own is a hook's.
            node.set_variable("LANG", "tr_TR");
            node.set_variable("SECRET_OF_THE_DAEMON", "x");
        })
        .start()
        .await;
    let run = async |hook: &str| {
        let ran = world.run(on_node(hook, node.id)).await;
        assert_eq!(error_of(&ran, node.id), (Status::Succeeded, String::new()));
        let output = world.operator.output(ran.id, node.id).await;
        assert_eq!(output, "\u{fc}\n".as_bytes());
        let of_whom = ["HOME=", "USER=", "LOGNAME="];
        let (who, mut rest): (Vec<String>, Vec<String>) = node
            .trace_lines("env")
            .into_iter()
            .partition(|line| of_whom.iter().any(|name| line.starts_with(name)));
        assert_eq!(who.len(), 3, "{who:?}");
        let ours = format!("MUSTER_EXECUTION_ID={}", ran.id);
        assert!(rest.contains(&ours), "{rest:?}");
        rest.retain(|line| *line != ours);
        rest
    };
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let (action, id) = ("MUSTER_ACTION=show", format!("MUSTER_NODE_ID={}", node.id));
    assert_eq!(run("show").await, ["LANG=C.UTF-8", action, &id, path, "PWD=/"]);

    node.drop_in(
        "10.toml",
        "[hooks.environment]\nLANG = \"de_DE.UTF-8\"\nSITE = \"one\"\nPATH = \"/bin\"\n",
    );
    node.drop_in(
        "20.toml",
        "[hooks.environment]\nSITE = \"two\"\nPATH = \"/usr/bin:/bin\"\n",
    );
    let reloaded = world.run(on_node("agent.reload", node.id)).await;
    assert_eq!(target(&reloaded, node.id).status, Status::Succeeded);
    let path = "PATH=/usr/bin:/bin";
    assert_eq!(
        run("show").await,
        ["LANG=de_DE.UTF-8", action, &id, path, "PWD=/", "SITE=two"]
    );
    let own = run("own").await;
    assert!(
        own.contains(&"LANG=C".to_owned()),
        "the manifest knows better: {own:?}"
    );

    for (bad, why) in [
        ("MUSTER_ACTION = \"x\"", "hooks.environment.MUSTER_ACTION"),
        ("LD_PRELOAD = \"/x.so\"", "hooks.environment.LD_PRELOAD"),
        ("HOME = \"/\"", "hooks.environment.HOME"),
    ] {
        node.drop_in("30.toml", &format!("[hooks.environment]\n{bad}\n"));
        let refused = world.run(on_node("agent.reload", node.id)).await;
        let (status, error) = error_of(&refused, node.id);
        assert_eq!(status, Status::Failed);
        assert!(error.contains("30.toml") && error.contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_hook_from_starting_is_named() {
    let world = World::new().await;
    let hook = |name: &str, manifest: &str| (name.to_owned(), manifest.to_owned());
    let hooks = [
        hook("nouser", "user = \"no-such-user\"\n"),
        hook("nodir", "working_directory = \"/no/such/directory\"\n"),
    ];
    let node = world
        .node("one")
        .prepare(|node| {
            for (name, manifest) in &hooks {
                node.install_hook(name, "#!/bin/sh\n");
                node.install_manifest(name, manifest);
            }
        })
        .start()
        .await;
    for (name, word) in [
        ("nouser", "no-such-user"),
        ("nodir", "/no/such/directory: No such file"),
    ] {
        let (status, error) = error_of(&world.run(on_node(name, node.id)).await, node.id);
        assert_eq!(status, Status::Failed);
        assert!(
            error.starts_with("hook_not_started: ") && error.contains(word),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_time_and_output_hold_and_are_said() {
    let world = World::new().await;
    let node = world
        .node("one")
        .hook("long", "#!/bin/sh\nhead -c 20000 /dev/zero\nexec sleep 600\n")
        .prepare(|node| {
            node.install_manifest(
                "long",
                "[timeout]\ndefault_seconds = 1\nmax_seconds = 1\n[limits]\noutput_bytes = 4096\n",
            );
        })
        .start()
        .await;
    // Left out, the timeout is the manifest's; a longer one is capped, and that is said.
    let meant = world.run(on_node("long", node.id)).await;
    assert_eq!(meant.timeout_seconds, 1);
    let mut body = on_node("long", node.id);
    body["timeout_seconds"] = json!(60);
    let capped = world.run(body).await;
    let (status, error) = error_of(&capped, node.id);
    assert_eq!(status, Status::Timeout);
    assert!(
        error.contains("timeout_capped: to 1 s instead of 60 s, by timeout.max_seconds"),
        "{error}"
    );
    assert!(world.operator.output(capped.id, node.id).await.len() < 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_of_different_affinity_run_side_by_side_and_of_the_same_in_turn() {
    const MEET: &str = "#!/bin/sh
echo in-$MUSTER_ACTION >> @DIR@/met
while [ ! -e @DIR@/go ]; do sleep 0.05; done
echo out-$MUSTER_ACTION >> @DIR@/met
";
    let world = World::new().await;
    let node = world
        .node("one")
        .hook("a1", MEET)
        .hook("a2", MEET)
        .hook("b", MEET)
        .hook("look", MEET)
        .prepare(|node| {
            node.install_manifest("a1", "[action]\naffinity = [\"disk\"]\n");
            node.install_manifest("a2", "[action]\naffinity = [\"disk:sda\"]\n");
            node.install_manifest("b", "[action]\naffinity = [\"web\"]\n");
            node.install_manifest("look", "[action]\nread_only = true\n");
        })
        .start()
        .await;
    let mut all = Vec::new();
    for hook in ["a1", "a2", "b", "look"] {
        all.push(world.dispatch(on_node(hook, node.id)).await.id);
    }
    until("those that may are inside together", async || {
        (node.trace_lines("met").len() == 3).then_some(())
    })
    .await;
    let mut inside = node.trace_lines("met");
    inside.sort();
    assert_eq!(inside, ["in-a1", "in-b", "in-look"]);
    std::fs::write(node.dir.join("go"), "").unwrap();
    for id in all {
        assert_eq!(world.settled(id).await.status, Status::Succeeded);
    }
    let met = node.trace_lines("met");
    let at = |what: &str| met.iter().position(|line| line == what);
    assert!(at("out-a1") < at("in-a2"), "{met:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_the_documentation_works() {
    let page = include_str!("../../docs/hooks.md");
    let block = |language: &str| {
        let after = page
            .split_once(&format!("```{language}\n"))
            .expect("an example")
            .1;
        after.split_once("```").expect("its end").0
    };
    let world = World::new().await;
    let node = world
        .node("one")
        .labels("role=web")
        .hook("greet", block("sh"))
        .prepare(|node| node.install_manifest("greet", block("toml")))
        .start()
        .await;
    let shown = world
        .operator
        .muster(&["action", "show", "greet"])
        .await
        .expect(0)
        .stdout;
    assert!(
        shown.contains("Greets somebody") && shown.contains("(secret) proves who greets"),
        "{shown}"
    );
    for (parameters, said) in [(&["-p", "who=you"][..], "Hello, you\n"), (&[], "Hello, world\n")] {
        let mut line = vec!["run", "greet", "-l", "role=web", "--wait", "-o", "json"];
        line.extend(parameters);
        let ran: Execution =
            serde_json::from_value(world.operator.muster(&line).await.expect(0).json()).unwrap();
        assert_eq!(world.operator.output(ran.id, node.id).await, said.as_bytes());
    }
}

// ---- what a hook takes

const STRICT: &str = "[parameters]\nrequired = [\"who\"]\nadditionalProperties = false\n\
    [parameters.properties]\nwho = { type = \"string\", pattern = \"^[a-z]+$\" }\ncount = { type = \"integer\" }\n";

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_checked_at_dispatch_for_each_node() {
    let world = World::new().await;
    let strict = world
        .node("strict")
        .labels("role=web")
        .hook("hello", "#!/bin/sh\n")
        .prepare(|node| node.install_manifest("hello", STRICT))
        .start()
        .await;
    let refused = async |body: Value| {
        world
            .operator
            .try_dispatch(&body)
            .await
            .refused(400, "invalid_parameters")
    };
    let problem = refused(with(
        on_node("hello", strict.id),
        &json!({"who": "x", "count": "three"}),
    ))
    .await;
    assert!(
        problem.detail.contains("at /count") && !problem.detail.contains("three"),
        "{}",
        problem.detail
    );
    let problem = refused(on("hello", "role=web")).await;
    assert!(problem.detail.contains("who"), "{}", problem.detail);
    assert_eq!(problem.dropped[0].reason, "invalid_parameters");

    // A node that takes anything is not held back by one that does not.
    let lax = world
        .node("lax")
        .labels("role=web")
        .hook("hello", "#!/bin/sh\n")
        .start()
        .await;
    let execution = world
        .run(with(on("hello", "role=web"), &json!({"other": 1})))
        .await;
    assert_eq!(execution.targets.len(), 1);
    assert_eq!(execution.targets[0].node_id, lax.id);

    // What the command line types becomes what the action declares.
    let run = async |arguments: &[&str]| {
        let mut line = vec!["run", "hello", "-l", "story-node=strict", "--wait"];
        line.extend(arguments);
        world.operator.muster(&line).await
    };
    let _ = run(&["-p", "who=x", "-p", "count=3"]).await.expect(0);
    let said = run(&["-p", "who=x", "-p", "count=three"]).await;
    assert!(
        said.code != 0 && said.stderr.contains("/count"),
        "{}",
        said.stderr
    );
    let shown = world
        .operator
        .muster(&["action", "show", "hello"])
        .await
        .expect(0)
        .stdout;
    assert!(
        shown.contains("count") && shown.contains("integer") && shown.contains("verified"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_checked_again_on_the_node() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.install_hook("hello", "#!/bin/sh\ntouch @DIR@/ran\n");
            node.install_manifest("hello", STRICT);
        })
        .await;
    let mut request = control.hook_request("hello", node.hook_digest("hello"));
    request.parameters = json!({"who": "NOT LOWER"}).as_object().cloned();
    control.push(&request);
    let outcome = control.outcome(request.execution_id).await;
    let error = outcome.error.unwrap_or_default();
    assert_eq!(outcome.status, Status::Failed);
    assert!(
        error.starts_with("invalid_parameters: at /who") && !error.contains("NOT LOWER"),
        "{error}"
    );
    assert!(!node.dir.join("ran").exists());
}

// ---- what nobody gets to see

const CANARY: &str = "canary-7f3a91c2";

/// Every file under a directory that holds the canary.
fn found_under(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(found_under(&path));
        } else if let Ok(bytes) = std::fs::read(&path)
            && bytes
                .windows(CANARY.len())
                .any(|window| window == CANARY.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_parameter_is_seen_by_its_hook_and_nowhere_else() {
    let world = World::new().await;
    let mut node = world
        .node("one")
        .hook(
            "login",
            "#!/bin/sh\n[ \"$MUSTER_PARAM_PASSWORD\" = canary-7f3a91c2 ] || exit 9\n\
             echo \"as $MUSTER_PARAM_USER with $MUSTER_PARAM_PASSWORD\"; cat; echo\n\
             touch @DIR@/inside\nwhile [ ! -e @DIR@/go ]; do sleep 0.05; done\n",
        )
        .prepare(|node| {
            node.install_manifest(
                "login",
                "[parameters]\nproperties.password = { type = \"string\", writeOnly = true, minLength = 9 }\n\
                 properties.user = { type = \"string\" }\n",
            );
        })
        .start()
        .await;
    let body = with(
        on_node("login", node.id),
        &json!({"user": "me", "password": CANARY}),
    );
    let preview = world
        .operator
        .post(&world.operator.in_project("executions:preview"), &body)
        .await;
    assert!(!preview.text().contains(CANARY));
    let keyed = world
        .operator
        .request(
            reqwest::Method::POST,
            &world.operator.in_project("executions:dispatch"),
        )
        .header("idempotency-key", "once")
        .json(&body);
    let dispatched = Answer::to(keyed).await.expect(201);
    assert!(!dispatched.text().contains(CANARY) && dispatched.text().contains("********"));
    let execution: Execution = dispatched.json();
    let id = execution.id;
    until("the hook has seen it", async || {
        node.dir.join("inside").exists().then_some(())
    })
    .await;

    let nowhere = async |when: &str| {
        let operator = &world.operator;
        for path in [
            operator.in_project(&format!("executions/{id}")),
            operator.in_project("executions"),
            format!("/v1/audit?project_id={}", operator.project),
        ] {
            let answer = operator.get(&path).await.expect(200).text();
            assert!(!answer.contains(CANARY), "{when}: {path}");
        }
        for line in [
            &["execution", "show", &id.to_string()][..],
            &["execution", "show", &id.to_string(), "-o", "json"],
        ] {
            let said = operator.muster(line).await.expect(0);
            assert!(
                !said.stdout.contains(CANARY) && !said.stderr.contains(CANARY),
                "{when}: {line:?}"
            );
        }
        assert_eq!(found_under(world.data_dir()), Vec::<String>::new(), "{when}");
        let log = std::fs::read_to_string(world.dir().join("control.log")).unwrap();
        assert!(!log.contains(CANARY) && !node.log().contains(CANARY), "{when}");
    };
    nowhere("while it runs").await;
    let sealed = |world: &World| {
        world
            .database()
            .count("action_execution WHERE sealed_parameters IS NOT NULL")
    };
    assert_eq!(sealed(&world), 1);
    // The run directory has given it up already; the journal keeps it as long as the hook might have to be started.
    assert_eq!(found_under(&node.state.join("runs")), Vec::<String>::new());

    std::fs::write(node.dir.join("go"), "").unwrap();
    let settled = world.settled(id).await;
    assert_eq!(error_of(&settled, node.id), (Status::Succeeded, String::new()));
    nowhere("after the end").await;
    // The hook prints it, and what is kept has it masked.
    let said = world.operator.output(id, node.id).await;
    assert_eq!(
        String::from_utf8_lossy(&said),
        "as me with ********\n{\"password\":\"********\",\"user\":\"me\"}\n"
    );
    assert_eq!(sealed(&world), 0);
    assert_eq!(found_under(&node.state), Vec::<String>::new());
    let _ = node.stop().await;
    assert_eq!(found_under(&node.state), Vec::<String>::new());

    // The wrong one is refused without being repeated.
    let short = with(on_node("login", node.id), &json!({"password": "canary-7"}));
    let problem = world
        .operator
        .try_dispatch(&short)
        .await
        .refused(400, "invalid_parameters");
    assert!(!problem.detail.contains("canary"), "{}", problem.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_still_owed_after_control_was_killed() {
    let mut world = World::new().await;
    let mut node = world
        .node("one")
        .hook(
            "login",
            "#!/bin/sh\nprintf %s \"$MUSTER_PARAM_PASSWORD\" > @DIR@/seen\n",
        )
        .prepare(|node| {
            node.install_manifest(
                "login",
                "[parameters]\nproperties.password = { writeOnly = true }\n",
            );
        })
        .start()
        .await;
    let _ = node.stop().await;
    let execution = world
        .dispatch(with(on_node("login", node.id), &json!({"password": CANARY})))
        .await;
    world.kill9();
    world.start().await;
    node.start().await;
    assert_eq!(world.settled(execution.id).await.status, Status::Succeeded);
    assert_eq!(node.trace("seen"), CANARY);
}
