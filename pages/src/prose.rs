//! Markdown as a manual page: as much of it as the documents use.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// Which page a text becomes.
pub(crate) struct Title {
    pub(crate) name: &'static str,
    pub(crate) section: u8,
    /// The line of NAME.
    pub(crate) about: &'static str,
    /// Where the file is that the page is about; nothing where it is about none.
    pub(crate) files: &'static [&'static str],
    pub(crate) see_also: &'static [(&'static str, u8)],
}

pub(crate) fn page(title: &Title, markdown: &str, date: &str, version: &str) -> String {
    let Title {
        name, section, about, ..
    } = title;
    let mut out =
        format!(".TH {name} {section} {date} \"Muster {version}\" Muster\n.SH NAME\n{name} \\- {about}\n");
    if !title.files.is_empty() {
        let files: Vec<String> = title
            .files
            .iter()
            .map(|file| format!("\\fI{}\\fR", escaped(file)))
            .collect();
        out.push_str(&format!(".SH SYNOPSIS\n{}\n", files.join("\n.br\n")));
    }
    out.push_str(".SH DESCRIPTION\n");
    out.push_str(&body(markdown));
    let also: Vec<String> = title
        .see_also
        .iter()
        .map(|(name, section)| format!("\\fB{}\\fR({section})", escaped(name)))
        .collect();
    out.push_str(&format!(".SH SEE ALSO\n{}\n", also.join(",\n")));
    out
}

/// The sections of a text, without a title.
pub(crate) fn body(markdown: &str) -> String {
    // A heading stands before it.
    let mut writer = Writer {
        opened: true,
        ..Writer::default()
    };
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        writer.take(event);
    }
    writer.flush();
    writer.out
}

/// Text whose lines stay as they are.
pub(crate) fn as_it_is(text: &str) -> String {
    let lines: Vec<String> = text
        .trim_end()
        .lines()
        .map(|line| guarded(&escaped(line)))
        .collect();
    format!(".nf\n{}\n.fi\n", lines.join("\n"))
}

#[derive(Default)]
struct Writer {
    out: String,
    /// The words of what is open: a paragraph, a heading, a cell.
    line: String,
    /// Open lists; a number where they are counted.
    lists: Vec<Option<u64>>,
    in_code: bool,
    header: Vec<String>,
    cells: Vec<String>,
    /// A paragraph needs no macro where one was just written.
    opened: bool,
}

