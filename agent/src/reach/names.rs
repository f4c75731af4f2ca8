//! Names are looked up by the system, anew for every connection: control may have moved while it was away.

use std::{net::SocketAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

/// A look-up takes a thread until the system gives up, long after whoever asked. Those of a dead resolver must not take
/// all the threads that the daemon has for its hooks.
const LOOK_UPS_AT_ONCE_MAX: usize = 4;

#[derive(Clone)]
pub(super) struct Names(Arc<Semaphore>);

impl Default for Names {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOK_UPS_AT_ONCE_MAX)))
    }
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("names of the system")
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let slots = Arc::clone(&self.0);
        Box::pin(async move {
            let slot = slots.acquire_owned().await?;
            // On its own, so that the slot comes back when the look-up ends and not when nobody waits for it any more.
            let look_up = tokio::spawn(async move {
                let found = tokio::net::lookup_host((name.as_str(), 0)).await;
                let found = found.map(|found| found.collect::<Vec<SocketAddr>>());
                drop(slot);
                found
            });
            let found = look_up.await??;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_system_is_asked_and_slots_come_back() {
        let names = Names::default();
        for _ in 0..2 * LOOK_UPS_AT_ONCE_MAX {
            let found = names.resolve("localhost".parse().unwrap()).await.unwrap();
            assert!(found.into_iter().all(|address| address.ip().is_loopback()));
        }
        assert_eq!(names.0.available_permits(), LOOK_UPS_AT_ONCE_MAX);
    }

    #[tokio::test]
    async fn a_look_up_that_nobody_waits_for_keeps_its_slot_until_it_ends() {
        let names = Names::default();
        let mut asked = names.resolve("localhost".parse().unwrap());
        // Begun, and given up at once.
        assert!((&mut asked).now_or_never().is_none());
        drop(asked);
        assert_eq!(names.0.available_permits(), LOOK_UPS_AT_ONCE_MAX - 1);
        while names.0.available_permits() < LOOK_UPS_AT_ONCE_MAX {
            tokio::task::yield_now().await;
        }
    }
}
