//! A state directory without room: the node still answers, says why it will not do what it cannot write down, and goes on
//! by itself once there is room again.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Child, Command},
};

use muster_shared::wire::INLINE_OUTPUT_BYTES_MAX;
use muster_tests::{
    prelude::*,
    world::{PATIENT, on_node, target},
};

/// Set to `skip` where no file system may be mounted, to leave these stories out.
const VARIABLE: &str = "MUSTER_STORY_MOUNT";

fn left_out() -> bool {
    if std::env::var(VARIABLE).is_ok_and(|value| value == "skip") {
        return true;
    }
    let may_mount = Command::new("unshare").args(["--mount", "true"]).status();
    assert!(
        may_mount.is_ok_and(|status| status.success()),
        "this story mounts a file system, which needs root; to leave it out, set {VARIABLE}=skip"
    );
    false
}

/// Starts the daemon with its state on a file system of `size`, which nobody but it and its children see mounted, once
/// `before` was done there.
async fn start_on(node: &mut Node, size: &str, before: &str) {
    let kept = node.dir.join("kept");
    fs::rename(&node.state, &kept).expect("the directory is the story's own");
    fs::create_dir(&node.state).expect("the directory is the story's own");
    let script = "mount -t tmpfs -o mode=700,size=\"$1\" none \"$2\" && cp -a \"$3/.\" \"$2\" && cd \"$2\" || exit; \
                  eval \"$4\"; cd / && shift 4 && exec \"$@\"";
    let state = node.state.clone();
    node.launch_with(|command| {
        let mut inside = Command::new("unshare");
        inside
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .args(["--mount", "sh", "-c", script, "sh", size])
            .arg(state)
            .arg(kept)
            .arg(before)
            .arg(command.get_program())
            .args(command.get_args());
        *command = inside;
    });
    let _ = node.known(async |summary| summary.connected).await;
}

/// The state directory as the daemon sees it.
fn seen(node: &mut Node) -> PathBuf {
    let pid = node.daemon().pid();
    PathBuf::from(format!("/proc/{pid}/root")).join(node.state.strip_prefix("/").expect("it is absolute"))
}

/// Fills the disk but for `left` bytes.
fn fill(node: &mut Node, left: usize) {
    let filler = seen(node).join("filler");
    let mut file = File::create(&filler).expect("the file is there");
    while file.write_all(&[0; 4096]).is_ok() {}
    let full = file.metadata().expect("the file is there").len();
    file.set_len(full - left as u64).expect("the file is there");
}

fn give_back(node: &mut Node) {
    fs::remove_file(seen(node).join("filler")).expect("the directory is the story's own");
}

/// Enough processes that a list of them is long.
struct Crowd(Vec<Child>);

