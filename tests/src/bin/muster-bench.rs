//! `muster-bench`: what `make bench` runs. CONTRIBUTING.md says how, docs/performance.md what came of it.

use std::{fs, process::ExitCode};

use muster_tests::{
    bench::{
        Plan, machine, output, peer::Peer, plot, reads, real, replicated, summary, summary::Section, swarms,
        swarms::say,
    },
    swarm::raise_descriptor_limit,
};
use serde_json::{Value, json};

#[tokio::main]
#[expect(clippy::print_stderr, reason = "it is a command, and this is what went wrong")]
async fn main() -> ExitCode {
    match run(&Plan::from_environment(|name| std::env::var(name).ok())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("muster-bench: {err}");
            ExitCode::FAILURE
        }
    }
}

fn left_out(keys: &[&str]) -> Section {
    let mut section = Section::default();
    for key in keys {
        section.missing(key, "left out");
    }
    section
}

#[expect(clippy::print_stdout, reason = "the table is what the command is for")]
async fn run(plan: &Plan) -> Result<(), String> {
    let said = |err: std::io::Error| err.to_string();
    fs::create_dir_all(&plan.into).map_err(said)?;
    let descriptors = raise_descriptor_limit().map_err(said)?;
    let mut summary = json!({ "quick": plan.quick, "machine": machine::described(&plan.into, descriptors) });

    let peer = if plan.wants("real30") {
        say("the peer");
        Peer::measure(plan, 30)
    } else {
        Peer::Absent {
            why: "left out".to_owned(),
        }
    };
    summary["salt"] = peer.value();
    if plan.wants("single") || plan.wants("real30") || plan.wants("agent") {
        let real = Box::pin(real::run(plan, &peer)).await?;
        summary["single"] = real.single.value();
        summary["real30"] = real.real30.value();
        summary["agent"] = real.agent.value();
    } else {
        summary["single"] = left_out(&["p50_ms", "p99_ms"]).value();
        summary["real30"] = left_out(&["ratio_ping", "ratio_script", "ratio_cpu"]).value();
        summary["agent"] = left_out(&["pss_mib", "idle_cpu_percent", "connected_ms"]).value();
    }
    summary["output"] = if plan.wants("output") {
        Box::pin(output::run(plan)).await?.value()
    } else {
        left_out(&["mib_s", "agent_peak_mib"]).value()
    };
    summary["lists"] = if plan.wants("lists") {
        Box::pin(reads::run(plan)).await?.value()
    } else {
        left_out(&["p99_ms"]).value()
    };
    summary["replicated"] = if plan.wants("replicated") {
        Value::Array(Box::pin(replicated::run(plan, descriptors)).await?)
    } else {
        json!([])
    };
    let swarms = Box::pin(swarms::run(plan, descriptors)).await?;
    summary["swarm"] = Value::Array(swarms.rows);
    summary["flat"] = swarms.flat.value();
    summary["control"] = swarms.control.value();
    summary["reconnect"] = swarms.reconnect.value();

    let judged = summary::judge(&summary);
    summary["targets"] = judged.iter().map(summary::Judged::value_json).collect();
    let path = plan.into.join("summary.json");
    let text = serde_json::to_string_pretty(&summary).map_err(|err| err.to_string())?;
    fs::write(&path, text).map_err(said)?;
    let rows = summary["swarm"].as_array().map_or(&[][..], Vec::as_slice);
    fs::write(plan.into.join("time-over-nodes.svg"), plot::svg(rows)).map_err(said)?;
    println!("{}\nThe whole of it: {}", summary::table(&judged), path.display());
    let absent: Vec<_> = summary::KEYS
        .iter()
        .filter(|key| summary.get(**key).is_none())
        .collect();
    if absent.is_empty() {
        Ok(())
    } else {
        Err(format!("the summary lacks {absent:?}"))
    }
}
