//! What comes from outside, what is asked of nothing, and what a damaged row does to the others.

use std::time::Duration;

use super::*;
use crate::audit;

#[tokio::test]
async fn what_a_row_of_the_audit_is_hashed_of_is_what_is_read_again() {
    let fixture = fixture().await;
    let (store, domain) = (fixture.store(), fixture.project.domain);
    let (before, _) = audit::verify(store, domain).await.unwrap();
    let said = audit::Entry::granted("token:a\0b", "integrity.acknowledge", "node:a\0b".to_owned());
    let mut tx = store.begin().await.unwrap();
    tx.append_audit(domain, &[said.with("because of\0this")], Timestamp::now())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let (end, _) = audit::verify(store, domain).await.unwrap();
    assert_eq!(end.seq, before.seq + 1);
}

#[tokio::test]
async fn of_no_project_there_is_nothing() {
    let fixture = fixture().await;
    let _ = fixture.nodes(1).await;
    let store = fixture.store();
    let nodes = store.nodes(&NodeFilter::default()).await.unwrap();
    assert!(nodes.is_empty());
    let violations = store.violations(&[], &ViolationFilter::default(), 10).await;
    assert!(violations.unwrap().is_empty());
}

#[tokio::test]
async fn a_damaged_row_of_the_outbox_holds_up_no_other() {
    let fixture = fixture().await;
    let _ = fixture.nodes(1).await;
    let _damaged = fixture.dispatch().await;
    fixture
        .sql("UPDATE action_execution SET action_name = 'no name'".into())
        .await;
    let sound = fixture.dispatch().await;
    let rows = fixture
        .store()
        .outbox_after(&crate::outbox::Cursor::default(), Timestamp::now(), 10)
        .await
        .unwrap();
    let told: Vec<_> = rows
        .into_iter()
        .filter_map(|row| row.owed)
        .map(|owed| match owed {
            Ok((_, owed)) => owed.action(),
            Err(_) => None,
        })
        .collect();
    assert_eq!(told, [None, Some(sound)]);
}

#[tokio::test]
async fn a_node_that_goes_while_a_dispatch_waits_for_its_turn_is_not_addressed() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(2).await;
    let mut tx = fixture.store().begin().await.unwrap();
    let (control, project) = (fixture.control.clone(), fixture.project);
    let requester = Requester {
        subject: fixture.requester.subject.clone(),
        grants: fixture.requester.grants.clone(),
    };
    let request = DispatchRequest {
        action: "ping".into(),
        all: true,
        ..DispatchRequest::default()
    };
    let dispatched =
        tokio::spawn(async move { dispatch::dispatch(&control, &project, &requester, request, None).await });
    // Long enough for it to wait, and right however long it takes.
    tokio::time::sleep(Duration::from_millis(100)).await;
    tx.decommission(nodes[0], Timestamp::now()).await.unwrap();
    tx.commit().await.unwrap();
    let admitted = dispatched.await.unwrap().unwrap();
    let addressed: Vec<NodeId> = admitted
        .execution
        .targets
        .iter()
        .map(|target| target.node_id)
        .collect();
    assert_eq!(addressed, [nodes[1]]);
}
