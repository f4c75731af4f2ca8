//! `musterd` as a tool for the admin of the machine: what a person types beside the daemon.
//!
//! [`desk`] is the daemon's side, a socket at which it answers; everything else runs in the process of the command.

pub(crate) mod desk;
pub(crate) mod doctor;
pub(crate) mod hooks;
pub(crate) mod render;
pub(crate) mod run_local;
pub(crate) mod status;

use std::path::Path;

use muster_shared::ids::NodeId;

use crate::{
    exit::Exit,
    identity::{self, IdentityFile},
};

/// Who this machine is, as far as anybody has said so.
fn enrolled(state_dir: &Path) -> Result<Option<IdentityFile>, Exit> {
    let path = identity::identity_path(state_dir);
    let raw = match std::fs::read(&path) {
        Ok(raw) => raw,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(Exit::Failure(format!("{} cannot be read: {err}", path.display()))),
    };
    serde_json::from_slice(&raw)
        .map(Some)
        .map_err(|err| Exit::Failure(format!("{} is damaged: {err}", path.display())))
}

fn not_enrolled(state_dir: &Path) -> Exit {
    Exit::Enrolment(format!(
        "this machine is not enrolled: {} is missing; run `musterd enroll` first",
        identity::identity_path(state_dir).display()
    ))
}

fn chance() -> Result<[u8; 10], Exit> {
    let mut bytes = [0; 10];
    getrandom::fill(&mut bytes)
        .map(|()| bytes)
        .map_err(|err| Exit::Failure(format!("the system gives no random bytes: {err}")))
}

/// The node's own id, or one for a machine that has none yet.
fn node_or_nobody(known: Option<&IdentityFile>) -> Result<NodeId, Exit> {
    match known {
        Some(identity) => Ok(identity.node_id),
        None => Ok(NodeId::mint(muster_shared::time::Timestamp::now(), chance()?)),
    }
}
