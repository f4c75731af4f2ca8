//! The node's idea of control's time: its own clock, moved by the offset that heartbeats measure.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use muster_shared::time::Timestamp;

/// From here on a clock is called wrong.
pub(crate) const SKEW_WARN: Duration = Duration::from_secs(5);

#[derive(Clone, Default)]
pub(crate) struct Clock {
    offset_ms: Arc<AtomicI64>,
}

impl Clock {
    /// The instant that control would name now: what expiry is judged by.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now().shifted(self.offset_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn set_offset_ms(&self, offset_ms: i64) {
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }
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
}
