use std::{fs, os::unix::fs::PermissionsExt as _, sync::Arc};

use muster_shared::{
    ids::{Digest, ExecutionId},
    wire::{ActionKind, ActionRequest, DetectedBy},
};

use super::*;
use crate::{
    outcome::{Ended, Outcome},
    session::{Fact, OwedOutput, Reported, Stage},
};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn node(n: u8) -> NodeId {
    NodeId::mint(at(0), [n; 10])
}

fn request(n: u8, expires_ms: i64) -> Arc<ActionRequest> {
    Arc::new(ActionRequest {
        event_id: uuid::Uuid::nil().into(),
        occurred_at: at(0),
        execution_id: ExecutionId::mint(at(0), [n; 10]),
        node_id: node(1),
        action: "reload".parse().unwrap(),
        kind: ActionKind::Hook,
        parameters: None,
        timeout_seconds: 60,
        callback_url: String::new(),
        expires_at: at(expires_ms),
        run_until: None,
        callback_token: "token".into(),
        hook_digest: None,
        requested_by: None,
    })
}

fn opened(dir: &tempfile::TempDir) -> Store {
    schema::open(&dir.path().join("journal.db"), node(1), Bounds::WIDE).unwrap()
}

#[test]
fn a_closed_journal_leaves_no_log_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let (closing, journal) = Journal::open(dir.path(), node(1), Bounds::WIDE).unwrap();
    let log = dir.path().join("journal.db-wal");
    assert!(log.exists());
    drop(journal);
    drop(closing);
    assert!(!log.exists());
}

#[test]
fn what_was_recorded_is_there_after_a_restart_in_the_order_of_arrival() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (request(9, 100), request(1, 100));
    let execution = first.execution_id;
    let outcome = Outcome::of(Ended::Exited { code: 3 });
    let mut store = opened(&dir);
    store
        .record(
            &[
                Fact::Taken(Arc::clone(&first)),
                Fact::Started {
                    execution,
                    attempt: 1,
                },
            ],
            at(1),
        )
        .unwrap();
    store.record(&[Fact::Taken(Arc::clone(&second))], at(2)).unwrap();
    store
        .record(
            &[Fact::Reported {
                execution,
                reported: Reported::Ack,
            }],
            at(3),
        )
        .unwrap();
    store
        .record(
            &[Fact::Ended {
                execution,
                outcome: outcome.clone(),
            }],
            at(4),
        )
        .unwrap();
    drop(store);
    let owed = opened(&dir).owed().unwrap();
    assert_eq!(owed.len(), 2);
    assert_eq!(owed[0].request.execution_id, execution);
    assert_eq!(
        (owed[0].attempt, &owed[0].stage, owed[0].reported),
        (1, &Stage::Ended(outcome), Reported::Ack)
    );
    assert_eq!(
        (owed[1].attempt, &owed[1].stage, owed[1].reported),
        (0, &Stage::Taken, Reported::Nothing)
    );
}

#[test]
fn one_request_cannot_be_taken_twice_and_nothing_of_a_failed_record_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir);
    store.record(&[Fact::Taken(request(1, 100))], at(1)).unwrap();
    assert!(
        store
            .record(
                &[Fact::Taken(request(2, 100)), Fact::Taken(request(1, 100))],
                at(2)
            )
            .is_err()
    );
    assert!(store.find(request(2, 100).execution_id).unwrap().is_none());
}

#[test]
fn only_what_is_settled_and_long_expired_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir);
    for (n, expires_ms, reported) in [
        (1, 100, Reported::Terminal),
        (2, 900, Reported::Terminal),
        (3, 100, Reported::Started),
    ] {
        let request = request(n, expires_ms);
        let execution = request.execution_id;
        store
            .record(
                &[Fact::Taken(request), Fact::Reported { execution, reported }],
                at(1),
            )
            .unwrap();
    }
    assert_eq!(store.prune(at(500)).unwrap(), 1);
    assert!(store.find(request(1, 0).execution_id).unwrap().is_none());
    assert!(store.find(request(2, 0).execution_id).unwrap().is_some());
    assert!(store.find(request(3, 0).execution_id).unwrap().is_some());
}

