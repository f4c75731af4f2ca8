//! Notices changes of the hooks directory. What it says is a hint to look again, never what to believe.

use std::{
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::{io::unix::AsyncFd, time::sleep};

use crate::{
    declare::{Poke, Pokes},
    readiness,
};

/// An installation touches several files at once: wait until it has gone quiet.
const SETTLE: Duration = Duration::from_millis(200);
/// Installations that never go quiet are looked at all the same.
const SETTLE_ROUNDS_MAX: u32 = 10;
/// A directory that is not there yet is looked for this often.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

pub(crate) async fn watch(dir: PathBuf, pokes: Pokes) {
    loop {
        match open(&dir) {
            Ok(watched) => {
                // What changed before, and after it was last looked at, nobody will tell.
                pokes.poke(Poke::Rescan);
                follow(&watched, &pokes).await;
            }
            Err(err) => {
                log::debug!(error:% = err, dir:% = dir.display(); "The hooks directory cannot be watched");
                sleep(LOOK_AGAIN).await;
            }
        }
        pokes.poke(Poke::Rescan);
    }
}

fn open(dir: &Path) -> std::io::Result<AsyncFd<OwnedFd>> {
    let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let changes = WatchFlags::CLOSE_WRITE
        | WatchFlags::ATTRIB
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&fd, dir, changes)?;
    readiness::of(fd)
}

/// Returns when the directory itself has gone, or something stands in its place.
async fn follow(watched: &AsyncFd<OwnedFd>, pokes: &Pokes) {
    loop {
        let mut ended = wait(watched).await;
        for _ in 0..SETTLE_ROUNDS_MAX {
            match tokio::time::timeout(SETTLE, wait(watched)).await {
                Ok(also) => ended |= also,
                Err(_quiet) => break,
            }
        }
        if ended {
            return;
        }
        pokes.poke(Poke::Rescan);
    }
}

/// Waits for changes and takes them all. Says whether the watch is over.
async fn wait(watched: &AsyncFd<OwnedFd>) -> bool {
    let Ok(mut ready) = watched.readable().await else {
        return true;
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watched.get_ref(), &mut buffer);
    let mut over = false;
    loop {
        match reader.next() {
            Ok(event) => {
                over |= event.events().intersects(
                    ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
                );
            }
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(_) => return true,
        }
    }
    ready.clear_ready();
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn asked_to_look(pokes: &Pokes) {
        pokes.poked().await;
        assert!(pokes.take(Poke::Rescan));
    }

    #[tokio::test]
    async fn a_watch_that_begins_asks_for_a_look_for_what_came_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let pokes = Pokes::default();
        // After the first look, and before the watch.
        std::fs::write(dir.path().join("hook"), "#!x").unwrap();
        let watching = tokio::spawn(watch(dir.path().to_owned(), pokes.clone()));
        asked_to_look(&pokes).await;
        std::fs::write(dir.path().join("other"), "#!x").unwrap();
        asked_to_look(&pokes).await;
        watching.abort();
    }
}