impl Crowd {
    fn new() -> Self {
        let one = |_| {
            Command::new("sleep")
                .arg("600")
                .spawn()
                .expect("there is a sleep")
        };
        Self((0..100).map(one).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for one in &mut self.0 {
            let _ = one.kill();
            let _ = one.wait();
        }
    }
}

fn sound(node: &mut Node) {
    let journal =
        rusqlite::Connection::open(seen(node).join("journal.db")).expect("the journal can be opened");
    let verdict: String = journal
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("the journal can be read");
    assert_eq!(verdict, "ok");
}

async fn prepared(world: &World) -> Node {
    let mut node = world
        .node("n")
        .hook("mark", "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\n")
        .hook(
            "flood",
            "#!/bin/sh\nhead -c 8000000 /dev/zero | tr '\\0' x\nexit 3\n",
        )
        .start()
        .await;
    assert!(node.stop().await.success());
    // What is written is in the database itself after a stop, and no log of it is left.
    assert!(!node.state.join("journal.db-wal").exists(), "{}", node.log());
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_builtins_answer_hooks_say_why_not_and_room_heals_it() {
    if left_out() {
        return;
    }
    let world = World::new().await;
    let mut node = prepared(&world).await;
    start_on(&mut node, "4m", "").await;
    let ran = world.run(on_node("mark", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}");

    fill(&mut node, 0);
    for _round in 0..3 {
        for builtin in ["ping", "facts", "disk.usage"] {
            let ran = world.run(on_node(builtin, node.id)).await;
            assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());
            assert!(
                !world.operator.output(ran.id, node.id).await.is_empty(),
                "{builtin}"
            );
        }
        let refused = world.run(on_node("mark", node.id)).await;
        let ended = target(&refused, node.id);
        let error = ended.error.as_deref().unwrap_or_default();
        assert!(
            ended.status == Status::Failed && error.starts_with("disk_full: "),
            "{ended:#?}\n{}",
            node.log()
        );
        assert!(!node.trace("ran").contains(&refused.id.to_string()));
    }
    sound(&mut node);

    // What does not fit into the journal finds no room beside it. Its beginning is told, and that there was more.
    let _crowd = Crowd::new();
    let ran = world.run(on_node("processes.list", node.id)).await;
    let ended = target(&ran, node.id);
    let error = ended.error.as_deref().unwrap_or_default();
    assert!(
        ended.status == Status::Succeeded && ended.output_truncated && error.contains("output_incomplete: "),
        "{ended:#?}\n{}",
        node.log()
    );
    let kept = world.operator.output(ran.id, node.id).await;
    let total = ended.output_total_bytes.expect("the whole is counted");
    assert!(total > kept.len() as u64);
    assert_eq!(kept.len(), INLINE_OUTPUT_BYTES_MAX);
    assert!(
        kept.starts_with(b"{") && error.contains(&format!("of {total} bytes")),
        "{error}"
    );

    give_back(&mut node);
    let ran = world.run(on_node("mark", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());
    sound(&mut node);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_what_needs_no_journal_waits_for_nothing_that_does() {
    if left_out() {
        return;
    }
    let world = World::new().await;
    let mut node = world
        .node("n")
        .config("stop_grace_seconds = 1\n")
        .hook("patient", PATIENT)
        .start()
        .await;
    assert!(node.stop().await.success());
    start_on(&mut node, "4m", "").await;
    let patient = world.dispatch(on_node("patient", node.id)).await;
    // That control has heard of it is still to be written down.
    until("the hook runs", async || {
        let now = world.operator.execution(patient.id).await;
        (target(&now, node.id).status == Status::Started && !node.trace("ran").is_empty()).then_some(())
    })
    .await;
    fill(&mut node, 0);
    for builtin in ["ping", "facts", "ping"] {
        let mut dispatch = on_node(builtin, node.id);
        dispatch["timeout_seconds"] = json!(20);
        let ran = world.run(dispatch).await;
        assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());
    }
    let now = world.operator.execution(patient.id).await;
    assert_eq!(target(&now, node.id).status, Status::Started, "{now:#?}");

    give_back(&mut node);
    let _ = world.operator.cancel(patient.id).await;
    let ended = world.settled(patient.id).await;
    assert_eq!(ended.status, Status::Cancelled, "{ended:#?}\n{}", node.log());
    sound(&mut node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_whose_output_fills_the_disk_ends_as_it_ended() {
    if left_out() {
        return;
    }
    let world = World::new().await;
    let mut node = prepared(&world).await;
    start_on(&mut node, "6m", "").await;
    fill(&mut node, 2 << 20);
    let ran = world.run(on_node("flood", node.id)).await;
    let ended = target(&ran, node.id);
    let error = ended.error.as_deref().unwrap_or_default();
    assert_eq!(
        (
            ended.status,
            ended.exit_code,
            ended.output_total_bytes,
            ended.output_truncated
        ),
        (Status::Failed, Some(3), Some(8_000_000), true),
        "{ended:#?}\n{}",
        node.log()
    );
    assert!(error.contains("output_incomplete: "), "{error}");
    let kept = world.operator.output(ran.id, node.id).await;
    assert!(!kept.is_empty() && kept.iter().all(|byte| *byte == b'x'));
    // What it took is given back, and the next one runs.
    let ran = world.run(on_node("mark", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());
    sound(&mut node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_killed_on_a_full_disk_starts_there() {
    if left_out() {
        return;
    }
    let world = World::new().await;
    let mut node = prepared(&world).await;
    // What a clean stop leaves has no log of the database beside it: that has to be made anew, in the room kept for it.
    start_on(
        &mut node,
        "2m",
        "rm -f journal.db-*; cat /dev/zero > filler 2> /dev/null",
    )
    .await;
    assert!(
        node.log().contains("the room kept for this is used now"),
        "{}",
        node.log()
    );
    let ran = world.run(on_node("disk.usage", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());
    give_back(&mut node);
    let ran = world.run(on_node("mark", node.id)).await;
    assert_eq!(ran.status, Status::Succeeded, "{ran:#?}\n{}", node.log());
    sound(&mut node);
}
