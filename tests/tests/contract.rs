//! Clients generated from the published surface work unchanged: real answers of the real server, held against it.

use muster_shared::time::Timestamp;
use std::collections::BTreeSet;

use muster_tests::{Answer, contract::Contract, lossy::Lossy, prelude::*, world::on_node};
use reqwest::Method;

/// Asks as a generated client would, and judges both ways.
async fn operator(
    world: &World,
    contract: &Contract,
    id: &str,
    ask: (Method, &str, Option<Value>),
) -> Answer {
    let (method, path, body) = ask;
    let mut request = world.operator.request(method, path);
    if let Some(body) = &body {
        request = request.json(body);
    }
    let answer = Answer::to(request).await;
    contract.judge_answer(id, &answer);
    answer
}

/// A generated client sends only what is published: neither Muster's own fields nor, where the domain lets it, the
/// callback token.
async fn node(node: &BareNode, contract: &Contract, id: &str, ask: (Method, &str, Value)) -> Answer {
    let (method, path, body) = ask;
    contract.judge_request(id, &body);
    let answer = Answer::to(node.request(method, path).json(&body)).await;
    contract.judge_answer(id, &answer);
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_list_and_get_have_the_published_shapes() {
    let world = World::new().await;
    let contract = Contract::published();
    let bare = BareNode::enroll(&world, "role=web").await;
    bare.declare(&[("deploy", Digest::of(b"1"))]).await;
    let selected = json!({"action": "ping", "type": "builtin", "selector": "role=web", "timeout_seconds": 60,
        "parameters": {"a": 1}});
    contract.judge_request("DispatchExecution", &selected);
    contract.judge_request("DispatchExecution", &on_node("ping", bare.id));

    for (id, path) in [
        ("DispatchExecution", "executions:dispatch"),
        ("DispatchExecutionNewer", "executions/dispatch"),
    ] {
        let path = world.operator.in_project(path);
        let ask = |body: Value| operator(&world, &contract, id, (Method::POST, &path, Some(body)));
        assert_eq!(ask(selected.clone()).await.status, 201);
        assert_eq!(ask(on_node("ping", bare.id)).await.status, 201);
        assert_eq!(
            ask(json!({"action": "ping", "selector": "role="})).await.status,
            400
        );
        assert_eq!(ask(json!({"action": "ping"})).await.status, 400);
        assert_eq!(
            ask(json!({"action": "ping", "selector": "role=db"})).await.status,
            422
        );
        bare.declare(&[("deploy", Digest::of(b"2"))]).await;
        assert_eq!(ask(on_node("deploy", bare.id)).await.status, 409);
        bare.declare(&[("deploy", Digest::of(b"1"))]).await;
        let ghost = format!("/v1/projects/{}/executions/dispatch", bare.id);
        assert_eq!(
            operator(
                &world,
                &contract,
                id,
                (Method::POST, &ghost, Some(selected.clone()))
            )
            .await
            .status,
            404
        );
    }

    let list = world.operator.in_project("executions");
    for (query, status) in [
        ("", 200),
        ("?limit=1", 200),
        ("?status=pending&action_name=ping", 200),
        ("?limit=201", 400),
        ("?cursor=x", 400),
    ] {
        let path = format!("{list}{query}");
        let answer = operator(&world, &contract, "ListExecutions", (Method::GET, &path, None)).await;
        assert_eq!(answer.status, status, "{query}");
    }
    for execution in world.operator.executions().await {
        let path = format!("{list}/{}", execution.id);
        assert_eq!(
            operator(&world, &contract, "GetExecution", (Method::GET, &path, None))
                .await
                .status,
            200
        );
    }
    for (id, status) in [(bare.id.to_string(), 404), ("x".to_owned(), 400)] {
        let path = format!("{list}/{id}");
        assert_eq!(
            operator(&world, &contract, "GetExecution", (Method::GET, &path, None))
                .await
                .status,
            status
        );
    }
    let stranger = Answer::to(
        world
            .operator
            .with_token("mop_stranger")
            .request(Method::GET, &list),
    )
    .await;
    assert_eq!(stranger.status, 401);
    contract.judge_answer("ListExecutions", &stranger);
    world.leave_open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_the_published_surface_runs_an_action_without_our_token() {
    let world = World::new().await;
    world.alter("UPDATE domain SET callback_token_required = false");
    let contract = Contract::published();
    let bare = BareNode::enroll(&world, "role=web").await;
    let path = |rest: &str| format!("/v1/nodes/{}/{rest}", bare.id);

    let manifest = json!({"binary_version": "1", "binary_checksum": Digest::of(b""),
        "declared_hooks": [{"name": "deploy", "checksum": Digest::of(b"1")}],
        "builtin_actions": [{"name": "ping", "description": "answers", "parameters": [{"name": "n", "type": "string"}]}]});
    for (manifest, status) in [
        (manifest.clone(), 200),
        (
            json!({"binary_version": "1", "binary_checksum": Digest::of(b""), "declared_hooks": [{"name": "../x", "checksum": Digest::of(b"")}]}),
            400,
        ),
        (
            json!({"binary_version": "1", "binary_checksum": Digest::of(b""), "builtin_actions": [{"name": "p"}, {"name": "p"}]}),
            422,
        ),
    ] {
        let answer = node(
            &bare,
            &contract,
            "PutNodeCapabilities",
            (Method::PUT, &path("capabilities"), manifest),
        )
        .await;
        assert_eq!(answer.status, status);
    }
    let beat = json!({"client_now": Timestamp::now(), "binary_checksum": Digest::of(b""), "binary_version": "1", "nat_summary": {}});
    assert_eq!(
        node(
            &bare,
            &contract,
            "PostNodeHeartbeat",
            (Method::POST, &path("heartbeat"), beat)
        )
        .await
        .status,
        200
    );
    let found = json!({"violations": [{"kind": "hook_checksum", "detected_by": "startup_scan", "artifact_id": "deploy",
        "observed_checksum": Digest::of(b"2"), "expected_checksum": Digest::of(b"1"), "observed_fingerprint": null}]});
    let reported = node(
        &bare,
        &contract,
        "PostNodeIntegrityViolations",
        (Method::POST, &path("integrity-violations"), found),
    )
    .await;
    assert_eq!(reported.status, 202);

    let sent = world.dispatch(on_node("ping", bare.id)).await;
    let mut frames = bare.stream().await;
    let request = bare.next_request(&mut frames).await;
    let callback = bare.callback_path(request.execution_id);
    let report = |body: Value| {
        node(
            &bare,
            &contract,
            "PostNodeExecutionCallback",
            (Method::POST, &callback, body),
        )
    };
    assert_eq!(report(json!({"status": "started"})).await.status, 409);
    assert_eq!(report(json!({"status": "ack"})).await.status, 200);
    assert_eq!(
        report(json!({"status": "started", "declared_output_bytes": 20_000}))
            .await
            .status,
        200
    );
    let large = Base64(vec![0; INLINE_OUTPUT_BYTES_MAX + 1]);
    assert_eq!(
        report(json!({"status": "succeeded", "output": {"inline": large}}))
            .await
            .status,
        413
    );
    let ended = json!({"status": "succeeded", "exit_code": 0, "error": null, "output": {"inline": Base64(b"pong".to_vec())}});
    assert_eq!(report(ended).await.status, 200);
    assert_eq!(world.settled(sent.id).await.status, Status::Succeeded);

    let other = BareNode::enroll(&world, "role=db").await;
    let foreign = Answer::to(
        other
            .request(Method::POST, &callback)
            .json(&json!({"status": "ack"})),
    )
    .await;
    assert_eq!(foreign.status, 403);
    contract.judge_answer("PostNodeExecutionCallback", &foreign);
    // Where the token is required it is required: the published client is let in by a decision, not by a gap.
    world.alter("UPDATE domain SET callback_token_required = true");
    let bare_call = Answer::to(
        bare.request(Method::POST, &callback)
            .json(&json!({"status": "succeeded"})),
    )
    .await;
    bare_call.refused(403, "callback_token_mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_beside_the_main_path_have_the_published_shapes() {
    let world = World::new().await;
    let contract = Contract::published();
    let bare = BareNode::enroll(&world, "role=web").await;
    bare.declare(&[("deploy", Digest::of(b"1"))]).await;
    bare.declare(&[("deploy", Digest::of(b"2"))]).await;
    for (id, path, status) in [
        ("ListNodes", "/v1/nodes".to_owned(), 200),
        ("ListNodes", "/v1/nodes?limit=0".to_owned(), 400),
        (
            "ListIntegrityViolations",
            format!(
                "/v1/integrity-violations?node_id={}&kind=hook&status=open",
                bare.id
            ),
            200,
        ),
        (
            "ListIntegrityViolations",
            "/v1/integrity-violations?kind=x".to_owned(),
            400,
        ),
        ("GetHealth", "/v1/health".to_owned(), 200),
        ("GetVersion", "/v1/version".to_owned(), 200),
    ] {
        let answer = operator(&world, &contract, id, (Method::GET, &path, None)).await;
        assert_eq!(answer.status, status, "{path}");
    }
    for expression in ["role=web,tier in (1,2),!old,a!=b,c", "role="] {
        let body = json!({"expression": expression});
        contract.judge_request("PreviewLabelSelector", &body);
        let ask = (Method::POST, "/v1/labels/selectors/preview", Some(body));
        assert_eq!(
            operator(&world, &contract, "PreviewLabelSelector", ask)
                .await
                .status,
            200
        );
    }
    let _sent = world.dispatch(on_node("ping", bare.id)).await;
    let mut frames = bare.stream().await;
    let request = bare.next_request(&mut frames).await.into_inner();
    contract.judge_event("SSEEventActionRequest", &serde_json::to_value(request).unwrap());
    world.leave_open();
}

/// What the real `muster` and the real daemon say to the real control, and what it says to them, fits both documents.
#[tokio::test(flavor = "multi_thread")]
async fn what_our_own_programs_say_fits_the_published_surface_and_our_own_document() {
    let mut world = World::new().await;
    let between = Lossy::before(&world, &[]).await;
    let straight = std::mem::replace(&mut world.operator, between.operator.clone());
    let mut node = world
        .node("n")
        .config("heartbeat_seconds = 1\n")
        .hook("large", "#!/bin/sh\nhead -c 50000 /dev/zero\n")
        .start()
        .await;
    for args in [
        &["run", "ping", "--all", "--wait", "--timeout", "60s"][..],
        &["run", "large", "--all", "--wait", "-p", "a=b"],
        &["run", "ping", "--all", "--dry-run"],
        &["run", "ping", "-l", "story-node=n", "--expect", "1", "--wait"],
        &["nodes"],
        &["executions"],
        &["hooks"],
        &["violations"],
        &["tokens", "list"],
        &["audit", "list"],
    ] {
        let _ = world.operator.muster(args).await.expect(0);
    }
    let refused = world.operator.muster(&["run", "nobody.has.it", "--all"]).await;
    assert_ne!(refused.code, 0);
    node.replace_hook("large", "#!/bin/sh\necho changed\n").await;

    let (published, own) = (Contract::published(), Contract::served(&straight).await);
    let published_ids = [
        "DispatchExecution",
        "ListExecutions",
        "GetExecution",
        "ListNodes",
        "ListIntegrityViolations",
        "PostNodeExecutionCallback",
        "PostNodeHeartbeat",
        "PutNodeCapabilities",
    ];
    until("each of them has spoken", async || {
        let said: BTreeSet<String> = between
            .exchanges()
            .iter()
            .filter_map(|exchange| published.operation_at(&exchange.method, &exchange.path))
            .map(|id| id.replace("Newer", ""))
            .collect();
        published_ids.iter().all(|id| said.contains(*id)).then_some(())
    })
    .await;
    for exchange in between.exchanges() {
        let (method, path) = (&exchange.method, &exchange.path);
        let id = own
            .operation_at(method, path)
            .unwrap_or_else(|| panic!("{method} {path} is not in our own document"));
        own.judge_exchange(&id, &exchange);
        if let Some(id) = published.operation_at(method, path) {
            published.judge_exchange(&id, &exchange);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_document_has_the_published_operations_and_true_examples() {
    let world = World::new().await;
    let own = Contract::served(&world.operator).await;
    assert!(own.judge_examples() > 100);
    let published = Contract::published();
    for (method, path, id) in published.operations() {
        // A template is a path that fits itself.
        let ours = own.operation_at(&method, &path);
        assert_eq!(ours.as_deref(), Some(&*id), "{method} {path}");
    }
}
