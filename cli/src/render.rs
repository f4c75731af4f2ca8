//! The only place that writes: results to standard output, words to standard error. Nothing in them commands a terminal,
//! whoever wrote it: only [`Screen::bytes`] lets through what is there.
//!
//! A reader that has closed its end wants no more: that ends the writing and is no failure.

use std::{
    cell::Cell,
    io::{self, IsTerminal as _, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use clap::ValueEnum;
use serde::Serialize;

use crate::{failure::Failure, table::Table, text};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// More columns, whole digests and times in RFC 3339.
    Wide,
    /// JSON, as the API has it; lists are {"items": [...]}.
    Json,
    /// One name or id per line.
    Name,
    /// The bytes as they are; only of `execution output`.
    Raw,
}

pub(crate) struct Screen {
    format: Format,
    colour: bool,
    /// Whether standard output is a terminal, whatever it can do.
    terminal: bool,
    /// Whether standard error is a terminal that can redraw a line.
    live: bool,
    stdout_closed: Cell<bool>,
}

impl Screen {
    /// Asks the two streams what they are.
    pub(crate) fn new(format: Format, no_color: bool) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let plain = no_color || set("NO_COLOR") || dumb;
        let terminal = io::stdout().is_terminal();
        Self {
            format,
            colour: terminal && !plain,
            terminal,
            live: io::stderr().is_terminal() && !dumb,
            stdout_closed: Cell::new(false),
        }
    }

    pub(crate) const fn format(&self) -> Format {
        self.format
    }

    pub(crate) const fn is_live(&self) -> bool {
        self.live
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Whether an output of an action must be made [`Printable`](crate::printable::Printable): a person looks at it, and
    /// did not ask for its bytes. Files and programs get them as they are.
    pub(crate) fn is_for_eyes(&self) -> bool {
        self.terminal && self.format != Format::Raw
    }

    /// Whether nobody reads standard output any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.stdout_closed.get()
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_closed() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => {
                self.stdout_closed.set(true);
                Ok(())
            }
            written => written.map_err(Failure::local("writing to standard output")),
        }
    }

    /// One line, whatever is in it.
    pub(crate) fn print(&self, line: &str) -> Result<(), Failure> {
        self.bytes(format!("{}\n", text::line(line)).as_bytes())
    }

    /// A path that the operator gave: whoever reads it opens it.
    pub(crate) fn path(&self, path: &Path) -> Result<(), Failure> {
        self.bytes(&[path.as_os_str().as_bytes(), b"\n"].concat())
    }

    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|err| Failure::Unexpected(format!("it cannot be written as JSON: {err}")))?;
        self.bytes(format!("{}\n", text::json(&text)).as_bytes())
    }

    pub(crate) fn table(&self, table: &Table) -> Result<(), Failure> {
        // Its cells are plain text; its colours are ours.
        self.bytes(format!("{}\n", table.render(self.colour)).as_bytes())
    }

    /// One thing: its JSON, its name or the names in it, or its table.
    pub(crate) fn one<T: Serialize, N: Into<Names>>(
        &self,
        item: &T,
        name: impl FnOnce(&T) -> N,
        table: impl FnOnce(&T, bool) -> Table,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.json(item),
            Format::Name => self.names(&name(item).into()),
            Format::Table | Format::Wide | Format::Raw => self.table(&table(item, self.is_wide())),
        }
    }

    /// Many things: `{"items": […]}`, their names, or one table. `noun` names what an empty list has none of.
    pub(crate) fn list<T: Serialize>(
        &self,
        items: &[T],
        noun: &str,
        name: impl Fn(&T) -> String,
        table: impl FnOnce(&[T], bool) -> Table,
    ) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct List<'a, T> {
            items: &'a [T],
        }
        match self.format {
            Format::Json => return self.json(&List { items }),
            Format::Name => return self.names(&Names(items.iter().map(name).collect())),
            Format::Table | Format::Wide | Format::Raw => {}
        }
        if items.is_empty() {
            self.say(&format!("no {noun}"));
            return Ok(());
        }
        self.table(&table(items, self.is_wide()))
    }

    fn names(&self, names: &Names) -> Result<(), Failure> {
        self.bytes(names.lines().as_bytes())
    }

    /// Words for people. That nobody can read them is no reason to stop.
    pub(crate) fn say(&self, words: &str) {
        say(words);
    }
}

/// Words for people, when no screen was set up yet.
pub(crate) fn say(words: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text::lines(words));
}

/// What `-o name` shows: a name is a line, whatever is in it.
pub(crate) struct Names(Vec<String>);

impl Names {
    fn lines(&self) -> String {
        self.0
            .iter()
            .map(|name| format!("{}\n", text::line(name)))
            .collect()
    }
}

impl From<String> for Names {
    fn from(name: String) -> Self {
        Self(vec![name])
    }
}

impl From<Vec<String>> for Names {
    fn from(names: Vec<String>) -> Self {
        Self(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_line_whatever_is_in_it() {
        let names = Names(vec!["web-1".to_owned(), "a\nb\x1b[2J\u{202e}".to_owned()]);
        assert_eq!(names.lines(), "web-1\na\\nb\\u{1b}[2J\\u{202e}\n");
        assert_eq!(Names(Vec::new()).lines(), "");
    }
}
