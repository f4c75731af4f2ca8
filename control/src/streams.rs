//! The live streams of nodes, and those of operators who watch an execution. In memory only: what was owed is decided
//! by the database, so that losing all of this loses nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use muster_shared::{
    ids::{ExecutionId, NodeId},
    time::Timestamp,
};
use tokio::sync::{Notify, mpsc, watch};

use crate::store::Owed;

/// How much may wait for a node that reads slowly. Past it the stream is closed, and the node gets all it is owed on
/// its next connect.
const PUSHES_MAX: usize = 1024;

/// The node streams that this service holds.
#[derive(Default)]
pub(crate) struct NodeStreams(Mutex<Registry>, Notify);

#[derive(Default)]
struct Registry {
    streams: HashMap<NodeId, (u64, mpsc::Sender<Box<Owed>>)>,
    opened: u64,
    closed_for_good: bool,
    last_cancel: Option<Timestamp>,
    /// Whose stream came or went since this was last asked.
    changed: HashSet<NodeId>,
    handed: Handed,
}

/// When each action was last handed to the stream of a node; of those that are not long ago.
#[derive(Default)]
struct Handed(HashMap<(NodeId, ExecutionId), Instant>);

impl Handed {
    fn note(&mut self, node: NodeId, action: ExecutionId, now: Instant) {
        self.0.insert((node, action), now);
    }

    fn forget(&mut self, within: Duration, now: Instant) {
        self.0.retain(|_, at| now.duration_since(*at) < within);
        // What one large dispatch took is not kept until the next.
        self.0.shrink_to_fit();
    }
}

impl Registry {
    fn end(&mut self, node: NodeId) {
        if self.streams.remove(&node).is_some() {
            self.changed.insert(node);
        }
    }
}

/// One node's end of the registry. When it is dropped the node counts as gone, unless a newer stream took its place.
pub(crate) struct Subscription<'a> {
    registry: &'a NodeStreams,
    node: NodeId,
    number: u64,
    /// Boxed: a channel has room for some from the beginning, and most streams are idle.
    pushes: mpsc::Receiver<Box<Owed>>,
}

impl NodeStreams {
    /// Takes the place of the node's older stream, which ends. `None` once the service is stopping.
    pub(crate) fn open(&self, node: NodeId) -> Option<Subscription<'_>> {
        let (sender, pushes) = mpsc::channel(PUSHES_MAX);
        let mut registry = lock(&self.0);
        if registry.closed_for_good {
            return None;
        }
        registry.opened += 1;
        let number = registry.opened;
        registry.streams.insert(node, (number, sender));
        registry.changed.insert(node);
        self.1.notify_one();
        Some(Subscription {
            registry: self,
            node,
            number,
            pushes,
        })
    }

    /// Puts something on a node's stream, if it has one here. A stream that cannot take more is closed.
    pub(crate) fn push(&self, node: NodeId, owed: Owed, now: Instant) {
        let mut registry = lock(&self.0);
        let Some((_, sender)) = registry.streams.get(&node) else {
            return;
        };
        let action = owed.action();
        if sender.try_send(Box::new(owed)).is_err() {
            registry.end(node);
        } else if let Some(action) = action {
            registry.handed.note(node, action, now);
        }
    }

    /// Forgets which actions were handed to streams more than `within` ago.
    pub(crate) fn forget_handed(&self, within: Duration, now: Instant) {
        lock(&self.0).handed.forget(within, now);
    }

    /// Whether an action was handed to the node's stream since that was last forgotten.
    pub(crate) fn was_handed(&self, node: NodeId, action: ExecutionId) -> bool {
        lock(&self.0).handed.0.contains_key(&(node, action))
    }

    /// Puts something on every stream that is here. One that cannot take more is closed.
    pub(crate) fn push_to_all(&self, owed: &Owed) {
        let mut registry = lock(&self.0);
        let full = |(node, (_, sender)): (&NodeId, &(u64, mpsc::Sender<Box<Owed>>))| {
            sender.try_send(Box::new(owed.clone())).is_err().then_some(*node)
        };
        let ended: Vec<NodeId> = registry.streams.iter().filter_map(full).collect();
        for node in ended {
            registry.end(node);
        }
    }

    /// Ends a node's stream, if it has one here.
    pub(crate) fn disconnect(&self, node: NodeId) {
        lock(&self.0).end(node);
        self.1.notify_one();
    }

    /// Waits until a stream has come or gone.
    pub(crate) async fn changed(&self) {
        self.1.notified().await;
    }

    /// The nodes whose stream came or went since this was last asked.
    pub(crate) fn take_changed(&self) -> HashSet<NodeId> {
        std::mem::take(&mut lock(&self.0).changed)
    }

    /// They could not be told to anybody.
    pub(crate) fn put_back(&self, changed: HashSet<NodeId>) {
        lock(&self.0).changed.extend(changed);
    }

    pub(crate) fn is_connected(&self, node: NodeId) -> bool {
        lock(&self.0).streams.contains_key(&node)
    }

    /// How many nodes have their stream here.
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).streams.len()
    }

    /// Noted before the cancel commits, so that no frame is signed after it without being asked about.
    pub(crate) fn note_cancel(&self, now: Timestamp) {
        let mut registry = lock(&self.0);
        registry.last_cancel = registry.last_cancel.max(Some(now));
    }

    /// Whether what waits in a buffer may have been cancelled meanwhile.
    pub(crate) fn cancelled_since(&self, since: Timestamp) -> bool {
        lock(&self.0).last_cancel >= Some(since)
    }

    /// Ends every stream there is; others may open. Answers how many there were.
    pub(crate) fn end_all(&self) -> usize {
        let mut registry = lock(&self.0);
        let ended: Vec<NodeId> = registry.streams.drain().map(|(node, _)| node).collect();
        let count = ended.len();
        registry.changed.extend(ended);
        self.1.notify_one();
        count
    }

    /// Opens no other stream. Answers how many there are.
    pub(crate) fn open_no_more(&self) -> usize {
        let mut registry = lock(&self.0);
        registry.closed_for_good = true;
        registry.streams.len()
    }

    /// Ends so many of them. Answers how many are left.
    pub(crate) fn end_some(&self, some: usize) -> usize {
        let mut registry = lock(&self.0);
        let ended: Vec<NodeId> = registry.streams.keys().take(some).copied().collect();
        for node in ended {
            registry.end(node);
        }
        registry.streams.len()
    }

    pub(crate) fn opens_no_more(&self) -> bool {
        lock(&self.0).closed_for_good
    }

    /// Ends every stream and opens no other.
    pub(crate) fn close(&self) {
        let mut registry = lock(&self.0);
        registry.closed_for_good = true;
        registry.streams.clear();
    }
}

