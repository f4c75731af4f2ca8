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

/// What is stopped, and what for.
struct Walk<'a> {
    world: &'a World,
    node: &'a mut Node,
    variable: &'a str,
    action: &'a str,
    cancel: bool,
}

impl Walk<'_> {
    /// Dispatches once for each effect, with the process stopped after that one, until one run meets no stop; then once
    /// for each of these kinds that the count has missed, because effects that race come in no order. Hands each to `check`
    /// once control knows its end and the node has put everything away.
    async fn stop_after_each(
        &mut self,
        kinds: &[&str],
        mut check: impl FnMut(&Node, &Execution, Option<&str>),
    ) {
        let mut stops = BTreeSet::new();
        for n in 1.. {
            assert!(n <= EFFECTS_MAX, "it has no end: {stops:?}");
            match self.stop_after(&n.to_string(), &mut check).await {
                Some(what) => stops.insert(what),
                None => break,
            };
        }
        for kind in kinds {
            if !stops.contains(*kind) {
                let stopped = self.stop_after(kind, &mut check).await;
                assert_eq!(stopped.as_deref(), Some(*kind), "there is no such effect");
            }
        }
        sound(self.node);
    }

    /// Says after what it was stopped.
    async fn stop_after(
        &mut self,
        what: &str,
        check: &mut impl FnMut(&Node, &Execution, Option<&str>),
    ) -> Option<String> {
        let (world, node) = (self.world, &mut *self.node);
        let said = node.dir.join("stopped-after");
        let _ = std::fs::remove_file(&said);
        let sent = world.dispatch(on_node(self.action, node.id)).await;
        node.launch_with(|command| {
            command.env(self.variable, format!("{what}:{}", said.display()));
        });
        let mut asked = false;
        until("it settles, through a stop or not", async || {
            // A supervisor's stop is its daemon's to notice.
            if node.daemon().ended().is_some() {
                node.kill9();
                node.launch();
            }
            let now = world.operator.execution(sent.id).await;
            if self.cancel && !asked && target(&now, node.id).status == Status::Started {
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
        stopped
    }
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

fn sound(node: &Node) {
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
}

fn times_run(node: &Node, execution: &Execution) -> usize {
    let id = execution.id.to_string();
    node.trace_lines("ran").iter().filter(|run| **run == id).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_stopped_after_any_effect_runs_its_hook_once_and_says_so() {
    let world = World::new().await;
    let mut node = prepared(&world, "big", HOOK).await;
    let mut checked = vec![];
    let mut walk = Walk {
        world: &world,
        node: &mut node,
        variable: OF_DAEMON,
        action: "big",
        cancel: false,
    };
    let kinds = [
        "a commit of the journal",
        "a directory",
        "room for the record",
        "a file beside",
        "a rename",
        "the supervisor spawned",
        "a callback answered",
        "an upload answered",
        "a run directory removed",
    ];
    walk.stop_after_each(&kinds, |node, settled, stopped| {
        let ended = target(settled, node.id);
        assert_eq!(
            ended.status,
            Status::Succeeded,
            "after {stopped:?}: {ended:?}\n{}",
            node.log()
        );
        assert_eq!(times_run(node, settled), 1, "after {stopped:?}");
        checked.push(settled.id);
    })
    .await;
    for id in checked {
        assert!(world.operator.output(id, node.id).await == vec![b'x'; 20_000]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_is_stopped_after_any_effect_leaves_no_lie() {
    let world = World::new().await;
    let mut node = prepared(&world, "big", HOOK).await;
    let mut walk = Walk {
        world: &world,
        node: &mut node,
        variable: OF_SUPERVISOR,
        action: "big",
        cancel: false,
    };
    let kinds = [
        "room for the record",
        "a link",
        "the hook spawned",
        "the spool",
        "the record beside",
        "the record",
    ];
    walk.stop_after_each(&kinds, |node, settled, stopped| {
        let (ended, ran) = (target(settled, node.id), times_run(node, settled));
        let error = ended.error.as_deref().unwrap_or_default();
        match ended.status {
            Status::Succeeded => assert_eq!(ran, 1, "after {stopped:?}: {ended:?}"),
            // Nobody is left who saw it, and it is not run again.
            Status::Failed
                if error.starts_with("agent_restarted: ") || error.starts_with("supervisor_lost: ") =>
            {
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
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_stopped_after_any_effect_of_a_cancel_still_ends_the_hook() {
    let world = World::new().await;
    let mut node = prepared(&world, "patient", PATIENT).await;
    let mut walk = Walk {
        world: &world,
        node: &mut node,
        variable: OF_DAEMON,
        action: "patient",
        cancel: true,
    };
    let kinds = [
        "a commit of the journal",
        "the supervisor spawned",
        "a callback answered",
    ];
    walk.stop_after_each(&kinds, |node, settled, stopped| {
        let ended = target(settled, node.id);
        assert_eq!(ended.status, Status::Cancelled, "after {stopped:?}: {ended:?}");
        assert!(times_run(node, settled) <= 1, "after {stopped:?}");
    })
    .await;
}

/// What breaks is one task of the daemon, right after its effect. Nothing is lost, nothing runs twice, and nobody else notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_daemon_that_breaks_harms_no_other_action() {
    let world = World::new().await;
    let mut node = prepared(&world, "mark", HOOK).await;
    for (broken, said) in [
        ("the supervisor spawned", "the action is taken up again"),
        ("a callback answered", "A report to control broke"),
        ("an upload answered", "A report to control broke"),
    ] {
        node.launch_with(|command| {
            command.env("MUSTER_PANIC_AFTER_EFFECT", broken);
        });
        for round in 0..2 {
            let ran = world.run(on_node("mark", node.id)).await;
            let ended = target(&ran, node.id);
            let error = ended.error.as_deref().unwrap_or_default();
            // Its claim tells whether it was late: then it has not run, and never will.
            let kept_from_starting =
                error.starts_with("hook_not_started: ") && error.contains("agent_broke: ");
            let (status, times) = if kept_from_starting {
                (Status::Failed, 0)
            } else {
                (Status::Succeeded, 1)
            };
            assert_eq!(ended.status, status, "{broken}: {ended:#?}\n{}", node.log());
            assert_eq!(times_run(&node, &ran), times, "{broken}");
            one_result(&world, &ran).await;
            let told = broken == "the supervisor spawned" && round == 0;
            assert_eq!(error.contains("agent_broke: "), told, "{broken}: {error}");
        }
        let log = node.log();
        assert!(log.contains(said), "{log}");
        assert!(node.daemon().ended().is_none(), "{log}");
        assert!(node.stop().await.success(), "{log}");
    }
    sound(&node);
}
