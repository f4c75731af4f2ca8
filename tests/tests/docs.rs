//! What the documents say is there, is there.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use muster_tests::{Musterd, World, operator::said_by};

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

/// The words after a mark at the beginnings of lines.
fn marked(text: &str, mark: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix(mark)?.split_whitespace().last())
        .map(|word| word.trim_matches(['"', ';']).to_owned())
        .collect()
}

#[test]
fn every_event_with_an_id_is_explained_by_the_catalogs_and_named_to_operators() {
    let known = marked(
        &std::fs::read_to_string(root().join("shared/src/message_id.rs")).expect("it can be read"),
        "pub const ",
    );
    assert!(!known.is_empty());
    let mut explained = BTreeSet::new();
    for package in ["musterd", "muster-control"] {
        let path = root().join(format!("packaging/catalog/{package}.catalog"));
        let ids = marked(&std::fs::read_to_string(path).expect("it is there"), "-- ");
        for line in document("operations.md")
            .lines()
            .filter(|line| line.starts_with("| `"))
        {
            if let Some(id) = ids.iter().find(|id| line.contains(id.as_str())) {
                assert!(line.contains(&format!("| `{package}` |")), "{id}: {line}");
            }
        }
        explained.extend(ids);
    }
    assert_eq!(explained, known);
    let operations = document("operations.md");
    for id in &known {
        assert!(operations.contains(id), "docs/operations.md does not name {id}");
    }
}

fn document(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).expect("the document is there")
}

/// What a scrape of a control that serves names.
#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_in_the_documents() {
    let world = World::new().await;
    let scraped = world.operator.get("/metrics").await.expect(200).text();
    let names: Vec<&str> = scraped
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert!(names.len() > 5, "{scraped}");
    for document in ["operations.md", "configuration.md"].map(document) {
        for name in &names {
            assert!(document.contains(name), "{name} is told nowhere");
        }
    }
}

/// The keys that a program names when it meets one that it does not know.
fn known_keys(told: &str) -> Vec<String> {
    let (_, known) = told
        .split_once("expected ")
        .unwrap_or_else(|| panic!("no keys are named: {told}"));
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_the_configurations_is_in_the_documents() {
    let text = document("configuration.md");
    let (of_control, of_node) = text
        .split_once("\n## musterd\n")
        .expect("the document has two parts");
    let dir = tempfile::tempdir().expect("a directory can be made");
    let machine = Musterd::new(dir.path(), "one");
    for section in ["", "[hooks]", "[policy]", "[control]"] {
        machine.configure(&format!("{section}\nno_such_key = 1\n"));
        let told = machine.tool(&["doctor"]).await.expect(1).stdout;
        told_of(&known_keys(&told), section, of_node);
    }
    let file = dir.path().join("control.toml");
    for section in [
        "",
        "[limits]",
        "[output]",
        "[output.s3]",
        "[oidc]",
        "[retention]",
        "[retention.domains.01a21f9c-e873-7877-9eb0-994ca0a528fc]",
    ] {
        std::fs::write(&file, format!("{section}\nno_such_key = 1\n")).expect("a file can be written");
        let mut command = tokio::process::Command::new(muster_tests::binaries::binary("muster-control"));
        command.env_clear().arg("prune").arg("--data-dir").arg(dir.path());
        let told = said_by(command).await.expect(3).stderr;
        told_of(&known_keys(&told), section, of_control);
    }
}

fn told_of(keys: &[String], section: &str, document: &str) {
    assert!(!keys.is_empty(), "{section} has no keys");
    for key in keys {
        let written = [
            format!("{key}`"),
            format!("`{key}."),
            format!(".{key}"),
            format!("[{key}"),
            format!("\n{key} = "),
        ];
        assert!(
            written.iter().any(|written| document.contains(written)),
            "{section} {key} is told nowhere"
        );
    }
}

/// Every warning and every error has a row, found by the words of it that stay the same.
#[test]
fn every_line_of_the_logs_is_in_the_documents() {
    let document = document("operations.md");
    let mut missing = Vec::new();
    let mut lines = 0;
    for (path, text) in sources() {
        let tested = path.ends_with("tests.rs") || path.starts_with("tests/") || path.starts_with("cli/");
        for call in ["log::warn!(", "log::error!("] {
            for rest in text.split(call).skip(1).filter(|_| !tested) {
                let words = words_of(rest);
                // What is made of a cause alone has no words of its own.
                if words.iter().any(|part| part.len() >= 8) {
                    lines += 1;
                    if !words.iter().all(|part| document.contains(part.trim())) {
                        missing.push(format!("{path}: {words:?}"));
                    }
                }
            }
        }
    }
    assert!(lines > 60, "only {lines} lines were read");
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}

/// The text of a call of the log, without what is put into it.
fn words_of(call: &str) -> Vec<String> {
    let mut literal = String::new();
    let (mut inside, mut depth) = (false, 0_i32);
    let mut chars = call.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if inside => match chars.next() {
                // A literal that goes on in the next line.
                Some('\n') => chars = chars.as_str().trim_start().chars(),
                other => literal.extend(other),
            },
            '"' if inside => break,
            '"' if depth == 0 => inside = true,
            _ if inside => literal.push(c),
            '(' | '[' => depth += 1,
            ')' | ']' if depth == 0 => break,
            ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    let fixed = |part: &str| part.trim_matches([' ', ':', ';', ',', '.']).to_owned();
    let mut words = Vec::new();
    let mut rest = literal.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        words.push(fixed(before));
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    words.push(fixed(rest));
    // A line may end with advice; its beginning is what is looked for.
    words.retain(|part| part.len() >= 4);
    words
}

#[test]
fn what_the_documents_show_of_the_package_is_in_the_package() {
    let document = document("enrolment.md");
    for file in ["cloud-init/user-data.yaml", "ansible/nodes.yml"] {
        let file = root().join("packaging").join(file);
        let text = std::fs::read_to_string(&file).expect("it is there");
        assert!(document.contains(&text), "{} is shown as it was", file.display());
    }
    let defaults = root().join("packaging/ansible/roles/muster_node/defaults/main.yml");
    let defaults = std::fs::read_to_string(defaults).expect("it is there");
    let variables: Vec<&str> = defaults
        .lines()
        .filter(|line| line.starts_with("muster_node"))
        .filter_map(|line| line.split(':').next())
        .collect();
    assert!(variables.len() > 5, "{defaults}");
    for variable in variables {
        assert!(
            document.contains(&format!("`{variable}`")),
            "{variable} is told nowhere"
        );
    }
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
