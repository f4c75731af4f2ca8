//! What systemd is told of the daemon: that it is ready, what it is about, and that it is still getting on.
//!
//! Elsewhere nobody listens, and all of this does nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::Instant;

/// Fed by the main loop as it goes round, and by nothing else: a loop that is stuck goes hungry.
pub(crate) struct Service {
    ready: bool,
    /// How often systemd is to hear of us: thrice as often as it asks.
    every: Option<Duration>,
    fed_at: Option<Instant>,
}

impl Service {
    pub(crate) fn new() -> Self {
        Self {
            ready: false,
            every: sd_notify::watchdog_enabled().map(|limit| limit / 3),
            fed_at: None,
        }
    }

    /// Ready is a daemon whose stream has opened, and one that has tried: an outage of control is no failure of the
    /// node, and what waits for the unit must not wait for the network.
    pub(crate) fn ready(&mut self, status: &str) {
        if self.ready {
            return tell(&[NotifyState::Status(status)]);
        }
        self.ready = true;
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// One round of the main loop.
    pub(crate) fn went_round(&mut self) {
        let Some(every) = self.every else { return };
        if self.fed_at.is_none_or(|at| at.elapsed() >= every) {
            self.fed_at = Some(Instant::now());
            tell(&[NotifyState::Watchdog]);
        }
    }

    /// When the next round is due, if nothing happens before.
    pub(crate) fn next_round(&self) -> Option<Instant> {
        Some(self.fed_at? + self.every?)
    }
}

pub(crate) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(err) = sd_notify::notify(what) {
        log::debug!(error:% = err; "systemd could not be told");
    }
}
