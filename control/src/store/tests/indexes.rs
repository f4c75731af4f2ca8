//! Which index answers what is read, whatever there is of history.

use std::time::Duration;

use muster_shared::{ids::ActionName, selector::Selector};

use super::{
    heard::{heard, listen},
    *,
};

/// Asks how each statement over history that was heard is carried out. None walks along a whole table or index of it, and
/// the named index is used.
async fn answered_by(store: &Store, index: &str) {
    let history = [
        "e",
        "t",
        "m",
        "s",
        "ev",
        "action_execution",
        "action_execution_target",
        "action_execution_event",
        "audit",
    ];
    let mut plans = String::new();
    for statement in heard() {
        let of_history = statement.contains("FROM action_execution") || statement.contains("FROM audit");
        if !of_history || statement.starts_with("EXPLAIN") || statement.starts_with("BEGIN") {
            continue;
        }
        plans.push_str(&format!("{statement}\n"));
        for step in testing::plan(&store.read, &statement).await {
            plans.push_str(&format!("    {step}\n"));
            let scanned = step
                .strip_prefix("SCAN ")
                .or_else(|| Some(step.split_once("Seq Scan on ")?.1))
                .and_then(|rest| rest.split(' ').next());
            assert!(!scanned.is_some_and(|table| history.contains(&table)), "{plans}");
            assert!(
                !step.contains("FOR ORDER BY") && !step.contains("Sort"),
                "{plans}"
            );
        }
    }
    let index = testing::index_name(&store.read, index);
    assert!(
        index.split('|').any(|index| plans.contains(index)),
        "{index} is not used:\n{plans}"
    );
}

#[tokio::test]
async fn every_read_of_history_is_answered_by_an_index() {
    let fixture = fixture().await;
    let (store, project) = (fixture.store(), fixture.project.id);
    let node = fixture.nodes(1).await[0];
    let id = fixture.dispatch().await;
    fixture.settled_history().await;
    let now = Timestamp::now();
    let _alone = listen().await;
    let selector = Selector::parse("role=web,!old").unwrap();
    let keyset = "action_execution_project_keyset_idx";
    // PostgreSQL has one more, for what is live.
    let by_status = "action_execution_status_";
    let by_node = "action_execution_target_node_idx";
    let any = ListFilter::default;
    for (filter, index) in [
        (any(), keyset),
        (
            ListFilter {
                before: Some((now, id)),
                ..any()
            },
            keyset,
        ),
        (
            ListFilter {
                created: (Some(now), Some(now)),
                ..any()
            },
            keyset,
        ),
        (
            ListFilter {
                selector: Some(&selector),
                ..any()
            },
            keyset,
        ),
        (
            ListFilter {
                action: Some("ping"),
                ..any()
            },
            "action_execution_action_idx",
        ),
        (
            ListFilter {
                status: Some(Status::Failed),
                ..any()
            },
            by_status,
        ),
        (
            ListFilter {
                status: Some(Status::Pending),
                ..any()
            },
            by_status,
        ),
        (
            ListFilter {
                status: Some(Status::Started),
                before: Some((now, id)),
                ..any()
            },
            by_status,
        ),
        (
            ListFilter {
                node: Some(node),
                ..any()
            },
            by_node,
        ),
        (
            ListFilter {
                node: Some(node),
                before: Some((now, id)),
                ..any()
            },
            by_node,
        ),
        (
            ListFilter {
                node: Some(node),
                status: Some(Status::Failed),
                ..any()
            },
            by_node,
        ),
    ] {
        let _ = store.executions(project, &filter, 50).await.unwrap();
        answered_by(store, index).await;
    }
    let _ = store.count_live_executions(fixture.project.domain).await.unwrap();
    // Of what is live there is little, and PostgreSQL takes either index of it.
    answered_by(
        store,
        "action_execution_live_by_domain_idx|action_execution_status_live_idx",
    )
    .await;
    let _ = store.timeline(id, 0, 50).await.unwrap();
    answered_by(store, "action_execution_event_execution_idx").await;
    let _ = store
        .execution(project, id, Detail::WithOutput { bytes_max: 1 << 20 })
        .await
        .unwrap();
    answered_by(store, "PRIMARY KEY").await;
    let _ = store
        .execution_targets(id, Some(node), (50, 1 << 20))
        .await
        .unwrap();
    answered_by(store, "PRIMARY KEY").await;
    let _ = store.overdue(now, 50).await.unwrap();
    answered_by(
        store,
        "action_execution_live_by_due_idx|action_execution_status_live_idx",
    )
    .await;
    let ping: ActionName = "ping".parse().unwrap();
    let settled = Settled::new(fixture.project.domain, &ping, Duration::from_secs(1), now);
    let _ = store.settled(&settled).await.unwrap();
    answered_by(store, "action_execution_settled_idx").await;
    let _ = store.count_settled(&settled).await.unwrap();
    answered_by(store, "action_execution_settled_idx").await;
    let _ = store.settled_actions(fixture.project.domain).await.unwrap();
    answered_by(store, "action_execution_settled_idx").await;
    let _ = store.count_old_audit(fixture.project.domain, now).await.unwrap();
    answered_by(store, "PRIMARY KEY").await;
    let _ = store.nodes_still_owed((now, now), node, 50).await.unwrap();
    answered_by(store, "action_execution_target_owed_idx").await;
}

