//! What is done to a whole fleet takes no statement for each node.

use std::{collections::BTreeSet, time::Instant};

use muster_shared::ids::ActionName;

use super::{
    super::testing::declares,
    heard::{heard, listen},
    *,
};
use crate::{integrity, target::Target};

#[tokio::test]
#[expect(
    clippy::print_stderr,
    reason = "the time is for whoever reads the output, and nothing asserts it"
)]
async fn a_dispatch_to_ten_thousand_nodes_asks_for_none_of_them_alone() {
    const NODES: u32 = 10_000;
    let fixture = fixture().await;
    let _ = fixture.nodes(NODES).await;
    let _alone = listen().await;
    let began = Instant::now();
    let id = fixture.dispatch().await;
    let took = began.elapsed();
    let statements = heard();
    eprintln!("{NODES} nodes: {} statements in {took:?}", statements.len());
    // Two inserts for every thousand targets, and what is the same for any cohort.
    let chunks = (NODES as usize).div_ceil(ROWS_PER_INSERT);
    assert!(
        (2 * chunks..2 * chunks + 30).contains(&statements.len()),
        "{}",
        statements.len()
    );
    let shown = fixture
        .store()
        .execution(fixture.project.id, id, Detail::WithOutput { bytes_max: 1 << 20 })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(shown.target_count(), u64::from(NODES));
    assert_eq!(shown.targets.len(), 1000);
}

#[tokio::test]
async fn an_approval_for_a_fleet_asks_for_no_node_alone() {
    const NODES: u32 = 1500;
    let fixture = fixture().await;
    let nodes = fixture.nodes(NODES).await;
    let (was, is) = (Digest::of(b"was"), Digest::of(b"is"));
    let project = &fixture.project;
    // The last one shows something else.
    let (showing, other) = nodes.split_at(nodes.len() - 1);
    let mut tx = fixture.store().begin().await.unwrap();
    for node in &nodes {
        for shown in ["was", if showing.contains(node) { "is" } else { "was" }] {
            let manifest = declares(&[("job", shown)], &["ping"], &[]);
            tx.replace_capabilities(*node, &manifest, Timestamp::now())
                .await
                .unwrap();
        }
    }
    for node in &nodes[..2] {
        let violation = NewViolation {
            id: RowId::mint(Timestamp::now(), chance().unwrap()),
            node: *node,
            domain: project.domain,
            kind: "hook",
            artifact: "job",
            detected_by: "capabilities",
            observed: Some(is.as_bytes()),
            expected: Some(was.as_bytes()),
        };
        tx.insert_violation(&violation, Timestamp::now()).await.unwrap();
    }
    tx.commit().await.unwrap();
    let hook: ActionName = "job".parse().unwrap();
    let all = Target::parse(None, None, true).unwrap();
    let _alone = listen().await;
    let answer = integrity::approve(&fixture.control, project, &fixture.requester, (&hook, is, &all))
        .await
        .unwrap();
    let asked = heard().len();
    assert!(asked < NODES as usize / 10, "{asked} statements");
    assert_eq!(
        answer.approved.iter().collect::<BTreeSet<_>>(),
        showing.iter().collect::<BTreeSet<_>>()
    );
    assert_eq!(answer.unchanged, other);
    let approved = i64::from(NODES) - 1;
    for (counted, rows) in [
        ("hook_baseline WHERE approved_at IS NOT NULL", approved),
        ("outbox WHERE event_type = 'hook_baseline_updated'", approved),
        ("audit WHERE relation = 'hook.approve'", approved),
        ("integrity_violation WHERE status = 'resolved'", 2),
    ] {
        assert_eq!(fixture.count(counted).await, rows, "{counted}");
    }
    let owed = fixture.store().owed_to(showing[0]).await.unwrap();
    assert!(
        matches!(&owed[..], [Owed::Baseline { digest, .. }] if *digest == is),
        "{owed:?}"
    );
}
