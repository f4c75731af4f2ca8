//! What the session decides, input by input, in short words.

mod outputs;
mod queue;

use super::*;
use muster_shared::{
    ids::NodeId,
    wire::{ActionKind, Base64, INLINE_OUTPUT_BYTES_MAX},
};

use crate::outcome::Output;

const FAR: i64 = 1_000_000;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn id(n: u8) -> ExecutionId {
    ExecutionId::mint(at(0), [n; 10])
}

fn request(n: u8, kind: ActionKind, expires_ms: i64) -> ActionRequest {
    ActionRequest {
        event_id: uuid::Uuid::nil().into(),
        occurred_at: at(0),
        execution_id: id(n),
        node_id: NodeId::mint(at(0), [9; 10]),
        action: "reload".parse().unwrap(),
        kind,
        parameters: None,
        timeout_seconds: 60,
        callback_url: String::new(),
        expires_at: at(expires_ms),
        run_until: None,
        callback_token: "token".into(),
        hook_digest: None,
        requested_by: None,
    }
}

const fn outputs(bytes_max: u64, count_max: usize) -> OutputBounds {
    OutputBounds { bytes_max, count_max }
}

fn hook(n: u8) -> ActionRequest {
    request(n, ActionKind::Hook, FAR)
}

fn builtin(n: u8) -> ActionRequest {
    request(n, ActionKind::Builtin, FAR)
}

fn new(request: ActionRequest) -> Input {
    Input::Requested {
        request: Box::new(request),
        recorded: None,
        cancelled: false,
        denied: None,
    }
}

fn cancel(n: u8) -> Input {
    Input::CancelAsked {
        execution: id(n),
        settled: false,
    }
}

fn stopped(n: u8) -> Input {
    Input::Ended {
        execution: id(n),
        outcome: Outcome::of(Ended::Stopped { processes_killed: 0 }),
    }
}

fn done(n: u8) -> Input {
    Input::Ended {
        execution: id(n),
        outcome: ok(),
    }
}

fn ok() -> Outcome {
    Outcome {
        ended: Ended::Exited { code: 0 },
        output: Output::Inline {
            bytes: Base64(b"x".to_vec()),
            total_bytes: None,
        },
        remark: None,
    }
}

fn brought(n: u8) -> Input {
    Input::OutputSettled {
        execution: id(n),
        unknown: false,
    }
}

fn told(n: u8, status: Status) -> Input {
    answered(n, status, Delivered::Taken)
}

fn answered(n: u8, status: Status, delivered: Delivered) -> Input {
    Input::Delivered {
        execution: id(n),
        status,
        delivered,
    }
}

/// A decision in short: facts, a bar, effects.
fn short(decision: &Decision) -> String {
    let number = |execution: ExecutionId| execution.uuid().as_bytes()[15];
    let fact = |fact: &Fact| match fact {
        Fact::Taken(request) => format!("taken {}", number(request.execution_id)),
        Fact::Started { execution, attempt } => format!("started {}.{attempt}", number(*execution)),
        Fact::CancelAsked { execution } => format!("cancel {}", number(*execution)),
        Fact::Ended { execution, outcome } => format!("ended {} {}", number(*execution), outcome.status()),
        Fact::Reported { execution, reported } => {
            format!("reported {} {}", number(*execution), reported.as_str())
        }
        Fact::OutputOwed { execution, output } => format!("owed {} {}", number(*execution), output.bytes),
        Fact::OutputSettled { execution } => format!("brought {}", number(*execution)),
        Fact::Orphaned { execution } => format!("orphaned {}", number(*execution)),
    };
    let effect = |effect: &Effect| match effect {
        Effect::Start { request, attempt } => format!("start {}.{attempt}", number(request.execution_id)),
        Effect::Stop { execution } => format!("stop {}", number(*execution)),
        Effect::Post(errand) => {
            let passed = errand
                .passed
                .iter()
                .map(|passed| format!("{}+", Status::from(*passed)));
            let passed: String = passed.collect();
            format!(
                "post {} {passed}{}",
                number(errand.request.execution_id),
                errand.status
            )
        }
        Effect::Upload { errand, output } => {
            let does = if output.wanted { "upload" } else { "keep" };
            format!(
                "{does} {} since {}",
                number(errand.request.execution_id),
                output.since.as_millis()
            )
        }
        Effect::GiveUp { execution } => format!("give up {}", number(*execution)),
        Effect::Forget { execution, .. } => format!("forget {}", number(*execution)),
    };
    let facts: Vec<_> = decision.facts.iter().map(fact).collect();
    let effects: Vec<_> = decision.effects.iter().map(effect).collect();
    format!("{} | {}", facts.join(", "), effects.join(", "))
}

