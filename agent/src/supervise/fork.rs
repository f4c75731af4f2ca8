//! A child that is born in the control group of the hook.
//!
//! To move a process that is there already, the kernel waits until nobody on the machine looks at the groups, and lets no
//! process start or end meanwhile: ten milliseconds and more for each hook. One that is born in its group costs nothing. See
//! clone(2), `CLONE_INTO_CGROUP`.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use rustix::process::Pid;

/// Of <linux/sched.h>, where it is wider than the flags of the older calls.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

pub(super) enum Forked {
    Parent(Pid),
    /// Whether it is in the group.
    Child {
        placed: bool,
    },
}

/// Forks this process, into the group where there is one and the kernel can do that (since 5.7).
///
/// # Safety
/// Until it executes something or ends, the child may do what is async-signal-safe and nothing else.
#[expect(unsafe_code, reason = "no safe wrapper forks")]
pub(super) unsafe fn fork(group: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    // SAFETY: what the caller promises is all that both ask for.
    let into = group.map(|group| unsafe { clone_into(group) });
    match into {
        Some(Ok(0)) => Ok(Forked::Child { placed: true }),
        Some(Ok(child)) => parent_of(child),
        // An older kernel, a sandbox that does not know the call, or a group that takes nobody in this way: whoever is born
        // outside may still be let in.
        Some(Err(_)) | None => {
            // SAFETY: as above.
            match unsafe { libc::fork() } {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(Forked::Child { placed: false }),
                child => parent_of(child.into()),
            }
        }
    }
}

fn parent_of(child: i64) -> io::Result<Forked> {
    let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
    pid.map(Forked::Parent)
        .ok_or_else(|| io::Error::other("the kernel gave a pid that is none"))
}

/// Zero in the child, and its number in the parent.
///
/// # Safety
/// As of [`fork`].
#[expect(unsafe_code, reason = "no wrapper at all makes this system call")]
unsafe fn clone_into(group: BorrowedFd<'_>) -> io::Result<i64> {
    let number = |number: i32| u64::try_from(number).map_err(io::Error::other);
    // SAFETY: it is a struct of numbers, and zero says of each that nothing is asked for.
    let mut asked: libc::clone_args = unsafe { std::mem::zeroed() };
    asked.flags = CLONE_INTO_CGROUP;
    asked.exit_signal = number(libc::SIGCHLD)?;
    asked.cgroup = number(group.as_raw_fd())?;
    // SAFETY: the struct outlives the call and has the size that is said. Without CLONE_VM the child has a copy of everything,
    // its stack included, as after fork(2).
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const asked, size_of_val(&asked)) };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(child)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::process::{WaitOptions, waitpid};

    use super::*;
    use crate::cgroup::Cgroup;

    /// Whether a child was born in there.
    fn is_placed(group: BorrowedFd<'_>) -> bool {
        #[expect(unsafe_code, reason = "that is what is tried here")]
        // SAFETY: the child ends at once.
        let child = match unsafe { fork(Some(group)) }.unwrap() {
            Forked::Child { placed } => unsafe { libc::_exit(placed.into()) },
            Forked::Parent(pid) => pid,
        };
        let (_, ended) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        ended.exit_status() == Some(1)
    }

    #[test]
    fn a_child_is_born_in_the_group_where_there_is_one() {
        let name = format!("muster-test-fork-{}", std::process::id());
        // Where none may be made there is nothing to be born into.
        let Ok(group) = Cgroup::below_own(&name) else {
            return;
        };
        let placed = is_placed(group.open().unwrap().as_fd());
        group.remove().unwrap();
        assert!(placed);
    }

    #[test]
    fn what_takes_nobody_in_has_its_child_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let no_group = std::fs::File::open(dir.path()).unwrap();
        assert!(!is_placed(no_group.as_fd()));
    }
}
