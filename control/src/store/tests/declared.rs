//! What is kept of what a node declares.

use super::{
    super::testing::declares,
    heard::{heard, listen},
    *,
};
use crate::integrity;

#[tokio::test]
async fn what_is_kept_of_a_node_is_what_it_declared_last_and_what_it_showed_first() {
    let fixture = fixture().await;
    let node = fixture.nodes(1).await[0];
    let ids = (node, fixture.project.domain);
    for (manifest, changed) in [
        (
            declares(&[("a", "1"), ("b", "1")], &["ping"], &[("x", "open")]),
            3,
        ),
        (
            declares(&[("a", "1"), ("b", "1")], &["ping"], &[("x", "open")]),
            0,
        ),
        (
            declares(&[("a", "2"), ("b", "1"), ("c", "1")], &["ping", "facts"], &[]),
            3,
        ),
        // A builtin of before is a hook now, and the other way round.
        (declares(&[("facts", "1")], &["ping", "a"], &[("x", "a link")]), 3),
        (
            declares(
                &[],
                &["ping"],
                &[("x", "open"), ("y", "open"), ("x", "said twice")],
            ),
            3,
        ),
        (declares(&[("a", "1"), ("b", "2")], &[], &[]), 3),
    ] {
        let told = integrity::declare(&fixture.control, ids, &manifest, Timestamp::now()).await;
        assert_eq!(told.unwrap().len(), changed, "{manifest:?}");
        let kept = fixture.store().declared_by(node).await.unwrap();
        assert_eq!(kept, Declared::by(&manifest));
    }
    let pinned = query("SELECT node_id, hook, digest FROM hook_baseline ORDER BY hook");
    let rows = pinned.fetch_all(&fixture.store().read).await.unwrap();
    let pinned: Vec<(String, Digest)> = rows
        .iter()
        .map(|row| {
            let row = rows::Reader::new(row, "hook_baseline", "node_id");
            (row.get("hook").unwrap(), row.digest("digest").unwrap())
        })
        .collect();
    let first = Digest::of(b"1");
    assert_eq!(
        pinned,
        ["a", "b", "c", "facts"].map(|hook| (hook.to_owned(), first))
    );
    // Those that show something else now are violations, each once.
    assert_eq!(fixture.count("integrity_violation").await, 2);
}

#[tokio::test]
async fn a_node_that_declares_one_thing_anew_writes_one_thing() {
    let fixture = fixture().await;
    let node = fixture.nodes(1).await[0];
    let ids = (node, fixture.project.domain);
    let hooks: Vec<String> = (0..100).map(|n| format!("hook-{n}")).collect();
    let mut hooks: Vec<(&str, &str)> = hooks.iter().map(|name| (name.as_str(), "1")).collect();
    let builtins = ["ping", "facts", "reboot"];
    let declare = async |hooks: &[(&str, &str)]| {
        let manifest = declares(hooks, &builtins, &[]);
        let told = integrity::declare(&fixture.control, ids, &manifest, Timestamp::now()).await;
        let _ = told.unwrap();
    };
    let _alone = listen().await;
    let wrote = || {
        let writes = ["INSERT", "UPDATE", "DELETE"];
        let is_one = |sql: &String| writes.iter().any(|word| sql.contains(word));
        heard().into_iter().filter(is_one).collect::<Vec<_>>()
    };
    declare(&hooks).await;
    // Actions and baselines, in pieces, and the node.
    assert!(wrote().len() < 20);
    declare(&hooks).await;
    assert_eq!(wrote(), [""; 0], "nothing changed");
    hooks.push(("one-more", "1"));
    declare(&hooks).await;
    let wrote = wrote();
    assert_eq!(wrote.len(), 3, "{wrote:#?}");
    assert_eq!(fixture.count("node_action").await, 104);
}
