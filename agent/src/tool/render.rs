//! Tables and documents on standard output. Whatever a hook or a file wrote becomes one printable line first.

pub(crate) use muster_shared::terminal::line;
use serde::Serialize;

use crate::logging::say_on_stdout;

/// Columns without lines, each as wide as its widest cell.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(&header)
        .chain(rows)
        .map(|row| row.iter().map(|cell| line(cell)).collect())
        .collect();
    let width = |column: usize| {
        let cells = all.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let text = all.iter().map(|row| {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    });
    text.collect::<Vec<_>>().join("\n")
}

/// Names and values, one pair a line.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let widest = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let text = facts.iter().map(|(name, value)| {
        let name = format!("{name}:");
        format!("{name:width$}  {}", line(value), width = widest + 1)
            .trim_end()
            .to_owned()
    });
    text.collect::<Vec<_>>().join("\n")
}

pub(crate) fn document(document: &impl Serialize) {
    say_on_stdout(&serde_json::to_string_pretty(document).unwrap_or_default());
}

pub(crate) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut tenths, mut unit) = (count * 10 / 1024, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_foreign_text_stays_on_its_line() {
        let rows = [
            vec!["a\nb".to_owned(), "x".to_owned()],
            vec!["c".to_owned(), "y\x1b[2J".to_owned()],
        ];
        assert_eq!(
            table(&["NAME", "V"], &rows),
            "NAME  V\na\\nb  x\nc     y\\u{1b}[2J"
        );
        assert_eq!(
            facts(&[("A", "1".into()), ("Long", "2".into())]),
            "A:     1\nLong:  2"
        );
    }

    #[test]
    fn sizes_are_told_in_the_unit_that_fits() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
