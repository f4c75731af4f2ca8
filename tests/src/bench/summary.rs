//! The summary: figures under the names of the table of targets, and the table itself.

use serde_json::{Map, Value, json};

use super::median;

/// One group of figures.
#[derive(Clone, Default, Debug)]
pub struct Section(Map<String, Value>);

impl Section {
    /// The median of the runs, and their range beside it.
    pub fn measured(&mut self, name: &str, runs: &[f64]) -> &mut Self {
        let round = |value: f64| (value * 10_000.0).round() / 10_000.0;
        let value = median(runs).map(round);
        self.0.insert(name.to_owned(), json!(value));
        let least = runs.iter().copied().min_by(f64::total_cmp);
        let most = runs.iter().copied().max_by(f64::total_cmp);
        let ranges = self.0.entry("ranges").or_insert_with(|| json!({}));
        ranges[name] = json!({ "min": least.map(round), "max": most.map(round), "runs": runs.len() });
        self
    }

    pub fn note(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Why a figure is not there.
    pub fn missing(&mut self, name: &str, why: &str) -> &mut Self {
        self.0.insert(name.to_owned(), Value::Null);
        let reasons = self.0.entry("not_available").or_insert_with(|| json!({}));
        reasons[name] = json!(why);
        self
    }

    #[must_use]
    pub fn value(self) -> Value {
        Value::Object(self.0)
    }

    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }
}

/// On which side of the target a figure has to be.
#[derive(Clone, Copy)]
enum Side {
    AtMost,
    AtLeast,
}

/// A place in the summary: of the swarms, the row with that engine and size.
struct Target {
    key: &'static str,
    rows: Option<(&'static str, u64)>,
    side: Side,
    target: f64,
}

const fn at(key: &'static str, side: Side, target: f64) -> Target {
    Target {
        key,
        rows: None,
        side,
        target,
    }
}

const fn row(engine: &'static str, nodes: u64, key: &'static str, target: f64) -> Target {
    Target {
        key,
        rows: Some((engine, nodes)),
        side: Side::AtMost,
        target,
    }
}

#[rustfmt::skip]
const TARGETS: &[Target] = &[
    at("single.p50_ms", Side::AtMost, 8.0),
    at("single.p99_ms", Side::AtMost, 25.0),
    at("single.hook_p50_ms", Side::AtMost, 16.0),
    at("real30.ratio_ping", Side::AtLeast, 20.0),
    at("real30.ratio_script", Side::AtLeast, 20.0),
    at("real30.ratio_cpu", Side::AtLeast, 20.0),
    row("sqlite", 1_000, "settled_s", 0.75),
    row("sqlite", 10_000, "settled_s", 5.0),
    row("sqlite", 50_000, "settled_s", 30.0),
    row("postgresql", 10_000, "settled_s", 5.0),
    row("postgresql", 50_000, "settled_s", 30.0),
    row("sqlite", 10_000, "control_cpu_ms_per_invocation", 0.4),
    row("postgresql", 10_000, "control_cpu_ms_per_invocation", 0.4),
    row("sqlite", 10_000, "admit_ms", 400.0),
    row("postgresql", 10_000, "admit_ms", 400.0),
    at("flat.ratio", Side::AtMost, 1.5),
    at("agent.pss_mib", Side::AtMost, 8.0),
    at("agent.idle_cpu_percent", Side::AtMost, 0.05),
    at("agent.connected_ms", Side::AtMost, 100.0),
    at("control.kib_per_stream", Side::AtMost, 24.0),
    at("control.idle_cpu_percent", Side::AtMost, 5.0),
    at("reconnect.all_back_s", Side::AtMost, 30.0),
    at("lists.p99_ms", Side::AtMost, 20.0),
    at("lists.postgresql_p99_ms", Side::AtMost, 20.0),
    at("output.mib_s", Side::AtLeast, 100.0),
    at("output.agent_peak_mib", Side::AtMost, 24.0),
];

/// One line of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Judged {
    pub key: String,
    pub value: Option<f64>,
    pub target: f64,
    pub at_least: bool,
    pub reached: Option<bool>,
}

