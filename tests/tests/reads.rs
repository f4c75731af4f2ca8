//! What operators find again: executions by what they were, where and when, one of them whole, and what was found changed.

use muster_tests::{
    operator::encoded,
    prelude::*,
    world::{on, on_node},
};
use std::collections::BTreeSet;

async fn page(world: &World, query: &str) -> Page<Execution> {
    let path = world.operator.in_project(&format!("executions?{query}"));
    world.operator.get(&path).await.expect(200).json()
}

async fn ids(world: &World, query: &str) -> Vec<ExecutionId> {
    let found = page(world, query).await;
    assert!(
        found.items.iter().all(|execution| execution.targets.is_empty()),
        "lists carry no targets and no output"
    );
    found.items.iter().map(|execution| execution.id).collect()
}

async fn refused(world: &World, path: &str, status: u16, code: &str) {
    let answer = world.operator.get(path).await;
    let _ = answer.refused(status, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn executions_are_found_by_what_they_were_where_and_when() {
    let world = World::new().await;
    world.leave_open();
    let web = world.node("web").labels("role=web").start().await;
    let db = BareNode::enroll(&world, "role=db").await;
    db.declare(&[("deploy", Digest::of(b"1"))]).await;
    let on_web = world.run(on("ping", "role=web")).await;
    let on_both = world.dispatch(json!({"action": "ping", "all": true})).await;
    let on_db = world.dispatch(on_node("deploy", db.id)).await;
    until("the web node has done its part", async || {
        let execution = world.operator.execution(on_both.id).await;
        (execution.target_counts.get(&Status::Succeeded) == Some(&1)).then_some(())
    })
    .await;

    let all = vec![on_db.id, on_both.id, on_web.id];
    let (web_id, db_id) = (web.id, db.id);
    let at = |execution: &Execution| encoded(&execution.created_at.to_string());
    for (query, found) in [
        (String::new(), all.clone()),
        ("action_name=deploy".into(), vec![on_db.id]),
        ("action_name=nothing".into(), vec![]),
        ("status=succeeded".into(), vec![on_web.id]),
        ("status=started".into(), vec![on_both.id]),
        ("status=pending".into(), vec![on_db.id]),
        ("status=failed".into(), vec![]),
        (format!("node_id={web_id}"), vec![on_both.id, on_web.id]),
        (format!("node_id={db_id}"), vec![on_db.id, on_both.id]),
        (format!("node_id={db_id}&action_name=ping"), vec![on_both.id]),
        (format!("node_id={web_id}&status=succeeded"), vec![on_web.id]),
        ("selector=role%3Dweb".into(), vec![on_both.id, on_web.id]),
        ("selector=role%3Dweb,!old&status=started".into(), vec![on_both.id]),
        ("selector=role%3Dnone".into(), vec![]),
        (format!("created_after={}", at(&on_web)), all.clone()),
        (format!("created_before={}", at(&on_web)), vec![]),
        (
            format!("created_after={}&node_id={db_id}", at(&on_db)),
            vec![on_db.id],
        ),
    ] {
        assert_eq!(ids(&world, &query).await, found, "{query}");
    }
    // A page at a time, whichever the filter: the pages are the list.
    for filter in [
        String::new(),
        format!("node_id={web_id}"),
        "selector=role%3Dweb".into(),
    ] {
        let whole = ids(&world, &filter).await;
        let (mut walked, mut cursor) = (Vec::new(), String::new());
        loop {
            let one = page(&world, &format!("{filter}&limit=1{cursor}")).await;
            walked.extend(one.items.iter().map(|execution| execution.id));
            match one.next_cursor {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(walked, whole, "{filter}");
    }
    // Labels count as they are now.
    let path = format!("/v1/nodes/{web_id}/labels");
    let _ = world
        .operator
        .patch(&path, &json!({"set": {"role": "cache"}}))
        .await
        .expect(200);
    assert!(ids(&world, "selector=role%3Dweb").await.is_empty());
    assert_eq!(ids(&world, "selector=role%3Dcache").await.len(), 2);

    let (web_name, db_name) = (web_id.to_string(), db_id.to_string());
    for (args, found) in [
        (vec!["--action", "deploy"], vec![on_db.id]),
        (vec!["--status", "succeeded"], vec![on_web.id]),
        (vec!["--node", &web_name], vec![on_both.id, on_web.id]),
        (vec!["--node", &db_name, "--action", "ping"], vec![on_both.id]),
        (
            vec!["-l", "role=cache", "--since", "2h"],
            vec![on_both.id, on_web.id],
        ),
        (vec!["--until", "1h"], vec![]),
    ] {
        let said = world
            .operator
            .muster(&[&["executions", "-o", "name"][..], &args].concat())
            .await
            .expect(0);
        let listed: Vec<ExecutionId> = said.stdout.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(listed, found, "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_is_no_filter_is_refused_and_never_ignored() {
    let world = World::new().await;
    let executions = world.operator.in_project("executions");
    for (query, code) in [
        ("stauts=failed", "invalid_query"),
        ("status=failed&status=timeout", "invalid_query"),
        ("node=x", "invalid_query"),
        ("status=done", "invalid_status"),
        ("status=", "invalid_status"),
        ("action_name=../x", "invalid_action"),
        ("node_id=web-1", "invalid_node_id"),
        ("selector=", "malformed_selector"),
        ("selector=role%3D", "malformed_selector"),
        ("created_after=yesterday", "invalid_created_after"),
        ("created_before=1", "invalid_created_before"),
        (
            "created_after=2026-01-02T00:00:00Z&created_before=2026-01-01T00:00:00Z",
            "invalid_created_before",
        ),
        ("limit=0", "invalid_limit"),
        ("limit=201", "invalid_limit"),
        ("cursor=x", "invalid_cursor"),
    ] {
        refused(&world, &format!("{executions}?{query}"), 400, code).await;
    }
    let project = format!("project_id={}", world.operator.project);
    for path in [
        "/v1/nodes?selektor=a".to_owned(),
        "/v1/integrity-violations?node=a".to_owned(),
        format!("/v1/audit?{project}&oder=oldest"),
        format!("/v1/operator-tokens?{project}&name=a"),
        format!("/v1/authz/relation-tuples?{project}&subject=a"),
        world.operator.in_project("hooks?name=a"),
        world.operator.in_project("bootstrap-tokens?name=a"),
    ] {
        refused(&world, &path, 400, "invalid_query").await;
    }
    refused(&world, "/v1/nodes?connected=yes", 400, "invalid_connected").await;
    // What is asked for in the wrong place must not be carried out without it.
    let before = world.rows();
    let path = world.operator.in_project("executions:dispatch?dry_run=true");
    let sent = world
        .operator
        .post(&path, &json!({"action": "ping", "all": true}))
        .await;
    let _ = sent.refused(400, "invalid_query");
    assert_eq!(world.rows(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_turns_only_the_pages_that_it_was_given_for() {
    let world = World::new().await;
    world.leave_open();
    let node = BareNode::enroll(&world, "role=web").await;
    node.declare(&[]).await;
    for _ in 0..3 {
        let _ = world.dispatch(on_node("ping", node.id)).await;
    }
    let first = page(&world, "action_name=ping&limit=1").await;
    let cursor = first.next_cursor.expect("there are more");
    let ours = format!("executions?cursor={cursor}");
    let next = page(&world, &format!("action_name=ping&limit=2&cursor={cursor}")).await;
    assert_eq!(next.items.len(), 2, "the limit may change on the way");
    for path in [
        ours.clone(),
        format!("{ours}&action_name=other"),
        format!("{ours}&action_name=ping&status=pending"),
        format!("{ours}&action_name=ping&created_after=2026-01-01T00:00:00Z"),
        format!("hooks?cursor={cursor}"),
    ] {
        let path = world.operator.in_project(&path);
        refused(&world, &path, 403, "cursor_binding_mismatch").await;
    }
    refused(
        &world,
        &format!("/v1/nodes?cursor={cursor}"),
        403,
        "cursor_binding_mismatch",
    )
    .await;
    let same = world.operator.in_project(&format!("{ours}&action_name=ping"));
    let another = world.another_operator().get(&same).await;
    let problem = another.refused(403, "cursor_binding_mismatch");
    assert!(
        problem.reason.is_some() && problem.correlation_id.is_some(),
        "{problem:?}"
    );
    let denied = world
        .database()
        .count("audit WHERE outcome = 'permission_denied'");
    assert_eq!(denied, 7, "a denial is written down before it is answered");
    let mut altered = cursor.clone().into_bytes();
    altered[50] = if altered[50] == b'A' { b'B' } else { b'A' };
    let altered = String::from_utf8(altered).unwrap();
    let path = world
        .operator
        .in_project(&format!("executions?action_name=ping&cursor={altered}"));
    refused(&world, &path, 400, "invalid_cursor").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_execution_is_read_whole_however_large_and_never_at_once() {
    const NODES: usize = 1_200;
    let world = World::new().await;
    let one = BareNode::enroll(&world, "role=web").await;
    one.declare(&[]).await;
    world.many_nodes(1_199);
    let mut stream = one.stream().await;
    let sent = world
        .dispatch(json!({"action": "ping", "all": true, "timeout_seconds": 10}))
        .await;
    assert_eq!(sent.target_count(), NODES as u64);
    assert_eq!(
        sent.targets.len(),
        EXECUTION_TARGETS_MAX as usize,
        "no answer is unbounded"
    );
    let request = one.next_request(&mut stream).await;
    let _ = world.settled(sent.id).await;
    // The news of one node comes when all is over, and is kept.
    let late: Callback = serde_json::from_value(json!({"status": "succeeded", "exit_code": 0})).unwrap();
    let _ = one
        .report(&request, &late)
        .await
        .refused(409, "execution_already_terminal");

    let path = world.operator.in_project(&format!("executions/{}", sent.id));
    let detail: ExecutionDetail = world.operator.get(&path).await.expect(200).json();
    assert_eq!(detail.execution.target_counts[&Status::Timeout], NODES as u64);
    assert_eq!(detail.execution.targets.len(), EXECUTION_TARGETS_MAX as usize);
    assert_eq!(detail.timeline.len(), 200);
    let mut nodes: BTreeSet<NodeId> = detail.execution.targets.iter().map(|t| t.node_id).collect();
    let mut cursor = detail.targets_cursor.clone();
    while let Some(next) = cursor {
        let path = format!("{path}/targets?limit=150&cursor={next}");
        let more: Page<ExecutionTarget> = world.operator.get(&path).await.expect(200).json();
        assert!(
            more.items.iter().all(|target| nodes.insert(target.node_id)),
            "none comes twice"
        );
        cursor = more.next_cursor;
    }
    assert_eq!(nodes.len(), NODES);
    let (mut events, mut cursor) = (detail.timeline.clone(), detail.timeline_cursor.clone());
    while let Some(next) = cursor {
        let path = format!("{path}/timeline?limit=200&cursor={next}");
        let more: Page<TimelineEvent> = world.operator.get(&path).await.expect(200).json();
        events.extend(more.items);
        cursor = more.next_cursor;
    }
    assert_eq!(events.len(), NODES + 1);
    assert!(events.windows(2).all(|pair| pair[0].id < pair[1].id));
    let last = events.last().unwrap();
    assert!(
        last.late && last.node_id == one.id && last.to == Status::Succeeded,
        "{last:?}"
    );
    // A cursor of one is none of another.
    let wrong = format!("{path}/timeline?cursor={}", detail.targets_cursor.unwrap());
    refused(&world, &wrong, 403, "cursor_binding_mismatch").await;
    let ghost = world
        .operator
        .in_project(&format!("executions/{}/targets", one.id));
    refused(&world, &ghost, 404, "execution_not_found").await;

    let id = sent.id.to_string();
    let shown = world
        .operator
        .muster(&["execution", "show", &id, "--timeline", "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(shown["targets"].as_array().unwrap().len(), NODES);
    assert_eq!(shown["timeline"].as_array().unwrap().len(), NODES + 1);
    let table = world
        .operator
        .muster(&["execution", "show", &id, "--timeline"])
        .await
        .expect(0);
    assert!(
        table.stdout.contains("1200 timeout") && table.stdout.contains("late"),
        "{}",
        table.stdout.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_listed_by_whether_they_are_there() {
    let world = World::new().await;
    let here = world.node("here").labels("role=web").start().await;
    let away = world.node("away").labels("role=web").enrolled().await;
    for (args, wanted) in [
        (vec!["--connected"], vec![here.id]),
        (vec!["--online", "-l", "role=web"], vec![here.id]),
        (vec!["--away"], vec![away.id]),
        (vec!["--offline", "-l", "role=db"], vec![]),
        (vec![], vec![here.id, away.id]),
    ] {
        let said = world
            .operator
            .muster(&[&["nodes", "-o", "json"][..], &args].concat())
            .await
            .expect(0)
            .json();
        let listed = said["items"].as_array().unwrap().iter();
        let listed: BTreeSet<NodeId> = listed
            .map(|node| node["id"].as_str().unwrap().parse().unwrap())
            .collect();
        assert_eq!(listed, wanted.into_iter().collect(), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_violation_is_acknowledged_once_with_its_reason() {
    let world = World::new().await;
    let contract = muster_tests::contract::Contract::published();
    let node = BareNode::enroll(&world, "role=web").await;
    for digest in [b"1", b"2"] {
        node.declare(&[("deploy", Digest::of(digest))]).await;
    }
    let list = async |status: &str| -> Vec<ViolationRow> {
        let path = format!("/v1/integrity-violations?status={status}");
        let found: Page<ViolationRow> = world.operator.get(&path).await.expect(200).json();
        found.items
    };
    let [open] = &list("open").await[..] else {
        panic!("one violation is open")
    };
    let path = |id: &str| format!("/v1/integrity-violations/{id}/acknowledge");
    let own = path(&open.id.to_string());
    let ghost = path(&node.id.to_string());
    let before = world.rows();
    for (path, body, status, code) in [
        (&own, json!({}), 400, "invalid_body"),
        (&own, json!({"reason": "r", "by": "me"}), 400, "invalid_body"),
        (&own, json!({"reason": ""}), 400, "invalid_reason"),
        (&own, json!({"reason": " "}), 400, "invalid_reason"),
        (&own, json!({"reason": "r".repeat(1025)}), 400, "invalid_reason"),
        (&path("x"), json!({"reason": "r"}), 400, "invalid_violation_id"),
        (&ghost, json!({"reason": "r"}), 404, "violation_not_found"),
    ] {
        let answer = world.operator.post(path, &body).await;
        contract.judge_answer("AcknowledgeIntegrityViolation", &answer);
        let _ = answer.refused(status, code);
    }
    assert_eq!(list("open").await.len(), 1, "a refusal changes nothing");
    assert_eq!(world.rows(), before);

    let body = json!({"reason": "a planned change"});
    contract.judge_request("AcknowledgeIntegrityViolation", &body);
    let answer = world.operator.post(&own, &body).await.expect(200);
    contract.judge_answer("AcknowledgeIntegrityViolation", &answer);
    let first: ViolationRow = answer.json();
    assert_eq!(first.status, "acknowledged");
    assert_eq!(first.acknowledge_reason.as_deref(), Some("a planned change"));
    // Who says so again changes nothing, and learns who was first.
    let id = open.id.to_string();
    let again = world
        .operator
        .muster(&["violation", "ack", &id, "--reason", "me too", "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(again["acknowledge_reason"], "a planned change");
    let another = world.another_operator();
    let third: ViolationRow = another
        .post(&own, &json!({"reason": "and me"}))
        .await
        .expect(200)
        .json();
    assert_eq!(third.acknowledged_by_subject, first.acknowledged_by_subject);
    let rows = "audit WHERE relation = 'violation.acknowledge' AND outcome = 'granted'
                AND detail LIKE '%a planned change%'";
    let written = world.database().count(rows);
    assert_eq!(written, 1);
    // The same finding again opens no second one.
    node.declare(&[("deploy", Digest::of(b"1"))]).await;
    node.declare(&[("deploy", Digest::of(b"2"))]).await;
    assert!(list("open").await.is_empty());
    let shown = world
        .operator
        .muster(&["violations", "--status", "acknowledged"])
        .await
        .expect(0);
    assert!(shown.stdout.contains(&id), "{shown:?}");

    let digest = Digest::of(b"2").to_string();
    let approve = ["hooks", "approve", "deploy", "--digest", &digest, "--all"];
    let _ = world.operator.muster(&approve).await.expect(0);
    let settled = world.operator.post(&own, &json!({"reason": "late"})).await;
    contract.judge_answer("AcknowledgeIntegrityViolation", &settled);
    let _ = settled.refused(409, "violation_resolved");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_carries_so_much_output_and_the_rest_is_in_pages() {
    const EACH: usize = 16_000;
    let world = World::with_config(Some("[limits]\nanswer_output_bytes_max = 50000\n")).await;
    let mut nodes = Vec::new();
    for n in 0..8 {
        let node = BareNode::enroll(&world, &format!("n={n}")).await;
        node.declare(&[]).await;
        nodes.push(node);
    }
    let mut streams = Vec::new();
    for node in &nodes {
        streams.push(node.stream().await);
    }
    let sent = world.dispatch(json!({"action": "ping", "all": true})).await;
    for (node, stream) in nodes.iter().zip(&mut streams) {
        let request = node.next_request(stream).await;
        for status in [Status::Ack, Status::Started] {
            let _ = node.report(&request, &Callback::of(status)).await.expect(200);
        }
        let ended = Callback {
            output: Some(CallbackOutput {
                inline: Some(Base64(vec![b'x'; EACH])),
                ..CallbackOutput::default()
            }),
            ..Callback::of(Status::Succeeded)
        };
        let _ = node.report(&request, &ended).await.expect(200);
    }
    let _ = world.settled(sent.id).await;

    let whole = |target: &ExecutionTarget| match &target.output_ref {
        Some(OutputRef::Inline { inline_bytes }) => inline_bytes.0.len() == EACH,
        Some(OutputRef::ObjectStore { .. }) | None => false,
    };
    let path = world.operator.in_project(&format!("executions/{}", sent.id));
    let detail: ExecutionDetail = world.operator.get(&path).await.expect(200).json();
    assert_eq!(detail.execution.targets.len(), 3, "as many as fit, and whole");
    assert_eq!(detail.execution.target_counts[&Status::Succeeded], 8);
    let mut seen = detail.execution.targets;
    let mut cursor = detail.targets_cursor;
    let mut pages = 0;
    while let Some(next) = cursor {
        let path = format!("{path}/targets?limit=200&cursor={next}");
        let page: Page<ExecutionTarget> = world.operator.get(&path).await.expect(200).json();
        assert!((1..=3).contains(&page.items.len()), "{}", page.items.len());
        seen.extend(page.items);
        cursor = page.next_cursor;
        pages += 1;
    }
    assert_eq!(pages, 2);
    assert!(seen.iter().all(whole));
    let mut ids: Vec<NodeId> = seen.iter().map(|target| target.node_id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 8, "each target once");

    // What reads on by itself has all of them, also one of the version before.
    let shown = world
        .operator
        .muster(&["execution", "show", &sent.id.to_string(), "-o", "json"])
        .await
        .expect(0)
        .json();
    assert_eq!(shown["targets"].as_array().expect("targets").len(), 8);
    // No list of executions has any output.
    let list = world
        .operator
        .get(&world.operator.in_project("executions"))
        .await
        .expect(200);
    assert!(list.bytes.len() < EACH, "{}", list.bytes.len());
}
