//! Work that may break without harm to any other. The panic itself is told on standard error, where it happened.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

/// None where it panicked. What it was about to say is lost; what it shares with others is behind locks that are not held
/// across a step, or is not changed by it.
pub(crate) async fn unharmed<T>(work: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(work).catch_unwind().await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer_and_no_end() {
        let breaks = async |breaks: bool| {
            tokio::task::yield_now().await;
            assert!(!breaks, "it breaks");
            7
        };
        assert_eq!(unharmed(breaks(false)).await, Some(7));
        assert_eq!(unharmed(breaks(true)).await, None);
    }
}
