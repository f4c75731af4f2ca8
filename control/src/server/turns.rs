//! Whose handshake is next, when more come than the machine can do at once.
//!
//! After a restart every node is back within a second. With all handshakes under way together each takes as long as all of
//! them, and who asks for the health of control waits behind ten thousand. So a few have a turn at a time, and the rest
//! wait as bare sockets. The newest goes first: it is the one whose peer has most of its patience left, and whoever was
//! passed over for long has most likely gone.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

#[derive(Clone)]
pub(super) struct Turns(Arc<Mutex<State>>);

struct State {
    free: usize,
    /// The newest last.
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

impl Turns {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: count,
            waiting: VecDeque::new(),
        })))
    }

    pub(super) async fn take(&self) -> Turn {
        let (call, called) = oneshot::channel();
        {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return self.turn();
            }
            // They all wait equally long, so whoever gave up is at the front.
            while state.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                state.waiting.pop_front();
            }
            state.waiting.push_back(call);
        }
        // Who is called is in the queue, which is there as long as `self` is.
        called.await.unwrap_or_else(|_| self.turn())
    }

    fn turn(&self) -> Turn {
        Turn(Some(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the newest that still waits go on.
    fn pass_on(&self) {
        let mut state = self.state();
        while let Some(call) = state.waiting.pop_back() {
            match call.send(self.turn()) {
                Ok(()) => return,
                Err(mut unwanted) => unwanted.0 = None,
            }
        }
        state.free += 1;
    }
}

/// Passed on when it is dropped, also by one that gave up in the moment it was called.
pub(super) struct Turn(Option<Turns>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Poll, time::Duration};

    use futures_util::poll;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn as_many_as_there_are_turns_go_at_once_and_the_newest_of_the_others_next() {
        let turns = Turns::new(2);
        let (first, second) = (turns.take().await, turns.take().await);
        let (mut older, mut newer) = (pin!(turns.take()), pin!(turns.take()));
        assert!(poll!(&mut older).is_pending());
        assert!(poll!(&mut newer).is_pending());
        drop(first);
        assert!(poll!(&mut older).is_pending());
        let Poll::Ready(third) = poll!(&mut newer) else {
            panic!("the newest has its turn")
        };
        drop((second, third));
        assert!(poll!(&mut older).is_ready());
        assert_eq!(turns.state().free, 2);
    }

    #[tokio::test]
    async fn a_turn_of_one_that_gave_up_is_not_lost() {
        let turns = Turns::new(1);
        let only = turns.take().await;
        {
            let (mut waits, mut gives_up) = (pin!(turns.take()), Box::pin(turns.take()));
            assert!(poll!(&mut waits).is_pending());
            assert!(poll!(&mut gives_up).is_pending());
            drop(only);
            // It was called and does not come.
            drop(gives_up);
            assert!(poll!(&mut waits).is_ready());
        }
        assert_eq!(turns.state().free, 1);
    }

    #[tokio::test]
    async fn those_that_gave_up_are_not_kept() {
        let turns = Turns::new(1);
        let only = turns.take().await;
        for _ in 0..100 {
            assert!(timeout(Duration::ZERO, turns.take()).await.is_err());
        }
        assert!(turns.state().waiting.len() <= 1);
        drop(only);
        let state = turns.state();
        assert_eq!((state.free, state.waiting.len()), (1, 0));
    }
}