struct Tried(Session);

impl Tried {
    fn new() -> Self {
        Self(Session::new(4, 3, outputs(100, 100)))
    }

    fn expect(&mut self, input: Input, expected: &str) {
        self.expect_at(input, 0, expected);
    }

    fn expect_at(&mut self, input: Input, ms: i64, expected: &str) {
        let label = format!("{input:?}");
        assert_eq!(short(&self.0.handle(input, at(ms))), expected, "{label}");
    }

    fn recovered(rows: Vec<(Recorded, Option<Past>)>, expected: &str) -> Self {
        let mut tried = Self::new();
        assert_eq!(short(&tried.0.recover(rows, at(0))), expected);
        tried
    }
}

fn row(request: ActionRequest, attempt: u32, stage: Stage, reported: Reported) -> Recorded {
    Recorded {
        request,
        attempt,
        stage,
        reported,
        cancel_asked: false,
    }
}

fn cancelled(row: Recorded) -> Recorded {
    Recorded {
        cancel_asked: true,
        ..row
    }
}

#[test]
fn a_request_is_recorded_before_it_is_acknowledged_and_started_in_that_order() {
    let mut tried = Tried::new();
    tried.expect(
        new(hook(1)),
        "taken 1, started 1.1 | start 1.1, post 1 ack+started",
    );
    tried.expect(told(1, Status::Started), "reported 1 started | ");
    tried.expect(done(1), "ended 1 succeeded | post 1 succeeded");
    tried.expect(told(1, Status::Succeeded), "reported 1 terminal | forget 1");
    assert!(!tried.0.knows(id(1)));
}

#[test]
fn an_end_before_the_start_is_told_waits_for_its_turn() {
    let mut tried = Tried::new();
    tried.expect(
        new(builtin(1)),
        "taken 1, started 1.1 | start 1.1, post 1 ack+started",
    );
    tried.expect(done(1), "ended 1 succeeded | ");
    tried.expect(told(1, Status::Started), "reported 1 started | post 1 succeeded");
}

#[test]
fn what_was_passed_while_control_was_away_is_told_together() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    tried.expect(new(hook(2)), "taken 2 | post 2 ack");
    tried.expect(done(1), "ended 1 succeeded, started 2.1 | start 2.1");
    tried.expect(done(2), "ended 2 succeeded | ");
    tried.expect(told(2, Status::Ack), "reported 2 ack | post 2 started+succeeded");
}

#[test]
fn a_repeated_request_is_never_run_again() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    // While the acknowledgement is on its way there is nothing to add.
    tried.expect(new(hook(1)), " | ");
    let _ = tried.0.handle(told(1, Status::Started), at(0));
    // Control has lost it: everything is told again, and nothing is run.
    tried.expect(new(hook(1)), "reported 1 nothing | post 1 ack+started");
    let again = Fact::Reported {
        execution: id(1),
        reported: Reported::Nothing,
    };
    assert!(!again.may_wait(), "a daemon that died now would not tell it");
    tried.expect(told(1, Status::Started), "reported 1 started | ");
    tried.expect(done(1), "ended 1 succeeded | post 1 succeeded");
}

#[test]
fn a_request_that_was_settled_long_ago_is_answered_from_the_journal() {
    let mut tried = Tried::new();
    let recorded = Some(Box::new(row(hook(1), 1, Stage::Ended(ok()), Reported::Terminal)));
    tried.expect(
        Input::Requested {
            request: Box::new(hook(1)),
            recorded,
            cancelled: false,
            denied: None,
        },
        "reported 1 nothing | post 1 ack+started+succeeded",
    );
    tried.expect(
        answered(1, Status::Succeeded, Delivered::Settled),
        "reported 1 terminal | forget 1",
    );
}

#[test]
fn what_waits_too_long_times_out_and_is_never_started() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let _ = tried.0.handle(new(request(2, ActionKind::Hook, 100)), at(0));
    let _ = tried.0.handle(told(2, Status::Ack), at(1));
    assert_eq!(tried.0.next_wake(), Some(at(100)));
    tried.expect_at(Input::Woken, 99, " | ");
    tried.expect_at(Input::Woken, 100, "ended 2 timeout | post 2 timeout");
    tried.expect_at(done(1), 101, "ended 1 succeeded | ");
    assert_eq!(tried.0.next_wake(), None);
}