impl Subscription<'_> {
    /// Whether no newer stream took its place.
    pub(crate) fn is_live(&self) -> bool {
        let registry = lock(&self.registry.0);
        registry
            .streams
            .get(&self.node)
            .is_some_and(|(number, _)| *number == self.number)
    }

    /// The next thing to send; `None` when this stream is to end.
    pub(crate) async fn next(&mut self) -> Option<Owed> {
        self.pushes.recv().await.map(|owed| *owed)
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        if self.is_live() {
            self.registry.disconnect(self.node);
        }
    }
}

/// Wakes those who watch an execution. A wake-up carries no news: the watcher looks in the timeline.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<HashMap<ExecutionId, watch::Sender<()>>>);

impl Watchers {
    /// Registers before looking, so that nothing between the look and the wait is missed.
    pub(crate) fn watch(&self, execution: ExecutionId) -> watch::Receiver<()> {
        let mut watched = lock(&self.0);
        watched.retain(|_, sender| sender.receiver_count() > 0);
        watched.entry(execution).or_default().subscribe()
    }

    pub(crate) fn wake(&self, execution: ExecutionId) {
        if let Some(sender) = lock(&self.0).get(&execution) {
            sender.send_replace(());
        }
    }

    /// News of any of them may have been missed.
    pub(crate) fn wake_all(&self) {
        for sender in lock(&self.0).values() {
            sender.send_replace(());
        }
    }
}

/// How many executions each caller watches here.
#[derive(Default)]
pub(crate) struct Watching(Mutex<HashMap<String, u32>>);

#[derive(Debug, thiserror::Error)]
#[error("the caller watches {0} executions, as many as limits.watches_max allows; end one of them first")]
pub(crate) struct TooManyWatches(u32);

/// A caller's place among those who watch, until it is dropped.
pub(crate) struct Place {
    watching: Arc<Watching>,
    caller: String,
}

