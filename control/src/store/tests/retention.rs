//! What goes with time, and what stays.

use std::time::Duration;

use muster_shared::{audit::Anchor, wire::output_key};

use super::*;
use crate::{
    audit::{self, VerifyError},
    retention::{self, Keep, Retention, Rules},
};

fn keep(executions: Keep, audit: Keep) -> Retention {
    let general = Rules {
        executions: Some(executions),
        audit: Some(audit),
        actions: std::collections::BTreeMap::new(),
    };
    Retention {
        general,
        domains: std::collections::BTreeMap::new(),
        batch: 2,
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn what_is_settled_goes_whole_and_what_lives_stays() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(3).await;
    let (old, live) = (fixture.dispatch().await, fixture.dispatch().await);
    fixture.settle(old, &nodes).await;
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let (store, outputs) = (fixture.store(), &fixture.control.outputs);
    let soon = Timestamp::now();
    let pruned = retention::prune(store, outputs, &retention, soon, || true)
        .await
        .unwrap();
    assert_eq!(pruned, retention::Pruned::default(), "its time is not over");
    let later = soon.plus(2 * HOUR);
    let never = keep(Keep::Forever, Keep::Forever);
    let pruned = retention::prune(store, outputs, &never, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned, retention::Pruned::default(), "no retention is set");
    let due = retention::due(store, &retention, later).await.unwrap();
    assert_eq!(
        (due.len(), due[0].executions, due[0].invocations),
        (1, Some(1), Some(3))
    );
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!((pruned.executions, pruned.invocations), (1, 3));
    assert!(!store.execution_exists(old).await.unwrap() && store.execution_exists(live).await.unwrap());
    assert_eq!(fixture.count("action_execution_target").await, 3);
    assert_eq!(fixture.count("action_execution_event").await, 0);
}

#[tokio::test]
async fn an_execution_to_which_a_key_leads_stays_until_the_key_ends() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    fixture.settle(id, &nodes).await;
    let later = Timestamp::now().plus(2 * HOUR);
    fixture
        .sql(format!(
            "INSERT INTO idempotency_key (project_id, subject, key, body_hash, execution_id, created_at, expires_at)
             SELECT project_id, 'token:x', 'k', {}, id, created_at, {} FROM action_execution",
            testing::zeros(32),
            testing::instant(later.shifted(1)),
        ))
        .await;
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let (store, outputs) = (fixture.store(), &fixture.control.outputs);
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned.executions, 0);
    let pruned = retention::prune(store, outputs, &retention, later.plus(HOUR), || true)
        .await
        .unwrap();
    assert_eq!(pruned.executions, 1);
    assert_eq!(fixture.count("idempotency_key").await, 0);
}

#[tokio::test]
async fn an_output_store_that_refuses_is_asked_again() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    let mut tx = fixture.store().begin().await.unwrap();
    tx.declare_output(id, nodes[0], 20_000, Timestamp::now())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    fixture.settle(id, &nodes).await;
    // A file where the folder of the execution should be cannot be removed as one.
    let path = fixture._dir.path().join("outputs").join(id.to_string());
    std::fs::write(&path, b"in the way").unwrap();
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let (store, outputs, later) = (
        fixture.store(),
        &fixture.control.outputs,
        Timestamp::now().plus(2 * HOUR),
    );
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!((pruned.executions, pruned.objects), (1, 0));
    assert_eq!(fixture.count("output_garbage").await, 1);
    std::fs::remove_file(&path).unwrap();
    let object = fixture._dir.path().join("outputs").join(output_key(id, nodes[0]));
    std::fs::create_dir_all(object.parent().unwrap()).unwrap();
    std::fs::write(&object, b"kept too long").unwrap();
    let pruned = retention::prune(store, outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned.objects, 1);
    assert!(!path.exists());
    assert_eq!(fixture.count("output_garbage").await, 0);
}

