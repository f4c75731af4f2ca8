//! A hook and everything it started, from spawn to the last pipe. Nothing outlives the action.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpgid, kill_process_group};
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    signal::unix::{Signal as SignalStream, SignalKind, signal},
    time::{Instant, sleep, sleep_until},
};

use super::spool::Spool;
use crate::{cgroup::Cgroup, outcome::Ended, procfs};

/// What is left of a hook's tree once the hook itself has ended by itself gets this long, and so does a pipe that
/// somebody outside the tree keeps open.
const DRAIN: Duration = Duration::from_millis(500);
/// A process that the kernel cannot kill, because it waits for a dead disk, is not waited for longer.
const KILL_WAIT: Duration = Duration::from_secs(5);

pub(super) struct Watch {
    output: Option<pipe::Receiver>,
    child_ended: SignalStream,
    asked_to_stop: SignalStream,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Timeout,
    Asked,
}

enum Phase {
    Running,
    /// It was asked to end, and so was everybody whom it had started.
    Stopping,
    /// It was made to end.
    Killing,
    /// It has ended; its descendants or its pipe have not.
    Draining,
}

impl Watch {
    /// The ends of children are caught from here on, so a hook that ends at once is not missed.
    pub(super) fn prepare(output: OwnedFd, asked_to_stop: SignalStream) -> io::Result<Self> {
        Ok(Self {
            output: Some(pipe::Receiver::from_owned_fd(output)?),
            child_ended: signal(SignalKind::child())?,
            asked_to_stop,
            buffer: vec![0; 64 * 1024],
        })
    }

    /// Waits for the hook, stops it when its time is over, and ends what it left behind. Gives the ending, and a
    /// remark where there is more to say.
    pub(super) async fn until_gone(
        &mut self,
        main: Pid,
        group: Option<&Cgroup>,
        limit: Duration,
        grace: Duration,
        spool: &mut Spool,
    ) -> (Ended, Option<String>) {
        let mut phase = Phase::Running;
        let mut deadline = Instant::now() + limit;
        let mut status = None;
        let mut stopped: Option<Why> = None;
        let mut killed = None;
        loop {
            let everyone_gone = reap(main, &mut status);
            if status.is_some() {
                if everyone_gone && self.output.is_none() {
                    break;
                }
                match phase {
                    // Whoever was asked to end along with it has its grace to the last.
                    Phase::Stopping if !everyone_gone => {}
                    Phase::Running | Phase::Stopping | Phase::Killing => {
                        (phase, deadline) = (Phase::Draining, Instant::now() + DRAIN);
                    }
                    Phase::Draining => {}
                }
            }
            let stop = tokio::select! {
                () = read(&mut self.output, &mut self.buffer, spool) => continue,
                _ = self.child_ended.recv() => continue,
                _ = self.asked_to_stop.recv(), if matches!(phase, Phase::Running) => Why::Asked,
                () = sleep_until(deadline) => Why::Timeout,
            };
            match phase {
                Phase::Running => {
                    reap(main, &mut status);
                    if status.is_some() {
                        // It had ended by itself before anybody asked it to, whichever of the two was heard first.
                        continue;
                    }
                    stopped = Some(stop);
                    ask_to_end(main);
                    (phase, deadline) = (Phase::Stopping, Instant::now() + grace);
                }
                Phase::Stopping => {
                    reap(main, &mut status);
                    if status.is_some() {
                        // Its number may be another's by now, so nothing is sent to its group: the rest is ended by name.
                        break;
                    }
                    killed = Some(make_end(main, group));
                    (phase, deadline) = (Phase::Killing, Instant::now() + KILL_WAIT);
                }
                Phase::Killing | Phase::Draining => break,
            }
        }
        let rest = self.end_the_rest(main, group, &mut status, spool).await;
        let processes_killed = killed.unwrap_or(0).max(rest.left_behind);
        match stopped {
            Some(Why::Asked) => {
                let processes_killed = u32::try_from(processes_killed).unwrap_or(u32::MAX);
                (Ended::Stopped { processes_killed }, rest.stuck())
            }
            Some(Why::Timeout) => {
                let ended = Ended::TimedOut {
                    limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
                    killed: killed.is_some(),
                };
                (ended, rest.remark())
            }
            None => (ending(status), rest.remark()),
        }
    }

