//! What a node refuses to run, whoever asks; and what nobody gets to ask it.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use muster_shared::envelope::{ENVELOPE_LEN_MAX, Signer};
use muster_tests::{
    fake_control::AnswerWith,
    prelude::*,
    world::{on, on_node, target},
};

const COUNT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n";
const COUNT_CHANGED: &str = "#!/bin/sh\necho changed >> @DIR@/ran\n";

/// A node with the hook `count`, under a control that misbehaves.
async fn counting() -> (FakeControl, Musterd) {
    let control = FakeControl::new().await;
    let node = control.start_node(|node| node.install_hook("count", COUNT)).await;
    (control, node)
}

/// Sends a good request and waits for its end: whatever was sent before it has been read by then.
async fn good_one(control: &FakeControl, node: &Musterd) -> ExecutionId {
    let request = control.hook_request("count", node.hook_digest("count"));
    control.push(&request);
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    request.execution_id
}

// ---- envelopes

fn hooks_in(manifest: &CapabilityManifest) -> Vec<&str> {
    manifest
        .declared_hooks
        .iter()
        .map(|hook| hook.name.as_str())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_envelope_runs_once_however_often_it_is_sent() {
    let (control, mut node) = counting().await;
    let request = control.hook_request("count", node.hook_digest("count"));
    control.push(&request);
    control.push(&request);
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    control.push(&request);
    // Another envelope of the same invocation, as control sends after it lost its outbox.
    control.push(&ActionRequest {
        event_id: control.request("ping", ActionKind::Builtin).event_id,
        ..request.clone()
    });
    let other = good_one(&control, &node).await;

    let _ = node.stop().await;
    control.launch(&mut node).await;
    control.push(&request);
    let last = good_one(&control, &node).await;
    assert_eq!(
        node.trace_lines("ran"),
        [request.execution_id, other, last].map(|id| id.to_string()),
        "a replayed request ran again"
    );
    // A replay is answered from the journal, from its first report on: those that control has left behind it refuses.
    let told_again = control.take_complaints();
    assert!(
        told_again
            .iter()
            .all(|told| told.starts_with("409 execution_already_terminal")),
        "{told_again:#?}"
    );
    assert_eq!(
        control.advances(request.execution_id),
        [Status::Ack, Status::Started, Status::Succeeded]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_key_signed_is_not_run_even_under_our_keys_name() {
    let (control, node) = counting().await;
    let forger = Signer::from_seed(&muster_tests::chance());
    let request = control.hook_request("count", node.hook_digest("count"));
    let mut forged = forger.seal(&request).unwrap();
    control.push_envelope("action_request", "1", &forged);
    control
        .signer()
        .keyid()
        .clone_into(&mut forged.signatures[0].keyid);
    control.push_envelope("action_request", "2", &forged);
    forged.signatures.clear();
    control.push_envelope("action_request", "3", &forged);

    let good = good_one(&control, &node).await;
    assert_eq!(node.trace_lines("ran"), [good.to_string()]);
    assert!(
        control.callbacks(request.execution_id).is_empty(),
        "a forger learns nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tampered_payload_is_not_run() {
    let (control, node) = counting().await;
    let harmless = control.request("ping", ActionKind::Builtin);
    let mut envelope = control.signer().seal(&harmless).unwrap();
    let evil = ActionRequest {
        action: "count".parse().unwrap(),
        kind: ActionKind::Hook,
        ..harmless.clone()
    };
    envelope.payload = control.signer().seal(&evil).unwrap().payload;
    control.push_envelope("action_request", "1", &envelope);

    let good = good_one(&control, &node).await;
    assert_eq!(node.trace_lines("ran"), [good.to_string()]);
    assert!(control.callbacks(harmless.execution_id).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_expired_or_for_another_node_is_not_run() {
    let (control, node) = counting().await;
    let digest = node.hook_digest("count");
    let good = control.hook_request("count", digest);
    let expired = ActionRequest {
        expires_at: good.occurred_at,
        ..control.hook_request("count", digest)
    };
    let misdirected = ActionRequest {
        node_id: NodeId::mint(good.occurred_at, muster_tests::chance()),
        ..control.hook_request("count", digest)
    };
    control.push(&expired);
    control.push(&misdirected);

    let good = good_one(&control, &node).await;
    assert_eq!(node.trace_lines("ran"), [good.to_string()]);
    assert!(control.callbacks(misdirected.execution_id).is_empty());
    let told = control.callbacks(expired.execution_id);
    assert!(
        told.iter()
            .all(|taken| taken.callback.status != Status::Succeeded),
        "{told:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_for_one_kind_of_message_opens_no_other() {
    let (control, node) = counting().await;
    let request = control.hook_request("count", node.hook_digest("count"));
    let payload = serde_json::to_vec(&request).unwrap();
    let approval = control.approval("count", Digest::of(COUNT_CHANGED.as_bytes()));
    for kind in [
        "application/vnd.muster.hook-baseline-updated+json",
        "application/json",
        "",
    ] {
        control.push_envelope(
            "action_request",
            "1",
            &control.signer().seal_bytes(kind, &payload),
        );
    }
    // Well signed for what it is, under the wrong event name.
    control.push_envelope("action_request", "2", &control.signer().seal(&approval).unwrap());
    control.push_envelope(
        "hook_baseline_updated",
        "3",
        &control.signer().seal(&request).unwrap(),
    );
    control.push_frame("no_such_event", "4", "{}");

    let good = good_one(&control, &node).await;
    assert_eq!(node.trace_lines("ran"), [good.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_are_oversized_or_nonsense_do_not_stop_the_daemon() {
    let (control, mut node) = counting().await;
    for data in [
        "",
        "{",
        "null",
        "[]",
        "\"text\"",
        "{\"payloadType\":1}",
        "\u{0}\u{7f}\u{fffd}",
        "[[[[[[[[[[",
    ] {
        control.push_frame("action_request", "1", data);
    }
    control.push_raw("event\n:\ndata\n\nid: \u{1F980}\nretry: nonsense\n\n");
    let mut huge = control.hook_request("count", node.hook_digest("count"));
    huge.parameters = json!({"fill": "x".repeat(ENVELOPE_LEN_MAX)}).as_object().cloned();
    let streams = control.streams_opened();
    // Whether it drops the frame or the stream is the daemon's choice; what comes next has to run.
    control.try_push(&huge);
    control.try_push_frame("action_request", "2", &"y".repeat(4 << 20));
    until("the daemon listens", async || {
        assert!(node.daemon().ended().is_none(), "{}", node.log());
        let probe = control.request("ping", ActionKind::Builtin);
        control.try_push(&probe);
        tokio::time::timeout(Duration::from_secs(5), control.outcome(probe.execution_id))
            .await
            .ok()
    })
    .await;
    let good = good_one(&control, &node).await;
    assert_eq!(node.trace_lines("ran"), [good.to_string()]);
    assert!(
        control.streams_opened() - streams <= 3,
        "{} reconnects",
        control.streams_opened() - streams
    );
    let _ = control.take_complaints();
}

// ---- a stream and a control that fail

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_breaks_or_falls_silent_is_opened_again() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.configure("idle_seconds = 7\nbackoff_max_seconds = 1\n");
            node.install_hook("count", COUNT);
        })
        .await;
    for fail in [
        FakeControl::end_stream,
        FakeControl::cut_stream,
        FakeControl::go_silent,
    ] {
        let streams = control.streams_opened();
        fail(&control);
        until("the stream is opened again", async || {
            (control.streams_opened() > streams).then_some(())
        })
        .await;
        let _ = good_one(&control, &node).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_is_kept_until_control_has_taken_it() {
    let (control, mut node) = counting().await;
    let troubles = [
        AnswerWith::Status(503),
        AnswerWith::HangUp,
        AnswerWith::TakeAndHangUp,
        AnswerWith::Status(500),
        AnswerWith::Status(429),
        AnswerWith::TakeAndHangUp,
    ];
    control.answer_next(troubles);
    let request = control.hook_request("count", node.hook_digest("count"));
    control.push(&request);
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    assert_eq!(
        control.advances(request.execution_id),
        [Status::Ack, Status::Started, Status::Succeeded]
    );

    // An outage with a crash of the daemon in it.
    let request = control.hook_request("count", node.hook_digest("count"));
    control.push(&request);
    until("the hook ran", async || {
        (node.trace_lines("ran").len() == 2).then_some(())
    })
    .await;
    control.go_away();
    node.kill9();
    control.come_back();
    control.launch(&mut node).await;
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    assert_eq!(node.trace_lines("ran").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_refused_credential_does_not_make_a_node_give_up() {
    let (control, node) = counting().await;
    control.answer_next([AnswerWith::Status(401), AnswerWith::Status(401)]);
    let _ = good_one(&control, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_control_does_not_want_any_more_blocks_no_other() {
    let (control, node) = counting().await;
    let request = control.hook_request("count", node.hook_digest("count"));
    control.answer_next([AnswerWith::Status(409)]);
    control.push(&request);
    until("control was told", async || {
        (!control.callbacks(request.execution_id).is_empty()).then_some(())
    })
    .await;
    let before = control.callbacks(request.execution_id).len();
    let _ = good_one(&control, &node).await;
    let after = control.callbacks(request.execution_id).len();
    assert!(
        after - before <= 4,
        "a refused callback is repeated for ever: {after}"
    );
    // The hook may have begun before the refusal came; its further reports do not fit what this control holds.
    let _ = control.take_complaints();
}

#[tokio::test(flavor = "multi_thread")]
async fn large_output_is_uploaded_as_the_answer_says() {
    let control = FakeControl::new().await;
    let script = "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' z\n";
    let node = control
        .start_node(|node| node.install_hook("large", script))
        .await;
    let request = control.hook_request("large", node.hook_digest("large"));
    control.push(&request);
    let ended = control.outcome(request.execution_id).await;
    assert_eq!(ended.status, Status::Succeeded);
    assert!(
        control.upload(request.execution_id) == Some(vec![b'z'; 100_000]),
        "other bytes"
    );
    assert_eq!(
        ended.output.and_then(|o| o.sha256),
        Some(Digest::of(&[b'z'; 100_000]))
    );
}

// ---- hooks

/// What a bad hook must lead to: not declared, and refused when it is asked for all the same.
async fn refused_on_the_node(spoil: impl FnOnce(&Musterd)) {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.install_hook("count", COUNT);
            node.install_hook("bad", COUNT);
            spoil(node);
        })
        .await;
    let manifest = control.manifests().pop().expect("it declared itself");
    let declared = hooks_in(&manifest);
    assert!(
        declared.contains(&"count") && !declared.contains(&"bad"),
        "{declared:?}"
    );

    let request = control.hook_request("bad", Digest::of(COUNT.as_bytes()));
    control.push(&request);
    let ended = control.outcome(request.execution_id).await;
    assert_eq!(ended.status, Status::Failed, "{ended:?}");
    assert!(
        ended.error.as_ref().is_some_and(|error| error.contains(": ")),
        "a reason code and words: {ended:?}"
    );
    let good = good_one(&control, &node).await;
    assert_eq!(node.trace_lines("ran"), [good.to_string()], "a bad hook ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_a_symlink_out_of_the_directory_is_refused() {
    refused_on_the_node(|node| {
        let elsewhere = node.dir.join("elsewhere");
        std::fs::rename(node.hook_path("bad"), &elsewhere).unwrap();
        symlink(elsewhere, node.hook_path("bad")).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_others_may_write_is_refused() {
    refused_on_the_node(|node| {
        std::fs::set_permissions(node.hook_path("bad"), std::fs::Permissions::from_mode(0o777)).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_its_group_may_write_is_refused() {
    refused_on_the_node(|node| {
        std::fs::set_permissions(node.hook_path("bad"), std::fs::Permissions::from_mode(0o775)).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_a_stranger_owns_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give a file away.
        return;
    }
    refused_on_the_node(|node| chown(node.hook_path("bad"), Some(65534), None).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_nobody_may_execute_is_refused() {
    refused_on_the_node(|node| {
        std::fs::set_permissions(node.hook_path("bad"), std::fs::Permissions::from_mode(0o644)).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_package_manager_left_beside_a_hook_is_refused_and_said_to_be_that() {
    let control = FakeControl::new().await;
    let left = ["count.dpkg-dist", "count.rpmsave", "count.bak"];
    let node = control
        .start_node(|node| {
            for name in left.into_iter().chain(["count"]) {
                node.install_hook(name, COUNT);
            }
        })
        .await;
    let manifest = control.manifests().pop().expect("it declared itself");
    let declared = hooks_in(&manifest);
    assert_eq!(declared, ["count"]);
    let mut refused: Vec<&str> = manifest
        .refused_hooks
        .iter()
        .filter(|refused| refused.why.contains("left beside"))
        .map(|refused| refused.name.as_str())
        .collect();
    refused.sort_unstable();
    assert_eq!(refused, ["count.bak", "count.dpkg-dist", "count.rpmsave"]);

    for name in left {
        let request = control.hook_request(name, Digest::of(COUNT.as_bytes()));
        control.push(&request);
        let ended = control.outcome(request.execution_id).await;
        let error = ended.error.unwrap_or_default();
        assert!(
            error.starts_with("hook_refused: ") && error.contains(name),
            "{error}"
        );
        let checked = node.tool(&["hooks", "check", name]).await;
        assert!(checked.stdout.contains("left beside"), "{checked:?}");
    }
    let good = good_one(&control, &node).await;
    assert_eq!(node.trace_lines("ran"), [good.to_string()], "a leftover ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_too_large_is_refused() {
    refused_on_the_node(|node| {
        node.install_hook("bad", format!("{COUNT}#{}\n", "x".repeat(8192)));
        node.configure("hook_bytes_max = 4096\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_and_a_pipe_are_no_hooks() {
    refused_on_the_node(|node| {
        std::fs::remove_file(node.hook_path("bad")).unwrap();
        std::fs::create_dir(node.hook_path("bad")).unwrap();
        let pipe = node.hook_path("pipe");
        let made = std::process::Command::new("mkfifo").arg(pipe).status().unwrap();
        assert!(made.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_does_not_exist_is_refused() {
    refused_on_the_node(|node| std::fs::remove_file(node.hook_path("bad")).unwrap()).await;
}

// ---- digests

#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_drift_by_itself_until_a_signed_approval() {
    let (control, node) = counting().await;
    let pinned = node.hook_digest("count");
    node.install_hook("count", COUNT_CHANGED);
    let changed = node.hook_digest("count");

    // Control holds the old digest, or was made to hold the new one: the node's own pin decides.
    for digest in [pinned, changed] {
        let request = control.hook_request("count", digest);
        control.push(&request);
        let ended = control.outcome(request.execution_id).await;
        assert_eq!(ended.status, Status::Failed);
        let error = ended.error.unwrap_or_default();
        assert!(error.starts_with("hook_integrity_violation"), "{error}");
    }
    assert_eq!(node.trace("ran"), "");
    until("the node reports the violation", async || {
        control.violations().into_iter().find(|v| {
            v.artifact_id == "count"
                && v.kind == ReportedKind::HookChecksum
                && v.observed_checksum == Some(changed)
        })
    })
    .await;

    // An approval by another key is none.
    let approval = control.approval("count", changed);
    let forger = Signer::from_seed(&muster_tests::chance());
    control.push_envelope("hook_baseline_updated", "1", &forger.seal(&approval).unwrap());
    let request = control.hook_request("count", changed);
    control.push(&request);
    assert_eq!(control.outcome(request.execution_id).await.status, Status::Failed);

    control.push_approval(&approval);
    let request = control.hook_request("count", changed);
    control.push(&request);
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    assert_eq!(node.trace_lines("ran"), ["changed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_approval_never_undoes_a_newer_one() {
    let (control, node) = counting().await;
    let first = node.hook_digest("count");
    node.install_hook("count", COUNT_CHANGED);
    let second = node.hook_digest("count");
    let newer = control.approval("count", second);
    let older = BaselineUpdated {
        approved_at: newer.approved_at.minus(Duration::from_secs(60)),
        ..control.approval("count", first)
    };
    control.push_approval(&newer);
    control.push_approval(&older);
    let request = control.hook_request("count", second);
    control.push(&request);
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_stale_digest_is_refused_by_the_node() {
    let (control, node) = counting().await;
    let stale = control.hook_request("count", Digest::of(b"what control once saw"));
    control.push(&stale);
    let ended = control.outcome(stale.execution_id).await;
    assert_eq!(ended.status, Status::Failed);
    assert!(
        ended
            .error
            .as_ref()
            .is_some_and(|e| e.starts_with("hook_integrity_violation")),
        "{ended:?}"
    );
    let unnamed = ActionRequest {
        hook_digest: None,
        ..control.hook_request("count", node.hook_digest("count"))
    };
    control.push(&unnamed);
    assert_eq!(control.outcome(unnamed.execution_id).await.status, Status::Failed);
    assert_eq!(node.trace("ran"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_refused_at_control_until_it_is_approved() {
    let world = World::new().await;
    let mut one = world
        .node("one")
        .labels("role=web")
        .hook("count", COUNT)
        .start()
        .await;
    let mut two = world
        .node("two")
        .labels("role=web")
        .hook("count", COUNT)
        .start()
        .await;
    assert_eq!(world.run(on("count", "role=web")).await.status, Status::Succeeded);

    // One of two: dropped, and said.
    one.replace_hook("count", COUNT_CHANGED).await;
    let sent = world.dispatch(on("count", "role=web")).await;
    assert_eq!(
        sent.targets.iter().map(|t| t.node_id).collect::<Vec<_>>(),
        [two.id]
    );
    let dropped = &sent.dropped[..];
    assert!(
        dropped.len() == 1
            && dropped[0].reason == "hook_integrity_violation"
            && dropped[0].count == 1
            && dropped[0].sample == [one.id],
        "{dropped:?}"
    );
    let _ = world.settled(sent.id).await;

    // The node by name, and a selector of which nothing is left.
    two.replace_hook("count", COUNT_CHANGED).await;
    let before = (world.rows(), world.operator.executions().await.len());
    world
        .operator
        .try_dispatch(&on_node("count", one.id))
        .await
        .refused(409, "hook_integrity_violation");
    let refusal = world
        .operator
        .try_dispatch(&on("count", "role=web"))
        .await
        .refused(409, "hook_integrity_violation");
    assert_eq!(
        refusal.dropped.iter().map(|d| d.count).sum::<u64>(),
        2,
        "{refusal:?}"
    );
    assert_eq!((world.rows(), world.operator.executions().await.len()), before);
    assert_eq!(one.trace_lines("ran").len(), 1);

    // The violation is on record.
    let path = format!("/v1/integrity-violations?project_id={}", world.operator.project);
    let page: Page<ViolationRow> = world.operator.get(&path).await.expect(200).json();
    for node in [one.id, two.id] {
        let row = page
            .items
            .iter()
            .find(|row| row.node_id == node && row.kind == "hook");
        assert!(
            row.is_some_and(|row| row.artifact_id == "count" && row.status == "open"),
            "{page:#?}"
        );
    }

    // Approved for exactly the digest that is shown.
    let approve = world.operator.in_project("hooks/count/approve");
    let other = json!({"digest": Digest::of(b"other"), "selector": "role=web"});
    let none: ApproveResponse = world.operator.post(&approve, &other).await.expect(200).json();
    assert!(none.approved.is_empty(), "{none:?}");
    let digest = one.hook_digest("count");
    assert_ne!(
        digest,
        two.hook_digest("count"),
        "the hooks name their own directories"
    );
    let exact = json!({"digest": digest, "selector": "role=web"});
    let some: ApproveResponse = world.operator.post(&approve, &exact).await.expect(200).json();
    assert_eq!((some.approved, some.unchanged), (vec![one.id], vec![two.id]));
    let ran = world.run(on_node("count", one.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
    assert_eq!(one.trace_lines("ran").last().map(String::as_str), Some("changed"));
    world
        .operator
        .try_dispatch(&on_node("count", two.id))
        .await
        .refused(409, "hook_integrity_violation");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_counts_although_the_one_before_it_was_by_a_clock_that_is_ahead() {
    let world = World::new().await;
    let mut node = world.node("n").hook("job", "#!/bin/sh\necho one\n").start().await;
    let approve = async |node: &Node| {
        let digest = node.hook_digest("job").to_string();
        let approve = ["hooks", "approve", "job", "--digest", &digest, "--all"];
        let _ = world.operator.muster(&approve).await.expect(0);
    };
    node.replace_hook("job", "#!/bin/sh\necho two\n").await;
    approve(&node).await;
    // Another control gave it, in an hour. The node hears of it as it connects.
    let _ = node.stop().await;
    let ahead = world.database().earlier("approved_at", -3_600_000);
    world
        .database()
        .alter(&format!("UPDATE hook_baseline SET approved_at = {ahead}"));
    node.start().await;
    let ran = world.run(on_node("job", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");

    node.replace_hook("job", "#!/bin/sh\necho three\n").await;
    approve(&node).await;
    let ran = world.run(on_node("job", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_changed_between_dispatch_and_delivery_is_refused_by_the_node() {
    let world = World::new().await;
    let mut node = world.node("n").hook("count", COUNT).start().await;
    let _ = node.stop().await;
    let sent = world.dispatch(on_node("count", node.id)).await;
    node.install_hook("count", COUNT_CHANGED);
    node.start().await;
    let ran = world.settled(sent.id).await;
    let ended = target(&ran, node.id);
    assert_eq!(ended.status, Status::Failed);
    assert!(
        ended
            .error
            .as_ref()
            .is_some_and(|e| e.starts_with("hook_integrity_violation")),
        "{ended:?}"
    );
    assert_eq!(node.trace("ran"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_installed_while_the_daemon_runs_is_declared_and_pinned() {
    let world = World::new().await;
    let mut node = world.node("n").start().await;
    world
        .operator
        .try_dispatch(&on_node("late", node.id))
        .await
        .refused(400, "action_not_declared");
    node.install_hook("late", COUNT);
    node.known(async |summary| {
        summary
            .actions
            .iter()
            .any(|action| action.name.as_str() == "late")
    })
    .await;
    assert_eq!(
        world.run(on_node("late", node.id)).await.status,
        Status::Succeeded
    );
}