impl Writer {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.in_code => self.line.push_str(&text),
            Event::Text(text) => self.line.push_str(&escaped(&text)),
            Event::Code(code) => self.line.push_str(&format!("\\fB{}\\fR", escaped(&code))),
            Event::SoftBreak => self.line.push('\n'),
            Event::HardBreak => self.line.push_str("\n.br\n"),
            // The documents have none of these.
            Event::Html(_)
            | Event::InlineHtml(_)
            | Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::FootnoteReference(_)
            | Event::Rule
            | Event::TaskListMarker(_) => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Strong => self.line.push_str("\\fB"),
            Tag::Emphasis => self.line.push_str("\\fI"),
            Tag::CodeBlock(_) => {
                self.flush();
                self.in_code = true;
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => {
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!(".IP {}. 4\n", *number - 1)
                    }
                    Some(None) | None => ".IP \\(bu 2\n".to_owned(),
                };
                self.flush();
                self.out.push_str(&mark);
                self.opened = true;
            }
            Tag::TableHead | Tag::TableRow => self.cells.clear(),
            Tag::Paragraph
            | Tag::Heading { .. }
            | Tag::BlockQuote(_)
            | Tag::HtmlBlock
            | Tag::FootnoteDefinition(_)
            | Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::Table(_)
            | Tag::TableCell
            | Tag::Strikethrough
            | Tag::Superscript
            | Tag::Subscript
            | Tag::Link { .. }
            | Tag::Image { .. }
            | Tag::MetadataBlock(_) => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Strong | TagEnd::Emphasis => self.line.push_str("\\fR"),
            TagEnd::Heading(level) => {
                let words = std::mem::take(&mut self.line);
                match level {
                    // The name of the page says it.
                    HeadingLevel::H1 => {}
                    HeadingLevel::H2 => self.out.push_str(&format!(".SH {}\n", words.to_uppercase())),
                    HeadingLevel::H3 | HeadingLevel::H4 | HeadingLevel::H5 | HeadingLevel::H6 => {
                        self.out.push_str(&format!(".SS {words}\n"));
                    }
                }
                self.opened = true;
            }
            TagEnd::Paragraph | TagEnd::Item => self.flush(),
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::CodeBlock => {
                self.in_code = false;
                let code = as_it_is(&std::mem::take(&mut self.line));
                if !std::mem::take(&mut self.opened) {
                    self.out.push_str(".sp\n");
                }
                self.out.push_str(&format!(".RS 4\n{code}.RE\n"));
            }
            TagEnd::TableCell => self.cells.push(std::mem::take(&mut self.line)),
            TagEnd::TableHead => self.header = std::mem::take(&mut self.cells),
            TagEnd::TableRow => self.row(),
            TagEnd::Table => self.opened = false,
            TagEnd::BlockQuote(_)
            | TagEnd::HtmlBlock
            | TagEnd::FootnoteDefinition
            | TagEnd::DefinitionList
            | TagEnd::DefinitionListTitle
            | TagEnd::DefinitionListDefinition
            | TagEnd::Strikethrough
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::Link
            | TagEnd::Image
            | TagEnd::MetadataBlock(_) => {}
        }
    }

    /// A row is an item: what its first cell names, and what the others say of it.
    fn row(&mut self) {
        let mut said = self
            .header
            .iter()
            .zip(&self.cells)
            .filter(|(_, cell)| !cell.is_empty() && *cell != "–");
        let Some((_, tag)) = said.next() else { return };
        let mut out = format!(".TP\n{}\n", guarded(tag));
        let lines: Vec<String> = said
            .map(|(head, cell)| {
                // A column that says what the thing is needs no name.
                if head.is_empty() || head.starts_with("what ") || self.header.len() == 2 {
                    guarded(cell)
                } else {
                    guarded(&format!("{head}: {cell}"))
                }
            })
            .collect();
        if !lines.is_empty() {
            out.push_str(&lines.join("\n.br\n"));
            out.push('\n');
        }
        self.out.push_str(&out);
    }

    fn flush(&mut self) {
        let words = std::mem::take(&mut self.line);
        if words.trim().is_empty() {
            return;
        }
        if !std::mem::take(&mut self.opened) {
            self.out.push_str(".PP\n");
        }
        for line in words.lines() {
            let line = if line == ".br" {
                line.to_owned()
            } else {
                guarded(line.trim())
            };
            self.out.push_str(&line);
            self.out.push('\n');
        }
    }
}

/// No character of a text is taken for an instruction.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// A line that begins like an instruction is none.
fn guarded(line: &str) -> String {
    if line.starts_with(['.', '\'']) {
        format!("\\&{line}")
    } else {
        line.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_an_item_with_what_its_columns_say() {
        let table = "| key | what it limits | default |\n| --- | --- | --- |\n| `a_max` | the a's | 5 |\n| – | x | – |\n";
        assert_eq!(
            body(table),
            ".TP\n\\fBa_max\\fR\nthe a's\n.br\ndefault: 5\n.TP\nx\n"
        );
    }

    #[test]
    fn nothing_of_a_text_is_an_instruction() {
        assert_eq!(body(".so /etc/passwd\n"), "\\&.so /etc/passwd\n");
        assert_eq!(body("    'x \\n\n"), ".RS 4\n.nf\n\\&'x \\en\n.fi\n.RE\n");
    }

    #[test]
    fn headings_lists_and_code_have_their_macros() {
        assert_eq!(
            body("## Do it\n\nso\n\n- one `--all`\n- two\n\n### More\n"),
            ".SH DO IT\nso\n.IP \\(bu 2\none \\fB\\-\\-all\\fR\n.IP \\(bu 2\ntwo\n.SS More\n"
        );
    }
}