/// A timeline may have tens of thousands of events, and a node may ask this as often as it likes.
#[tokio::test]
async fn what_is_kept_against_an_end_is_found_without_the_timeline() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(2000).await;
    let id = fixture.dispatch().await;
    fixture.settle(id, &nodes).await;
    let told = |error| Advance {
        execution: id,
        node: nodes[0],
        from: Status::Cancelled,
        through: &[],
        to: Status::Failed,
        exit_code: None,
        error: Some(error),
        output: None,
        output_bytes: None,
        output_total_bytes: None,
        output_error: None,
    };
    let mut tx = fixture.store().begin().await.unwrap();
    tx.append_late_events(&[told("first")], Timestamp::now())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let _alone = listen().await;
    let mut tx = fixture.store().begin().await.unwrap();
    for (error, max, expected) in [
        ("first", 1, Room::Known),
        ("second", 1, Room::Full),
        ("second", 2, Room::News),
    ] {
        let _ = heard();
        let room = tx.room_for_evidence(&[told(error)], max).await.unwrap();
        assert_eq!(room[&(id, nodes[0])], expected, "{error} of {max}");
    }
    drop(tx);
    let asked = heard()
        .into_iter()
        .find(|statement| statement.contains("AND e.late"));
    let plan = testing::plan(&fixture.store().read, &asked.expect("it was asked")).await;
    let found = plan
        .iter()
        .any(|step| step.contains("action_execution_event_late_idx"));
    assert!(found, "{plan:#?}");
}

/// Also before PostgreSQL has counted the targets: an index that says more of the status would lead along the execution.
#[tokio::test]
async fn a_target_that_is_reported_is_found_by_its_key() {
    let fixture = fixture().await;
    let nodes = fixture.nodes(2000).await;
    let id = fixture.dispatch().await;
    let step = Advance {
        execution: id,
        node: nodes[0],
        from: Status::Pending,
        through: &[],
        to: Status::Ack,
        exit_code: None,
        error: None,
        output: None,
        output_bytes: None,
        output_total_bytes: None,
        output_error: None,
    };
    let _alone = listen().await;
    let mut tx = fixture.store().begin().await.unwrap();
    tx.advance(&[step], Timestamp::now()).await.unwrap();
    tx.commit().await.unwrap();
    let statements = heard();
    let moves: Vec<_> = statements
        .iter()
        .filter(|s| s.contains("UPDATE action_execution_target AS t"))
        .collect();
    assert_eq!(moves.len(), 1, "{statements:#?}");
    let steps = testing::plan(&fixture.store().write, moves[0]).await;
    let key = testing::index_name(&fixture.store().write, "PRIMARY KEY");
    let found = steps.iter().any(|step| step.contains(key));
    let walked = steps.iter().any(|step| step.contains("target_status_idx"));
    assert!(found && !walked, "{steps:#?}");
}

#[tokio::test]
async fn what_a_node_is_owed_is_found_without_its_history() {
    let fixture = fixture().await;
    let node = fixture.nodes(100).await[0];
    for _ in 0..3 {
        let _ = fixture.dispatch().await;
    }
    fixture.settled_history().await;
    let _alone = listen().await;
    let _ = fixture.store().owed_to(node).await.unwrap();
    let statements = heard();
    let owed: Vec<_> = statements
        .iter()
        .filter(|s| s.contains("t.status = 'pending'"))
        .collect();
    assert_eq!(owed.len(), 1, "{statements:#?}");
    let steps = testing::plan(&fixture.store().read, owed[0]).await;
    let partial = steps.iter().any(|step| {
        (step.starts_with("SEARCH t") || step.contains("Index Scan"))
            && step.contains("action_execution_target_owed_idx")
    });
    assert!(partial, "{steps:#?}");
}

/// The keyset of one node's list stands on it.
#[tokio::test]
async fn targets_have_the_instant_of_their_execution() {
    let fixture = fixture().await;
    let _ = fixture.nodes(3).await;
    let _ = fixture.dispatch().await;
    let odd = "action_execution_target t JOIN action_execution e ON e.id = t.execution_id
               WHERE t.created_at <> e.created_at";
    assert_eq!(fixture.count(odd).await, 0);
    assert_eq!(fixture.count("action_execution_target").await, 3);
}
