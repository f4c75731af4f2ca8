//! Real agents: one, for how long a dispatch takes; thirty, for what the peer is asked as well; and one that idles.

use std::time::{Duration, Instant};

use muster_shared::{ids::ExecutionId, status::Status, wire::Execution};
use serde_json::json;

use super::{Plan, machine, peer::Peer, percentile, summary::Section, swarms::say};
use crate::{Node, Operator, World, sse::Frames, wait::PATIENCE, world::on_node};

/// What the peer runs as well.
const SCRIPT: &str = "#!/bin/sh\necho hello\n";

pub struct Real {
    pub single: Section,
    pub real30: Section,
    pub agent: Section,
}

/// # Errors
/// With what went wrong, in words.
pub async fn run(plan: &Plan, peer: &Peer) -> Result<Real, String> {
    let mut world = World::new().await;
    let count = if plan.is_tiny() { 2 } else { 30 };
    let mut nodes = vec![agent(plan, &world, 0).await];
    let mut real = Real {
        single: Section::default(),
        real30: Section::default(),
        agent: Section::default(),
    };
    // One alone: others would share its memory, and take its caches.
    idle(plan, &mut nodes[0], &mut real.agent).await;
    start(&mut nodes[0], &mut real.agent).await;
    single(plan, &world, &nodes[0], &mut real.single).await?;
    for number in 1..count {
        nodes.push(agent(plan, &world, number).await);
    }
    say(&format!("{count} real agents are up"));
    many(plan, &mut world, &mut nodes, peer, &mut real.real30).await?;
    Ok(real)
}

async fn agent(plan: &Plan, world: &World, number: usize) -> Node {
    let node = plan.node(world, &format!("real-{number}"));
    node.labels("fleet=real").hook("hello", SCRIPT).start().await
}

/// Waits for the `settled` event of an execution, as `muster run` does.
async fn settled(operator: &Operator, id: ExecutionId) -> Result<Execution, String> {
    let path = operator.in_project(&format!("executions/{id}/events"));
    let response = operator
        .request(reqwest::Method::GET, &path)
        .send()
        .await
        .map_err(|err| err.to_string())?;
    let mut frames = Frames::of(response);
    while let Some(frame) = frames.next().await {
        if frame.event == "settled" {
            return serde_json::from_str(&frame.data).map_err(|err| err.to_string());
        }
    }
    Err("the timeline ended before the execution".to_owned())
}

/// One dispatch to its end; answers with how long that took.
async fn timed(operator: &Operator, body: &serde_json::Value, targets: usize) -> Result<Duration, String> {
    let begun = Instant::now();
    let execution = operator.dispatch(body).await;
    let end = settled(operator, execution.id).await?;
    let took = begun.elapsed();
    if end.status != Status::Succeeded || end.target_counts.values().sum::<u64>() != targets as u64 {
        return Err(format!("it did not succeed: {:?}", end.target_counts));
    }
    Ok(took)
}

/// One dispatch after another to one node: of a builtin, and of a hook that says a word.
async fn single(plan: &Plan, world: &World, node: &Node, section: &mut Section) -> Result<(), String> {
    let (runs, pings, hooks) = match (plan.is_tiny(), plan.quick) {
        (true, _) => (1, 10, 3),
        (false, true) => (3, 100, 30),
        (false, false) => (5, 300, 60),
    };
    let (p50, p99) = waits(world, &on_node("ping", node.id), (runs, pings)).await?;
    section.measured("p50_ms", &p50).measured("p99_ms", &p99);
    let (p50, p99) = waits(world, &on_node("hello", node.id), (runs, hooks)).await?;
    section
        .measured("hook_p50_ms", &p50)
        .measured("hook_p99_ms", &p99)
        .note("dispatches_each_run", pings)
        .note("hooks_each_run", hooks);
    Ok(())
}

/// The median and the slowest percent of each run.
async fn waits(
    world: &World,
    body: &serde_json::Value,
    (runs, each): (u32, u32),
) -> Result<(Vec<f64>, Vec<f64>), String> {
    for _ in 0..each.min(20) {
        let _ = timed(&world.operator, body, 1).await?;
    }
    let (mut p50, mut p99) = (vec![], vec![]);
    for _ in 0..runs {
        let mut waits = Vec::new();
        for _ in 0..each {
            waits.push(timed(&world.operator, body, 1).await?.as_secs_f64() * 1000.0);
        }
        p50.extend(percentile(&waits, 0.5));
        p99.extend(percentile(&waits, 0.99));
    }
    Ok((p50, p99))
}

