//! Hooks run by a real supervisor process: this test binary, started again under another name of the same test.

mod ends;
mod not_run;
mod streams;

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::*;
use crate::{outcome::Ended, run_dir::Found};

const RUN_DIR: &str = "MUSTER_TEST_SUPERVISE";
/// Set where the system is to let nobody make a control group.
const NO_GROUP: &str = "MUSTER_TEST_NO_GROUP";

/// Not a test of its own: the supervisor that the other tests start.
#[test]
fn as_supervisor() {
    if let Ok(run_dir) = std::env::var(RUN_DIR) {
        let refused = |_: &str| Err(io::ErrorKind::PermissionDenied.into());
        let make_group = if std::env::var_os(NO_GROUP).is_some() {
            refused
        } else {
            Cgroup::below_own
        };
        supervise(&RunDir::at(run_dir.into()), make_group).unwrap();
    }
}

struct Ran {
    outcome: Outcome,
    output: String,
    took: Duration,
}

struct Run {
    dir: tempfile::TempDir,
    supervisor: std::process::Child,
    since: Instant,
}

fn start(script: &str, adjust: impl FnOnce(&mut Spec)) -> Run {
    start_after(script, adjust, |_| ())
}

fn start_after(script: &str, adjust: impl FnOnce(&mut Spec), before: impl FnOnce(&RunDir)) -> Run {
    start_with(script, adjust, before, |_| ())
}

fn start_with(
    script: &str,
    adjust: impl FnOnce(&mut Spec),
    before: impl FnOnce(&RunDir),
    command: impl FnOnce(&mut Command),
) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::at(dir.path().join("run"));
    run.create().unwrap();
    let mut spec = Spec::of_hook(script.as_bytes());
    adjust(&mut spec);
    run.write_spec(&spec).unwrap();
    before(&run);
    let hook = hold::hold(script.as_bytes(), dir.path()).unwrap().fd;
    let mut supervisor = Command::new("/proc/self/exe");
    supervisor
        .args(["--exact", "supervise::tests::as_supervisor", "--nocapture"])
        .env(RUN_DIR, run.path())
        .stdin(Stdio::from(hook))
        .stdout(Stdio::null());
    command(&mut supervisor);
    let supervisor = supervisor.spawn().unwrap();
    Run {
        dir,
        supervisor,
        since: Instant::now(),
    }
}

impl Run {
    fn run_dir(&self) -> RunDir {
        RunDir::at(self.dir.path().join("run"))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.supervisor.id()).unwrap()).unwrap()
    }

    fn ended(self) -> Ran {
        let since = self.since;
        let (outcome, dir) = outcome_of(self);
        let output = fs::read_to_string(RunDir::at(dir.path().join("run")).output()).unwrap();
        Ran {
            outcome,
            output,
            took: since.elapsed(),
        }
    }
}

fn outcome_of(mut run: Run) -> (Outcome, tempfile::TempDir) {
    let status = run.supervisor.wait().unwrap();
    assert!(status.success(), "the supervisor failed: {status}");
    let Found::Ended(outcome) = run.run_dir().examine("boot").unwrap() else {
        panic!("no record")
    };
    (outcome, run.dir)
}

fn ran(script: &str) -> Ran {
    start(script, |_| ()).ended()
}

fn gone(pid: &str) -> bool {
    procfs::stat(pid.parse().unwrap()).is_none_or(|stat| stat.zombie)
}

/// Where a hook leaves word for its test, as the parameter `dir`.
fn with_dir(dir: &tempfile::TempDir) -> impl FnOnce(&mut Spec) {
    let path = dir.path().to_str().unwrap().to_owned();
    |spec| drop(spec.parameters.insert("dir".into(), path.into()))
}

fn said(dir: &tempfile::TempDir, name: &str) -> String {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        match fs::read_to_string(dir.path().join(name)) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ if Instant::now() > give_up => panic!("the hook never wrote {name}"),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
