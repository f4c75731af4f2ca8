//! The admin's word that whatever waits to be tried again is to be tried now. It carries no news: who does not wait at that
//! moment has nothing to do.

use tokio::sync::watch;

pub(crate) struct Kicker(watch::Sender<()>);

#[derive(Clone)]
pub(crate) struct Kicks(watch::Receiver<()>);

impl Kicker {
    pub(crate) fn new() -> (Self, Kicks) {
        let (kicker, kicks) = watch::channel(());
        (Self(kicker), Kicks(kicks))
    }

    pub(crate) fn kick(&self) {
        self.0.send_replace(());
    }
}

impl Kicks {
    /// Those up to now are for tries that are over.
    pub(crate) fn forget(&mut self) {
        self.0.mark_unchanged();
    }

    /// At once where there was one since they were forgotten.
    pub(crate) async fn kicked(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody is left who could.
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_kicked(kicks: &mut Kicks) -> bool {
        let wait = Duration::from_millis(50);
        tokio::time::timeout(wait, kicks.kicked()).await.is_ok()
    }

    #[tokio::test]
    async fn a_kick_in_the_middle_of_a_try_is_for_the_wait_after_it() {
        let (kicker, mut kicks) = Kicker::new();
        assert!(!is_kicked(&mut kicks).await);
        kicker.kick();
        assert!(is_kicked(&mut kicks).await);
        assert!(!is_kicked(&mut kicks).await, "it counts once");
        kicker.kick();
        kicks.forget();
        assert!(!is_kicked(&mut kicks).await);
        drop(kicker);
        assert!(!is_kicked(&mut kicks).await);
    }
}
