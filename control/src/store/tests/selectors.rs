//! What SQL selects is what the pure matcher matches.

use std::collections::BTreeSet;

use muster_shared::selector::Selector;
use proptest::{prelude::*, test_runner::TestRunner};

use super::*;

const KEYS: [&str; 3] = ["a", "b", "c/d"];
const VALUES: [&str; 4] = ["x", "y", "", "z \"\\ü"];

fn any_labels() -> impl Strategy<Value = Labels> {
    proptest::collection::btree_map(0..KEYS.len(), 0..VALUES.len(), 0..=KEYS.len()).prop_map(|labels| {
        labels
            .into_iter()
            .map(|(key, value)| (KEYS[key].to_owned(), VALUES[value].to_owned()))
            .collect()
    })
}

fn quoted(value: usize) -> String {
    format!("\"{}\"", VALUES[value].replace('\\', "\\\\").replace('"', "\\\""))
}

fn any_term() -> impl Strategy<Value = String> {
    let values = proptest::collection::vec(0..VALUES.len(), 1..4);
    (0..KEYS.len(), 0..6, values).prop_map(|(key, op, values)| {
        let (key, one) = (KEYS[key], quoted(values[0]));
        let list = values.into_iter().map(quoted).collect::<Vec<_>>().join(",");
        match op {
            0 => format!("{key}={one}"),
            1 => format!("{key}!={one}"),
            2 => format!("{key} in ({list})"),
            3 => format!("{key} notin ({list})"),
            4 => key.to_owned(),
            _ => format!("!{key}"),
        }
    })
}

/// Random labels, random selectors, a real database: what SQL selects is what the pure matcher matches.
#[test]
fn the_database_selects_what_the_matcher_matches() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let fixture = runtime.block_on(fixture());
    let nodes = runtime.block_on(fixture.nodes(8));
    let action = "ping".parse().unwrap();
    let fleet = proptest::collection::vec(any_labels(), nodes.len());
    let selectors = proptest::collection::vec(proptest::collection::vec(any_term(), 1..4), 8);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(fleet, selectors), |(fleet, selectors)| {
        runtime.block_on(async {
            fixture.sql("DELETE FROM node_label".into()).await;
            let mut tx = fixture.store().begin().await.unwrap();
            for (node, labels) in nodes.iter().zip(&fleet) {
                for (key, value) in labels {
                    tx.set_label(*node, key, value).await.unwrap();
                }
            }
            tx.commit().await.unwrap();
            for terms in selectors {
                let text = terms.join(",");
                let selector = Selector::parse(&text).unwrap();
                let found = fixture
                    .store()
                    .candidates(fixture.project.id, Some(&selector), None, &action, Order::Id)
                    .await
                    .unwrap();
                let found: BTreeSet<NodeId> = found.iter().map(|candidate| candidate.node).collect();
                let wanted: BTreeSet<NodeId> = nodes
                    .iter()
                    .zip(&fleet)
                    .filter(|(_, labels)| selector.matches(labels))
                    .map(|(node, _)| *node)
                    .collect();
                prop_assert_eq!(found, wanted, "{}", text);
            }
            Ok(())
        })
    });
    outcome.unwrap();
}
