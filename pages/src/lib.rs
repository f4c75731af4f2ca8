//! Manual pages and shell completions.
//!
//! What a program takes is known to its own command line alone, so each program has a test that hands that to
//! [`Program::whole`]: it makes the pages and the completions, and checks them. `scripts/man` runs the same tests and keeps
//! what they made. So no program that is shipped carries anything of this. The pages about files and hooks are
//! made from the documents, so that there is one text of each.

mod check;
mod documents;
mod prose;

pub use documents::documents;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// Where `scripts/man` wants what the tests make; without it they throw it away.
const DIRECTORY: &str = "MUSTER_PAGES_DIR";
/// The time that pages are said to be of, in seconds: `SOURCE_DATE_EPOCH` under another name, because cargo builds what reads that anew
/// whenever it changes.
const EPOCH: &str = "MUSTER_PAGES_EPOCH";

const MANUAL: &str = "Muster";
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub struct Program {
    pub command: Command,
    /// 1 for what people use, 8 for what an admin does.
    pub section: u8,
    /// What its page says beside its command line, in Markdown.
    pub prose: &'static str,
}

/// A place for what is made.
pub(crate) struct Place {
    dir: PathBuf,
    _thrown_away: Option<tempfile::TempDir>,
}

impl Place {
    /// The directory that was asked for, or one that goes away.
    ///
    /// # Panics
    /// When it cannot be made.
    fn find() -> Self {
        let (dir, thrown_away) = match std::env::var_os(DIRECTORY) {
            Some(dir) => (dir.into(), None),
            None => {
                let dir = tempfile::tempdir().expect("a directory can be made");
                (dir.path().to_owned(), Some(dir))
            }
        };
        fs::create_dir_all(dir.join("man")).expect("a directory can be made");
        Self {
            dir,
            _thrown_away: thrown_away,
        }
    }

    fn page(&self, name: &str) -> PathBuf {
        self.dir.join("man").join(name)
    }
}

/// The day that pages name: that of the sources, so that the same sources make the same bytes.
fn date() -> String {
    let seconds = std::env::var(EPOCH).ok().and_then(|text| text.parse().ok());
    day(seconds.unwrap_or_default())
}

/// The day of an instant, in seconds since 1970, as 2026-11-28. By Howard Hinnant's `civil_from_days`.
fn day(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

impl Program {
    /// Makes its pages and completions, and checks that they are whole and sound.
    ///
    /// # Panics
    /// When they are not.
    pub fn whole(mut self) {
        let place = Place::find();
        self.command = self.command.disable_help_subcommand(true);
        self.command.build();
        self.write(&place).expect("the pages can be written");
        let completions = complete(&mut self.command, &place.dir).expect("completions can be written");
        check::commands(&self.command, self.section, &|name| {
            fs::read_to_string(place.page(name)).unwrap_or_default()
        });
        check::lint(&self.names().map(|name| place.page(&name)).collect::<Vec<_>>());
        check::shells(&completions);
    }

    fn names(&self) -> impl Iterator<Item = String> {
        visible(&self.command)
            .into_iter()
            .map(|command| file_name(command, self.section))
    }

    fn write(&self, place: &Place) -> io::Result<()> {
        for command in visible(&self.command) {
            let top = command.get_name() == self.command.get_name();
            let mut page = self.command_page(command)?;
            if top {
                page.extend(prose::body(self.prose).into_bytes());
            } else {
                page.extend(self.see_also(command).into_bytes());
            }
            fs::write(place.page(&file_name(command, self.section)), page)?;
        }
        Ok(())
    }

    fn command_page(&self, command: &Command) -> io::Result<Vec<u8>> {
        let man = Man::new(command.clone())
            .section(self.section.to_string())
            .date(date())
            .source(format!("{} {VERSION}", self.command.get_name()))
            .manual(MANUAL);
        let mut page = Vec::new();
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        if command.get_arguments().any(|argument| !argument.is_hide_set()) {
            man.render_options_section(&mut page)?;
        }
        if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
            man.render_subcommands_section(&mut page)?;
        }
        if let Some(more) = command.get_after_long_help().or_else(|| command.get_after_help()) {
            // It has tables in it, whose lines have to stay lines.
            write!(page, ".SH NOTES\n{}", prose::as_it_is(&more.to_string()))?;
        }
        Ok(page)
    }

    fn see_also(&self, command: &Command) -> String {
        let above = command
            .get_display_name()
            .and_then(|name| name.rsplit_once('-'))
            .map_or_else(|| self.command.get_name(), |(above, _)| above);
        format!(".SH SEE ALSO\n.BR {above} ({})\n", self.section)
    }
}

/// A command and all below it that are for people.
fn visible(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    std::iter::once(command).chain(below.flat_map(visible)).collect()
}

fn file_name(command: &Command, section: u8) -> String {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    format!("{name}.{section}")
}

fn complete(command: &mut Command, under: &Path) -> io::Result<Vec<(Shell, PathBuf)>> {
    let name = command.get_name().to_owned();
    // Named as each shell looks for it.
    let files = [
        (Shell::Bash, name.clone()),
        (Shell::Zsh, format!("_{name}")),
        (Shell::Fish, format!("{name}.fish")),
    ];
    let mut made = Vec::new();
    for (shell, file) in files {
        let dir = under.join("completions").join(shell.to_string());
        fs::create_dir_all(&dir)?;
        let file = dir.join(file);
        let mut text = Vec::new();
        clap_complete::generate(shell, command, &name, &mut text);
        fs::write(&file, text)?;
        made.push((shell, file));
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
        assert_eq!(day(1_795_824_000), "2026-11-28");
        assert_eq!(day(4_107_542_399), "2100-02-28");
    }
}
