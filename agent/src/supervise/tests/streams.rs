//! What a hook is given, and what becomes of what it prints.

use super::*;
use crate::outcome::Output;

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
fn both_outputs_arrive_in_the_order_they_were_written() {
    let ran = ran("#!/bin/sh\necho one; echo two >&2; echo three; exit 3\n");
    assert_eq!(ran.outcome.ended, Ended::Exited { code: 3 });
    assert_eq!(ran.output, "one\ntwo\nthree\n");
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
