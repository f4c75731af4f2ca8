//! dnf and rpm.

use serde_json::Value;

use super::{Failed, Installed, Leave, Ran, Upgradable, Verb, whole};
use crate::builtins::apart::Done;

pub(super) const REFRESH: &[&str] = &["dnf", "-q", "-y", "makecache", "--refresh"];

const LIST: &[&str] = &[
    "rpm",
    "-qa",
    "--qf",
    "%{NAME}\t%{ARCH}\t%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n",
];

const UPGRADABLE: &[&str] = &[
    "dnf",
    "-q",
    "repoquery",
    "--upgrades",
    "--qf",
    "%{name}\t%{arch}\t%{evr}\n",
];

pub(super) fn command_line<'n>(verb: Verb, names: &[&'n str]) -> Vec<&'n str> {
    let verb = match verb {
        Verb::Upgrade => "upgrade",
        Verb::Install => "install",
        Verb::Remove => "remove",
    };
    let mut line = vec!["dnf", "-q", "-y", verb, "--"];
    line.extend(names);
    line
}

/// dnf itself waits for whoever holds its lock, as long as the action may take.
pub(super) const fn is_locked(_: &Ran) -> bool {
    false
}

pub(super) async fn installed(leave: &Leave) -> Result<Installed, Failed> {
    Ok(parse(&whole(leave, LIST).await?))
}

/// The keys that packages are signed with are no packages.
fn parse(list: &str) -> Installed {
    let mut all = Installed::new();
    for line in list.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [name, architecture, version] if name != "gpg-pubkey" => {
                let key = (name.to_owned(), architecture.to_owned());
                all.entry(key).or_default().insert(version.to_owned());
            }
            _ => {}
        }
    }
    all
}

pub(super) async fn upgradable(leave: &Leave) -> Result<Vec<Upgradable>, Failed> {
    let there = installed(leave).await?;
    Ok(match_up(&there, &parse(&whole(leave, UPGRADABLE).await?)))
}

fn match_up(there: &Installed, available: &Installed) -> Vec<Upgradable> {
    let mut all = Vec::new();
    for ((name, architecture), versions) in available {
        let installed = there.get(&(name.clone(), architecture.clone()));
        for version in versions {
            all.push(Upgradable {
                name: name.clone(),
                architecture: architecture.clone(),
                installed: installed.and_then(|versions| versions.last().cloned()),
                available: version.clone(),
            });
        }
    }
    all
}

/// dnf tells its plan in a table for people only.
pub(super) async fn dry_run(
    leave: &Leave,
    verb: Verb,
    names: &[&str],
    mut document: Value,
) -> Result<Done, Failed> {
    let mut changes = super::Changes::default();
    match verb {
        Verb::Upgrade => {
            let newer = upgradable(leave).await?;
            let asked = |one: &&Upgradable| names.is_empty() || names.contains(&one.name.as_str());
            for one in newer.iter().filter(asked) {
                changes.add(
                    &one.name,
                    &one.architecture,
                    one.installed.as_deref(),
                    Some(&one.available),
                );
            }
        }
        Verb::Install | Verb::Remove => {
            return Err(Failed::Work(
                "dry_run_unsupported: dnf tells what an installation or removal would do to people only"
                    .to_owned(),
            ));
        }
    }
    changes.write(&mut document);
    Ok(Done::well(document))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_versions_of_one_package_are_both_there_and_keys_are_none() {
        let all = parse(
            "kernel\tx86_64\t6.1-1\nkernel\tx86_64\t6.2-1\ngpg-pubkey\t(none)\tabc-1\nbash\tx86_64\t5-1\n\n",
        );
        assert_eq!(all.len(), 2);
        assert_eq!(all[&("kernel".to_owned(), "x86_64".to_owned())].len(), 2);
    }

    #[test]
    fn what_is_newer_is_told_beside_what_is_there() {
        let there = parse("bash\tx86_64\t5-1\n");
        let newer = match_up(&there, &parse("bash\tx86_64\t5-2\n"));
        assert_eq!(newer[0].installed.as_deref(), Some("5-1"));
        assert_eq!(newer[0].available, "5-2");
    }

    #[test]
    fn names_come_after_the_end_of_the_options() {
        assert_eq!(
            command_line(Verb::Remove, &["bash"]),
            ["dnf", "-q", "-y", "remove", "--", "bash"]
        );
    }
}