#[test]
fn a_cancel_is_remembered_with_its_invocation_and_before_it_arrives_and_in_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let day = i64::from(muster_shared::wire::TIMEOUT_SECONDS_MAX) * 1000;
    let (taken, ahead) = (request(1, 100), request(2, 100));
    let cancel = |request: &ActionRequest| Fact::CancelAsked {
        execution: request.execution_id,
    };
    let mut store = opened(&dir);
    store
        .record(
            &[Fact::Taken(Arc::clone(&taken)), cancel(&taken), cancel(&ahead)],
            at(1),
        )
        .unwrap();
    // Asked again, it is the same cancel.
    store.record(&[cancel(&ahead)], at(2)).unwrap();
    drop(store);
    let mut store = opened(&dir);
    assert!(store.owed().unwrap()[0].cancel_asked);
    assert!(store.is_cancelled(ahead.execution_id).unwrap());
    assert!(!store.is_cancelled(request(3, 100).execution_id).unwrap());

    store.prune(at(day)).unwrap();
    assert!(store.is_cancelled(ahead.execution_id).unwrap());
    store.prune(at(day + 2)).unwrap();
    assert!(!store.is_cancelled(ahead.execution_id).unwrap());
    assert!(store.owed().unwrap()[0].cancel_asked, "it lives still");

    let many: Vec<Fact> = (0..10_001_u32)
        .map(|n| {
            let mut chance = [0; 10];
            chance[..4].copy_from_slice(&n.to_be_bytes());
            Fact::CancelAsked {
                execution: ExecutionId::mint(at(5), chance),
            }
        })
        .collect();
    store.record(&many[..10_000], at(5)).unwrap();
    store.record(&many[10_000..], at(6)).unwrap();
    assert!(store.is_cancelled(many[10_000].execution()).unwrap());
    let kept = many
        .iter()
        .filter(|fact| store.is_cancelled(fact.execution()).unwrap())
        .count();
    assert_eq!(kept, 10_000);
    assert!(store.owed().unwrap()[0].cancel_asked, "it lives still");
}

#[test]
fn an_output_that_is_owed_outlives_its_settled_invocation_until_it_was_brought() {
    let dir = tempfile::tempdir().unwrap();
    let ended = request(1, 100);
    let execution = ended.execution_id;
    let output = OwedOutput {
        bytes: 20_000,
        since: at(7),
        wanted: true,
    };
    let mut store = opened(&dir);
    store
        .record(
            &[
                Fact::Taken(ended),
                Fact::Ended {
                    execution,
                    outcome: Outcome::of(Ended::Exited { code: 0 }),
                },
                Fact::Reported {
                    execution,
                    reported: Reported::Terminal,
                },
                Fact::OutputOwed { execution, output },
            ],
            at(7),
        )
        .unwrap();
    drop(store);
    let mut store = opened(&dir);
    assert_eq!(store.prune(at(500)).unwrap(), 0);
    assert!(store.owed().unwrap().is_empty(), "its end is told");
    let owed = store.outputs_owed().unwrap();
    assert_eq!(owed.len(), 1);
    assert_eq!((owed[0].0.request.execution_id, owed[0].1), (execution, output));
    store.record(&[Fact::OutputSettled { execution }], at(8)).unwrap();
    assert!(store.outputs_owed().unwrap().is_empty());
    // One that control will not take stays as long.
    let output = OwedOutput {
        wanted: false,
        since: at(9),
        ..output
    };
    store
        .record(&[Fact::OutputOwed { execution, output }], at(9))
        .unwrap();
    assert_eq!(store.prune(at(500)).unwrap(), 0);
    assert_eq!(store.outputs_owed().unwrap()[0].1, output);
    store
        .record(&[Fact::OutputSettled { execution }], at(10))
        .unwrap();
    assert!(store.outputs_owed().unwrap().is_empty());
    assert_eq!(store.prune(at(500)).unwrap(), 1);
}

