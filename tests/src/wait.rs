//! Waiting for a fact, with a bound.

use std::time::Duration;

use tokio::time::Instant;

/// How long a fact that should come true soon may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Looks until there is something to see, and panics with `what` when there never is.
pub async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, look).await
}

/// Like [`until`], for facts that are promised within a stated time.
pub async fn until_within<T>(patience: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(fact) = look().await {
            return fact;
        }
        assert!(Instant::now() < deadline, "waited {patience:?} in vain: {what}");
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}
