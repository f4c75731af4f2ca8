//! Bad input gets a clear error and changes nothing.

use muster_shared::{
    time::Timestamp,
    wire::{CALLBACK_TOKEN_HEADER, EnrollResponse},
};
use muster_tests::{
    Answer,
    binaries::binary,
    operator::{client_with_ca, until_rate_limited},
    prelude::*,
    world::{on, on_node, target},
};
use reqwest::Method;

/// Asks for something that must be refused, and requires that nothing changed.
async fn refused(world: &World, ask: impl Future<Output = Answer>, status: u16, code: &str) -> Problem {
    let before = (world.rows(), states(world).await);
    let answer = ask.await;
    let text = answer.text();
    let problem = answer.refused(status, code);
    assert_eq!(
        (world.rows(), states(world).await),
        before,
        "a refusal changed something: {text}"
    );
    assert!(problem.detail.len() > 5, "no words for a person: {text}");
    problem
}

async fn states(world: &World) -> Vec<(ExecutionId, Status, Timestamp)> {
    world
        .operator
        .executions()
        .await
        .iter()
        .map(|e| (e.id, e.status, e.updated_at))
        .collect()
}

async fn dispatch_refused(world: &World, body: Value, status: u16, code: &str) -> Problem {
    refused(world, world.operator.try_dispatch(&body), status, code).await
}

