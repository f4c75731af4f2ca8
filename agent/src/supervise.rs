//! `musterd supervise`: looks after one hook from its start to the last of its descendants, then leaves a record. A
//! builtin that works apart is looked after as a hook is: there the program is that of the supervisor itself.
//!
//! It is a process of its own so that the daemon can be killed, upgraded or restarted while the hook runs. It decides
//! nothing about delivery and never talks to control. It is single-threaded: the hook is told to die with its parent
//! thread, and descriptors are made inheritable without a race.

mod fork;
mod image;
mod mask;
mod spawn;
mod spool;
mod tree;

use std::{
    fs, io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    time::Duration,
};

use rustix::{fs::Mode, io::FdFlags, process::Pid};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use crate::{
    cgroup::{Cgroup, Counters},
    durable,
    exit::Exit,
    hooks::hold::{self, Held},
    logging,
    outcome::Outcome,
    parameters, procfs,
    run_dir::{Claim, RunDir, Spec, Work},
};
use mask::Mask;
use spool::Spool;

pub(crate) fn main(run_dir: &Path) -> Result<(), Exit> {
    logging::install();
    supervise(&RunDir::at(run_dir.to_owned()), Cgroup::below_own)
        .map_err(|err| Exit::Failure(format!("the supervisor of {} failed: {err}", run_dir.display())))
}

fn supervise(run: &RunDir, make_group: fn(&str) -> io::Result<Cgroup>) -> io::Result<()> {
    // Refused only to a leader of a process group, which then has a session of its own already.
    let _ = rustix::process::setsid();
    close_on_exec_from(3)?;
    if run.has_owner()? {
        // It has come late, and takes no room for what it will not run.
        return run.remove_parameters();
    }
    let mut spec = run.read_spec()?;
    spec.parameters = run.read_parameters()?;
    let hook = handed_over(&spec.work)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Before the claim is taken: a daemon that finds it taken sends the signal and must not end this process by it.
    let asked_to_stop = {
        let _inside = runtime.enter();
        signal(SignalKind::terminate())?
    };
    let group = make_group(&group_name(&spec));
    let record = run.reserve_record()?;
    if !run.take_claim(&my_claim(&spec, group.as_ref().ok())?)? {
        // A daemon that restarted meanwhile has taken the attempt for itself: this hook must not run. Whoever has it has read
        // the parameters, or never will.
        run.remove_parameters()?;
        return leave(group);
    }
    let counters = counters(&spec, &group);
    let before = counters.read();
    let ran = take_over(run).and_then(|()| {
        runtime.block_on(run_work(
            run,
            &spec,
            hook.as_ref(),
            group.as_ref().ok(),
            asked_to_stop,
        ))
    });
    let outcome = match ran {
        Ok(outcome) => outcome.with_counts(counters.read().since(before), &spec.limits),
        // Whatever fails in there fails before anything was started, and the record is the place to say so.
        Err(err) => {
            let code = if durable::is_full(&err) {
                "disk_full"
            } else {
                spec.work.not_started()
            };
            Outcome::refused(code, format!("its supervisor could not make ready: {err}"))
        }
    };
    run.write_record(record, &outcome)?;
    log_end(&spec, &outcome);
    leave(group)
}

/// The attempt is this supervisor's from here on, with all that descends from it.
fn take_over(run: &RunDir) -> io::Result<()> {
    run.remove_parameters()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    Ok(())
}

/// The hook's bytes arrive as standard input: the one descriptor that is inherited without being asked. Looked at before
/// the claim is taken, so that an attempt that was handed the wrong thing has never run.
fn handed_over(work: &Work) -> io::Result<Option<Held>> {
    match work {
        Work::Hook { digest } => {
            let hook = io::stdin().as_fd().try_clone_to_owned()?;
            hold::verify(hook, *digest).map(Some)
        }
        Work::Builtin { .. } => Ok(None),
    }
}

