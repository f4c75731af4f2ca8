//! Tables without lines, as kubectl draws them.

use comfy_table::{Attribute, Color, presets};
use muster_shared::{status::Status, wire::Verdict};

use crate::text;

/// What a cell's content means for whoever skims the column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tone {
    Plain,
    Good,
    Bad,
    Odd,
    Quiet,
}

pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn good(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            tone: Tone::Good,
        }
    }

    pub(crate) fn odd(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            tone: Tone::Odd,
        }
    }

    fn styled(&self) -> comfy_table::Cell {
        let cell = comfy_table::Cell::new(text::line(&self.text));
        match self.tone {
            Tone::Plain => cell,
            Tone::Good => cell.fg(Color::DarkGreen),
            Tone::Bad => cell.fg(Color::DarkRed),
            Tone::Odd => cell.fg(Color::DarkYellow),
            Tone::Quiet => cell.add_attribute(Attribute::Dim),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self {
            text,
            tone: Tone::Plain,
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Status> for Cell {
    fn from(status: Status) -> Self {
        let tone = match status {
            Status::Succeeded => Tone::Good,
            Status::Failed | Status::Timeout => Tone::Bad,
            Status::Cancelled => Tone::Odd,
            Status::Pending | Status::Ack => Tone::Quiet,
            Status::Started => Tone::Plain,
        };
        Self {
            text: status.to_string(),
            tone,
        }
    }
}

impl From<Verdict> for Cell {
    fn from(verdict: Verdict) -> Self {
        let tone = match verdict {
            Verdict::Verified => Tone::Good,
            Verdict::Drift => Tone::Bad,
            Verdict::Uncatalogued => Tone::Odd,
        };
        Self {
            text: verdict.as_str().to_owned(),
            tone,
        }
    }
}

impl<T: ToString> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(|| "-".to_owned(), |v| v.to_string()).into()
    }
}

/// Rows under a header; or, without one, names beside their values.
#[derive(Default)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// The `more` columns are for the wide view; rows always give them all.
    pub(crate) fn new(header: &[&'static str], more: &[&'static str], wide: bool) -> Self {
        let more = if wide { more } else { &[] };
        Self {
            header: [header, more].concat(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows
            .push(cells.into_iter().take(self.header.len()).collect());
    }

    /// A line of a description.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<Cell>) {
        self.rows.push(vec![format!("{name}:").into(), value.into()]);
    }

    pub(crate) fn render(&self, colour: bool) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        if colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        if !self.header.is_empty() {
            table.set_header(self.header.clone());
        }
        table.add_rows(
            self.rows
                .iter()
                .map(|cells| cells.iter().map(Cell::styled).collect::<Vec<_>>()),
        );
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let mut table = Table::new(&["NODE", "STATUS"], &["ID"], false);
        table.row(["web-1".into(), Status::Succeeded.into(), "x".into()]);
        table.row(["a-longer-name".into(), Status::Failed.into(), "y".into()]);
        assert_eq!(
            table.render(false),
            "NODE           STATUS\nweb-1          succeeded\na-longer-name  failed"
        );
    }

    #[test]
    fn the_wide_view_has_more_columns() {
        let mut table = Table::new(&["NODE"], &["ID"], true);
        table.row(["web-1".into(), "x".into()]);
        assert_eq!(table.render(false), "NODE   ID\nweb-1  x");
    }

    #[test]
    fn a_status_has_its_colour_only_where_asked() {
        let mut table = Table::default();
        table.fact("Status", Status::Failed);
        assert_eq!(table.render(false), "Status:  failed");
        assert!(table.render(true).contains("\x1b["));
    }

    #[test]
    fn foreign_text_stays_on_its_line() {
        let mut table = Table::default();
        table.fact("Error", "a\n\x1b[2Jb".to_owned());
        assert_eq!(table.render(true), "Error:  a\\n\\u{1b}[2Jb");
    }
}
