//! Taking a node out of service. Its key opens nothing any more, and what it has not taken is cancelled in the same commit:
//! nobody else will ever run it. What it has taken only it could tell of, and ends at its deadline.

use muster_shared::{ids::NodeId, status::Status, time::Timestamp};

use crate::{
    audit::{self, Entry},
    authz,
    control::Control,
    store::{NodeRecord, StoreError},
};

const WHY: &str = "cancelled: its node was taken out of service before it had it";

pub(crate) async fn decommission(
    control: &Control,
    node: &NodeRecord,
    by: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    // Before the commit, so that no frame is signed after it without being asked about.
    control.node_streams.note_cancel(now);
    let mut tx = control.store.begin().await?;
    tx.decommission(node.id, now).await?;
    let nodes: [NodeId; 1] = [node.id];
    let mut cancelled = Vec::new();
    for execution in tx.untaken_by(node.id).await? {
        let (ended, _) = tx
            .cancel_targets(execution, &nodes, &[Status::Pending], WHY, now)
            .await?;
        if ended > 0 {
            cancelled.push(execution);
        }
    }
    let gone = Entry::granted(by, "node.decommission", authz::resource(node.id)).with(&node.name);
    let ends = cancelled.iter().map(|execution| {
        Entry::granted(by, "actions.cancel", audit::execution_resource(*execution))
            .with(format!("1 cancelled: node {} was taken out of service", node.id))
    });
    let entries: Vec<_> = std::iter::once(gone).chain(ends).collect();
    tx.append_audit(node.domain, &entries, now).await?;
    tx.commit().await?;
    control.node_streams.disconnect(node.id);
    for execution in &cancelled {
        control.watchers.wake(*execution);
    }
    if !cancelled.is_empty() {
        control.rollouts.ended();
    }
    log::info!(node_id:% = node.id, by, cancelled = cancelled.len(); "Decommissioned node {}", node.name);
    Ok(())
}
