//! Taking a dispatch back: what has not started never runs, what runs is ended, and what cannot be asked ends all the same.

use muster_shared::time::Timestamp;
use muster_tests::{
    database::Row,
    prelude::*,
    world::{on, on_node, target},
};

/// Everything that is told of one execution, late news included: from, to, late.
fn told(world: &World, id: ExecutionId) -> Vec<(String, String, bool)> {
    let db = world.database();
    let rows = db.rows(&format!(
        "SELECT from_status, to_status, CASE WHEN late THEN 'late' END FROM action_execution_event
          WHERE execution_id = {} ORDER BY id",
        db.id(id.uuid())
    ));
    let told = |mut row: Row| {
        let late = row.pop()?.is_some();
        let to = row.pop()??;
        Some((row.pop()??, to, late))
    };
    rows.into_iter().filter_map(told).collect()
}

fn outcomes(answer: &CancelResponse) -> Vec<CancelEffect> {
    answer.outcomes.iter().map(|target| target.outcome).collect()
}

/// A bare node that has taken one `ping` as far as asked.
async fn taken(world: &World, statuses: &[Status]) -> (BareNode, muster_tests::sse::Frames, ActionRequest) {
    let node = BareNode::enroll(world, "n=one").await;
    node.declare(&[]).await;
    let mut frames = node.stream().await;
    let _ = world.dispatch(on_node("ping", node.id)).await;
    let request = node.next_request(&mut frames).await.into_inner();
    for status in statuses {
        let _ = node.report(&request, &Callback::of(*status)).await.expect(200);
    }
    (node, frames, request)
}

// ---- what control does