#[test]
fn a_baseline_stays_until_a_newer_approval() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir);
    let hook = "reload".parse().unwrap();
    let (first, second, third) = (Digest::of(b"1"), Digest::of(b"2"), Digest::of(b"3"));
    assert_eq!(store.pin_baseline(&hook, first, at(1)).unwrap(), first);
    assert_eq!(store.pin_baseline(&hook, second, at(2)).unwrap(), first);
    assert!(store.approve(&hook, second, at(10)).unwrap());
    assert!(!store.approve(&hook, second, at(10)).unwrap());
    assert!(!store.approve(&hook, third, at(9)).unwrap());
    assert_eq!(store.baseline(&hook).unwrap(), Some(second));
}

#[test]
fn a_violation_is_told_once_until_the_hook_was_right_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir);
    let hook = "reload".parse().unwrap();
    let drift = |store: &mut Store| {
        store
            .record_violation(
                &hook,
                Digest::of(b"2"),
                Digest::of(b"1"),
                DetectedBy::Inotify,
                at(1),
            )
            .unwrap();
        store.undelivered_violations().unwrap()
    };
    let told = drift(&mut store);
    assert_eq!((told.len(), told[0].detected_by), (1, DetectedBy::Inotify));
    store.violations_delivered(&told, at(2)).unwrap();
    assert!(drift(&mut store).is_empty());
    store.clear_violations(&hook).unwrap();
    assert_eq!(drift(&mut store).len(), 1);
    // One that was not delivered yet is evidence and stays.
    store.clear_violations(&hook).unwrap();
    assert_eq!(store.undelivered_violations().unwrap().len(), 1);
}

#[test]
fn the_journal_of_another_enrolment_is_not_replayed() {
    let dir = tempfile::tempdir().unwrap();
    drop(opened(&dir));
    let Err(Exit::Journal(why)) = schema::open(&dir.path().join("journal.db"), node(2), Bounds::WIDE) else {
        panic!()
    };
    assert!(why.contains(&node(1).to_string()), "{why}");
}

#[test]
fn a_damaged_journal_is_an_error_and_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    fs::write(
        &path,
        b"this is no database, and long enough to be looked at as one",
    )
    .unwrap();
    let Err(Exit::Journal(why)) = schema::open(&path, node(1), Bounds::WIDE) else {
        panic!()
    };
    assert!(why.contains("not re-created"), "{why}");
    assert!(fs::read(&path).unwrap().starts_with(b"this is no database"));
}

fn bounded(dir: &tempfile::TempDir, rows_max: u64, bytes_max: u64) -> Store {
    let bounds = Bounds { rows_max, bytes_max };
    schema::open(&dir.path().join("journal.db"), node(1), bounds).unwrap()
}

fn settle(store: &mut Store, request: &Arc<ActionRequest>, now: i64) {
    let execution = request.execution_id;
    let outcome = Outcome::of(Ended::Exited { code: 0 });
    let reported = Reported::Terminal;
    store
        .record(
            &[
                Fact::Ended { execution, outcome },
                Fact::Reported { execution, reported },
            ],
            at(now),
        )
        .unwrap();
}

