//! How much the built-in store holds, and whether more has a place. Counted once, and then kept; counted again before
//! anything is turned away, because others may have removed something meanwhile.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a count is believed that leaves no place for more.
const BELIEVED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error(
        "the output store is full: it holds {has} bytes, {wanted} more are to come, and it may hold {max} (limits.output_store_bytes_max)"
    )]
    Full { has: u64, wanted: u64, max: u64 },
    #[error("the output store could not be counted")]
    Io(#[from] io::Error),
}

#[derive(Clone)]
pub(super) struct Room {
    dir: PathBuf,
    max: u64,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    /// What lies there, and since when that is known.
    counted: Option<(u64, Instant)>,
    /// What is on its way.
    coming: u64,
}

/// A place for one upload. It is given back when this is dropped.
pub(super) struct Place {
    room: Room,
    bytes: u64,
}

impl Room {
    pub(super) fn new(dir: PathBuf, max: u64) -> Self {
        let held = Arc::default();
        Self { dir, max, held }
    }

    pub(super) const fn max(&self) -> u64 {
        self.max
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so much more has a place now.
    pub(super) async fn check(&self, bytes: u64) -> Result<(), NoRoom> {
        self.take(bytes).await.map(drop)
    }

    pub(super) async fn take(&self, bytes: u64) -> Result<Place, NoRoom> {
        let tried = self.try_take(bytes, Instant::now());
        if let Ok(place) = tried {
            return place;
        }
        let (dir, at) = (self.dir.clone(), Instant::now());
        let count = tokio::task::spawn_blocking(move || bytes_below(&dir));
        let count = count.await.map_err(io::Error::other)??;
        self.held().counted = Some((count, at));
        let again = self.try_take(bytes, at);
        again.unwrap_or_else(|has| Err(self.full(has, bytes)))
    }

    /// An error is what seems to be held, and has to be counted first.
    fn try_take(&self, bytes: u64, now: Instant) -> Result<Result<Place, NoRoom>, u64> {
        let mut held = self.held();
        let Some((has, since)) = held.counted else {
            return Err(0);
        };
        let has = has.saturating_add(held.coming);
        if has.saturating_add(bytes) > self.max {
            let fresh = now.duration_since(since) < BELIEVED_FOR;
            return if fresh && now != since {
                Ok(Err(self.full(has, bytes)))
            } else {
                Err(has)
            };
        }
        held.coming += bytes;
        drop(held);
        let room = self.clone();
        Ok(Ok(Place { room, bytes }))
    }

    const fn full(&self, has: u64, wanted: u64) -> NoRoom {
        let max = self.max;
        NoRoom::Full { has, wanted, max }
    }

    /// So much is gone.
    pub(super) fn freed(&self, bytes: u64) {
        if let Some((count, _)) = &mut self.held().counted {
            *count = count.saturating_sub(bytes);
        }
    }
}

impl Place {
    /// What came is in its place, where so much lay before.
    pub(super) fn filled(self, before: u64) {
        if let Some((count, _)) = &mut self.room.held().counted {
            *count = count.saturating_sub(before).saturating_add(self.bytes);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.room.held();
        held.coming = held.coming.saturating_sub(self.bytes);
    }
}

/// What is in place; an upload under way is counted by its own place.
pub(super) fn bytes_below(dir: &Path) -> io::Result<u64> {
    let entries = match std::fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        let about = match entry.metadata() {
            // Removed since it was listed.
            Err(err) if err.kind() == io::ErrorKind::NotFound => continue,
            about => about?,
        };
        if about.is_dir() {
            bytes += bytes_below(&entry.path())?;
        } else if !entry.file_name().to_string_lossy().starts_with('.') {
            bytes += about.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_no_place_is_turned_away_and_what_goes_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/output"), [0; 60]).unwrap();
        std::fs::write(dir.path().join("a/.x.part"), [0; 60]).unwrap();
        let room = Room::new(dir.path().to_owned(), 100);
        let place = room.take(40).await.unwrap();
        let refused = room.take(1).await.map(drop).unwrap_err();
        assert!(
            refused.to_string().contains("limits.output_store_bytes_max"),
            "{refused}"
        );
        drop(place);
        // The same again, over what lay there.
        room.take(40).await.unwrap().filled(40);
        room.take(40).await.unwrap().filled(0);
        assert!(room.check(1).await.is_err());
        room.freed(40);
        room.check(40).await.unwrap();
        assert!(room.check(41).await.is_err());
    }

    #[tokio::test]
    async fn what_somebody_else_removed_is_found_out_before_anything_is_turned_away() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("output"), [0; 90]).unwrap();
        let room = Room::new(dir.path().to_owned(), 100);
        room.check(10).await.unwrap();
        std::fs::remove_file(dir.path().join("output")).unwrap();
        room.held().counted = Some((90, Instant::now() - BELIEVED_FOR));
        room.check(100).await.unwrap();
    }
}
