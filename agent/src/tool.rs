//! `musterd` as a tool for the admin of the machine: what a person types beside the daemon.
//!
//! [`desk`] is the daemon's side, a socket at which it answers; everything else runs in the process of the command.

pub(crate) mod desk;
pub(crate) mod doctor;
pub(crate) mod hooks;
pub(crate) mod render;
pub(crate) mod run_local;
pub(crate) mod status;

use muster_shared::ids::NodeId;

use crate::{chance, exit::Exit, identity::IdentityFile};

fn chance() -> Result<[u8; 10], Exit> {
    chance::bytes().map_err(|err| Exit::Failure(err.to_string()))
}

/// The node's own id, or one for a machine that has none yet.
fn node_or_nobody(known: Option<&IdentityFile>) -> Result<NodeId, Exit> {
    match known {
        Some(identity) => Ok(identity.node_id),
        None => Ok(NodeId::mint(muster_shared::time::Timestamp::now(), chance()?)),
    }
}