async fn idle(plan: &Plan, node: &mut Node, agent: &mut Section) {
    let window = Duration::from_secs(match (plan.is_tiny(), plan.quick) {
        (true, _) => 2,
        (false, true) => 15,
        (false, false) => 60,
    });
    let pid = node.daemon().pid();
    let mut percent = Vec::new();
    for _ in 0..if plan.quick { 1 } else { 3 } {
        let (cpu, begun) = (machine::cpu_s(pid), Instant::now());
        tokio::time::sleep(window).await;
        percent.push((machine::cpu_s(pid) - cpu) * 100.0 / begun.elapsed().as_secs_f64());
    }
    let pss: Vec<f64> = machine::pss_kib(pid)
        .into_iter()
        .map(|kib| kib / 1024.0)
        .collect();
    agent
        .measured("idle_cpu_percent", &percent)
        .measured("pss_mib", &pss)
        .note("window_s", window.as_secs());
}

/// From the start of the program until it has its event stream.
async fn start(node: &mut Node, agent: &mut Section) {
    const STARTS: usize = 5;
    let opened = |node: &Node| node.log().matches("The event stream is open").count();
    let mut took = Vec::new();
    for _ in 0..STARTS {
        let _ = node.stop().await;
        let (before, begun) = (opened(node), Instant::now());
        node.launch();
        while opened(node) == before && begun.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    agent.measured("connected_ms", &took);
}

async fn many(
    plan: &Plan,
    world: &mut World,
    nodes: &mut [Node],
    peer: &Peer,
    section: &mut Section,
) -> Result<(), String> {
    let runs = match (plan.is_tiny(), plan.quick) {
        (true, _) => 1,
        (false, true) => 5,
        (false, false) => 11,
    };
    section.note("nodes", nodes.len());
    let mut pids: Vec<u32> = nodes.iter_mut().map(|node| node.daemon().pid()).collect();
    pids.push(world.control().pid());
    let me = std::process::id();
    pids.push(me);
    let cpu = || pids.iter().map(|pid| machine::cpu_s(*pid)).sum::<f64>();
    let (mut ours, mut cpu_of_both) = (Vec::new(), Vec::new());
    for (action, key) in [("ping", "ping_s"), ("hello", "script_s")] {
        let body = json!({"action": action, "selector": "fleet=real"});
        let _ = timed(&world.operator, &body, nodes.len()).await?;
        let before = cpu();
        let mut waits = Vec::new();
        for _ in 0..runs {
            waits.push(timed(&world.operator, &body, nodes.len()).await?.as_secs_f64());
        }
        // Supervisors leave a moment after the end was told; their CPU is counted when they were waited for.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let runs = f64::from(u32::try_from(runs).unwrap_or(u32::MAX));
        cpu_of_both.push((cpu() - before) / runs);
        section.measured(key, &waits);
        ours.push(super::median(&waits).unwrap_or(f64::INFINITY));
    }
    section
        .note("ping_cpu_s", cpu_of_both[0])
        .note("script_cpu_s", cpu_of_both[1]);
    match peer {
        Peer::Measured {
            ping_s,
            script_s,
            ping_cpu_s,
            script_cpu_s,
            ..
        } => {
            section.measured("ratio_ping", &[ping_s / ours[0]]);
            section.measured("ratio_script", &[script_s / ours[1]]);
            let (theirs, mine) = (ping_cpu_s + script_cpu_s, cpu_of_both.iter().sum::<f64>());
            section.measured("ratio_cpu", &[theirs / mine.max(0.01)]);
            section.note("ratio_cpu_ping", ping_cpu_s / cpu_of_both[0].max(0.01));
            section.note("ratio_cpu_script", script_cpu_s / cpu_of_both[1].max(0.01));
        }
        Peer::Absent { why } => {
            for key in ["ratio_ping", "ratio_script", "ratio_cpu"] {
                section.missing(key, why);
            }
        }
    }
    Ok(())
}
