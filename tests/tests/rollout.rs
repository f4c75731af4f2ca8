//! A dispatch that goes out in steps: who gets it when, what stops it, and what a node that is away costs.

use muster_shared::time::Timestamp;
use muster_tests::{
    database::Row,
    prelude::*,
    sse::Frames,
    world::{on, on_node, target},
};
use reqwest::Method;

/// A node whose story says each word, and its stream.
struct Hand {
    node: BareNode,
    frames: Frames,
}

impl Hand {
    async fn next(&mut self) -> ActionRequest {
        self.node.next_request(&mut self.frames).await.into_inner()
    }

    async fn report(&self, request: &ActionRequest, statuses: &[Status]) {
        for status in statuses {
            let _ = self
                .node
                .report(request, &Callback::of(*status))
                .await
                .expect(200);
        }
    }

    /// Takes the next request, which must be of this execution, and ends it so.
    async fn end_next(&mut self, id: ExecutionId, end: Status) {
        let request = self.next().await;
        assert_eq!(request.execution_id, id);
        self.report(&request, &[Status::Ack, Status::Started, end]).await;
    }

    /// Nothing came before what is sent now.
    async fn got_nothing(&mut self, world: &World) {
        let marker = world.dispatch(on_node("ping", self.node.id)).await;
        self.end_next(marker.id, Status::Succeeded).await;
    }
}

/// Nodes of the selector `fleet=f`, in the order of their names.
async fn fleet(world: &World, size: usize) -> Vec<Hand> {
    assert!(size < 10, "bare-10 is before bare-2");
    let mut fleet = Vec::new();
    for _ in 0..size {
        let node = BareNode::enroll(world, "fleet=f").await;
        node.declare(&[]).await;
        let frames = node.stream().await;
        fleet.push(Hand { node, frames });
    }
    fleet
}

fn rolled(rollout: Value) -> Value {
    let mut body = on("ping", "fleet=f");
    body["rollout"] = rollout;
    body
}

fn rollout(execution: &Execution) -> &Rollout {
    execution.rollout.as_ref().expect("it rolls out")
}

fn statuses(execution: &Execution, fleet: &[Hand]) -> Vec<Status> {
    let status = |hand: &Hand| target(execution, hand.node.id).status;
    fleet.iter().map(status).collect()
}

fn released_at(execution: &Execution, node: NodeId) -> Timestamp {
    target(execution, node).released_at.expect("it was released")
}

fn ended_at(execution: &Execution, node: NodeId) -> Timestamp {
    target(execution, node).ended_at.expect("it has ended")
}

async fn say(world: &World, id: ExecutionId, word: &str) -> muster_tests::Answer {
    let path = world.operator.in_project(&format!("executions/{id}/{word}"));
    muster_tests::Answer::to(world.operator.request(Method::POST, &path)).await
}

async fn until_held(world: &World, id: ExecutionId, held: u64) -> Execution {
    until(&format!("{held} are held"), async || {
        let execution = world.operator.execution(id).await;
        (rollout(&execution).held == held).then_some(execution)
    })
    .await
}

/// Subject and detail of each audit row of a relation.
fn audited(world: &World, relation: &str) -> Vec<(String, String)> {
    let sql = format!("SELECT subject, detail FROM audit WHERE relation = '{relation}' ORDER BY seq");
    let pair = |mut row: Row| Some((row.swap_remove(0)?, row.pop()??));
    let rows = world.database().rows(&sql);
    rows.into_iter()
        .map(|row| pair(row).expect("such a row has a detail"))
        .collect()
}

// ---- what stops it

