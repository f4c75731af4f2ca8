//! What is made is whole and sound.

use std::{
    path::PathBuf,
    process::{Command as Process, Stdio},
};

use clap::Command;
use clap_complete::Shell;

use crate::{file_name, visible};

/// Each command has a page that names all it takes, and nothing that is hidden has one.
pub(crate) fn commands(top: &Command, section: u8, page: &dyn Fn(&str) -> String) {
    for command in visible(top) {
        let name = file_name(command, section);
        let text = page(&name);
        assert!(
            text.starts_with(".TH ") || text.contains("\n.TH "),
            "{name} is no page"
        );
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let shown = match (argument.get_long(), argument.get_value_names()) {
                (Some(long), _) => format!("--{long}"),
                (None, Some(values)) => values.join(" "),
                (None, None) => argument.get_id().to_string(),
            };
            assert!(plain(&text).contains(&shown), "{name} does not name {shown}");
            assert!(
                argument.get_help().is_some(),
                "{name} does not say what {shown} is"
            );
        }
        for sub in command.get_subcommands() {
            let listed = plain(&text).contains(&format!("\n{}-{}(", name_of(command), sub.get_name()));
            assert_eq!(listed, !sub.is_hide_set(), "{} in {name}", sub.get_name());
        }
    }
}

fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The words without what sets them.
fn plain(page: &str) -> String {
    page.replace("\\-", "-")
        .replace("\\fB", "")
        .replace("\\fI", "")
        .replace("\\fR", "")
}

/// mandoc finds nothing wrong.
pub(crate) fn lint(pages: &[PathBuf]) {
    assert!(!pages.is_empty());
    let said = Process::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(pages)
        .output()
        .unwrap_or_else(|err| {
            panic!("mandoc does not start ({err}): `make test` installs it where apt has it")
        });
    let told = String::from_utf8_lossy(&said.stdout);
    // How clap_mangen sets the values that an option may have: an empty line more or less.
    let wrong: Vec<&str> = told
        .lines()
        .filter(|line| {
            !line.contains("paragraph macro: br before sp") && !line.contains("paragraph macro: br after sp")
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each shell that is here reads what was made for it.
pub(crate) fn shells(completions: &[(Shell, PathBuf)]) {
    for (shell, file) in completions {
        let read = Process::new(shell.to_string())
            .arg("-n")
            .arg(file)
            .stdin(Stdio::null())
            .output();
        match read {
            Ok(said) => assert!(
                said.status.success() && said.stderr.is_empty(),
                "{shell}: {}",
                String::from_utf8_lossy(&said.stderr)
            ),
            // bash is what our own scripts are written in.
            Err(err) => assert!(*shell != Shell::Bash, "bash does not start: {err}"),
        }
    }
}
