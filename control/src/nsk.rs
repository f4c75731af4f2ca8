//! Changing a node's key without a gap.
//!
//! Control asks in the answer to a heartbeat; the node fetches a new key, keeps it durably and uses it. Until it has, the
//! old one counts: whichever end loses power between any two steps, there is a key that both know. The first request
//! with the new key ends the old one, but for what is under way.

use std::time::Duration;

use muster_shared::{
    ids::{Digest, DomainId, NodeId},
    time::Timestamp,
    wire::{NewNsk, RotateKeysResponse},
};

use crate::{
    audit::{self, Entry},
    authz::{self, Requester},
    control::Control,
    instances::Known,
    keys::{TokenKind, token_hash},
    store::{NodeFilter, Project, StoreError},
    target::Target,
};

/// Which of a node's keys was shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// The one that counts.
    Current,
    /// The one that was fetched, and was not used before.
    Next,
    /// The one before, and until when it counts beside the new one.
    Previous(Timestamp),
}

/// What is known of the node whose key was shown.
#[derive(Clone, Debug)]
pub(crate) struct KeyOwner {
    pub(crate) node: NodeId,
    pub(crate) domain: DomainId,
    pub(crate) decommissioned: bool,
    pub(crate) standing: Standing,
    pub(crate) since: Timestamp,
    /// When an operator asked for another.
    pub(crate) asked_at: Option<Timestamp>,
    /// What is known of its daemons.
    pub(crate) instances: Known,
    pub(crate) last_seen_at: Option<Timestamp>,
    pub(crate) hostname: String,
    pub(crate) machine_id: String,
    /// The set of signing keys that it has confirmed.
    pub(crate) signing_serial: u64,
    /// The service that holds its stream, of several.
    pub(crate) replica: Option<uuid::Uuid>,
    /// Until when its daemon gets no work.
    pub(crate) contested_until: Option<Timestamp>,
}

impl KeyOwner {
    /// Whether the node is to fetch another key.
    pub(crate) fn is_due(&self, age_max: Option<Duration>, now: Timestamp) -> bool {
        let aged = age_max.is_some_and(|age| self.since.plus(age) <= now);
        self.standing == Standing::Current && (self.asked_at.is_some() || aged)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NskError {
    #[error("the node's key is not to be changed now; an operator asks for it: muster node rotate-key")]
    NotDue,
    #[error("the new key could not be stored")]
    Store(#[from] StoreError),
    #[error("the system gave no random bytes")]
    Chance(#[from] std::io::Error),
}

/// Makes the key that was used for the first time the one that counts. What stands already is left alone.
pub(crate) async fn promote(
    control: &Control,
    owner: &KeyOwner,
    hash: Digest,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut tx = control.store.begin().await?;
    let until = now.plus(control.limits.nsk_overlap);
    if !tx.promote_nsk(owner.node, hash, until, now).await? {
        return Ok(());
    }
    let subject = audit::node_subject(owner.node);
    let entry = Entry::granted(&subject, "node.rotate_key", authz::resource(owner.node));
    let entry = entry.with(format!(
        "the new key is in use; the one before counts until {until}"
    ));
    tx.append_audit(owner.domain, &[entry], now).await?;
    tx.commit().await?;
    log::info!(node_id:% = owner.node; "The node uses its new key");
    Ok(())
}

/// A new key for a node that showed the one that counts. Asked again before it was used, because its answer was lost,
/// it is another one: nobody holds the first.
pub(crate) async fn issue(
    control: &Control,
    owner: &KeyOwner,
    shown: Digest,
    now: Timestamp,
) -> Result<NewNsk, NskError> {
    if !owner.is_due(control.limits.nsk_age_max, now) {
        return Err(NskError::NotDue);
    }
    let nsk = TokenKind::Nsk.mint()?;
    let mut tx = control.store.begin().await?;
    if !tx.offer_nsk(owner.node, shown, token_hash(&nsk)).await? {
        // Another request has changed it since this one was let in.
        return Err(NskError::NotDue);
    }
    let subject = audit::node_subject(owner.node);
    let entry = Entry::granted(&subject, "node.rotate_key", authz::resource(owner.node));
    tx.append_audit(owner.domain, &[entry.with("the node fetched a new key")], now)
        .await?;
    tx.commit().await?;
    Ok(NewNsk { nsk })
}

/// Has the nodes of a target fetch new keys at their next heartbeats.
pub(crate) async fn ask(
    control: &Control,
    project: &Project,
    requester: &Requester,
    target: &Target,
    now: Timestamp,
) -> Result<RotateKeysResponse, StoreError> {
    let filter = NodeFilter {
        projects: &[project.id],
        selector: target.selector(),
        node: target.node(),
        ..NodeFilter::default()
    };
    let grants = requester.grants.in_project(project.domain, project.id);
    let nodes = control.store.nodes(&filter).await?;
    let asked: Vec<NodeId> = nodes
        .iter()
        .map(|node| node.id)
        .filter(|node| grants.may_act_on(*node))
        .collect();
    let subject = &requester.subject;
    let entries: Vec<_> = asked
        .iter()
        .map(|node| Entry::granted(subject, "node.rotate_key", authz::resource(*node)).with("asked for"))
        .collect();
    let mut tx = control.store.begin().await?;
    for node in &asked {
        tx.ask_for_nsk(*node, now).await?;
    }
    tx.append_audit(project.domain, &entries, now).await?;
    tx.commit().await?;
    log::info!(nodes = asked.len(), by = subject; "Asked {} nodes to change their keys", asked.len());
    Ok(RotateKeysResponse { asked })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(standing: Standing, asked: bool) -> KeyOwner {
        let at = Timestamp::from_millis;
        KeyOwner {
            node: NodeId::mint(at(0), [1; 10]),
            domain: DomainId::mint(at(0), [2; 10]),
            decommissioned: false,
            standing,
            since: at(1_000),
            asked_at: asked.then(|| at(2_000)),
            instances: Known::default(),
            last_seen_at: None,
            hostname: String::new(),
            machine_id: String::new(),
            signing_serial: 1,
            replica: None,
            contested_until: None,
        }
    }

    #[test]
    fn a_key_is_due_when_asked_for_or_too_old_and_only_for_who_shows_the_one_that_counts() {
        let now = Timestamp::from_millis(11_000);
        let age = |seconds| Some(Duration::from_secs(seconds));
        assert!(!owner(Standing::Current, false).is_due(None, now));
        assert!(owner(Standing::Current, true).is_due(None, now));
        assert!(owner(Standing::Current, false).is_due(age(10), now));
        assert!(!owner(Standing::Current, false).is_due(age(11), now));
        for other in [Standing::Next, Standing::Previous(now)] {
            assert!(!owner(other, true).is_due(age(0), now), "{other:?}");
        }
    }
}