#[tokio::test(flavor = "multi_thread")]
async fn one_at_a_time_stops_at_the_first_failure_and_the_rest_never_hears_of_it() {
    let world = World::new().await;
    let mut fleet = fleet(&world, 5).await;
    let sent = world
        .dispatch(rolled(json!({"max_concurrency": 1, "max_failures": 0})))
        .await;
    assert_eq!((rollout(&sent).held, rollout(&sent).in_flight), (4, 1));
    let held: Vec<bool> = fleet
        .iter()
        .map(|hand| target(&sent, hand.node.id).held)
        .collect();
    assert_eq!(held, [false, true, true, true, true]);
    fleet[0].end_next(sent.id, Status::Succeeded).await;
    fleet[1].end_next(sent.id, Status::Succeeded).await;
    fleet[2].end_next(sent.id, Status::Failed).await;
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Failed);
    use Status::{Cancelled, Failed, Succeeded};
    assert_eq!(
        statuses(&settled, &fleet),
        [Succeeded, Succeeded, Failed, Cancelled, Cancelled]
    );
    let why = "rollout stopped: 1 failure, max_failures is 0";
    for hand in &fleet[3..] {
        let target = target(&settled, hand.node.id);
        assert_eq!(target.error.as_deref(), Some(why));
        assert!(!target.held && target.released_at.is_none(), "{target:?}");
    }
    let stopped = rollout(&settled);
    assert_eq!(stopped.state, RolloutState::Stopped);
    assert_eq!(stopped.reason.as_deref(), Some(why));
    assert_eq!((stopped.held, stopped.in_flight, stopped.failed), (0, 0, 1));
    let row = ("system".to_owned(), format!("{why}; 2 cancelled"));
    assert_eq!(audited(&world, "actions.rollout_stop"), [row]);
    for pair in fleet[..3].windows(2) {
        assert!(
            released_at(&settled, pair[1].node.id) >= ended_at(&settled, pair[0].node.id),
            "{settled:#?}"
        );
    }
    for hand in &mut fleet[3..] {
        // Neither now nor on its next connect.
        hand.got_nothing(&world).await;
        hand.frames = hand.node.stream().await;
        hand.got_nothing(&world).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_beyond_the_failing_node_never_run_and_muster_says_why() {
    let world = World::new().await;
    let mut nodes = Vec::new();
    for n in 0..4 {
        let script = format!("#!/bin/sh\necho ran >> @DIR@/ran\nexit {}\n", u8::from(n == 1));
        let node = world
            .node(&format!("n{n}"))
            .labels("fleet=f")
            .hook("upgrade", &script);
        nodes.push(node.start().await);
    }
    let said = world
        .operator
        .muster(&[
            "run",
            "upgrade",
            "-l",
            "fleet=f",
            "--waves",
            "1,50%,100%",
            "--max-concurrency",
            "1",
            "--deliver-within",
            "1m",
            "--wait",
        ])
        .await
        .expect(3);
    let ran: Vec<usize> = nodes.iter().map(|node| node.trace_lines("ran").len()).collect();
    assert_eq!(ran, [1, 1, 0, 0]);
    for words in [
        "3 waves by name: up to 1 (+1), 50% = up to 2 (+1), 100% = up to 4 (+2), at most 1 at a time",
        "rollout rolling: wave 1 of 3",
        "rollout stopped: wave 2 of 3",
        "rollout stopped: 1 failure, max_failures is 0",
    ] {
        assert!(said.stderr.contains(words), "{words}\n{}", said.stderr);
    }
    let executions = world.operator.executions().await;
    let [execution] = &executions[..] else {
        panic!("{executions:#?}")
    };
    assert_eq!(rollout(execution).state, RolloutState::Stopped);
    let shown = world
        .operator
        .muster(&["execution", "show", &execution.id.to_string()])
        .await
        .expect(0);
    assert!(
        shown.stdout.contains("rollout stopped: 1 failure"),
        "{}",
        shown.stdout
    );
    assert!(shown.stdout.contains("Deliver within:"), "{}", shown.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_failures_as_are_allowed_do_not_stop_it() {
    let world = World::new().await;
    let mut fleet = fleet(&world, 4).await;
    let sent = world
        .dispatch(rolled(
            json!({"waves": ["25%"], "max_concurrency": "50%", "max_failures": "50%"}),
        ))
        .await;
    let plan = &rollout(&sent).plan;
    assert_eq!((plan.max_concurrency, plan.max_failures), (Some(2), 2));
    fleet[0].end_next(sent.id, Status::Failed).await;
    fleet[1].end_next(sent.id, Status::Failed).await;
    fleet[2].end_next(sent.id, Status::Succeeded).await;
    fleet[3].end_next(sent.id, Status::Succeeded).await;
    let settled = world.settled(sent.id).await;
    assert_eq!(rollout(&settled).state, RolloutState::Done);
    assert_eq!((rollout(&settled).failed, rollout(&settled).wave), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_takes_too_long_gives_back_what_it_held_paused_or_not() {
    let world = World::with_config(Some("[limits]\nrollout_seconds_max = 8\n")).await;
    let mut fleet = fleet(&world, 2).await;
    let sent = world.dispatch(rolled(json!({"max_concurrency": 1}))).await;
    let request = fleet[0].next().await;
    let paused: Execution = say(&world, sent.id, "pause").await.expect(200).json();
    assert_eq!(rollout(&paused).state, RolloutState::Paused);
    let stopped = until_held(&world, sent.id, 0).await;
    let given_back = target(&stopped, fleet[1].node.id);
    assert_eq!(given_back.status, Status::Cancelled);
    let why = given_back.error.as_deref().unwrap_or_default();
    assert!(why.contains("limits.rollout_seconds_max"), "{why}");
    assert_eq!(rollout(&stopped).reason.as_deref(), Some(why));
    assert!(!stopped.status.is_terminal(), "what was released goes on");
    fleet[0]
        .report(&request, &[Status::Ack, Status::Started, Status::Succeeded])
        .await;
    assert_eq!(world.settled(sent.id).await.status, Status::Cancelled);
}

// ---- the order

#[tokio::test(flavor = "multi_thread")]
async fn a_wave_opens_when_everything_before_it_has_ended() {
    let world = World::new().await;
    let mut fleet = fleet(&world, 6).await;
    let sent = world.dispatch(rolled(json!({"waves": [1, "50%"]}))).await;
    let reach: Vec<_> = rollout(&sent)
        .plan
        .waves
        .iter()
        .map(|w| (w.up_to, w.targets))
        .collect();
    assert_eq!(reach, [(1, 1), (3, 2), (6, 3)]);
    assert_eq!((rollout(&sent).wave, rollout(&sent).held), (1, 5));
    fleet[0].end_next(sent.id, Status::Succeeded).await;
    let second = until_held(&world, sent.id, 3).await;
    assert_eq!((rollout(&second).wave, rollout(&second).in_flight), (2, 2));
    fleet[2].end_next(sent.id, Status::Succeeded).await;
    fleet[3].got_nothing(&world).await;
    fleet[1].end_next(sent.id, Status::Succeeded).await;
    for hand in &mut fleet[3..] {
        hand.end_next(sent.id, Status::Succeeded).await;
    }
    let settled = world.settled(sent.id).await;
    assert_eq!(
        (settled.status, rollout(&settled).state),
        (Status::Succeeded, RolloutState::Done)
    );
    for (wave, before) in [(1..3, 0..1), (3..6, 0..3)] {
        let opened = fleet[wave]
            .iter()
            .map(|hand| released_at(&settled, hand.node.id))
            .min();
        let over = fleet[before]
            .iter()
            .map(|hand| ended_at(&settled, hand.node.id))
            .max();
        assert!(opened >= over, "{settled:#?}");
    }
    let last = settled
        .targets
        .iter()
        .filter_map(|target| target.expires_at)
        .max();
    assert_eq!(Some(settled.expires_at), last);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_run_at_a_time_than_were_asked_for() {
    let world = World::new().await;
    let shared = world.dir().join("log");
    // The first waits for a second beside it, and no longer than half a minute.
    let script = format!(
        "#!/bin/sh\necho + >> {log}\nn=0\n\
         until [ \"$(grep -c + {log})\" -ge 2 ] || [ $n -ge 600 ]; do sleep 0.05; n=$((n+1)); done\necho - >> {log}\n",
        log = shared.display()
    );
    let mut nodes = Vec::new();
    for n in 0..6 {
        let node = world
            .node(&format!("n{n}"))
            .labels("fleet=f")
            .hook("work", &script);
        nodes.push(node.start().await);
    }
    let mut body = on("work", "fleet=f");
    body["rollout"] = json!({"max_concurrency": 2});
    let settled = world.run(body).await;
    assert_eq!(settled.status, Status::Succeeded, "{settled:#?}");
    let (mut running, mut most) = (0, 0);
    let log = std::fs::read_to_string(&shared).expect("hooks ran");
    for line in log.lines() {
        running += if line == "+" { 1 } else { -1 };
        most = most.max(running);
    }
    assert_eq!((log.lines().count(), most), (12, 2), "{log}");
    for one in &settled.targets {
        let at = one.released_at;
        let out = settled
            .targets
            .iter()
            .filter(|t| t.released_at <= at && t.ended_at > at);
        assert!(out.count() <= 2, "{settled:#?}");
    }
}

// ---- a node that is away

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_costs_its_time_for_delivery_and_no_more() {
    let world = World::new().await;
    let mut fleet = fleet(&world, 3).await;
    let away = fleet.remove(0).node;
    let mut body = rolled(json!({"max_concurrency": 1, "max_failures": 1}));
    body["deliver_within_seconds"] = json!(6);
    body["timeout_seconds"] = json!(3600);
    let sent = world.dispatch(body).await;
    for hand in &mut fleet {
        hand.end_next(sent.id, Status::Succeeded).await;
    }
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Timeout);
    assert_eq!(rollout(&settled).state, RolloutState::Done);
    assert_eq!(rollout(&settled).failed, 1, "unreachable counts");
    let missed = target(&settled, away.id);
    assert_eq!(missed.status, Status::Timeout);
    assert_eq!(
        missed.error.as_deref(),
        Some("timeout: the action was not delivered in time (deliver_within_seconds is 6)")
    );
    assert!(released_at(&settled, fleet[0].node.id) >= ended_at(&settled, away.id));
    // When it comes back it does not run it any more.
    let frames = away.stream().await;
    Hand { node: away, frames }.got_nothing(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_it_in_time_has_the_whole_time_to_run() {
    let world = World::with_config(Some("[limits]\nreport_grace_seconds = 1\n")).await;
    let mut fleet = fleet(&world, 1).await;
    let mut body = on("ping", "fleet=f");
    body["deliver_within_seconds"] = json!(4);
    body["timeout_seconds"] = json!(600);
    let sent = world.dispatch(body).await;
    let request = fleet[0].next().await;
    let seconds = |n| Duration::from_secs(n);
    let deliver_by = sent.created_at.plus(seconds(4));
    let run_until = deliver_by.plus(seconds(600));
    assert_eq!((request.expires_at, request.deadline()), (deliver_by, run_until));
    let own = target(&sent, fleet[0].node.id);
    assert_eq!(
        (own.deliver_by, own.expires_at),
        (Some(deliver_by), Some(run_until))
    );
    assert_eq!(
        (sent.deliver_within_seconds, sent.expires_at),
        (Some(4), run_until)
    );
    fleet[0].report(&request, &[Status::Ack]).await;
    // Another one that nobody takes is released after it, so that its end comes after the first one's time for delivery.
    let mut late = on_node("ping", fleet[0].node.id);
    late["deliver_within_seconds"] = json!(4);
    let late = world.dispatch(late).await;
    assert_eq!(world.settled(late.id).await.status, Status::Timeout);
    assert_eq!(world.operator.execution(sent.id).await.status, Status::Ack);
    fleet[0]
        .report(&request, &[Status::Started, Status::Succeeded])
        .await;
    assert_eq!(world.settled(sent.id).await.status, Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_dispatch_has_one_deadline_for_both() {
    let world = World::new().await;
    let mut fleet = fleet(&world, 1).await;
    let mut body = on("ping", "fleet=f");
    body["timeout_seconds"] = json!(77);
    let sent = world.dispatch(body).await;
    let deadline = sent.created_at.plus(Duration::from_secs(77));
    assert_eq!(sent.expires_at, deadline);
    let request = fleet[0].next().await;
    assert_eq!((request.expires_at, request.run_until), (deadline, None));
    fleet[0]
        .report(&request, &[Status::Ack, Status::Started, Status::Succeeded])
        .await;
    let settled = world.settled(sent.id).await;
    let own = &settled.targets[0];
    assert!(settled.rollout.is_none() && !own.held);
    assert_eq!(
        (own.released_at, own.deliver_by, own.expires_at),
        (None, None, None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_lets_run_what_it_took_in_time_and_takes_nothing_later() {
    let control = FakeControl::new().await;
    let digest_of = |node: &Musterd| node.hook_digest("slow");
    let node = control
        .start_node(|node| {
            let script = "#!/bin/sh\nwhile [ \"$(date +%s)\" -le \"$MUSTER_PARAM_UNTIL\" ]; do sleep 0.1; done\necho over\n";
            node.install_hook("slow", script);
        })
        .await;
    let ask = control.hook_request("slow", digest_of(&node));
    let expires_at = ask.occurred_at.plus(Duration::from_secs(5));
    let mut parameters = Parameters::new();
    parameters.insert("until".into(), (expires_at.as_millis() / 1000).into());
    let ask = ActionRequest {
        timeout_seconds: 60,
        expires_at,
        run_until: Some(expires_at.plus(Duration::from_secs(60))),
        parameters: Some(parameters),
        ..ask
    };
    let missed = ActionRequest {
        // Past by more than a node can misjudge control's clock on a busy machine.
        expires_at: ask.occurred_at.minus(Duration::from_secs(30)),
        run_until: ask.run_until,
        ..control.hook_request("slow", digest_of(&node))
    };
    control.push(&missed);
    control.push(&ask);
    let outcome = control.outcome(ask.execution_id).await;
    assert_eq!(outcome.status, Status::Succeeded, "{outcome:?}");
    assert!(control.callbacks(missed.execution_id).is_empty());
}

// ---- what an operator says to it

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_also_over_a_restart_and_a_resume_goes_on() {
    let mut world = World::new().await;
    let mut fleet = fleet(&world, 3).await;
    let sent = world.dispatch(rolled(json!({"max_concurrency": 1}))).await;
    let id = sent.id.to_string();
    let said = world
        .operator
        .muster(&["execution", "pause", &id])
        .await
        .expect(0);
    assert!(
        said.stderr
            .contains("rollout paused: wave 1 of 1, 1 in flight, 2 held"),
        "{}",
        said.stderr
    );
    assert!(said.stdout.contains("pending (held)"), "{}", said.stdout);
    let paused = world.operator.execution(sent.id).await;
    let since = rollout(&paused).paused_at;
    assert!(
        since.is_some() && rollout(&paused).paused_by.is_some(),
        "{paused:#?}"
    );
    let again: Execution = say(&world, sent.id, "pause").await.expect(200).json();
    assert_eq!(rollout(&again).paused_at, since);

    fleet[0].end_next(sent.id, Status::Succeeded).await;
    fleet[1].got_nothing(&world).await;
    world.kill9();
    world.start().await;
    for hand in &mut fleet {
        hand.frames = hand.node.stream().await;
    }
    fleet[1].got_nothing(&world).await;
    let still = world.operator.execution(sent.id).await;
    assert_eq!(
        (rollout(&still).state, rollout(&still).held),
        (RolloutState::Paused, 2)
    );

    let before = Timestamp::now();
    let resumed: Execution = say(&world, sent.id, "resume").await.expect(200).json();
    assert_eq!(
        (rollout(&resumed).state, rollout(&resumed).held),
        (RolloutState::Rolling, 1)
    );
    assert_eq!(rollout(&resumed).paused_at, None);
    let _ = say(&world, sent.id, "resume").await.expect(200);
    fleet[1].end_next(sent.id, Status::Succeeded).await;
    fleet[2].end_next(sent.id, Status::Succeeded).await;
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Succeeded);
    assert!(released_at(&settled, fleet[1].node.id) >= before);
    for relation in ["actions.pause", "actions.resume"] {
        let rows = audited(&world, relation);
        assert_eq!(rows.len(), 1, "{relation}: {rows:?}");
        assert!(rows[0].0.starts_with("token:"), "{rows:?}");
    }
    for word in ["pause", "resume"] {
        let _ = say(&world, sent.id, word).await.refused(409, "nothing_held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_rollout_that_holds_something_can_be_paused_by_those_who_may() {
    let world = World::new().await;
    let mut fleet = fleet(&world, 2).await;
    let plain = world.dispatch(on_node("ping", fleet[0].node.id)).await;
    let _ = say(&world, plain.id, "pause").await.refused(409, "no_rollout");
    let _ = say(&world, plain.id, "resume").await.refused(409, "no_rollout");
    fleet[0].end_next(plain.id, Status::Succeeded).await;
    let nothing = ExecutionId::mint(Timestamp::now(), muster_tests::chance());
    let _ = say(&world, nothing, "pause")
        .await
        .refused(404, "execution_not_found");
    let sent = world.dispatch(rolled(json!({"waves": [1]}))).await;
    let path = world
        .operator
        .in_project(&format!("executions/{}/pause", sent.id));
    let _ = world
        .operator
        .post(&path, &json!({"until": 1}))
        .await
        .refused(400, "invalid_body");
    // Somebody who may act in the project, and not on the node that is held.
    let other = world.another_operator();
    let db = world.database();
    world.alter(&format!(
        "INSERT INTO relation_tuple (id, domain_id, project_id, subject, relation, resource, created_at)
         SELECT {}, domain_id, project_id, subject, 'excluded', 'resource:{}', created_at FROM relation_tuple
         WHERE subject = 'token:{}'",
        db.some_id(),
        fleet[1].node.id,
        db.value("SELECT id FROM operator_token WHERE name = 'another'"),
    ));
    let _ = other
        .post(&path, &json!({}))
        .await
        .refused(403, "permission_denied");
    let _ = world.operator.post(&path, &json!({})).await.expect(200);
    let _ = world.operator.cancel(sent.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_takes_back_what_is_held_at_once() {
    let world = World::new().await;
    let mut fleet = fleet(&world, 4).await;
    let sent = world.dispatch(rolled(json!({"waves": [1, 2]}))).await;
    let request = fleet[0].next().await;
    fleet[0].report(&request, &[Status::Ack, Status::Started]).await;

    // The whole second wave, which the third then does not wait for.
    let one: CancelResponse = world
        .operator
        .try_cancel(sent.id, Some(fleet[1].node.id))
        .await
        .expect(200)
        .json();
    assert_eq!(one.outcomes[0].outcome, CancelEffect::Cancelled);
    assert_eq!(
        (rollout(&one.execution).held, rollout(&one.execution).state),
        (2, RolloutState::Rolling)
    );

    let all = world.operator.cancel(sent.id).await;
    let outcome = |node: NodeId| all.outcomes.iter().find(|o| o.node_id == node).map(|o| o.outcome);
    assert_eq!(outcome(fleet[0].node.id), Some(CancelEffect::Asked));
    assert_eq!(outcome(fleet[2].node.id), Some(CancelEffect::Cancelled));
    assert_eq!(outcome(fleet[3].node.id), Some(CancelEffect::Cancelled));
    assert_eq!(
        (rollout(&all.execution).held, rollout(&all.execution).state),
        (0, RolloutState::Stopped)
    );
    fleet[0].report(&request, &[Status::Cancelled]).await;
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Cancelled);
    for hand in &mut fleet[1..] {
        hand.got_nothing(&world).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cannot_speak_of_what_is_held() {
    let world = World::new().await;
    let fleet = fleet(&world, 2).await;
    world.alter("UPDATE domain SET callback_token_required = false");
    let sent = world.dispatch(rolled(json!({"max_concurrency": 1}))).await;
    let early = &fleet[1].node;
    let ask = early
        .request(Method::POST, &early.callback_path(sent.id))
        .json(&Callback::of(Status::Ack));
    let _ = muster_tests::Answer::to(ask)
        .await
        .refused(404, "execution_not_found");
    let held = world.operator.execution(sent.id).await;
    assert_eq!((rollout(&held).held, rollout(&held).in_flight), (1, 1));
    let _ = world.operator.cancel(sent.id).await;
}

// ---- crashes

#[tokio::test(flavor = "multi_thread")]
async fn a_control_that_is_killed_goes_on_and_every_node_runs_it_once() {
    let mut world = World::new().await;
    let mut nodes = Vec::new();
    for n in 0..5 {
        let node = world
            .node(&format!("n{n}"))
            .labels("fleet=f")
            .config("backoff_max_seconds = 1\n")
            .hook("count", "#!/bin/sh\necho ran >> @DIR@/ran\nsleep 0.2\n");
        nodes.push(node.start().await);
    }
    let mut body = on("count", "fleet=f");
    body["rollout"] = json!({"waves": [1, 3], "max_concurrency": 1});
    let sent = world.dispatch(body).await;
    for n in 1..=4 {
        until(&format!("{n} nodes have run it"), async || {
            let ran = nodes
                .iter()
                .map(|node| node.trace_lines("ran").len())
                .sum::<usize>();
            (ran >= n).then_some(())
        })
        .await;
        world.kill9();
        world.start().await;
    }
    let settled = world.settled(sent.id).await;
    assert_eq!(settled.status, Status::Succeeded, "{settled:#?}");
    assert_eq!(rollout(&settled).state, RolloutState::Done);
    for node in &nodes {
        assert_eq!(node.trace_lines("ran"), ["ran"], "{}", node.name);
    }
}

// ---- before it is made

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_what_the_waves_come_to_and_writes_nothing() {
    let world = World::new().await;
    let fleet = fleet(&world, 5).await;
    let before = world.rows();
    let mut body = rolled(json!({"waves": ["20%", "50%"], "max_failures": "40%"}));
    body["deliver_within_seconds"] = json!(600);
    let path = world.operator.in_project("executions:preview");
    let preview: DispatchPreview = world.operator.post(&path, &body).await.expect(200).json();
    let plan = preview.rollout.expect("it would roll out");
    let waves: Vec<_> = plan
        .waves
        .iter()
        .map(|w| (w.asked.as_str(), w.up_to, w.targets))
        .collect();
    assert_eq!(waves, [("20%", 1, 1), ("50%", 3, 2), ("100%", 5, 2)]);
    assert_eq!((plan.max_concurrency, plan.max_failures), (None, 2));
    assert_eq!(preview.deliver_within_seconds, Some(600));
    let order: Vec<NodeId> = preview.targets.iter().map(|target| target.node_id).collect();
    assert_eq!(order, fleet.iter().map(|hand| hand.node.id).collect::<Vec<_>>());

    let said = world
        .operator
        .muster(&[
            "run",
            "ping",
            "-l",
            "fleet=f",
            "--waves",
            "20%,50%",
            "--deliver-within",
            "10m",
            "--dry-run",
        ])
        .await
        .expect(0);
    assert!(said.stderr.contains("50% = up to 3 (+2)"), "{}", said.stderr);
    assert!(said.stderr.contains("600 s to take it"), "{}", said.stderr);
    let waves: Vec<_> = said
        .stdout
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(waves, ["1", "2", "2", "3", "3"].map(Some));
    assert_eq!(world.rows(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let _fleet = fleet(&world, 4).await;
    let before = world.rows();
    for (rollout, words) in [
        (json!({}), "give it waves or max_concurrency"),
        (json!({"max_failures": 1}), "give it waves or max_concurrency"),
        (json!({"waves": ["0"]}), "rollout.waves[0]"),
        (json!({"waves": [-1]}), "rollout.waves[0]"),
        (json!({"waves": ["ten"]}), "\"ten\""),
        (json!({"waves": ["1", "1"]}), "leave one out"),
        (json!({"waves": ["1", "10%"]}), "leave one out"),
        (json!({"waves": [5]}), "\"100%\""),
        (json!({"waves": ["101%"]}), "\"100%\""),
        (json!({"waves": (1..40).collect::<Vec<u32>>()}), "the limit is 32"),
        (json!({"max_concurrency": 0}), "rollout.max_concurrency"),
        (
            json!({"waves": [1], "max_failures": "-1"}),
            "rollout.max_failures",
        ),
    ] {
        let problem = world
            .operator
            .try_dispatch(&rolled(rollout.clone()))
            .await
            .refused(400, "invalid_rollout");
        assert!(problem.detail.contains(words), "{rollout}: {}", problem.detail);
    }
    for rollout in [
        json!({"wave": [1]}),
        json!({"waves": "1"}),
        json!({"waves": [1.5]}),
        json!({"max_concurrency": {}}),
        json!(5),
    ] {
        let _ = world
            .operator
            .try_dispatch(&rolled(rollout))
            .await
            .refused(400, "invalid_body");
    }
    for seconds in [json!(0), json!(-1), json!(86_401)] {
        let mut body = on("ping", "fleet=f");
        body["deliver_within_seconds"] = seconds;
        let problem = world
            .operator
            .try_dispatch(&body)
            .await
            .refused(400, "invalid_deliver_within");
        assert!(problem.detail.contains("from 1 to 86400"), "{}", problem.detail);
    }
    assert_eq!(world.rows(), before);
    for args in [&["--max-failures", "1"][..], &["--waves", ""]] {
        let line = [&["run", "ping", "-l", "fleet=f"], args].concat();
        let _ = world.operator.muster(&line).await.expect(2);
    }
}
