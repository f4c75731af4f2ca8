//! Who may: tokens, relation tuples, and every door without the right key.

use muster_shared::{
    access::{CheckResponse, Decision, OperatorToken, OperatorTokenSecret, Reason, RelationTuple},
    audit::AuditPage,
    time::Timestamp,
};
use muster_tests::{
    Answer, Operator,
    contract::Contract,
    operator::client_with_ca,
    prelude::*,
    sse::Frames,
    wait::PATIENCE,
    world::{on, on_node},
};
use reqwest::Method;

async fn issue(world: &World, name: &str) -> OperatorTokenSecret {
    let path = format!("/v1/operator-tokens?project_id={}", world.operator.project);
    world
        .operator
        .post(&path, &json!({"name": name}))
        .await
        .expect(201)
        .json()
}

fn tuples(operator: &Operator) -> String {
    format!("/v1/authz/relation-tuples?project_id={}", operator.project)
}

async fn try_grant(operator: &Operator, subject: &str, relation: &str, resource: &str) -> Answer {
    let body = json!({"subject": subject, "relation": relation, "resource": resource});
    let contract = Contract::published();
    contract.judge_request("CreateRelationTuple", &body);
    let answer = operator.post(&tuples(operator), &body).await;
    contract.judge_answer("CreateRelationTuple", &answer);
    answer
}

async fn grant(operator: &Operator, subject: &str, relation: &str, resource: &str) -> RelationTuple {
    try_grant(operator, subject, relation, resource)
        .await
        .expect(201)
        .json()
}

async fn check(operator: &Operator, subject: &str, relation: &str, resource: &str) -> CheckResponse {
    let body = json!({"subject": subject, "relation": relation, "resource": resource});
    let contract = Contract::published();
    contract.judge_request("PostAuthzCheck", &body);
    let answer = operator.post("/v1/authz/check", &body).await;
    contract.judge_answer("PostAuthzCheck", &answer);
    answer.expect(200).json()
}

async fn domain(world: &World) -> String {
    let path = format!("/v1/audit?project_id={}&limit=1", world.operator.project);
    let page: AuditPage = world.operator.get(&path).await.expect(200).json();
    format!("domain:{}", page.items[0].domain_id)
}