/// The clock of a daemon that has just started may be hours fast, and only control can tell.
#[test]
fn what_waits_from_before_a_restart_expires_only_once_control_has_answered() {
    let rows = || {
        let taken = |n| row(hook(n), 0, Stage::Taken, Reported::Ack);
        vec![(taken(1), None), (taken(2), None)]
    };
    let later = 2 * FAR;
    let fresh = || {
        let mut session = Tried::new().0;
        assert_eq!(short(&session.recover(rows(), at(later))), " | ");
        Tried(session)
    };
    let mut tried = fresh();
    tried.expect_at(Input::Woken, later, " | ");
    assert_eq!(tried.0.next_wake(), None, "there is nothing to wake up for");
    let unheard = |tried: &Tried| {
        let waiting = tried.0.overview().waiting;
        waiting.iter().map(|one| one.control_unheard).collect::<Vec<_>>()
    };
    assert_eq!(unheard(&tried), [true, true]);
    // It was fast.
    tried.expect_at(Input::Admitted, 0, "started 1.1 | start 1.1, post 1 started");
    assert_eq!(tried.0.next_wake(), Some(hook(2).deadline()));
    assert_eq!(unheard(&tried), [false]);

    let mut tried = fresh();
    tried.expect_at(
        Input::Admitted,
        later,
        "ended 1 timeout, ended 2 timeout | post 1 timeout, post 2 timeout",
    );
}

#[test]
fn one_that_arrives_expired_is_not_started() {
    let mut tried = Tried::new();
    tried.expect_at(
        new(request(1, ActionKind::Hook, 5)),
        5,
        "taken 1, ended 1 timeout | post 1 ack+timeout",
    );
}

#[test]
fn what_control_has_settled_meanwhile_is_not_started() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let _ = tried.0.handle(new(hook(2)), at(0));
    tried.expect(
        answered(2, Status::Ack, Delivered::Settled),
        "ended 2 cancelled, reported 2 terminal | forget 2",
    );
    tried.expect(done(1), "ended 1 succeeded | ");
}

#[test]
fn a_running_hook_whose_execution_is_gone_is_reported_to_its_end() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    tried.expect(
        answered(1, Status::Started, Delivered::Gone),
        "reported 1 started | ",
    );
    assert_eq!(tried.0.running(), 1);
}

#[test]
fn without_a_journal_hooks_are_refused_and_builtins_run() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let why = || "disk full".to_owned();
    tried.expect(
        Input::Untaken {
            execution: id(1),
            code: "disk_full",
            why: why(),
        },
        " | post 1 ack+started+failed",
    );
    let _ = tried.0.handle(new(builtin(2)), at(0));
    tried.expect(
        Input::Untaken {
            execution: id(2),
            code: "disk_full",
            why: why(),
        },
        " | start 2.1, post 2 ack+started",
    );
    tried.expect(told(2, Status::Started), " | ");
    tried.expect(done(2), " | post 2 succeeded");
}

#[test]
fn a_restart_goes_on_where_it_stopped() {
    let mut tried = Tried::recovered(
        vec![
            (row(hook(1), 1, Stage::Ended(ok()), Reported::Started), None),
            (
                row(hook(2), 1, Stage::Started, Reported::Ack),
                Some(Past::Running),
            ),
            (row(hook(3), 0, Stage::Taken, Reported::Nothing), None),
        ],
        " | post 1 succeeded, post 2 started, post 3 ack",
    );
    tried.expect(new(hook(2)), " | ");
    tried.expect(done(2), "ended 2 succeeded, started 3.1 | start 3.1");
}

#[test]
fn after_a_restart_what_never_ran_gets_another_attempt_and_what_ended_does_not() {
    let lost = Outcome::of(Ended::Lost {
        why: "node rebooted".into(),
    });
    let mut tried = Tried::recovered(
        vec![
            (
                row(hook(1), 1, Stage::Started, Reported::Started),
                Some(Past::Ended(lost)),
            ),
            (
                row(hook(2), 1, Stage::Started, Reported::Ack),
                Some(Past::NeverRan),
            ),
            (
                row(
                    request(3, ActionKind::Hook, -1),
                    1,
                    Stage::Started,
                    Reported::Started,
                ),
                Some(Past::NeverRan),
            ),
        ],
        "ended 1 failed | post 1 failed",
    );
    // Not before control takes this daemon for the node's own: another may have been sent the same.
    tried.expect(Input::Woken, " | ");
    tried.expect(
        Input::Admitted,
        "ended 3 timeout, started 2.2 | post 3 timeout, start 2.2, post 2 started",
    );
}

#[test]
fn a_second_ending_changes_nothing() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let _ = tried.0.handle(done(1), at(0));
    tried.expect(
        Input::Ended {
            execution: id(1),
            outcome: Outcome::of(Ended::Expired),
        },
        " | ",
    );
}

