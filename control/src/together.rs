//! What arrives together is done together: one group at a time, and each is answered after its own.
//!
//! Nobody waits for company. Whoever finds no group under way begins one; those who come while it is done are the next.
//! So a service at rest answers as soon as ever, and one under load pays for a statement or a commit once for many.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

struct Waiting<W, A> {
    work: W,
    answer: oneshot::Sender<A>,
}

struct Queue<W, A> {
    waiting: Vec<Waiting<W, A>>,
    /// Whether somebody works, and looks here again afterwards.
    led: bool,
}

/// A queue of works of one kind.
pub(crate) struct Together<W, A>(Arc<Mutex<Queue<W, A>>>);

impl<W, A> Default for Together<W, A> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Queue {
            waiting: Vec::new(),
            led: false,
        })))
    }
}

impl<W, A> Clone for Together<W, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Works until nothing waits. It is to run by itself: a caller that goes away must not take the others with it.
pub(crate) type Lead = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Which of those that wait make a group, in the order of arrival; the others are for later ones.
pub(crate) trait Fits<W>: Default {
    fn fits(&mut self, work: &W) -> bool;
}

impl<W: Send + 'static, A: Send + 'static> Together<W, A> {
    fn lock(&self) -> MutexGuard<'_, Queue<W, A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a work done by `serve`, which gets a group and answers each of it in its order; `begin` says where. `None` when
    /// nobody did it, or nobody knows: whoever worked has gone.
    pub(crate) async fn done<G, S, F>(
        &self,
        work: W,
        serve: impl FnOnce() -> S,
        begin: impl FnOnce(Lead),
    ) -> Option<A>
    where
        G: Fits<W> + 'static,
        S: Fn(Vec<W>) -> F + Send + 'static,
        F: Future<Output = Vec<A>> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        if self.push(Waiting { work, answer }) {
            begin(Box::pin(self.clone().lead::<G, S, F>(serve())));
        }
        answered.await.ok()
    }

    /// True for the one who has to see to it that somebody works.
    fn push(&self, waiting: Waiting<W, A>) -> bool {
        let mut queue = self.lock();
        queue.waiting.push(waiting);
        !std::mem::replace(&mut queue.led, true)
    }

    /// The next group. When this answers with none, none is left, and nobody leads.
    fn next<G: Fits<W>>(&self) -> Vec<Waiting<W, A>> {
        let mut queue = self.lock();
        let mut group = G::default();
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut queue.waiting)
            .into_iter()
            .partition(|waiting| group.fits(&waiting.work));
        queue.waiting = later;
        queue.led = !now.is_empty();
        now
    }

    async fn lead<G, S, F>(self, serve: S)
    where
        G: Fits<W>,
        S: Fn(Vec<W>) -> F,
        F: Future<Output = Vec<A>>,
    {
        let leading = Leading(&self);
        loop {
            let (works, askers): (Vec<W>, Vec<_>) = self
                .next::<G>()
                .into_iter()
                .map(|waiting| (waiting.work, waiting.answer))
                .unzip();
            if works.is_empty() {
                std::mem::forget(leading);
                return;
            }
            for (asker, answer) in askers.into_iter().zip(serve(works).await) {
                // Whoever asked may have gone.
                let _ = asker.send(answer);
            }
        }
    }
}

/// Should it not come to its end, the next work begins anew.
struct Leading<'a, W, A>(&'a Together<W, A>);

impl<W, A> Drop for Leading<'_, W, A> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).led = false;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// Two at most, and no two of the same tens.
    #[derive(Default)]
    struct OfDifferentTens(Vec<u32>);

    impl Fits<u32> for OfDifferentTens {
        fn fits(&mut self, work: &u32) -> bool {
            let fits = self.0.len() < 2 && !self.0.contains(&(work / 10));
            if fits {
                self.0.push(work / 10);
            }
            fits
        }
    }

    fn by_itself(lead: Lead) {
        drop(tokio::spawn(lead));
    }

    /// A queue whose groups say that they have begun, and go on when they are let.
    #[derive(Clone)]
    struct Gated {
        queue: Together<u32, (u32, usize)>,
        begun: Arc<Semaphore>,
        gate: Arc<Semaphore>,
    }

    impl Gated {
        fn new() -> Self {
            Self {
                queue: Together::default(),
                begun: Arc::new(Semaphore::new(0)),
                gate: Arc::new(Semaphore::new(0)),
            }
        }

        /// Answered with itself and the size of its group.
        async fn ask(self, work: u32) -> Option<(u32, usize)> {
            let (begun, gate) = (Arc::clone(&self.begun), Arc::clone(&self.gate));
            let serve = move |works: Vec<u32>| {
                begun.add_permits(1);
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    let size = works.len();
                    works.into_iter().map(|work| (work, size)).collect()
                }
            };
            self.queue
                .done::<OfDifferentTens, _, _>(work, || serve, by_itself)
                .await
        }

        async fn one_has_begun(&self) {
            self.begun.acquire().await.unwrap().forget();
        }
    }

    #[tokio::test]
    async fn those_who_come_while_a_group_is_done_are_the_next_as_far_as_they_fit() {
        let gated = Gated::new();
        let mut asked = vec![tokio::spawn(gated.clone().ask(1))];
        gated.one_has_begun().await;
        for work in [2, 3, 12, 22, 4] {
            asked.push(tokio::spawn(gated.clone().ask(work)));
            tokio::task::yield_now().await;
        }
        gated.gate.add_permits(100);
        let mut answers = Vec::new();
        for one in asked {
            answers.push(one.await.unwrap().unwrap());
        }
        assert_eq!(answers, [(1, 1), (2, 2), (3, 2), (12, 2), (22, 2), (4, 1)]);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_takes_nobody_with_it() {
        let gated = Gated::new();
        let gone = tokio::spawn(gated.clone().ask(1));
        gated.one_has_begun().await;
        let stays = tokio::spawn(gated.clone().ask(2));
        tokio::task::yield_now().await;
        gone.abort();
        gated.gate.add_permits(100);
        assert_eq!(stays.await.unwrap(), Some((2, 1)));
    }

    #[tokio::test]
    async fn after_one_that_broke_down_the_next_begins_anew() {
        let numbers = Together::<u32, u32>::default();
        let broken = |_: Vec<u32>| async { panic!("as a test has it") };
        assert_eq!(
            numbers
                .done::<OfDifferentTens, _, _>(1, || broken, by_itself)
                .await,
            None
        );
        let sound = |works: Vec<u32>| async { works };
        assert_eq!(
            numbers
                .done::<OfDifferentTens, _, _>(2, || sound, by_itself)
                .await,
            Some(2)
        );
    }
}
