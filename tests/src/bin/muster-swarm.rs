//! `muster-swarm`: N nodes in one process, for the bench and for whoever wants to see a large fleet on one machine.
//!
//! It reads commands on standard input, a line each, and tells on standard output, a JSON document a line:
//! `expect N` begins a round, whose end is told; `counts` asks what happened so far; the end of the input ends it.

use std::{
    net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, sync::atomic::Ordering, time::Duration,
};

use muster_tests::swarm::{
    Reporting, Swarm,
    identity::Fleet,
    journal::Journal,
    node::{Told, tell},
    raise_descriptor_limit,
};

const USAGE: &str = "usage: muster-swarm --identities FILE --server ADDRESS:PORT --journal FILE [--nodes N] \
                     [--heartbeat-seconds S] [--own-connection-seconds S | --pool CONNECTIONS]
The identities are those that muster-bench made, or any in the same form.";

struct Given {
    identities: PathBuf,
    server: SocketAddr,
    journal: PathBuf,
    nodes: usize,
    heartbeat: Option<Duration>,
    reporting: Reporting,
}

fn given(arguments: impl Iterator<Item = String>) -> Result<Given, String> {
    let (mut identities, mut server, mut journal) = (None, None, None);
    let (mut nodes, mut heartbeat) = (usize::MAX, Some(Duration::from_secs(120)));
    let mut reporting = Reporting::Own {
        kept: Duration::from_secs(150),
    };
    let mut arguments = arguments;
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|err| format!("{name} {value}: {err}"))
        };
        match &*name {
            "--identities" => identities = Some(value.into()),
            "--server" => server = Some(value.parse().map_err(|err| format!("{name} {value}: {err}"))?),
            "--journal" => journal = Some(value.into()),
            "--nodes" => nodes = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--heartbeat-seconds" => {
                heartbeat = Some(number()?).filter(|s| *s > 0).map(Duration::from_secs);
            }
            "--own-connection-seconds" => {
                reporting = Reporting::Own {
                    kept: Duration::from_secs(number()?),
                }
            }
            "--pool" => {
                let connections = usize::try_from(number()?).unwrap_or(usize::MAX).clamp(1, 10_000);
                reporting = Reporting::Pool { connections };
            }
            other => return Err(format!("there is no {other}")),
        }
    }
    Ok(Given {
        identities: identities.ok_or("--identities is missing")?,
        server: server.ok_or("--server is missing")?,
        journal: journal.ok_or("--journal is missing")?,
        nodes,
        heartbeat,
        reporting,
    })
}

#[expect(clippy::print_stderr, reason = "it is a command, and this is what went wrong")]
fn main() -> ExitCode {
    let outcome = given(std::env::args().skip(1))
        .map_err(|err| format!("{err}\n{USAGE}"))
        .and_then(|given| run(&given));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("muster-swarm: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run(given: &Given) -> Result<(), String> {
    let said = |err: std::io::Error| err.to_string();
    raise_descriptor_limit().map_err(said)?;
    let fleet = Fleet::load(&given.identities).map_err(said)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(said)?;
    runtime.block_on(async {
        let journal = Journal::open(&given.journal).map_err(said)?;
        let swarm = Swarm::new(&fleet, given.server, journal, given.reporting, given.heartbeat)?;
        let swarm = Arc::new(swarm);
        swarm.start(fleet.nodes.into_iter().take(given.nodes).collect());
        let watched = Arc::clone(&swarm);
        tokio::spawn(async move { tell_connected(&watched).await });
        let listener = Arc::clone(&swarm);
        let heard = tokio::task::spawn_blocking(move || listen(&listener)).await;
        heard.map_err(|err| err.to_string())?.map_err(said)
    })
}

/// Tells how many streams are open whenever that has changed, and not more often than somebody can read.
async fn tell_connected(swarm: &Swarm) {
    loop {
        swarm.tally.changed.notified().await;
        tell(&Told::Connected(swarm.tally.connected.load(Ordering::Relaxed)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Until the end of the input.
fn listen(swarm: &Swarm) -> std::io::Result<()> {
    for line in std::io::stdin().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("expect", count)) => swarm.tally.expect(count.trim().parse().unwrap_or(u64::MAX)),
            Some(_) | None if line == "counts" => {
                tell(&Told::Counts(swarm.tally.counts(swarm.journal.syncs())));
            }
            Some(_) | None => tell(&Told::Connected(swarm.tally.connected.load(Ordering::Relaxed))),
        }
    }
    Ok(())
}
