//! What a swarm has seen, as its one who asks wants to know it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Default)]
pub struct Tally {
    pub connected: AtomicU64,
    /// Streams that were opened, reopened ones included.
    pub opened: AtomicU64,
    pub full_handshakes: AtomicU64,
    pub resumed_handshakes: AtomicU64,
    /// Requests that were sent again, because the way to control broke off or control asked for it.
    pub retries: AtomicU64,
    pub requests: AtomicU64,
    pub settled: AtomicU64,
    pub heartbeats: AtomicU64,
    round: Mutex<Option<Round>>,
    pub changed: Notify,
    trouble: Mutex<Vec<String>>,
}

#[derive(Clone, Copy)]
struct Round {
    settled_before: u64,
    count: u64,
    first_request: Option<Instant>,
    last_request: Option<Instant>,
    first_end: Option<Instant>,
}

/// A dispatch that all its nodes have ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RoundDone {
    pub nodes: u64,
    /// From the first request that arrived: the last request, the first end that control took, the last one.
    pub last_request_ms: f64,
    pub first_end_ms: f64,
    pub last_end_ms: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    pub connected: u64,
    pub opened: u64,
    pub full_handshakes: u64,
    pub resumed_handshakes: u64,
    pub retries: u64,
    pub requests: u64,
    pub settled: u64,
    pub heartbeats: u64,
    pub journal_syncs: u64,
    pub resident_kib: u64,
    pub trouble: Vec<String>,
}

/// How much trouble is worth telling.
const TROUBLE_MAX: usize = 20;

pub fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    /// From here on so many invocations are one round.
    pub fn expect(&self, count: u64) {
        let round = Round {
            settled_before: self.settled.load(Ordering::SeqCst),
            count,
            first_request: None,
            last_request: None,
            first_end: None,
        };
        *lock(&self.round) = Some(round);
    }

    pub fn request_arrived(&self) {
        let now = Instant::now();
        if let Some(round) = &mut *lock(&self.round) {
            round.first_request.get_or_insert(now);
            round.last_request = Some(now);
        }
    }

    /// Answers with what the round came to when this was its last.
    pub fn end_taken(&self) -> Option<RoundDone> {
        let now = Instant::now();
        let mut open = lock(&self.round);
        let settled = self.settled.fetch_add(1, Ordering::SeqCst) + 1;
        let round = open.as_mut()?;
        round.first_end.get_or_insert(now);
        if settled - round.settled_before < round.count {
            return None;
        }
        let round = open.take()?;
        let begun = round.first_request?;
        let since = |at: Option<Instant>| at.map_or(0.0, |at| (at - begun).as_secs_f64() * 1000.0);
        Some(RoundDone {
            nodes: round.count,
            last_request_ms: since(round.last_request),
            first_end_ms: since(round.first_end),
            last_end_ms: since(Some(now)),
        })
    }

    pub fn note_trouble(&self, what: String) {
        let mut trouble = lock(&self.trouble);
        if trouble.len() < TROUBLE_MAX {
            trouble.push(what);
        }
    }

    #[must_use]
    pub fn counts(&self, journal_syncs: u64) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            connected: of(&self.connected),
            opened: of(&self.opened),
            full_handshakes: of(&self.full_handshakes),
            resumed_handshakes: of(&self.resumed_handshakes),
            retries: of(&self.retries),
            requests: of(&self.requests),
            settled: of(&self.settled),
            heartbeats: of(&self.heartbeats),
            journal_syncs,
            resident_kib: crate::swarm::resident_kib(),
            trouble: lock(&self.trouble).clone(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_end_of_a_round_tells_what_it_came_to() {
        let tally = Tally::default();
        tally.request_arrived();
        assert!(tally.end_taken().is_none(), "nobody asked");
        tally.expect(2);
        tally.request_arrived();
        tally.request_arrived();
        assert!(tally.end_taken().is_none());
        let done = tally.end_taken().unwrap();
        assert_eq!(done.nodes, 2);
        assert!(done.first_end_ms <= done.last_end_ms);
        assert!(tally.end_taken().is_none());
    }
}
