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
/// A machine that slept for longer while control was asked has to ask again.
const SLEPT_MS: i64 = 1000;

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

    /// Control answered a question with its time, about half a round trip after it was asked. The node's own clock has no
    /// part in this: it may be set for the first time in between. Says whether the answer was any good.
    pub(crate) fn answered(&self, asked: Moment, answered: Moment, accepted_at: Timestamp) -> bool {
        let round_trip_ms = answered.since_boot_ms.saturating_sub(asked.since_boot_ms);
        let awake_ms = answered.awake_ms.saturating_sub(asked.awake_ms);
        if round_trip_ms.saturating_sub(awake_ms) > SLEPT_MS {
            // On which side of the sleep control was asked, nobody knows.
            return false;
        }
        self.set(asked.since_boot_ms.saturating_add(round_trip_ms / 2), accepted_at);
        true
    }

    fn set(&self, since_boot_ms: i64, at: Timestamp) {
        let booted_ms = at.as_millis().saturating_sub(since_boot_ms);
        self.booted_ms
            .store(booted_ms.max(UNMEASURED + 1), Ordering::Relaxed);
        self.known.send_replace(true);
    }

    /// Control's clock minus the node's own, whose present word is `own`. For whoever has to be told; nothing is judged by it.
    pub(crate) fn offset_ms(&self, own: Timestamp) -> i64 {
        self.now().as_millis().saturating_sub(own.as_millis())
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
            self.set(since_boot_ms(), said);
        }
        // One that is nearly right is left as it is: a heartbeat measures it better.
        self.known.send_replace(true);
    }
}

/// An instant of this machine that no setting of its clock moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    since_boot_ms: i64,
    /// Without the time spent asleep.
    awake_ms: i64,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self {
            awake_ms: millis(ClockId::Monotonic),
            since_boot_ms: since_boot_ms(),
        }
    }
}

/// Time spent asleep included.
fn since_boot_ms() -> i64 {
    millis(ClockId::Boottime)
}

fn millis(clock: ClockId) -> i64 {
    let since = clock_gettime(clock);
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

    fn at(since_boot_ms: i64, awake_ms: i64) -> Moment {
        Moment {
            since_boot_ms,
            awake_ms,
        }
    }

    /// As if a heartbeat had just told it.
    fn tell(clock: &Clock, offset_ms: i64) {
        let now = Moment::now();
        assert!(clock.answered(now, now, Timestamp::now().shifted(offset_ms)));
    }

    #[test]
    fn a_step_of_the_nodes_clock_while_control_answers_leaves_controls_time_right() {
        let (clock, hours_ms) = (Clock::default(), 8 * 3_600_000);
        let asked = Moment::now();
        let answered = at(asked.since_boot_ms + 200, asked.awake_ms + 200);
        // The node's clock was eight hours slow when it asked, and is right when it hears.
        let right = Timestamp::now();
        let slow = right.shifted(-hours_ms);
        assert!(clock.answered(asked, answered, right.shifted(100)));
        let (said, minute) = (clock.now(), Duration::from_secs(60));
        assert!(said >= right && said < right.plus(minute), "{right} {said}");
        let (before, after) = (clock.offset_ms(slow), clock.offset_ms(Timestamp::now()));
        assert!((hours_ms..hours_ms + 60_000).contains(&before), "{before}");
        assert!(after.abs() < 60_000, "{after}");
    }

    #[test]
    fn a_machine_that_slept_while_control_answered_has_learnt_nothing() {
        let (clock, asked) = (Clock::default(), Moment::now());
        let later = |slept_ms| at(asked.since_boot_ms + 50 + slept_ms, asked.awake_ms + 50);
        assert!(!clock.answered(asked, later(SLEPT_MS + 1), Timestamp::from_millis(1)));
        assert!(!clock.is_known());
        assert!(clock.answered(asked, later(SLEPT_MS), Timestamp::from_millis(1)));
        assert!(clock.is_known());
    }

    #[test]
    fn a_measured_clock_goes_on_and_a_date_does_not_move_it() {
        let hours = Duration::from_secs(10 * 3600);
        let clock = Clock::default();
        tell(&clock, 36_000_000);
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
        tell(&clock, -7_200_000);
        assert!(clock.is_known());
        assert!(tokio::time::timeout(wait, clock.reaches(hour_ago)).await.is_err());
        tell(&clock, 0);
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
