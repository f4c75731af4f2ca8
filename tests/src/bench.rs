//! The bench: what Muster takes for what it does, on the machine where this runs, beside a peer where there is one.
//!
//! Every figure is the median of several runs and comes with its range. What cannot be measured here says why; no
//! figure is taken from memory. Nothing here decides whether a build is good: no test asserts a time.

pub mod engines;
pub mod fleet;
pub mod machine;
pub mod output;
pub mod peer;
pub mod plot;
pub mod reads;
pub mod real;
pub mod replicated;
pub mod summary;
pub mod swarms;

use std::path::PathBuf;

use crate::{World, world::NodeToBe};

/// What was asked for in the environment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Five minutes at most: fewer runs, smaller sizes, and without what takes longer.
    pub quick: bool,
    /// No swarm is larger.
    pub nodes_max: usize,
    /// Only these parts; all of them when there are none.
    pub parts: Vec<String>,
    /// Where the summary goes.
    pub into: PathBuf,
    /// The Python of an environment with Salt.
    pub salt_python: Option<PathBuf>,
    /// Why there is none.
    pub no_salt: String,
    /// The `musterd` that is installed on nodes, which is built by itself.
    pub musterd: Option<PathBuf>,
}

impl Plan {
    #[must_use]
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| get(name)?.parse().ok();
        let quick = get("QUICK").is_some_and(|quick| !quick.is_empty() && quick != "0");
        let parts = get("PARTS").unwrap_or_default();
        Self {
            quick,
            nodes_max: number("NODES").unwrap_or(if quick { 10_000 } else { 50_000 }),
            parts: parts
                .split([',', ' '])
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
            into: get("MUSTER_BENCH_DIR").map_or_else(|| "target/bench".into(), PathBuf::from),
            salt_python: get("MUSTER_BENCH_SALT_PYTHON")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            no_salt: get("MUSTER_BENCH_NO_SALT")
                .unwrap_or_else(|| "MUSTER_BENCH_SALT_PYTHON names no Python".to_owned()),
            musterd: get("MUSTER_BENCH_MUSTERD").map(PathBuf::from),
        }
    }

    /// A node that runs the `musterd` that is measured.
    #[must_use]
    pub fn node<'w>(&self, world: &'w World, name: &str) -> NodeToBe<'w> {
        let node = world.node(name);
        match &self.musterd {
            Some(musterd) => node.of_version(musterd.clone()),
            None => node,
        }
    }

    #[must_use]
    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// Whether this is so small that it can only show that everything works.
    #[must_use]
    pub const fn is_tiny(&self) -> bool {
        self.nodes_max < 1000
    }
}

/// The middle of several runs; `None` of none.
#[must_use]
pub fn median(runs: &[f64]) -> Option<f64> {
    percentile(runs, 0.5)
}

/// The smallest value that so large a part of the runs does not exceed.
#[must_use]
pub fn percentile(runs: &[f64], part: f64) -> Option<f64> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    sorted.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_values_that_occurred() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.99), Some(99.0));
        assert_eq!(percentile(&hundred, 1.0), Some(100.0));
        assert_eq!(percentile(&[7.0], 0.0), Some(7.0));
    }

    #[test]
    fn a_plan_is_what_the_environment_says() {
        let plan = Plan::from_environment(|name| match name {
            "QUICK" => Some("1".to_owned()),
            "NODES" => Some("200".to_owned()),
            "PARTS" => Some("swarm, single".to_owned()),
            _ => None,
        });
        assert!(plan.quick && plan.is_tiny() && plan.wants("swarm") && !plan.wants("output"));
        let whole = Plan::from_environment(|_| None);
        assert!(!whole.quick && whole.nodes_max == 50_000 && whole.wants("anything"));
    }
}