#[test]
fn a_cancel_of_what_waits_walks_the_legal_statuses_and_starts_nothing() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let _ = tried.0.handle(new(hook(2)), at(0));
    // The acknowledgement is on its way still.
    tried.expect(cancel(2), "cancel 2, ended 2 cancelled | ");
    tried.expect(told(2, Status::Ack), "reported 2 ack | post 2 started+cancelled");
    tried.expect(cancel(2), " | ");
    tried.expect(told(2, Status::Cancelled), "reported 2 terminal | forget 2");
    tried.expect(done(1), "ended 1 succeeded | ");
}

#[test]
fn a_cancel_of_what_runs_is_recorded_once_and_ends_with_the_supervisors_word() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let _ = tried.0.handle(told(1, Status::Started), at(0));
    let _ = tried.0.handle(new(hook(2)), at(0));
    tried.expect(cancel(1), "cancel 1 | stop 1");
    tried.expect(cancel(1), " | stop 1");
    tried.expect(
        stopped(1),
        "ended 1 cancelled, started 2.1 | post 1 cancelled, start 2.1",
    );
}

#[test]
fn what_ended_before_it_could_be_stopped_is_told_as_it_ended() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    let _ = tried.0.handle(cancel(1), at(0));
    tried.expect(done(1), "ended 1 succeeded | ");
    tried.expect(cancel(1), " | ");
}

#[test]
fn a_stop_is_a_cancel_only_where_one_was_asked_for() {
    let error = |asked: bool| {
        let mut tried = Tried::new();
        let _ = tried.0.handle(new(hook(1)), at(0));
        if asked {
            let _ = tried.0.handle(cancel(1), at(0));
        }
        let decision = tried.0.handle(stopped(1), at(0));
        let Some(Fact::Ended { outcome, .. }) = decision.facts.first() else {
            panic!("{decision:?}")
        };
        outcome.callback().error.unwrap()
    };
    assert_eq!(error(true), "cancelled: ended on request");
    assert_eq!(error(false), "stopped on the node");
}

#[test]
fn a_cancel_that_comes_first_keeps_its_request_from_running() {
    let mut tried = Tried::new();
    tried.expect(cancel(1), "cancel 1 | ");
    let late = Input::Requested {
        request: Box::new(hook(1)),
        recorded: None,
        cancelled: true,
        denied: None,
    };
    tried.expect(late, "taken 1, ended 1 cancelled | post 1 ack+started+cancelled");
    assert_eq!(tried.0.running(), 0);
    // One that was settled long ago is not remembered again.
    let old = Input::CancelAsked {
        execution: id(2),
        settled: true,
    };
    tried.expect(old, " | ");
}

#[test]
fn what_runs_and_is_settled_at_control_is_stopped_and_reported_to_its_end() {
    let mut tried = Tried::new();
    let _ = tried.0.handle(new(hook(1)), at(0));
    tried.expect(
        answered(1, Status::Started, Delivered::Settled),
        "reported 1 started, cancel 1 | stop 1",
    );
    tried.expect(stopped(1), "ended 1 cancelled | post 1 cancelled");
    tried.expect(
        answered(1, Status::Cancelled, Delivered::Taken),
        "reported 1 terminal | forget 1",
    );
}

#[test]
fn a_restart_goes_on_with_a_cancel() {
    let stopped = Outcome::of(Ended::Stopped { processes_killed: 0 });
    Tried::recovered(
        vec![
            (
                cancelled(row(hook(1), 1, Stage::Started, Reported::Started)),
                Some(Past::Running),
            ),
            (cancelled(row(hook(2), 0, Stage::Taken, Reported::Ack)), None),
            (
                cancelled(row(hook(3), 1, Stage::Started, Reported::Ack)),
                Some(Past::NeverRan),
            ),
            (
                cancelled(row(hook(4), 1, Stage::Started, Reported::Started)),
                Some(Past::Ended(stopped)),
            ),
        ],
        "ended 2 cancelled, ended 3 cancelled, ended 4 cancelled | \
         stop 1, post 2 started+cancelled, post 3 started+cancelled, post 4 cancelled",
    );
}

#[test]
fn what_the_nodes_policy_forbids_is_told_at_once_and_never_started() {
    let mut tried = Tried::new();
    let Input::Requested { request, .. } = new(hook(1)) else {
        panic!()
    };
    let denied = Input::Requested {
        request,
        recorded: None,
        cancelled: false,
        denied: Some("policy.deny \"*\" in /x".into()),
    };
    tried.expect(denied, "taken 1, ended 1 failed | post 1 ack+started+failed");
}
