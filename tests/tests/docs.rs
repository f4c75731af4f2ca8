//! What the documents say is there, is there.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust file of the workspace, with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["shared", "control", "agent", "cli", "tests"]
        .map(|folder| root().join(folder))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("it is under the root");
                let name = name.to_str().expect("it is text").to_owned();
                found.push((name, std::fs::read_to_string(&path).expect("it can be read")));
            }
        }
    }
    found
}

/// The functions that carry a test's mark. A story goes by its file too: `cancel::what_waits…`.
fn tests(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, text) in sources {
        let story = path
            .strip_prefix("tests/tests/")
            .and_then(|file| file.strip_suffix(".rs"));
        let mut marked = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                marked = true;
            } else if let Some((_, rest)) = line.split_once("fn ")
                && std::mem::take(&mut marked)
            {
                let name = rest.split(['(', '<']).next().unwrap_or(rest);
                names.insert(story.map_or_else(|| name.to_owned(), |story| format!("{story}::{name}")));
            }
        }
    }
    names
}

#[test]
fn every_rule_of_the_orchestrator_names_what_is_there() {
    let sources = sources();
    let tests = tests(&sources);
    let document =
        std::fs::read_to_string(root().join("docs/orchestrator.md")).expect("the document is there");
    let mut missing = Vec::new();
    let mut rules = 0;
    for row in document.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [_, place, held_by] = cells[..] else { continue };
        if held_by.starts_with("held by") || held_by.starts_with("---") {
            continue;
        }
        rules += 1;
        for path in ticked(place) {
            if !root().join(path).exists() {
                missing.push(format!("{path}, of: {row}"));
            }
        }
        let by = ticked(held_by);
        if by.is_empty() {
            missing.push(format!("no test for: {row}"));
        }
        for test in by {
            if !tests.contains(test) {
                missing.push(format!("{test}, of: {row}"));
            }
        }
    }
    assert!(rules > 40, "only {rules} rules were read");
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}

/// What stands between backquotes.
fn ticked(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}
