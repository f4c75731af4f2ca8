//! Whether a node is one daemon or two.
//!
//! Every start of a daemon is an *instance* with an id of its own, which comes with each request together with the ids
//! of the instances that it follows, as its state directory remembers them. A restarted daemon follows the one that
//! control knows and is let in at once, whatever is left of the old connection. A copy of a state directory gives itself
//! away: it does not know the instance that came after it was made, or the instance that it claims to follow comes back.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_shared::{ids::NodeId, time::Timestamp};
use uuid::Uuid;

use crate::{
    audit::{self, Entry, Outcome},
    authz,
    control::Control,
    nsk::KeyOwner,
    store::StoreError,
};

/// How long a daemon that took the place of one whose stream was open gets no work: time for the other to come back, if
/// it lives.
pub(crate) const CONTEST: Duration = Duration::from_secs(10);
/// A request of a dead daemon may still be on its way when its successor is there; two this far apart it cannot have sent.
const RETURN_GAP: Duration = Duration::from_secs(1);
/// A first return is forgotten after this.
const RETURN_MEMORY: Duration = Duration::from_secs(300);
/// A stranger is forgotten after this, which is longer than it takes to be let in.
const STRANGER_MEMORY: Duration = Duration::from_secs(300);
/// A node that was heard of this recently is there: a second heartbeat may have been lost, or be late.
const ALIVE: Duration = Duration::from_secs(270);

/// What a request says of the daemon that sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) instance: Uuid,
    /// Those that it follows, in any order.
    pub(crate) after: Vec<Uuid>,
}

/// What is known of a node's daemons.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Known {
    pub(crate) current: Option<Uuid>,
    /// The one that the current one followed.
    pub(crate) before: Option<Uuid>,
    /// The last one that was found to be a copy.
    pub(crate) copy: Option<Uuid>,
}

/// How a daemon stands to the one that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lineage {
    /// The daemon that is known.
    Current,
    /// The first, or one that follows the one that is known.
    Follows,
    /// It was followed by the one that is known, and lives.
    Returns,
    /// It does not know of the one that is known.
    Strange,
    /// It was found to be a copy before, or comes from one.
    Copy,
}

pub(crate) fn judge(known: Known, claim: &Claim) -> Lineage {
    let from_copy = |copy| copy == claim.instance || claim.after.contains(&copy);
    match known.current {
        Some(current) if current == claim.instance => Lineage::Current,
        Some(_) | None if known.copy.is_some_and(from_copy) => Lineage::Copy,
        None => Lineage::Follows,
        Some(current) if claim.after.contains(&current) => Lineage::Follows,
        Some(_) if known.before == Some(claim.instance) => Lineage::Returns,
        Some(_) => Lineage::Strange,
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InstanceError {
    #[error(
        "this node's identity is in use by another daemon: this state directory is a copy of that of the other, or was \
         restored from one. Nothing is given to this one; enrol its machine anew (musterd enroll --force)"
    )]
    Cloned,
    #[error("another daemon with this node's identity was connected a moment ago; ask again")]
    Contested,
    #[error("the daemon could not be noted")]
    Store(#[from] StoreError),
}

/// What is known for moments only. Of a contest the database has the end too, for other replicas and for a restart; the
/// rest, when it is lost, costs a copy some seconds.
#[derive(Default)]
pub(crate) struct Instances(Mutex<Moments>);

#[derive(Default)]
struct Moments {
    contested_until: HashMap<NodeId, Timestamp>,
    returned: HashMap<NodeId, (Uuid, Timestamp)>,
    /// Since when one that does not know the known one asks to be let in.
    strangers: HashMap<NodeId, Timestamp>,
}

/// What is to be thought of a daemon that does not know the one that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stranger {
    /// The known one was heard of since this one is there: both live.
    Copy,
    /// It was heard of a while ago only. A stream that is open proves nothing: a power cut leaves one.
    Unclear,
    /// Nobody was heard of for long.
    Alone,
}

