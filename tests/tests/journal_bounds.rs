//! The journal is bounded: what it cannot take is refused with the limit's name, and told; and nothing is left of what is over.

use std::{fs, path::Path};

use muster_shared::time::Timestamp;
use muster_tests::{
    fake_control::Refusal,
    prelude::*,
    world::{on_node, target},
};

const COUNT: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n";
/// The least that may be set.
const ROWS_MAX: usize = 100;

/// The same with so long to be taken.
fn good_for(request: ActionRequest, seconds: u64) -> ActionRequest {
    ActionRequest {
        expires_at: Timestamp::now().plus(Duration::from_secs(seconds)),
        ..request
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_full_of_what_control_was_not_told_refuses_and_has_room_once_it_was() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.install_hook("count", COUNT);
            node.install_hook("denied", COUNT);
            node.configure(&format!(
                "backoff_max_seconds = 1\njournal_rows_max = {ROWS_MAX}\n[policy]\ndeny = [\"denied\"]\n"
            ));
        })
        .await;
    control.refuse(Refusal {
        status: 503,
        only: "executions",
        ..Refusal::default()
    });
    // Each ends at once, and is owed to control from then on.
    let denied = node.hook_digest("denied");
    let mut owed = Vec::new();
    for _ in 0..ROWS_MAX {
        let request = good_for(control.hook_request("denied", denied), 20);
        control.push(&request);
        owed.push(request.execution_id);
    }
    until("all of them wait to be told", async || {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        (status["untold"].as_array()?.len() == ROWS_MAX).then_some(())
    })
    .await;
    let refused = control.hook_request("count", node.hook_digest("count"));
    let looks = control.request("ping", ActionKind::Builtin);
    control.push(&refused);
    control.push(&looks);
    until("the refusal waits to be told too", async || {
        let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
        let untold = status["untold"].as_array()?;
        let full = |one: &Value| {
            one["error"]
                .as_str()
                .is_some_and(|error| error.contains("journal_full"))
        };
        untold.iter().any(full).then_some(())
    })
    .await;
    assert_eq!(
        node.trace("ran"),
        "",
        "what could not be written down did not run"
    );

    control.accept_again();
    let told = control.outcome(refused.execution_id).await;
    let error = told.error.unwrap_or_default();
    assert_eq!(told.status, Status::Failed);
    assert!(
        error.starts_with("journal_full: ") && error.contains("journal_rows_max"),
        "{error}"
    );
    assert_eq!(
        control.outcome(looks.execution_id).await.status,
        Status::Succeeded,
        "what only looks runs all the same"
    );
    for id in owed {
        assert_eq!(control.outcome(id).await.status, Status::Failed);
    }
    // What was told makes room as soon as none of it can be asked for again.
    until("there is room", async || {
        let next = control.hook_request("count", node.hook_digest("count"));
        control.push(&next);
        (control.outcome(next.execution_id).await.status == Status::Succeeded).then_some(())
    })
    .await;
    assert_eq!(node.trace_lines("ran").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_full_by_its_bytes_refuses_what_is_more_and_runs_what_it_has() {
    let world = World::new().await;
    let node = world
        .node("one")
        .hook("count", COUNT)
        .hook(
            "hold",
            "#!/bin/sh\ntouch @DIR@/held\nuntil [ -e @DIR@/go ]; do sleep 0.05; done\n",
        )
        .config("queue_max = 1000\njournal_bytes_max = 1048576\n")
        .start()
        .await;
    let holding = world.dispatch(on_node("hold", node.id)).await;
    until("it holds", async || node.dir.join("held").exists().then_some(())).await;
    let mut large = on_node("count", node.id);
    large["parameters"] = json!({ "text": "x".repeat(60_000) });
    let mut taken = Vec::new();
    let error = until("the journal is full", async || {
        let sent = world.dispatch(large.clone()).await;
        let became = until("the node has answered", async || {
            let execution = world.operator.execution(sent.id).await;
            let target = target(&execution, node.id);
            (target.status != Status::Pending).then(|| (target.status, target.error.clone()))
        })
        .await;
        match became {
            (Status::Ack, _) => {
                taken.push(sent.id);
                None
            }
            (_, error) => error,
        }
    })
    .await;
    assert!(
        error.starts_with("journal_full: ") && error.contains("journal_bytes_max"),
        "{error}"
    );
    assert!(
        taken.len() > 10,
        "{} of 60 kB each had room in 1 MiB",
        taken.len()
    );
    fs::write(node.dir.join("go"), "").expect("it is let go");
    for id in taken.iter().chain([&holding.id]) {
        assert_eq!(world.settled(*id).await.status, Status::Succeeded);
    }
    // What an action was given is forgotten with its end, so that there is room for the next.
    assert_eq!(world.run(large).await.status, Status::Succeeded);
    assert_eq!(node.trace_lines("ran").len(), taken.len() + 1);
}

fn files_below(dir: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let entries = fs::read_dir(dir).expect("it can be listed");
    for path in entries.map(|entry| entry.expect("it can be read").path()) {
        if path.is_dir() {
            files.extend(files_below(&path));
        }
        files.push(path.display().to_string());
    }
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runs_leave_no_more_files_than_few() {
    let control = FakeControl::new().await;
    let node = control
        .start_node(|node| {
            node.install_hook("looks", "#!/bin/sh\nhead -c 40000 /dev/zero\n");
            node.install_manifest("looks", "[action]\nread_only = true\n");
            node.configure(&format!("queue_max = 1000\njournal_rows_max = {ROWS_MAX}\n"));
        })
        .await;
    // Each has an output that is uploaded, the largest part of what a run leaves for a while.
    let run = async |many: usize| {
        let mut sent = Vec::new();
        for _ in 0..many {
            let request = good_for(control.hook_request("looks", node.hook_digest("looks")), 20);
            control.push(&request);
            sent.push(request.execution_id);
        }
        for id in sent {
            assert_eq!(control.outcome(id).await.status, Status::Succeeded);
        }
        until("nothing is left of the runs", async || {
            let left = files_below(&node.state.join("runs"));
            left.is_empty().then_some(())
        })
        .await;
        files_below(&node.state)
    };
    let after_few = run(3).await;
    for _ in 0..3 {
        assert_eq!(run(30).await, after_few);
    }
    let status = node.tool(&["status", "-o", "json"]).await.expect(0).json();
    assert_eq!(status["outputs_owed"], json!([]));
}
