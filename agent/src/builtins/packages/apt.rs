//! apt and dpkg.

use serde_json::Value;

use super::{Changes, Failed, Installed, Keep, Leave, Ran, Upgradable, Verb, ended, run, whole};
use crate::builtins::apart::Done;

/// Without the last one apt-get calls an update that fetched half of the lists a success.
pub(super) const REFRESH: &[&str] = &["apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any"];

const LIST: &[&str] = &[
    "dpkg-query",
    "-W",
    "-f=${Package}\t${Architecture}\t${Version}\t${db:Status-Status}\n",
];

pub(super) fn command_line<'n>(verb: Verb, dry_run: bool, names: &[&'n str]) -> Vec<&'n str> {
    let mut line = vec![
        "apt-get",
        "-q",
        "-y",
        // A file that the admin has changed stays; one that nobody changed is replaced.
        "-o",
        "Dpkg::Options::=--force-confdef",
        "-o",
        "Dpkg::Options::=--force-confold",
        // A name is that of one package, and no regular expression where there is none.
        "-o",
        "APT::Cmd::Pattern-Only=true",
    ];
    if dry_run {
        line.push("--simulate");
    }
    match (verb, names) {
        (Verb::Upgrade, []) => line.extend(["--with-new-pkgs", "upgrade"]),
        (Verb::Upgrade, _) => line.extend(["--only-upgrade", "install", "--"]),
        (Verb::Install, _) => line.extend(["install", "--"]),
        (Verb::Remove, _) => line.extend(["remove", "--"]),
    }
    line.extend(names);
    line
}

/// Of dpkg's database, of apt's lists or of its archive.
pub(super) fn is_locked(ran: &Ran) -> bool {
    ran.complaint.contains("Could not get lock")
        || ran.complaint.contains("Unable to acquire the dpkg frontend lock")
}

pub(super) async fn installed(leave: &Leave) -> Result<Installed, Failed> {
    Ok(parse(&whole(leave, LIST).await?))
}

/// A package that was removed leaves a row behind when its configuration stays.
fn parse(list: &str) -> Installed {
    let mut all = Installed::new();
    for line in list.lines() {
        if let [name, architecture, version, "installed"] = line.split('\t').collect::<Vec<_>>()[..] {
            let key = (name.to_owned(), architecture.to_owned());
            all.entry(key).or_default().insert(version.to_owned());
        }
    }
    all
}

pub(super) async fn upgradable(leave: &Leave) -> Result<Vec<Upgradable>, Failed> {
    let simulated = whole(leave, &command_line(Verb::Upgrade, true, &[])).await?;
    Ok(simulated
        .lines()
        .filter_map(step)
        .filter_map(|step| match step {
            Step::Install {
                name,
                architecture,
                before: Some(before),
                after,
            } => Some(Upgradable {
                name,
                architecture,
                installed: Some(before),
                available: after,
            }),
            Step::Install { before: None, .. } | Step::Remove { .. } => None,
        })
        .collect())
}

pub(super) async fn dry_run(
    leave: &Leave,
    verb: Verb,
    names: &[&str],
    there: &Installed,
    mut document: Value,
) -> Result<Done, Failed> {
    let ran = run(
        leave,
        &command_line(verb, true, names),
        Keep::Tail(super::LIST_BYTES_MAX),
    )
    .await?;
    let mut changes = Changes::default();
    for step in ran.output.lines().filter_map(step) {
        match step {
            Step::Install {
                name,
                architecture,
                before,
                after,
            } => changes.add(&name, &architecture, before.as_deref(), Some(&after)),
            Step::Remove { name, before } => {
                let removed = there
                    .iter()
                    .find(|(key, versions)| key.0 == name && versions.contains(&before));
                let architecture = removed.map_or("", |(key, _)| key.1.as_str());
                changes.add(&name, architecture, Some(&before), None);
            }
        }
    }
    changes.write(&mut document);
    let last = ran.output.len().saturating_sub(super::LOG_BYTES_MAX);
    let output = ran.output[ran.output.ceil_char_boundary(last)..].to_owned();
    Ok(ended(document, &Ran { output, ..ran }))
}

