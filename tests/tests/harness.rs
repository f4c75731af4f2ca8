//! The harness itself: a story that leaves a mess, or a daemon that misbehaves, has to fail.

use std::panic::AssertUnwindSafe;

use muster_tests::{operator::client_with_ca, prelude::*, world::on_node};

fn failure_of_dropping<T>(thing: T) -> Option<String> {
    let panic = std::panic::catch_unwind(AssertUnwindSafe(move || drop(thing))).err()?;
    Some(match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other
            .downcast::<&str>()
            .map_or_else(|_| "no words".to_owned(), |text| (*text).to_owned()),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_world_left_with_an_open_invocation_fails_its_story() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let id = node.id;
    drop(node);
    let _ = world.dispatch(on_node("ping", id)).await;
    let failure = failure_of_dropping(world);
    assert!(
        failure
            .as_ref()
            .is_some_and(|text| text.contains("left unsettled")),
        "{failure:?}"
    );

    let world = World::new().await;
    let node = world.node("n").start().await;
    let id = node.id;
    drop(node);
    let _ = world.dispatch(on_node("ping", id)).await;
    world.leave_open();
    assert_eq!(failure_of_dropping(world), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_is_left_running_fails_its_story_and_is_ended() {
    let world = World::new().await;
    let node = world
        .node("n")
        .hook("long", "#!/bin/sh\necho $$ > @DIR@/begun\nexec sleep 600\n")
        .start()
        .await;
    let _ = world.dispatch(on_node("long", node.id)).await;
    until("the hook runs", async || {
        node.dir.join("begun").exists().then_some(())
    })
    .await;
    world.leave_open();
    let dir = world.dir().to_owned();
    until("it wrote its id", async || {
        (!node.trace("begun").is_empty()).then_some(())
    })
    .await;
    let hook = std::path::PathBuf::from(format!("/proc/{}", node.trace("begun").trim()));
    assert!(hook.exists());
    drop(node);
    let failure = failure_of_dropping(world);
    assert!(
        failure.as_ref().is_some_and(|text| text.contains("supervisor")),
        "{failure:?}"
    );
    until("it is ended", async || {
        muster_tests::daemon::supervisors_under(&dir)
            .is_empty()
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fake_control_refuses_what_the_real_one_does_and_remembers_it() {
    let control = FakeControl::new().await;
    let node = control.start_node(|_| {}).await;
    let http = client_with_ca(&control.dir().join("ca.pem"));
    let request = control.request("ping", ActionKind::Builtin);
    let nsk = std::fs::read_to_string(node.state.join("nsk")).expect("the node has a key");
    let post = |key: &str, body: Value| http.post(&request.callback_url).bearer_auth(key).json(&body);

    let ack = json!({"status": "ack"});
    let foreign = post("another", ack.clone()).send().await.expect("it answers");
    assert_eq!(foreign.status(), 401);
    let no_token = post(nsk.trim(), ack.clone()).send().await.expect("it answers");
    assert_eq!(no_token.status(), 403);
    let jump = post(nsk.trim(), json!({"status": "succeeded"}))
        .header(CALLBACK_TOKEN_HEADER, &request.callback_token)
        .send()
        .await
        .expect("it answers");
    assert_eq!(jump.status(), 409);
    let nonsense = post(nsk.trim(), json!({"status": "dancing"}))
        .send()
        .await
        .expect("it answers");
    assert_eq!(nonsense.status(), 400);

    drop(node);
    let failure = failure_of_dropping(control);
    assert!(
        failure.as_ref().is_some_and(|text| text.contains("misbehaved")),
        "{failure:?}"
    );
}
