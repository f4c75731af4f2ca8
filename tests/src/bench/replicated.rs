//! What several controls on one database hold: the same dispatch to the same number of nodes, with one replica and with
//! three, and as many nodes as three can have.
//!
//! All of them are on this machine, with PostgreSQL and the swarms beside them: it shows what a replica more costs, and
//! that a fleet which no process here may hold alone is held by three. How much faster three machines are it cannot show.

use std::{net::SocketAddr, time::Instant};

use muster_shared::wire::Execution;
use serde_json::{Value, json};

use super::{
    Plan,
    fleet::SwarmProcess,
    machine, median,
    summary::Section,
    swarms::{DESCRIPTORS_BESIDE, POOL, count, say},
};
use crate::{postgres, postgres::Cluster, replicas::Replicas, swarm::identity::Fleet, world::OFTEN};

const REPLICAS: usize = 3;
/// With how many nodes one and three are compared.
const COMPARED: usize = 3_000;
/// The most that three are measured with.
const NODES_MAX: usize = 50_000;
const RUNS: usize = 3;

struct Group {
    replicas: Replicas,
    count: usize,
    fleet: Fleet,
}

/// # Errors
/// With what went wrong, in words.
pub async fn run(plan: &Plan, descriptors: u64) -> Result<Vec<Value>, String> {
    if postgres::left_out() {
        let mut row = Section::default();
        row.missing(
            "settled_s",
            "there is no PostgreSQL: install it, or see scripts/postgres",
        );
        return Ok(vec![row.value()]);
    }
    let compared = COMPARED.min(plan.nodes_max);
    let mut rows = Vec::new();
    rows.push(Group::of(1).await?.row(compared).await?);
    let mut group = Group::of(REPLICAS).await?;
    rows.push(group.row(compared).await?);
    let fits = usize::try_from(descriptors)
        .unwrap_or(usize::MAX)
        .saturating_sub(DESCRIPTORS_BESIDE);
    let most = NODES_MAX.min(fits * REPLICAS).min(plan.nodes_max);
    if !plan.quick && most > compared {
        rows.push(group.row(most).await?);
    }
    Ok(rows)
}

impl Group {
    async fn of(count: usize) -> Result<Self, String> {
        let cluster = Cluster::own(&["fsync=on", "full_page_writes=on"]).await;
        let replicas = Replicas::with(count, OFTEN, Some(cluster)).await;
        Ok(Self {
            replicas: replicas.ok_or("there is no PostgreSQL")?,
            count,
            fleet: Fleet::default(),
        })
    }

    /// One swarm for each replica, with its share of the nodes.
    async fn swarms(&mut self, nodes: usize) -> Result<Vec<(SwarmProcess, usize)>, String> {
        self.fleet.grow(&self.replicas.at(0), nodes).await?;
        let share = nodes.div_ceil(self.count);
        let mut swarms = Vec::new();
        for (n, part) in self.fleet.nodes.chunks(share).enumerate() {
            let dir = self.replicas.world.dir().join(format!("swarm-{n}"));
            let fleet = Fleet {
                nodes: part.to_vec(),
                ..self.fleet.clone()
            };
            std::fs::create_dir_all(&dir)
                .and_then(|()| fleet.save(&dir.join("fleet.json")))
                .map_err(|err| err.to_string())?;
            let server = self.replicas.at(n).server;
            let server: SocketAddr = server
                .trim_start_matches("https://")
                .parse()
                .map_err(|err| format!("{server}: {err}"))?;
            let how = ["--pool", &POOL.to_string(), "--heartbeat-seconds", "0"];
            swarms.push((SwarmProcess::start(&dir, server, part.len(), &how)?, part.len()));
        }
        for (swarm, part) in &mut swarms {
            swarm.connected(*part)?;
        }
        Ok(swarms)
    }

    async fn row(&mut self, nodes: usize) -> Result<Value, String> {
        let mut swarms = self.swarms(nodes).await?;
        let (mut settled, mut admitted, mut control_cpu) = (vec![], vec![], vec![]);
        // Once before: the connections for reports are open then.
        self.round(&mut swarms).await?;
        for _ in 0..RUNS {
            let cpu = self.cpu_s();
            let (took, admission) = self.round(&mut swarms).await?;
            settled.push(took);
            admitted.push(admission * 1000.0);
            control_cpu.push((self.cpu_s() - cpu) * 1000.0 / count(nodes));
        }
        let mut row = Section::default();
        row.note("replicas", self.count)
            .note("nodes", nodes)
            .measured("settled_s", &settled)
            .measured("admit_ms", &admitted)
            .measured("control_cpu_ms_per_invocation", &control_cpu);
        say(&format!(
            "{nodes} nodes over {} replica(s): {:.2} s",
            self.count,
            median(&settled).unwrap_or(0.0)
        ));
        Ok(row.value())
    }

    /// Of all replicas together, in seconds.
    fn cpu_s(&mut self) -> f64 {
        (0..self.count)
            .map(|n| machine::cpu_s(self.replicas.control(n).pid()))
            .sum()
    }

    /// One dispatch at the first replica, until each has answered the last report of its nodes: how long that and the
    /// admission took, in seconds.
    async fn round(&self, swarms: &mut [(SwarmProcess, usize)]) -> Result<(f64, f64), String> {
        for (swarm, part) in &mut *swarms {
            swarm.expect(*part)?;
        }
        let begun = Instant::now();
        let execution: Execution = self
            .replicas
            .world
            .dispatch(json!({"action": "ping", "selector": "swarm=yes"}))
            .await;
        let admission = begun.elapsed().as_secs_f64();
        let mut last = begun;
        for (swarm, _) in &mut *swarms {
            let (at, _) = tokio::task::block_in_place(|| swarm.settled())?;
            last = last.max(at);
        }
        let end = self.replicas.world.settled(execution.id).await;
        let all: usize = swarms.iter().map(|(_, part)| part).sum();
        if end.target_counts.values().sum::<u64>() != all as u64 || end.target_counts.len() != 1 {
            return Err(format!(
                "the fleet did not succeed as one: {:?}",
                end.target_counts
            ));
        }
        Ok(((last - begun).as_secs_f64(), admission))
    }
}
