//! The node's idea of control's time. Once it was measured it goes on by the time since boot: no step of the node's own
//! clock, as when it is set for the first time, makes anything expire or come to life again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use muster_shared::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::{sync::watch, time::sleep};

use crate::retry_after;

/// From here on a clock is called wrong.
pub(crate) const SKEW_WARN: Duration = Duration::from_secs(5);
const UNMEASURED: i64 = i64::MIN;
/// Time goes on while the machine sleeps, and timers may not, so none is longer.
const SLEEP_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// The instant of boot, in control's time.
    booted_ms: Arc<AtomicI64>,
    /// Whether control has said in this life what time it is. Until then nothing is taken for over that cannot be undone.
    known: Arc<watch::Sender<bool>>,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            booted_ms: Arc::new(AtomicI64::new(UNMEASURED)),
            known: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl Clock {
    /// The instant that control would name now: what expiry is judged by.
    pub(crate) fn now(&self) -> Timestamp {
        match self.booted_ms.load(Ordering::Relaxed) {
            UNMEASURED => Timestamp::now(),
            booted_ms => Timestamp::from_millis(booted_ms).shifted(since_boot_ms()),
        }
    }

    pub(crate) fn set_offset_ms(&self, offset_ms: i64) {
        let now = Timestamp::now().shifted(offset_ms);
        let booted_ms = now.as_millis().saturating_sub(since_boot_ms());
        self.booted_ms
            .store(booted_ms.max(UNMEASURED + 1), Ordering::Relaxed);
        self.known.send_replace(true);
    }

    pub(crate) fn is_known(&self) -> bool {
        *self.known.borrow()
    }

    /// Waits until it is known that this instant has come. Where control is never heard of it never is.
    pub(crate) async fn reaches(&self, at: Timestamp) {
        let mut known = self.known.subscribe();
        if known.wait_for(|known| *known).await.is_err() {
            return std::future::pending().await;
        }
        loop {
            let left = self.now().until(at);
            if left.is_zero() {
                return;
            }
            sleep(left.min(SLEEP_MAX)).await;
        }
    }

    /// Takes a `Date` of control for its clock while no heartbeat has measured that any better.
    pub(crate) fn estimate(&self, date: &str) {
        if self.booted_ms.load(Ordering::Relaxed) != UNMEASURED {
            return;
        }
        let Some(said) = retry_after::instant(date) else {
            return;
        };
        let offset_ms = offset_ms(Timestamp::now(), Duration::ZERO, said);
        if Duration::from_millis(offset_ms.unsigned_abs()) > SKEW_WARN {
            log::warn!(offset_ms; "clock_skew: this node's clock is off, by the date of control's answer");
            self.set_offset_ms(offset_ms);
        }
        // One that is nearly right is left as it is: a heartbeat measures it better.
        self.known.send_replace(true);
    }
}

/// Time spent asleep included.
fn since_boot_ms() -> i64 {
    let since = clock_gettime(ClockId::Boottime);
    since
        .tv_sec
        .saturating_mul(1000)
        .saturating_add(since.tv_nsec / 1_000_000)
}

/// Control's clock minus ours, in milliseconds: control answered about half a round trip after we asked.
pub(crate) fn offset_ms(asked_at: Timestamp, round_trip: Duration, answered_at: Timestamp) -> i64 {
    answered_at
        .as_millis()
        .saturating_sub(asked_at.plus(round_trip / 2).as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_taken_at_the_middle_of_the_round_trip() {
        let at = Timestamp::from_millis;
        assert_eq!(offset_ms(at(1_000), Duration::from_millis(100), at(1_050)), 0);
        assert_eq!(
            offset_ms(at(1_000), Duration::from_millis(100), at(601_050)),
            600_000
        );
        assert_eq!(offset_ms(at(601_000), Duration::ZERO, at(1_000)), -600_000);
    }

    #[test]
    fn a_measured_clock_goes_on_and_a_date_does_not_move_it() {
        let hours = Duration::from_secs(10 * 3600);
        let clock = Clock::default();
        clock.set_offset_ms(36_000_000);
        clock.estimate("Sun, 06 Nov 1994 08:49:37 GMT");
        let first = clock.now();
        assert!(first >= Timestamp::now().plus(hours).minus(Duration::from_secs(60)));
        assert!(clock.now() >= first);
    }

    #[tokio::test]
    async fn no_instant_is_reached_before_control_has_said_what_time_it_is() {
        let clock = Clock::default();
        let wait = Duration::from_millis(50);
        let hour_ago = Timestamp::now().minus(Duration::from_secs(3600));
        assert!(!clock.is_known());
        assert!(tokio::time::timeout(wait, clock.reaches(hour_ago)).await.is_err());
        // Two hours fast, so that it has not come.
        clock.set_offset_ms(-7_200_000);
        assert!(clock.is_known());
        assert!(tokio::time::timeout(wait, clock.reaches(hour_ago)).await.is_err());
        clock.set_offset_ms(0);
        clock.reaches(hour_ago).await;

        let right = Clock::default();
        right.estimate("no date");
        assert!(!right.is_known());
        let since = u64::try_from(Timestamp::now().as_millis()).unwrap();
        let now = std::time::UNIX_EPOCH + Duration::from_millis(since);
        right.estimate(&httpdate::fmt_http_date(now));
        right.reaches(hour_ago).await;
    }

    #[test]
    fn a_date_stands_in_for_a_measurement() {
        let clock = Clock::default();
        clock.estimate("no date");
        assert!(clock.now() > Timestamp::from_millis(1_000_000_000_000));
        clock.estimate("Sun, 06 Nov 1994 08:49:37 GMT");
        let said = Timestamp::from_millis(784_111_777_000);
        assert!(clock.now() >= said && said.until(clock.now()) < Duration::from_secs(3600));
    }
}
