//! Outputs: what is believed of an upload, what becomes of one that fails, and how they are read.

use muster_tests::{
    Answer,
    faulty_store::{Fault, FaultyStore},
    operator::{client_with_ca, stalled_body},
    prelude::*,
    s3::S3,
    world::{on_node, target},
};
use reqwest::Method;

const LARGE: &str = "#!/bin/sh\nhead -c 300000 /dev/urandom > @DIR@/made\ncat @DIR@/made\nexit 3\n";
const EAGER: &str = "backoff_max_seconds = 1\noutput_retry_seconds = 1\n";
/// One that takes a store for dead which says nothing for so long.
const IMPATIENT: &str = "backoff_max_seconds = 1\noutput_retry_seconds = 1\nidle_seconds = 3\n";

async fn world_through(s3: &S3, store: &FaultyStore) -> World {
    let often = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\nupload_url_seconds = 4\n";
    World::with_config(Some(&format!("{often}{}", s3.config_through(&store.endpoint)))).await
}

fn made(node: &Node) -> Vec<u8> {
    std::fs::read(node.dir.join("made")).expect("the hook wrote it")
}

fn runs(node: &Node) -> usize {
    std::fs::read_dir(node.state.join("runs")).map_or(0, Iterator::count)
}

fn output_path(world: &World, execution: ExecutionId, node: NodeId) -> String {
    world
        .operator
        .in_project(&format!("executions/{execution}/targets/{node}/output"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_goes_wrong_is_tried_again_and_changes_no_status() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let store = FaultyStore::before(&s3).await;
    let world = world_through(&s3, &store).await;
    let patient = world.node("p").config(EAGER).hook("large", LARGE).start().await;
    let impatient = world
        .node("i")
        .config(IMPATIENT)
        .hook("large", LARGE)
        .start()
        .await;
    let worlds_faults = [
        (
            &patient,
            vec![Fault::Status(403), Fault::Status(500), Fault::CutAfter(1000)],
        ),
        (&patient, vec![Fault::UntilExpired]),
        (&impatient, vec![Fault::Stall]),
    ];
    for (node, faults) in worlds_faults {
        let before = store.uploads();
        store.fail_next(faults.clone());
        let ran = world.run(on_node("large", node.id)).await;
        let ended = target(&ran, node.id);
        assert_eq!(
            (ended.status, ended.exit_code),
            (Status::Failed, Some(3)),
            "{faults:?}"
        );
        assert_eq!(ended.error.as_deref(), Some("exit status 3"), "{faults:?}");
        assert_eq!(ended.output_error, None, "{faults:?}");
        assert_eq!(store.uploads() - before, faults.len() + 1, "{faults:?}");
        assert!(
            world.operator.output(ran.id, node.id).await == made(node),
            "{faults:?}: other bytes"
        );
    }
    assert_eq!(store.late_answers(), [403], "the store refused it itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_is_told_on_the_target_and_the_output_follows_when_it_is_well() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let store = FaultyStore::before(&s3).await;
    let world = world_through(&s3, &store).await;
    let mut node = world.node("n").config(EAGER).hook("large", LARGE).start().await;
    store.fail_always(Fault::Status(403));
    let ran = world.run(on_node("large", node.id)).await;
    let ended = target(&ran, node.id);
    assert_eq!((ended.status, ended.exit_code), (Status::Failed, Some(3)));
    assert_eq!(ended.output_ref, None);
    let problem = ended.output_error.clone().unwrap();
    assert!(
        problem.starts_with("output_upload_failed: ") && problem.contains("403"),
        "{problem}"
    );
    let shown = world
        .operator
        .muster(&["execution", "show", &ran.id.to_string()])
        .await
        .expect(0)
        .stdout;
    assert!(
        shown.contains("exit status 3; output_upload_failed") && shown.contains("missing"),
        "{shown}"
    );
    let path = output_path(&world, ran.id, node.id);
    let _ = world.operator.get(&path).await.refused(404, "output_not_found");
    let events = |world: &World| world.database().count("action_execution_event");
    let (before, uploads) = (events(&world), store.uploads());
    until("it is tried again", async || {
        (store.uploads() > uploads).then_some(())
    })
    .await;
    assert_eq!(runs(&node), 1, "the spool is kept");

    node.kill9();
    store.heal();
    node.start().await;
    let healed = until("the output follows", async || {
        let execution = world.operator.execution(ran.id).await;
        target(&execution, node.id)
            .output_ref
            .is_some()
            .then_some(execution)
    })
    .await;
    let late = target(&healed, node.id);
    assert_eq!((late.status, late.exit_code), (Status::Failed, Some(3)));
    assert_eq!(late.error.as_deref(), Some("exit status 3"));
    assert_eq!(
        (late.output_error.as_ref(), late.ended_at),
        (None, ended.ended_at)
    );
    assert!(
        world.operator.output(ran.id, node.id).await == made(&node),
        "other bytes"
    );
    assert_eq!(events(&world), before, "an output that follows is no event");
    let audited = world
        .database()
        .count("audit WHERE relation = 'actions.callback' AND detail LIKE '%its output followed%'");
    assert_eq!(audited, 1);
    until("the node keeps it no longer", async || {
        (runs(&node) == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_given_up_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let store = FaultyStore::before(&s3).await;
    let world = world_through(&s3, &store).await;
    store.fail_always(Fault::Status(500));
    for (bound, setting) in [
        ("output_keep_days = 0\n", "output_keep_days"),
        ("output_spool_bytes_max = 200000\n", "output_spool_bytes_max"),
    ] {
        let node = world
            .node(setting)
            .config(&format!("{EAGER}{bound}"))
            .hook("large", LARGE)
            .start()
            .await;
        let ran = world.run(on_node("large", node.id)).await;
        until("the target says that it was given up", async || {
            let execution = world.operator.execution(ran.id).await;
            let problem = target(&execution, node.id)
                .output_error
                .clone()
                .unwrap_or_default();
            (problem.starts_with("output_upload_failed: given up: ") && problem.contains(setting))
                .then_some(())
        })
        .await;
        until("the node keeps nothing of it", async || {
            (runs(&node) == 0).then_some(())
        })
        .await;
    }
}

/// An invocation that has started, as a bare node has it.
#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_an_end_that_came_too_late_is_kept_on_the_node_for_a_while() {
    let world = World::new().await;
    let script = "#!/bin/sh\necho begun >> @DIR@/ran\nwhile ! [ -e @DIR@/go ]; do sleep 0.05; done\n\
                  head -c 300000 /dev/urandom > @DIR@/made\ncat @DIR@/made\n";
    let mut node = world.node("n").config(EAGER).hook("long", script).start().await;
    let mut dispatch = on_node("long", node.id);
    dispatch["timeout_seconds"] = json!(5);
    let sent = world.dispatch(dispatch).await;
    until("the hook runs", async || {
        (!node.trace("ran").is_empty()).then_some(())
    })
    .await;
    node.kill9();
    std::fs::write(node.dir.join("go"), "").expect("the directory is the story's own");
    // It ended well and in time, and nobody could say so before control had given it up.
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Timeout, "{settled:#?}");
    node.start().await;
    until("the node has said that it keeps it", async || {
        node.log()
            .contains("Control takes no output of an end that came late")
            .then_some(())
    })
    .await;

    let kept_file = async |node: &Node| {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        assert_eq!(status["outputs_owed"], json!([]), "{status}");
        let kept = &status["outputs_kept"][0];
        assert_eq!(kept["execution_id"], json!(sent.id), "{status}");
        kept["file"].as_str().expect("it has a name").to_owned()
    };
    let file = kept_file(&node).await;
    let whole = std::fs::read(&file).expect("it is there");
    assert!(whole == made(&node), "{} bytes", whole.len());
    let shown = node.tool(&["status"]).await.expect(0).stdout;
    assert!(shown.contains("OUTPUT KEPT") && shown.contains(&file), "{shown}");
    let now = world.operator.execution(sent.id).await;
    assert_eq!(
        (now.status, target(&now, node.id).output_bytes),
        (Status::Timeout, None)
    );

    // A restart takes it up, and a time that is over ends it.
    node.restart().await;
    assert_eq!(kept_file(&node).await, file);
    node.drop_in("keep.toml", "output_keep_days = 0\n");
    node.restart().await;
    until("the node keeps nothing of it", async || {
        (runs(&node) == 0).then_some(())
    })
    .await;
}

async fn started(world: &World, node: &BareNode) -> ActionRequest {
    node.declare(&[]).await;
    let _ = world.dispatch(on_node("ping", node.id)).await;
    let mut frames = node.stream().await;
    let request = node.next_request(&mut frames).await.into_inner();
    for status in [Status::Ack, Status::Started] {
        let _ = node.report(&request, &Callback::of(status)).await.expect(200);
    }
    request
}

async fn declare(node: &BareNode, request: &ActionRequest, status: Status, bytes: &[u8]) -> CallbackResponse {
    let declared = Callback {
        declared_output_bytes: Some(bytes.len() as u64),
        declared_output_sha256: Some(Digest::of(bytes)),
        ..Callback::of(status)
    };
    node.report(request, &declared).await.expect(200).json()
}

async fn put(world: &World, offered: &CallbackResponse, bytes: &[u8]) -> Answer {
    let url = offered.output_upload_url.as_ref().expect("an upload is offered");
    // A refusal before the whole body was read may cost the connection, so each try has one of its own.
    let mut ask = client_with_ca(&world.operator.ca_file)
        .put(url)
        .body(bytes.to_vec());
    for (name, value) in &offered.output_upload_headers {
        if name != "content-length" {
            ask = ask.header(name, value);
        }
    }
    Answer::to(ask).await
}

fn ended_with(request: &ActionRequest, bytes: &[u8]) -> Callback {
    Callback {
        exit_code: Some(0),
        output: Some(CallbackOutput {
            object_key: Some(output_key(request.execution_id, request.node_id)),
            sha256: Some(Digest::of(bytes)),
            inline: Some(Base64(b"residue".to_vec())),
        }),
        ..Callback::of(Status::Succeeded)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_in_s3_is_not_believed_before_it_was_looked_at_nor_given_out_once_it_changed() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    let world = World::with_config(Some(&s3.config_through(&s3.endpoint))).await;
    let node = BareNode::enroll(&world, "n=one").await;
    let request = started(&world, &node).await;
    let (good, bad) = (vec![b'g'; 20_000], vec![b'b'; 20_000]);
    let ended = ended_with(&request, &good);
    let key = output_key(request.execution_id, node.id);

    let problem = node
        .report(&request, &ended)
        .await
        .refused(502, "output_upload_failed");
    assert!(problem.detail.contains("no object"), "{problem:?}");
    let offered = declare(&node, &request, Status::Started, &good).await;
    let refused = put(&world, &offered, &bad).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    // This store keeps what it refused, as a store that is broken may.
    assert!(s3.object(&key) == Some(bad.clone()));
    let rows = world.rows();
    let problem = node
        .report(&request, &ended)
        .await
        .refused(502, "output_upload_failed");
    assert!(
        problem.detail.contains(&Digest::of(&bad).to_string()),
        "{problem:?}"
    );
    assert_eq!(world.rows(), rows);
    let still = world.operator.execution(request.execution_id).await;
    assert_eq!(target(&still, node.id).status, Status::Started);

    let offered = declare(&node, &request, Status::Started, &good).await;
    assert_eq!(put(&world, &offered, &good).await.status, 200);
    let _ = node.report(&request, &ended).await.expect(200);
    let _ = node.report(&request, &ended).await.expect(200);
    let _ = node
        .report(&request, &ended_with(&request, &bad))
        .await
        .refused(409, "output_differs");
    assert!(world.operator.output(request.execution_id, node.id).await == good);

    // The address is good for a while yet, and this store writes over what it refuses.
    let _ = put(&world, &offered, &bad).await;
    assert!(s3.object(&key) == Some(bad));
    let path = output_path(&world, request.execution_id, node.id);
    let given = Answer::try_to(world.operator.request(Method::GET, &path)).await;
    assert!(
        given.as_ref().map_or(true, |answer| answer.status == 502),
        "other bytes are given out: {given:?}"
    );
    let file = dir.path().join("saved");
    let said = world
        .operator
        .muster(&[
            "execution",
            "output",
            &request.execution_id.to_string(),
            "--save",
            &file.to_string_lossy(),
        ])
        .await;
    assert_ne!(said.code, 0, "{said:?}");
    assert!(
        !file.exists() && !dir.path().join("saved.part").exists(),
        "{said:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_may_follow_its_end_once_and_nothing_writes_over_it() {
    let world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    let request = started(&world, &node).await;
    let (good, bad) = (vec![b'g'; 20_000], vec![b'b'; 20_000]);
    let offered = declare(&node, &request, Status::Started, &good).await;
    let _ = put(&world, &offered, &bad)
        .await
        .refused(400, "upload_digest_mismatch");
    let ended = ended_with(&request, &good);
    let _ = node
        .report(&request, &ended)
        .await
        .refused(502, "output_upload_failed");

    let without = Callback {
        exit_code: Some(0),
        output_error: Some("output_upload_failed: story".to_owned()),
        ..Callback::of(Status::Succeeded)
    };
    let _ = node.report(&request, &without).await.expect(200);
    let settled = world.operator.execution(request.execution_id).await;
    let told = target(&settled, node.id);
    assert_eq!(told.output_error.as_deref(), Some("output_upload_failed: story"));
    // What control settled otherwise takes no output.
    let other_end = Callback {
        status: Status::Failed,
        ..ended.clone()
    };
    let _ = node
        .report(&request, &other_end)
        .await
        .refused(409, "execution_already_terminal");

    let offered = declare(&node, &request, Status::Succeeded, &good).await;
    let _ = node
        .report(&request, &ended)
        .await
        .refused(502, "output_upload_failed");
    assert_eq!(put(&world, &offered, &good).await.status, 200);
    let _ = node.report(&request, &ended).await.expect(200);
    let settled = world.operator.execution(request.execution_id).await;
    let late = target(&settled, node.id);
    assert!(
        matches!(late.output_ref, Some(OutputRef::ObjectStore { .. })),
        "{late:?}"
    );
    assert_eq!(
        (late.output_error.as_ref(), late.output_bytes),
        (None, Some(20_000))
    );

    let answer = put(&world, &offered, &good).await;
    let _ = answer.refused(409, "execution_already_terminal");
    let again = declare(&node, &request, Status::Succeeded, &bad).await;
    assert_eq!(
        again.output_upload_url, None,
        "nothing is offered over what is there"
    );
    let _ = node
        .report(&request, &ended_with(&request, &bad))
        .await
        .refused(409, "output_differs");
    assert!(world.operator.output(request.execution_id, node.id).await == good);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_store_takes_what_was_signed_whole_and_within_its_time() {
    let world = World::with_config(Some("[limits]\nupload_url_seconds = 2\n")).await;
    let node = BareNode::enroll(&world, "n=one").await;
    let request = started(&world, &node).await;
    let (good, bad) = (vec![b'g'; 40_000], vec![b'b'; 40_000]);
    let kept = world
        .data_dir()
        .join("outputs")
        .join(output_key(request.execution_id, node.id));
    let leftovers = || {
        let dir = kept.parent().expect("an object lies in a folder");
        std::fs::read_dir(dir).map_or(0, |files| files.count())
    };
    let offered = declare(&node, &request, Status::Started, &good).await;
    let _ = put(&world, &offered, &bad)
        .await
        .refused(400, "upload_digest_mismatch");
    let _ = put(&world, &offered, &good[..39_999])
        .await
        .refused(400, "upload_length_mismatch");
    let altered = CallbackResponse {
        output_upload_url: offered
            .output_upload_url
            .as_ref()
            .map(|url| url.replace("length=40000", "length=39999")),
        ..offered.clone()
    };
    let _ = put(&world, &altered, &good[..39_999])
        .await
        .refused(403, "upload_url_invalid");

    // One that comes slowly is taken, one that breaks off is not, and neither is seen before it is whole.
    let url = offered.output_upload_url.clone().expect("an upload is offered");
    let http = client_with_ca(&world.operator.ca_file);
    let pieces = |bytes: &[u8], ends: bool| {
        let mut pieces: Vec<Result<Vec<u8>, std::io::Error>> =
            bytes.chunks(4000).map(|piece| Ok(piece.to_vec())).collect();
        if !ends {
            pieces.push(Err(std::io::Error::other("the node is gone")));
        }
        let slowly = futures_util::stream::iter(pieces);
        reqwest::Body::wrap_stream(futures_util::StreamExt::then(slowly, |piece| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            piece
        }))
    };
    let cut = http.put(&url).body(pieces(&good[..20_000], false)).send().await;
    assert!(cut.is_err(), "{cut:?}");
    until("nothing of it is left", async || (leftovers() == 0).then_some(())).await;
    let offered = declare(&node, &request, Status::Started, &good).await;
    let url = offered.output_upload_url.clone().expect("an upload is offered");
    let _ = Answer::to(http.put(&url).body(pieces(&good, true)))
        .await
        .expect(200);
    assert!(std::fs::read(&kept).unwrap() == good);
    assert_eq!(leftovers(), 1);

    // What is there stays, whatever comes later; and no URL outlives its time.
    let _ = put(&world, &offered, &bad)
        .await
        .refused(400, "upload_digest_mismatch");
    until("the URL has run out", async || {
        let answer = put(&world, &offered, &good).await;
        (answer.status == 403).then(|| answer.refused(403, "upload_url_invalid"))
    })
    .await;
    assert!(std::fs::read(&kept).unwrap() == good);
    assert_eq!(leftovers(), 1);
    let _ = node
        .report(&request, &ended_with(&request, &good))
        .await
        .expect(200);
    assert!(world.operator.output(request.execution_id, node.id).await == good);
}

/// How many files lie in the folder of an output.
fn files_of(world: &World, request: &ActionRequest) -> usize {
    let kept = world
        .data_dir()
        .join("outputs")
        .join(output_key(request.execution_id, request.node_id));
    let dir = kept.parent().expect("an object lies in a folder");
    std::fs::read_dir(dir).map_or(0, |files| files.count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_upload_ends_the_one_under_way_and_no_node_takes_the_room_of_the_others() {
    let world = World::with_config(Some("[limits]\noutput_store_bytes_max = 1048576\n")).await;
    let node = BareNode::enroll(&world, "n=one").await;
    let request = started(&world, &node).await;
    let large = vec![b'l'; 700_000];
    let offered = declare(&node, &request, Status::Started, &large).await;
    let url = offered.output_upload_url.clone().expect("an upload is offered");
    // A node that opens one upload after the other and lets each hang.
    let mut hanging = None;
    for _ in 0..4 {
        let http = client_with_ca(&world.operator.ca_file);
        let newer = tokio::spawn(Answer::to(http.put(&url).body(stalled_body(b"l"))));
        if let Some(older) = hanging.replace(newer) {
            let problem = older
                .await
                .expect("it is answered")
                .refused(409, "upload_replaced");
            assert!(problem.detail.contains("newer"), "{}", problem.detail);
        }
        until("it is under way", async || {
            (files_of(&world, &request) == 1).then_some(())
        })
        .await;
    }
    // What they declared counts once, and another node has the rest of the room.
    let other = BareNode::enroll(&world, "n=two").await;
    let others = started(&world, &other).await;
    let small = vec![b's'; 300_000];
    let theirs = declare(&other, &others, Status::Started, &small).await;
    let _ = put(&world, &theirs, &small).await.expect(200);
    // A node whose connection broke comes again, and what it left is no hindrance.
    let _ = put(&world, &offered, &large).await.expect(200);
    let last = hanging.expect("there was one");
    let _ = last
        .await
        .expect("it is answered")
        .refused(409, "upload_replaced");
    assert_eq!(files_of(&world, &request), 1);
    for (node, request, bytes) in [(&node, &request, &large), (&other, &others, &small)] {
        let _ = node
            .report(request, &ended_with(request, bytes))
            .await
            .expect(200);
        assert!(&world.operator.output(request.execution_id, node.id).await == bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_only_trickles_is_ended_and_gives_its_room_back() {
    let config = "[limits]\nupload_url_seconds = 3\nupload_bytes_per_second_min = 1000000\noutput_store_bytes_max = 1048576\n";
    let world = World::with_config(Some(config)).await;
    let node = BareNode::enroll(&world, "n=one").await;
    let request = started(&world, &node).await;
    let large = vec![b'l'; 1_000_000];
    let offered = declare(&node, &request, Status::Started, &large).await;
    let url = offered.output_upload_url.clone().expect("an upload is offered");
    let trickle = futures_util::stream::repeat(());
    let trickle = futures_util::StreamExt::then(trickle, |()| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok::<_, std::io::Error>(b"l".to_vec())
    });
    let http = client_with_ca(&world.operator.ca_file);
    let problem = Answer::to(http.put(&url).body(reqwest::Body::wrap_stream(trickle)))
        .await
        .refused(408, "request_timeout");
    assert!(
        problem.detail.contains("limits.upload_bytes_per_second_min"),
        "{}",
        problem.detail
    );
    assert_eq!(files_of(&world, &request), 0);
    let offered = declare(&node, &request, Status::Started, &large).await;
    let _ = put(&world, &offered, &large).await.expect(200);
    let _ = node
        .report(&request, &ended_with(&request, &large))
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_control_left_of_an_upload_is_removed_at_the_next_start() {
    let mut world = World::new().await;
    let node = BareNode::enroll(&world, "n=one").await;
    let request = started(&world, &node).await;
    let bytes = vec![b'o'; 100_000];
    let offered = declare(&node, &request, Status::Started, &bytes).await;
    let url = offered.output_upload_url.clone().expect("an upload is offered");
    let http = client_with_ca(&world.operator.ca_file);
    let cut = tokio::spawn(Answer::try_to(
        http.put(&url).body(stalled_body(&bytes[..50_000])),
    ));
    until("it is under way", async || {
        (files_of(&world, &request) == 1).then_some(())
    })
    .await;
    world.kill9();
    assert!(cut.await.expect("it ends").is_err());
    assert_eq!(files_of(&world, &request), 1, "nobody was there to remove it");
    world.start().await;
    until("it is swept", async || {
        (files_of(&world, &request) == 0).then_some(())
    })
    .await;
    let _ = put(&world, &offered, &bytes).await.expect(200);
    assert_eq!(files_of(&world, &request), 1);
    let _ = node
        .report(&request, &ended_with(&request, &bytes))
        .await
        .expect(200);
    assert!(world.operator.output(request.execution_id, node.id).await == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_is_said_on_the_target_and_the_output_follows_once_there_is_room() {
    let config =
        "[limits]\noutput_store_bytes_max = 1048576\nrequests_per_second = 10000\nrequests_burst = 10000\n";
    let world = World::with_config(Some(config)).await;
    let node = world
        .node("n")
        .config(EAGER)
        .hook("large", "#!/bin/sh\nhead -c 700000 /dev/zero\n")
        .start()
        .await;
    let first = world.run(on_node("large", node.id)).await;
    assert_eq!(world.operator.output(first.id, node.id).await.len(), 700_000);
    let second = world.run(on_node("large", node.id)).await;
    let ended = target(&second, node.id);
    assert_eq!(ended.status, Status::Succeeded);
    let why = ended.output_error.clone().expect("it is said");
    assert!(
        why.starts_with("output_upload_failed") && why.contains("limits.output_store_bytes_max"),
        "{why}"
    );
    let kept = world
        .data_dir()
        .join("outputs")
        .join(output_key(first.id, node.id));
    std::fs::remove_file(kept).unwrap();
    until("the output follows", async || {
        let execution = world.operator.execution(second.id).await;
        target(&execution, node.id).output_ref.is_some().then_some(())
    })
    .await;
    assert_eq!(world.operator.output(second.id, node.id).await.len(), 700_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_part_of_an_output_can_be_read_and_lists_have_none() {
    let world = World::new().await;
    let node = world
        .node("n")
        .hook("large", "#!/bin/sh\nseq 1 5000\n")
        .hook("small", "#!/bin/sh\nseq 1 9\n")
        .start()
        .await;
    let whole: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    for (action, expected) in [
        ("large", whole.as_bytes()),
        ("small", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"),
    ] {
        let ran = world.run(on_node(action, node.id)).await;
        let path = output_path(&world, ran.id, node.id);
        let (len, etag) = (expected.len(), format!("\"{}\"", Digest::of(expected)));
        let ask = |headers: &[(&str, String)]| {
            let mut ask = world.operator.request(Method::GET, &path);
            for (name, value) in headers {
                ask = ask.header(*name, value);
            }
            Answer::to(ask)
        };
        let range = |range: &str| ("range", format!("bytes={range}"));
        let header = |answer: &Answer, name: &str| {
            let value = answer.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let full = ask(&[]).await.expect(200);
        assert!(full.bytes == expected);
        assert_eq!(header(&full, "accept-ranges"), "bytes");
        assert_eq!(header(&full, "etag"), etag);
        assert_eq!(header(&full, "content-length"), len.to_string());
        assert_eq!(
            header(&full, "repr-digest"),
            format!("sha-256=:{}:", Digest::of(expected).to_base64())
        );
        let disposition = header(&full, "content-disposition");
        assert!(
            disposition.starts_with(&format!("attachment; filename=\"{action}-")),
            "{disposition}"
        );
        for (asked, from, to) in [
            ("0-0", 0, 1),
            ("3-9", 3, 10),
            ("10-", 10, len),
            ("-4", len - 4, len),
        ] {
            let part = ask(&[range(asked)]).await.expect(206);
            assert!(part.bytes == expected[from..to], "{asked}");
            assert_eq!(
                header(&part, "content-range"),
                format!("bytes {from}-{}/{len}", to - 1)
            );
            assert_eq!(header(&part, "etag"), etag);
        }
        let outside = ask(&[range(&format!("{len}-"))]).await;
        assert_eq!(header(&outside, "content-range"), format!("bytes */{len}"));
        let _ = outside.refused(416, "range_not_satisfiable");
        let same = ask(&[range("0-0"), ("if-range", etag.clone())]).await;
        assert_eq!(same.status, 206);
        let other = ask(&[range("0-0"), ("if-range", "\"other\"".to_owned())]).await;
        assert!(other.status == 200 && other.bytes == expected);
        let head = Answer::to(world.operator.request(Method::HEAD, &path)).await;
        assert_eq!(
            (head.status, header(&head, "content-length")),
            (200, len.to_string())
        );
        assert!(head.bytes.is_empty());

        let id = ran.id.to_string();
        for (args, from, to) in [
            (["--head-bytes", "5"], 0, 5),
            (["--tail-bytes", "4"], len - 4, len),
            (["--range", "2-5"], 2, 6),
        ] {
            let said = world
                .operator
                .muster(&[&["execution", "output", &id], &args[..]].concat())
                .await
                .expect(0);
            assert_eq!(said.stdout.as_bytes(), &expected[from..to], "{args:?}");
        }
        let file = world.dir().join(action);
        let save = ["execution", "output", &id, "--save", &file.to_string_lossy()];
        let _ = world.operator.muster(&save).await.expect(0);
        assert!(std::fs::read(&file).unwrap() == expected);
    }
    let list = world
        .operator
        .get(&world.operator.in_project("executions"))
        .await
        .expect(200)
        .text();
    assert!(
        !list.contains("output_ref") && !list.contains("inline_bytes"),
        "{list}"
    );
}

/// The most memory that a process ever had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let digits: String = line
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().expect("the kernel counts memory")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_of_64_mib_is_never_in_memory() {
    let mut world = World::new().await;
    let mut node = world
        .node("n")
        .config("output_bytes_max = 100000000\n")
        .hook("huge", "#!/bin/sh\nhead -c 67108864 /dev/zero\n")
        .hook("small", "#!/bin/sh\nhead -c 20000 /dev/zero\n")
        .start()
        .await;
    // What each needs at all is there before.
    let small = world.run(on_node("small", node.id)).await;
    assert_eq!(world.operator.output(small.id, node.id).await.len(), 20_000);
    let pids = [world.control().pid(), node.daemon().pid()];
    let before = pids.map(peak_kib);
    let ran = world.run(on_node("huge", node.id)).await;
    let ended = target(&ran, node.id);
    assert_eq!(
        (ended.status, ended.output_bytes, ended.output_truncated),
        (Status::Succeeded, Some(64 << 20), false),
        "{ended:?}"
    );
    assert_eq!(world.operator.output(ran.id, node.id).await.len(), 64 << 20);
    for (pid, before) in pids.into_iter().zip(before) {
        let grown = peak_kib(pid) - before;
        assert!(grown < 16 << 10, "process {pid} grew by {grown} KiB");
    }
}
