//! Who runs beside whom, who waits, and what is told of that.

use super::*;

#[test]
fn hooks_run_one_at_a_time_in_the_order_of_arrival_and_builtins_beside_them() {
    let mut tried = Tried::new();
    tried.expect(
        new(hook(1)),
        "taken 1, started 1.1 | start 1.1, post 1 ack+started",
    );
    tried.expect(new(hook(2)), "taken 2 | post 2 ack");
    tried.expect(new(hook(3)), "taken 3 | post 3 ack");
    tried.expect(
        new(builtin(4)),
        "taken 4, started 4.1 | start 4.1, post 4 ack+started",
    );
    tried.expect(told(2, Status::Ack), "reported 2 ack | ");
    tried.expect(
        done(1),
        "ended 1 succeeded, started 2.1 | start 2.1, post 2 started",
    );
    tried.expect(done(2), "ended 2 succeeded, started 3.1 | start 3.1");
}

#[test]
fn builtins_are_bounded_too() {
    // The third place is for what changes something.
    let mut tried = Tried(Session::new(3, 8, outputs(100, 100)));
    let _ = tried.0.handle(new(builtin(1)), at(0));
    let _ = tried.0.handle(new(builtin(2)), at(0));
    tried.expect(new(builtin(3)), "taken 3 | post 3 ack");
    tried.expect(done(2), "ended 2 succeeded, started 3.1 | start 3.1");
}

#[test]
fn past_the_queue_a_request_is_refused_through_the_legal_statuses() {
    let mut tried = Tried::new();
    for n in 1..=4 {
        let _ = tried.0.handle(new(hook(n)), at(0));
    }
    tried.expect(
        new(hook(5)),
        "taken 5, ended 5 failed | post 5 ack+started+failed",
    );
    // Those in front are not disturbed.
    tried.expect(done(1), "ended 1 succeeded, started 2.1 | start 2.1");
}

#[test]
fn hooks_that_change_different_things_run_side_by_side_and_none_overtakes_its_own_kind() {
    let named = |n: u8, action: &str| {
        new(ActionRequest {
            action: action.parse().unwrap(),
            ..hook(n)
        })
    };
    let lane = |raw: &[&str]| Lane::Changes(raw.iter().map(|a| a.parse().unwrap()).collect());
    let mut tried = Tried::new();
    tried.0.set_lanes(BTreeMap::from([
        ("db".to_owned(), lane(&["db"])),
        ("web".to_owned(), lane(&["web"])),
        ("both".to_owned(), lane(&["db:main", "web"])),
        ("look".to_owned(), Lane::ReadOnly),
    ]));
    tried.expect(
        named(1, "db"),
        "taken 1, started 1.1 | start 1.1, post 1 ack+started",
    );
    tried.expect(named(2, "both"), "taken 2 | post 2 ack");
    // It could run beside the first, but not past the second, which waits for the same.
    tried.expect(named(3, "web"), "taken 3 | post 3 ack");
    tried.expect(
        named(4, "look"),
        "taken 4, started 4.1 | start 4.1, post 4 ack+started",
    );
    let queue: Vec<String> = tried
        .0
        .overview()
        .waiting
        .iter()
        .map(|waiting| {
            let behind = waiting.behind.iter();
            let behind: Vec<String> = behind
                .map(|behind| format!("{} for {}", behind.action, behind.affinity.join("+")))
                .collect();
            format!(
                "{} {} behind {}",
                waiting.position.unwrap(),
                waiting.action,
                behind.join(", ")
            )
        })
        .collect();
    assert_eq!(
        queue,
        ["1 both behind db for db:main", "2 web behind both for web"]
    );
    let _ = tried.0.handle(done(1), at(0));
    assert_eq!(tried.0.running(), 2);
    let _ = tried.0.handle(done(2), at(0));
    assert_eq!(tried.0.running(), 2);
}

#[test]
fn the_queue_is_told_in_the_order_in_which_it_is_started_with_what_each_waits_for() {
    let mut tried = Tried(Session::new(2, 8, outputs(100, 100)));
    let lane = |raw: &str| Lane::Changes(vec![raw.parse().unwrap()]);
    tried.0.set_lanes(BTreeMap::from([
        ("db".to_owned(), lane("db")),
        ("web".to_owned(), lane("web")),
    ]));
    for (n, action) in [(1, "db"), (2, "db"), (3, "db"), (4, "web"), (5, "db")] {
        let action = action.parse().unwrap();
        let _ = tried.0.handle(new(ActionRequest { action, ..hook(n) }), at(0));
    }
    let told = tried.0.overview().waiting;
    let positions: Vec<_> = told.iter().map(|waiting| waiting.position).collect();
    assert_eq!(positions, [Some(1), Some(2), Some(3), Some(4)]);
    // It came last but one, clashes with nothing, and a slot is free.
    let next = &told[0];
    assert_eq!((next.execution_id, &next.behind[..]), (id(4), &[][..]));
    assert!(!next.all_slots_taken);
    assert_eq!(next.slot_kept_for, Some(overview::Kept::ReadOnly));
    for (n, then) in [(1, 4), (4, 2), (2, 3), (3, 5)] {
        let decision = tried.0.handle(done(n), at(0));
        assert!(
            short(&decision).contains(&format!("started {then}.1")),
            "{}",
            short(&decision)
        );
    }
    let told: Vec<_> = told.iter().map(|waiting| waiting.execution_id).collect();
    assert_eq!(told, [id(4), id(2), id(3), id(5)]);
}

#[test]
fn a_long_line_is_told_without_naming_everybody_to_everybody() {
    let mut tried = Tried(Session::new(2, 100, outputs(100, 100)));
    for n in 0..12 {
        let _ = tried.0.handle(new(hook(n)), at(0));
    }
    let queue = tried.0.overview().waiting;
    let told: Vec<_> = queue
        .iter()
        .map(|waiting| (waiting.behind.len(), waiting.behind_more))
        .collect();
    assert_eq!(told[..2], [(1, false), (2, false)]);
    assert_eq!(told[7..], [(8, false), (8, true), (8, true), (8, true)]);
    assert!(
        queue
            .iter()
            .all(|waiting| waiting.behind[0].execution_id == id(0)),
        "what runs is named first"
    );
}
