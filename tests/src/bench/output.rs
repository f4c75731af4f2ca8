//! A hook that prints more than anybody keeps.

use std::{sync::Arc, sync::atomic::AtomicBool, sync::atomic::Ordering, time::Duration};

use muster_shared::status::Status;

use super::{Plan, machine, summary::Section};
use crate::{World, daemon::supervisors_under, until, world::on_node};

const MIB: u64 = 1024;
const MIB_TINY: u64 = 32;

/// # Errors
/// With what went wrong, in words.
pub async fn run(plan: &Plan) -> Result<Section, String> {
    let mib = if plan.is_tiny() { MIB_TINY } else { MIB };
    let script = format!(
        "#!/bin/sh\nyes 'what a hook says, line by line' | head -c {}\n",
        mib << 20
    );
    let world = World::new().await;
    let mut node = plan.node(&world, "loud").hook("loud", &script).start().await;
    let (mut speed, mut peak) = (vec![], vec![]);
    for _ in 0..if plan.quick { 1 } else { 3 } {
        let pid = node.daemon().pid();
        let done = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (done, dir) = (Arc::clone(&done), world.dir().to_owned());
            std::thread::spawn(move || {
                let mut most: f64 = 0.0;
                while !done.load(Ordering::Relaxed) {
                    let of = |pid: i32| u32::try_from(pid).ok().and_then(machine::peak_kib);
                    let supervisors = supervisors_under(&dir)
                        .into_iter()
                        .filter_map(|pid| of(pid.as_raw_nonzero().get()));
                    most = supervisors.fold(most, f64::max);
                    std::thread::sleep(Duration::from_millis(20));
                }
                most
            })
        };
        let execution = world.dispatch(on_node("loud", node.id)).await;
        let end = until("the loud hook has ended", async || {
            let now = world.operator.execution(execution.id).await;
            now.status.is_terminal().then_some(now)
        })
        .await;
        done.store(true, Ordering::Relaxed);
        let supervisor = watcher.join().map_err(|_| "the watcher panicked")?;
        let target = &end.targets[0];
        if target.status != Status::Succeeded || target.output_total_bytes != Some(mib << 20) {
            return Err(format!("the loud hook came to {target:?}"));
        }
        let took = target
            .started_at
            .zip(target.ended_at)
            .map(|(from, to)| (to.as_millis() - from.as_millis()).max(1));
        let seconds = took
            .and_then(|ms| u32::try_from(ms).ok())
            .map_or(f64::INFINITY, |ms| f64::from(ms) / 1000.0);
        speed.push(f64::from(u32::try_from(mib).unwrap_or(0)) / seconds);
        peak.push((machine::peak_kib(pid).unwrap_or(0.0) + supervisor) / 1024.0);
    }
    let mut section = Section::default();
    section
        .measured("mib_s", &speed)
        .measured("agent_peak_mib", &peak)
        .note("mib", mib);
    section.note(
        "agent_peak_is",
        "of the daemon and its supervisor together, resident",
    );
    Ok(section)
}