/// What a simulation says it would do to one package.
#[derive(PartialEq, Eq, Debug)]
enum Step {
    Install {
        name: String,
        architecture: String,
        before: Option<String>,
        after: String,
    },
    Remove {
        name: String,
        before: String,
    },
}

/// `Inst NAME [BEFORE] (AFTER ORIGIN [ARCHITECTURE])` and `Remv NAME [BEFORE]`. The name of a foreign package ends in its
/// architecture.
fn step(line: &str) -> Option<Step> {
    let bare = |word: &str| word.trim_matches(['[', ']', '(', ')']).to_owned();
    let plain_name = |word: &str| word.split_once(':').map_or(word, |(name, _)| name).to_owned();
    if let Some(rest) = line.strip_prefix("Inst ") {
        let (head, tail) = rest.split_once(" (")?;
        let mut head = head.split_ascii_whitespace();
        let name = plain_name(head.next()?);
        let before = head.next().map(bare);
        let inside = tail.split_once(')')?.0;
        let words: Vec<&str> = inside.split_ascii_whitespace().collect();
        return Some(Step::Install {
            name,
            before,
            after: (*words.first()?).to_owned(),
            architecture: bare(words.last()?),
        });
    }
    let mut words = line.strip_prefix("Remv ")?.split_ascii_whitespace();
    Some(Step::Remove {
        name: plain_name(words.next()?),
        before: words.next().map(bare)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_installed_is_listed() {
        let list = "adduser\tall\t3.134\tinstalled\nold\tamd64\t1\tconfig-files\nbroken\nlibc6\tamd64\t2\tinstalled\n\
                    libc6\ti386\t2\tinstalled\n";
        let names: Vec<(String, String)> = parse(list).into_keys().collect();
        let expected = [("adduser", "all"), ("libc6", "amd64"), ("libc6", "i386")]
            .map(|(name, architecture)| (name.to_owned(), architecture.to_owned()));
        assert_eq!(names, expected);
    }

    #[test]
    fn the_steps_of_a_simulation_are_read() {
        let install = |name: &str, before: Option<&str>, after: &str, architecture: &str| {
            Some(Step::Install {
                name: name.into(),
                architecture: architecture.into(),
                before: before.map(str::to_owned),
                after: after.into(),
            })
        };
        assert_eq!(
            step(
                "Inst openssl [3.0.19-1~deb12u2] (3.0.20-1~deb12u1 Debian:12.14/oldstable, Debian-Security:12/oldstable [amd64])"
            ),
            install("openssl", Some("3.0.19-1~deb12u2"), "3.0.20-1~deb12u1", "amd64")
        );
        assert_eq!(
            step("Inst new (1:2 x [all]) [other:amd64 ]"),
            install("new", None, "1:2", "all")
        );
        assert_eq!(
            step("Inst libc6:i386 [1] (2 x [i386])"),
            install("libc6", Some("1"), "2", "i386")
        );
        let removed = Step::Remove {
            name: "bash".into(),
            before: "5.2".into(),
        };
        assert_eq!(step("Remv bash [5.2]"), Some(removed));
        for other in [
            "Conf openssl (3.0 x [amd64])",
            "NOTE: This is only a simulation!",
            "Inst broken",
            "",
        ] {
            assert_eq!(step(other), None, "{other}");
        }
    }

    #[test]
    fn names_come_after_the_end_of_the_options() {
        for verb in [Verb::Upgrade, Verb::Install, Verb::Remove] {
            let line = command_line(verb, false, &["bash", "g++"]);
            assert_eq!(line[line.len() - 3..], ["--", "bash", "g++"], "{line:?}");
            assert!(line.contains(&"Dpkg::Options::=--force-confold"));
        }
        assert!(command_line(Verb::Upgrade, true, &[]).ends_with(&[
            "--simulate",
            "--with-new-pkgs",
            "upgrade"
        ]));
    }
}
