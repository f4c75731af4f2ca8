//! What a large fleet costs: dispatches to all of it, idle streams, and a control that comes back.

use std::{net::SocketAddr, time::Duration, time::Instant};

use muster_shared::wire::Execution;
use serde_json::{Value, json};

use super::{Plan, engines, fleet::SwarmProcess, machine, median, summary::Section};
use crate::{
    Engine, World,
    swarm::{identity::Fleet, tally::RoundDone},
};

/// How many nodes a dispatch is measured with.
const SIZES: [usize; 3] = [1_000, 10_000, 50_000];
/// Enrolling the others a second time would take longer than QUICK may.
const QUICK_POSTGRES_MAX: usize = 1_000;
/// Connections that all nodes share when they do not have their own for reports.
pub(super) const POOL: usize = 64;
/// Descriptors that control needs beside those of its nodes.
pub(super) const DESCRIPTORS_BESIDE: usize = 300;
/// How soon a connection for reports that is not used is given up, as `musterd` does.
const OWN_KEPT_SECONDS: &str = "150";
/// Until control's allocator has given back what the handshakes held: it does so over ten seconds.
const GIVEN_BACK: Duration = Duration::from_secs(15);

/// All that came of the swarms.
pub struct Swarms {
    pub rows: Vec<Value>,
    pub control: Section,
    pub reconnect: Section,
    pub flat: Section,
}

struct Round {
    took: Duration,
    admission: Duration,
    done: RoundDone,
}

struct Bench<'p> {
    plan: &'p Plan,
    engine: Engine,
    world: World,
    fleet: Fleet,
    server: SocketAddr,
    descriptors: usize,
}

impl<'p> Bench<'p> {
    async fn on(engine: Engine, plan: &'p Plan, descriptors: u64) -> Result<Self, String> {
        let world = engines::world(engine).await?;
        let server = world
            .operator
            .server
            .trim_start_matches("https://")
            .parse::<SocketAddr>();
        Ok(Self {
            plan,
            engine,
            server: server.map_err(|err| format!("{}: {err}", world.operator.server))?,
            world,
            fleet: Fleet::default(),
            descriptors: usize::try_from(descriptors).unwrap_or(usize::MAX),
        })
    }
}

/// # Errors
/// With what went wrong, in words.
pub async fn run(plan: &Plan, descriptors: u64) -> Result<Swarms, String> {
    let mut all = Swarms {
        rows: Vec::new(),
        control: Section::default(),
        reconnect: Section::default(),
        flat: Section::default(),
    };
    if plan.wants("swarm") {
        match Bench::on(Engine::Postgres, plan, descriptors).await {
            Ok(mut bench) => bench.sizes(&mut all.rows).await?,
            Err(why) => all
                .rows
                .extend(SIZES.map(|nodes| not_available(Engine::Postgres, nodes, &why))),
        }
    }
    let mut bench = Bench::on(Engine::Sqlite, plan, descriptors).await?;
    if plan.wants("swarm") {
        bench.sizes(&mut all.rows).await?;
    }
    flatness(&all.rows, &mut all.flat);
    let nodes = plan
        .nodes_max
        .min(10_000)
        .min(bench.descriptors.saturating_sub(DESCRIPTORS_BESIDE));
    if plan.wants("control") {
        bench.idle(nodes, &mut all.control).await?;
    } else {
        let why = "left out";
        all.control
            .missing("kib_per_stream", why)
            .missing("idle_cpu_percent", why);
    }
    if plan.wants("reconnect") {
        bench.reconnect(nodes, &mut all.reconnect).await?;
    } else {
        all.reconnect.missing("all_back_s", "left out");
    }
    Ok(all)
}

