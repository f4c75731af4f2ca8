//! Steps that a node tells together, and what control and an older control make of them.

use muster_shared::{status::Passed, wire::CALLBACK_TOKEN_HEADER};
use muster_tests::{
    fake_control::AnswerWith,
    operator::Answer,
    prelude::*,
    world::{on_node, target},
};

const LARGE: &str = "#!/bin/sh\nhead -c 40000 /dev/zero\n";

fn steps(world: &World, id: ExecutionId) -> Vec<String> {
    let db = world.database();
    let rows = db.rows(&format!(
        "SELECT to_status FROM action_execution_event WHERE execution_id = {} ORDER BY id",
        db.id(id.uuid())
    ));
    rows.into_iter().filter_map(|mut row| row.pop()?).collect()
}

fn having_passed(passed: &[Passed], status: Status) -> Callback {
    Callback {
        passed: passed.to_vec(),
        exit_code: status.is_terminal().then_some(0),
        ..Callback::of(status)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_are_told_together_are_all_taken_or_none() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let request = node.next_request(&mut node.stream().await).await;

    // There is no way from where it is.
    let before = world.rows();
    let started = having_passed(&[Passed::Started], Status::Succeeded);
    let _ = node
        .report(&request, &started)
        .await
        .refused(409, "invalid_state_transition");
    let acked = having_passed(&[Passed::Ack], Status::Succeeded);
    let _ = node
        .report(&request, &acked)
        .await
        .refused(409, "invalid_state_transition");
    // An end is passed by nothing.
    let ended = node
        .request(reqwest::Method::POST, &node.callback_path(request.execution_id))
        .header(CALLBACK_TOKEN_HEADER, &request.callback_token)
        .json(&json!({ "status": "succeeded", "passed": ["ack", "failed"] }));
    let _ = Answer::to(ended).await.refused(400, "invalid_body");
    assert_eq!(world.rows(), before);

    let all = having_passed(&[Passed::Ack, Passed::Started], Status::Succeeded);
    let _ = node.report(&request, &all).await.expect(200);
    let settled = world.operator.execution(sent.id).await;
    let told = target(&settled, node.id);
    assert_eq!((told.status, told.exit_code), (Status::Succeeded, Some(0)));
    assert!(told.started_at.is_some() && told.ended_at.is_some());
    let way = ["ack", "started", "succeeded"];
    assert_eq!(steps(&world, sent.id), way);
    // Told again it is nothing new, from wherever it is told.
    for again in [all, having_passed(&[Passed::Started], Status::Succeeded)] {
        let _ = node.report(&request, &again).await.expect(200);
    }
    assert_eq!(steps(&world, sent.id), way);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_the_way_is_gone_from_where_the_invocation_is() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let request = node.next_request(&mut node.stream().await).await;
    let _ = node
        .report(&request, &Callback::of(Status::Ack))
        .await
        .expect(200);
    // The answer was lost, and more has happened meanwhile.
    let all = having_passed(&[Passed::Ack, Passed::Started], Status::Failed);
    let _ = node.report(&request, &all).await.expect(200);
    assert_eq!(steps(&world, sent.id), ["ack", "started", "failed"]);
    let other = having_passed(&[Passed::Started], Status::Succeeded);
    let _ = node
        .report(&request, &other)
        .await
        .refused(409, "execution_already_terminal");
    // Evidence is one word, however it was told.
    assert_eq!(steps(&world, sent.id), ["ack", "started", "failed", "succeeded"]);
    assert_eq!(world.operator.execution(sent.id).await.status, Status::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_from_before_hears_one_step_after_another() {
    let control = FakeControl::new().await;
    control.take_single_steps();
    let node = control.start_node(|node| node.install_hook("large", LARGE)).await;
    let way = [Status::Ack, Status::Started, Status::Succeeded];
    let ping = control.request("ping", ActionKind::Builtin);
    control.push(&ping);
    assert_eq!(control.outcome(ping.execution_id).await.status, Status::Succeeded);
    assert_eq!(control.advances(ping.execution_id), way);

    let large = control.hook_request("large", node.hook_digest("large"));
    control.push(&large);
    assert_eq!(
        control.outcome(large.execution_id).await.status,
        Status::Succeeded
    );
    assert_eq!(control.advances(large.execution_id), way);
    assert_eq!(
        control.upload(large.execution_id).map(|bytes| bytes.len()),
        Some(40_000)
    );
    let complaints = control.take_complaints();
    let expected = |complaint: &String| complaint.starts_with("409 invalid_state_transition");
    assert!(complaints.iter().all(expected), "{complaints:#?}");
    // It is nothing to worry about.
    assert!(!node.log().contains("will not take a callback"), "{}", node.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_once_more_is_told_to_its_end_also_by_a_daemon_that_was_killed_meanwhile() {
    let control = FakeControl::new().await;
    let mut node = control
        .start_node(|node| {
            node.configure("backoff_max_seconds = 1\n");
            node.install_hook("large", LARGE);
        })
        .await;
    let large = control.hook_request("large", node.hook_digest("large"));
    let id = large.execution_id;
    control.push(&large);
    let way = [Status::Ack, Status::Started, Status::Succeeded];
    until("it is told", async || (control.advances(id) == way).then_some(())).await;
    until("the daemon knows that it is", async || {
        let status = node.tool(&["status", "-o", "json"]).await;
        (!status.stdout.contains(&id.to_string())).then_some(())
    })
    .await;
    control.forget_steps(id);
    // It hears that the output is declared, and nothing more.
    let deaf = std::iter::repeat_n(AnswerWith::Status(503), 1000);
    control.answer_from_now(std::iter::once(AnswerWith::TakeAndHangUp).chain(deaf));
    control.push(&large);
    until("it is told half of it once more", async || {
        (control.advances(id) == way[..2]).then_some(())
    })
    .await;
    node.kill9();
    control.answer_from_now([]);
    control.launch(&mut node).await;
    until("it is told to its end", async || {
        (control.advances(id) == way).then_some(())
    })
    .await;
}