#[tokio::test]
async fn no_execution_outlives_its_evidence() {
    let fixture = fixture().await;
    let _ = fixture.nodes(1).await;
    let _ = fixture.dispatch().await;
    let (store, domain) = (fixture.store(), fixture.project.domain);
    let (end, _) = audit::verify(store, domain).await.unwrap();
    let (later, hour) = (Timestamp::now().plus(2 * HOUR), Keep::For(HOUR));
    let pruned = retention::prune(store, &fixture.control.outputs, &keep(hour, hour), later, || true)
        .await
        .unwrap();
    assert_eq!(
        (pruned.executions, pruned.audit_rows),
        (0, end.seq - 1),
        "it lives, and the row of its dispatch stays"
    );
}

#[tokio::test]
async fn two_who_prune_say_what_went_once() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    fixture.settle(id, &nodes).await;
    let (store, now) = (fixture.store(), Timestamp::now());
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.prune_executions(&[id], "local", now).await.unwrap(), (1, 1));
    tx.commit().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.prune_executions(&[id], "local", now).await.unwrap().0, 0);
}

#[tokio::test]
async fn an_object_stays_garbage_while_it_may_be_uploaded_still() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(1).await;
    let id = fixture.dispatch().await;
    let later = Timestamp::now().plus(2 * HOUR);
    let mut tx = fixture.store().begin().await.unwrap();
    tx.declare_output(id, nodes[0], 20_000, later).await.unwrap();
    tx.commit().await.unwrap();
    fixture.settle(id, &nodes).await;
    let retention = keep(Keep::For(HOUR), Keep::Forever);
    let prune = async |at| {
        retention::prune(fixture.store(), &fixture.control.outputs, &retention, at, || true)
            .await
            .unwrap()
    };
    let pruned = prune(later).await;
    assert_eq!((pruned.executions, pruned.objects), (1, 0));
    assert_eq!(prune(later.plus(2 * HOUR)).await.objects, 1);
    assert_eq!(fixture.count("output_garbage").await, 0);
}

#[tokio::test]
async fn an_audit_chain_that_was_pruned_holds_and_says_so() {
    let fixture = fixture().await;
    let _ = fixture.nodes(1).await;
    for _ in 0..3 {
        let _ = fixture.dispatch().await;
    }
    let (store, domain) = (fixture.store(), fixture.project.domain);
    let (before, none) = audit::verify(store, domain).await.unwrap();
    assert!(none.is_none() && before.seq == 5, "{before}");
    let later = Timestamp::now().plus(2 * HOUR);
    let retention = keep(Keep::Forever, Keep::For(HOUR));
    fixture.sql("DELETE FROM action_execution".into()).await;
    let pruned = retention::prune(store, &fixture.control.outputs, &retention, later, || true)
        .await
        .unwrap();
    assert_eq!(pruned.audit_rows, 5);
    let (end, begins) = audit::verify(store, domain).await.unwrap();
    assert_eq!(begins, Some(before), "everything up to the old end went");
    // Two at a time: each batch has said where it ended.
    assert_eq!(end.seq, before.seq + 3);
    fixture
        .sql("DELETE FROM audit WHERE seq = (SELECT min(seq) FROM audit)".into())
        .await;
    let broken = audit::verify(store, domain).await.unwrap_err();
    assert!(matches!(broken, VerifyError::Broken { .. }), "{broken}");
    // Whoever moves the beginning after it was cut has no row that says so.
    fixture
        .sql("UPDATE audit_pruned SET seq = 6, hash = (SELECT previous_hash FROM audit WHERE seq = 7)".into())
        .await;
    let broken = audit::verify(store, domain).await.unwrap_err();
    let VerifyError::Broken { source, .. } = broken else {
        panic!("{broken}")
    };
    assert_eq!(source, muster_shared::audit::Broken::PruneUnsaid { seq: 6 });
    let _: Anchor = end;
}
