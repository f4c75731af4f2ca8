//! Taking a dispatch back: what has not started never runs, what runs is ended, and what cannot be asked ends all the same.

use muster_shared::time::Timestamp;
use muster_tests::{
    prelude::*,
    world::{on, on_node, target},
};

/// Everything that is told of one execution, late news included: from, to, late.
fn told(world: &World, id: ExecutionId) -> Vec<(String, String, bool)> {
    let db = world.database();
    let mut events = db
        .prepare("SELECT from_status, to_status, late FROM action_execution_event WHERE execution_id = ?1 ORDER BY id")
        .expect("the timeline can be read");
    events
        .query_map([id.uuid().as_bytes().as_slice()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .and_then(Iterator::collect)
        .expect("the timeline can be read")
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
async fn a_cancel_never_ends_later_than_the_deadline_would() {
    let limits = "[limits]\ncancel_grace_seconds = 3600\nreport_grace_seconds = 1\n";
    let world = World::with_config(Some(limits)).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let mut frames = node.stream().await;
    let mut dispatch = on_node("ping", node.id);
    dispatch["timeout_seconds"] = json!(2);
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
    let asked: i64 = world
        .database()
        .query_row(
            "SELECT count(*) FROM action_execution_target WHERE cancel_requested_ms IS NOT NULL",
            [],
            |row| row.get(0),
        )
        .unwrap();
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
