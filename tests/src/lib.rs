//! Real binaries in a small world of their own.
//!
//! A [`World`] runs one `muster-control` and as many `musterd` as a story needs, each with its own directories and
//! log. A [`BareNode`] is an enrolled node without a daemon, for what a daemon would never send. A [`FakeControl`]
//! is a control without a `muster-control`, for what a control would never send. Stories wait for facts through
//! [`wait::until`], never for time, and leaving a world checks it: nothing unsettled, no supervisor left.

pub mod bare_node;
pub mod bench;
pub mod binaries;
pub mod connect_proxy;
pub mod contract;
pub mod daemon;
pub mod database;
pub mod fake_control;
pub mod fake_systemd;
pub mod faulty_store;
pub mod invariants;
pub mod lossy;
pub mod musterd;
pub mod oidc;
pub mod operator;
pub mod package_root;
pub mod packages;
pub mod postgres;
pub mod postgres_relay;
pub mod relay;
pub mod replicas;
pub mod s3;
pub mod sse;
pub mod swarm;
pub mod testhost;
pub mod wait;
pub mod world;

pub use bare_node::BareNode;
pub use daemon::Daemon;
pub use database::{Database, Engine};
pub use fake_control::FakeControl;
pub use fake_systemd::FakeSystemd;
pub use musterd::Musterd;
pub use operator::{Answer, Operator, Said};
pub use postgres_relay::PgRelay;
pub use replicas::Replicas;
pub use testhost::TestHost;
pub use wait::until;
pub use world::{Node, World};

/// What stories need of the wire.
pub mod prelude {
    pub use crate::{BareNode, FakeControl, Musterd, Node, Operator, World, until};
    pub use muster_shared::{
        ids::{Digest, ExecutionId, NodeId},
        status::Status,
        wire::*,
    };
    pub use serde_json::{Value, json};
    pub use std::time::Duration;
}

/// Random bytes from the system.
#[must_use]
pub fn chance<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

/// Bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lets every TLS client and server of this process use the one crypto provider of the workspace.
pub fn use_ring() {
    // A second call finds it installed already, which is what it asks for.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The digest by which the first certificate of a PEM file is known.
///
/// # Panics
/// When it holds none.
#[must_use]
pub fn certificate_digest(pem: &[u8]) -> muster_shared::ids::Digest {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let certificate = CertificateDer::from_pem_slice(pem).expect("the file holds a certificate");
    muster_shared::ids::Digest::of(&certificate)
}
