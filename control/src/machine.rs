//! What a node's machine is called, as its heartbeats tell. An identity is a key: a hostname or a machine-id that changes
//! locks nobody out, and is never passed over in silence.

use muster_shared::{
    time::Timestamp,
    wire::{HOSTNAME_LEN_MAX, HeartbeatRequest, MACHINE_ID_LEN_MAX},
};

use crate::{
    audit::{self, Entry},
    authz,
    control::Control,
    nsk::KeyOwner,
    store::StoreError,
};

/// A part of what a machine is called that is another than before.
#[derive(PartialEq, Eq, Debug)]
struct Change {
    what: &'static str,
    from: String,
    to: String,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, from, to } = self;
        write!(f, "{what} was {from}, and is {to}")
    }
}

fn change(what: &'static str, from: &str, to: Option<&str>, len_max: usize) -> Option<Change> {
    let to = to?;
    let sound = (1..=len_max).contains(&to.len()) && !to.chars().any(char::is_control);
    (sound && to != from).then(|| Change {
        what,
        from: from.to_owned(),
        to: to.to_owned(),
    })
}

/// Writes down what has changed. A machine-id that did is also said beside the node: it may have been copied.
pub(crate) async fn note(
    control: &Control,
    owner: &KeyOwner,
    beat: &HeartbeatRequest,
    now: Timestamp,
) -> Result<(), StoreError> {
    let hostname = change(
        "hostname",
        &owner.hostname,
        beat.hostname.as_deref(),
        HOSTNAME_LEN_MAX,
    );
    let machine_id = change(
        "machine-id",
        &owner.machine_id,
        beat.machine_id.as_deref(),
        MACHINE_ID_LEN_MAX,
    );
    if hostname.is_none() && machine_id.is_none() {
        return Ok(());
    }
    // Rare: its room is not in every heartbeat.
    Box::pin(write(control, owner, (hostname, machine_id), now)).await
}

async fn write(
    control: &Control,
    owner: &KeyOwner,
    (hostname, machine_id): (Option<Change>, Option<Change>),
    now: Timestamp,
) -> Result<(), StoreError> {
    let node = owner.node;
    let subject = audit::node_subject(node);
    let mut tx = control.store.begin().await?;
    let now_called = |change: &Option<Change>, before: &str| {
        change
            .as_ref()
            .map_or_else(|| before.to_owned(), |change| change.to.clone())
    };
    let (host, machine) = (
        now_called(&hostname, &owner.hostname),
        now_called(&machine_id, &owner.machine_id),
    );
    tx.set_machine(node, &host, &machine).await?;
    if let Some(change) = &machine_id {
        let warning = format!("{change}: if this is another machine, its state directory was copied");
        tx.warn_of_node(node, &warning, now).await?;
    }
    let changes = || hostname.iter().chain(&machine_id);
    let entries: Vec<_> = changes()
        .map(|change| {
            Entry::granted(&subject, "node.machine_changed", authz::resource(node)).with(change.to_string())
        })
        .collect();
    tx.append_audit(owner.domain, &entries, now).await?;
    tx.commit().await?;
    for change in changes() {
        log::warn!(node_id:% = node; "The node's {change}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_another_and_sound_is_a_change() {
        let of = |to| change("hostname", "web-1", to, 8);
        assert_eq!(of(None), None);
        assert_eq!(of(Some("web-1")), None);
        assert_eq!(of(Some("")), None);
        assert_eq!(of(Some("a\nb")), None);
        assert_eq!(of(Some("web-12345")), None);
        assert_eq!(
            of(Some("web-2")).unwrap().to_string(),
            "hostname was web-1, and is web-2"
        );
    }
}
