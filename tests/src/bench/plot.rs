//! Time against the number of nodes, as a picture: both axes logarithmic, so that time that grows as the fleet does is a
//! straight line of the steepness of the dashed ones.

use std::fmt::Write as _;

use serde_json::Value;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const MARGIN: f64 = 60.0;
/// What the axes show: decades of nodes, and of seconds.
const NODES: (f64, f64) = (2.5, 5.0);
const SECONDS: (f64, f64) = (-1.0, 2.0);
const COLOURS: [&str; 4] = ["#1b6ca8", "#7fb2d9", "#a83e1b", "#d99a7f"];

fn across(nodes: f64) -> f64 {
    MARGIN + (nodes.log10() - NODES.0) / (NODES.1 - NODES.0) * (WIDTH - 2.0 * MARGIN)
}

fn up(seconds: f64) -> f64 {
    HEIGHT - MARGIN - (seconds.log10() - SECONDS.0) / (SECONDS.1 - SECONDS.0) * (HEIGHT - 2.0 * MARGIN)
}

/// The points of one kind of row, by size.
fn points(rows: &[Value], engine: &str, reporting: &str) -> Vec<(f64, f64)> {
    let mine = rows
        .iter()
        .filter(|row| row["engine"] == engine && row["reporting"] == reporting);
    let mut points: Vec<_> = mine
        .filter_map(|row| Some((row["nodes"].as_f64()?, row["settled_s"].as_f64()?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// An SVG of the rows of the swarms.
#[must_use]
pub fn svg(rows: &[Value]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut add = |line: String| writeln!(svg, "{line}").expect("a string takes all that is written");
    for nodes in [1_000.0, 10_000.0, 50_000.0] {
        let (x, bottom) = (across(nodes), HEIGHT - MARGIN);
        add(format!(
            "<line x1=\"{x:.1}\" y1=\"{MARGIN}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{nodes}</text>",
            bottom + 18.0
        ));
    }
    for seconds in [0.1, 1.0, 10.0, 100.0] {
        let (y, right) = (up(seconds), WIDTH - MARGIN);
        add(format!(
            "<line x1=\"{MARGIN}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{seconds} s</text>",
            MARGIN - 8.0,
            y + 4.0
        ));
    }
    for (what, seconds_each) in [("0.5 ms for each node", 0.0005), ("1 ms for each node", 0.001)] {
        let (from, to) = (500.0, 90_000.0);
        add(format!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#999\" stroke-dasharray=\"4 4\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#777\">{what}</text>",
            across(from),
            up(from * seconds_each),
            across(to),
            up(to * seconds_each),
            across(to) - 4.0,
            up(to * seconds_each) - 6.0
        ));
    }
    let kinds = [
        ("sqlite", "own"),
        ("sqlite", "pool"),
        ("postgresql", "own"),
        ("postgresql", "pool"),
    ];
    for (at, ((engine, reporting), colour)) in (0_i16..).zip(kinds.into_iter().zip(COLOURS)) {
        let points = points(rows, engine, reporting);
        let path: Vec<String> = points
            .iter()
            .map(|(nodes, seconds)| format!("{:.1},{:.1}", across(*nodes), up(*seconds)))
            .collect();
        add(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        ));
        for (nodes, seconds) in points {
            add(format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                across(nodes),
                up(seconds)
            ));
        }
        add(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{engine}, reports over {reporting} connections</text>",
            MARGIN + 10.0,
            MARGIN + 4.0 + 16.0 * f64::from(at)
        ));
    }
    add(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">nodes in one dispatch, and the time until the last has \
         ended durably</text>\n</svg>",
        WIDTH / 2.0,
        HEIGHT - 14.0
    ));
    svg
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_measured_is_a_point_and_what_was_not_is_none() {
        let rows = [
            json!({ "engine": "sqlite", "reporting": "own", "nodes": 10_000, "settled_s": 5.0 }),
            json!({ "engine": "sqlite", "reporting": "own", "nodes": 1_000, "settled_s": 0.5 }),
            json!({ "engine": "sqlite", "reporting": "own", "nodes": 50_000, "settled_s": null }),
        ];
        assert_eq!(points(&rows, "sqlite", "own"), [(1_000.0, 0.5), (10_000.0, 5.0)]);
        let svg = svg(&rows);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
    }
}
