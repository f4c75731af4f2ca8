//! The time that a target has, counted from its release. Pure.

use std::time::Duration;

use muster_shared::time::Timestamp;

/// The time that a target has, from its release on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadlines {
    /// Until when its node may take it.
    pub(crate) deliver_by: Timestamp,
    /// Until when it may run.
    pub(crate) expires_at: Timestamp,
}

impl Deadlines {
    /// Delivery and run share the timeout, unless delivery has a time of its own: then a node that takes it at the last
    /// moment still has the whole timeout to run.
    pub(crate) fn of(timeout_seconds: u32, deliver_within_seconds: Option<u32>, released: Timestamp) -> Self {
        let timeout = Duration::from_secs(timeout_seconds.into());
        match deliver_within_seconds {
            None => Self {
                deliver_by: released.plus(timeout),
                expires_at: released.plus(timeout),
            },
            Some(seconds) => {
                let deliver_by = released.plus(Duration::from_secs(seconds.into()));
                Self {
                    deliver_by,
                    expires_at: deliver_by.plus(timeout),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_millis(s * 1000)
    }

    #[test]
    fn a_late_delivery_leaves_the_whole_run_time_where_it_has_a_time_of_its_own() {
        let shared = Deadlines::of(60, None, at(100));
        assert_eq!((shared.deliver_by, shared.expires_at), (at(160), at(160)));
        let apart = Deadlines::of(60, Some(10), at(100));
        assert_eq!((apart.deliver_by, apart.expires_at), (at(110), at(170)));
    }
}