impl Instances {
    /// How long the node's daemon still gets no work, by what is known here and by `read`, which came with its key.
    pub(crate) fn contested_for(
        &self,
        node: NodeId,
        read: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Duration> {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moments.contested_until.retain(|_, until| *until > now);
        let here = moments.contested_until.get(&node).copied();
        let until = here.max(read).filter(|until| *until > now)?;
        Some(now.until(until))
    }

    fn contest(&self, node: NodeId, until: Timestamp) {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moments.contested_until.insert(node, until);
    }

    fn end_contest(&self, node: NodeId) {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moments.contested_until.remove(&node);
        moments.returned.remove(&node);
    }

    /// `heard` is when the known one was heard of last.
    fn stranger(&self, node: NodeId, heard: Option<Timestamp>, now: Timestamp) -> Stranger {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moments
            .strangers
            .retain(|_, since| now.minus(STRANGER_MEMORY) <= *since);
        let since = *moments.strangers.entry(node).or_insert(now);
        match heard {
            Some(heard) if heard >= since => {
                moments.strangers.remove(&node);
                Stranger::Copy
            }
            Some(heard) if heard >= now.minus(ALIVE) => Stranger::Unclear,
            Some(_) | None => {
                moments.strangers.remove(&node);
                Stranger::Alone
            }
        }
    }

    /// Notes a return. True for one that shows a daemon that lives.
    fn lives(&self, node: NodeId, instance: Uuid, now: Timestamp) -> bool {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moments
            .returned
            .retain(|_, (_, at)| now.minus(RETURN_MEMORY) <= *at);
        match moments.returned.get(&node) {
            Some((known, first)) if *known == instance => first.plus(RETURN_GAP) <= now,
            Some(_) | None => {
                moments.returned.insert(node, (instance, now));
                false
            }
        }
    }
}

/// Lets a request of a daemon in, or says why not. What it changes is durable when this returns. Nearly every request is of
/// the daemon that is known: what the others need is kept out of its way.
pub(crate) async fn admit(
    control: &Control,
    owner: &KeyOwner,
    claim: &Claim,
    now: Timestamp,
) -> Result<(), InstanceError> {
    let node = owner.node;
    match judge(owner.instances, claim) {
        Lineage::Current => Ok(()),
        Lineage::Follows => Box::pin(follow(control, owner, claim.instance, None, now)).await,
        Lineage::Returns if control.instances.lives(node, claim.instance, now) => {
            Box::pin(reinstate(control, owner, claim.instance, now)).await
        }
        Lineage::Returns => Err(InstanceError::Contested),
        Lineage::Strange => {
            let heard = control
                .presence
                .latest(node)
                .map(|seen| seen.at)
                .max(owner.last_seen_at);
            match control.instances.stranger(node, heard, now) {
                Stranger::Copy => {
                    Box::pin(note_copy(control, owner, claim.instance, now)).await?;
                    return Err(InstanceError::Cloned);
                }
                Stranger::Unclear => return Err(InstanceError::Contested),
                Stranger::Alone => {}
            }
            // Nobody else is there: a restored machine, or a control that was restored itself.
            let why = "the node's state directory is older than what control knows of the node: it was restored from a \
                       backup or copied, and what it did since then it has forgotten";
            Box::pin(follow(control, owner, claim.instance, Some(why), now)).await
        }
        Lineage::Copy => Err(InstanceError::Cloned),
    }
}

async fn follow(
    control: &Control,
    owner: &KeyOwner,
    instance: Uuid,
    warning: Option<&str>,
    now: Timestamp,
) -> Result<(), InstanceError> {
    let node = owner.node;
    let mut tx = control.store.begin().await?;
    // A stream may be what a lost network left, or a daemon that lives: that one would come back.
    let beside_a_stream = control.is_connected(node, owner.replica);
    let contested_until = beside_a_stream.then(|| now.plus(CONTEST));
    if !tx
        .follow_instance(node, owner.instances.current, (instance, contested_until))
        .await?
    {
        // Two that follow at once. Two requests of one daemon are no contest of their own; of two daemons, the next request
        // of this one is judged by what the other made of it.
        let (known, contested_until) = tx.instance_of(node).await?;
        if known != Some(instance) {
            return Err(InstanceError::Contested);
        }
        if let Some(until) = contested_until {
            control.instances.contest(node, until);
        }
        return Ok(());
    }
    if let Some(until) = contested_until {
        // Before the commit, so that no request of the new one comes in between.
        control.instances.contest(node, until);
    }
    let subject = audit::node_subject(node);
    if let Some(warning) = warning {
        tx.warn_of_node(node, warning, now).await?;
        let entry = Entry::granted(&subject, "node.restored", authz::resource(node)).with(warning);
        tx.append_audit(owner.domain, &[entry], now).await?;
        log::warn!(node_id:% = node; "{warning}");
    }
    tx.commit().await?;
    if beside_a_stream {
        control.node_streams.disconnect(node);
    }
    Ok(())
}

/// The daemon that was said to have ended lives: the one that said so runs on a copy of its state directory.
async fn reinstate(
    control: &Control,
    owner: &KeyOwner,
    instance: Uuid,
    now: Timestamp,
) -> Result<(), InstanceError> {
    let node = owner.node;
    let mut tx = control.store.begin().await?;
    if !tx
        .reinstate_instance(node, owner.instances.current, instance)
        .await?
    {
        return Err(InstanceError::Contested);
    }
    warn_of_copy(&mut tx, owner, now).await?;
    tx.commit().await?;
    control.node_streams.disconnect(node);
    control.instances.end_contest(node);
    Ok(())
}

async fn note_copy(
    control: &Control,
    owner: &KeyOwner,
    instance: Uuid,
    now: Timestamp,
) -> Result<(), InstanceError> {
    let mut tx = control.store.begin().await?;
    tx.note_copy(owner.node, instance).await?;
    warn_of_copy(&mut tx, owner, now).await?;
    Ok(tx.commit().await?)
}

async fn warn_of_copy(tx: &mut crate::store::Tx, owner: &KeyOwner, now: Timestamp) -> Result<(), StoreError> {
    let node = owner.node;
    let warning = "a second daemon showed this node's identity and was refused: its state directory was copied. Enrol \
                   that machine anew, and change this node's key (muster node rotate-key)";
    tx.warn_of_node(node, warning, now).await?;
    let subject = audit::node_subject(node);
    let entry = Entry::new(
        &subject,
        "node.cloned",
        authz::resource(node),
        Outcome::PermissionDenied,
    );
    tx.append_audit(owner.domain, &[entry.with(warning)], now).await?;
    log::warn!(node_id:% = node; "Node {node}: {warning}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn claim(instance: u128, after: &[u128]) -> Claim {
        Claim {
            instance: id(instance),
            after: after.iter().copied().map(id).collect(),
        }
    }

    fn known(current: u128, before: u128) -> Known {
        Known {
            current: Some(id(current)),
            before: Some(id(before)),
            copy: None,
        }
    }

    #[test]
    fn a_restart_follows_also_over_starts_that_control_never_saw() {
        assert_eq!(judge(Known::default(), &claim(1, &[])), Lineage::Follows);
        assert_eq!(judge(known(2, 1), &claim(2, &[1])), Lineage::Current);
        assert_eq!(judge(known(2, 1), &claim(3, &[1, 2])), Lineage::Follows);
        assert_eq!(judge(known(2, 1), &claim(9, &[1, 2, 3, 4])), Lineage::Follows);
    }

    #[test]
    fn a_copy_does_not_know_what_came_after_it() {
        assert_eq!(judge(known(3, 2), &claim(9, &[1, 2])), Lineage::Strange);
        let found = Known {
            copy: Some(id(9)),
            ..known(3, 2)
        };
        assert_eq!(judge(found, &claim(9, &[1, 2])), Lineage::Copy);
        assert_eq!(judge(found, &claim(10, &[1, 2, 9])), Lineage::Copy);
        assert_eq!(judge(found, &claim(4, &[2, 3])), Lineage::Follows);
    }

    #[test]
    fn one_that_was_followed_and_comes_back_is_seen() {
        assert_eq!(judge(known(3, 2), &claim(2, &[1])), Lineage::Returns);
        assert_eq!(judge(known(3, 2), &claim(1, &[])), Lineage::Strange);
    }

    #[test]
    fn a_stranger_is_a_copy_once_the_known_one_is_heard_of_beside_it() {
        let instances = Instances::default();
        let node = |n| NodeId::mint(Timestamp::from_millis(0), [n; 10]);
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let stranger = |n, heard, now| instances.stranger(node(n), Some(at(heard)), at(now));
        // Restored right after the other was killed: it waits until nobody can be there any more.
        assert_eq!(stranger(1, 100, 110), Stranger::Unclear);
        assert_eq!(stranger(1, 100, 370), Stranger::Unclear);
        assert_eq!(stranger(1, 100, 371), Stranger::Alone);
        // The other lives.
        assert_eq!(stranger(2, 100, 110), Stranger::Unclear);
        assert_eq!(stranger(2, 115, 116), Stranger::Copy);
        assert_eq!(instances.stranger(node(3), None, at(5)), Stranger::Alone);
    }

    #[test]
    fn a_late_request_of_a_dead_daemon_is_no_return() {
        let instances = Instances::default();
        let node = NodeId::mint(Timestamp::from_millis(0), [1; 10]);
        let lives = |instance, at| instances.lives(node, id(instance), Timestamp::from_millis(at));
        assert!(!lives(1, 0));
        assert!(!lives(1, 999));
        assert!(lives(1, 1_000));
        assert!(!lives(2, 2_000), "another one begins anew");
        assert!(!lives(2, 400_000), "and one that was long ago counts no more");
    }

    #[test]
    fn a_contest_passes() {
        let instances = Instances::default();
        let node = NodeId::mint(Timestamp::from_millis(0), [1; 10]);
        let at = Timestamp::from_millis;
        assert_eq!(instances.contested_for(node, None, at(0)), None);
        // What another service noted.
        assert_eq!(
            instances.contested_for(node, Some(at(5_000)), at(1_000)),
            Some(Duration::from_secs(4))
        );
        assert_eq!(instances.contested_for(node, Some(at(5_000)), at(5_000)), None);
        instances.contest(node, at(5_000));
        assert_eq!(
            instances.contested_for(node, None, at(1_000)),
            Some(Duration::from_secs(4))
        );
        assert_eq!(instances.contested_for(node, None, at(5_000)), None);
    }
}