// ---- dispatch

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_that_makes_no_sense_is_answered_with_the_byte_where_it_stops() {
    let world = World::new().await;
    let _node = world.node("n").labels("role=web").start().await;
    for (selector, position) in [
        ("role=web,", 9),
        ("role in (a", 10),
        ("=x", 0),
        ("role==", 6),
        ("role=web extra", 9),
    ] {
        let problem = dispatch_refused(&world, on("ping", selector), 400, "malformed_selector").await;
        let at = problem.position.expect("a malformed selector has a position");
        assert!(
            at.abs_diff(position) <= 1,
            "{selector:?} stops making sense at {position}, not {at}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_selector_ever_means_everybody_by_accident() {
    let world = World::new().await;
    let _node = world.node("n").labels("role=web").start().await;
    for nothing in ["", " ", "\t\n", ",", ",,", " , "] {
        dispatch_refused(&world, on("ping", nothing), 400, "malformed_selector").await;
    }
    for nobody in [
        "role=typo",
        "role in (x,y)",
        "!role",
        "role=web,role=db",
        "nosuch",
    ] {
        dispatch_refused(&world, on("ping", nobody), 422, "selector_empty_cohort").await;
    }
    let everybody = world.run(json!({"action": "ping", "all": true})).await;
    assert_eq!(everybody.targets.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_names_its_target_in_exactly_one_way() {
    let world = World::new().await;
    let node = world.node("n").labels("role=web").start().await;
    let id = node.id;
    dispatch_refused(&world, json!({"action": "ping"}), 400, "invalid_target").await;
    dispatch_refused(
        &world,
        json!({"action": "ping", "all": false}),
        400,
        "invalid_target",
    )
    .await;
    for both in [
        json!({"action": "ping", "selector": "role=web", "node_id": id}),
        json!({"action": "ping", "selector": "role=web", "all": true}),
        json!({"action": "ping", "node_id": id, "all": true}),
        json!({"action": "ping", "selector": "", "node_id": id}),
    ] {
        dispatch_refused(&world, both, 400, "invalid_target").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_that_nobody_has_is_not_dispatched() {
    let world = World::new().await;
    let node = world
        .node("n")
        .labels("role=web")
        .hook("mine", "#!/bin/sh\n")
        .start()
        .await;
    dispatch_refused(&world, on_node("nosuch", node.id), 400, "action_not_declared").await;
    dispatch_refused(&world, on("nosuch", "role=web"), 400, "action_not_declared").await;
    for name in ["", "../../bin/sh", "a b", "-rf", &"x".repeat(65), "ping\n"] {
        let before = world.rows();
        let answer = world.operator.try_dispatch(&on_node(name, node.id)).await;
        assert_eq!(answer.status, 400, "{name:?}: {}", answer.text());
        assert_eq!(world.rows(), before);
    }
    // The right name under the wrong kind is another action.
    let mut wrong_kind = on_node("mine", node.id);
    wrong_kind["type"] = json!("builtin");
    dispatch_refused(&world, wrong_kind, 400, "action_not_declared").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_exist_gets_nothing() {
    let world = World::new().await;
    let _node = world.node("n").start().await;
    for id in ["nonsense", "", "0190", "../1"] {
        let before = world.rows();
        let answer = world
            .operator
            .try_dispatch(&json!({"action": "ping", "node_id": id}))
            .await;
        assert_eq!(answer.status, 400, "{id:?}: {}", answer.text());
        assert_eq!(world.rows(), before);
    }
    let stranger = NodeId::mint(Timestamp::now(), muster_tests::chance());
    let before = world.rows();
    let answer = world.operator.try_dispatch(&on_node("ping", stranger)).await;
    assert!((400..500).contains(&answer.status), "{}", answer.text());
    assert!(answer.content_type.starts_with("application/problem+json"));
    assert_eq!(world.rows(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_wrong_or_too_large_is_refused() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let path = world.operator.in_project("executions:dispatch");
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{\"action\":\"ping\",\"selecter\":\"a=b\"}",
        "{\"action\":7,\"all\":true}",
    ] {
        let ask = world
            .operator
            .request(Method::POST, &path)
            .header("content-type", "application/json")
            .body(body);
        refused(&world, Answer::to(ask), 400, "invalid_body").await;
    }
    let mut huge = on_node("ping", node.id);
    huge["parameters"] = json!({"fill": "x".repeat(64 * 1024)});
    dispatch_refused(&world, huge.clone(), 400, "invalid_parameters").await;
    huge["parameters"] = json!({"fill": "x".repeat(200 * 1024)});
    dispatch_refused(&world, huge, 413, "request_body_too_large").await;
    for not_an_object in [json!([1]), json!("text"), json!(7)] {
        let mut odd = on_node("ping", node.id);
        odd["parameters"] = not_an_object;
        dispatch_refused(&world, odd, 400, "invalid_body").await;
    }
    // At the limit it is taken.
    let mut large = on_node("ping", node.id);
    large["parameters"] = json!({"fill": "x".repeat(64 * 1024 - 11)});
    assert_eq!(world.run(large).await.targets.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_far_past_the_limit_is_answered_before_the_connection_goes() {
    let world = World::new().await;
    let _node = world.node("n").start().await;
    let huge = json!({"action": "ping", "all": true, "parameters": {"fill": "x".repeat(4 << 20)}});
    for _ in 0..3 {
        dispatch_refused(&world, huge.clone(), 413, "request_body_too_large").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_that_is_none_is_refused() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    for timeout in [0, -1, 86_401, i64::MAX, i64::MIN] {
        let mut dispatch = on_node("ping", node.id);
        dispatch["timeout_seconds"] = json!(timeout);
        dispatch_refused(&world, dispatch, 400, "invalid_timeout").await;
    }
    for timeout in [json!("60"), json!(1.5), json!([])] {
        let mut dispatch = on_node("ping", node.id);
        dispatch["timeout_seconds"] = timeout;
        dispatch_refused(&world, dispatch, 400, "invalid_body").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_found_and_odd_questions_are_refused() {
    let world = World::new().await;
    let ghost = ExecutionId::mint(Timestamp::now(), muster_tests::chance());
    let path = world.operator.in_project(&format!("executions/{ghost}"));
    refused(&world, world.operator.get(&path), 404, "execution_not_found").await;
    let path = world.operator.in_project("executions/nonsense");
    refused(&world, world.operator.get(&path), 400, "invalid_execution_id").await;
    for limit in ["0", "201", "-1", "x"] {
        let path = world.operator.in_project(&format!("executions?limit={limit}"));
        refused(&world, world.operator.get(&path), 400, "invalid_limit").await;
    }
    let path = world.operator.in_project("executions?cursor=forged");
    refused(&world, world.operator.get(&path), 400, "invalid_cursor").await;
    let foreign = NodeId::mint(Timestamp::now(), muster_tests::chance());
    refused(
        &world,
        world.operator.get(&format!("/v1/nodes/{foreign}")),
        404,
        "node_not_found",
    )
    .await;
    let other = format!("/v1/projects/{foreign}/executions");
    let answer = world.operator.get(&other).await;
    assert!(matches!(answer.status, 403 | 404), "{}", answer.text());
}

// ---- who asks

#[tokio::test(flavor = "multi_thread")]
async fn without_a_good_operator_token_every_door_is_shut() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let ran = world.run(on_node("ping", node.id)).await;
    let (project, execution) = (&world.operator.project, ran.id);
    let doors = [
        (
            Method::POST,
            format!("/v1/projects/{project}/executions:dispatch"),
        ),
        (
            Method::POST,
            format!("/v1/projects/{project}/executions/dispatch"),
        ),
        (Method::GET, format!("/v1/projects/{project}/executions")),
        (
            Method::GET,
            format!("/v1/projects/{project}/executions/{execution}"),
        ),
        (
            Method::GET,
            format!("/v1/projects/{project}/executions/{execution}/events"),
        ),
        (
            Method::POST,
            format!("/v1/projects/{project}/executions/{execution}/cancel"),
        ),
        (
            Method::GET,
            format!(
                "/v1/projects/{project}/executions/{execution}/targets/{}/output",
                node.id
            ),
        ),
        (Method::GET, format!("/v1/nodes?project_id={project}")),
        (Method::GET, format!("/v1/nodes/{}", node.id)),
        (Method::PATCH, format!("/v1/nodes/{}/labels", node.id)),
        (Method::GET, format!("/v1/projects/{project}/hooks")),
        (Method::POST, format!("/v1/projects/{project}/hooks/x/approve")),
        (Method::POST, format!("/v1/projects/{project}/bootstrap-tokens")),
        (
            Method::GET,
            format!("/v1/integrity-violations?project_id={project}"),
        ),
    ];
    let nsk = std::fs::read_to_string(node.state.join("nsk")).unwrap();
    let bare = client_with_ca(&world.operator.ca_file);
    let wrong = format!("{}x", world.operator.token);
    for (method, path) in doors {
        let url = format!("{}{path}", world.operator.server);
        let ask = || bare.request(method.clone(), &url).json(&json!({}));
        refused(&world, Answer::to(ask()), 401, "unauthenticated").await;
        for token in [wrong.as_str(), "", nsk.trim()] {
            refused(
                &world,
                Answer::to(ask().bearer_auth(token)),
                401,
                "unauthenticated",
            )
            .await;
        }
        refused(
            &world,
            Answer::to(ask().basic_auth("x", Some("y"))),
            401,
            "unauthenticated",
        )
        .await;
    }
    let health = Answer::to(bare.get(format!("{}/healthz", world.operator.server))).await;
    assert_eq!(health.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_or_expired_operator_token_opens_nothing() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let now = Timestamp::now().as_millis();
    let ask = || world.operator.try_dispatch_owned(on_node("ping", node.id));
    for (column, code) in [("expires_at", "token_expired"), ("revoked_at", "token_revoked")] {
        let past = world.database().at(now - 1);
        world.alter(&format!("UPDATE operator_token SET {column} = {past}"));
        let before = world.rows();
        let _ = ask().await.refused(401, code);
        assert_eq!(world.rows(), before);
        world.alter(&format!("UPDATE operator_token SET {column} = NULL"));
    }
    assert_eq!(ask().await.status, 201);
    let sent = world.operator.executions().await;
    let _ = world.settled(sent[0].id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_relation_an_operator_may_do_nothing() {
    let world = World::new().await;
    let node = world.node("n").labels("role=web").start().await;
    let may_open_the_project_alone = format!(
        "UPDATE relation_tuple SET relation = 'act', resource = 'project:{}'",
        world.operator.project
    );
    world.alter(&may_open_the_project_alone);
    let problem = dispatch_refused(&world, on_node("ping", node.id), 403, "permission_denied").await;
    assert_eq!(problem.reason.as_deref(), Some("insufficient_relation"));
    let problem = dispatch_refused(&world, on("ping", "role=web"), 422, "selector_empty_cohort").await;
    assert!(
        problem
            .dropped
            .iter()
            .any(|d| d.reason == "insufficient_relation" && d.count == 1),
        "{problem:?}"
    );

    // Whoever may nothing learns nothing, not even that the project exists.
    world.alter("UPDATE relation_tuple SET relation = 'nothing'");
    let before = world.rows();
    let answer = world.operator.try_dispatch(&on_node("ping", node.id)).await;
    let _ = answer.refused(404, "project_not_found");
    assert_eq!(world.rows(), before);
}

// ---- nodes

#[tokio::test(flavor = "multi_thread")]
async fn a_node_speaks_for_itself_alone() {
    let world = World::new().await;
    let one = BareNode::enroll(&world, "n=one").await;
    let two = BareNode::enroll(&world, "n=two").await;
    one.declare(&[]).await;
    two.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", one.id)).await;
    let mut frames = one.stream().await;
    let request = one.next_request(&mut frames).await;

    // One's places with two's key.
    let beat = json!({"client_now": Timestamp::now(), "binary_checksum": "", "binary_version": "0", "nat_summary": {}});
    for (method, path) in [
        (Method::GET, format!("/v1/nodes/{}/events", one.id)),
        (Method::POST, format!("/v1/nodes/{}/heartbeat", one.id)),
        (Method::PUT, format!("/v1/nodes/{}/capabilities", one.id)),
        (Method::POST, format!("/v1/nodes/{}/integrity-violations", one.id)),
    ] {
        let before = world.rows();
        let problem: Problem = Answer::to(two.request(method, &path).json(&beat))
            .await
            .expect(403)
            .json();
        assert!(
            matches!(
                problem.code.as_deref(),
                Some("node_id_mismatch" | "nsk_node_mismatch")
            ),
            "{path}: {problem:?}"
        );
        assert_eq!(world.rows(), before);
    }
    let callback = Callback::of(Status::Ack);
    let with_twos_key = two
        .request(Method::POST, &one.callback_path(sent.id))
        .header(CALLBACK_TOKEN_HEADER, &request.callback_token)
        .json(&callback);
    let before = world.rows();
    let problem: Problem = Answer::to(with_twos_key).await.expect(403).json();
    assert!(
        matches!(
            problem.code.as_deref(),
            Some("node_id_mismatch" | "nsk_node_mismatch")
        ),
        "{problem:?}"
    );
    assert_eq!(world.rows(), before);

    // Its own place in an execution that does not address it.
    let not_addressed = two
        .request(Method::POST, &two.callback_path(sent.id))
        .header(CALLBACK_TOKEN_HEADER, &request.callback_token)
        .json(&callback);
    let answer = Answer::to(not_addressed).await;
    assert!(matches!(answer.status, 403 | 404), "{}", answer.text());
    assert_eq!(world.rows(), before);
    assert_eq!(world.operator.execution(sent.id).await.status, Status::Pending);
    finish(&one, &request).await;
}

async fn finish(node: &BareNode, request: &ActionRequest) {
    for status in [Status::Ack, Status::Started, Status::Succeeded] {
        let callback = Callback {
            exit_code: status.is_terminal().then_some(0),
            ..Callback::of(status)
        };
        let _ = node.report(request, &callback).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_a_foreign_and_a_revoked_node_key_open_nothing() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    let http = client_with_ca(&world.operator.ca_file);
    let url = format!("{}/v1/nodes/{}/events", world.operator.server, node.id);
    for key in ["", "wrong", &format!("{}x", node.nsk), &world.operator.token] {
        refused(
            &world,
            Answer::to(http.get(&url).bearer_auth(key)),
            401,
            "unauthenticated",
        )
        .await;
    }
    refused(&world, Answer::to(http.get(&url)), 401, "unauthenticated").await;

    world.alter(&format!(
        "UPDATE node SET decommissioned_at = {}",
        world.database().at(Timestamp::now().as_millis())
    ));
    refused(
        &world,
        Answer::to(http.get(&url).bearer_auth(&node.nsk)),
        401,
        "nsk_revoked",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_needs_the_token_of_its_invocation() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let first = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let first_request = node.next_request(&mut frames).await;
    assert_eq!(first_request.execution_id, first.id);
    let second = world.dispatch(on_node("ping", node.id)).await;
    let second_request = loop {
        let request = node.next_request(&mut frames).await;
        if request.execution_id == second.id {
            break request;
        }
    };

    let path = node.callback_path(first.id);
    let call = || node.request(Method::POST, &path).json(&Callback::of(Status::Ack));
    refused(&world, Answer::to(call()), 403, "callback_token_mismatch").await;
    for token in ["", "wrong", &second_request.callback_token] {
        let ask = Answer::to(call().header(CALLBACK_TOKEN_HEADER, token));
        refused(&world, ask, 403, "callback_token_mismatch").await;
    }
    finish(&node, &first_request).await;
    finish(&node, &second_request).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_edges_of_the_status_machine_are_walked_and_an_end_is_an_end() {
    use Status::{Ack, Cancelled, Failed, Pending, Started, Succeeded, Timeout};
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await;

    let report = |status| node.report_owned(&request, Callback::of(status));
    for jump in [Started, Succeeded, Failed, Cancelled] {
        refused(&world, report(jump), 409, "invalid_state_transition").await;
    }
    let _ = report(Ack).await.expect(200);
    let rows = world.rows();
    let _ = report(Ack).await.expect(200);
    assert_eq!(world.rows(), rows, "a re-post is no event");
    for jump in [Pending, Succeeded, Failed, Cancelled] {
        refused(&world, report(jump), 409, "invalid_state_transition").await;
    }
    let _ = report(Started).await.expect(200);
    for jump in [Pending, Ack] {
        refused(&world, report(jump), 409, "invalid_state_transition").await;
    }
    let ended = Callback {
        exit_code: Some(0),
        output: Some(CallbackOutput {
            inline: Some(Base64(b"done".to_vec())),
            ..Default::default()
        }),
        ..Callback::of(Succeeded)
    };
    let _ = node.report(&request, &ended).await.expect(200);
    let settled = world.operator.execution(sent.id).await;
    assert_eq!(settled.status, Succeeded);

    let rows = world.rows();
    let _ = node.report(&request, &ended).await.expect(200);
    assert_eq!(world.rows(), rows, "a re-post is no event");
    for other in [Ack, Started, Failed, Cancelled, Timeout] {
        refused(&world, report(other), 409, "execution_already_terminal").await;
    }
    // Nobody can report what only a dispatch makes.
    refused(&world, report(Pending), 409, "invalid_state_transition").await;
    let still = world.operator.execution(sent.id).await;
    assert_eq!(still.updated_at, settled.updated_at);
    let kept = target(&still, node.id);
    assert_eq!((kept.status, kept.exit_code), (Succeeded, Some(0)));
    assert_eq!(world.operator.output(sent.id, node.id).await, b"done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_after_the_timeout_is_refused_and_kept_as_evidence() {
    let world = World::with_config(Some("[limits]\nreport_grace_seconds = 1\n")).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let mut dispatch = on_node("ping", node.id);
    dispatch["timeout_seconds"] = json!(1);
    let sent = world.dispatch(dispatch).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await;
    for status in [Status::Ack, Status::Started] {
        let _ = node.report(&request, &Callback::of(status)).await.expect(200);
    }
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Timeout);
    let late = Callback {
        exit_code: Some(0),
        ..Callback::of(Status::Succeeded)
    };
    let _ = node
        .report(&request, &late)
        .await
        .refused(409, "execution_already_terminal");
    assert_eq!(world.operator.execution(sent.id).await.status, Status::Timeout);
    let kept = world.database().count("action_execution_event WHERE late");
    assert_eq!(kept, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_contradicts_itself_for_ever_leaves_a_bounded_trace() {
    let world = World::with_config(Some("[limits]\nlate_events_max = 3\n")).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let mut requests = Vec::new();
    let mut frames = node.stream().await;
    for _ in 0..2 {
        let _sent = world.dispatch(on_node("ping", node.id)).await;
        let request = node.next_request(&mut frames).await;
        for status in [Status::Ack, Status::Started, Status::Succeeded] {
            let _ = node.report(&request, &Callback::of(status)).await.expect(200);
        }
        requests.push(request);
    }
    let kept = || world.database().count("action_execution_event WHERE late");
    let denied = || {
        world
            .database()
            .count("audit WHERE relation = 'node_execution_callback.apply'")
    };
    let contradict = async |request: &ActionRequest, error: &str| {
        let told = Callback {
            error: Some(error.to_owned()),
            ..Callback::of(Status::Failed)
        };
        let _ = node
            .report(request, &told)
            .await
            .refused(409, "execution_already_terminal");
    };
    // The same again is no more than it was.
    for _ in 0..5 {
        contradict(&requests[0], "first").await;
    }
    assert_eq!((kept(), denied()), (1, 1));
    for n in 0..10 {
        contradict(&requests[0], &format!("another {n}")).await;
    }
    assert_eq!((kept(), denied()), (3, 3));
    contradict(&requests[0], "first").await;
    let metrics = world.operator.get("/metrics").await.expect(200).text();
    assert!(
        metrics.contains("muster_callbacks_late_events_dropped_total 8\n"),
        "what was left out is counted, and what was said before is not: {metrics}"
    );
    // Each invocation has room of its own. What is kept and the row of its refusal are there together, or neither is.
    world.database().refuse_rows("audit");
    let told = Callback {
        error: Some("first".to_owned()),
        ..Callback::of(Status::Failed)
    };
    let _ = node.report(&requests[1], &told).await.expect(500);
    assert_eq!((kept(), denied()), (3, 3));
    world.database().accept_rows("audit");
    contradict(&requests[1], "first").await;
    assert_eq!((kept(), denied()), (4, 4));
    let settled = world.operator.execution(requests[0].execution_id).await;
    assert_eq!(settled.status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn contradictions_are_counted_with_the_other_refusals_of_a_node() {
    let world = World::with_config(Some("[limits]\nrefusals_audited_per_hour = 2\n")).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let _sent = world.dispatch(on_node("ping", node.id)).await;
    let request = node.next_request(&mut node.stream().await).await;
    for status in [Status::Ack, Status::Started, Status::Succeeded] {
        let _ = node.report(&request, &Callback::of(status)).await.expect(200);
    }
    for n in 0..5 {
        let told = Callback {
            error: Some(format!("another {n}")),
            ..Callback::of(Status::Failed)
        };
        let _ = node
            .report(&request, &told)
            .await
            .refused(409, "execution_already_terminal");
    }
    let count = |of: &str| world.database().count(of);
    assert_eq!(count("action_execution_event WHERE late"), 5);
    assert_eq!(count("audit WHERE relation = 'node_execution_callback.apply'"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrolment_that_is_asked_again_is_the_same_node_and_none_once_that_is_out_of_service() {
    let world = World::new().await;
    let http = client_with_ca(&world.operator.ca_file);
    let token = world.bootstrap_token("n=one").await;
    let ask = BareNode::enroll_request();
    let call = || Answer::to(BareNode::enroll_call(&http, &world.operator, &token, &ask));
    let first: EnrollResponse = call().await.expect(201).json();
    let again: EnrollResponse = call().await.expect(201).json();
    assert_eq!(again.node_id, first.node_id);
    assert_ne!(
        again.nsk, first.nsk,
        "nobody holds the key of an answer that was lost"
    );

    let node = first.node_id.to_string();
    let _ = world.operator.muster(&["node", "rm", &node]).await.expect(0);
    let problem = refused(&world, call(), 409, "node_decommissioned").await;
    assert!(problem.detail.contains(&first.name), "{}", problem.detail);
    assert!(problem.detail.contains("another token"), "{}", problem.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_asks_too_often_is_told_when_to_come_back_and_no_other_is() {
    let config = "[limits]\nnode_requests_per_second = 1\nnode_requests_burst = 5\n";
    let world = World::with_config(Some(config)).await;
    let hasty = BareNode::enroll(&world, "n=one").await;
    let path = format!("/v1/nodes/{}/integrity-violations", hasty.id);
    let ask = async || {
        let report = hasty
            .request(Method::POST, &path)
            .json(&json!({ "violations": [] }));
        Answer::to(report).await
    };
    until_rate_limited("limits.node_requests_per_second", async || ask().await).await;

    // A daemon does as it is told, and loses nothing by it.
    let node = world
        .node("patient")
        .hook("count", "#!/bin/sh\necho ran >> @DIR@/ran\n")
        .start()
        .await;
    let mut sent = Vec::new();
    for _ in 0..6 {
        sent.push(world.dispatch(on_node("count", node.id)).await.id);
    }
    for id in sent {
        assert_eq!(world.settled(id).await.status, Status::Succeeded);
    }
    assert_eq!(node.trace_lines("ran").len(), 6);
    assert!(
        node.log().contains("rate_limited"),
        "it was turned away meanwhile"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_finds_ever_more_violations_fills_no_database() {
    let world = World::with_config(Some("[limits]\nopen_violations_max = 128\n")).await;
    let node = BareNode::enroll(&world, "n=one").await;
    let path = format!("/v1/nodes/{}/integrity-violations", node.id);
    let report = async |violations: Vec<Value>| {
        let body = json!({ "violations": violations });
        Answer::to(node.request(Method::POST, &path).json(&body)).await
    };
    let found = |name: &str, checksum: &str| json!({"kind": "hook_checksum", "detected_by": "inotify", "artifact_id": name, "observed_checksum": checksum});
    let digest = Digest::of(b"changed").to_base64();
    let kept = || world.database().count("integrity_violation");

    // A checksum is 32 bytes, and nothing else is stored in its place.
    for odd in [
        String::new(),
        "AAAA".to_owned(),
        "A".repeat(4 << 20),
        "no base64".to_owned(),
    ] {
        let answer = report(vec![found("deploy", &odd)]).await;
        assert!(
            matches!(answer.status, 400 | 413),
            "{} {}",
            answer.status,
            answer.text()
        );
    }
    let short = report(vec![found("deploy", "AAAA")])
        .await
        .refused(400, "invalid_body");
    assert!(short.detail.contains("SHA-256"), "{}", short.detail);
    assert_eq!(kept(), 0);

    let many: Vec<Value> = (0..127).map(|n| found(&format!("h{n}"), &digest)).collect();
    let _ = report(many.clone()).await.expect(202);
    // What is open already needs no room, and no turn at writing.
    let held = world.database().hold_writes().await;
    let _ = report(many).await.expect(202);
    drop(held);
    assert_eq!(kept(), 127);
    // All of a report or none.
    let two = vec![found("first", &digest), found("second", &digest)];
    let full = report(two).await;
    assert_eq!(full.headers["retry-after"].as_bytes(), b"60");
    let problem = full.refused(429, "too_many_violations");
    assert!(
        problem.detail.contains("limits.open_violations_max"),
        "{}",
        problem.detail
    );
    assert_eq!(kept(), 127);
    let _ = report(vec![found("first", &digest)]).await.expect(202);
    let held = world.database().hold_writes().await;
    let _ = report(vec![found("second", &digest)])
        .await
        .refused(429, "too_many_violations");
    drop(held);
    // What it declares is heard all the same, and refused by its digest.
    node.declare(&[("deploy", Digest::of(b"1"))]).await;
    node.declare(&[("deploy", Digest::of(b"2"))]).await;
    assert_eq!(kept(), 128);
    let _ = world
        .operator
        .try_dispatch(&on_node("deploy", node.id))
        .await
        .refused(409, "hook_integrity_violation");

    // Whoever looks into one makes room.
    let list = format!("/v1/integrity-violations?node_id={}&limit=1", node.id);
    let page: Value = world.operator.get(&list).await.expect(200).json();
    let id = page["items"][0]["id"].as_str().expect("it is there");
    let acknowledge = format!("/v1/integrity-violations/{id}/acknowledge");
    let _ = world
        .operator
        .post(&acknowledge, &json!({"reason": "looked into it"}))
        .await
        .expect(200);
    let _ = report(vec![found("second", &digest)]).await.expect(202);
    assert_eq!(kept(), 129);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_does_not_fit_its_tier_is_refused() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let _sent = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await;
    for status in [Status::Ack, Status::Started] {
        let _ = node.report(&request, &Callback::of(status)).await.expect(200);
    }
    let too_large = Callback {
        output: Some(CallbackOutput {
            inline: Some(Base64(vec![0; INLINE_OUTPUT_BYTES_MAX + 1])),
            ..Default::default()
        }),
        ..Callback::of(Status::Succeeded)
    };
    refused(
        &world,
        node.report(&request, &too_large),
        413,
        "inline_output_too_large",
    )
    .await;
    let other_key = Callback {
        output: Some(CallbackOutput {
            object_key: Some("../../etc/passwd".to_owned()),
            sha256: Some(Digest::of(b"")),
            inline: None,
        }),
        ..Callback::of(Status::Succeeded)
    };
    let before = world.rows();
    let answer = node.report(&request, &other_key).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(world.rows(), before);
    let _ = node
        .report(&request, &Callback::of(Status::Succeeded))
        .await
        .expect(200);
}

const UPLOAD_BYTES: usize = 20_000;

/// An invocation that has declared its output, and the URL it was offered.
async fn offered(world: &World, node: &BareNode) -> (ActionRequest, String) {
    node.declare(&[]).await;
    let _sent = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await.into_inner();
    let _ = node
        .report(&request, &Callback::of(Status::Ack))
        .await
        .expect(200);
    let declared = Callback {
        declared_output_bytes: Some(UPLOAD_BYTES as u64),
        ..Callback::of(Status::Started)
    };
    let answer: CallbackResponse = node.report(&request, &declared).await.expect(200).json();
    (request, answer.output_upload_url.expect("an upload is offered"))
}

async fn put(world: &World, url: &str, body: Vec<u8>) -> Answer {
    // A refusal before the whole body was read may cost the connection, so each try has one of its own.
    Answer::to(client_with_ca(&world.operator.ca_file).put(url).body(body)).await
}

async fn settle_with_upload(node: &BareNode, request: &ActionRequest, content: &[u8]) {
    let output = CallbackOutput {
        object_key: Some(output_key(request.execution_id, node.id)),
        sha256: Some(Digest::of(content)),
        inline: None,
    };
    let ended = Callback {
        exit_code: Some(0),
        output: Some(output),
        ..Callback::of(Status::Succeeded)
    };
    let _ = node.report(request, &ended).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_needs_its_signed_url_and_its_declared_size() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    let (request, url) = offered(&world, &node).await;
    let content = vec![b'o'; UPLOAD_BYTES];

    let (place, query) = url.split_once('?').expect("the signature is in the query");
    let mut tampered = query.to_owned();
    let last = tampered.pop().expect("a signature");
    tampered.push(if last == 'A' { 'B' } else { 'A' });
    let elsewhere = url.replacen(&node.id.to_string(), &request.execution_id.to_string(), 1);
    for bad in [place.to_owned(), format!("{place}?{tampered}"), elsewhere] {
        let answer = put(&world, &bad, content.clone()).await;
        assert!(
            matches!(answer.status, 400 | 401 | 403 | 404),
            "{bad}: {} {}",
            answer.status,
            answer.text()
        );
    }
    // Whoever has no good URL is not told which invocations there are.
    let nobody = url.replacen(&request.execution_id.to_string(), &node.id.to_string(), 1);
    let answer = put(&world, &nobody, content.clone()).await;
    let _ = answer.refused(403, "upload_url_invalid");
    for wrong_size in [UPLOAD_BYTES + 1, UPLOAD_BYTES - 1] {
        let answer = put(&world, &url, vec![b'o'; wrong_size]).await;
        assert!(
            matches!(answer.status, 400 | 403 | 413),
            "{} {}",
            answer.status,
            answer.text()
        );
    }
    let answer = Answer::to(client_with_ca(&world.operator.ca_file).get(&url)).await;
    assert!(
        (400..500).contains(&answer.status),
        "a URL to write with reads: {}",
        answer.status
    );

    assert_eq!(put(&world, &url, content.clone()).await.status, 200);
    settle_with_upload(&node, &request, &content).await;
    assert!(
        world.operator.output(request.execution_id, node.id).await == content,
        "other bytes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_upload_url_does_not_write_over_evidence() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    let (request, url) = offered(&world, &node).await;
    let content = vec![b'o'; UPLOAD_BYTES];
    assert_eq!(put(&world, &url, content.clone()).await.status, 200);
    settle_with_upload(&node, &request, &content).await;

    let answer = put(&world, &url, vec![b'X'; UPLOAD_BYTES]).await;
    assert!(
        (400..500).contains(&answer.status),
        "{} {}",
        answer.status,
        answer.text()
    );
    assert!(
        world.operator.output(request.execution_id, node.id).await == content,
        "evidence was written over"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_token_enrols_as_often_as_it_says_and_a_lost_answer_costs_nothing() {
    let world = World::new().await;
    let token = world.bootstrap_token("n=one").await;
    let http = client_with_ca(&world.operator.ca_file);
    let ask = BareNode::enroll_request();
    let call = |token: &str, ask: &EnrollRequest| {
        Answer::to(BareNode::enroll_call(&http, &world.operator, token, ask))
    };

    refused(&world, call("wrong", &ask), 401, "bootstrap_token_invalid").await;
    refused(
        &world,
        call(&world.operator.token, &ask),
        401,
        "bootstrap_token_invalid",
    )
    .await;
    let first: EnrollResponse = call(&token, &ask).await.expect(201).json();
    let again: EnrollResponse = call(&token, &ask).await.expect(201).json();
    assert_eq!(first.node_id, again.node_id, "a lost answer made a second node");
    let other = BareNode::enroll_request();
    refused(&world, call(&token, &other), 401, "bootstrap_token_used").await;

    let token = world.bootstrap_token("n=two").await;
    world.alter(&format!(
        "UPDATE bootstrap_token SET expires_at = {}",
        world.database().at(Timestamp::now().as_millis() - 1)
    ));
    refused(&world, call(&token, &other), 401, "bootstrap_token_expired").await;

    // A node cannot give itself a label that a selector trusts.
    let token = world.bootstrap_token("role=web").await;
    let mut greedy = BareNode::enroll_request();
    greedy.labels.insert("role".to_owned(), "admin".to_owned());
    let answer = call(&token, &greedy).await;
    if answer.status == 201 {
        let enrolled: EnrollResponse = answer.json();
        let summary: NodeSummary = world
            .operator
            .get(&format!("/v1/nodes/{}", enrolled.node_id))
            .await
            .expect(200)
            .json();
        assert_eq!(
            summary.labels.get("role").map(String::as_str),
            Some("web"),
            "{summary:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_token_that_is_shown_too_often_is_told_when_to_come_back_and_no_other_is() {
    let config = "[limits]\nenroll_requests_per_second = 1\nenroll_requests_burst = 3\n";
    let world = World::with_config(Some(config)).await;
    let token = world.bootstrap_token("n=one").await;
    let http = client_with_ca(&world.operator.ca_file);
    let ask = BareNode::enroll_request();
    let call = |token: &str| Answer::to(BareNode::enroll_call(&http, &world.operator, token, &ask));
    let first: EnrollResponse = call(&token).await.expect(201).json();
    until_rate_limited("limits.enroll_requests_per_second", async || call(&token).await).await;
    // Another token has a bucket of its own, and what is no token has none to fill.
    let other = world.bootstrap_token("n=two").await;
    let _ = call(&other).await.expect(201);
    for _ in 0..10 {
        let _ = call("mbt_nobody").await.refused(401, "bootstrap_token_invalid");
    }
    // Who comes back enrols.
    let again: EnrollResponse = until("there is room again", async || {
        let answer = call(&token).await;
        (answer.status == 201).then(|| answer.json())
    })
    .await;
    assert_eq!(first.node_id, again.node_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_too_long_or_too_many_is_not_issued() {
    let world = World::new().await;
    let path = world.operator.in_project("bootstrap-tokens");
    for body in [
        json!({"ttl_seconds": 299}),
        json!({"ttl_seconds": 86_401}),
        json!({"uses": 0}),
        json!({"uses": 10_001}),
        json!({"labels": {"node/hostname": "mine"}}),
        json!({"labels": {"": "x"}}),
        json!({"label": {}}),
    ] {
        let before = world.rows();
        let answer = world.operator.post(&path, &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert_eq!(world.rows(), before, "{body}");
    }
}

// ---- the daemon's own door

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_cannot_enrol_says_why_and_keeps_nothing() {
    let world = World::new().await;
    let musterd = Musterd::new(world.dir(), "n");
    let operator = &world.operator;
    let said = musterd
        .try_enroll(&operator.server, "wrong", &operator.ca_file)
        .await
        .expect(6);
    assert!(said.stderr.contains("bootstrap"), "{}", said.stderr);
    assert!(!musterd.state.join("identity.json").exists());

    let other_ca = World::new().await;
    let token = world.bootstrap_token("n=one").await;
    let said = musterd
        .try_enroll(&operator.server, &token, &other_ca.operator.ca_file)
        .await;
    assert!(matches!(said.code, 6 | 7), "{said:?}");
    let said = musterd
        .try_enroll("https://127.0.0.1:1", &token, &operator.ca_file)
        .await
        .expect(7);
    assert!(
        !said.stderr.contains(&token),
        "a secret is in the message: {}",
        said.stderr
    );

    // The token is as good as before.
    let _ = musterd
        .try_enroll(&operator.server, &token, &operator.ca_file)
        .await
        .expect(0);
    let said = musterd
        .try_enroll(&operator.server, &token, &operator.ca_file)
        .await
        .expect(4);
    assert!(said.stderr.contains("enrolled"), "{}", said.stderr);
    for secret in ["identity.json", "nsk"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(musterd.state.join(secret))
            .unwrap()
            .permissions()
            .mode()
            & 0o777;
        assert_eq!(mode, 0o600, "{secret}");
    }
}

#[test]
fn every_command_of_control_says_of_a_folder_that_is_none_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let (nowhere, copy) = (dir.path().join("nowhere"), dir.path().join("copy"));
    let copy = copy.display().to_string();
    for words in [
        &["serve"][..],
        &["prune"],
        &["prune", "--dry-run"],
        &["audit", "verify"],
        &["keys", "list"],
        &["certificate", "renew"],
        &["backup", &copy],
    ] {
        let said = std::process::Command::new(binary("muster-control"))
            .args(words)
            .arg("--data-dir")
            .arg(&nowhere)
            .output()
            .expect("control can be started");
        let told = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success(), "{words:?}");
        assert!(
            told.contains("run muster-control init --data-dir"),
            "{words:?}: {told}"
        );
        assert!(!nowhere.exists(), "{words:?} made it");
    }
}
