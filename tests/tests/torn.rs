//! What a power cut, an old backup or a broken disk leaves of the state directory: the daemon says what it knows, runs
//! nothing twice, and makes no new journal where one was.

use std::{
    fs::{self, File},
    path::Path,
};

use muster_tests::{
    prelude::*,
    world::{on_node, target},
};

/// Says that it ran, and goes on once the story lets it.
const WAITS: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n\
                     while [ ! -e @DIR@/go ]; do sleep 0.05; done\nhead -c \"$MUSTER_PARAM_BYTES\" /dev/zero\n";

async fn with_hook(world: &World) -> Node {
    let node = world
        .node("n")
        .config("backoff_max_seconds = 1\n")
        .hook("waits", WAITS);
    node.start().await
}

fn times_run(trace: &[String], id: ExecutionId) -> usize {
    trace.iter().filter(|run| **run == id.to_string()).count()
}

/// Starts it on what it has and waits for its own end.
async fn refused(node: &mut Node) -> String {
    node.launch();
    let status = node.daemon().end().await;
    node.kill9();
    assert_eq!(status.code(), Some(8), "{}", node.log());
    node.log()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_is_told_who_holds_the_state_directory() {
    let world = World::new().await;
    let mut node = world.node("n").start().await;
    let second = node.run_command().output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(5), "{said}");
    let (pid, lock) = (node.daemon().pid(), node.state.join("lock"));
    assert!(
        said.contains(&format!("(pid {pid})")) && said.contains(&*lock.to_string_lossy()),
        "{said}"
    );
    let ran = world.run(on_node("ping", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_journal_is_made_where_one_was() {
    let world = World::new().await;
    let mut node = with_hook(&world).await;
    assert!(node.stop().await.success());
    let journal = node.state.join("journal.db");
    // All of it in the one file.
    rusqlite::Connection::open(&journal)
        .and_then(|db| db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
        .unwrap();
    let sound = fs::read(&journal).unwrap();
    let mut broken = sound.clone();
    broken[4096..8192].fill(0xa5);
    for bytes in [
        &broken[..],
        &sound[..5000],
        b"",
        b"no database at all, though long enough",
    ] {
        fs::write(&journal, bytes).unwrap();
        let log = refused(&mut node).await;
        assert!(
            log.lines()
                .last()
                .is_some_and(|line| line.contains("restore it, or enrol this machine anew")),
            "{log}"
        );
        assert!(fs::read(&journal).unwrap() == bytes, "it was changed");
    }
    fs::remove_file(&journal).unwrap();
    let _ = refused(&mut node).await;
    assert!(!journal.exists());
    fs::write(&journal, &sound).unwrap();
    node.start().await;
    let ran = world.run(on_node("ping", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_the_journal_that_is_cut_anywhere_loses_words_and_never_a_truth() {
    let config = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\nreport_grace_seconds = 1\n";
    let world = World::with_config(Some(config)).await;
    let mut node = with_hook(&world).await;
    fs::write(node.dir.join("go"), "").unwrap();
    for frames_cut in [0_u64, 1, 3, 8, 21] {
        let mut body = on_node("waits", node.id);
        body["parameters"] = json!({"bytes": 10});
        body["timeout_seconds"] = json!(4);
        let sent = world.dispatch(body).await;
        until("it runs", async || {
            (times_run(&node.trace_lines("ran"), sent.id) > 0).then_some(())
        })
        .await;
        node.kill9();
        let log = File::options()
            .write(true)
            .open(node.state.join("journal.db-wal"))
            .unwrap();
        let size = log.metadata().unwrap().len();
        // In the middle of a frame, as a write is torn.
        log.set_len(size.saturating_sub(frames_cut * 4120 + 2000))
            .unwrap();
        drop(log);
        node.start().await;
        let settled = world.settled(sent.id).await;
        let ended = target(&settled, node.id);
        // Where the journal has lost that it ever took it, nobody asks again, and control waits in vain.
        assert!(
            matches!(ended.status, Status::Succeeded | Status::Timeout),
            "{frames_cut}: {ended:#?}\n{}",
            node.log()
        );
        assert_eq!(times_run(&node.trace_lines("ran"), sent.id), 1, "{frames_cut}");
    }
    let ran = world.run(on_node("ping", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_from_before_the_run_does_not_run_it_again() {
    let control = FakeControl::new().await;
    let mut node = control.start_node(|node| node.install_hook("waits", WAITS)).await;
    assert!(node.stop().await.success());
    let journal = node.state.join("journal.db");
    let before = fs::read(&journal).unwrap();
    control.launch(&mut node).await;
    let mut request = control.hook_request("waits", node.hook_digest("waits"));
    request.parameters = json!({"bytes": 10}).as_object().cloned();
    control.push(&request);
    let id = request.execution_id;
    until("it runs", async || {
        (times_run(&node.trace_lines("ran"), id) > 0).then_some(())
    })
    .await;
    node.kill9();
    fs::write(&journal, before).unwrap();
    for beside in ["journal.db-wal", "journal.db-shm"] {
        let _ = fs::remove_file(node.state.join(beside));
    }
    control.launch(&mut node).await;
    control.push(&request);
    until("it is taken again", async || {
        node.log()
            .contains("The journal does not know an action that was started here")
            .then_some(())
    })
    .await;
    fs::write(node.dir.join("go"), "").unwrap();
    let told = control.outcome(id).await;
    assert_eq!(
        (told.status, told.exit_code),
        (Status::Succeeded, Some(0)),
        "{told:#?}\n{}",
        node.log()
    );
    assert_eq!(times_run(&node.trace_lines("ran"), id), 1);
    // It says again what control had heard from the daemon before.
    let _ = control.take_complaints();
}

/// Runs the hook while its daemon is away, does something to what it left, and starts the daemon again.
async fn ended_meanwhile(
    world: &World,
    node: &mut Node,
    bytes: u64,
    damage: impl FnOnce(&Path),
) -> Execution {
    let _ = fs::remove_file(node.dir.join("go"));
    let mut body = on_node("waits", node.id);
    body["parameters"] = json!({"bytes": bytes});
    let sent = world.dispatch(body).await;
    until("it is told that it runs", async || {
        let now = world.operator.execution(sent.id).await;
        let started = target(&now, node.id).status == Status::Started;
        (started && times_run(&node.trace_lines("ran"), sent.id) > 0).then_some(())
    })
    .await;
    node.kill9();
    fs::write(node.dir.join("go"), "").expect("the directory is the story's own");
    let run = node.state.join("runs").join(format!("{}-1", sent.id));
    until("it has ended", async || {
        run.join("exit.json").exists().then_some(())
    })
    .await;
    damage(&run);
    node.start().await;
    let settled = world.settled(sent.id).await;
    assert_eq!(times_run(&node.trace_lines("ran"), sent.id), 1);
    settled
}

fn halve(file: &Path) {
    let file = File::options().write(true).open(file).expect("the file is there");
    file.set_len(file.metadata().expect("the file is there").len() / 2)
        .expect("the file is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_record_or_a_claim_is_a_loss_that_is_told_and_half_an_output_is_none() {
    let world = World::new().await;
    let mut node = with_hook(&world).await;
    for torn in ["exit.json", "claim"] {
        let settled = ended_meanwhile(&world, &mut node, 10, |run| halve(&run.join(torn))).await;
        let ended = target(&settled, node.id);
        let error = ended.error.as_deref().unwrap_or_default();
        assert!(
            ended.status == Status::Failed
                && error.starts_with("agent_restarted: the record of the run is unreadable"),
            "{torn}: {ended:#?}"
        );
    }
    for bytes in [10_000, 100_000] {
        let settled = ended_meanwhile(&world, &mut node, bytes, |run| halve(&run.join("output"))).await;
        let ended = target(&settled, node.id);
        let problem = ended.output_error.as_deref().unwrap_or_default();
        assert!(
            ended.status == Status::Succeeded && problem.contains("the output was damaged on this node"),
            "{bytes}: {ended:#?}"
        );
    }
    // What nobody needs any more may lie there in any state.
    let settled = ended_meanwhile(&world, &mut node, 10, |run| {
        let _ = fs::remove_file(run.join("spec.json"));
        fs::write(run.join("claim.7.tmp"), "{").unwrap();
    })
    .await;
    assert_eq!(settled.status, Status::Succeeded, "{settled:#?}");
}

/// Its daemon has seen it all, and was not restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_cannot_write_how_it_ended_is_told_as_lost_with_what_it_complains_of() {
    let world = World::new().await;
    let node = world
        .node("n")
        .hook(
            "eats",
            "#!/bin/sh\nrm @DIR@/state/runs/\"$MUSTER_EXECUTION_ID\"-1/exit.json.tmp\n",
        )
        .start()
        .await;
    let ran = world.run(on_node("eats", node.id)).await;
    let ended = target(&ran, node.id);
    let error = ended.error.as_deref().unwrap_or_default();
    assert_eq!(ended.status, Status::Failed);
    assert!(
        error.starts_with(
            "supervisor_lost: the supervisor ended without a record: musterd: the supervisor of "
        ) && error.contains("No such file"),
        "{error}"
    );
}
