//! The peer: a Salt master and as many minions as there are real agents, driven by `scripts/bench-salt`.

use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use super::Plan;

pub enum Peer {
    Measured {
        ping_s: f64,
        script_s: f64,
        /// CPU seconds of all its processes for one of each.
        ping_cpu_s: f64,
        script_cpu_s: f64,
        raw: Value,
    },
    Absent {
        why: String,
    },
}

#[derive(Deserialize)]
struct Said {
    ping_s: Vec<f64>,
    script_s: Vec<f64>,
    ping_cpu_s: f64,
    script_cpu_s: f64,
}

impl Peer {
    #[must_use]
    pub fn measure(plan: &Plan, minions: usize) -> Self {
        let absent = |why: String| Self::Absent { why };
        if plan.is_tiny() {
            return absent("left out: NODES is below 1000".to_owned());
        }
        let Some(python) = &plan.salt_python else {
            return absent(plan.no_salt.clone());
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/bench-salt");
        let runs = if plan.quick { "3" } else { "11" };
        let ran = Command::new(python)
            .args([script, "--minions", &minions.to_string(), "--runs", runs])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        let out = match ran {
            Ok(out) if out.status.success() => out.stdout,
            Ok(out) => return absent(format!("scripts/bench-salt ended with {}", out.status)),
            Err(err) => return absent(format!("{} does not start: {err}", python.display())),
        };
        let read = serde_json::from_slice::<Value>(&out).and_then(|raw| {
            let said: Said = serde_json::from_value(raw.clone())?;
            Ok((raw, said))
        });
        match read {
            Ok((raw, said)) => Self::Measured {
                ping_s: super::median(&said.ping_s).unwrap_or(f64::NAN),
                script_s: super::median(&said.script_s).unwrap_or(f64::NAN),
                ping_cpu_s: said.ping_cpu_s,
                script_cpu_s: said.script_cpu_s,
                raw,
            },
            Err(err) => absent(format!("scripts/bench-salt gave no figures: {err}")),
        }
    }

    #[must_use]
    pub fn value(&self) -> Value {
        match self {
            Self::Measured { raw, .. } => raw.clone(),
            Self::Absent { why } => json!({ "not_available": why }),
        }
    }
}
