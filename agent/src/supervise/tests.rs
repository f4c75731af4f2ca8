//! Hooks run by a real supervisor process: this test binary, started again under another name of the same test.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::*;
use crate::{
    outcome::{Ended, Output},
    run_dir::Found,
};

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

#[test]
fn both_outputs_arrive_in_the_order_they_were_written() {
    let ran = ran("#!/bin/sh\necho one; echo two >&2; echo three; exit 3\n");
    assert_eq!(ran.outcome.ended, Ended::Exited { code: 3 });
    assert_eq!(ran.output, "one\ntwo\nthree\n");
}

#[test]
fn parameters_arrive_on_standard_input_and_it_ends() {
    let script = "#!/bin/sh\ncat; echo; echo \"$MUSTER_PARAM_NAME\"; read -r more || echo end\n";
    let name = "a b\"$(x)";
    let ran = start(script, |spec| {
        drop(spec.parameters.insert("name".into(), name.into()))
    })
    .ended();
    assert_eq!(
        ran.output,
        format!("{}\n{name}\nend\n", serde_json::json!({ "name": name }))
    );
    assert_eq!(self::ran("#!/bin/sh\ncat\n").output, "{}");
}

#[test]
fn what_a_hook_prints_of_a_secret_is_masked_and_counted_as_it_is_kept() {
    let script =
        "#!/bin/sh\nprintf %s \"${MUSTER_PARAM_KEY%%2}\"; sleep 0.1; echo 2 is \"$MUSTER_PARAM_PIN\"\ncat\n";
    let ran = start(script, |spec| {
        spec.parameters.insert("key".into(), "hunter2".into());
        spec.parameters.insert("pin".into(), "123".into());
        spec.secret = ["key", "pin"].map(str::to_owned).into();
    })
    .ended();
    assert!(!ran.output.contains("hunter2"), "{}", ran.output);
    // Of what is shorter than four bytes it would say nothing less.
    assert!(ran.output.contains("******** is 123\n"), "{}", ran.output);
    assert!(
        ran.output.ends_with("{\"key\":\"********\",\"pin\":\"123\"}"),
        "{}",
        ran.output
    );
    let Output::Spool {
        kept_bytes,
        total_bytes,
        sha256,
    } = ran.outcome.output
    else {
        panic!("{:?}", ran.outcome)
    };
    let length = ran.output.len() as u64;
    assert_eq!((kept_bytes, total_bytes), (length, length));
    assert_eq!(sha256, muster_shared::ids::Digest::of(ran.output.as_bytes()));
}

#[test]
fn the_environment_is_the_documented_one_and_nothing_is_inherited() {
    let ran = ran(
        "#!/bin/sh\nenv | cut -d= -f1 | grep -v '^_$' | sort | tr '\\n' ' '; umask; pwd; ls /proc/self/fd | wc -l\n",
    );
    let expected =
        "HOME LANG LOGNAME MUSTER_ACTION MUSTER_EXECUTION_ID MUSTER_NODE_ID PATH PWD USER 0022\n/\n";
    assert!(ran.output.starts_with(expected), "{}", ran.output);
    // Three, the sealed script, the directory that is being listed, and the shell's own copy of the script.
    let open: u32 = ran.output.lines().last().unwrap().trim().parse().unwrap();
    assert!(open <= 6, "{open} descriptors");
}

#[test]
fn a_death_by_signal_is_told_as_one() {
    assert_eq!(
        ran("#!/bin/sh\nkill -9 $$\n").outcome.ended,
        Ended::Signalled { signal: 9 }
    );
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

#[test]
fn a_timeout_ends_the_tree_with_those_who_left_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\ncd \"$MUSTER_PARAM_DIR\"\nsleep 600 & echo $! >plain\n\
                  setsid sh -c 'trap \"\" TERM; echo $$ >escaped; while :; do sleep 600; done' & wait\n";
    let run = start(script, |spec| {
        with_dir(&dir)(spec);
        spec.limit_ms = 1_000;
    });
    let (plain, escaped) = (said(&dir, "plain"), said(&dir, "escaped"));
    let ran = run.ended();
    assert_eq!(
        ran.outcome.ended,
        Ended::TimedOut {
            limit_ms: 1_000,
            killed: false
        }
    );
    assert!(gone(&plain) && gone(&escaped));
    assert!(ran.took < Duration::from_secs(5), "{:?}", ran.took);
    assert!(ran.outcome.remark.unwrap().contains("left-behind"));
}

#[test]
fn a_hook_that_will_not_hear_is_killed_after_the_grace() {
    let run = start("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n", |spec| {
        spec.limit_ms = 300
    });
    let ran = run.ended();
    assert_eq!(
        ran.outcome.ended,
        Ended::TimedOut {
            limit_ms: 300,
            killed: true
        }
    );
    assert!(ran.took < Duration::from_secs(5), "{:?}", ran.took);
}

