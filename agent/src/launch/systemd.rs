//! Units of systemd, over D-Bus: started for one supervisor each, asked how they ended, and cleared away.
//!
//! A connection is made for each errand: it costs a millisecond beside a hook, and none can go stale.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

use futures_util::StreamExt as _;
use muster_shared::ids::{ExecutionId, NodeId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::time::{Instant, sleep, timeout};
use zbus::{Connection, Fd, OwnedObjectPath, Variant};

use crate::{
    limits::HookLimits,
    outcome::{Ended, Outcome},
    run_dir::{Spec, Work},
    systemd::{ManagerProxy, ServiceProxy, UnitProxy},
};

/// How long systemd may take to start a unit, and to answer at all.
const START_MAX: Duration = Duration::from_secs(30);
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long what is left in a unit may take to be gone once it was killed.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// A supervisor that is this late is not working any more.
const OVERDUE: Duration = Duration::from_secs(60);
/// The supervisor is the last that the kernel takes when the unit's memory is short: it is small, and it has to tell.
const SUPERVISOR_OOM_SCORE: i32 = -900;

/// What a unit is made from.
#[derive(Clone, Copy)]
pub(super) struct NewUnit<'a> {
    pub(super) name: &'a str,
    pub(super) program: &'a Path,
    pub(super) own_unit: Option<&'a str>,
    pub(super) run: &'a Path,
    pub(super) spec: &'a Spec,
}

/// The unit under which the daemon is installed. There is one of it on a machine.
const INSTALLED: &str = "musterd.service";

/// With what the names of all its units begin.
const PREFIXES: [&str; 2] = ["muster-hook-", "muster-builtin-"];

/// Further daemons on one machine may be sent the same execution, so their units are named after their nodes too.
pub(super) fn unit_name(work: &Work, own_unit: Option<&str>, execution: ExecutionId, node: NodeId) -> String {
    format!("muster-{}-{execution}{}", work.noun(), ending(own_unit, node))
}

fn ending(own_unit: Option<&str>, node: NodeId) -> String {
    if own_unit == Some(INSTALLED) {
        ".service".to_owned()
    } else {
        format!("-{node}.service")
    }
}

/// Whether a unit is one that this daemon has named.
fn is_own(name: &str, own_unit: Option<&str>, node: NodeId) -> bool {
    let execution = PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .and_then(|rest| rest.strip_suffix(&ending(own_unit, node)));
    execution.is_some_and(|execution| execution.parse::<ExecutionId>().is_ok())
}

/// Starts the supervisor and gives a handle on it, or none when it has ended already.
///
/// The descriptors travel with the message: systemd gives the very same bytes to the supervisor as its
/// standard input.
pub(super) async fn start(
    new: NewUnit<'_>,
    hook: Option<OwnedFd>,
    complaint: OwnedFd,
) -> io::Result<Option<OwnedFd>> {
    let started = timeout(START_MAX, start_unit(new, hook.as_ref(), &complaint)).await;
    match started {
        Ok(Ok(handle)) => Ok(handle),
        Ok(Err(err)) => Err(io::Error::other(format!("systemd: {err}"))),
        Err(_) => Err(io::Error::other(format!(
            "systemd did not start it within {} s",
            START_MAX.as_secs()
        ))),
    }
}

async fn start_unit(
    new: NewUnit<'_>,
    hook: Option<&OwnedFd>,
    complaint: &OwnedFd,
) -> zbus::Result<Option<OwnedFd>> {
    let bus = Connection::system().await?;
    let manager = ManagerProxy::new(&bus).await?;
    // Signals are sent to those who asked for them, and the job may be over before its number is known.
    manager.subscribe().await?;
    let mut removed = manager.receive_job_removed().await?;
    let name = new.name;
    // An earlier attempt lost its claim to this daemon, but its unit may not have left yet.
    clear_with(&manager, name).await;
    let job = manager
        .start_transient_unit(name, "fail", &properties(new, hook, complaint)?, &[])
        .await?;
    while let Some(signal) = removed.next().await {
        let args = signal.args()?;
        if args.job == job.as_ref() {
            return match args.result {
                "done" => handle_of(&bus, &manager, name).await,
                other => Err(zbus::Error::Failure(format!(
                    "the start of {name} ended as {other}"
                ))),
            };
        }
    }
    Err(zbus::Error::Failure("the bus closed the connection".to_owned()))
}

/// The process is asked for again once the handle is open: it was still the unit's then, so the handle is on it and on
/// no later one of that number.
async fn handle_of(
    bus: &Connection,
    manager: &ManagerProxy<'_>,
    name: &str,
) -> zbus::Result<Option<OwnedFd>> {
    let Ok(path) = manager.get_unit(name).await else {
        return Ok(None);
    };
    let service = service_at(bus, path).await?;
    let Ok(pid) = service.main_pid().await else {
        return Ok(None);
    };
    let opened = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok(match (opened, service.main_pid().await) {
        (Some(handle), Ok(again)) if again == pid => Some(handle),
        _ended => None,
    })
}

