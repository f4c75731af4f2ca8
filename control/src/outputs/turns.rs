//! One upload of an output at a time. A node whose connection broke comes again long before this service has noticed, so
//! the newer one counts: it ends the older, and begins once that has given back its place.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<String, Newest>>>);

/// The newest upload of a key.
struct Newest {
    replaced: CancellationToken,
    /// Held by the one that is under way, which may be the one before.
    gate: Arc<tokio::sync::Mutex<()>>,
}

/// The right to upload one output, until it is dropped or replaced.
pub(super) struct Turn {
    turns: Turns,
    key: String,
    replaced: CancellationToken,
    gate: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Newest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what is under way for this key, and waits until it has let go. `None` when a newer one came meanwhile.
    pub(super) async fn take(&self, key: &str) -> Option<Turn> {
        let replaced = CancellationToken::new();
        let gate = match self.lock().entry(key.to_owned()) {
            std::collections::hash_map::Entry::Occupied(mut before) => {
                let before = before.get_mut();
                std::mem::replace(&mut before.replaced, replaced.clone()).cancel();
                Arc::clone(&before.gate)
            }
            std::collections::hash_map::Entry::Vacant(none) => {
                let (gate, replaced) = (Arc::default(), replaced.clone());
                Arc::clone(&none.insert(Newest { replaced, gate }).gate)
            }
        };
        let mut turn = Turn {
            turns: self.clone(),
            key: key.to_owned(),
            replaced,
            gate: None,
        };
        tokio::select! {
            biased;
            () = turn.replaced.cancelled() => return None,
            held = gate.lock_owned() => turn.gate = Some(held),
        }
        Some(turn)
    }
}

impl Turn {
    /// Waits until a newer one came.
    pub(super) async fn replaced(&self) {
        self.replaced.cancelled().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        // Whoever was replaced has left no entry of its own: that is the newer one's.
        if !self.replaced.is_cancelled() {
            turns.remove(&self.key);
        }
        drop(turns);
        self.gate = None;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_newest_begins_once_the_one_before_has_let_go() {
        let turns = Turns::default();
        let first = turns.take("a").await.unwrap();
        assert!(first.replaced().now_or_never().is_none());
        let other = turns.take("b").await.unwrap();
        let (mut second, mut third) = (Box::pin(turns.take("a")), Box::pin(turns.take("a")));
        assert!(second.as_mut().now_or_never().is_none(), "the first is under way");
        first.replaced().await;
        assert!(third.as_mut().now_or_never().is_none());
        assert!(second.await.is_none(), "a newer one came before it began");
        drop(first);
        let third = third.await.unwrap();
        assert!(third.replaced().now_or_never().is_none());
        assert!(other.replaced().now_or_never().is_none(), "each key by itself");
        drop((third, other));
        assert!(turns.lock().is_empty(), "nothing is kept of what ended");
        drop(turns.take("a").await.unwrap());
    }

    #[tokio::test]
    async fn one_that_gives_up_while_it_waits_leaves_the_next_a_free_way() {
        let turns = Turns::default();
        let first = turns.take("a").await.unwrap();
        let mut waits = Box::pin(turns.take("a"));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(waits);
        drop(first);
        let _next = turns.take("a").await.unwrap();
    }
}