/// Time per node of the largest swarm over that of a thousand.
fn flatness(rows: &[Value], flat: &mut Section) {
    let per_node = |row: &Value| {
        Some((
            row["nodes"].as_f64()?,
            row["settled_s"].as_f64()? / row["nodes"].as_f64()?,
        ))
    };
    let own = rows
        .iter()
        .filter(|row| row["engine"] == "sqlite" && row["reporting"] == "own")
        .filter_map(per_node);
    let own: Vec<_> = own.collect();
    match (own.first(), own.last()) {
        (Some(small), Some(large)) if small.0 < large.0 => {
            flat.note("ratio", (large.1 / small.1 * 1000.0).round() / 1000.0);
            flat.note("from_nodes", small.0).note("to_nodes", large.0);
        }
        _ => {
            flat.missing("ratio", "fewer than two sizes were measured");
        }
    }
}

impl Bench<'_> {
    async fn sizes(&mut self, rows: &mut Vec<Value>) -> Result<(), String> {
        let sizes = if self.plan.is_tiny() {
            vec![self.plan.nodes_max]
        } else {
            SIZES.to_vec()
        };
        let fits = self.descriptors.saturating_sub(DESCRIPTORS_BESIDE);
        let mut largest_done = 0;
        let nodes_max = match (self.engine, self.plan.quick) {
            (Engine::Postgres, true) => self.plan.nodes_max.min(QUICK_POSTGRES_MAX),
            (Engine::Postgres, false) | (Engine::Sqlite, _) => self.plan.nodes_max,
        };
        for nodes in sizes {
            if nodes > nodes_max {
                let why = format!("left out: {nodes_max} nodes at most, by NODES or QUICK");
                rows.push(not_available(self.engine, nodes, &why));
                continue;
            }
            let own = nodes.min(fits / 2 / 100 * 100);
            if own < nodes {
                let why = format!(
                    "with a connection of its own for reports each node takes two descriptors of control, and a process may \
                     have {} here",
                    self.descriptors
                );
                rows.push(not_available(self.engine, nodes, &why));
            }
            for (size, reporting) in [(own, "own"), (nodes.min(fits / 100 * 100), "pool")] {
                if size > largest_done || reporting == "pool" && size >= nodes.min(fits) {
                    rows.push(self.row(size, reporting).await?);
                }
            }
            largest_done = largest_done.max(own);
        }
        Ok(())
    }

    async fn grow(&mut self, nodes: usize) -> Result<(), String> {
        let (before, begun) = (self.fleet.nodes.len(), Instant::now());
        self.fleet.grow(&self.world.operator, nodes).await?;
        if nodes > before {
            say(&format!(
                "{} nodes enrolled in {:.1} s",
                nodes - before,
                begun.elapsed().as_secs_f64()
            ));
        }
        self.fleet
            .save(&self.world.dir().join("fleet.json"))
            .map_err(|err| err.to_string())
    }

    fn swarm(&self, nodes: usize, more: &[&str]) -> Result<SwarmProcess, String> {
        SwarmProcess::start(self.world.dir(), self.server, nodes, more)
    }

    async fn row(&mut self, nodes: usize, reporting: &str) -> Result<Value, String> {
        // Selectors reach all that are enrolled: a swarm never has fewer than that.
        let nodes = nodes.max(self.fleet.nodes.len());
        self.grow(nodes).await?;
        let pool = POOL.to_string();
        let how = match reporting {
            "own" => ["--own-connection-seconds", OWN_KEPT_SECONDS],
            _ => ["--pool", &*pool],
        };
        let mut swarm = self.swarm(nodes, &[&how[..], &["--heartbeat-seconds", "0"]].concat())?;
        swarm.connected(nodes)?;
        let mut row = Section::default();
        row.note("engine", engines::name(self.engine))
            .note("nodes", nodes)
            .note("reporting", reporting);
        let (mut settled, mut admitted, mut control_cpu, mut swarm_cpu, mut last_request) =
            (vec![], vec![], vec![], vec![], vec![]);
        const RUNS: usize = 3;
        // Once before: the connections for reports are open then, as heartbeats keep them.
        self.round(&mut swarm, nodes).await?;
        let before = swarm.counts()?;
        for _ in 0..RUNS {
            let pid = self.world.control().pid();
            let (cpu, own_cpu) = (machine::cpu_s(pid), machine::cpu_s(swarm.pid()));
            let Round {
                took,
                admission,
                done,
            } = self.round(&mut swarm, nodes).await?;
            let per_invocation = |cpu: f64| cpu * 1000.0 / count(nodes);
            settled.push(took.as_secs_f64());
            admitted.push(admission.as_secs_f64() * 1000.0);
            control_cpu.push(per_invocation(machine::cpu_s(pid) - cpu));
            swarm_cpu.push(per_invocation(machine::cpu_s(swarm.pid()) - own_cpu));
            last_request.push(done.last_request_ms);
        }
        let after = swarm.counts()?;
        if !after.trouble.is_empty() {
            row.note("trouble", after.trouble.clone());
        }
        row.measured("settled_s", &settled)
            .measured("admit_ms", &admitted)
            .measured("control_cpu_ms_per_invocation", &control_cpu)
            .measured("swarm_cpu_ms_per_invocation", &swarm_cpu)
            .measured("last_request_arrived_ms", &last_request)
            .note("full_handshakes", after.full_handshakes - before.full_handshakes)
            .note(
                "resumed_handshakes",
                after.resumed_handshakes - before.resumed_handshakes,
            )
            .note("retries", after.retries - before.retries)
            .note("journal_syncs", after.journal_syncs - before.journal_syncs)
            .note("swarm_kib_per_node", swarm_kib(after.resident_kib, nodes));
        say(&format!(
            "{nodes} nodes, {}, {reporting}: {:.2} s",
            engines::name(self.engine),
            median(&settled).unwrap_or(0.0)
        ));
        Ok(row.value())
    }

    /// One dispatch to all, until control has answered the last report of the last node.
    async fn round(&self, swarm: &mut SwarmProcess, nodes: usize) -> Result<Round, String> {
        swarm.expect(nodes)?;
        let begun = Instant::now();
        let execution: Execution = self
            .world
            .dispatch(json!({"action": "ping", "selector": "swarm=yes"}))
            .await;
        let admission = begun.elapsed();
        let (at, done) = tokio::task::block_in_place(|| swarm.settled())?;
        let end = self.world.settled(execution.id).await;
        if end.target_counts.values().sum::<u64>() != nodes as u64 || end.target_counts.len() != 1 {
            return Err(format!(
                "the fleet did not succeed as one: {:?}",
                end.target_counts
            ));
        }
        Ok(Round {
            took: at - begun,
            admission,
            done,
        })
    }

    async fn restart(&mut self) -> Duration {
        self.world.kill9();
        let begun = Instant::now();
        self.world.start().await;
        begun.elapsed()
    }

    /// Streams on which nothing happens: what they hold, and what their heartbeats cost.
    async fn idle(&mut self, nodes: usize, control: &mut Section) -> Result<(), String> {
        self.grow(nodes).await?;
        let nodes = self.fleet.nodes.len();
        self.restart().await;
        let pid = self.world.control().pid();
        // What a first request brings into memory is not the streams'.
        let _ = self.world.nodes("swarm=yes").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = machine::resident_kib(pid).unwrap_or(0.0);
        let mut swarm = self.swarm(nodes, &["--heartbeat-seconds", "0"])?;
        tokio::task::block_in_place(|| swarm.connected(nodes))?;
        tokio::time::sleep(GIVEN_BACK).await;
        let after = machine::resident_kib(pid).unwrap_or(0.0);
        control.measured("kib_per_stream", &[(after - before) / count(nodes)]);
        control.note("nodes", nodes);
        drop(swarm);

        self.restart().await;
        let pid = self.world.control().pid();
        // Two descriptors for each node here.
        let both = nodes.min(self.descriptors.saturating_sub(DESCRIPTORS_BESIDE) / 2 / 100 * 100);
        control.note("heartbeat_nodes", both);
        let mut swarm = self.swarm(both, &["--own-connection-seconds", OWN_KEPT_SECONDS])?;
        tokio::task::block_in_place(|| swarm.connected(both))?;
        let window = if self.plan.is_tiny() { 2 } else { 30 };
        // Until the waves of the start have passed.
        tokio::time::sleep(Duration::from_secs(window)).await;
        let mut runs = Vec::new();
        for _ in 0..if self.plan.quick { 1 } else { 3 } {
            let (cpu, begun) = (machine::cpu_s(pid), Instant::now());
            tokio::time::sleep(Duration::from_secs(window)).await;
            runs.push((machine::cpu_s(pid) - cpu) * 100.0 / begun.elapsed().as_secs_f64());
        }
        let counts = swarm.counts()?;
        control
            .measured("idle_cpu_percent", &runs)
            .note("heartbeats", counts.heartbeats);
        control.note(
            "heartbeat_handshakes_full",
            counts.full_handshakes.saturating_sub(both as u64),
        );
        control.note("heartbeat_handshakes_resumed", counts.resumed_handshakes);
        say(&format!(
            "idle at {both}: {:.1} % of a core",
            median(&runs).unwrap_or(0.0)
        ));
        Ok(())
    }

    /// Control is killed and started; every node comes back by itself, while somebody asks for its health.
    async fn reconnect(&mut self, nodes: usize, reconnect: &mut Section) -> Result<(), String> {
        self.grow(nodes).await?;
        let nodes = self.fleet.nodes.len();
        let mut swarm = self.swarm(nodes, &["--heartbeat-seconds", "0"])?;
        tokio::task::block_in_place(|| swarm.connected(nodes))?;
        let (mut back, mut slowest, mut ready) = (vec![], vec![], vec![]);
        let before = swarm.counts()?;
        for _ in 0..if self.plan.quick { 1 } else { 3 } {
            self.world.kill9();
            let begun = Instant::now();
            tokio::task::block_in_place(|| swarm.lost(nodes))?;
            self.world.start().await;
            ready.push(begun.elapsed().as_secs_f64());
            let operator = self.world.operator.clone();
            let (stop, stopped) = tokio::sync::oneshot::channel();
            let health = tokio::spawn(async move { slowest_answer_ms(&operator, stopped).await });
            let at = tokio::task::block_in_place(|| swarm.connected(nodes))?;
            back.push((at - begun).as_secs_f64());
            let _ = stop.send(());
            slowest.push(health.await.map_err(|err| err.to_string())?);
        }
        let after = swarm.counts()?;
        reconnect
            .measured("all_back_s", &back)
            .measured("ready_s", &ready)
            .measured("health_slowest_ms", &slowest)
            .note("nodes", nodes)
            .note("full_handshakes", after.full_handshakes - before.full_handshakes)
            .note(
                "resumed_handshakes",
                after.resumed_handshakes - before.resumed_handshakes,
            );
        say(&format!(
            "{nodes} nodes are back after {:.1} s",
            median(&back).unwrap_or(0.0)
        ));
        Ok(())
    }
}

