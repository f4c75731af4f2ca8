//! What is typed as a duration, in the whole seconds that control counts in.

use std::time::Duration;

/// Rounded up: a fraction must not become none.
pub(crate) const fn whole(duration: Duration) -> u64 {
    let more = if duration.subsec_nanos() > 0 { 1 } else { 0 };
    duration.as_secs().saturating_add(more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_second_is_asked_for_as_one() {
        assert_eq!(whole(Duration::ZERO), 0);
        assert_eq!(whole(Duration::from_millis(1)), 1);
        assert_eq!(whole(Duration::from_secs(90)), 90);
        assert_eq!(whole(Duration::MAX), u64::MAX);
    }
}
