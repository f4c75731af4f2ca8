//! How many builtins work on threads of the daemon at the same time: fewer than it has for blocking work.
//!
//! A slot is held until the work is over, not only until its time is: a builtin that hangs on a dead disk keeps its slot,
//! and so can never take every thread that the daemon itself needs.

use std::sync::Arc;

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

const SHARED_MAX: usize = 8;

/// What a builtin waits for before it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// It touches nothing that could hang.
    Free,
    Shared,
    /// It looks at every mounted file system, and one that is dead holds it for ever. One may hang so, and no other is
    /// held up by it but its like.
    FileSystems,
}

pub(crate) struct Slots {
    shared: Arc<Semaphore>,
    file_systems: Arc<Semaphore>,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::new(Semaphore::new(SHARED_MAX)),
            file_systems: Arc::new(Semaphore::new(1)),
        }
    }

    /// A thread of its own: a panic in there ends that work and nothing else.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        slot: Slot,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let slots = match slot {
            Slot::Free => None,
            Slot::Shared => Some(&self.shared),
            Slot::FileSystems => Some(&self.file_systems),
        };
        let held = match slots {
            Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
            None => None,
        };
        spawn_blocking(move || {
            let _held = held;
            work()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::time::timeout;

    use super::*;

    /// Long enough for whoever is let in, and lost on whoever is not.
    const WHILE: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn what_hangs_on_a_dead_file_system_holds_up_its_like_alone() {
        let slots = Slots::new();
        let (let_go, held) = mpsc::channel::<()>();
        let hangs = slots.work(Slot::FileSystems, move || held.recv().is_err());
        let mut hangs = std::pin::pin!(hangs);
        assert!(timeout(WHILE, &mut hangs).await.is_err());
        for _ in 0..2 * SHARED_MAX {
            // Given up when its time is over: it has not begun, and takes nothing from anybody.
            let waits = slots.work(Slot::FileSystems, || ());
            assert!(timeout(WHILE / 20, waits).await.is_err());
        }
        for slot in [Slot::Free, Slot::Shared] {
            assert_eq!(slots.work(slot, || 7).await.unwrap(), 7);
        }
        drop(let_go);
        hangs.await.unwrap();
        assert_eq!(slots.work(Slot::FileSystems, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn what_needs_no_slot_begins_also_where_none_is_left() {
        let slots = Arc::new(Slots::new());
        let (let_go, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..SHARED_MAX {
            let (slots, held) = (Arc::clone(&slots), Arc::clone(&held));
            all.spawn(async move {
                let hang = move || held.lock().unwrap().recv().is_err();
                slots.work(Slot::Shared, hang).await
            });
        }
        assert!(timeout(WHILE, all.join_next()).await.is_err());
        assert!(timeout(WHILE, slots.work(Slot::Shared, || 7)).await.is_err());
        assert_eq!(slots.work(Slot::Free, || 7).await.unwrap(), 7);
        drop(let_go);
        while let Some(ended) = all.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}
