//! Every code of the table of problems, provoked through the real server: a code that nothing provokes does not exist.

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::{access::OperatorTokenSecret, time::Timestamp};
use muster_tests::{
    Answer, Operator,
    operator::{client_with_ca, stalled_body},
    prelude::*,
    s3::{ACCESS_KEY_ID, BUCKET, S3, SECRET_ACCESS_KEY},
    world::{on, on_node},
};
use reqwest::Method;

/// What cannot be provoked on one machine with sound libraries, and why.
const OUT_OF_REACH: [(&str, &str); 2] = [
    ("metrics_not_public", "it takes a caller from another machine"),
    (
        "output_changed",
        "before the first byte it takes a store that keeps digests, and keeps another",
    ),
];

/// The codes that were provoked so far, each with its statuses.
#[derive(Default)]
struct Seen(BTreeSet<(String, u16)>);

impl Seen {
    #[track_caller]
    fn saw(&mut self, answer: Answer, status: u16, code: &str) {
        let _ = answer.refused(status, code);
        self.0.insert((code.to_owned(), status));
    }
}

/// The table, as the document that control serves has it.
async fn table(operator: &Operator) -> BTreeSet<String> {
    let document: Value = operator.get("/v1/openapi.json").await.expect(200).json();
    let codes = &document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    serde_json::from_value(codes.clone()).expect("the codes are a list")
}

fn a_uuid() -> ExecutionId {
    ExecutionId::mint(Timestamp::now(), muster_tests::chance())
}