/// A shell without a trap ends at once when it is asked to. What it had started may take its time.
#[test]
fn who_is_left_of_a_hook_that_was_stopped_has_the_whole_grace() {
    const SCRIPT: &str = "#!/bin/sh\ncd \"$MUSTER_PARAM_DIR\"\n\
                          sh -c 'trap \"sleep 1; echo put away; echo tidy >tidied; exit\" TERM; echo $$ >child; \
                          while :; do sleep 0.1; done' &\nwait\n";
    const LIMIT_MS: u64 = 1_500;
    for grouped in [true, false] {
        for timed_out in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let adjust = |spec: &mut Spec| {
                with_dir(&dir)(spec);
                spec.stop_grace_ms = 20_000;
                if timed_out {
                    spec.limit_ms = LIMIT_MS;
                }
            };
            let run = start_with(
                SCRIPT,
                adjust,
                |_| (),
                |command| {
                    if !grouped {
                        command.env(NO_GROUP, "");
                    }
                },
            );
            let child = said(&dir, "child");
            if !timed_out {
                rustix::process::kill_process(run.pid(), Signal::TERM).unwrap();
            }
            let ran = run.ended();
            let expected = if timed_out {
                Ended::TimedOut {
                    limit_ms: LIMIT_MS,
                    killed: false,
                }
            } else {
                Ended::Stopped { processes_killed: 0 }
            };
            assert_eq!((ran.outcome.ended, ran.outcome.remark), (expected, None));
            assert_eq!(said(&dir, "tidied"), "tidy");
            // Before it, the shell may say that its own child was ended.
            assert!(ran.output.ends_with("put away\n"), "{}", ran.output);
            assert!(gone(&child));
        }
    }
}

/// The news of both wait for the supervisor when it is let go on, and it may hear either first.
#[test]
fn a_hook_that_ended_before_it_was_to_be_stopped_is_told_as_it_ended() {
    const LIMIT_MS: u64 = 300;
    let script =
        "#!/bin/sh\ncd \"$MUSTER_PARAM_DIR\"; echo $$ >pid; while [ ! -e go ]; do sleep 0.01; done; exit 7\n";
    for timed_out in [true, false] {
        for _ in 0..12 {
            let dir = tempfile::tempdir().unwrap();
            let run = start(script, |spec| {
                with_dir(&dir)(spec);
                if timed_out {
                    spec.limit_ms = LIMIT_MS;
                }
            });
            let hook = said(&dir, "pid");
            rustix::process::kill_process(run.pid(), Signal::STOP).unwrap();
            fs::write(dir.path().join("go"), "").unwrap();
            while !gone(&hook) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if timed_out {
                std::thread::sleep(Duration::from_millis(LIMIT_MS));
            } else {
                rustix::process::kill_process(run.pid(), Signal::TERM).unwrap();
            }
            rustix::process::kill_process(run.pid(), Signal::CONT).unwrap();
            assert_eq!(run.ended().outcome.ended, Ended::Exited { code: 7 });
        }
    }
}

#[test]
fn a_pipe_kept_open_by_a_daemon_does_not_hold_up_the_result() {
    let ran = ran("#!/bin/sh\nsetsid sleep 600 &\necho done\n");
    assert_eq!(ran.outcome.ended, Ended::Exited { code: 0 });
    assert_eq!(ran.output, "done\n");
    assert!(ran.took < Duration::from_secs(4), "{:?}", ran.took);
}

/// Writes without end into what another process has for its standard output.
fn fill(pid: &str) -> std::process::Child {
    let pipe = fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/fd/1"))
        .unwrap();
    Command::new("yes").stdout(pipe).spawn().unwrap()
}

#[test]
fn a_pipe_that_a_stranger_fills_for_ever_does_not_hold_up_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\ncd \"$MUSTER_PARAM_DIR\"; echo done; echo $$ >pid\n\
                  while ! [ -e held ]; do sleep 0.01; done\n";
    let run = start(script, with_dir(&dir));
    let mut stranger = fill(&said(&dir, "pid"));
    fs::write(dir.path().join("held"), "").unwrap();
    let ran = run.ended();
    assert_eq!(ran.outcome.ended, Ended::Exited { code: 0 });
    assert!(ran.output.starts_with("done\n"));
    // Nobody reads what it writes any more.
    assert!(!stranger.wait().unwrap().success());
}

#[test]
fn five_megabytes_pass_whole() {
    let ran = ran("#!/bin/sh\nhead -c 5000000 /dev/zero | tr '\\0' x\n");
    assert_eq!(ran.output.len(), 5_000_000);
    let Output::Spool {
        kept_bytes,
        total_bytes,
        ..
    } = ran.outcome.output
    else {
        panic!()
    };
    assert_eq!((kept_bytes, total_bytes), (5_000_000, 5_000_000));
}

#[test]
fn a_supervisor_that_is_asked_to_stop_stops_the_hook() {
    let dir = tempfile::tempdir().unwrap();
    let run = start(
        "#!/bin/sh\necho $$ >\"$MUSTER_PARAM_DIR/pid\"; exec sleep 600\n",
        with_dir(&dir),
    );
    let hook = said(&dir, "pid");
    rustix::process::kill_process(run.pid(), Signal::TERM).unwrap();
    assert_eq!(run.ended().outcome.ended, Ended::Stopped { processes_killed: 0 });
    assert!(gone(&hook));
}

