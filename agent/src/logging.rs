//! Log lines: to the journal of systemd with their fields when it is there, else to standard error as one line.

use std::io::Write as _;

use log::{Level, LevelFilter, Log, Metadata, Record, kv};
use muster_shared::time::Timestamp;

/// Prints the bodies of events at debug and trace, so it is never heard below a warning.
const TALKATIVE: [&str; 2] = ["eventsource_client", "launchdarkly"];

pub(crate) fn install() {
    install_at(LevelFilter::Info);
}

/// With a level for when the environment names none.
pub(crate) fn install_at(default: LevelFilter) {
    let level = std::env::var("MUSTER_LOG")
        .ok()
        .and_then(|raw| raw.parse().ok())
        .unwrap_or(default);
    let journal = (systemd_journal_logger::connected_to_journal() || in_unit_of_hook())
        .then(|| systemd_journal_logger::JournalLog::new().ok())
        .flatten();
    let sink = journal.map_or(Sink::Stderr, Sink::Journal);
    // Only a second call in one process can fail, and then the first one's logger stands.
    if log::set_boxed_logger(Box::new(Logger { sink, level })).is_ok() {
        log::set_max_level(level);
    }
}

/// A supervisor in a unit of its own has its standard error in a file, for its node to read, and logs to the journal all
/// the same. systemd sets the variable for the processes of units, and nobody hands it on to a supervisor.
fn in_unit_of_hook() -> bool {
    let supervises = std::env::args_os().nth(1).is_some_and(|verb| verb == "supervise");
    supervises && std::env::var_os("INVOCATION_ID").is_some()
}

enum Sink {
    Journal(systemd_journal_logger::JournalLog),
    Stderr,
}

struct Logger {
    sink: Sink,
    level: LevelFilter,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target().starts_with("musterd");
        let limit = if ours {
            self.level
        } else {
            self.level.min(LevelFilter::Warn)
        };
        let talkative = TALKATIVE.iter().any(|name| metadata.target().starts_with(name));
        metadata.level() <= if talkative { LevelFilter::Error } else { limit }
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        match &self.sink {
            Sink::Journal(journal) => journal.log(record),
            Sink::Stderr => say_on_stderr(&line(record)),
        }
    }

    fn flush(&self) {}
}

fn line(record: &Record<'_>) -> String {
    let mut text = format!(
        "{} {} {}",
        Timestamp::now(),
        level_name(record.level()),
        record.args()
    );
    // A visitor of a formatter's own making cannot fail.
    let _ = record.key_values().visit(&mut Fields(&mut text));
    text.replace('\n', " ")
}

const fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

struct Fields<'a>(&'a mut String);

impl<'kvs> kv::VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: kv::Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        // It is for journald alone.
        if key.as_str() == "message_id" {
            return Ok(());
        }
        self.0.push_str(&format!(" {key}={value}"));
        Ok(())
    }
}

/// The one place that writes to standard error. A closed one is no reason to stop.
pub(crate) fn say_on_stderr(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Byte for byte. Whoever has heard enough may hang up.
pub(crate) fn copy_to_stdout(from: &mut impl std::io::Read) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match std::io::copy(from, &mut out).and_then(|_| out.flush()) {
        Err(err) if err.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        copied => copied,
    }
}

/// The one place that writes lines to standard output.
pub(crate) fn say_on_stdout(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
