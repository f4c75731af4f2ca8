//! Waiting for a descriptor that tokio has no type for: a process handle, a watched directory.

use std::{io, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;

pub(crate) fn of(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        unsafe_code,
        reason = "tokio has no safe way to register a descriptor of an unknown kind"
    )]
    // SAFETY: an `OwnedFd` names one open file until it is dropped, and `AsyncFd` deregisters it before that.
    let registered = unsafe { AsyncFd::register(fd) };
    Ok(registered?)
}
