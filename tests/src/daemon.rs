//! A process that a story started, ended by its own id and by nothing wider.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// How much of a log is worth printing when a story fails.
const LOG_TAIL_LINES: usize = 200;
/// A supervisor gives its hook ten seconds between the polite signal and the other one.
const STOPPING_TAKES_AT_MOST: Duration = Duration::from_secs(15);

pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Daemon {
    /// Starts it with its output appended to `log`, so that a restarted daemon goes on in the same file.
    #[must_use]
    pub fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("the log can be opened");
        let err = out.try_clone().expect("a descriptor can be cloned");
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|err| panic!("{name} does not start: {err}"));
        Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            ended: None,
        }
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its exit status, once it has one.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("an own child can be waited for");
        }
        self.ended
    }

    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            let pid =
                Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("a pid is not zero");
            kill_process(pid, signal).expect("an own child can be signalled");
        }
    }

    pub fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.ended = Some(self.child.wait().expect("an own child can be waited for"));
    }

    /// Asks it to stop and waits until it did.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.end().await
    }

    /// Waits for its own end.
    pub async fn end(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        wait::until(&what, async || self.ended()).await
    }

    #[expect(
        clippy::print_stderr,
        reason = "the log of a failed story is for the person who reads the failure"
    )]
    fn print_log(&self) {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_TAIL_LINES);
        eprintln!(
            "--- {} (pid {}), last lines of its log",
            self.name,
            self.child.id()
        );
        for line in &lines[from..] {
            eprintln!("{}: {line}", self.name);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_log();
            if let Some(status) = self.ended().filter(|s| s.signal().is_none()) {
                self.say_it_ended(status);
            }
        }
        if self.ended.is_none() {
            // Its exit is not interesting any more; what it left behind is the world's to check.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Daemon {
    #[expect(
        clippy::print_stderr,
        reason = "the log of a failed story is for the person who reads the failure"
    )]
    fn say_it_ended(&self, status: ExitStatus) {
        eprintln!("--- {} had ended by itself: {status}", self.name);
    }
}

/// The `musterd supervise` processes whose arguments lie under `dir`.
#[must_use]
pub fn supervisors_under(dir: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
            .and_then(Pid::from_raw)
        else {
            continue;
        };
        let cmdline = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = cmdline.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let supervises = words.nth(1).is_some_and(|word| word == "supervise");
        if supervises && words.any(|word| word.contains(&*dir.to_string_lossy())) {
            found.push(pid);
        }
    }
    found
}

/// Ends the supervisors of one world, and with them their hooks: a supervisor that is asked to stop ends its hook first.
pub fn end_supervisors_under(dir: &Path) {
    for signal in [Signal::TERM, Signal::KILL] {
        for pid in supervisors_under(dir) {
            // It may have ended by itself since it was seen.
            let _ = kill_process(pid, signal);
        }
        let deadline = Instant::now() + STOPPING_TAKES_AT_MOST;
        while !supervisors_under(dir).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
