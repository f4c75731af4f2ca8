//! The statements that a test made, heard from the log.

use std::sync::{Mutex, OnceLock};

use tokio::sync::MutexGuard;

use crate::store::engine;

struct Statements(Mutex<Vec<String>>);

impl log::Log for Statements {
    fn enabled(&self, about: &log::Metadata<'_>) -> bool {
        about.target() == engine::STATEMENTS
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

static STATEMENTS: Statements = Statements(Mutex::new(Vec::new()));
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Begins to listen; tests that do so go one after another, also in one process.
pub(super) async fn listen() -> MutexGuard<'static, ()> {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    let alone = ALONE.lock().await;
    INSTALLED.get_or_init(|| {
        log::set_logger(&STATEMENTS).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
    STATEMENTS.0.lock().unwrap().clear();
    alone
}

/// What was heard.
pub(super) fn heard() -> Vec<String> {
    std::mem::take(&mut *STATEMENTS.0.lock().unwrap())
}