async fn service_at(bus: &Connection, path: OwnedObjectPath) -> zbus::Result<ServiceProxy<'static>> {
    ServiceProxy::builder(bus)
        .path(path)
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await
}

fn properties<'a>(
    new: NewUnit<'a>,
    hook: Option<&'a OwnedFd>,
    complaint: &'a OwnedFd,
) -> zbus::Result<Vec<(&'static str, Variant<'a>)>> {
    let NewUnit {
        name: _,
        program,
        own_unit,
        run,
        spec,
    } = new;
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| zbus::Error::Failure(format!("{} is not UTF-8", path.display())))
    };
    let program = text(program)?;
    let arguments = vec![program.clone(), "supervise".to_owned(), text(run)?];
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let grace = Duration::from_millis(spec.stop_grace_ms) + OVERDUE;
    let longest = Duration::from_millis(spec.limit_ms) + grace;
    let mut properties = vec![
        (
            "Description",
            format!("Muster {} {}", spec.work.noun(), spec.action).into(),
        ),
        ("Type", "exec".into()),
        ("ExecStart", vec![(program, arguments, false)].into()),
        ("WorkingDirectory", "/".into()),
        match hook {
            Some(hook) => ("StandardInputFileDescriptor", Fd::from(hook.as_fd()).into()),
            None => ("StandardInput", "null".into()),
        },
        ("StandardOutput", "null".into()),
        ("StandardErrorFileDescriptor", Fd::from(complaint.as_fd()).into()),
        // A stop of the unit is for the supervisor to carry out and to record; whoever is left after it is killed.
        ("KillMode", "mixed".into()),
        ("TimeoutStopUSec", micros(grace).into()),
        // Only a supervisor that hangs gets there.
        ("RuntimeMaxUSec", micros(longest).into()),
        // The supervisor has a group of its own made for the hook, and tells when the kernel kills in it.
        ("Delegate", true.into()),
        ("OOMPolicy", "continue".into()),
        ("OOMScoreAdjust", SUPERVISOR_OOM_SCORE.into()),
    ];
    // A unit stops after those it was to start before. At a shutdown the daemon so leaves first, and does not take the
    // system's stop of a hook for somebody's.
    if let Some(own) = own_unit {
        properties.push(("Before", vec![own.to_owned()].into()));
    }
    let HookLimits {
        memory_max_bytes,
        pids_max,
        cpu_percent: _,
    } = spec.limits;
    properties.extend(memory_max_bytes.map(|max| ("MemoryMax", max.into())));
    properties.extend(pids_max.map(|max| ("TasksMax", max.into())));
    let quota = spec.limits.cpu_time_per_second();
    properties.extend(quota.map(|time| ("CPUQuotaPerSecUSec", micros(time).into())));
    Ok(properties)
}

/// What systemd knows of a supervisor that left no record.
#[derive(Debug)]
struct UnitEnd {
    result: String,
    code: i32,
    status: i32,
}

/// Asks how the unit ended, ends what is left in it, and clears it away.
pub(super) async fn after_loss(name: &str, spec: &Spec, why: String) -> Outcome {
    let asked = timeout(ANSWER_MAX, async {
        let bus = Connection::system().await?;
        let manager = ManagerProxy::new(&bus).await?;
        let end = end_of(&bus, &manager, name).await;
        clear_with(&manager, name).await;
        Ok::<_, zbus::Error>(end)
    });
    let end = match asked.await {
        Ok(Ok(end)) => end,
        Ok(Err(err)) => {
            log::warn!(execution_id:% = spec.execution_id, action:% = spec.action, node_id:% = spec.node_id, error:% = err;
                "systemd could not be asked about a hook");
            None
        }
        Err(_) => None,
    };
    Outcome::of(end.map_or_else(
        || Ended::Lost { why: why.clone() },
        |end| told(&end, &spec.limits, &why),
    ))
}

