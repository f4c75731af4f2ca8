//! Outputs that follow their ends, and ends of which control knows nothing.

use super::*;

fn spooled(kept_bytes: u64) -> Outcome {
    Outcome {
        output: Output::Spool {
            kept_bytes,
            total_bytes: kept_bytes,
            sha256: muster_shared::ids::Digest::of(b""),
        },
        ..Outcome::of(Ended::Exited { code: 0 })
    }
}

/// An invocation that has ended with so much output, of which control knows all but the end.
fn ended_with(tried: &mut Tried, n: u8, bytes: u64) {
    let inputs = [
        new(builtin(n)),
        Input::Ended {
            execution: id(n),
            outcome: spooled(bytes),
        },
        told(n, Status::Started),
    ];
    for input in inputs {
        let _ = tried.0.handle(input, at(0));
    }
}

#[test]
fn an_output_that_could_not_be_brought_with_its_end_is_kept_until_it_is() {
    let mut tried = Tried::new();
    ended_with(&mut tried, 1, 60);
    tried.expect_at(
        answered(1, Status::Succeeded, Delivered::WithoutOutput),
        5,
        "reported 1 terminal, owed 1 60 | upload 1 since 5",
    );
    tried.expect(brought(1), "brought 1 | forget 1");
    tried.expect(brought(1), " | ");
}

#[test]
fn of_an_end_that_control_refuses_a_large_output_stays_here_for_a_while() {
    let mut tried = Tried::new();
    ended_with(&mut tried, 1, 60);
    tried.expect(
        answered(1, Status::Succeeded, Delivered::Settled),
        "reported 1 terminal | forget 1",
    );
    // What was too large to go with the refused end is nowhere but here.
    let large = INLINE_OUTPUT_BYTES_MAX as u64 + 1;
    let mut tried = Tried::new();
    tried.0.set_limits(4, 3, outputs(large, 1));
    ended_with(&mut tried, 1, large);
    tried.expect_at(
        answered(1, Status::Succeeded, Delivered::Settled),
        5,
        &format!("reported 1 terminal, owed 1 {large} | keep 1 since 5"),
    );
    tried.expect(brought(1), "brought 1 | forget 1");
    // It takes its share of the room.
    for n in [2, 3] {
        ended_with(&mut tried, n, large);
    }
    let settled = |n| answered(n, Status::Succeeded, Delivered::Settled);
    let _ = tried.0.handle(settled(2), at(6));
    tried.expect_at(
        settled(3),
        7,
        &format!("reported 3 terminal, owed 3 {large} | keep 3 since 7, give up 2"),
    );
}

#[test]
fn what_control_does_not_know_is_kept_and_not_told_for_ever() {
    let mut tried = Tried::new();
    ended_with(&mut tried, 1, 60);
    tried.expect(
        answered(1, Status::Succeeded, Delivered::Unknown),
        "reported 1 terminal, orphaned 1 | ",
    );
    // It was never started, so nothing came of it.
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let _ = tried.0.handle(new(hook(2)), at(0));
    tried.expect(
        answered(2, Status::Ack, Delivered::Unknown),
        "ended 2 cancelled, reported 2 terminal | forget 2",
    );
    // Its output had to follow, and control has forgotten the execution meanwhile.
    let mut tried = Tried::new();
    ended_with(&mut tried, 1, 60);
    let _ = tried
        .0
        .handle(answered(1, Status::Succeeded, Delivered::WithoutOutput), at(0));
    tried.expect(
        Input::OutputSettled {
            execution: id(1),
            unknown: true,
        },
        "brought 1, orphaned 1 | ",
    );
}

#[test]
fn an_end_is_told_again_and_a_control_that_is_behind_is_led_there_once() {
    let row = || {
        Box::new(Recorded {
            request: hook(1),
            attempt: 1,
            stage: Stage::Ended(ok()),
            reported: Reported::Terminal,
            cancel_asked: false,
        })
    };
    let mut tried = Tried::new();
    tried.expect(Input::TellAgain(row()), "reported 1 started | post 1 succeeded");
    tried.expect(Input::TellAgain(row()), " | ");
    tried.expect(told(1, Status::Succeeded), "reported 1 terminal | forget 1");

    let mut tried = Tried::new();
    let _ = tried.0.handle(Input::TellAgain(row()), at(0));
    for (answer, does) in [
        (
            answered(1, Status::Succeeded, Delivered::Ahead),
            "reported 1 nothing | post 1 ack+started+succeeded",
        ),
        (
            answered(1, Status::Succeeded, Delivered::Ahead),
            "reported 1 terminal | forget 1",
        ),
    ] {
        tried.expect(answer, does);
    }
}

#[test]
fn the_oldest_outputs_make_room_for_newer_ones() {
    let mut tried = Tried::new();
    for n in 1..=3 {
        ended_with(&mut tried, n, 40);
    }
    let late = |n| answered(n, Status::Succeeded, Delivered::WithoutOutput);
    tried.expect_at(late(2), 1, "reported 2 terminal, owed 2 40 | upload 2 since 1");
    tried.expect_at(late(1), 2, "reported 1 terminal, owed 1 40 | upload 1 since 2");
    tried.expect_at(
        late(3),
        3,
        "reported 3 terminal, owed 3 40 | upload 3 since 3, give up 2",
    );
    // It counts no more, and goes once nothing works on it.
    tried.expect(brought(2), "brought 2 | forget 2");
    ended_with(&mut tried, 4, 101);
    tried.expect_at(
        late(4),
        4,
        "reported 4 terminal, owed 4 101 | upload 4 since 4, give up 1, give up 3, give up 4",
    );
}

#[test]
fn the_number_of_outputs_is_bounded_too() {
    let mut tried = Tried(Session::new(4, 3, outputs(1000, 1)));
    for n in 1..=2 {
        ended_with(&mut tried, n, 40);
    }
    let late = |n| answered(n, Status::Succeeded, Delivered::WithoutOutput);
    tried.expect_at(late(1), 1, "reported 1 terminal, owed 1 40 | upload 1 since 1");
    tried.expect_at(
        late(2),
        2,
        "reported 2 terminal, owed 2 40 | upload 2 since 2, give up 1",
    );
}

#[test]
fn outputs_are_taken_up_after_a_restart() {
    let row = |n, outcome| Recorded {
        request: hook(n),
        attempt: 2,
        stage: Stage::Ended(outcome),
        reported: Reported::Terminal,
        cancel_asked: false,
    };
    let owed = |bytes, ms| OwedOutput {
        bytes,
        since: at(ms),
        wanted: true,
    };
    let mut tried = Tried::new();
    let decision = tried.0.recover_outputs(vec![
        (row(1, spooled(60)), owed(60, 7)),
        (row(2, spooled(30)), owed(30, 9)),
    ]);
    assert_eq!(short(&decision), " | upload 1 since 7, upload 2 since 9");
    // Control asks for the end once more: there is one way for the output all the same.
    let again = Input::Requested {
        request: Box::new(hook(1)),
        recorded: Some(Box::new(row(1, spooled(60)))),
        cancelled: false,
        denied: None,
    };
    tried.expect(again, "reported 1 nothing | post 1 ack+started+succeeded");
    tried.expect(
        answered(1, Status::Succeeded, Delivered::WithoutOutput),
        "reported 1 terminal | ",
    );
    tried.expect(brought(1), "brought 1 | forget 1");
}
