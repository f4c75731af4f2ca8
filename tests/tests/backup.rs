//! Backup and restore: what a backup holds, what a restored control forgot, and what becomes of nodes that did not.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use muster_tests::{
    operator::Said,
    prelude::*,
    world::{on_node, target},
};

const BEATS: &str = "heartbeat_seconds = 1\nbackoff_max_seconds = 1\n";
/// Says that it has begun, in the trace `long`, and goes on until the file `go` is there.
const LONG: &str = "#!/bin/sh\necho begun >> @DIR@/long\nwhile ! [ -e @DIR@/go ]; do sleep 0.05; done\n\
                    head -c 40000 /dev/zero | tr '\\0' l\n";
const COUNT: &str = "#!/bin/sh\necho $MUSTER_EXECUTION_ID >> @DIR@/counted\necho done\n";

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of stories are text")
}

async fn back_up(world: &World, name: &str) -> PathBuf {
    let to = world.dir().join(name);
    let _ = world.control_tool(&["backup", text(&to)]).await.expect(0);
    to
}

/// Stops control, moves its data directory away and makes it anew from a backup.
async fn restore(world: &mut World, from: &Path) -> Said {
    let _ = world.stop().await;
    fs::rename(world.data_dir(), world.dir().join("lost")).expect("it is the story's own");
    let said = world
        .control_tool(&["restore", text(from), "-o", "json"])
        .await
        .expect(0);
    world.start().await;
    said
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path)
        .expect("it is the story's own")
        .permissions()
        .mode()
        & 0o7777
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("it is the story's own").flatten() {
        if entry.path().is_dir() {
            found.extend(files_below(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

async fn metric(world: &World, name: &str) -> f64 {
    let text = world.operator.get("/metrics").await.expect(200).text();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .trim()
        .parse()
        .expect("a number")
}

/// The executions that a node knows and control does not, as its admin sees them.
async fn unknown_to_control(node: &Node) -> Vec<String> {
    let said = node.tool(&["status", "-o", "json"]).await.json();
    let listed = said["unknown_to_control"].as_array().expect("it is always there");
    let mut ids: Vec<_> = listed
        .iter()
        .map(|one| one["execution_id"].as_str().expect("it is a text").to_owned())
        .collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_taken_while_control_serves_is_whole_and_private() {
    let mut world = World::new().await;
    let node = world
        .node("n")
        .hook(
            "large",
            "#!/bin/sh\nhead -c 50000 /dev/urandom > @DIR@/made\ncat @DIR@/made\n",
        )
        .start()
        .await;
    let ran = world.run(on_node("large", node.id)).await;
    let to = world.dir().join("backup");
    let under_load = async {
        for _ in 0..20 {
            let _ = world.run(on_node("ping", node.id)).await;
        }
    };
    let words = ["backup", text(&to), "-o", "json"];
    let (said, ()) = tokio::join!(world.control_tool(&words), under_load);
    let said = said.expect(0).json();
    assert_eq!(said["database"]["kind"], "sqlite", "{said}");
    assert_eq!(said["database"]["chains"].as_array().unwrap().len(), 1, "{said}");
    assert_eq!(mode(&to), 0o700);
    for file in files_below(&to) {
        assert_eq!(mode(&file), 0o600, "{file:?}");
    }
    let manifest: Value = serde_json::from_slice(&fs::read(to.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["files"], said["files"]);
    let beside: Vec<_> = fs::read_dir(world.dir())
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains("partial"))
        .collect();
    assert!(beside.is_empty(), "{beside:?}");

    // Nothing is written over, and nothing into what is copied.
    let again = world.control_tool(&["backup", text(&to)]).await.expect(1);
    assert!(again.stderr.contains("overwrites nothing"), "{again:?}");
    let inside = world.data_dir().join("backup");
    let inside = world.control_tool(&["backup", text(&inside)]).await.expect(1);
    assert!(inside.stderr.contains("lies in the data directory"), "{inside:?}");
    let full = world.control_tool(&["restore", text(&to)]).await.expect(1);
    assert!(full.stderr.contains("is not empty"), "{full:?}");

    // One byte that is another, in a file of each kind, and a schema of the future: nothing is restored.
    let elsewhere = world.dir().join("elsewhere");
    let refused = async |change: &dyn Fn(), undo: &dyn Fn(), why: &str| {
        change();
        let mut command = tokio::process::Command::new(muster_tests::binaries::binary("muster-control"));
        command.args(["restore", text(&to), "--data-dir", text(&elsewhere)]);
        let said = muster_tests::operator::said_by(command).await.expect(1);
        assert!(said.stderr.contains(why), "{why}: {said:?}");
        assert!(
            !elsewhere.exists() || fs::read_dir(&elsewhere).unwrap().next().is_none(),
            "{why}"
        );
        undo();
    };
    for name in ["control.db", "secrets/derivation.key"] {
        let file = to.join(name);
        let was = fs::read(&file).unwrap();
        let mut other = was.clone();
        *other.last_mut().unwrap() ^= 1;
        refused(
            &|| fs::write(&file, &other).unwrap(),
            &|| fs::write(&file, &was).unwrap(),
            "is not what was backed up",
        )
        .await;
    }
    let file = to.join("manifest.json");
    let was = fs::read(&file).unwrap();
    let mut newer = manifest.clone();
    newer["database"]["schema_version"] = json!(9999);
    refused(
        &|| fs::write(&file, newer.to_string()).unwrap(),
        &|| fs::write(&file, &was).unwrap(),
        "use the newer release",
    )
    .await;

    let said = restore(&mut world, &to).await.json();
    assert_eq!(said["taken_at"], manifest["taken_at"]);
    assert_eq!(mode(world.data_dir()), 0o700);
    for (name, expected) in [
        ("control.db", 0o600),
        ("secrets/derivation.key", 0o600),
        ("secrets/server.key", 0o600),
        ("ca.pem", 0o644),
    ] {
        assert_eq!(mode(&world.data_dir().join(name)), expected, "{name}");
    }
    assert!(world.operator.output(ran.id, node.id).await == fs::read(node.dir.join("made")).unwrap());
    // What was on its way when the copy was made, its node knows the end of.
    until("the node has told what was open in the copy", async || {
        let open = "action_execution_target WHERE status IN ('pending', 'ack', 'started')";
        (world.database().count(open) == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_tell_a_restored_control_what_it_forgot_and_nothing_runs_twice() {
    let mut world = World::new().await;
    let mut node = world
        .node("n")
        .config(BEATS)
        .hook("count", COUNT)
        .hook("long", LONG)
        .hook(
            "later",
            &LONG.replace("/go ]", "/go2 ]").replace("@/long", "@/later"),
        )
        .start()
        .await;
    let known = world.run(on_node("count", node.id)).await;
    let open = world.dispatch(on_node("long", node.id)).await;
    until("the hook runs", async || {
        (!node.trace("long").is_empty()).then_some(())
    })
    .await;

    let backup = back_up(&world, "backup").await;
    fs::write(node.dir.join("go"), "").unwrap();
    let ended = world.settled(open.id).await;
    assert_eq!(ended.status, Status::Succeeded, "{ended:#?}");
    let output = world.operator.output(open.id, node.id).await;
    assert_eq!(output.len(), 40_000);
    let forgotten = world.run(on_node("count", node.id)).await;
    assert_eq!(forgotten.status, Status::Succeeded);
    let running = world.dispatch(on_node("later", node.id)).await;
    until("the next hook runs", async || {
        (!node.trace("later").is_empty()).then_some(())
    })
    .await;

    let _ = restore(&mut world, &backup).await;
    // What was under way at the backup has ended since, and only its node knows.
    let healed = world.settled(open.id).await;
    assert_eq!(healed.status, Status::Succeeded, "{healed:#?}");
    let told = target(&healed, node.id);
    assert!(
        told.output_ref.is_some()
            || told
                .output_error
                .as_ref()
                .is_some_and(|why| why.starts_with("output_upload_failed")),
        "{told:?}"
    );
    let mut expected = vec![forgotten.id.to_string()];
    until("what control forgot is shown on the node", async || {
        (unknown_to_control(&node).await == expected).then_some(())
    })
    .await;
    let _ = world
        .operator
        .get(&world.operator.in_project(&format!("executions/{}", forgotten.id)))
        .await
        .refused(404, "execution_not_found");
    assert!(metric(&world, "muster_callbacks_unknown_execution_total").await >= 1.0);

    // So is what ends only now, with its output.
    fs::write(node.dir.join("go2"), "").unwrap();
    expected.push(running.id.to_string());
    expected.sort();
    until("what was under way is kept too", async || {
        (unknown_to_control(&node).await == expected).then_some(())
    })
    .await;
    let kept: Vec<_> = files_below(&node.state.join("runs"))
        .into_iter()
        .filter(|file| file.metadata().unwrap().len() == 40_000)
        .collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let shown = until("the node is connected again", async || {
        let said = node.tool(&["status"]).await;
        (said.code == 0).then_some(said.stdout)
    })
    .await;
    assert!(
        shown.contains("UNKNOWN TO CONTROL") && shown.contains(&running.id.to_string()),
        "{shown}"
    );

    // What comes now is new, and reaches the node.
    let next = world.run(on_node("count", node.id)).await;
    assert_eq!(next.status, Status::Succeeded);
    assert!(![known.id, open.id, forgotten.id, running.id].contains(&next.id));
    assert_eq!(
        node.trace_lines("counted"),
        [known.id, forgotten.id, next.id].map(|id| id.to_string())
    );

    // Nobody asks for it again: not the node after a restart, and not control.
    until("the node has told all of it", async || {
        node.log().contains("was told again").then_some(())
    })
    .await;
    let asked = metric(&world, "muster_callbacks_unknown_execution_total").await;
    let retellings = node.log().matches("was told since is told again").count();
    node.restart().await;
    // Control knows of a stream a moment before its node says so.
    until("it has opened its stream again", async || {
        (node.log().matches("The event stream is open").count() >= 2).then_some(())
    })
    .await;
    let _ = world.run(on_node("ping", node.id)).await;
    assert_eq!(unknown_to_control(&node).await, expected);
    assert_eq!(
        metric(&world, "muster_callbacks_unknown_execution_total").await,
        asked
    );
    assert_eq!(
        node.log().matches("was told since is told again").count(),
        retellings
    );
    let _ = node.stop().await;
    assert_eq!(unknown_to_control(&node).await, expected, "read from the journal");

    // The restore is evidence, and the chain goes on from the backup's end.
    let marks = world.database().count("audit WHERE relation = 'control.restore'");
    assert_eq!(marks, 1);
    let _ = world.control_tool(&["audit", "verify"]).await.expect(0);
    let _ = world.stop().await;
    world.start().await;
    let rows = world.control_tool(&["audit", "verify"]).await.expect(0).stdout;
    assert!(rows.starts_with("domain:"), "{rows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_approvals_that_are_newer_than_the_backup_are_said_to_be() {
    let mut world = World::new().await;
    let mut rekeyed = world
        .node("rekeyed")
        .config(BEATS)
        .hook("count", COUNT)
        .start()
        .await;
    let mut approved = world
        .node("approved")
        .config(BEATS)
        .hook("job", "#!/bin/sh\necho one\n")
        .start()
        .await;
    let backup = back_up(&world, "backup").await;

    let nsk = |node: &Node| fs::read_to_string(node.state.join("nsk")).unwrap();
    let before = nsk(&rekeyed);
    let name = rekeyed.known_name().await;
    let _ = world
        .operator
        .muster(&["node", "rotate-key", &name])
        .await
        .expect(0);
    until("the key is another", async || {
        (nsk(&rekeyed) != before && !rekeyed.state.join("nsk.next").exists()).then_some(())
    })
    .await;
    let ran = world.run(on_node("count", rekeyed.id)).await;
    approved.replace_hook("job", "#!/bin/sh\necho two\n").await;
    let digest = approved.hook_digest("job").to_string();
    let approve = ["hooks", "approve", "job", "--digest", &digest, "--all"];
    let _ = world.operator.muster(&approve).await.expect(0);
    until("the approval has reached the node", async || {
        let ran = world.run(on_node("job", approved.id)).await;
        (target(&ran, approved.id).status == Status::Succeeded).then_some(())
    })
    .await;
    let late = world.node("late").config(BEATS).start().await;

    let _ = restore(&mut world, &backup).await;
    for node in [&rekeyed, &late] {
        until("the node says how it comes back", async || {
            let said = node.tool(&["status"]).await;
            (said.stdout.contains("restored from a backup") && said.stdout.contains("enroll --force"))
                .then_some(())
        })
        .await;
        until("and why", async || {
            node.log()
                .contains("this control was restored from a backup")
                .then_some(())
        })
        .await;
    }

    // An approval is asked for again, and until then the hook does not run.
    let _ = approved
        .known(async |summary| {
            summary.actions.iter().any(|action| {
                action.name.as_str() == "job" && action.verdict == Some(muster_shared::wire::Verdict::Drift)
            })
        })
        .await;
    let _ = world
        .operator
        .try_dispatch(&on_node("job", approved.id))
        .await
        .refused(409, "hook_integrity_violation");
    let _ = world.operator.muster(&approve).await.expect(0);
    until("it runs again", async || {
        let ran = world.run(on_node("job", approved.id)).await;
        (target(&ran, approved.id).status == Status::Succeeded).then_some(())
    })
    .await;

    // Enrolled anew it is another node, and keeps what it remembers aside.
    let _ = rekeyed.stop().await;
    let token = world.bootstrap_token("role=back").await;
    let ca = text(&world.operator.ca_file).to_owned();
    let _ = rekeyed
        .try_enroll_trusting(&world.operator.server, &token, &["--ca-file", &ca, "--force"])
        .await
        .expect(0);
    let aside: Vec<_> = files_below(&rekeyed.state.join("earlier"))
        .into_iter()
        .filter(|file| file.file_name().is_some_and(|name| name == "journal.db"))
        .collect();
    let [journal] = &aside[..] else {
        panic!("{aside:?}")
    };
    let kept = rusqlite::Connection::open(journal).unwrap();
    let count: i64 = kept
        .query_row(
            "SELECT count(*) FROM invocation WHERE execution_id = ?1",
            [ran.id.to_string()],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(count, 1);
    rekeyed.launch();
    until("it is back under another id", async || {
        let found = world.nodes("role=back").await;
        (found.len() == 1 && found[0].connected && found[0].id != rekeyed.id).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_database_service_has_the_rows_it_is_told_how_to_copy_them() {
    let world = World::new().await;
    let to = world.dir().join("keys");
    let url = "postgres://muster:hunter2@db.example:5432/muster";
    let said = world
        .control_tool(&["backup", text(&to), "--database-url", url])
        .await
        .expect(0);
    assert!(
        said.stdout.contains("pg_dump --format=custom") && said.stdout.contains("muster@db.example"),
        "{said:?}"
    );
    assert!(!said.stdout.contains("hunter2"), "{said:?}");
    assert!(!to.join("control.db").exists() && to.join("secrets/derivation.key").exists());
    let restored = async |name: &str| {
        let elsewhere = world.dir().join(name);
        // The password of the database lies there before.
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join(".pgpass"), "*:*:*:*:hunter2\n").unwrap();
        let mut command = tokio::process::Command::new(muster_tests::binaries::binary("muster-control"));
        command.args([
            "restore",
            text(&to),
            "--data-dir",
            text(&elsewhere),
            "--database-url",
            url,
        ]);
        let said = muster_tests::operator::said_by(command).await.expect(0);
        assert!(
            said.stdout.contains("pg_restore") && !said.stdout.contains("hunter2"),
            "{said:?}"
        );
        assert!(elsewhere.join("restored.json").exists() && !elsewhere.join("control.db").exists());
        let kept = fs::read_to_string(elsewhere.join(".pgpass")).unwrap();
        assert_eq!(kept, "*:*:*:*:hunter2\n");
        // By which the unit knows that there is something to serve.
        fs::read_to_string(elsewhere.join("control.toml")).unwrap()
    };
    let settings = fs::read_to_string(world.data_dir().join("control.toml")).unwrap();
    assert_eq!(restored("elsewhere").await, settings);

    // As of a control whose settings are all in the admin's own file.
    let file = to.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let files = manifest["files"].as_array_mut().unwrap();
    files.retain(|file| file["path"] != "control.toml");
    fs::write(&file, manifest.to_string()).unwrap();
    assert!(restored("without-settings").await.starts_with('#'));
}
