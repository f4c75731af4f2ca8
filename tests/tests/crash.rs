//! Control and daemons are killed at random while they work: nothing is lost, and nothing runs twice.

use std::collections::{BTreeMap, BTreeSet};

use muster_tests::{
    Answer, chance,
    prelude::*,
    world::{on, on_node},
};
use tokio::time::{Instant, sleep};

const NODES: usize = 5;
const DISPATCHES: usize = 200;
const KILLS_OF_CONTROL: usize = 10;
const KILLS_OF_DAEMONS: usize = 25;

/// Appends its execution's id and takes a while, so that kills fall before, into and after it. Every fifth one writes more
/// than fits into a callback.
const HOOK: &str = "#!/bin/sh\necho \"$MUSTER_EXECUTION_ID\" >> @DIR@/ran\nsleep 0.$((MUSTER_PARAM_N % 8))\n\
                    [ $((MUSTER_PARAM_N % 5)) = 0 ] && head -c 20000 /dev/zero | tr '\\0' x\necho done\n";

fn output_of(n: u64) -> Vec<u8> {
    let mut output = if n.is_multiple_of(5) {
        vec![b'x'; 20_000]
    } else {
        vec![]
    };
    output.extend(b"done\n");
    output
}

/// A small generator whose whole state is one printable number (xorshift64, Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn from_environment() -> Self {
        let given = std::env::var("MUSTER_STORY_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        Self(given.unwrap_or_else(|| u64::from_ne_bytes(chance())) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn moment(&mut self, ms_max: u64) -> Duration {
        Duration::from_millis(self.below(ms_max))
    }
}

#[expect(clippy::print_stderr, reason = "whoever sees it fail needs the seed")]
fn say_seed(dice: &Dice) {
    eprintln!("MUSTER_STORY_SEED={}", dice.0);
}

/// Dispatches until as many as asked were answered 201, however often control is not there.
async fn dispatch_all(operator: Operator, nodes: Vec<NodeId>, mut dice: Dice) -> Vec<Execution> {
    let mut admitted = Vec::new();
    let path = operator.in_project("executions:dispatch");
    while admitted.len() < DISPATCHES {
        let n = admitted.len();
        let mut body = match n % 4 {
            0 => on("count", "fleet=crash"),
            _ => on_node("count", nodes[n % nodes.len()]),
        };
        body["parameters"] = json!({"n": n});
        let ask = operator.request(reqwest::Method::POST, &path).json(&body);
        match Answer::try_to(ask).await {
            Ok(answer) if answer.status == 201 => admitted.push(answer.json()),
            Ok(answer) => assert!(
                answer.status >= 500,
                "a dispatch is refused: {} {}",
                answer.status,
                answer.text()
            ),
            // Control is away, or was killed before it answered.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
        sleep(dice.moment(150)).await;
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_control_and_daemons_at_random_loses_nothing_and_repeats_nothing() {
    let mut dice = Dice::from_environment();
    say_seed(&dice);
    let mut world = World::new().await;
    let mut nodes = Vec::new();
    for n in 0..NODES {
        let config = "backoff_max_seconds = 1\nrunning_max = 4\nqueue_max = 1000\n";
        let node = world
            .node(&format!("n{n}"))
            .labels("fleet=crash")
            .config(config)
            .hook("count", HOOK);
        nodes.push(node.start().await);
    }
    let ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
    let dispatching = tokio::spawn(dispatch_all(
        world.operator.clone(),
        ids,
        Dice(dice.below(u64::MAX) | 1),
    ));

    let mut of_control = KILLS_OF_CONTROL;
    let mut of_daemons = KILLS_OF_DAEMONS;
    while of_control + of_daemons > 0 {
        sleep(dice.moment(700)).await;
        let left = (of_control + of_daemons) as u64;
        if dice.below(left) < of_control as u64 {
            of_control -= 1;
            world.kill9();
            sleep(dice.moment(300)).await;
            world.start().await;
        } else {
            of_daemons -= 1;
            let node = &mut nodes[dice.below(NODES as u64) as usize];
            node.kill9();
            sleep(dice.moment(300)).await;
            node.launch();
        }
    }
    let admitted = dispatching.await.expect("dispatching goes through");
    // A last round in which everything is down at once.
    world.kill9();
    for node in &mut nodes {
        node.kill9();
    }
    world.start().await;
    for node in &mut nodes {
        node.launch();
    }

    let all = all_settled(&world).await;
    for execution in &admitted {
        assert!(
            all.contains_key(&execution.id),
            "{} was answered 201 and is missing",
            execution.id
        );
    }
    for node in &nodes {
        check_runs(node, &all);
    }
}

/// Every execution there is, once each has settled.
async fn all_settled(world: &World) -> BTreeMap<ExecutionId, Execution> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let all = executions(world).await;
        let open: Vec<ExecutionId> = all
            .iter()
            .filter(|e| !e.status.is_terminal())
            .map(|e| e.id)
            .collect();
        if open.is_empty() {
            let mut whole = BTreeMap::new();
            for execution in all {
                whole.insert(execution.id, world.operator.execution(execution.id).await);
            }
            return whole;
        }
        if Instant::now() >= deadline {
            let stuck = world.operator.execution(open[0]).await;
            panic!("{} executions do not settle, such as {stuck:#?}", open.len());
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn executions(world: &World) -> Vec<Execution> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = world
            .operator
            .in_project(&format!("executions?limit=200{cursor}"));
        let page: Page<Execution> = world.operator.get(&path).await.expect(200).json();
        all.extend(page.items);
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={}", muster_tests::operator::encoded(&next)),
            None => return all,
        }
    }
}

/// Exactly one run per execution that addressed the node, and none that nobody asked for.
fn check_runs(node: &Node, all: &BTreeMap<ExecutionId, Execution>) {
    let runs = node.trace_lines("ran");
    let distinct: BTreeSet<&String> = runs.iter().collect();
    let twice: Vec<&&String> = distinct
        .iter()
        .filter(|id| runs.iter().filter(|run| *run == **id).count() > 1)
        .collect();
    assert!(twice.is_empty(), "{} ran something twice: {twice:?}", node.name);
    let mut asked = BTreeSet::new();
    for execution in all.values() {
        let Some(target) = execution.targets.iter().find(|t| t.node_id == node.id) else {
            continue;
        };
        let _ = asked.insert(execution.id.to_string());
        assert!(target.status.is_terminal(), "{target:?}");
        let ran = distinct.contains(&execution.id.to_string());
        match target.status {
            Status::Succeeded => {
                assert!(
                    ran,
                    "{} says it succeeded on {} and never ran",
                    execution.id, node.name
                );
                assert_eq!(target.exit_code, Some(0), "{target:?}");
                let n = execution.parameters.as_ref().and_then(|p| p["n"].as_u64());
                let expected = output_of(n.expect("each dispatch has a number"));
                let kept = match target.output_ref.as_ref().expect("each run writes something") {
                    OutputRef::Inline { inline_bytes } => Digest::of(&inline_bytes.0),
                    OutputRef::ObjectStore { sha256, .. } => *sha256,
                };
                assert_eq!(kept, Digest::of(&expected), "{target:?}");
            }
            // No supervisor was killed, so there is always somebody left who knows how the hook ended.
            Status::Failed
            | Status::Pending
            | Status::Ack
            | Status::Started
            | Status::Cancelled
            | Status::Timeout => panic!("it did not succeed: {target:?}\n{}", node.log()),
        }
    }
    for run in &runs {
        assert!(
            asked.contains(run),
            "{} ran {run}, which nobody there was asked to",
            node.name
        );
    }
}
