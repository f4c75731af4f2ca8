//! Waiting for a descriptor that tokio has no type for: a process handle, a watched directory.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{
    io::unix::{AsyncFd, AsyncFdRegisterError},
    time::sleep,
};

/// How often a process is looked at whose end nobody will tell.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(crate) fn of(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    Ok(register(fd)?)
}

fn register(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, AsyncFdRegisterError<OwnedFd>> {
    #[expect(
        unsafe_code,
        reason = "tokio has no safe way to register a descriptor of an unknown kind"
    )]
    // SAFETY: an `OwnedFd` names one open file until it is dropped, and `AsyncFd` deregisters it before that.
    unsafe {
        AsyncFd::register(fd)
    }
}

/// The handle of a process, by which its end is waited for.
pub(crate) enum Life {
    Told(AsyncFd<OwnedFd>),
    /// It could not be registered: for want of memory, or of what the system allows to be watched.
    LookedAt(OwnedFd),
}

impl Life {
    pub(crate) fn of(handle: OwnedFd) -> (Self, Option<io::Error>) {
        match register(handle) {
            Ok(told) => (Self::Told(told), None),
            Err(err) => {
                let (handle, err) = err.into_parts();
                (Self::LookedAt(handle), Some(err))
            }
        }
    }

    pub(crate) fn handle(&self) -> &OwnedFd {
        match self {
            Self::Told(told) => told.get_ref(),
            Self::LookedAt(handle) => handle,
        }
    }

    /// Returns when the process has ended, and never before.
    pub(crate) async fn is_over(&self) {
        if let Self::Told(told) = self
            && told.readable().await.is_ok()
        {
            return;
        }
        while !has_ended(self.handle()) {
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// A handle is readable once its process has ended. Who cannot look has not seen it.
fn has_ended(handle: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(handle, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut asked, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[tokio::test]
    async fn an_end_is_noticed_whether_it_is_told_or_looked_for_and_not_before() {
        for looked_at in [false, true] {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
            let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            let life = if looked_at {
                Life::LookedAt(handle)
            } else {
                Life::of(handle).0
            };
            let wait = Duration::from_millis(50);
            assert!(tokio::time::timeout(wait, life.is_over()).await.is_err());
            child.kill().unwrap();
            life.is_over().await;
            child.wait().unwrap();
        }
    }
}