async fn send(operator: &Operator, method: Method, path: &str, body: Value) -> Answer {
    Answer::to(operator.request(method, path).json(&body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_code_of_the_table_can_be_provoked() {
    let mut seen = Seen::default();
    let world = World::with_config(Some(
        "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\nlive_executions_max = 1\n\
         output_bytes_max = 100000\nwatches_max = 1\nopen_violations_max = 128\n",
    ))
    .await;
    world.leave_open();
    requests_that_make_no_sense(&world, &mut seen).await;
    tokens_and_tuples(&world, &mut seen).await;
    enrolment(&world, &mut seen).await;
    dispatches(&world, &mut seen).await;
    violations_and_cursors(&world, &mut seen).await;
    reports_and_outputs(&world, &mut seen).await;
    rollouts(&world, &mut seen).await;
    outputs_that_do_not_hold(&world, &mut seen).await;
    an_output_store_that_is_down(&mut seen).await;
    an_output_store_that_is_full(&mut seen).await;
    an_issuer_that_is_down(&mut seen).await;
    what_takes_time(&world, &mut seen).await;
    tokens_that_hold_no_more(&world, &mut seen).await;

    let mut by_code: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    for (code, status) in &seen.0 {
        by_code.entry(code).or_default().push(*status);
    }
    assert_eq!(by_code["last_operator"], [400, 409]);
    let provoked: BTreeSet<String> = by_code.keys().map(|code| (*code).to_owned()).collect();
    let out_of_reach = OUT_OF_REACH.map(|(code, _)| code.to_owned());
    let expected: BTreeSet<String> = provoked.iter().cloned().chain(out_of_reach).collect();
    let world = World::new().await;
    assert_eq!(
        table(&world.operator).await,
        expected,
        "left: the table; right: what was provoked"
    );
}

async fn requests_that_make_no_sense(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let list = operator.in_project("executions");
    let project = &operator.project;
    let ghost = a_uuid();
    for (path, status, code) in [
        ("/v1/nonsense".to_owned(), 404, "not_found"),
        (format!("{list}/%FF"), 400, "invalid_path"),
        (format!("{list}?limit=1&limit=2"), 400, "invalid_query"),
        (format!("{list}?colour=red"), 400, "invalid_query"),
        (format!("{list}?created_after=x"), 400, "invalid_created_after"),
        (format!("{list}?created_before=x"), 400, "invalid_created_before"),
        ("/v1/nodes?connected=x".to_owned(), 400, "invalid_connected"),
        (format!("{list}?limit=0"), 400, "invalid_limit"),
        (format!("{list}?cursor=x"), 400, "invalid_cursor"),
        (format!("{list}?status=x"), 400, "invalid_status"),
        (format!("{list}/x"), 400, "invalid_execution_id"),
        (format!("{list}/{ghost}"), 404, "execution_not_found"),
        (
            operator.in_project("actions/nobody.has.it"),
            404,
            "action_not_found",
        ),
        ("/v1/projects/x/executions".to_owned(), 400, "invalid_project_id"),
        (
            format!("/v1/projects/{ghost}/executions"),
            404,
            "project_not_found",
        ),
        ("/v1/nodes/x".to_owned(), 400, "invalid_node_id"),
        (format!("/v1/nodes/{ghost}"), 404, "node_not_found"),
        ("/v1/nodes?selector=a%3D".to_owned(), 400, "malformed_selector"),
        ("/v1/integrity-violations?kind=x".to_owned(), 400, "invalid_kind"),
        ("/v1/audit".to_owned(), 400, "invalid_domain_id"),
        (format!("/v1/audit?domain_id={ghost}"), 404, "domain_not_found"),
        (
            format!("/v1/audit?project_id={project}&order=x"),
            400,
            "invalid_order",
        ),
    ] {
        seen.saw(operator.get(&path).await, status, code);
    }
    let answer = send(operator, Method::DELETE, &list, json!({})).await;
    assert!(answer.headers.contains_key("allow"), "{:?}", answer.headers);
    seen.saw(answer, 405, "method_not_allowed");
    let dispatch = operator.in_project("executions:dispatch");
    seen.saw(operator.post(&dispatch, &json!([])).await, 400, "invalid_body");
    let large = json!({"action": "x".repeat(200 * 1024)});
    seen.saw(
        operator.post(&dispatch, &large).await,
        413,
        "request_body_too_large",
    );
    let nobody = operator.with_token("mop_nobody");
    seen.saw(nobody.get(&list).await, 401, "unauthenticated");
}

async fn tokens_and_tuples(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let project = format!("project:{}", operator.project);
    let tokens = format!("/v1/operator-tokens?project_id={}", operator.project);
    for (body, status, code) in [
        (json!({"name": "a b"}), 400, "invalid_name"),
        (json!({"name": "a", "ttl_seconds": 1}), 400, "invalid_ttl"),
        (json!({"name": "init"}), 409, "token_name_taken"),
    ] {
        seen.saw(operator.post(&tokens, &body).await, status, code);
    }
    let weak: OperatorTokenSecret = operator
        .post(&tokens, &json!({"name": "weak"}))
        .await
        .expect(201)
        .json();
    let rotate = |id: String| format!("/v1/operator-tokens/{id}/rotate");
    let overlap = json!({"overlap_seconds": 10_000_000});
    seen.saw(
        operator.post(&rotate(weak.about.id.to_string()), &overlap).await,
        400,
        "invalid_overlap",
    );
    seen.saw(
        operator.post(&rotate("x".to_owned()), &json!({})).await,
        400,
        "invalid_token_id",
    );
    seen.saw(
        operator.post(&rotate(a_uuid().to_string()), &json!({})).await,
        404,
        "token_not_found",
    );

    let tuples = format!("/v1/authz/relation-tuples?project_id={}", operator.project);
    let tuple = |subject: &str, relation: &str, resource: &str| json!({"subject": subject, "relation": relation, "resource": resource});
    let caveat = json!({"subject": "user:a", "relation": "act", "resource": project, "caveat_name": "x"});
    for (body, status, code) in [
        (tuple("a", "act", &project), 400, "invalid_subject"),
        (tuple("user:a", "own", &project), 400, "invalid_relation"),
        (tuple("user:a", "act", "x"), 400, "invalid_resource"),
        (
            tuple("user:a", "act", &format!("project:{}", a_uuid())),
            404,
            "resource_not_found",
        ),
        (tuple("group:a#member", "member", "group:a"), 400, "group_cycle"),
        (caveat, 400, "caveat_unsupported"),
    ] {
        seen.saw(operator.post(&tuples, &body).await, status, code);
    }
    for n in 1..8 {
        let body = tuple(
            &format!("group:g{n}#member"),
            "member",
            &format!("group:g{}", n + 1),
        );
        let _ = operator.post(&tuples, &body).await.expect(201);
    }
    let deeper = tuple("group:g8#member", "member", "group:g9");
    seen.saw(operator.post(&tuples, &deeper).await, 400, "group_too_deep");
    let delete = async |id: String| {
        let path = format!("/v1/authz/relation-tuples/{id}?project_id={}", operator.project);
        send(operator, Method::DELETE, &path, json!({})).await
    };
    seen.saw(delete("x".to_owned()).await, 400, "invalid_tuple_id");
    seen.saw(delete(a_uuid().to_string()).await, 404, "tuple_not_found");

    let _ = operator
        .post(
            &tuples,
            &tuple(&format!("token:{}", weak.about.id), "act", &project),
        )
        .await
        .expect(201);
    let weak = operator.with_token(&weak.token);
    seen.saw(weak.get(&tuples).await, 403, "permission_denied");

    let said = operator
        .muster(&["tokens", "list", "-o", "json"])
        .await
        .expect(0)
        .json();
    let own = said["items"]
        .as_array()
        .expect("it is there")
        .iter()
        .find(|token| token["name"] == "init")
        .expect("it is there")["id"]
        .as_str()
        .expect("it is there")
        .to_owned();
    let domain = said_domain(operator).await;
    let exclude = tuple(&format!("token:{own}"), "excluded", &domain);
    seen.saw(operator.post(&tuples, &exclude).await, 400, "last_operator");
    let revoke = format!("/v1/operator-tokens/{own}");
    seen.saw(
        send(operator, Method::DELETE, &revoke, json!({})).await,
        409,
        "last_operator",
    );
}

async fn said_domain(operator: &Operator) -> String {
    let path = format!("/v1/audit?project_id={}&limit=1", operator.project);
    let page: Value = operator.get(&path).await.expect(200).json();
    format!(
        "domain:{}",
        page["items"][0]["domain_id"].as_str().expect("it is there")
    )
}

async fn enrolment(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let http = client_with_ca(&operator.ca_file);
    let call = async |token: &str, ask: &EnrollRequest| {
        Answer::to(BareNode::enroll_call(&http, operator, token, ask)).await
    };
    let issue = operator.in_project("bootstrap-tokens");
    let uses = json!({"uses": 0});
    seen.saw(operator.post(&issue, &uses).await, 400, "invalid_uses");
    let labels = json!({"labels": {"node/os": "x"}});
    seen.saw(operator.post(&issue, &labels).await, 400, "invalid_label");

    let ask = BareNode::enroll_request();
    seen.saw(call("mbt_nobody", &ask).await, 401, "bootstrap_token_invalid");
    let token = world.bootstrap_token("n=used").await;
    let _ = call(&token, &ask).await.expect(201);
    seen.saw(
        call(&token, &BareNode::enroll_request()).await,
        401,
        "bootstrap_token_used",
    );
    world.alter(&format!(
        "UPDATE node SET decommissioned_at = {}",
        world.database().at(0)
    ));
    seen.saw(call(&token, &ask).await, 409, "node_decommissioned");
    world.alter("UPDATE node SET decommissioned_at = NULL");
    let expired = world.bootstrap_token("n=expired").await;
    world.alter("UPDATE bootstrap_token SET expires_at = created_at");
    seen.saw(call(&expired, &ask).await, 401, "bootstrap_token_expired");
    let issued: Value = operator.post(&issue, &json!({})).await.expect(201).json();
    let path = operator.in_project(&format!(
        "bootstrap-tokens/{}",
        issued["id"].as_str().expect("it is there")
    ));
    let _ = send(operator, Method::DELETE, &path, json!({})).await.expect(200);
    seen.saw(
        call(issued["token"].as_str().expect("it is there"), &ask).await,
        401,
        "bootstrap_token_revoked",
    );

    let bare = BareNode::enroll(world, "n=keys").await;
    let fetch = async |nsk: &str| {
        let path = format!("/v1/nodes/{}/nsk", bare.id);
        Answer::to(operator.with_token(nsk).request(Method::POST, &path)).await
    };
    seen.saw(fetch(&bare.nsk).await, 409, "key_rotation_not_due");
    let ask = json!({"node_id": bare.id});
    let _ = operator
        .post(&operator.in_project("nodes/rotate-keys"), &ask)
        .await
        .expect(200);
    let new: NewNsk = fetch(&bare.nsk).await.expect(201).json();
    // Its first use.
    seen.saw(fetch(&new.nsk).await, 409, "key_rotation_not_due");
    world.alter("UPDATE node SET nsk_previous_until = created_at");
    seen.saw(fetch(&bare.nsk).await, 401, "nsk_rotated");

    let said_by = async |instance: &str, before: &str| {
        let path = format!("/v1/nodes/{}/nsk", bare.id);
        let request = operator.with_token(&new.nsk).request(Method::POST, &path);
        let request = request.header(INSTANCE_HEADER, instance);
        Answer::to(request.header(INSTANCES_BEFORE_HEADER, before)).await
    };
    let [first, second, strange] = [(); 3].map(|()| a_uuid().to_string());
    seen.saw(said_by("x", "").await, 400, "invalid_instance");
    seen.saw(said_by(&first, "").await, 409, "key_rotation_not_due");
    seen.saw(said_by(&second, &first).await, 409, "key_rotation_not_due");
    seen.saw(said_by(&first, "").await, 503, "node_contested");
    let beat = json!({"client_now": Timestamp::now(), "binary_checksum": "AAAA", "binary_version": "0",
        "nat_summary": {}});
    let path = format!("/v1/nodes/{}/heartbeat", bare.id);
    let by_new = operator.with_token(&new.nsk);
    let heard = async || send(&by_new, Method::POST, &path, beat.clone()).await.expect(200);
    // One that does not know the one that is known is a copy once that one is heard of beside it.
    let _ = heard().await;
    let _ = said_by(&strange, &first).await;
    let _ = heard().await;
    seen.saw(said_by(&strange, &first).await, 409, "node_cloned");

    // As many namesakes as there may be, of the one that is there.
    let db = world.database();
    world.alter(&format!(
        "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 10000)
         INSERT INTO node (id, domain_id, project_id, name, hostname, machine_id, nsk_hash, bootstrap_token_id,
                           enrollment_id, created_at)
         SELECT {id}, domain_id, project_id, CASE i WHEN 1 THEN 'many' ELSE 'many-' || i END, 'many', 'm',
                {digest}, bootstrap_token_id, {id}, created_at
           FROM c, (SELECT * FROM node LIMIT 1) n",
        id = db.some_id(),
        digest = db.some_digest(),
    ));
    let mut namesake = BareNode::enroll_request();
    namesake.hostname = "many".to_owned();
    let token = world.bootstrap_token("n=many").await;
    seen.saw(call(&token, &namesake).await, 409, "node_name_exhausted");
    world.alter("DELETE FROM node WHERE hostname = 'many'");
}

async fn dispatches(world: &World, seen: &mut Seen) {
    let node = BareNode::enroll(world, "n=one").await;
    node.declare(&[("deploy", Digest::of(b"1"))]).await;
    node.declare(&[("deploy", Digest::of(b"2"))]).await;
    let operator = &world.operator;
    let with = |name: &str, value: Value| {
        let mut body = on_node("ping", node.id);
        body[name] = value;
        body
    };
    for (body, status, code) in [
        (json!({"action": "ping"}), 400, "invalid_target"),
        (on_node("../x", node.id), 400, "invalid_action"),
        (with("timeout_seconds", json!(0)), 400, "invalid_timeout"),
        (
            with("deliver_within_seconds", json!(0)),
            400,
            "invalid_deliver_within",
        ),
        (with("rollout", json!({})), 400, "invalid_rollout"),
        (
            with("parameters", json!({"a": "x".repeat(PARAMETERS_BYTES_MAX)})),
            400,
            "invalid_parameters",
        ),
        (on_node("nobody.has.it", node.id), 400, "action_not_declared"),
        (on_node("deploy", node.id), 409, "hook_integrity_violation"),
        (on("ping", "n=none"), 422, "selector_empty_cohort"),
        (with("expect", json!(2)), 422, "cohort_mismatch"),
    ] {
        seen.saw(operator.try_dispatch(&body).await, status, code);
    }
    let other = BareNode::enroll(world, "n=one").await;
    other.declare(&[]).await;
    let mut few = on("ping", "n=one");
    few["max_targets"] = json!(1);
    seen.saw(operator.try_dispatch(&few).await, 422, "too_many_targets");

    let keyed = async |key: &str, body: &Value| {
        let path = operator.in_project("executions:dispatch");
        Answer::to(
            operator
                .request(Method::POST, &path)
                .header(IDEMPOTENCY_KEY_HEADER, key)
                .json(body),
        )
        .await
    };
    let ping = on_node("ping", node.id);
    seen.saw(keyed("a b", &ping).await, 400, "invalid_idempotency_key");
    let sent: Execution = keyed("k", &ping).await.expect(201).json();
    let events = operator.in_project(&format!("executions/{}/events", sent.id));
    let watching = operator.request(Method::GET, &events).send().await;
    seen.saw(operator.get(&events).await, 429, "too_many_watches");
    drop(watching);
    seen.saw(
        keyed("k", &on_node("ping", other.id)).await,
        422,
        "idempotency_key_reuse",
    );
    seen.saw(operator.try_dispatch(&ping).await, 429, "capacity_exceeded");
    seen.saw(
        operator.try_cancel(sent.id, Some(other.id)).await,
        404,
        "target_not_found",
    );
    let _ = operator.cancel(sent.id).await;
    let path = operator.in_project(&format!("executions/{}/targets/{}/output", sent.id, node.id));
    seen.saw(operator.get(&path).await, 404, "output_not_found");
}

async fn violations_and_cursors(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let node = BareNode::enroll(world, "n=changed").await;
    node.declare(&[("changed", Digest::of(b"1"))]).await;
    node.declare(&[("changed", Digest::of(b"2"))]).await;
    let path = format!("/v1/integrity-violations?node_id={}", node.id);
    let page: Value = operator.get(&path).await.expect(200).json();
    let id = page["items"][0]["id"].as_str().expect("it is there").to_owned();
    let acknowledge = async |id: &str, reason: &str| {
        let path = format!("/v1/integrity-violations/{id}/acknowledge");
        operator.post(&path, &json!({"reason": reason})).await
    };
    let ghost = a_uuid().to_string();
    seen.saw(acknowledge("x", "r").await, 400, "invalid_violation_id");
    seen.saw(acknowledge(&ghost, "r").await, 404, "violation_not_found");
    seen.saw(acknowledge(&id, " ").await, 400, "invalid_reason");
    let approve = operator.in_project("hooks/changed/approve");
    let body = json!({"digest": Digest::of(b"2"), "node_id": node.id});
    let _ = operator.post(&approve, &body).await.expect(200);
    seen.saw(acknowledge(&id, "r").await, 409, "violation_resolved");

    let path = format!("/v1/nodes/{}/integrity-violations", node.id);
    let found = |name: String| json!({"kind": "hook_checksum", "detected_by": "inotify", "artifact_id": name, "observed_checksum": Digest::of(b"3")});
    let report = async |violations: Vec<Value>| {
        let body = json!({ "violations": violations });
        Answer::to(node.request(Method::POST, &path).json(&body)).await
    };
    let many = (0..128).map(|n| found(format!("h{n}"))).collect();
    let _ = report(many).await.expect(202);
    let further = report(vec![found("further".to_owned())]).await;
    seen.saw(further, 429, "too_many_violations");

    let page: Value = operator.get("/v1/nodes?limit=1").await.expect(200).json();
    let cursor = page["next_cursor"].as_str().expect("there are more nodes");
    let elsewhere = format!("/v1/integrity-violations?cursor={cursor}");
    seen.saw(operator.get(&elsewhere).await, 403, "cursor_binding_mismatch");
}

async fn reports_and_outputs(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let (node, other) = (
        BareNode::enroll(world, "n=two").await,
        BareNode::enroll(world, "n=three").await,
    );
    let manifest = async |hooks: Value, builtins: Value| {
        let body = json!({"binary_version": "1", "binary_checksum": Digest::of(b""), "declared_hooks": hooks,
            "builtin_actions": builtins});
        let path = format!("/v1/nodes/{}/capabilities", node.id);
        Answer::to(node.request(Method::PUT, &path).json(&body)).await
    };
    let hook = |name: &str| json!({"name": name, "checksum": Digest::of(b"")});
    let (none, ping) = (json!([]), json!({"name": "ping"}));
    seen.saw(
        manifest(json!([hook("../x")]), none.clone()).await,
        400,
        "declared_hook_invalid",
    );
    seen.saw(
        manifest(json!([hook("x"), hook("x")]), none.clone()).await,
        400,
        "declared_hook_duplicate",
    );
    seen.saw(
        manifest(none.clone(), json!([{"name": "../x"}])).await,
        422,
        "builtin_action_invalid",
    );
    seen.saw(
        manifest(none, json!([ping, ping])).await,
        422,
        "builtin_action_duplicate",
    );
    let refused = json!({"binary_version": "1", "binary_checksum": Digest::of(b""), "declared_hooks": [],
        "builtin_actions": [], "refused_hooks": [{"name": "", "why": "x"}]});
    let path = format!("/v1/nodes/{}/capabilities", node.id);
    seen.saw(
        Answer::to(node.request(Method::PUT, &path).json(&refused)).await,
        400,
        "refused_hook_invalid",
    );
    let foreign = format!("/v1/nodes/{}/heartbeat", other.id);
    seen.saw(
        Answer::to(node.request(Method::POST, &foreign)).await,
        403,
        "node_id_mismatch",
    );

    node.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await.into_inner();
    let strange = Answer::to(other.request(Method::POST, &other.callback_path(sent.id))).await;
    seen.saw(strange, 403, "nsk_node_mismatch");
    let bare = Answer::to(node.request(Method::POST, &node.callback_path(sent.id))).await;
    seen.saw(bare, 403, "callback_token_mismatch");
    let report = async |callback: Callback| node.report(&request, &callback).await;
    seen.saw(
        report(Callback::of(Status::Started)).await,
        409,
        "invalid_state_transition",
    );
    let _ = report(Callback::of(Status::Ack)).await.expect(200);
    let declared = |bytes| Callback {
        declared_output_bytes: Some(bytes),
        ..Callback::of(Status::Started)
    };
    seen.saw(report(declared(100_001)).await, 413, "declared_output_too_large");
    let offered: CallbackResponse = report(declared(20_000)).await.expect(200).json();
    let url = offered.output_upload_url.expect("an upload is offered");
    let http = client_with_ca(&operator.ca_file);
    let put = async |url: &str| Answer::to(http.put(url).body(vec![b'o'; 3])).await;
    seen.saw(put(&url).await, 400, "upload_length_mismatch");
    seen.saw(put(&format!("{url}x")).await, 403, "upload_url_invalid");
    let ended = |output| Callback {
        output: Some(output),
        ..Callback::of(Status::Succeeded)
    };
    let inline = CallbackOutput {
        inline: Some(Base64(vec![0; INLINE_OUTPUT_BYTES_MAX + 1])),
        ..Default::default()
    };
    seen.saw(report(ended(inline)).await, 413, "inline_output_too_large");
    let elsewhere = CallbackOutput {
        object_key: Some("x".to_owned()),
        sha256: Some(Digest::of(b"")),
        ..Default::default()
    };
    seen.saw(report(ended(elsewhere)).await, 400, "invalid_output");
    let _ = report(Callback::of(Status::Succeeded)).await.expect(200);
    seen.saw(
        report(Callback::of(Status::Failed)).await,
        409,
        "execution_already_terminal",
    );

    let node_path = format!("/v1/nodes/{}", other.id);
    let _ = send(operator, Method::DELETE, &node_path, json!({}))
        .await
        .expect(200);
    seen.saw(
        Answer::to(other.request(Method::POST, &foreign)).await,
        401,
        "nsk_revoked",
    );
}

async fn rollouts(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let node = BareNode::enroll(world, "n=rolling").await;
    node.declare(&[]).await;
    let pause = async |id: ExecutionId| {
        let path = operator.in_project(&format!("executions/{id}/pause"));
        send(operator, Method::POST, &path, json!({})).await
    };
    let cancel = async |id: ExecutionId| {
        let path = operator.in_project(&format!("executions/{id}/cancel"));
        let _ = send(operator, Method::POST, &path, json!({})).await.expect(200);
    };
    let plain = world.dispatch(on_node("ping", node.id)).await;
    seen.saw(pause(plain.id).await, 409, "no_rollout");
    cancel(plain.id).await;
    let mut body = on_node("ping", node.id);
    body["rollout"] = json!({"max_concurrency": 1});
    let rolled = world.dispatch(body).await;
    seen.saw(pause(rolled.id).await, 409, "nothing_held");
    cancel(rolled.id).await;
}

async fn outputs_that_do_not_hold(world: &World, seen: &mut Seen) {
    const BYTES: usize = 20_000;
    let operator = &world.operator;
    let node = BareNode::enroll(world, "n=writing").await;
    node.declare(&[]).await;
    let sent = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await.into_inner();
    let report = async |callback: Callback| node.report(&request, &callback).await;
    let _ = report(Callback::of(Status::Ack)).await.expect(200);
    let right = vec![b'o'; BYTES];
    let declared = Callback {
        declared_output_bytes: Some(BYTES as u64),
        declared_output_sha256: Some(Digest::of(&right)),
        ..Callback::of(Status::Started)
    };
    let offered: CallbackResponse = report(declared).await.expect(200).json();
    let url = offered.output_upload_url.expect("an upload is offered");
    let http = client_with_ca(&operator.ca_file);
    let put = async |bytes: Vec<u8>| Answer::to(http.put(&url).body(bytes)).await;
    seen.saw(put(vec![b'x'; BYTES]).await, 400, "upload_digest_mismatch");
    let key = muster_shared::wire::output_key(sent.id, node.id);
    let ended = |output| Callback {
        output: Some(output),
        ..Callback::of(Status::Succeeded)
    };
    let object = CallbackOutput {
        object_key: Some(key.clone()),
        sha256: Some(Digest::of(&right)),
        ..Default::default()
    };
    seen.saw(report(ended(object.clone())).await, 502, "output_upload_failed");
    let folder = world.data_dir().join("outputs").join(&key);
    let folder = folder.parent().expect("an object lies in a folder").to_owned();
    let older = tokio::spawn(Answer::to(http.put(&url).body(stalled_body(b"o"))));
    until("it is under way", async || {
        let mut files = std::fs::read_dir(&folder).ok()?;
        files.next().map(drop)
    })
    .await;
    let _ = put(right).await.expect(200);
    seen.saw(older.await.expect("it is answered"), 409, "upload_replaced");
    let _ = report(ended(object)).await.expect(200);
    let other = CallbackOutput {
        inline: Some(Base64(b"other".to_vec())),
        ..Default::default()
    };
    seen.saw(report(ended(other)).await, 409, "output_differs");

    let path = operator.in_project(&format!("executions/{}/targets/{}/output", sent.id, node.id));
    let part =
        async |range: &str| Answer::to(operator.request(Method::GET, &path).header("range", range)).await;
    seen.saw(part("bytes=20000-").await, 416, "range_not_satisfiable");
    let kept = world.data_dir().join("outputs").join(&key);
    std::fs::remove_file(&kept).expect("the object can be removed");
    seen.saw(operator.get(&path).await, 502, "output_lost");
}

async fn an_issuer_that_is_down(seen: &mut Seen) {
    let world = World::with_config(Some(
        "[oidc]\nissuer = \"https://127.0.0.1:1\"\naudience = \"muster\"\nfetch_timeout_seconds = 2\n",
    ))
    .await;
    // {"alg":"EdDSA","kid":"k"} and claims that nobody can check.
    let token = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsifQ.e30.AAAA";
    let asked = world.operator.with_token(token).get("/v1/auth/whoami").await;
    seen.saw(asked, 503, "issuer_unavailable");
}

async fn an_output_store_that_is_down(seen: &mut Seen) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let s3 = S3::start(dir.path()).await;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, SECRET_ACCESS_KEY).expect("the secret can be written");
    let config = format!(
        "[output.s3]\nendpoint = \"{}\"\nregion = \"us-east-1\"\nbucket = \"{BUCKET}\"\n\
         access_key_id = \"{ACCESS_KEY_ID}\"\nsecret_access_key_file = \"{}\"\npath_style = true\n\
         [limits]\nrequests_per_second = 1000\nrequests_burst = 1000\n",
        s3.endpoint,
        secret.display()
    );
    let world = World::with_config(Some(&config)).await;
    let node = world
        .node("n")
        .hook("large", "#!/bin/sh\nhead -c 50000 /dev/zero\n")
        .start()
        .await;
    let ran = world.run(on_node("large", node.id)).await;
    let _away = s3.pause();
    let path = world
        .operator
        .in_project(&format!("executions/{}/targets/{}/output", ran.id, node.id));
    seen.saw(world.operator.get(&path).await, 502, "output_store_failed");
}

async fn an_output_store_that_is_full(seen: &mut Seen) {
    const BYTES: usize = 700_000;
    let world = World::with_config(Some("[limits]\noutput_store_bytes_max = 1048576\n")).await;
    world.leave_open();
    let mut offered = Vec::new();
    for labels in ["n=one", "n=two"] {
        let node = BareNode::enroll(&world, labels).await;
        node.declare(&[]).await;
        let _ = world.dispatch(on_node("ping", node.id)).await;
        let mut frames = node.stream().await;
        let request = node.next_request(&mut frames).await;
        let _ = node
            .report(&request, &Callback::of(Status::Ack))
            .await
            .expect(200);
        let declared = Callback {
            declared_output_bytes: Some(BYTES as u64),
            ..Callback::of(Status::Started)
        };
        let answer: CallbackResponse = node.report(&request, &declared).await.expect(200).json();
        offered.push(answer.output_upload_url.expect("an upload is offered"));
    }
    let http = client_with_ca(&world.operator.ca_file);
    let put = async |url: &str| Answer::to(http.put(url).body(vec![b'o'; BYTES])).await;
    let _ = put(&offered[0]).await.expect(200);
    seen.saw(put(&offered[1]).await, 507, "output_store_full");
}

/// Each of these waits for a limit of half a minute: at the same time.
async fn what_takes_time(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let slow = reqwest::Body::wrap_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let never = operator
        .request(Method::POST, "/v1/labels/selectors/preview")
        .body(slow);
    // A transaction of somebody else that does not end: one request waits for the lock, the others for their turn.
    let held = world.database().hold_writes().await;
    let issue = operator.in_project("bootstrap-tokens");
    let body = json!({});
    let ask = || operator.post(&issue, &body);
    let (late, one, two) = tokio::join!(Answer::to(never), ask(), ask());
    drop(held);
    seen.saw(late, 408, "request_timeout");
    let busy = if one.status == 503 { one } else { two };
    seen.saw(busy, 503, "busy");

    world.database().refuse_rows("audit");
    seen.saw(ask().await, 500, "internal_error");
    world.database().accept_rows("audit");
}

async fn tokens_that_hold_no_more(world: &World, seen: &mut Seen) {
    let operator = &world.operator;
    let list = operator.in_project("executions");
    let tokens = format!("/v1/operator-tokens?project_id={}", operator.project);
    let made: OperatorTokenSecret = operator
        .post(&tokens, &json!({"name": "short"}))
        .await
        .expect(201)
        .json();
    let held = operator.with_token(&made.token);
    let rotate = format!("/v1/operator-tokens/{}/rotate", made.about.id);
    let _ = operator.post(&rotate, &json!({})).await.expect(200);
    seen.saw(held.get(&list).await, 401, "token_rotated");
    world.alter("UPDATE operator_token SET expires_at = created_at WHERE name = 'short'");
    seen.saw(held.get(&list).await, 401, "token_expired");
    seen.saw(operator.post(&rotate, &json!({})).await, 409, "token_not_live");
    let path = format!("/v1/operator-tokens/{}", made.about.id);
    let _ = send(operator, Method::DELETE, &path, json!({})).await.expect(200);
    seen.saw(held.get(&list).await, 401, "token_revoked");

    let hasty = World::with_config(Some("[limits]\nrequests_per_second = 1\nrequests_burst = 1\n")).await;
    let answer = until("the bucket is empty", async || {
        let answer = hasty.operator.get("/v1/nodes").await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    seen.saw(answer, 429, "rate_limited");
}
