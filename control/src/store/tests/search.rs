//! What is looked for among executions without an index that knows it.

use muster_shared::selector::Selector;

use super::fixture;
use crate::store::search::{ListFilter, Search};

#[tokio::test]
async fn a_page_that_is_not_filled_in_time_goes_on_where_it_stopped() {
    let fixture = fixture().await;
    let node = fixture.nodes(1).await[0];
    let mut newest_first = Vec::new();
    for _ in 0..7 {
        newest_first.insert(0, fixture.dispatch().await);
    }
    let selector = Selector::parse("nobody=has").unwrap();
    let nothing = ListFilter {
        selector: Some(&selector),
        ..ListFilter::default()
    };
    let all_of_the_node = ListFilter {
        node: Some(node),
        action: Some("ping"),
        ..ListFilter::default()
    };
    let mut snapshot = fixture.store().read.snapshot().await.unwrap();
    for (mut filter, expected) in [(all_of_the_node, newest_first), (nothing, Vec::new())] {
        let (mut seen, mut pages) = (Vec::new(), 0);
        loop {
            let search = Search {
                project: fixture.project.id,
                filter: &filter,
                stride: 3,
            };
            // In no time at all, one stride is what there is.
            let page = search.found(&mut snapshot, 100, || true).await.unwrap();
            seen.extend(page.items.iter().map(|header| header.id));
            pages += 1;
            let Some(stopped) = page.stopped else { break };
            filter.before = Some(stopped);
        }
        assert_eq!((pages, seen), (3, expected));
    }
}