// ---- tokens

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_may_nothing_then_what_it_is_granted_until_it_is_revoked() {
    let world = World::new().await;
    let node = world.node("n").start().await;
    let made = issue(&world, "deploy").await;
    let deploy = world.operator.with_token(&made.token);
    let subject = format!("token:{}", made.about.id);
    let list = world.operator.in_project("executions");
    let _ = deploy.get(&list).await.refused(404, "project_not_found");

    let project = format!("project:{}", world.operator.project);
    let tuple = grant(&world.operator, &subject, "operator", &project).await;
    let _ = deploy.get(&list).await.expect(200);
    let ran = deploy.dispatch(&on_node("ping", node.id)).await;
    let _ = world.settled(ran.id).await;
    // An operator of the project is none of its domain.
    let tokens = format!("/v1/operator-tokens?project_id={}", world.operator.project);
    let _ = deploy.get(&tokens).await.refused(403, "permission_denied");
    let _ = try_grant(&deploy, &subject, "operator", &domain(&world).await)
        .await
        .refused(403, "permission_denied");

    let path = format!(
        "/v1/authz/relation-tuples/{}?project_id={}",
        tuple.id, world.operator.project
    );
    let _ = Answer::to(world.operator.request(Method::DELETE, &path))
        .await
        .expect(200);
    let _ = deploy.get(&list).await.refused(404, "project_not_found");
    let token = format!("/v1/operator-tokens/{}", made.about.id);
    let revoked: OperatorToken = Answer::to(world.operator.request(Method::DELETE, &token))
        .await
        .expect(200)
        .json();
    assert!(revoked.revoked_at.is_some());
    let _ = deploy.get(&list).await.refused(401, "token_revoked");
    // The name is free again; while it is held, it is not.
    let again = issue(&world, "deploy").await;
    assert_ne!(again.about.id, made.about.id);
    let taken = world.operator.post(&tokens, &json!({"name": "deploy"})).await;
    let _ = taken.refused(409, "token_name_taken");
    let kept = format!("{:?}", state(&world));
    let secret = made.token.as_bytes();
    assert!(!kept.contains(&made.token) && !kept.contains(&format!("{secret:?}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_keeps_its_grants_and_its_former_secret_for_as_long_as_was_said() {
    let world = World::new().await;
    let first = issue(&world, "ci").await;
    let subject = format!("token:{}", first.about.id);
    let project = format!("project:{}", world.operator.project);
    grant(&world.operator, &subject, "act", &project).await;
    let list = world.operator.in_project("executions");
    let with = |secret: &OperatorTokenSecret| world.operator.with_token(&secret.token);
    let rotate = async |overlap: u64| -> OperatorTokenSecret {
        let path = format!("/v1/operator-tokens/{}/rotate", first.about.id);
        let body = json!({"overlap_seconds": overlap});
        world.operator.post(&path, &body).await.expect(200).json()
    };
    let second = rotate(600).await;
    let _ = with(&first).get(&list).await.expect(200);
    let _ = with(&second).get(&list).await.expect(200);
    let third = rotate(0).await;
    let _ = with(&first).get(&list).await.refused(401, "unauthenticated");
    let _ = with(&second).get(&list).await.refused(401, "token_rotated");
    let _ = with(&third).get(&list).await.expect(200);

    let path = format!("/v1/operator-tokens/{}/rotate", first.about.id);
    let long = world
        .operator
        .post(&path, &json!({"overlap_seconds": 604_801}))
        .await;
    let _ = long.refused(400, "invalid_overlap");
    let _ = world.operator.muster(&["tokens", "revoke", "ci"]).await.expect(0);
    let gone = world.operator.post(&path, &json!({})).await;
    let _ = gone.refused(409, "token_not_live");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_token_or_its_grant_does() {
    let world = World::with_config(Some("[limits]\nwatches_max = 1\n")).await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let events = world
        .operator
        .in_project(&format!("executions/{}/events", sent.id));
    let project = format!("project:{}", world.operator.project);
    let delete = async |path: &str| {
        let _ = Answer::to(world.operator.request(Method::DELETE, path))
            .await
            .expect(200);
    };
    for (name, code) in [
        ("revoked", "token_revoked"),
        ("expired", "token_expired"),
        ("rotated", "token_rotated"),
        ("ungranted", "project_not_found"),
    ] {
        let made = issue(&world, name).await;
        let held = world.operator.with_token(&made.token);
        let subject = format!("token:{}", made.about.id);
        let tuple = grant(&world.operator, &subject, "operator", &project).await;
        let watching = held.request(Method::GET, &events).send().await;
        let watching = watching.expect("control answers");
        assert_eq!(watching.status(), 200);
        let _ = held.get(&events).await.refused(429, "too_many_watches");
        let token = format!("/v1/operator-tokens/{}", made.about.id);
        match name {
            "revoked" => delete(&token).await,
            "expired" => {
                world.alter("UPDATE operator_token SET expires_at = created_at WHERE name = 'expired'");
            }
            "rotated" => {
                let rotate = world.operator.post(&format!("{token}/rotate"), &json!({})).await;
                let _ = rotate.expect(200);
            }
            _ => {
                let of = &world.operator.project;
                delete(&format!("/v1/authz/relation-tuples/{}?project_id={of}", tuple.id)).await;
            }
        }
        let mut frames = Frames::of(watching);
        let last = tokio::time::timeout(PATIENCE, frames.next()).await;
        let last = last.expect("the stream ends").expect("it says why first");
        assert_eq!(last.event, "ended");
        let problem: Problem = serde_json::from_str(&last.data).expect("a problem");
        assert_eq!(problem.code.as_deref(), Some(code));
        assert_eq!(frames.next().await, None);
    }

    // What the command says of it.
    let made = issue(&world, "at-work").await;
    let held = world.operator.with_token(&made.token);
    let subject = format!("token:{}", made.about.id);
    let _ = grant(&world.operator, &subject, "operator", &project).await;
    let mut watch = held.muster_command();
    watch.args(["execution", "watch", &sent.id.to_string()]);
    let watch = tokio::spawn(muster_tests::operator::said_by(watch));
    until("the command watches", async || {
        let second = held.request(Method::GET, &events).send().await;
        (second.expect("control answers").status() == 429).then_some(())
    })
    .await;
    delete(&format!("/v1/operator-tokens/{}", made.about.id)).await;
    // Not as a refused dispatch ends, which one might send again.
    let said = watch.await.expect("the command ends").expect(8);
    let goes_on = format!(
        "\nthe execution goes on. To watch it:\n  muster execution watch {}\n",
        sent.id
    );
    let told = |line: &str| {
        line.starts_with("muster: control ended the event stream: the token was revoked")
            && line.ends_with("; asking again")
    };
    assert!(said.stderr.lines().any(told), "{}", said.stderr);
    assert!(said.stderr.ends_with(&goes_on), "{}", said.stderr);
    let _ = world.operator.cancel(sent.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_operator_of_a_domain_cannot_be_taken_away() {
    let world = World::new().await;
    let domain = domain(&world).await;
    let tokens = format!("/v1/operator-tokens?project_id={}", world.operator.project);
    let listed: Page<OperatorToken> = world.operator.get(&tokens).await.expect(200).json();
    let [own] = &listed.items[..] else {
        panic!("{listed:?}")
    };
    let own = own.id;
    let revoke = async |by: &Operator| {
        Answer::to(by.request(Method::DELETE, &format!("/v1/operator-tokens/{own}"))).await
    };
    let _ = revoke(&world.operator).await.refused(409, "last_operator");
    let said = world
        .operator
        .muster(&["tokens", "revoke", "init"])
        .await
        .expect(5);
    assert!(said.stderr.contains("last_operator"), "{said:?}");
    let page: Page<RelationTuple> = world
        .operator
        .get(&tuples(&world.operator))
        .await
        .expect(200)
        .json();
    let path = format!(
        "/v1/authz/relation-tuples/{}?project_id={}",
        page.items[0].id, world.operator.project
    );
    let ungrant = async || Answer::to(world.operator.request(Method::DELETE, &path)).await;
    let _ = ungrant().await.refused(409, "last_operator");
    let excluded = try_grant(&world.operator, &format!("token:{own}"), "excluded", &domain).await;
    let _ = excluded.refused(400, "last_operator");

    // A second one, by a group, and the first may go: also by its own hand.
    let second = issue(&world, "second").await;
    grant(
        &world.operator,
        &format!("token:{}", second.about.id),
        "member",
        "group:admins",
    )
    .await;
    let _ = revoke(&world.operator).await.refused(409, "last_operator");
    grant(&world.operator, "group:admins#member", "operator", &domain).await;
    let _ = revoke(&world.operator).await.expect(200);
    let second = world.operator.with_token(&second.token);
    let _ = second.get(&tokens).await.expect(200);
    let _ = world.operator.get(&tokens).await.refused(401, "token_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_bootstrap_token_enrols_nobody() {
    let world = World::new().await;
    let token = world.bootstrap_token("n=one").await;
    let listed = world
        .operator
        .muster(&["tokens", "list", "-o", "json"])
        .await
        .expect(0)
        .json();
    let items = listed["items"].as_array().unwrap();
    let id = items.iter().find(|t| t["kind"] == "bootstrap").unwrap()["id"]
        .as_str()
        .unwrap();
    assert!(!listed.to_string().contains(&token));
    let _ = world.operator.muster(&["tokens", "revoke", id]).await.expect(0);
    let http = client_with_ca(&world.operator.ca_file);
    let ask = BareNode::enroll_request();
    let answer = Answer::to(BareNode::enroll_call(&http, &world.operator, &token, &ask)).await;
    let _ = answer.refused(401, "bootstrap_token_revoked");
}

// ---- relation tuples

#[tokio::test(flavor = "multi_thread")]
async fn a_check_answers_with_the_tuples_that_decided() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    let (operator, project) = (&world.operator, format!("project:{}", world.operator.project));
    let resource = format!("resource:{}", node.id);
    grant(operator, "user:ann", "member", "group:web").await;
    grant(operator, "group:web#member", "member", "group:ops").await;
    grant(operator, "group:ops#member", "operator", &project).await;
    let answer = check(operator, "user:ann", "act", &resource).await;
    assert_eq!(
        (answer.decision, answer.reason),
        (Decision::Allowed, Reason::Granted)
    );
    assert_eq!(
        answer.relation_path,
        [
            "group:web#member@user:ann",
            "group:ops#member@group:web#member",
            &format!("{project}#operator@group:ops#member"),
        ]
    );
    let answer = check(operator, "user:bob", "act", &resource).await;
    assert_eq!(
        (answer.decision, answer.reason),
        (Decision::Denied, Reason::InsufficientRelation)
    );
    grant(operator, "user:ann", "excluded", &resource).await;
    let answer = check(operator, "user:ann", "act", &resource).await;
    assert_eq!(answer.decision, Decision::Denied);
    assert_eq!(answer.relation_path, [format!("{resource}#excluded@user:ann")]);
    assert_eq!(
        check(operator, "user:ann", "act", &project).await.decision,
        Decision::Allowed
    );
    assert_eq!(
        check(operator, "user:ann", "member", "group:ops").await.decision,
        Decision::Allowed
    );

    let listed = operator.get(&tuples(operator)).await.expect(200);
    Contract::published().judge_answer("ListRelationTuples", &listed);

    // Nobody learns from a check what is none of their business, not even that it exists.
    let stranger = issue(&world, "stranger").await;
    let of_stranger = world.operator.with_token(&stranger.token);
    for resource in [&resource, "resource:0198c5f0-0000-7000-8000-000000000000"] {
        let answer = check(&of_stranger, "user:ann", "act", resource).await;
        assert_eq!(
            (answer.decision, answer.reason),
            (Decision::Denied, Reason::OutOfScope)
        );
    }
    let own = format!("token:{}", stranger.about.id);
    let answer = check(&of_stranger, &own, "act", &project).await;
    assert_eq!(answer.reason, Reason::InsufficientRelation);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_shown_a_node_that_they_may_not_act_on() {
    let world = World::new().await;
    let mut one = world
        .node("one")
        .labels("role=web")
        .hook("greet", "#!/bin/sh\n")
        .start()
        .await;
    let mut two = world
        .node("two")
        .labels("role=web")
        .hook("greet", "#!/bin/sh\n")
        .start()
        .await;
    one.replace_hook("greet", "#!/bin/sh\ntrue\n").await;
    two.replace_hook("greet", "#!/bin/sh\ntrue\n").await;
    let project = &world.operator.project;
    let lists = [
        (format!("/v1/nodes?project_id={project}"), "id"),
        (world.operator.in_project("hooks"), "node_id"),
        (
            format!("/v1/integrity-violations?project_id={project}"),
            "node_id",
        ),
    ];
    let (deploy, stranger) = (issue(&world, "deploy").await, issue(&world, "stranger").await);
    let subject = format!("token:{}", deploy.about.id);
    grant(
        &world.operator,
        &subject,
        "operator",
        &format!("project:{project}"),
    )
    .await;
    grant(
        &world.operator,
        &subject,
        "excluded",
        &format!("resource:{}", two.id),
    )
    .await;
    let deploy = world.operator.with_token(&deploy.token);
    let shown = async |operator: &Operator, list: &str, field: &str| {
        let page: Value = operator.get(list).await.expect(200).json();
        let items = page["items"].as_array().expect("a list").clone();
        items
            .into_iter()
            .map(|item| item[field].clone())
            .collect::<Vec<_>>()
    };
    for (list, field) in &lists {
        let all = shown(&world.operator, list, field).await;
        assert!(
            [one.id, two.id].iter().all(|id| all.contains(&json!(id))),
            "{list}: {all:?}"
        );
        assert_eq!(shown(&deploy, list, field).await, [json!(one.id)], "{list}");
    }
    let action: Value = deploy
        .get(&deploy.in_project("actions/greet"))
        .await
        .expect(200)
        .json();
    let nodes = action["nodes"].as_array().expect("a list");
    assert!(
        nodes.len() == 1 && nodes[0]["node_id"] == json!(one.id),
        "{action}"
    );
    // How many were left out is said, and not which.
    let sent = deploy.dispatch(&on("ping", "role=web")).await;
    assert_eq!(sent.targets.len(), 1);
    assert!(
        sent.dropped.len() == 1 && sent.dropped[0].count == 1 && sent.dropped[0].sample.is_empty(),
        "{:?}",
        sent.dropped
    );
    let _ = world.settled(sent.id).await;

    // Who was granted nothing has empty lists, where no project is named.
    let stranger = world.operator.with_token(&stranger.token);
    for list in ["/v1/nodes", "/v1/integrity-violations"] {
        assert!(shown(&stranger, list, "id").await.is_empty(), "{list}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tuple_that_means_nothing_is_refused_and_one_that_stands_is_answered() {
    let world = World::new().await;
    let operator = &world.operator;
    let project = format!("project:{}", operator.project);
    let before = world.rows();
    for (subject, relation, resource, status, code) in [
        ("ann", "act", &*project, 400, "invalid_subject"),
        ("user:", "act", &project, 400, "invalid_subject"),
        ("group:ops", "act", &project, 400, "invalid_subject"),
        ("token:x", "act", &project, 400, "invalid_subject"),
        ("user:ann", "act", "project:x", 400, "invalid_resource"),
        ("user:ann", "act", "everything", 400, "invalid_resource"),
        ("user:ann", "own", &project, 400, "invalid_relation"),
        ("user:ann", "member", &project, 400, "invalid_relation"),
        ("user:ann", "operator", "group:ops", 400, "invalid_relation"),
        ("group:ops#member", "member", "group:ops", 400, "group_cycle"),
        (
            "user:ann",
            "act",
            "project:0198c5f0-0000-7000-8000-000000000000",
            404,
            "resource_not_found",
        ),
    ] {
        let _ = try_grant(operator, subject, relation, resource)
            .await
            .refused(status, code);
    }
    let caveat =
        json!({"subject": "user:ann", "relation": "act", "resource": project, "caveat_name": "hours"});
    let _ = operator
        .post(&tuples(operator), &caveat)
        .await
        .refused(400, "caveat_unsupported");
    assert_eq!(world.rows(), before);
    let one = grant(operator, "user:ann", "act", &project).await;
    assert_eq!(grant(operator, "user:ann", "act", &project).await.id, one.id);

    for n in 1..8 {
        let (inner, outer) = (format!("group:g{n}#member"), format!("group:g{}", n + 1));
        grant(operator, &inner, "member", &outer).await;
    }
    let deeper = try_grant(operator, "group:g8#member", "member", "group:g9").await;
    let problem = deeper.refused(400, "group_too_deep");
    assert!(problem.detail.contains("GROUP_DEPTH_MAX"), "{problem:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_grants_lists_and_takes_away_by_the_command_line() {
    let world = World::new().await;
    let started = world.node("n").start().await;
    let node = format!("resource:{}", started.id);
    let muster = async |args: &[&str]| world.operator.muster(args).await;
    let made = muster(&["tokens", "issue-operator", "ci", "--ttl", "1h", "-o", "json"])
        .await
        .expect(0)
        .json();
    let subject = format!("token:{}", made["id"].as_str().unwrap());
    let ci = world.operator.with_token(made["token"].as_str().unwrap());
    let _ = ci.muster(&["run", "ping", "--all", "--wait"]).await.expect(5);
    let _ = muster(&["grant", &subject, "act", "project"]).await.expect(0);
    let _ = muster(&["grant", &subject, "act", &node]).await.expect(0);
    let _ = ci.muster(&["run", "ping", "--all", "--wait"]).await.expect(0);
    let listed = muster(&["grant", "--list"]).await.expect(0);
    assert!(
        listed.stdout.contains(&subject) && listed.stdout.contains("domain:"),
        "{listed:?}"
    );
    let said = muster(&["grant", "--delete", &subject, "act", &node])
        .await
        .expect(0);
    assert_eq!(said.stderr, format!("taken away: {subject} act {node}\n"));
    let _ = ci.muster(&["run", "ping", "--all", "--wait"]).await.expect(6);
    let _ = muster(&["grant", "--delete", &subject, "act", &node])
        .await
        .expect(5);
    let _ = muster(&["grant", &subject, "operator", "domain"]).await.expect(0);
    let _ = ci.muster(&["audit", "verify"]).await.expect(0);
    let rotated = muster(&["tokens", "rotate", "ci"]).await.expect(0);
    let _ = ci.muster(&["nodes"]).await.expect(5);
    let ci = world.operator.with_token(rotated.stdout.trim());
    let _ = ci.muster(&["nodes"]).await.expect(0);
}

// ---- every door

/// Every operation of the document that control serves: method, path, whose key it asks for, and the names of its query.
async fn operations(world: &World) -> Vec<(Method, String, String, Vec<String>)> {
    let document: Value = world.operator.get("/v1/openapi.json").await.expect(200).json();
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("it has paths") {
        for (method, operation) in methods.as_object().expect("a path has methods") {
            let keys = operation["security"].as_array().expect("it says whose key");
            let who = keys.iter().filter_map(|key| key.as_object()?.keys().next());
            let parameters = operation["parameters"].as_array();
            let query: Vec<String> = parameters
                .into_iter()
                .flatten()
                .filter(|parameter| parameter["in"] == "query")
                .map(|parameter| parameter["name"].as_str().expect("it has a name").to_owned())
                .collect();
            all.extend(who.map(|who| {
                let method = method.to_uppercase().parse().expect("it is a method");
                (method, path.clone(), who.clone(), query.clone())
            }));
        }
    }
    all
}

/// Everything that a request could change.
fn state(world: &World) -> (std::collections::BTreeMap<String, i64>, Vec<String>) {
    let mut sums = Vec::new();
    for rows in [
        "* FROM operator_token",
        "* FROM relation_tuple",
        "* FROM bootstrap_token",
        // When it was last heard of is written by the clock.
        "id, name, hostname, machine_id, nsk_hash, nsk_next_hash, nsk_asked_at, decommissioned_at, warning FROM node",
        "* FROM node_label",
    ] {
        let rows = world.database().rows(&format!("SELECT {rows}"));
        sums.extend(rows.iter().map(|row| format!("{row:?}")));
    }
    // Which rows there are; their order is the engine's.
    sums.sort();
    (world.rows(), sums)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operator_route_is_shut_to_whoever_has_not_the_right_key() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    node.declare(&[("deploy", Digest::of(b"1"))]).await;
    node.declare(&[("deploy", Digest::of(b"2"))]).await;
    let ran = world.dispatch(on_node("ping", node.id)).await;
    world.leave_open();
    let found: Page<ViolationRow> = world
        .operator
        .get("/v1/integrity-violations")
        .await
        .expect(200)
        .json();
    let violation = found.items[0].id.to_string();
    let (operator, project) = (&world.operator, format!("project:{}", world.operator.project));
    let bootstrap = world.bootstrap_token("n=two").await;
    let listed = operator
        .muster(&["tokens", "list", "-o", "json"])
        .await
        .expect(0)
        .json();
    let items = listed["items"].as_array().unwrap();
    let bootstrap_id = items.iter().find(|t| t["kind"] == "bootstrap").unwrap()["id"]
        .as_str()
        .unwrap();
    let own_id = items.iter().find(|t| t["kind"] == "operator").unwrap()["id"]
        .as_str()
        .unwrap();
    let tuple = grant(operator, "user:ann", "act", &project).await;

    let token_of = async |name: &str| issue(&world, name).await;
    let (revoked, expired, tenant, weak) = (
        token_of("revoked").await,
        token_of("expired").await,
        token_of("tenant").await,
        token_of("weak").await,
    );
    for token in [&revoked, &expired] {
        grant(
            operator,
            &format!("token:{}", token.about.id),
            "operator",
            &domain(&world).await,
        )
        .await;
    }
    grant(operator, &format!("token:{}", weak.about.id), "act", &project).await;
    let _ = operator.muster(&["tokens", "revoke", "revoked"]).await.expect(0);
    let db = world.database();
    let past = db.at(Timestamp::now().as_millis() - 1);
    // Another tenant, with an operator of its own.
    world.alter(&format!(
        "UPDATE operator_token SET expires_at = {past} WHERE name = 'expired';
         INSERT INTO domain (id, name, created_at) VALUES ({domain}, 'other', {past});
         INSERT INTO project (id, domain_id, name, created_at) VALUES ({project}, {domain}, 'other', {past});
         UPDATE operator_token SET domain_id = {domain} WHERE name = 'tenant';
         INSERT INTO relation_tuple (id, domain_id, subject, relation, resource, created_at)
         VALUES ({id}, {domain}, 'token:{tenant}', 'operator', 'domain:01900000-0000-7000-8000-00000000000a', {past})",
        domain = db.id(uuid::uuid!("01900000-0000-7000-8000-00000000000a")),
        project = db.id(uuid::uuid!("01900000-0000-7000-8000-00000000000b")),
        id = db.some_id(),
        tenant = tenant.about.id,
    ));
    let http = client_with_ca(&operator.ca_file);
    let nsk = &node.nsk;
    let callers: [(&str, Option<&str>, &[u16]); 8] = [
        ("no token", None, &[401]),
        ("garbage", Some("mop_garbage"), &[401]),
        ("an NSK", Some(nsk), &[401]),
        ("a bootstrap token", Some(&bootstrap), &[401]),
        ("revoked", Some(&revoked.token), &[401]),
        ("expired", Some(&expired.token), &[401]),
        ("another tenant", Some(&tenant.token), &[403, 404]),
        ("insufficient", Some(&weak.token), &[403, 404]),
    ];
    // What a token that may act in the project is allowed all the same: it reads there, and dispatches.
    let act_is_enough = |method: &Method, path: &str| {
        path.starts_with("/v1/projects/{project}/executions")
            || path == "/v1/projects/{project}/hooks"
            || path == "/v1/projects/{project}/actions/{action}"
            || path == "/v1/integrity-violations"
            || (path == "/v1/nodes" && method == Method::GET)
    };
    // What is asked of nobody's project in particular: any operator may.
    let anybody = [
        "/v1/labels/selectors/preview",
        "/v1/authz/check",
        "/v1/auth/whoami",
    ];
    let mut asked = 0;
    for (method, path, who, query) in operations(&world).await {
        if who != "operator" {
            continue;
        }
        let token_id = if path.contains("bootstrap") {
            bootstrap_id
        } else {
            own_id
        };
        let filled = path
            .replace("{project}", &operator.project)
            .replace("{execution}", &ran.id.to_string())
            .replace("{node}", &node.id.to_string())
            .replace("{hook}", "x")
            .replace("{action}", "ping")
            .replace("{token}", token_id)
            .replace("{violation}", &violation)
            .replace("{tuple}", &tuple.id.to_string());
        assert!(
            !filled.contains('{'),
            "{path}: a part that this story does not know"
        );
        let mut url = format!("{}{filled}", operator.server);
        if query.iter().any(|name| name == "project_id") {
            url.push_str(&format!("?project_id={}", operator.project));
        }
        for (name, token, statuses) in &callers {
            let any = anybody.contains(&&*path) && statuses != &[401];
            let enough = *name == "insufficient" && act_is_enough(&method, &path);
            if any || enough {
                continue;
            }
            let before = state(&world);
            // Whoever reads this body answers 400.
            let mut call = http.request(method.clone(), &url).body("{not JSON");
            if let Some(token) = token {
                call = call.bearer_auth(token);
            }
            let answer = Answer::to(call).await;
            assert!(
                statuses.contains(&answer.status),
                "{method} {path} with {name}: {} {}",
                answer.status,
                answer.text()
            );
            assert_eq!(
                state(&world),
                before,
                "{method} {path} with {name} changed something"
            );
            asked += 1;
        }
        // With the right key a wish that nobody knows is refused, before anything else is looked at.
        let before = state(&world);
        let odd = format!("{}{filled}?surely_unknown=1", operator.server);
        let call = http.request(method.clone(), &odd).bearer_auth(&operator.token);
        let answer = Answer::to(call.body("{not JSON")).await;
        let problem = answer.refused(400, "invalid_query");
        assert!(
            format!("{problem:?}").contains("surely_unknown"),
            "{method} {path}"
        );
        assert_eq!(state(&world), before, "{method} {path} changed something");
    }
    assert!(asked > 150, "the document is read: {asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_route_is_shut_to_whoever_has_not_the_nodes_own_key() {
    let world = World::new().await;
    let (one, two) = (
        BareNode::enroll(&world, "n=one").await,
        BareNode::enroll(&world, "n=two").await,
    );
    one.declare(&[]).await;
    let ran = world.dispatch(on_node("ping", one.id)).await;
    world.leave_open();
    let http = client_with_ca(&world.operator.ca_file);
    let mut asked = 0;
    for (method, path, who, _) in operations(&world).await {
        if who != "node" {
            continue;
        }
        let filled = path
            .replace("{execution}", &ran.id.to_string())
            .replace("{node}", &one.id.to_string());
        let url = format!("{}{filled}", world.operator.server);
        asked += 1;
        for (token, status) in [
            (None, 401),
            (Some("nsk_garbage"), 401),
            (Some(&*world.operator.token), 401),
            (Some(&*two.nsk), 403),
        ] {
            let mut call = http.request(method.clone(), &url).body("{not JSON");
            if let Some(token) = token {
                call = call.bearer_auth(token);
            }
            let before = state(&world);
            let answer = Answer::to(call).await;
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
            assert_eq!(state(&world), before, "{method} {path}");
        }
    }
    assert!(asked >= 5, "the document is read: {asked}");
}
