//! `musterd status`: what the daemon is about. Told by the daemon itself when it lives, and else from what it left.

mod text;

use std::{
    fs,
    path::{Path, PathBuf},
};

use muster_shared::{ids::NodeId, time::Timestamp};
use serde::Serialize;

use super::{
    desk::{self, Answer, DeskReply, Question, Told},
    render,
};
use crate::{
    args::{ToolArgs, View},
    config::Config,
    exit::{self, Exit},
    identity::IdentityFile,
    journal,
    link::Link,
    logging::say_on_stdout,
    policy::{Line, wall},
    procfs,
    run_dir::{self, RunDir},
    session::overview::{Overview, Owed, Running, Unknown, Untold, Waiting},
};

#[derive(Serialize)]
struct Status {
    daemon: DaemonState,
    node: Option<Node>,
    /// The event stream; null when no daemon answers.
    link: Option<Link>,
    limits: Option<QueueLimits>,
    /// The node's own say: what the daemon goes by, and without one what the files have.
    policy: Vec<Line>,
    running: Vec<RunningHere>,
    waiting: Vec<Waiting>,
    untold: Vec<Untold>,
    outputs_owed: Vec<Owed>,
    outputs_kept: Vec<KeptHere>,
    unknown_to_control: Vec<Unknown>,
    journal: Option<JournalSize>,
}

#[derive(Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum DaemonState {
    Running {
        pid: u32,
        version: String,
        started_at: Timestamp,
    },
    /// It holds the state directory and gives no answer.
    Mute {
        why: String,
    },
    Down,
}

#[derive(Serialize)]
struct Node {
    node_id: NodeId,
    name: String,
    server: String,
}

#[derive(Serialize)]
struct QueueLimits {
    running_max: usize,
    queue_max: usize,
}

#[derive(Serialize)]
struct JournalSize {
    path: String,
    bytes: u64,
}

#[derive(Serialize)]
struct RunningHere {
    #[serde(flatten)]
    running: Running,
    /// The supervisor of a hook, while it lives.
    supervisor_pid: Option<i32>,
    /// The first process of the hook.
    pid: Option<i32>,
    /// The systemd unit in which it runs.
    unit: Option<String>,
}

/// An output that control will not take, because it knows another end.
#[derive(Serialize)]
struct KeptHere {
    #[serde(flatten)]
    owed: Owed,
    file: PathBuf,
}

pub(crate) fn run(args: ToolArgs) -> Result<u8, Exit> {
    let view = args.output;
    let config = Config::load(args.place)?;
    let state_dir = &config.state_dir;
    let node = IdentityFile::read(state_dir)?.map(|file| Node {
        node_id: file.node_id,
        name: file.name,
        server: file.server,
    });
    let (daemon, told) = match desk::ask(state_dir, &Question::Status)? {
        DeskReply::Answered(Answer::Status(told)) => {
            let daemon = DaemonState::Running {
                pid: told.pid,
                version: told.version.clone(),
                started_at: told.started_at,
            };
            (daemon, Some(*told))
        }
        DeskReply::Answered(Answer::Refused { why }) | DeskReply::Mute(why) => {
            (DaemonState::Mute { why }, None)
        }
        DeskReply::Answered(Answer::Trusted) => {
            let why = "it answered something else than was asked".to_owned();
            (DaemonState::Mute { why }, None)
        }
        DeskReply::NoDaemon => (DaemonState::Down, None),
    };
    let status = assemble(&config, daemon, node, told)?;
    match view {
        View::Table => say_on_stdout(&text::of(&status, Timestamp::now())),
        View::Json => render::document(&status),
    }
    Ok(code(&status))
}

fn code(status: &Status) -> u8 {
    match (&status.daemon, &status.link) {
        (DaemonState::Running { .. }, Some(Link { connected: true, .. })) => exit::DONE,
        (DaemonState::Running { .. }, Some(_) | None) => exit::UNREACHABLE,
        (DaemonState::Mute { .. }, _) => exit::MUTE,
        (DaemonState::Down, _) => exit::NO_DAEMON,
    }
}