/// Of this process alone: other nodes on the machine may have been sent the same execution.
fn group_name(spec: &Spec) -> String {
    if spec.unit.is_some() {
        "hook".to_owned()
    } else {
        format!("muster-hook-{}-{}", spec.execution_id, rustix::process::getpid())
    }
}

/// A group that will not go holds somebody whom the kernel could not kill. That is said in the record.
fn leave(group: io::Result<Cgroup>) -> io::Result<()> {
    if let Ok(group) = group {
        let _ = group.remove();
    }
    Ok(())
}

/// Counts are only believed where nobody else is counted with the hook.
fn counters(spec: &Spec, group: &io::Result<Cgroup>) -> Counters {
    if spec.unit.is_some() {
        return Counters::of_own();
    }
    let Ok(group) = group else {
        return Counters::default();
    };
    let unlimited = group.limit(&spec.limits);
    if !unlimited.is_empty() {
        log::debug!(execution_id:% = spec.execution_id, action:% = spec.action, node_id:% = spec.node_id;
            "Without a controller for it: {}", unlimited.join(", "));
    }
    Counters::of(group.path())
}

fn log_start(spec: &Spec, hook: Option<&Held>, main: Pid) {
    let (execution, node, action) = (spec.execution_id, spec.node_id, &spec.action);
    let pid = main.as_raw_nonzero().get();
    match &spec.work {
        Work::Hook { digest } => {
            log::info!(execution_id:% = execution, action:% = action, node_id:% = node, pid,
            digest:% = digest, held_in = hook.map_or("nothing", |hook| hook.way.as_str()); "The hook {action} runs")
        }
        Work::Builtin { .. } => {
            log::info!(execution_id:% = execution, action:% = action, node_id:% = node, pid;
            "The builtin {action} runs")
        }
    }
}

fn log_end(spec: &Spec, outcome: &Outcome) {
    let (execution, node, status) = (spec.execution_id, spec.node_id, outcome.status());
    let error = outcome.callback().error.unwrap_or_default();
    log::info!(execution_id:% = execution, action:% = spec.action, node_id:% = node, status:% = status, error;
        "The {} {} ended: {status}", spec.work.noun(), spec.action);
}

fn my_claim(spec: &Spec, group: Option<&Cgroup>) -> io::Result<Claim> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let me = procfs::stat(pid).ok_or_else(|| io::Error::other("/proc does not show this process"))?;
    Ok(Claim::Supervisor {
        pid,
        started: me.started,
        boot_id: spec.boot_id.clone(),
        cgroup: group.map(|group| group.path().to_owned()),
    })
}

async fn run_work(
    run: &RunDir,
    spec: &Spec,
    hook: Option<&Held>,
    group: Option<&Cgroup>,
    asked_to_stop: Signals,
) -> io::Result<Outcome> {
    let secrets = parameters::texts_of(&spec.parameters, &spec.secret);
    let mask = Mask::of(secrets.iter().map(String::as_str));
    let mut spool = Spool::create(run, spec.output_bytes_max, mask)?;
    let (output, write_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&output, rustix::fs::OFlags::NONBLOCK)?;
    let mut watch = tree::Watch::prepare(output, asked_to_stop)?;
    match spawn::spawn(run, spec, hook, write_end, group) {
        Ok(main) => {
            log_start(spec, hook, main);
            let limit = Duration::from_millis(spec.limit_ms);
            let grace = Duration::from_millis(spec.stop_grace_ms);
            let (ended, remark) = watch.until_gone(main, group, limit, grace, &mut spool).await;
            let (output, spool_remark) = spool.finish();
            let outcome = Outcome {
                ended,
                output,
                remark: run.read_reason(),
            };
            let remarks = [remark, spool_remark, spec.remark.clone()];
            Ok(remarks.into_iter().fold(outcome, Outcome::with_remark))
        }
        Err(why) => Ok(Outcome::refused(spec.work.not_started(), why)),
    }
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