#[tokio::test(flavor = "multi_thread")]
async fn what_no_node_took_is_cancelled_at_once_and_a_late_start_is_refused_and_kept() {
    let world = World::new().await;
    let (node, _frames, request) = taken(&world, &[]).await;
    let id = request.execution_id;

    let answer = world.operator.cancel(id).await;
    assert_eq!(outcomes(&answer), [CancelEffect::Cancelled]);
    assert_eq!(answer.execution.status, Status::Cancelled);
    let ended = target(&answer.execution, node.id);
    assert!(
        ended
            .error
            .as_deref()
            .is_some_and(|e| e.starts_with("cancelled: ")),
        "{ended:?}"
    );

    // The request was on the wire already. Whatever the node does with it changes nothing any more.
    for status in [Status::Ack, Status::Started, Status::Succeeded] {
        let _ = node
            .report(&request, &Callback::of(status))
            .await
            .refused(409, "execution_already_terminal");
    }
    assert_eq!(world.operator.execution(id).await.status, Status::Cancelled);
    let event = |from: &str, to: &str, late| (from.to_owned(), to.to_owned(), late);
    assert_eq!(
        told(&world, id),
        [
            event("pending", "cancelled", false),
            event("cancelled", "started", true),
            event("cancelled", "succeeded", true)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_took_is_cancelled_by_its_word_alone() {
    for statuses in [&[Status::Ack][..], &[Status::Ack, Status::Started]] {
        let world = World::new().await;
        let (node, mut frames, request) = taken(&world, statuses).await;
        let id = request.execution_id;
        let answer = world.operator.cancel(id).await;
        assert_eq!(outcomes(&answer), [CancelEffect::Asked]);
        let asked_at = target(&answer.execution, node.id).cancel_requested_at;
        assert!(asked_at.is_some(), "{answer:?}");
        let cancel = node.next_cancel(&mut frames).await;
        assert_eq!(cancel.execution_id, id);
        assert!(cancel.expires_at > Timestamp::now());
        let open = world.operator.execution(id).await;
        assert_eq!(target(&open, node.id).status, *statuses.last().unwrap());

        // Asking again changes nothing, and a node that comes back is asked again.
        let again = world.operator.cancel(id).await;
        assert_eq!(outcomes(&again), [CancelEffect::Asked]);
        assert_eq!(target(&again.execution, node.id).cancel_requested_at, asked_at);
        let mut frames = node.stream().await;
        assert_eq!(node.next_cancel(&mut frames).await.execution_id, id);

        let confirmed = Callback {
            error: Some("cancelled: stopped".to_owned()),
            ..Callback::of(Status::Cancelled)
        };
        if statuses.len() == 1 {
            let _ = node
                .report(&request, &confirmed)
                .await
                .refused(409, "invalid_state_transition");
            let _ = node
                .report(&request, &Callback::of(Status::Started))
                .await
                .expect(200);
        }
        let _ = node.report(&request, &confirmed).await.expect(200);
        let settled = world.settled(id).await;
        assert_eq!(settled.status, Status::Cancelled);
        assert_eq!(
            target(&settled, node.id).error.as_deref(),
            Some("cancelled: stopped")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cancelled_while_it_waited_in_the_buffer_of_a_stream_is_never_sent() {
    const DISPATCHES: usize = 200;
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    // Nobody reads: what does not fit on the wire waits in control.
    let mut frames = node.stream().await;
    let mut dispatch = on_node("ping", node.id);
    dispatch["parameters"] = json!({"fill": "x".repeat(60_000)});
    let mut sent = Vec::new();
    for _ in 0..DISPATCHES {
        sent.push(world.dispatch(dispatch.clone()).await.id);
    }
    for id in &sent {
        assert_eq!(
            world.operator.cancel(*id).await.execution.status,
            Status::Cancelled
        );
    }
    let last = world.dispatch(on_node("ping", node.id)).await;
    let seen = node.requests_before(&mut frames, last.id).await;
    assert!(seen < DISPATCHES, "every cancelled action was sent all the same");
    let _ = world.operator.cancel(last.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_that_ended_before_it_could_be_stopped_is_told_as_it_ended() {
    let world = World::new().await;
    let (node, _frames, request) = taken(&world, &[Status::Ack, Status::Started]).await;
    let _ = world.operator.cancel(request.execution_id).await;
    let _ = node
        .report(&request, &Callback::of(Status::Succeeded))
        .await
        .expect(200);
    assert_eq!(
        world.settled(request.execution_id).await.status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_what_is_settled_changes_nothing() {
    let world = World::new().await;
    let (node, _frames, request) = taken(&world, &[Status::Ack, Status::Started, Status::Succeeded]).await;
    let id = request.execution_id;
    let before = (world.rows(), world.operator.execution(id).await.updated_at);
    for node in [None, Some(node.id)] {
        let answer: CancelResponse = world.operator.try_cancel(id, node).await.expect(200).json();
        assert_eq!(outcomes(&answer), [CancelEffect::Settled]);
        assert_eq!(answer.execution.status, Status::Succeeded);
    }
    assert_eq!(
        (world.rows(), world.operator.execution(id).await.updated_at),
        before
    );
    assert!(
        target(&world.operator.execution(id).await, node.id)
            .cancel_requested_at
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_target_can_be_cancelled_while_the_others_go_on() {
    let world = World::new().await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let node = BareNode::enroll(&world, "fleet=f").await;
        node.declare(&[]).await;
        nodes.push(node);
    }
    let sent = world.dispatch(on("ping", "fleet=f")).await;
    let answer = world
        .operator
        .try_cancel(sent.id, Some(nodes[1].id))
        .await
        .expect(200);
    let answer: CancelResponse = answer.json();
    assert_eq!(
        answer.outcomes,
        [CancelOutcome {
            node_id: nodes[1].id,
            outcome: CancelEffect::Cancelled
        }]
    );
    assert!(!answer.execution.status.is_terminal());
    assert_eq!(target(&answer.execution, nodes[0].id).status, Status::Pending);

    // The others, all in one commit.
    let answer = world.operator.cancel(sent.id).await;
    assert_eq!(answer.execution.status, Status::Cancelled);
    assert_eq!(
        answer
            .outcomes
            .iter()
            .filter(|target| target.outcome == CancelEffect::Cancelled)
            .count(),
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer_is_not_waited_for_for_ever() {
    let world = World::with_config(Some("[limits]\ncancel_grace_seconds = 2\n")).await;
    let (node, frames, request) = taken(&world, &[Status::Ack, Status::Started]).await;
    drop(frames);
    let asked = world.operator.cancel(request.execution_id).await;
    assert!(!asked.execution.status.is_terminal());
    let settled = world.settled(request.execution_id).await;
    assert_eq!(settled.status, Status::Cancelled);
    assert_eq!(
        target(&settled, node.id).error.as_deref(),
        Some("cancelled: the node did not confirm (unreachable)")
    );
    assert!(settled.updated_at < settled.expires_at, "{settled:?}");
    // What it says afterwards is evidence.
    let _ = node
        .report(&request, &Callback::of(Status::Succeeded))
        .await
        .refused(409, "execution_already_terminal");
    assert_eq!(
        told(&world, request.execution_id).last().map(|event| event.2),
        Some(true)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cancelled_and_what_the_clock_ended_is_written_down() {
    let world = World::with_config(Some("[limits]\ncancel_grace_seconds = 1\n")).await;
    let (node, frames, request) = taken(&world, &[Status::Ack]).await;
    drop(frames);
    let _ = world.operator.cancel(request.execution_id).await;
    let _ = world.settled(request.execution_id).await;

    let rows = world.database().rows(
        "SELECT subject, resource, outcome, detail FROM audit WHERE relation = 'actions.cancel' ORDER BY seq",
    );
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.into_iter().flatten().collect())
        .collect();
    let [asked, gave_up] = &rows[..] else {
        panic!("one row for who asked, one for what the clock ended: {rows:#?}")
    };
    let execution = format!("execution:{}", request.execution_id);
    assert!(asked[0].starts_with("token:"), "{asked:?}");
    assert_eq!(
        asked[1..],
        [execution.as_str(), "granted", "0 cancelled, 1 asked"]
    );
    let resource = format!("resource:{}", node.id);
    assert_eq!(gave_up[..], ["system", &execution, "granted", &resource]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_never_ends_later_than_the_deadline_would() {
    let limits = "[limits]\ncancel_grace_seconds = 3600\nreport_grace_seconds = 1\n";
    let world = World::with_config(Some(limits)).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let mut frames = node.stream().await;
    let mut dispatch = on_node("ping", node.id);
    dispatch["timeout_seconds"] = json!(5);
    let _ = world.dispatch(dispatch).await;
    let request = node.next_request(&mut frames).await.into_inner();
    let _ = node
        .report(&request, &Callback::of(Status::Ack))
        .await
        .expect(200);
    let _ = world.operator.cancel(request.execution_id).await;
    let settled = world.settled(request.execution_id).await;
    assert_eq!(settled.status, Status::Cancelled, "{settled:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_needs_what_a_dispatch_needs_and_says_what_is_wrong() {
    let world = World::new().await;
    let (node, _frames, request) = taken(&world, &[Status::Ack]).await;
    let id = request.execution_id;
    let before = world.rows();
    let path = world.operator.in_project(&format!("executions/{id}/cancel"));
    for (body, code) in [
        (json!({"node_id": "x"}), "invalid_node_id"),
        (json!({"node": node.id}), "invalid_body"),
        (json!([1]), "invalid_body"),
    ] {
        let _ = world.operator.post(&path, &body).await.refused(400, code);
    }
    let stranger = NodeId::mint(Timestamp::now(), muster_tests::chance());
    let _ = world
        .operator
        .try_cancel(id, Some(stranger))
        .await
        .refused(404, "target_not_found");
    let nothing = ExecutionId::mint(Timestamp::now(), muster_tests::chance());
    let _ = world
        .operator
        .try_cancel(nothing, None)
        .await
        .refused(404, "execution_not_found");

    // With act on the project and on no node there is nothing that may be cancelled.
    world.alter(&format!(
        "UPDATE relation_tuple SET relation = 'act', resource = 'project:{}'",
        world.operator.project
    ));
    for node in [None, Some(node.id)] {
        let problem = world
            .operator
            .try_cancel(id, node)
            .await
            .refused(403, "permission_denied");
        assert_eq!(problem.reason.as_deref(), Some("insufficient_relation"));
    }
    assert_eq!(world.rows(), before);
    let asked = world
        .database()
        .count("action_execution_target WHERE cancel_requested_at IS NOT NULL");
    assert_eq!(asked, 0);

    // An empty body is a whole cancel.
    world.alter(&format!(
        "UPDATE relation_tuple SET relation = 'operator', resource = 'project:{}'",
        world.operator.project
    ));
    let bare = world.operator.request(reqwest::Method::POST, &path);
    let answer: CancelResponse = muster_tests::Answer::to(bare).await.expect(200).json();
    assert_eq!(outcomes(&answer), [CancelEffect::Asked]);
    for status in [Status::Started, Status::Cancelled] {
        let _ = node.report(&request, &Callback::of(status)).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_was_answered_outlives_control() {
    let mut world = World::new().await;
    let (node, frames, request) = taken(&world, &[Status::Ack, Status::Started]).await;
    drop(frames);
    let _ = world.operator.cancel(request.execution_id).await;
    world.kill9();
    world.start().await;
    let mut frames = node.stream().await;
    assert_eq!(
        node.next_cancel(&mut frames).await.execution_id,
        request.execution_id
    );
    let _ = node
        .report(&request, &Callback::of(Status::Cancelled))
        .await
        .expect(200);
    assert_eq!(
        world.settled(request.execution_id).await.status,
        Status::Cancelled
    );
}

// ---- what a node does

/// For hooks that will not hear.
const SHORT_GRACE: &str = "stop_grace_seconds = 1\n";
/// Starts a child that leaves the session and will not hear, then waits for the file `go`.
const STUBBORN: &str = "#!/bin/sh\n\
    setsid sh -c 'trap \"\" TERM; echo $$ >@DIR@/escaped; while :; do sleep 1; done' &\n\
    while [ ! -e @DIR@/escaped ]; do sleep 0.02; done\n\
    echo \"$MUSTER_EXECUTION_ID\" >>@DIR@/ran\necho begun\n\
    while [ ! -e @DIR@/go ]; do sleep 0.05; done\necho done\n";
/// A shell without a trap, which ends at once when it is asked to. Its child needs longer.
const TIDY: &str = "#!/bin/sh\n\
    sh -c 'trap \"sleep 2; echo tidy >@DIR@/tidied; exit\" TERM; echo $$ >@DIR@/child; while :; do sleep 0.1; done' &\n\
    while [ ! -e @DIR@/child ]; do sleep 0.02; done\n\
    echo \"$MUSTER_EXECUTION_ID\" >>@DIR@/ran\nwait\n";
const COUNT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >>@DIR@/ran\n";
/// Says that it was asked to end, and goes on.
const DEAF: &str = "#!/bin/sh\ntrap 'echo term >>@DIR@/asked' TERM\n\
    echo \"$MUSTER_EXECUTION_ID\" >>@DIR@/ran\nwhile :; do sleep 0.05; done\n";

async fn ran(node: &Musterd, id: ExecutionId) {
    until(&format!("{id} runs"), async || {
        node.trace_lines("ran").contains(&id.to_string()).then_some(())
    })
    .await;
}

async fn at_status(world: &World, id: ExecutionId, node: NodeId, status: Status) {
    until(&format!("{id} is {status}"), async || {
        let execution = world.operator.execution(id).await;
        (target(&execution, node).status == status).then_some(())
    })
    .await;
}

fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // A zombie has ended; whoever adopted it has not looked yet.
    stat.rsplit_once(") ")
        .is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

fn error_of(execution: &Execution, node: NodeId) -> String {
    target(execution, node).error.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cancelled_while_its_node_was_away_never_runs() {
    let world = World::new().await;
    let mut node = world.node("n").hook("count", COUNT).start().await;
    node.kill9();
    let sent = world.dispatch(on_node("count", node.id)).await;
    let answer = world.operator.cancel(sent.id).await;
    assert_eq!(answer.execution.status, Status::Cancelled);
    node.start().await;
    let other = world.run(on_node("count", node.id)).await;
    assert_eq!(other.status, Status::Succeeded);
    assert_eq!(node.trace_lines("ran"), [other.id.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_hook_is_ended_with_everything_it_started() {
    let world = World::new().await;
    let node = world
        .node("n")
        .config(SHORT_GRACE)
        .hook("stubborn", STUBBORN)
        .start()
        .await;
    let sent = world.dispatch(on_node("stubborn", node.id)).await;
    ran(&node, sent.id).await;
    at_status(&world, sent.id, node.id, Status::Started).await;
    let answer = world.operator.cancel(sent.id).await;
    assert_eq!(outcomes(&answer), [CancelEffect::Asked]);
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Cancelled);
    // The shell that will not hear, and perhaps what it waits for.
    let error = error_of(&settled, node.id);
    assert!(
        error.starts_with("cancelled: ended on request, ")
            && error.ends_with(" process(es) had to be killed"),
        "{error}"
    );
    assert!(!lives(&node.trace("escaped")), "the child outlives its hook");
    assert_eq!(world.operator.output(sent.id, node.id).await, b"begun\n");
}

/// How many processes of this execution live.
fn of_execution(id: ExecutionId) -> usize {
    let variable = format!("MUSTER_EXECUTION_ID={id}");
    let entries = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    let holds = |environment: Vec<u8>| {
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == variable.as_bytes())
    };
    entries
        .filter_map(|entry| std::fs::read(entry.path().join("environ")).ok())
        .filter(|environment| holds(environment.clone()))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stopped_hook_had_started_may_put_its_things_in_order() {
    let world = World::new().await;
    let node = world.node("n").hook("tidy", TIDY).start().await;
    for timed_out in [false, true] {
        for trace in ["child", "tidied"] {
            let _ = std::fs::remove_file(node.dir.join(trace));
        }
        let mut dispatch = on_node("tidy", node.id);
        if timed_out {
            dispatch["timeout_seconds"] = json!(2);
        }
        let sent = world.dispatch(dispatch).await;
        ran(&node, sent.id).await;
        if !timed_out {
            at_status(&world, sent.id, node.id, Status::Started).await;
            let _ = world.operator.cancel(sent.id).await;
        }
        let settled = world.settled(sent.id).await;
        let error = error_of(&settled, node.id);
        if timed_out {
            assert_eq!(settled.status, Status::Timeout);
            assert!(
                error.starts_with("timeout: ended after ") && !error.contains("killed"),
                "{error}"
            );
        } else {
            assert_eq!(settled.status, Status::Cancelled);
            assert_eq!(error, "cancelled: ended on request");
        }
        assert_eq!(node.trace("tidied"), "tidy\n", "{error}");
        assert!(!lives(&node.trace("child")));
        assert_eq!(of_execution(sent.id), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_behind_another_hook_is_withdrawn() {
    let world = World::new().await;
    let node = world
        .node("n")
        .hook("stubborn", STUBBORN)
        .hook("count", COUNT)
        .start()
        .await;
    let first = world.dispatch(on_node("stubborn", node.id)).await;
    ran(&node, first.id).await;
    let second = world.dispatch(on_node("count", node.id)).await;
    at_status(&world, second.id, node.id, Status::Ack).await;
    let _ = world.operator.cancel(second.id).await;
    let settled = world.settled(second.id).await;
    assert_eq!(settled.status, Status::Cancelled);
    assert_eq!(error_of(&settled, node.id), "cancelled: it had not started");
    let way: Vec<String> = told(&world, second.id).into_iter().map(|event| event.1).collect();
    assert_eq!(way, ["ack", "started", "cancelled"]);

    std::fs::write(node.dir.join("go"), "").unwrap();
    let first = world.settled(first.id).await;
    assert_eq!(first.status, Status::Succeeded, "{first:#?}");
    assert_eq!(node.trace_lines("ran"), [first.id.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_dead_node_ends_and_the_node_stops_the_hook_when_it_is_back() {
    let world = World::with_config(Some("[limits]\ncancel_grace_seconds = 2\n")).await;
    let mut node = world
        .node("n")
        .config(SHORT_GRACE)
        .hook("stubborn", STUBBORN)
        .start()
        .await;
    let sent = world.dispatch(on_node("stubborn", node.id)).await;
    ran(&node, sent.id).await;
    at_status(&world, sent.id, node.id, Status::Started).await;
    node.kill9();
    let _ = world.operator.cancel(sent.id).await;
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Cancelled);
    assert_eq!(
        error_of(&settled, node.id),
        "cancelled: the node did not confirm (unreachable)"
    );
    let escaped = node.trace("escaped");
    assert!(lives(&escaped), "nobody could have ended it");
    node.start().await;
    until("the hook is ended", async || (!lives(&escaped)).then_some(())).await;
    assert_eq!(
        world.operator.execution(sent.id).await.updated_at,
        settled.updated_at
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_is_asked_and_ends_the_hook_that_lived_on() {
    let world = World::new().await;
    let mut node = world
        .node("n")
        .config(SHORT_GRACE)
        .hook("stubborn", STUBBORN)
        .start()
        .await;
    let sent = world.dispatch(on_node("stubborn", node.id)).await;
    ran(&node, sent.id).await;
    at_status(&world, sent.id, node.id, Status::Started).await;
    node.kill9();
    let _ = world.operator.cancel(sent.id).await;
    node.start().await;
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Cancelled);
    assert!(
        error_of(&settled, node.id).starts_with("cancelled: ended on request"),
        "{settled:#?}"
    );
    assert!(!lives(&node.trace("escaped")));
}

#[tokio::test(flavor = "multi_thread")]
async fn control_may_die_right_after_it_answered_a_cancel() {
    let mut world = World::new().await;
    let node = world
        .node("n")
        .config("backoff_max_seconds = 1\nstop_grace_seconds = 1\n")
        .hook("stubborn", STUBBORN)
        .start()
        .await;
    let sent = world.dispatch(on_node("stubborn", node.id)).await;
    ran(&node, sent.id).await;
    at_status(&world, sent.id, node.id, Status::Started).await;
    let _ = world.operator.cancel(sent.id).await;
    world.kill9();
    world.start().await;
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Cancelled);
    assert!(
        error_of(&settled, node.id).starts_with("cancelled: ended on request"),
        "{settled:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_may_die_while_it_waits_for_a_hook_to_end() {
    let world = World::new().await;
    let mut node = world
        .node("n")
        .config("stop_grace_seconds = 2\n")
        .hook("deaf", DEAF)
        .start()
        .await;
    let sent = world.dispatch(on_node("deaf", node.id)).await;
    ran(&node, sent.id).await;
    at_status(&world, sent.id, node.id, Status::Started).await;
    let _ = world.operator.cancel(sent.id).await;
    until("the hook is asked to end", async || {
        (!node.trace("asked").is_empty()).then_some(())
    })
    .await;
    node.kill9();
    node.start().await;
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Cancelled);
    let error = error_of(&settled, node.id);
    assert!(
        error.starts_with("cancelled: ended on request, ") && error.contains("had to be killed"),
        "{error}"
    );
}

// ---- what no control would say, or seldom does

async fn counting() -> (FakeControl, Musterd) {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.configure(SHORT_GRACE);
            node.install_hook("count", COUNT);
            node.install_hook("stubborn", STUBBORN);
        })
        .await;
    (control, node)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_after_its_cancel_is_not_run_not_even_after_a_restart() {
    let (control, mut node) = counting().await;
    let before = control.hook_request("count", node.hook_digest("count"));
    control.push_cancel(&control.cancel(before.execution_id));
    let later = control.hook_request("count", node.hook_digest("count"));
    control.push_cancel(&control.cancel(later.execution_id));
    control.push(&before);
    let ended = control.outcome(before.execution_id).await;
    assert_eq!(ended.status, Status::Cancelled);
    assert_eq!(
        control.advances(before.execution_id),
        [Status::Ack, Status::Started, Status::Cancelled]
    );
    node.kill9();
    control.launch(&mut node).await;
    control.push(&later);
    assert_eq!(
        control.outcome(later.execution_id).await.status,
        Status::Cancelled
    );
    assert_eq!(node.trace("ran"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_what_has_ended_changes_nothing() {
    let (control, node) = counting().await;
    let request = control.hook_request("count", node.hook_digest("count"));
    control.push(&request);
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    control.push_cancel(&control.cancel(request.execution_id));
    let other = control.hook_request("count", node.hook_digest("count"));
    control.push(&other);
    assert_eq!(
        control.outcome(other.execution_id).await.status,
        Status::Succeeded
    );
    assert_eq!(
        control.advances(request.execution_id),
        [Status::Ack, Status::Started, Status::Succeeded]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_does_not_verify_stops_nothing() {
    let (control, node) = counting().await;
    let request = control.hook_request("stubborn", node.hook_digest("stubborn"));
    control.push(&request);
    ran(&node, request.execution_id).await;

    let cancel = control.cancel(request.execution_id);
    let stranger = muster_shared::envelope::Signer::from_seed(&muster_tests::chance());
    control.push_envelope("action_cancel", "1", &stranger.seal(&cancel).unwrap());
    let mut expired = cancel.clone();
    expired.expires_at = Timestamp::now().minus(Duration::from_secs(60));
    control.push_cancel(&expired);
    let mut foreign = cancel.clone();
    foreign.node_id = NodeId::mint(Timestamp::now(), muster_tests::chance());
    control.push_cancel(&foreign);
    // Sound, under the name of another kind.
    control.push_envelope("action_request", "2", &control.signer().seal(&cancel).unwrap());
    let probe = control.request("ping", ActionKind::Builtin);
    control.push(&probe);
    let _ = control.outcome(probe.execution_id).await;

    std::fs::write(node.dir.join("go"), "").unwrap();
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_began_before_its_acknowledgement_was_refused_is_stopped() {
    use muster_tests::fake_control::AnswerWith;
    let (control, node) = counting().await;
    let request = control.hook_request("stubborn", node.hook_digest("stubborn"));
    // Its acknowledgement is held up by failures until the hook has begun; then control has cancelled it.
    control.answer_next(vec![AnswerWith::Status(503); 1000]);
    control.push(&request);
    ran(&node, request.execution_id).await;
    let escaped = node.trace("escaped");
    assert!(lives(&escaped), "it runs");
    control.answer_from_now([AnswerWith::Status(409)]);
    let told = until("the hook is stopped and its end is told", async || {
        let told = control.callbacks(request.execution_id);
        let ends = told.iter().map(|taken| taken.callback.status);
        ends.into_iter().find(|status| status.is_terminal())
    })
    .await;
    assert_eq!(told, Status::Cancelled, "it was not its timeout");
    assert!(!lives(&escaped));
    // This control holds it for pending, so that what the node tells further does not fit.
    let _ = control.take_complaints();
}

// ---- what an operator types

#[tokio::test(flavor = "multi_thread")]
async fn the_command_cancels_waits_and_tells_by_its_exit_code() {
    let world = World::new().await;
    let node = world
        .node("n")
        .labels("fleet=f")
        .config(SHORT_GRACE)
        .hook("stubborn", STUBBORN)
        .start()
        .await;
    let away = BareNode::enroll(&world, "fleet=f").await;
    away.declare(&[("stubborn", node.hook_digest("stubborn"))]).await;
    let sent = world.dispatch(on("stubborn", "fleet=f")).await;
    ran(&node, sent.id).await;
    at_status(&world, sent.id, node.id, Status::Started).await;
    let id = sent.id.to_string();
    let muster = async |args: &[&str]| {
        let args = [&["execution", "cancel", id.as_str()], args].concat();
        world.operator.muster(&args).await
    };

    let said = muster(&["--node", &away.id.to_string(), "-o", "json"])
        .await
        .expect(0);
    assert_eq!(said.json()["outcomes"][0]["outcome"], "cancelled");
    assert!(said.stderr.contains("cancelled it on 1 node"), "{}", said.stderr);
    let said = muster(&["--wait", "--wait-timeout", "1ms"]).await.expect(8);
    assert!(
        said.stderr.contains("asked 1 node to end it") && said.stderr.contains("the cancel stands"),
        "{}",
        said.stderr
    );
    let said = muster(&["--node", &node.id.to_string(), "--wait"])
        .await
        .expect(0);
    assert!(
        said.stdout.contains("cancelled: ended on request"),
        "{}",
        said.stdout
    );
    let said = muster(&[]).await.expect(0);
    assert!(said.stdout.contains("settled"), "{}", said.stdout);
    let _ = muster(&["--wait"]).await.expect(0);
    let _ = muster(&["--node", "nobody"]).await.expect(5);
    // To whoever waits for the action itself, a cancel is none of its successes.
    let _ = world
        .operator
        .muster(&["execution", "watch", &id])
        .await
        .expect(3);
    let nothing = ExecutionId::mint(Timestamp::now(), muster_tests::chance()).to_string();
    let _ = world
        .operator
        .muster(&["execution", "cancel", &nothing])
        .await
        .expect(5);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_one_node_does_not_wait_for_the_others() {
    let world = World::new().await;
    let node = world
        .node("n")
        .labels("fleet=f")
        .config(SHORT_GRACE)
        .hook("stubborn", STUBBORN)
        .start()
        .await;
    let other = BareNode::enroll(&world, "fleet=f").await;
    other.declare(&[("stubborn", node.hook_digest("stubborn"))]).await;
    let sent = world.dispatch(on("stubborn", "fleet=f")).await;
    ran(&node, sent.id).await;
    let id = sent.id.to_string();
    let said = world
        .operator
        .muster(&[
            "execution",
            "cancel",
            &id,
            "--node",
            &node.id.to_string(),
            "--wait",
        ])
        .await
        .expect(0);
    assert!(said.stdout.contains("cancelled"), "{}", said.stdout);
    let open = world.operator.execution(sent.id).await;
    assert_eq!(target(&open, other.id).status, Status::Pending);
    let _ = world.operator.cancel(sent.id).await;
}