fn assemble(
    config: &Config,
    daemon: DaemonState,
    node: Option<Node>,
    told: Option<Told>,
) -> Result<Status, Exit> {
    let state_dir = &config.state_dir;
    let (link, limits, policy, overview) = match told {
        Some(told) => {
            let limits = QueueLimits {
                running_max: told.running_max,
                queue_max: told.queue_max,
            };
            (Some(told.link), Some(limits), told.policy, told.overview)
        }
        None => {
            let policy = config.policy.lines(wall::now());
            (None, None, policy, from_journal(state_dir)?)
        }
    };
    let here = |running: Running| found(state_dir, running);
    let (owed, kept): (Vec<_>, Vec<_>) = overview.outputs_owed.into_iter().partition(|owed| owed.wanted);
    let kept = kept.into_iter().map(|owed| KeptHere {
        file: RunDir::of(state_dir, owed.execution_id, owed.attempt).output(),
        owed,
    });
    Ok(Status {
        daemon,
        node,
        link,
        limits,
        policy,
        running: overview.running.into_iter().map(here).collect(),
        waiting: overview.waiting,
        untold: overview.untold,
        outputs_owed: owed,
        outputs_kept: kept.collect(),
        unknown_to_control: overview.unknown_to_control,
        journal: journal_size(state_dir),
    })
}

fn from_journal(state_dir: &Path) -> Result<Overview, Exit> {
    let path = journal::path(state_dir);
    if !path.exists() {
        return Ok(Overview::default());
    }
    let mut store = journal::open_to_read(&path)?;
    let unreadable = |err: journal::JournalError| Exit::Journal(exit::chain(&err));
    let rows = store.owed().map_err(unreadable)?;
    let outputs = store.outputs_owed().map_err(unreadable)?;
    let mut overview = Overview::of_journal(&rows, &outputs);
    let orphans = store.orphans().map_err(unreadable)?;
    let unknown = orphans.iter().filter_map(|(row, since)| Unknown::of(row, *since));
    overview.unknown_to_control = unknown.collect();
    Ok(overview)
}

fn journal_size(state_dir: &Path) -> Option<JournalSize> {
    let path = journal::path(state_dir);
    let size = |suffix: &str| {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        fs::metadata(name).map(|file| file.len())
    };
    Some(JournalSize {
        bytes: size("").ok()? + size("-wal").unwrap_or(0) + size("-shm").unwrap_or(0),
        path: path.display().to_string(),
    })
}

/// The processes of what runs. A builtin has none of its own.
fn found(state_dir: &Path, mut running: Running) -> RunningHere {
    let run = RunDir::of(state_dir, running.execution_id, running.attempt);
    let boot_id = run_dir::boot_id().unwrap_or_default();
    let supervisor = run.supervisor(&boot_id).ok().flatten();
    if let Some((_, since)) = supervisor {
        running.since = Some(since);
    }
    let supervisor_pid = supervisor.map(|(pid, _)| pid);
    let pid = supervisor_pid.and_then(|pid| {
        let mut children = procfs::descendants(pid);
        children.retain(|child| child.parent == pid);
        children.sort_by_key(|child| (child.started, child.pid));
        children.first().map(|child| child.pid)
    });
    RunningHere {
        unit: pid.or(supervisor_pid).and_then(unit_of),
        running,
        supervisor_pid,
        pid,
    }
}

/// The innermost service or scope among the control groups of a process.
fn unit_of(pid: i32) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    unit_in(&groups)
}

fn unit_in(groups: &str) -> Option<String> {
    let is_unit = |name: &&str| name.ends_with(".service") || name.ends_with(".scope");
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut units = paths.filter_map(|path| path.rsplit('/').find(is_unit));
    units.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_innermost_one() {
        assert_eq!(
            unit_in("0::/system.slice/musterd.service\n").as_deref(),
            Some("musterd.service")
        );
        assert_eq!(
            unit_in("0::/user.slice/user@0.service/app.slice/run-1.scope/x\n").as_deref(),
            Some("run-1.scope")
        );
        assert_eq!(unit_in("0::/\n"), None);
        assert_eq!(
            unit_in("12:pids:/a\n1:name=systemd:/system.slice/b.service\n0::/\n").as_deref(),
            Some("b.service")
        );
    }
}
