//! Log lines: to journald with structured fields where that is there, else to standard error.

use log::LevelFilter;

/// Installs the logger. `MUSTER_LOG` sets the level: error, warn, info (the default), debug or trace.
pub(crate) fn install() {
    let asked = std::env::var("MUSTER_LOG").ok();
    let level = asked
        .as_deref()
        .and_then(|l| l.parse().ok())
        .unwrap_or(LevelFilter::Info);
    if systemd_journal_logger::connected_to_journal()
        && let Ok(journal) = systemd_journal_logger::JournalLog::new()
        && journal.install().is_ok()
    {
        log::set_max_level(level);
        return;
    }
    // Libraries talk at the levels of their own authors; ours is what an admin wants to read.
    env_logger::Builder::new()
        .filter_level(LevelFilter::Warn)
        .filter_module("muster_control", level)
        .init();
}
