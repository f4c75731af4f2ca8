//! Counts the effects that outlive this process, so that a story can stop it dead right after any one of them, or have the
//! task break or the thread hang that had it.
//!
//! Only in builds with debug assertions. A release knows neither the variables nor the count.

/// To be called wherever something has become durable, or visible to somebody else: a commit, a file that is on disk, a
/// rename, a process that was spawned, a callback that was answered.
#[cfg(not(debug_assertions))]
pub(crate) const fn done(_what: &'static str) {}

#[cfg(debug_assertions)]
pub(crate) use counted::{done, for_supervisor};

/// What a supervisor has to find in its environment.
#[cfg(not(debug_assertions))]
pub(crate) const fn for_supervisor() -> Option<(&'static str, String)> {
    None
}

#[cfg(debug_assertions)]
mod counted {
    use std::{
        path::PathBuf,
        sync::{
            OnceLock,
            atomic::{AtomicBool, AtomicU64, Ordering},
        },
    };

    use rustix::process::{Signal, getpid, kill_process};

    /// `COUNT:FILE`: stop after so many, and say in that file after which kind. `KIND:FILE`: after the first of that kind.
    const STOP_AFTER: &str = "MUSTER_STOP_AFTER_EFFECT";
    /// The same, of the supervisors that the daemon starts.
    const STOP_SUPERVISOR_AFTER: &str = "MUSTER_STOP_SUPERVISOR_AFTER_EFFECT";
    /// `KIND`: panic after the first of that kind.
    const PANIC_AFTER: &str = "MUSTER_PANIC_AFTER_EFFECT";

    /// `KIND:FILE`: hold up the thread for good after the first of that kind, unless that file is there, which is made before.
    const HOLD_AFTER: &str = "MUSTER_HOLD_AFTER_EFFECT";

    /// After which effect, and the file that a story looks at.
    struct Breakpoint {
        after: String,
        file: PathBuf,
    }

    fn asked(of: &str) -> Option<Breakpoint> {
        let asked = std::env::var(of).ok()?;
        let (after, file) = asked.split_once(':')?;
        Some(Breakpoint {
            after: after.to_owned(),
            file: file.into(),
        })
    }

    fn break_after(what: &str) {
        static KIND: OnceLock<Option<String>> = OnceLock::new();
        static BROKEN: AtomicBool = AtomicBool::new(false);
        let kind = KIND.get_or_init(|| std::env::var(PANIC_AFTER).ok());
        if kind.as_deref() == Some(what) {
            let before = BROKEN.swap(true, Ordering::SeqCst);
            assert!(before, "a story wants this to break after {what}");
        }
    }

    fn hold_after(what: &str) {
        static ASKED: OnceLock<Option<Breakpoint>> = OnceLock::new();
        let asked = ASKED.get_or_init(|| asked(HOLD_AFTER)).as_ref();
        let Some(asked) = asked.filter(|asked| asked.after == what && !asked.file.exists()) else {
            return;
        };
        let _ = std::fs::write(&asked.file, what);
        loop {
            std::thread::park();
        }
    }

    pub(crate) fn done(what: &'static str) {
        break_after(what);
        hold_after(what);
        static ASKED: OnceLock<Option<Breakpoint>> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let Some(Breakpoint { after, file }) = ASKED.get_or_init(|| asked(STOP_AFTER)) else {
            return;
        };
        let count = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
        if after == what || after.parse() == Ok(count) {
            let _ = std::fs::write(file, what);
            // As `kill -9` would: nothing is unwound and nothing is flushed.
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }

    pub(crate) fn for_supervisor() -> Option<(&'static str, String)> {
        Some((STOP_AFTER, std::env::var(STOP_SUPERVISOR_AFTER).ok()?))
    }
}