    /// Kills until nothing is left: a process may be born while the others are being counted.
    async fn end_the_rest(
        &mut self,
        main: Pid,
        group: Option<&Cgroup>,
        status: &mut Option<WaitStatus>,
        spool: &mut Spool,
    ) -> Rest {
        let give_up = Instant::now() + KILL_WAIT;
        let mut left_behind = 0;
        while !reap(main, status) {
            left_behind = left_behind.max(kill_everybody(group));
            if Instant::now() > give_up {
                return Rest {
                    left_behind,
                    stuck: true,
                };
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.read_what_is_there(spool);
        Rest {
            left_behind,
            stuck: false,
        }
    }

    /// Whoever still holds the pipe is no longer of interest, what lies in it is. No more than that is read: somebody outside
    /// the tree may fill it for ever.
    fn read_what_is_there(&mut self, spool: &mut Spool) {
        let Some(output) = &self.output else { return };
        let there = rustix::io::ioctl_fionread(output).unwrap_or(0);
        let mut left = usize::try_from(there).unwrap_or(usize::MAX);
        while left > 0 {
            let room = left.min(self.buffer.len());
            let Ok(count @ 1..) = output.try_read(&mut self.buffer[..room]) else {
                return;
            };
            spool.write(&self.buffer[..count]);
            left -= count;
        }
    }
}

/// What was left once the hook itself had ended.
struct Rest {
    left_behind: usize,
    stuck: bool,
}

impl Rest {
    fn stuck(&self) -> Option<String> {
        self.stuck
            .then(|| "processes that it started could not be killed".to_owned())
    }

    fn remark(&self) -> Option<String> {
        let killed = format!("{} left-behind process(es) were killed", self.left_behind);
        self.stuck().or((self.left_behind > 0).then_some(killed))
    }
}

/// Takes one piece of output. Never ready once the pipe has closed.
async fn read(output: &mut Option<pipe::Receiver>, buffer: &mut [u8], spool: &mut Spool) {
    let Some(pipe) = output else {
        return std::future::pending().await;
    };
    match pipe.read(buffer).await {
        Ok(0) | Err(_) => *output = None,
        Ok(count) => spool.write(&buffer[..count]),
    }
}

/// Collects the dead, adopted ones too. Says whether nobody is left.
fn reap(main: Pid, status: &mut Option<WaitStatus>) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, ended))) if pid == main => *status = Some(ended),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Those too who left the session and were adopted by the supervisor. Each hears it once, and what they start in order to
/// put their things in order does not hear it: they were listed before.
fn ask_to_end(main: Pid) {
    let there = everybody();
    // The hook is not reaped yet, so its process group can be nobody else's.
    let _ = kill_process_group(main, Signal::TERM);
    let left_the_group =
        |process: &procfs::Stat| Pid::from_raw(process.pid).is_none_or(|pid| getpgid(Some(pid)) != Ok(main));
    for process in there.into_iter().filter(left_the_group) {
        procfs::signal(process, Signal::TERM);
    }
}

/// Says how many were still there.
fn make_end(main: Pid, group: Option<&Cgroup>) -> usize {
    let there = kill_everybody(group);
    let _ = kill_process_group(main, Signal::KILL);
    there
}

/// Nobody under a subreaper can leave its descendants.
fn everybody() -> Vec<procfs::Stat> {
    procfs::descendants(rustix::process::getpid().as_raw_nonzero().get())
}

/// By the group at once, where there is one, so that nobody can outrun it by forking. Then by descent: a login session
/// opened by the hook has a group of its own. Says how many there were.
fn kill_everybody(group: Option<&Cgroup>) -> usize {
    let there = everybody();
    if let Some(group) = group {
        // An older kernel cannot, and then descent has to do.
        let _ = group.kill();
    }
    everybody()
        .into_iter()
        .for_each(|process| procfs::signal(process, Signal::KILL));
    there.len()
}

fn ending(status: Option<WaitStatus>) -> Ended {
    let Some(status) = status else {
        return Ended::Lost {
            why: "the hook could not be waited for".to_owned(),
        };
    };
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Exited { code },
        (None, Some(signal)) => Ended::Signalled { signal },
        (None, None) => Ended::Lost {
            why: "the hook ended in a way that the system did not tell".to_owned(),
        },
    }
}
