//! A daemon and its supervisors are stopped dead after each of their effects in turn: every file, rename, commit, process
//! and callback. Nothing is lost, nothing runs twice, and what is told is true.

use std::collections::BTreeSet;

use muster_tests::{
    prelude::*,
    world::{on_node, target},
};

/// Says that it ran, and writes more than fits into a callback.
const HOOK: &str =
    "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\nhead -c 20000 /dev/zero | tr '\\0' x\n";
/// Says that it ran, and ends only when asked to.
const PATIENT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\nexec sleep 600\n";

const OF_DAEMON: &str = "MUSTER_STOP_AFTER_EFFECT";
const OF_SUPERVISOR: &str = "MUSTER_STOP_SUPERVISOR_AFTER_EFFECT";
/// More effects than any run has.
const EFFECTS_MAX: usize = 200;

async fn prepared(world: &World, name: &str, script: &str) -> Node {
    let mut node = world
        .node("n")
        .config("backoff_max_seconds = 1\nstop_grace_seconds = 1\n")
        .hook(name, script)
        .start()
        .await;
    assert!(node.stop().await.success());
    node
}

fn runs(node: &Node) -> usize {
    std::fs::read_dir(node.state.join("runs")).map_or(0, Iterator::count)
}

/// Dispatches once for each effect, with the process stopped after that one, until one run meets no stop. Hands each to
/// `check` once control knows its end and the node has put everything away. Says after what it was stopped.
async fn stop_after_each(
    world: &World,
    node: &mut Node,
    variable: &str,
    action: &str,
    cancel: bool,
    mut check: impl FnMut(&Node, &Execution, Option<&str>),
) -> BTreeSet<String> {
    let mut stops = BTreeSet::new();
    let said = node.dir.join("stopped-after");
    for n in 1..=EFFECTS_MAX {
        let _ = std::fs::remove_file(&said);
        let sent = world.dispatch(on_node(action, node.id)).await;
        node.launch_with(|command| {
            command.env(variable, format!("{n}:{}", said.display()));
        });
        let mut asked = false;
        until("it settles, through a stop or not", async || {
            // A supervisor's stop is its daemon's to notice.
            if node.daemon().ended().is_some() {
                node.kill9();
                node.launch();
            }
            let now = world.operator.execution(sent.id).await;
            if cancel && !asked && target(&now, node.id).status == Status::Started {
                let _ = world.operator.cancel(sent.id).await;
                asked = true;
            }
            (now.status.is_terminal() && runs(node) == 0 && node.daemon().ended().is_none()).then_some(())
        })
        .await;
        // What it does after the last look may be what it is stopped after.
        let _ = node.stop().await;
        let stopped = std::fs::read_to_string(&said).ok();
        let settled = world.settled(sent.id).await;
        check(node, &settled, stopped.as_deref());
        one_result(world, &settled).await;
        match stopped {
            Some(what) => stops.insert(what),
            None => return sound(node, stops),
        };
    }
    panic!("it has no end: {stops:?}");
}

/// Control heard one end, and no other after it.
async fn one_result(world: &World, settled: &Execution) {
    let path = world.operator.in_project(&format!("executions/{}", settled.id));
    let detail: ExecutionDetail = world.operator.get(&path).await.expect(200).json();
    let ends: Vec<_> = detail
        .timeline
        .iter()
        .filter(|event| event.to.is_terminal())
        .collect();
    assert!(ends.len() == 1 && !ends[0].late, "{:#?}", detail.timeline);
}

fn sound(node: &Node, stops: BTreeSet<String>) -> BTreeSet<String> {
    let journal =
        rusqlite::Connection::open(node.state.join("journal.db")).expect("the journal can be opened");
    let verdict: String = journal
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("the journal can be read");
    assert_eq!(verdict, "ok");
    let open: i64 = journal
        .query_row(
            "SELECT (SELECT count(*) FROM invocation WHERE reported <> 'terminal') + (SELECT count(*) FROM output_owed)",
            [],
            |row| row.get(0),
        )
        .expect("the journal can be read");
    assert_eq!(open, 0, "the journal owes something");
    stops
}

fn times_run(node: &Node, execution: &Execution) -> usize {
    let id = execution.id.to_string();
    node.trace_lines("ran").iter().filter(|run| **run == id).count()
}

#[track_caller]
fn among(stops: &BTreeSet<String>, kinds: &[&str]) {
    for kind in kinds {
        assert!(
            stops.contains(*kind),
            "it was never stopped after {kind}: {stops:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_stopped_after_any_effect_runs_its_hook_once_and_says_so() {
    let world = World::new().await;
    let mut node = prepared(&world, "big", HOOK).await;
    let mut checked = vec![];
    let stops = stop_after_each(
        &world,
        &mut node,
        OF_DAEMON,
        "big",
        false,
        |node, settled, stopped| {
            let ended = target(settled, node.id);
            assert_eq!(
                ended.status,
                Status::Succeeded,
                "after {stopped:?}: {ended:?}\n{}",
                node.log()
            );
            assert_eq!(times_run(node, settled), 1, "after {stopped:?}");
            checked.push(settled.id);
        },
    )
    .await;
    for id in checked {
        assert!(world.operator.output(id, node.id).await == vec![b'x'; 20_000]);
    }
    among(
        &stops,
        &[
            "a commit of the journal",
            "a directory",
            "room for the record",
            "a file beside",
            "a rename",
            "the supervisor spawned",
            "a callback answered",
            "an upload answered",
            "a run directory removed",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_is_stopped_after_any_effect_leaves_no_lie() {
    let world = World::new().await;
    let mut node = prepared(&world, "big", HOOK).await;
    let stops = stop_after_each(
        &world,
        &mut node,
        OF_SUPERVISOR,
        "big",
        false,
        |node, settled, stopped| {
            let (ended, ran) = (target(settled, node.id), times_run(node, settled));
            let error = ended.error.as_deref().unwrap_or_default();
            match ended.status {
                Status::Succeeded => assert_eq!(ran, 1, "after {stopped:?}: {ended:?}"),
                // Nobody is left who saw it, and it is not run again.
                Status::Failed if error.starts_with("agent_restarted: ") => {
                    assert!(ran <= 1, "after {stopped:?}")
                }
                Status::Failed => assert!(
                    error.starts_with("hook_not_started: ") && ran == 0,
                    "after {stopped:?}, ran {ran}: {ended:?}"
                ),
                Status::Pending | Status::Ack | Status::Started | Status::Cancelled | Status::Timeout => {
                    panic!("after {stopped:?}: {ended:?}")
                }
            }
        },
    )
    .await;
    among(
        &stops,
        &[
            "room for the record",
            "a link",
            "the hook spawned",
            "the spool",
            "the record beside",
            "the record",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_stopped_after_any_effect_of_a_cancel_still_ends_the_hook() {
    let world = World::new().await;
    let mut node = prepared(&world, "patient", PATIENT).await;
    let stops = stop_after_each(
        &world,
        &mut node,
        OF_DAEMON,
        "patient",
        true,
        |node, settled, stopped| {
            let ended = target(settled, node.id);
            assert_eq!(ended.status, Status::Cancelled, "after {stopped:?}: {ended:?}");
            assert!(times_run(node, settled) <= 1, "after {stopped:?}");
        },
    )
    .await;
    among(
        &stops,
        &[
            "a commit of the journal",
            "the supervisor spawned",
            "a callback answered",
        ],
    );
}