/// Asks for health over a new connection each time, until told to stop; answers with the longest wait.
async fn slowest_answer_ms(
    operator: &crate::Operator,
    mut stopped: tokio::sync::oneshot::Receiver<()>,
) -> f64 {
    let mut slowest: f64 = 0.0;
    loop {
        let begun = Instant::now();
        let client = crate::operator::client_with_ca(&operator.ca_file);
        let asked = client.get(format!("{}/v1/health", operator.server)).send().await;
        let waited = if asked.is_ok() {
            begun.elapsed()
        } else {
            Duration::MAX
        };
        slowest = slowest.max(waited.as_secs_f64() * 1000.0);
        if stopped.try_recv().is_ok() {
            return slowest;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) fn count(nodes: usize) -> f64 {
    u32::try_from(nodes).map_or(f64::INFINITY, f64::from)
}

fn swarm_kib(resident: u64, nodes: usize) -> u64 {
    resident / (nodes as u64).max(1)
}

fn not_available(engine: Engine, nodes: usize, why: &str) -> Value {
    let mut row = Section::default();
    row.note("engine", engines::name(engine))
        .note("nodes", nodes)
        .note("reporting", "own");
    for key in ["settled_s", "control_cpu_ms_per_invocation", "admit_ms"] {
        row.missing(key, why);
    }
    row.value()
}

/// One line about how far the bench is.
#[expect(clippy::print_stderr, reason = "for the person who waits")]
pub fn say(what: &str) {
    eprintln!("bench: {what}");
}
