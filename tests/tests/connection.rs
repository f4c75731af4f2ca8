//! The way between a node and its control: outages, refusals, clocks, and lines that go dead without a word.

use muster_tests::{
    fake_control::{Refusal, RetryAfter},
    prelude::*,
    relay::Relay,
    world::on_node,
};
use rustix::process::Signal;

/// Reconnects quickly, and beats quickly.
const QUICK: &str = "backoff_max_seconds = 1\nheartbeat_seconds = 1\n";
const WAITS: &str = "#!/bin/sh\nwhile [ ! -e @DIR@/go ]; do sleep 0.05; done\n";

/// Runs a builtin as soon as there is a stream.
async fn runs(control: &FakeControl) {
    let request = control.request("ping", ActionKind::Builtin);
    until("the node has a stream", async || {
        control.try_push(&request).then_some(())
    })
    .await;
    let outcome = control.outcome(request.execution_id).await;
    assert_eq!(outcome.status, Status::Succeeded);
}

fn identity_of(node: &Musterd) -> Vec<Vec<u8>> {
    ["identity.json", "nsk", "ca.pem"]
        .map(|file| std::fs::read(node.state.join(file)).expect("the node has an identity"))
        .into()
}

// ---- refusals

#[tokio::test(flavor = "multi_thread")]
async fn no_refusal_makes_a_node_throw_its_identity_away() {
    let control = FakeControl::new().await;
    let mut node = control
        .start_node(|node| {
            node.configure(QUICK);
            node.install_hook("waits", WAITS);
        })
        .await;
    let identity = identity_of(&node);
    for (status, code) in [
        (401, Some("unauthenticated")),
        (401, Some("nsk_revoked")),
        (403, Some("node_id_mismatch")),
        (403, None),
        (404, None),
        (503, None),
    ] {
        let request = control.hook_request("waits", node.hook_digest("waits"));
        control.push(&request);
        until("it is started", async || {
            control
                .advances(request.execution_id)
                .contains(&Status::Started)
                .then_some(())
        })
        .await;
        control.refuse(Refusal {
            status,
            code,
            ..Refusal::default()
        });
        control.cut_stream();
        // It ends in the middle of the refusals.
        std::fs::write(node.dir.join("go"), "").expect("a file can be written");
        until("every kind of request was refused several times", async || {
            let refused = control.refused();
            let count = |kind: &str| refused.iter().filter(|request| request.kind == kind).count();
            (count("events") >= 3 && count("heartbeat") >= 3 && count("executions") >= 3).then_some(())
        })
        .await;
        assert!(node.daemon().ended().is_none(), "{status}");
        assert_eq!(identity_of(&node), identity);
        control.accept_again();
        assert_eq!(
            control.outcome(request.execution_id).await.status,
            Status::Succeeded
        );
        runs(&control).await;
        std::fs::remove_file(node.dir.join("go")).expect("it is there");
    }
    let log = node.log();
    for status in [401, 403] {
        let told = format!("control does not accept this node ({status}); it keeps its identity");
        assert!(log.contains(&told), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_asked_again_before_control_wants_to_be_asked() {
    const ASKED: Duration = Duration::from_secs(3);
    let control = FakeControl::new().await;
    let _node = control.start_node(|node| node.configure(QUICK)).await;
    // By the clock of control, which is not the node's.
    for (clock_ms, retry_after) in [
        (0, RetryAfter::Seconds(3)),
        (-36_000_000, RetryAfter::DateIn(4)),
        (36_000_000, RetryAfter::DateIn(4)),
    ] {
        control.set_clock(clock_ms);
        control.refuse(Refusal {
            status: 503,
            retry_after: Some(retry_after),
            ..Refusal::default()
        });
        control.cut_stream();
        until("it was asked again by everybody", async || {
            let refused = control.refused();
            let count = |kind: &str| refused.iter().filter(|request| request.kind == kind).count();
            (count("events") >= 2 && count("heartbeat") >= 2).then_some(())
        })
        .await;
        let refused = control.refused();
        for kind in ["events", "heartbeat"] {
            let times: Vec<_> = refused
                .iter()
                .filter(|request| request.kind == kind)
                .map(|request| request.at)
                .collect();
            for pair in times.windows(2) {
                let waited = pair[1] - pair[0];
                assert!(waited >= ASKED, "{kind} after {waited:?} of {retry_after:?}");
            }
        }
        control.accept_again();
        control.set_clock(0);
        runs(&control).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_that_asks_for_too_long_a_wait_is_not_waited_for() {
    let control = FakeControl::new().await;
    let _node = control
        .start_node(|node| node.configure(&format!("{QUICK}retry_after_max_seconds = 1\n")))
        .await;
    for retry_after in [
        RetryAfter::Seconds(u64::MAX),
        RetryAfter::DateIn(400_000_000),
        RetryAfter::Seconds(0),
    ] {
        control.refuse(Refusal {
            status: 429,
            code: Some("rate_limited"),
            retry_after: Some(retry_after),
            ..Refusal::default()
        });
        control.cut_stream();
        until("it asks again", async || {
            let refused = control.refused();
            (refused.iter().filter(|request| request.kind == "events").count() >= 2).then_some(())
        })
        .await;
        control.accept_again();
        runs(&control).await;
    }
}

/// Longer than any wait of a story.
const MINUTES: u64 = 300;

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_to_ask_again_asks_at_once_when_the_admin_says_so() {
    let control = FakeControl::new().await;
    let mut node = control
        .start_node(|node| {
            node.configure(QUICK);
            node.install_hook("waits", WAITS);
        })
        .await;
    let request = control.hook_request("waits", node.hook_digest("waits"));
    control.push(&request);
    until("it is started", async || {
        control
            .advances(request.execution_id)
            .contains(&Status::Started)
            .then_some(())
    })
    .await;
    control.refuse(Refusal {
        status: 503,
        retry_after: Some(RetryAfter::Seconds(MINUTES)),
        ..Refusal::default()
    });
    control.cut_stream();
    std::fs::write(node.dir.join("go"), "").expect("a file can be written");
    until("everybody was told to wait, and waits", async || {
        let refused = control.refused();
        let was = |kind: &str| refused.iter().any(|request| request.kind == kind);
        let log = node.log();
        let waits = [
            "wait_ms=3",
            "The heartbeat was not taken",
            "A callback was not taken",
        ];
        (was("events")
            && was("heartbeat")
            && was("executions")
            && waits.iter().all(|said| log.contains(said)))
        .then_some(())
    })
    .await;
    let (streams, heartbeats) = (control.streams_opened(), control.heartbeats());
    control.accept_again();
    assert_eq!(control.streams_opened(), streams);
    node.daemon().signal(Signal::HUP);
    until("the stream is open and a heartbeat was taken", async || {
        (control.streams_opened() > streams && control.heartbeats() > heartbeats).then_some(())
    })
    .await;
    assert_eq!(
        control.outcome(request.execution_id).await.status,
        Status::Succeeded
    );
    runs(&control).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_says_of_itself_waits_as_control_asks_whatever_is_news_and_not_past_the_admins_word() {
    const ASKED: Duration = Duration::from_secs(3);
    const HOOKS: usize = 4;
    let control = FakeControl::new().await;
    let mut node = control.start_node(|node| node.configure(QUICK)).await;
    let refuse = |seconds| {
        control.refuse(Refusal {
            status: 503,
            only: "capabilities",
            retry_after: Some(RetryAfter::Seconds(seconds)),
            ..Refusal::default()
        });
    };
    refuse(3);
    let mut news = 0;
    until("it has spoken twice", async || {
        news += 1;
        node.install_hook(&format!("hook-{}", news % HOOKS), WAITS);
        (control.refused().len() >= 2).then_some(())
    })
    .await;
    let refused = control.refused();
    let waited = refused[1].at - refused[0].at;
    assert!(waited >= ASKED, "{waited:?}");
    control.accept_again();
    let has_all = || {
        let last = control.manifests().pop()?;
        (last.declared_hooks.len() == HOOKS).then_some(())
    };
    until("it has declared all of them", async || has_all()).await;

    refuse(MINUTES);
    control.cut_stream();
    until("it was told to wait", async || {
        (!control.refused().is_empty()).then_some(())
    })
    .await;
    let before = control.manifests().len();
    control.accept_again();
    node.daemon().signal(Signal::HUP);
    until("it has declared itself again", async || {
        (control.manifests().len() > before).then_some(())
    })
    .await;
}

// ---- clocks

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_hours_off_is_told_and_tolerated() {
    const TEN_HOURS_MS: i64 = 36_000_000;
    for ahead_ms in [TEN_HOURS_MS, -TEN_HOURS_MS] {
        for heartbeats in [true, false] {
            let control = FakeControl::new().await;
            control.set_clock(ahead_ms);
            if !heartbeats {
                control.refuse(Refusal {
                    status: 503,
                    only: "heartbeat",
                    ..Refusal::default()
                });
            }
            let node = control.start_node(|node| node.configure(QUICK)).await;
            runs(&control).await;
            assert!(node.log().contains("clock_skew"), "{}", node.log());
            // What has expired by control's clock has expired, whatever the node's says.
            let mut expired = control.request("ping", ActionKind::Builtin);
            expired.expires_at = expired.occurred_at.minus(Duration::from_secs(60));
            control.push(&expired);
            runs(&control).await;
            assert_eq!(control.callbacks(expired.execution_id).len(), 0);
            assert!(node.log().contains("reason=expired"), "{}", node.log());
        }
    }
}

/// Before control has said what time it is, a daemon that starts does not know.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_outlives_a_restart_with_a_fast_clock_and_without_control() {
    const HOURS_BEHIND_MS: i64 = -36_000_000;
    let control = FakeControl::new().await;
    control.set_clock(HOURS_BEHIND_MS);
    let mut node = control
        .start_node(|node| {
            node.configure(QUICK);
            node.install_hook(
                "waits",
                WAITS.replace("while", "echo \"$MUSTER_EXECUTION_ID\" >>@DIR@/ran\nwhile"),
            );
        })
        .await;
    let requests = [(); 3].map(|()| control.hook_request("waits", node.hook_digest("waits")));
    for request in &requests {
        control.push(request);
    }
    until("one runs and the others are acknowledged", async || {
        let told = |at: usize| control.advances(requests[at].execution_id);
        (told(0).contains(&Status::Started) && told(1) == [Status::Ack] && told(2) == [Status::Ack])
            .then_some(())
    })
    .await;
    node.kill9();
    control.go_away();
    node.launch();
    // Time enough for whatever would be done about what has expired by the clock of this machine.
    until("it looks for control in vain", async || {
        let log = node.log();
        let again = log
            .rsplit("Took up what was not settled")
            .next()
            .unwrap_or_default();
        (again.len() < log.len() && again.matches("The event stream is down").count() >= 3).then_some(())
    })
    .await;
    std::fs::write(node.dir.join("go"), "").expect("a file can be written");
    control.come_back();
    for request in &requests {
        let outcome = control.outcome(request.execution_id).await;
        assert_eq!(outcome.status, Status::Succeeded, "{outcome:#?}\n{}", node.log());
    }
    runs(&control).await;
    // What has expired by control's clock meanwhile has.
    std::fs::remove_file(node.dir.join("go")).expect("it is there");
    let requests = [(); 2].map(|()| control.hook_request("waits", node.hook_digest("waits")));
    for request in &requests {
        control.push(request);
    }
    until("the first runs and the second is acknowledged", async || {
        let runs = node
            .trace_lines("ran")
            .contains(&requests[0].execution_id.to_string());
        (runs && control.advances(requests[1].execution_id) == [Status::Ack]).then_some(())
    })
    .await;
    node.kill9();
    control.set_clock(0);
    node.launch();
    let expired = control.outcome(requests[1].execution_id).await;
    assert_eq!(expired.status, Status::Timeout, "{expired:#?}");
    std::fs::write(node.dir.join("go"), "").expect("a file can be written");
    assert_eq!(
        control.outcome(requests[0].execution_id).await.status,
        Status::Succeeded
    );
    // It says again what control had heard from the daemon before.
    let _ = control.take_complaints();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_out_of_its_time_is_called_a_matter_of_clocks() {
    for (first, last, sense) in [
        (2900, 2999, "begins at 2900-01-01"),
        (2000, 2001, "ended at 2001-12-31"),
    ] {
        let control = FakeControl::with_certificate_of(first, last).await;
        let node = Musterd::new(control.dir(), "node");
        let said = control.try_enroll(&node, &control.base()).await.expect(7);
        for part in ["clock_skew", sense] {
            assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
        }
        assert!(!node.state.join("identity.json").exists());
    }
}

// ---- dead lines

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_goes_dead_without_a_word_is_noticed() {
    let control = FakeControl::new().await;
    let relay = Relay::before(control.port()).await;
    let node = control
        .start_node_at(&relay.base(), |node| {
            node.configure("idle_seconds = 7\nbackoff_max_seconds = 1\n");
        })
        .await;
    runs(&control).await;
    for _ in 0..2 {
        let streams = control.streams_opened();
        relay.freeze();
        until("the node opens another stream", async || {
            (control.streams_opened() > streams).then_some(())
        })
        .await;
        runs(&control).await;
    }
    let told = "nothing was heard for 7 s (idle_seconds)";
    assert!(node.log().contains(told), "{}", node.log());
}

// ---- ten thousand times

fn descriptors(pid: u32) -> Vec<String> {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the daemon runs")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse()
                .ok()
        })
        .expect("the system counts memory")
}

/// Control may have been restored since, or be another one: what it has to say comes with the answer to a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_stream_is_open_again_beats_soon_and_not_only_when_its_time_has_come() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| node.configure("backoff_max_seconds = 1\nheartbeat_seconds = 3600\n"))
        .await;
    for beats in [2, 3] {
        until(&format!("heartbeat {beats} has come"), async || {
            (control.heartbeats() >= beats).then_some(())
        })
        .await;
        let streams = control.streams_opened();
        control.cut_stream();
        until("the stream is open again", async || {
            (control.streams_opened() > streams).then_some(())
        })
        .await;
    }
    drop(node);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_reconnects_leak_neither_descriptors_nor_memory() {
    const RECONNECTS: usize = 10_000;
    const WARM: usize = 1_000;
    const GROWTH_KIB_MAX: u64 = 8 * 1024;
    /// What reports were made over is kept open for a while: two connections at most.
    const KEPT: usize = 2;
    let control = FakeControl::new().await;
    let mut node = control
        .start_node(|node| {
            // Sockets of heartbeats come and go, and are none of this story's.
            node.configure("backoff_min_ms = 1\nbackoff_max_seconds = 0\nheartbeat_seconds = 3600\n");
        })
        .await;
    let pid = node.daemon().pid();
    let before = descriptors(pid);
    control.slam_streams(true);
    control.cut_stream();
    let slammed = async |count: usize| {
        muster_tests::wait::until_within(
            Duration::from_secs(300),
            &format!("{count} streams are refused"),
            async || (control.slams() >= count).then_some(()),
        )
        .await;
    };
    slammed(WARM).await;
    let warm_kib = resident_kib(pid);
    slammed(RECONNECTS).await;
    let end_kib = resident_kib(pid);
    control.slam_streams(false);
    runs(&control).await;
    assert!(
        end_kib <= warm_kib + GROWTH_KIB_MAX,
        "{warm_kib} KiB, then {end_kib} KiB"
    );
    until("it holds no more descriptors than before", async || {
        let now = descriptors(pid);
        (now.len() <= before.len() + KEPT).then_some(())
    })
    .await;
    assert!(node.daemon().ended().is_none());
}

// ---- whom to trust at enrolment

#[tokio::test(flavor = "multi_thread")]
async fn a_node_enrols_by_the_digest_of_its_controls_authority() {
    let world = World::new().await;
    let pem = std::fs::read(&world.operator.ca_file).expect("the CA can be read");
    let digest = muster_tests::certificate_digest(&pem);
    let token = world.bootstrap_token("n=1").await;
    let mut node = Musterd::new(world.dir(), "by-digest");
    let ca_file = world.operator.ca_file.to_string_lossy().into_owned();
    let server = world.operator.server.clone();

    let other = Digest::of(b"another").to_string();
    let said = node
        .try_enroll_trusting(&server, &token, &["--ca-sha256", &other])
        .await
        .expect(7);
    assert!(said.stderr.contains("--ca-sha256"), "{}", said.stderr);
    let said = node
        .try_enroll_trusting(&server, &token, &["--ca-sha256", &other, "--ca-file", &ca_file])
        .await
        .expect(3);
    assert!(
        said.stderr.contains("holds no certificate with the SHA-256"),
        "{}",
        said.stderr
    );
    for nonsense in ["", "abc", "sha256:zz"] {
        let said = node
            .try_enroll_trusting(&server, &token, &["--ca-sha256", nonsense])
            .await;
        let said = said.expect(2);
        assert!(said.stderr.contains("64 hexadecimal digits"), "{}", said.stderr);
    }
    let _ = node.try_enroll_trusting(&server, &token, &[]).await.expect(2);
    assert!(!node.state.join("identity.json").exists());

    // The token, which holds once, was shown to nobody so far.
    let digest = digest.to_string().replace("sha256:", "").to_uppercase();
    let _ = node
        .try_enroll_trusting(&server, &token, &["--ca-sha256", &digest])
        .await
        .expect(0);
    let pinned = std::fs::read(node.state.join("ca.pem")).expect("the CA is pinned");
    assert_eq!(
        muster_tests::certificate_digest(&pinned),
        muster_tests::certificate_digest(&pem)
    );
    node.launch();
    let enrolled = until("the node is there", async || {
        let nodes = world.nodes("n=1").await;
        nodes
            .into_iter()
            .find(|node| node.connected && !node.actions.is_empty())
    })
    .await;
    let execution = world.run(on_node("ping", enrolled.id)).await;
    assert_eq!(execution.status, Status::Succeeded);
}

/// A fleet that comes back after a restart of control need not prove everything anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_control_takes_up_the_tls_sessions_of_before() {
    use muster_tests::swarm::{tally::Tally, wire::Dialer};
    let mut world = World::new().await;
    let ca_pem = std::fs::read_to_string(&world.operator.ca_file).expect("the CA can be read");
    let server = world
        .operator
        .server
        .trim_start_matches("https://")
        .parse()
        .expect("an address");
    let dialer = Dialer::new(&ca_pem, server, std::net::Ipv4Addr::LOCALHOST.into()).expect("the CA is one");
    let (sessions, tally) = (dialer.sessions(), Tally::default());
    let ask = async || {
        let mut connection = dialer
            .dial("127.1.2.3".parse().expect("an address"), &sessions, &tally)
            .await
            .expect("control accepts");
        let answer = connection
            .call(b"GET /healthz HTTP/1.1\r\nhost: control\r\n\r\n")
            .await;
        assert_eq!(answer.expect("control answers").status, 200);
        let counts = tally.counts(0);
        (counts.full_handshakes, counts.resumed_handshakes)
    };
    assert_eq!(ask().await, (1, 0));
    assert_eq!(ask().await, (1, 1));
    world.kill9();
    world.start().await;
    assert_eq!(ask().await, (1, 2));
}

// ---- control's certificate

/// Whether the server's certificate is good for a name, to whoever trusts the CA.
async fn is_shown_for(world: &World, name: &str) -> bool {
    let port = world
        .operator
        .server
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .to_owned();
    let at = format!("127.0.0.1:{port}")
        .parse()
        .expect("it listens on the loopback");
    let ca = std::fs::read(world.data_dir().join("ca.pem")).expect("control has a CA");
    let http = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&ca).expect("it is PEM")])
        .no_proxy()
        .resolve(name, at)
        .build()
        .expect("a client can be made");
    let asked = http.get(format!("https://{name}:{port}/readyz")).send().await;
    asked.is_ok_and(|answer| answer.status().is_success())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_taken_by_all_who_trust_the_ca() {
    let mut world = World::new().await;
    let mut node = world.node("n").config(QUICK).start().await;
    let identity = identity_of(&node);
    let renew = [
        "certificate",
        "renew",
        "--server-name",
        "further.example",
        "-o",
        "json",
    ];
    let would = world
        .control_tool(&[&renew[..], &["--dry-run"]].concat())
        .await
        .expect(0)
        .json();
    assert_eq!(would["restart_needed"], false, "{would}");
    let done = world.control_tool(&renew).await.expect(0).json();
    assert_eq!(done["new_names"], json!(["further.example"]), "{done}");
    assert_eq!(done["names"], would["names"]);
    assert_eq!(done["restart_needed"], true, "{done}");

    // The service goes on as it began, and nobody notices.
    assert!(!is_shown_for(&world, "further.example").await);
    let ran = world.run(on_node("ping", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");

    let _ = world.stop().await;
    world.start().await;
    assert!(is_shown_for(&world, "further.example").await);
    let _ = node.known(async |summary| summary.connected).await;
    let ran = world.run(on_node("ping", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
    // A daemon that is started anew remembers no session of TLS: it has looked at this certificate.
    node.restart().await;
    assert_eq!(identity_of(&node), identity);
    let another = world.node("later").start().await;
    let ran = world.run(on_node("ping", another.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");
}
