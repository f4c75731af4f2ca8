//! An output of 1 GiB through a node that has 12 MiB to spare.

use muster_shared::ids::Digester;
use muster_tests::{
    prelude::*,
    s3::S3,
    wait::until_within,
    world::{on_node, target},
};

const GIB: u64 = 1 << 30;
/// It is read and hashed several times, by builds that nobody has optimised.
const A_LONG_WAIT: Duration = Duration::from_secs(240);
/// What a daemon, or a supervisor, may grow by at most.
const GROWTH_KIB_MAX: u64 = 12 << 10;

/// Leaves the supervisor's peak behind, which nobody could ask for after its end.
const HUGE: &str = "#!/bin/sh\nhead -c 1073741824 /dev/zero\ncat /proc/$PPID/status > @DIR@/supervisor\n";
/// Writes to both ends of both streams, with 1 GiB in between.
const BETWEEN: &str = "#!/bin/sh\nfor n in 1 2 3 4 5 6 7 8 9; do echo out $n; echo err $n >&2; done\n\
                       head -c 1073741824 /dev/zero\n\
                       for n in 1 2 3 4 5 6 7 8 9; do echo out $n; echo err $n >&2; done\n";
const SMALL: &str = "#!/bin/sh\nhead -c 20000 /dev/zero\ncat /proc/$PPID/status > @DIR@/supervisor\n";

/// The most memory that a process ever had.
fn peak_kib(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let digits: String = line
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().expect("the kernel counts memory")
}

fn peaks(node: &mut Node) -> [u64; 2] {
    let of_daemon =
        std::fs::read_to_string(format!("/proc/{}/status", node.daemon().pid())).expect("the process lives");
    [peak_kib(&of_daemon), peak_kib(&node.trace("supervisor"))]
}

fn zeros() -> Digest {
    let (piece, mut digester) = (vec![0; 1 << 20], Digester::default());
    for _ in 0..GIB >> 20 {
        digester.update(&piece);
    }
    digester.finish()
}

async fn goes_through(world: World) {
    let mut node = world
        .node("n")
        .config("output_bytes_max = 2147483648\noutput_wait_seconds = 600\n")
        .hook("huge", HUGE)
        .hook("small", SMALL)
        .start()
        .await;
    // What each needs at all is there before.
    let _ = world.run(on_node("small", node.id)).await;
    let before = peaks(&mut node);
    let sent = world.dispatch(on_node("huge", node.id)).await;
    let ran = until_within(A_LONG_WAIT, "so much settles", async || {
        let now = world.operator.execution(sent.id).await;
        now.status.is_terminal().then_some(now)
    })
    .await;
    let ended = target(&ran, node.id);
    assert_eq!(
        (
            ended.status,
            ended.output_bytes,
            ended.output_truncated,
            &ended.output_error
        ),
        (Status::Succeeded, Some(GIB), false, &None),
        "{ended:?}"
    );
    let Some(OutputRef::ObjectStore { sha256, .. }) = ended.output_ref else {
        panic!("{ended:?}")
    };
    assert_eq!(sha256, zeros());
    for ((who, before), after) in ["daemon", "supervisor"].iter().zip(before).zip(peaks(&mut node)) {
        let grown = after.saturating_sub(before);
        assert!(
            grown <= GROWTH_KIB_MAX,
            "the {who} grew by {grown} KiB to {after} KiB"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_of_1_gib_goes_to_the_store_of_control() {
    goes_through(World::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_of_1_gib_goes_to_s3() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = S3::start(dir.path()).await;
    goes_through(World::with_config(Some(&s3.config_through(&s3.endpoint))).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_1_gib_the_head_and_the_tail_are_kept_in_the_order_of_the_writes_with_the_count_between() {
    let world = World::new().await;
    let node = world
        .node("n")
        .config("output_bytes_max = 1048576\n")
        .hook("between", BETWEEN)
        .start()
        .await;
    let ran = world.run(on_node("between", node.id)).await;
    let ended = target(&ran, node.id);
    let lines: String = (1..=9).map(|n| format!("out {n}\nerr {n}\n")).collect();
    let total = GIB + 2 * lines.len() as u64;
    assert_eq!(
        (ended.status, ended.output_total_bytes, ended.output_truncated),
        (Status::Succeeded, Some(total), true),
        "{ended:?}"
    );
    let kept = world.operator.output(ran.id, node.id).await;
    let mark = kept
        .windows(9)
        .position(|some| some == b"\n[muster:")
        .expect("the cut is said");
    let (head, rest) = kept.split_at(mark);
    let end = rest[1..].iter().position(|byte| *byte == b'\n').unwrap() + 2;
    let (said, tail) = rest.split_at(end);
    let cut = total - head.len() as u64 - tail.len() as u64;
    assert_eq!(
        String::from_utf8_lossy(said),
        format!("\n[muster: {cut} bytes cut here]\n")
    );
    assert!(head.starts_with(lines.as_bytes()) && head[lines.len()..].iter().all(|byte| *byte == 0));
    assert!(
        tail.ends_with(lines.as_bytes()) && tail[..tail.len() - lines.len()].iter().all(|byte| *byte == 0)
    );
    assert!(
        kept.len() <= 1 << 20 && kept.len() > (1 << 20) - 200,
        "{}",
        kept.len()
    );
}