#[test]
fn a_stop_ends_the_tree_with_those_who_will_not_hear_and_counts_them() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\ncd \"$MUSTER_PARAM_DIR\"\n\
                  setsid sh -c 'trap \"\" TERM; echo $$ >escaped; while :; do read -r x </dev/zero; done' & sleep 600\n";
    let run = start(script, with_dir(&dir));
    let escaped = said(&dir, "escaped");
    rustix::process::kill_process(run.pid(), Signal::TERM).unwrap();
    let ran = run.ended();
    assert_eq!(ran.outcome.ended, Ended::Stopped { processes_killed: 1 });
    assert_eq!(ran.outcome.remark, None);
    assert!(gone(&escaped));
}

#[test]
fn a_hook_dies_with_its_supervisor_and_is_told_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = start(
        "#!/bin/sh\necho $$ >\"$MUSTER_PARAM_DIR/pid\"; exec sleep 600\n",
        with_dir(&dir),
    );
    let hook = said(&dir, "pid");
    rustix::process::kill_process(run.pid(), Signal::KILL).unwrap();
    run.supervisor.wait().unwrap();
    assert!(matches!(run.run_dir().examine("boot").unwrap(), Found::Lost(_)));
    let give_up = Instant::now() + Duration::from_secs(5);
    while !gone(&hook) {
        assert!(Instant::now() < give_up, "the hook lives on unattended");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Only an empty one can be removed.
    if let Some(group) = run.run_dir().cgroup() {
        fs::remove_dir(group).unwrap();
    }
}

#[test]
fn other_bytes_than_those_that_were_hashed_are_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\necho ran >\"$MUSTER_PARAM_DIR/ran\"\n";
    let mut run = start(script, |spec| {
        with_dir(&dir)(spec);
        spec.work = Work::Hook {
            digest: muster_shared::ids::Digest::of(b"other"),
        };
    });
    assert!(!run.supervisor.wait().unwrap().success());
    assert!(matches!(run.run_dir().examine("boot").unwrap(), Found::NeverRan));
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn those_who_left_everything_else_are_asked_first_and_then_gone() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\ncd \"$MUSTER_PARAM_DIR\"\n\
                  (setsid sh -c 'trap \"echo heard >heard; exit\" TERM; echo $$ >away; while :; do sleep 0.1; done' &)\n\
                  sleep 600\n";
    let run = start(script, with_dir(&dir));
    let away = said(&dir, "away");
    rustix::process::kill_process(run.pid(), Signal::TERM).unwrap();
    assert_eq!(run.ended().outcome.ended, Ended::Stopped { processes_killed: 0 });
    assert_eq!(said(&dir, "heard"), "heard");
    assert!(gone(&away));
}

#[test]
fn a_script_whose_interpreter_is_missing_is_refused_in_words() {
    let (outcome, _dir) = outcome_of(start("#!/nowhere/sh\n", |_| ()));
    let Ended::Refused { code, why } = outcome.ended else {
        panic!("{outcome:?}")
    };
    assert_eq!(code, "hook_not_started");
    assert!(why.contains("interpreter"), "{why}");
}

#[test]
fn what_the_kernel_takes_for_no_program_is_not_given_to_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("ran");
    let commands = format!("\necho ran >{}\n", mark.display());
    // A header that says that it is a program, and nothing behind it but commands.
    for script in [commands.clone(), format!("\x7fELF\x02\x01\x01{commands}")] {
        let (outcome, _dir) = outcome_of(start(&script, |_| ()));
        let Ended::Refused { code, why } = outcome.ended else {
            panic!("{outcome:?}")
        };
        assert_eq!(code, "hook_not_started");
        assert!(why.contains("no program"), "{why}");
        assert!(!mark.exists());
    }
}

#[test]
fn what_fails_before_the_hook_is_there_is_told_as_no_start() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\necho ran >\"$MUSTER_PARAM_DIR/ran\"\n";
    let run = start_after(script, with_dir(&dir), |run| {
        fs::create_dir(run.output()).unwrap()
    });
    let Ended::Refused { code, why } = outcome_of(run).0.ended else {
        panic!("it has started")
    };
    assert_eq!(code, "hook_not_started");
    assert!(why.contains("make ready"), "{why}");
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn a_supervisor_that_loses_the_claim_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\necho ran >\"$MUSTER_PARAM_DIR/ran\"\n";
    let mut run = start_after(script, with_dir(&dir), |run| {
        assert!(run.take_claim(&Claim::Daemon).unwrap())
    });
    assert!(run.supervisor.wait().unwrap().success());
    assert!(matches!(run.run_dir().examine("boot").unwrap(), Found::NeverRan));
    assert!(!dir.path().join("ran").exists());
}