impl Watching {
    pub(crate) fn take_place(self: &Arc<Self>, caller: &str, max: u32) -> Result<Place, TooManyWatches> {
        let mut watching = lock(&self.0);
        let count = watching.entry(caller.to_owned()).or_default();
        if *count >= max {
            return Err(TooManyWatches(max));
        }
        *count += 1;
        Ok(Place {
            watching: self.clone(),
            caller: caller.to_owned(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut watching = lock(&self.watching.0);
        let left = watching
            .remove(&self.caller)
            .unwrap_or_default()
            .saturating_sub(1);
        if left > 0 {
            let _ = watching.insert(std::mem::take(&mut self.caller), left);
        }
    }
}

/// A panic while the lock was held left a whole map behind: every change here is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::ids::Digest;

    fn node() -> NodeId {
        NodeId::mint(Timestamp::from_millis(0), [1; 10])
    }

    fn owed() -> Owed {
        Owed::Baseline {
            hook: "h".parse().unwrap(),
            digest: Digest::of(b""),
            approved_at: Timestamp::from_millis(0),
        }
    }

    #[tokio::test]
    async fn a_newer_stream_ends_the_older_and_outlives_its_farewell() {
        let streams = NodeStreams::default();
        let mut older = streams.open(node()).unwrap();
        let mut newer = streams.open(node()).unwrap();
        assert!(older.next().await.is_none());
        drop(older);
        assert!(streams.is_connected(node()));
        streams.push(node(), owed(), Instant::now());
        assert!(newer.next().await.is_some());
        drop(newer);
        assert!(!streams.is_connected(node()));
    }

    #[tokio::test]
    async fn a_stream_that_does_not_read_is_closed_not_buffered() {
        let streams = NodeStreams::default();
        let mut slow = streams.open(node()).unwrap();
        for _ in 0..=PUSHES_MAX {
            streams.push(node(), owed(), Instant::now());
        }
        assert!(!streams.is_connected(node()));
        let mut got = 0;
        while slow.next().await.is_some() {
            got += 1;
        }
        assert_eq!(got, PUSHES_MAX);
    }

    #[tokio::test]
    async fn streams_end_some_at_a_time_and_none_opens_meanwhile() {
        let streams = NodeStreams::default();
        let node = |n| NodeId::mint(Timestamp::from_millis(n), [1; 10]);
        let mut open: Vec<_> = (0..5).map(|n| streams.open(node(n)).unwrap()).collect();
        assert_eq!(streams.open_no_more(), 5);
        assert!(streams.open(node(9)).is_none() && streams.opens_no_more());
        assert_eq!(
            (streams.end_some(2), streams.end_some(2), streams.end_some(2)),
            (3, 1, 0)
        );
        for stream in &mut open {
            assert!(stream.next().await.is_none());
        }
    }

    #[tokio::test]
    async fn all_streams_end_and_nodes_may_come_back() {
        let streams = NodeStreams::default();
        let mut open = streams.open(node()).unwrap();
        let _ = streams.take_changed();
        assert_eq!(streams.end_all(), 1);
        assert!(open.next().await.is_none());
        assert!(
            streams.take_changed().contains(&node()),
            "the other replicas are told"
        );
        drop(open);
        assert!(streams.open(node()).is_some());
    }

    #[test]
    fn what_was_handed_is_known_until_it_is_long_ago() {
        let (within, begun) = (Duration::from_secs(15), Instant::now());
        let action = |n| ExecutionId::mint(Timestamp::from_millis(n), [1; 10]);
        let mut handed = Handed::default();
        handed.note(node(), action(1), begun);
        handed.note(node(), action(2), begun + within / 2);
        for (later, known) in [(within / 2, 2), (within, 1), (2 * within, 0)] {
            handed.forget(within, begun + later);
            assert_eq!(handed.0.len(), known, "{later:?}");
        }
    }

    #[tokio::test]
    async fn after_close_no_stream_opens() {
        let streams = NodeStreams::default();
        let mut open = streams.open(node()).unwrap();
        streams.close();
        assert!(open.next().await.is_none());
        assert!(streams.open(node()).is_none());
    }

    #[test]
    fn a_caller_watches_so_many_and_no_more_until_one_ends() {
        let watching = Arc::new(Watching::default());
        let (first, _second) = (watching.take_place("a", 2).unwrap(), watching.take_place("a", 2));
        let refused = watching.take_place("a", 2).err().map(|err| err.to_string());
        assert!(refused.is_some_and(|why| why.contains("limits.watches_max")));
        let other = watching.take_place("b", 2).unwrap();
        drop(first);
        let _again = watching.take_place("a", 2).unwrap();
        assert!(watching.take_place("a", 2).is_err());
        drop(other);
        assert_eq!(lock(&watching.0).len(), 1, "who watches nothing is forgotten");
    }

    #[tokio::test]
    async fn a_wake_between_look_and_wait_is_not_lost() {
        let watchers = Watchers::default();
        let execution = ExecutionId::mint(Timestamp::from_millis(0), [1; 10]);
        let mut watcher = watchers.watch(execution);
        watchers.wake(execution);
        watcher.changed().await.unwrap();
    }
}
