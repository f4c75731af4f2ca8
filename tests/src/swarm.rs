//! Many nodes in one process, over the real wire.
//!
//! Each has an identity that control gave it, an address of its own in 127.0.0.0/8, a TLS connection for its event
//! stream and, as `musterd`'s client does, a second one for what it reports, kept for a while after use. Each checks the
//! signature of what it is asked with the code that `musterd` runs, writes down what it took before it says so, and
//! reports `ack`, `started` and `succeeded` until control has answered. What it is not: it runs nothing, and its nodes
//! share one journal file and one `fdatasync` for whatever waits at that moment, where a fleet has a disk each.

pub mod identity;
pub mod journal;
pub mod node;
pub mod tally;
pub mod wire;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use muster_shared::envelope::KeyRing;
use rustls::pki_types::ServerName;

use identity::Identity;
use journal::Journal;
use tally::Tally;
use wire::Dialer;

/// How nodes come to a connection for what they report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reporting {
    /// Each its own, opened when needed and kept open for this long after use.
    Own { kept: Duration },
    /// So many for all of them, as behind a proxy that pools.
    Pool { connections: usize },
}

/// What the nodes of one swarm share.
pub struct Swarm {
    pub dialer: Dialer,
    pub ring: KeyRing,
    pub journal: Journal,
    pub tally: Tally,
    pub reporting: Reporting,
    /// `None`: nobody sends heartbeats.
    pub heartbeat: Option<Duration>,
    pub pool: wire::Pool,
}

impl Swarm {
    /// # Errors
    /// When the signing keys are none, or the CA is none.
    pub fn new(
        fleet: &identity::Fleet,
        server: SocketAddr,
        journal: Journal,
        reporting: Reporting,
        heartbeat: Option<Duration>,
    ) -> Result<Self, String> {
        let mut ring = KeyRing::default();
        for key in &fleet.signing_keys {
            let public: [u8; 32] = key.public_key.0[..]
                .try_into()
                .map_err(|_| "a signing key has not 32 bytes".to_owned())?;
            ring.add(&public).map_err(|err| err.to_string())?;
        }
        let name = ServerName::from(server.ip());
        let connections = match reporting {
            Reporting::Pool { connections } => connections,
            Reporting::Own { .. } => 0,
        };
        Ok(Self {
            dialer: Dialer::new(&fleet.ca_pem, server, name)?,
            ring,
            journal,
            tally: Tally::default(),
            reporting,
            heartbeat,
            pool: wire::Pool::new(connections),
        })
    }

    /// Starts every node; they live as long as the runtime does.
    pub fn start(self: &Arc<Self>, nodes: Vec<Identity>) {
        for (number, identity) in nodes.into_iter().enumerate() {
            let swarm = Arc::clone(self);
            tokio::spawn(async move { node::live(&swarm, &identity, number).await });
        }
    }
}

/// Raises how many descriptors this process may hold as far as it is allowed; answers with how many that is.
///
/// # Errors
/// When the system refuses what it allowed a moment ago.
pub fn raise_descriptor_limit() -> std::io::Result<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    // Whoever may, goes past the hard limit; whoever may not, up to it.
    let wished = rustix::process::Rlimit {
        current: Some(DESCRIPTORS_WISHED),
        maximum: Some(DESCRIPTORS_WISHED),
    };
    if limit.maximum.is_none_or(|most| most >= DESCRIPTORS_WISHED)
        || setrlimit(Resource::Nofile, wished).is_err()
    {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

const DESCRIPTORS_WISHED: u64 = 262_144;

/// What this process holds in memory.
#[must_use]
pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
