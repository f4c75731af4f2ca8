//! What is not run, and what is told of that.

use super::*;

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
fn a_supervisor_that_comes_late_runs_nothing_takes_no_room_and_leaves_no_parameters() {
    const GIVEN: u64 = 4096;
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\necho ran >\"$MUSTER_PARAM_DIR/ran\"\n";
    let mut run = start_after(script, with_dir(&dir), |run| {
        assert!(run.take_claim(&Claim::Daemon).unwrap());
        // Whoever has the attempt needed the room.
        let reserved = fs::File::options()
            .write(true)
            .open(run.path().join("exit.json.tmp"));
        reserved.unwrap().set_len(GIVEN).unwrap();
    });
    assert!(run.supervisor.wait().unwrap().success());
    let left = run.run_dir();
    assert_eq!(
        fs::metadata(left.path().join("exit.json.tmp")).unwrap().len(),
        GIVEN
    );
    assert!(left.read_parameters().is_err());
    assert!(matches!(left.examine("boot").unwrap(), Found::NeverRan));
    assert!(!dir.path().join("ran").exists());
}
