//! How a hook comes to its end, and all that it started with it.

use super::*;

#[test]
fn a_death_by_signal_is_told_as_one() {
    assert_eq!(
        ran("#!/bin/sh\nkill -9 $$\n").outcome.ended,
        Ended::Signalled { signal: 9 }
    );
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