impl Target {
    fn judged(&self, summary: &Value) -> Judged {
        let (key, value) = match self.rows {
            None => {
                let path = format!("/{}", self.key.replace('.', "/"));
                (
                    self.key.to_owned(),
                    summary.pointer(&path).and_then(Value::as_f64),
                )
            }
            Some((engine, nodes)) => {
                let rows = summary["swarm"].as_array().map_or(&[][..], Vec::as_slice);
                let mine = |row: &&Value| row["engine"] == engine && row["nodes"] == nodes;
                // As `musterd` reports, where that was possible.
                let mut fitting: Vec<_> = rows
                    .iter()
                    .filter(mine)
                    .filter(|row| row[self.key].is_f64())
                    .collect();
                fitting.sort_by_key(|row| row["reporting"] != "own");
                let value = fitting.first().and_then(|row| row[self.key].as_f64());
                (format!("swarm[{engine}, {nodes}].{}", self.key), value)
            }
        };
        let (target, at_least) = (self.target, matches!(self.side, Side::AtLeast));
        let reached = value.map(|value| {
            if at_least {
                value >= target
            } else {
                value <= target
            }
        });
        Judged {
            key,
            value,
            target,
            at_least,
            reached,
        }
    }
}

/// Every target beside what was measured.
#[must_use]
pub fn judge(summary: &Value) -> Vec<Judged> {
    TARGETS.iter().map(|target| target.judged(summary)).collect()
}

impl Judged {
    #[must_use]
    pub fn value_json(&self) -> Value {
        json!({
            "key": self.key, "value": self.value, "target": self.target,
            "side": if self.at_least { "at_least" } else { "at_most" }, "reached": self.reached,
        })
    }
}

/// The table as it is printed.
#[must_use]
pub fn table(judged: &[Judged]) -> String {
    let mut text = format!("{:<56} {:>12} {:>12}  {}\n", "", "measured", "target", "reached");
    for line in judged {
        let value = line
            .value
            .map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"));
        let target = format!("{} {}", if line.at_least { "≥" } else { "≤" }, line.target);
        let reached = match line.reached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not available",
        };
        text.push_str(&format!("{:<56} {value:>12} {target:>12}  {reached}\n", line.key));
    }
    text
}

/// What every summary has, whatever was left out.
pub const KEYS: &[&str] = &[
    "machine",
    "quick",
    "single",
    "real30",
    "swarm",
    "flat",
    "replicated",
    "agent",
    "control",
    "reconnect",
    "lists",
    "output",
    "salt",
    "targets",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_judged_by_its_side_and_a_missing_one_by_nothing() {
        let mut single = Section::default();
        single
            .measured("p50_ms", &[9.0, 7.0, 8.0])
            .missing("p99_ms", "too few runs");
        let mut real = Section::default();
        real.measured("ratio_ping", &[19.9]);
        let mut row = Section::default();
        row.note("engine", "sqlite")
            .note("nodes", 10_000)
            .note("reporting", "own")
            .measured("settled_s", &[4.0]);
        let mut other = Section::default();
        other
            .note("engine", "sqlite")
            .note("nodes", 10_000)
            .note("reporting", "pool")
            .measured("settled_s", &[3.0]);
        let summary = json!({ "single": single.value(), "real30": real.value(), "swarm": [other.value(), row.value()] });
        let judged = judge(&summary);
        let of = |key: &str| judged.iter().find(|line| line.key == key).unwrap().clone();
        assert_eq!(
            (of("single.p50_ms").value, of("single.p50_ms").reached),
            (Some(8.0), Some(true))
        );
        assert_eq!(of("single.p99_ms").reached, None);
        assert_eq!(of("real30.ratio_ping").reached, Some(false));
        assert_eq!(of("swarm[sqlite, 10000].settled_s").value, Some(4.0));
        assert_eq!(table(&judged).lines().count(), judged.len() + 1);
    }
}
