//! The pages about files and hooks, made from the documents.

use std::{fs, path::Path};

use crate::{Place, VERSION, check, date, prose, prose::Title};

/// A page, and the document or the one part of it that it is made from.
struct Source {
    title: Title,
    file: &'static str,
    /// The heading of the part; the whole document where there is none.
    part: Option<&'static str>,
}

const SOURCES: [Source; 5] = [
    Source {
        title: Title {
            name: "agent.toml",
            section: 5,
            about: "settings of the Muster node daemon",
            files: &["/etc/muster/agent.toml", "/etc/muster/agent.d/*.toml"],
            see_also: &[("musterd", 8), ("muster-hooks", 7), ("muster-enrolment", 7)],
        },
        file: "configuration.md",
        part: Some("musterd"),
    },
    Source {
        title: Title {
            name: "control.toml",
            section: 5,
            about: "settings of the Muster control service",
            files: &[
                "/var/lib/muster-control/control.toml",
                "/etc/muster/control.toml",
                "/etc/muster/control.d/*.toml",
            ],
            see_also: &[("muster-control", 8), ("muster-operations", 7)],
        },
        file: "configuration.md",
        part: Some("muster-control"),
    },
    Source {
        title: Title {
            name: "muster-hooks",
            section: 7,
            about: "hooks of a Muster node and their manifests",
            files: &["/etc/muster/hooks.d/NAME", "/etc/muster/hooks.d/NAME.toml"],
            see_also: &[("musterd", 8), ("agent.toml", 5), ("muster", 1)],
        },
        file: "hooks.md",
        part: None,
    },
    Source {
        title: Title {
            name: "muster-operations",
            section: 7,
            about: "how Muster is run, and what to do when something is wrong",
            files: &[],
            see_also: &[
                ("musterd", 8),
                ("muster-control", 8),
                ("muster", 1),
                ("muster-enrolment", 7),
            ],
        },
        file: "operations.md",
        part: None,
    },
    Source {
        title: Title {
            name: "muster-enrolment",
            section: 7,
            about: "how many machines become nodes of Muster",
            files: &[],
            see_also: &[("musterd", 8), ("muster", 1), ("muster-operations", 7)],
        },
        file: "enrolment.md",
        part: None,
    },
];

/// Makes the pages of the documents, and checks them.
///
/// # Panics
/// When a document or its part is not there, or its page is not sound.
pub fn documents() {
    let place = Place::find();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut pages = Vec::new();
    for Source { title, file, part } in &SOURCES {
        let text = fs::read_to_string(docs.join(file)).expect("the document can be read");
        let text = match part {
            Some(heading) => part_of(&text, heading).expect("the document has that part"),
            None => &text,
        };
        let page = place.page(&format!("{}.{}", title.name, title.section));
        fs::write(&page, prose::page(title, text, &date(), VERSION)).expect("a page can be written");
        pages.push(page);
    }
    check::lint(&pages);
}

/// What stands below a heading, to the next of its level.
fn part_of<'a>(text: &'a str, heading: &str) -> Option<&'a str> {
    let (_, below) = text.split_once(&format!("\n## {heading}\n"))?;
    Some(below.split("\n## ").next().unwrap_or(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_completions() {
        documents();
    }
}
