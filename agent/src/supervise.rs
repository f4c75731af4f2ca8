//! `musterd supervise`: looks after one hook from its start to the last of its descendants, then leaves a record.
//!
//! It is a process of its own so that the daemon can be killed, upgraded or restarted while the hook runs. It decides
//! nothing about delivery and never talks to control. It is single-threaded: the hook is told to die with its parent
//! thread, and descriptors are made inheritable without a race.

mod spool;
mod tree;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, Mode},
    io::FdFlags,
    process::{Pid, Signal},
};

use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use crate::{
    effect,
    exit::Exit,
    outcome::{Ended, Outcome},
    parameters, procfs,
    run_dir::{Claim, RunDir, Spec},
};
use spool::Spool;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) fn main(run_dir: &Path) -> Result<(), Exit> {
    supervise(&RunDir::at(run_dir.to_owned()))
        .map_err(|err| Exit::Failure(format!("the supervisor of {} failed: {err}", run_dir.display())))
}

fn supervise(run: &RunDir) -> io::Result<()> {
    // Refused only to a leader of a process group, which then has a session of its own already.
    let _ = rustix::process::setsid();
    close_on_exec_from(3)?;
    let spec = run.read_spec()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Before the claim is taken: a daemon that finds it taken sends the signal and must not end this process by it.
    let asked_to_stop = {
        let _inside = runtime.enter();
        signal(SignalKind::terminate())?
    };
    let record = run.reserve_record()?;
    if !run.take_claim(&my_claim(&spec)?)? {
        // A daemon that restarted meanwhile has taken the attempt for itself: this hook must not run.
        return Ok(());
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let outcome = runtime.block_on(async {
        // The hook's bytes arrive as standard input: the one descriptor that is inherited without being asked.
        let hook = io::stdin().as_fd().try_clone_to_owned()?;
        run_hook(run, &spec, &hook, asked_to_stop).await
    })?;
    run.write_record(record, &outcome)
}

fn my_claim(spec: &Spec) -> io::Result<Claim> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let me = procfs::stat(pid).ok_or_else(|| io::Error::other("/proc does not show this process"))?;
    Ok(Claim::Supervisor {
        pid,
        started: me.started,
        boot_id: spec.boot_id.clone(),
    })
}

async fn run_hook(run: &RunDir, spec: &Spec, hook: &OwnedFd, asked_to_stop: Signals) -> io::Result<Outcome> {
    let mut spool = Spool::create(run, spec.output_bytes_max)?;
    let (output, write_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&output, rustix::fs::OFlags::NONBLOCK)?;
    let mut watch = tree::Watch::prepare(output, asked_to_stop)?;
    match spawn(spec, hook, write_end) {
        Ok(main) => {
            let limit = Duration::from_millis(spec.limit_ms);
            let grace = Duration::from_millis(spec.stop_grace_ms);
            let (ended, remark) = watch.until_gone(main, limit, grace, &mut spool).await;
            let (output, spool_remark) = spool.finish();
            let remarks: Vec<String> = remark.into_iter().chain(spool_remark).collect();
            Ok(Outcome {
                ended,
                output,
                remark: (!remarks.is_empty()).then(|| remarks.join("; ")),
            })
        }
        Err(err) => Ok(Outcome::of(Ended::Refused {
            code: "hook_not_started".to_owned(),
            why: not_started(&err),
        })),
    }
}

fn not_started(err: &io::Error) -> String {
    let hint = match err.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOENT) => ": the interpreter that its #! line names is not there",
        Some(rustix::io::Errno::ACCESS) => {
            ": see the sysctl vm.memfd_noexec and the rules of SELinux or AppArmor"
        }
        Some(_) | None => "",
    };
    format!("the system would not run it: {err}{hint}")
}

/// Starts the hook from the very bytes that were hashed, in a session and process group of its own.
fn spawn(spec: &Spec, hook: &OwnedFd, output: OwnedFd) -> io::Result<Pid> {
    // Without close-on-exec: the interpreter of a script opens it by this name after the exec.
    let inheritable = hook.try_clone()?;
    rustix::io::fcntl_setfd(&inheritable, FdFlags::empty())?;
    let mut command = Command::new(format!("/proc/self/fd/{}", inheritable.as_raw_fd()));
    command
        .env_clear()
        .envs(environment(spec))
        .current_dir("/")
        .stdin(parameters_file(spec)?)
        .stdout(Stdio::from(output.try_clone()?))
        .stderr(Stdio::from(output));
    let supervisor = rustix::process::getpid();
    #[expect(
        unsafe_code,
        reason = "the standard library has no safe way to act between fork and exec"
    )]
    // SAFETY: the closure makes only the system calls setsid, prctl and getppid, which are async-signal-safe, and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The supervisor may have died before the line above could take effect.
            if rustix::process::getppid() == Some(supervisor) {
                Ok(())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        });
    }
    let child = command.spawn()?;
    effect::done("the hook spawned");
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the kernel gave a pid that is none"))
}

fn environment(spec: &Spec) -> BTreeMap<String, String> {
    // The daemon has checked the parameters; what it would have refused never gets here.
    let mut variables = parameters::variables(&spec.parameters).unwrap_or_default();
    variables.extend(
        [
            ("PATH", PATH.to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("HOME", home()),
            ("MUSTER_EXECUTION_ID", spec.execution_id.to_string()),
            ("MUSTER_NODE_ID", spec.node_id.to_string()),
            ("MUSTER_ACTION", spec.action.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    variables
}

fn home() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let home = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find_map(|fields| {
            (fields.get(2) == Some(&uid.as_str()))
                .then(|| fields.get(5).map(|home| (*home).to_owned()))
                .flatten()
        });
    home.unwrap_or_else(|| "/".to_owned())
}

/// A file rather than a pipe: it has an end, and nobody has to feed it.
fn parameters_file(spec: &Spec) -> io::Result<Stdio> {
    let mut file = fs::File::from(rustix::fs::memfd_create("parameters", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(&spec.parameters)?)?;
    io::Seek::rewind(&mut file)?;
    Ok(Stdio::from(file))
}

/// Whatever the daemon's own parent left open is not for the hook.
fn close_on_exec_from(first: i32) -> io::Result<()> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd >= first)
        .collect();
    for fd in open {
        #[expect(unsafe_code, reason = "inherited descriptors are known by number only")]
        // SAFETY: the descriptor is used for the length of one system call, which fails if it is closed already.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        match rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC) {
            // The descriptor that listed the directory is gone by now.
            Ok(()) | Err(rustix::io::Errno::BADF) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