#[test]
fn past_a_limit_the_oldest_settled_are_forgotten_and_nothing_that_is_owed_or_could_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = bounded(&dir, 3, 1 << 30);
    let [owed, fresh, old, new] = [(1, 10), (2, 900), (3, 10), (4, 900)].map(|(n, ms)| request(n, ms));
    for taken in [&owed, &fresh, &old] {
        store.record(&[Fact::Taken(Arc::clone(taken))], at(1)).unwrap();
    }
    settle(&mut store, &fresh, 2);
    settle(&mut store, &old, 2);
    // Nothing has expired yet, so everything could still come again.
    let refused = store.record(&[Fact::Taken(Arc::clone(&new))], at(5)).unwrap_err();
    assert_eq!(refused.code(), "journal_full");
    assert!(refused.to_string().contains("journal_rows_max"), "{refused}");
    store.record(&[Fact::Taken(Arc::clone(&new))], at(100)).unwrap();
    let known =
        |store: &mut Store, request: &Arc<ActionRequest>| store.find(request.execution_id).unwrap().is_some();
    assert!(known(&mut store, &owed) && known(&mut store, &fresh) && known(&mut store, &new));
    assert!(!known(&mut store, &old));
    // What was taken is told at the limit too, and the count survives a restart.
    settle(&mut store, &owed, 101);
    drop(store);
    let mut store = bounded(&dir, 3, 1 << 30);
    let newest = request(5, 900);
    store
        .record(&[Fact::Taken(Arc::clone(&newest))], at(102))
        .unwrap();
    assert!(!known(&mut store, &owed) && known(&mut store, &newest));
}

#[test]
fn an_output_that_is_owed_keeps_its_invocation_at_any_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = bounded(&dir, 1, 1 << 30);
    let first = request(1, 10);
    let execution = first.execution_id;
    store.record(&[Fact::Taken(Arc::clone(&first))], at(1)).unwrap();
    settle(&mut store, &first, 2);
    let output = OwedOutput {
        bytes: 7,
        since: at(2),
        wanted: true,
    };
    store
        .record(&[Fact::OutputOwed { execution, output }], at(2))
        .unwrap();
    assert!(store.record(&[Fact::Taken(request(2, 900))], at(100)).is_err());
    store
        .record(&[Fact::OutputSettled { execution }], at(101))
        .unwrap();
    store.record(&[Fact::Taken(request(2, 900))], at(102)).unwrap();
}

#[test]
fn the_room_of_the_journal_is_bounded_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = bounded(&dir, 1_000_000, 1 << 20);
    let large = |n: u8| {
        let mut large = Arc::unwrap_or_clone(request(n, 10));
        large.callback_url = "x".repeat(60_000);
        Arc::new(large)
    };
    for n in 0..200 {
        let request = large(n);
        store
            .record(&[Fact::Taken(Arc::clone(&request))], at(20))
            .unwrap();
        settle(&mut store, &request, 21);
    }
    let size = fs::metadata(dir.path().join("journal.db")).unwrap().len();
    assert!(size < 2 << 20, "{size}");
    // None of these can go.
    let mut refused = None;
    for n in 0..200 {
        if let Err(err) = store.record(&[Fact::Taken(large(n))], at(1)) {
            refused = Some(err);
            break;
        }
    }
    let refused = refused.unwrap();
    assert!(
        refused.code() == "journal_full" && refused.to_string().contains("journal_bytes_max"),
        "{refused}"
    );
}

#[test]
fn violations_are_bounded_and_those_not_told_yet_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir);
    let hook = "reload".parse().unwrap();
    let expected = Digest::of(b"as it should be");
    for n in 0..1200_i64 {
        let observed = Digest::of(&n.to_le_bytes());
        store
            .record_violation(&hook, observed, expected, DetectedBy::Inotify, at(n))
            .unwrap();
    }
    let mut told = 0;
    loop {
        let some = store.undelivered_violations().unwrap();
        if some.is_empty() {
            break;
        }
        told += some.len();
        store.violations_delivered(&some, at(2000)).unwrap();
    }
    assert_eq!(told, 1000);
}

#[test]
fn nobody_else_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir);
    store.record(&[Fact::Taken(request(1, 100))], at(1)).unwrap();
    for file in fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(
            file.metadata().unwrap().permissions().mode() & 0o077,
            0,
            "{:?}",
            file.file_name()
        );
    }
}
