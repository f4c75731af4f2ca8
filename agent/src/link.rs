//! Whether the event stream is up, and why not: kept for whoever asks the daemon on its own machine.

use std::time::Duration;

use muster_shared::time::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) connected: bool,
    /// Since when it is so.
    pub(crate) since: Timestamp,
    /// Attempts that failed one after the other.
    pub(crate) failures: u64,
    /// Why it was lost, or could not be had, the last time.
    pub(crate) last_error: Option<String>,
    pub(crate) next_attempt_at: Option<Timestamp>,
}

impl Link {
    const fn not_yet(now: Timestamp) -> Self {
        Self {
            connected: false,
            since: now,
            failures: 0,
            last_error: None,
            next_attempt_at: None,
        }
    }

    fn up(&mut self, now: Timestamp) {
        (self.connected, self.since) = (true, now);
        (self.failures, self.next_attempt_at) = (0, None);
    }

    fn down(&mut self, why: String, failures: u64, wait: Duration, now: Timestamp) {
        if self.connected {
            (self.connected, self.since) = (false, now);
        }
        (self.failures, self.last_error) = (failures, Some(why));
        self.next_attempt_at = Some(now.plus(wait));
    }
}

/// Held by whoever opens the stream.
pub(crate) struct Teller(watch::Sender<Link>);

impl Teller {
    pub(crate) fn new(now: Timestamp) -> (Self, watch::Receiver<Link>) {
        let (told, seen) = watch::channel(Link::not_yet(now));
        (Self(told), seen)
    }

    pub(crate) fn up(&self) {
        self.0.send_modify(|link| link.up(Timestamp::now()));
    }

    pub(crate) fn down(&self, why: &str, failures: u64, wait: Duration) {
        self.0
            .send_modify(|link| link.down(why.to_owned(), failures, wait, Timestamp::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_down_since_it_was_lost_and_not_since_the_last_attempt() {
        let at = Timestamp::from_millis;
        let mut link = Link::not_yet(at(0));
        link.up(at(10));
        assert_eq!((link.connected, link.since), (true, at(10)));
        link.down("lost".into(), 0, Duration::from_millis(5), at(20));
        link.down("refused".into(), 1, Duration::from_millis(7), at(30));
        assert_eq!(
            link,
            Link {
                connected: false,
                since: at(20),
                failures: 1,
                last_error: Some("refused".into()),
                next_attempt_at: Some(at(37)),
            }
        );
        link.up(at(40));
        assert_eq!(
            (link.since, link.failures, link.next_attempt_at),
            (at(40), 0, None)
        );
        assert_eq!(link.last_error.as_deref(), Some("refused"));
    }
}