async fn end_of(bus: &Connection, manager: &ManagerProxy<'_>, name: &str) -> Option<UnitEnd> {
    // A supervisor that was seen to be dead may not have been noticed by systemd yet.
    let give_up = Instant::now() + GONE_WITHIN;
    loop {
        let path = manager.get_unit(name).await.ok()?;
        let state = state_at(bus, &path).await.ok()?;
        if state == "failed" || state == "inactive" || Instant::now() > give_up {
            let service = service_at(bus, path).await.ok()?;
            return Some(UnitEnd {
                result: service.result().await.ok()?,
                code: service.exec_main_code().await.ok()?,
                status: service.exec_main_status().await.ok()?,
            });
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn state_at(bus: &Connection, path: &OwnedObjectPath) -> zbus::Result<String> {
    let unit = UnitProxy::builder(bus)
        .path(path.clone())
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await?;
    unit.active_state().await
}

/// `ExecMainCode` is that of waitid(2).
fn told(end: &UnitEnd, limits: &HookLimits, why: &str) -> Ended {
    const EXITED: i32 = 1;
    let how = match (end.result.as_str(), end.code) {
        ("oom-kill", _) => {
            return Ended::OutOfMemory {
                processes_killed: 1,
                code: None,
                memory_max_bytes: limits.memory_max_bytes,
            };
        }
        ("timeout", _) => "it hung, and systemd ended it".to_owned(),
        (_, EXITED) => format!("its exit status was {}", end.status),
        (_, _) => format!("it was killed by signal {}", end.status),
    };
    Ended::Lost {
        why: format!("{why}; {how}"),
    }
}

/// Ends whatever still runs in the unit, and makes systemd forget it.
pub(super) async fn clear(name: &str, spec: &Spec) {
    let cleared = timeout(ANSWER_MAX, async {
        let bus = Connection::system().await?;
        clear_with(&ManagerProxy::new(&bus).await?, name).await;
        Ok::<_, zbus::Error>(())
    });
    if !matches!(cleared.await, Ok(Ok(()))) {
        log::warn!(execution_id:% = spec.execution_id, action:% = spec.action, node_id:% = spec.node_id, unit = name;
            "The unit of a hook could not be cleared away");
    }
}

async fn clear_with(manager: &ManagerProxy<'_>, name: &str) {
    let give_up = Instant::now() + GONE_WITHIN;
    // Each of these fails when there is nothing to do, which is what is wanted.
    while manager.get_unit(name).await.is_ok() && Instant::now() < give_up {
        let _ = manager.kill_unit(name, "all", Signal::KILL.as_raw()).await;
        let _ = manager.reset_failed_unit(name).await;
        sleep(Duration::from_millis(20)).await;
    }
}

/// Makes systemd forget the hooks that failed while no daemon was there to ask, once they have been asked about.
pub(super) async fn sweep(own_unit: Option<&str>, node: NodeId) {
    let swept = timeout(ANSWER_MAX, async {
        let bus = Connection::system().await?;
        let manager = ManagerProxy::new(&bus).await?;
        let failed = manager
            .list_units_by_patterns(
                &["failed"],
                &PREFIXES
                    .map(|prefix| format!("{prefix}*.service"))
                    .each_ref()
                    .map(String::as_str),
            )
            .await?;
        let mut count: usize = 0;
        for (name, ..) in failed.iter().filter(|(name, ..)| is_own(name, own_unit, node)) {
            count += usize::from(manager.reset_failed_unit(name).await.is_ok());
        }
        Ok::<_, zbus::Error>(count)
    });
    match swept.await {
        Ok(Ok(0)) => {}
        Ok(Ok(count)) => log::info!(count; "Cleared away units of hooks that had failed"),
        Ok(Err(err)) => {
            log::warn!(error:% = err; "systemd does not answer: no hook can be started until it does")
        }
        Err(_) => log::warn!("systemd does not answer: no hook can be started until it does"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(result: &str, code: i32, status: i32) -> String {
        let end = UnitEnd {
            result: result.to_owned(),
            code,
            status,
        };
        let limits = HookLimits {
            memory_max_bytes: Some(64),
            ..HookLimits::default()
        };
        let outcome = Outcome::of(told(&end, &limits, "lost"));
        outcome.callback().error.unwrap()
    }

    #[test]
    fn each_daemon_knows_its_own_units() {
        let at = muster_shared::time::Timestamp::from_millis(0);
        let execution = ExecutionId::mint(at, [1; 10]);
        let (node, other) = (NodeId::mint(at, [2; 10]), NodeId::mint(at, [3; 10]));
        let builtin = Work::Builtin {
            environment: std::collections::BTreeMap::new(),
            readable_paths: Vec::new(),
            credentials: None,
        };
        let hook = Work::Hook {
            digest: muster_shared::ids::Digest::of(b""),
        };
        let installed = unit_name(&hook, Some(INSTALLED), execution, node);
        assert_eq!(installed, format!("muster-hook-{execution}.service"));
        assert!(is_own(&installed, Some(INSTALLED), node));
        assert!(!is_own(&installed, None, node));
        let by_hand = unit_name(&builtin, None, execution, node);
        assert_eq!(by_hand, format!("muster-builtin-{execution}-{node}.service"));
        assert!(is_own(&by_hand, None, node));
        assert!(!is_own(&by_hand, None, other) && !is_own(&by_hand, Some(INSTALLED), node));
    }

    #[test]
    fn the_end_of_a_supervisor_is_told_as_systemd_saw_it() {
        assert_eq!(said("signal", 2, 9), "lost; it was killed by signal 9");
        assert_eq!(said("exit-code", 1, 3), "lost; its exit status was 3");
        assert_eq!(said("timeout", 2, 9), "lost; it hung, and systemd ended it");
        assert!(said("oom-kill", 2, 9).starts_with("out_of_memory"));
    }
}
