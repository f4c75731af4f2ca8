//! `packages.*`: through the package manager of the machine, told not to ask anybody. What changed is found by looking at
//! its database before and after, not by reading what it says.

mod apt;
mod dnf;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Failed,
    apart::Done,
    command::{self, Keep, Leave, Ran},
    parameter::{Arguments, Kind, Parameter, plain},
};

const LISTED_MAX: u64 = 20_000;
/// Of a list that a package manager prints.
const LIST_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Of what it says while it works.
const LOG_BYTES_MAX: usize = 4096;
const NAMES_MAX: usize = 200;
const LOCK_RETRY: Duration = Duration::from_secs(2);

const DRY_RUN: Parameter = Parameter::flag("dry_run", "Only tell what would be done");
const LOCK_WAIT: Parameter = Parameter::number(
    "lock_wait_seconds",
    (0, 3600),
    "120",
    "How long to wait for another package manager to finish, up to 3600",
);
const NAMES: Parameter = Parameter {
    name: "packages",
    kind: Kind::Texts {
        max: NAMES_MAX,
        grammar: package,
    },
    required: false,
    default: None,
    description: "Up to 200 packages, as a list or with commas between",
};

pub(super) const LIST: &[Parameter] = &[
    Parameter {
        name: "state",
        kind: Kind::Choice(&["installed", "upgradable"]),
        required: false,
        default: Some("installed"),
        description: "installed, or upgradable as far as the lists of packages tell that were fetched last",
    },
    Parameter::text("name", plain, "Only packages whose name holds this text"),
    Parameter::number(
        "limit",
        (1, LISTED_MAX),
        "5000",
        "How many packages are listed, up to 20000",
    ),
];
pub(super) const REFRESH: &[Parameter] = &[LOCK_WAIT];
pub(super) const UPGRADE: &[Parameter] = &[NAMES, DRY_RUN, LOCK_WAIT];
pub(super) const NAMED: &[Parameter] = &[NAMES.required(), DRY_RUN, LOCK_WAIT];

/// Every version that is installed of every package, by name and architecture.
type Installed = BTreeMap<(String, String), BTreeSet<String>>;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Upgradable {
    name: String,
    architecture: String,
    installed: Option<String>,
    available: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Upgrade,
    Install,
    Remove,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manager {
    Apt,
    Dnf,
}

impl Manager {
    fn of_this_machine() -> Result<Self, Failed> {
        let there = |paths: &[&str]| paths.iter().any(|path| Path::new(path).exists());
        match (
            there(&["/usr/bin/apt-get"]),
            there(&["/usr/bin/dnf", "/usr/bin/dnf5"]),
        ) {
            (true, _) => Ok(Self::Apt),
            (false, true) => Ok(Self::Dnf),
            (false, false) => Err(Failed::Work("this node has neither apt nor dnf".to_owned())),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Dnf => "dnf",
        }
    }

    async fn installed(self, leave: &Leave) -> Result<Installed, Failed> {
        match self {
            Self::Apt => apt::installed(leave).await,
            Self::Dnf => dnf::installed(leave).await,
        }
    }
}

pub(super) async fn list(arguments: Arguments) -> Result<Done, Failed> {
    let manager = Manager::of_this_machine()?;
    let leave = Leave::given().await;
    let rows = if arguments.text("state") == Some("upgradable") {
        let upgradable = match manager {
            Manager::Apt => apt::upgradable(&leave).await?,
            Manager::Dnf => dnf::upgradable(&leave).await?,
        };
        upgradable.iter().map(Upgradable::describe).collect()
    } else {
        rows(&manager.installed(&leave).await?)
    };
    Ok(Done::well(listing(manager, rows, &arguments)))
}

fn rows(installed: &Installed) -> Vec<Value> {
    let row = |((name, architecture), versions): (&(String, String), &BTreeSet<String>)| {
        versions
            .iter()
            .map(|version| json!({ "name": name, "architecture": architecture, "version": version }))
            .collect::<Vec<_>>()
    };
    installed.iter().flat_map(row).collect()
}

impl Upgradable {
    fn describe(&self) -> Value {
        json!({
            "name": self.name,
            "architecture": self.architecture,
            "version": self.installed,
            "available": self.available,
        })
    }
}

fn listing(manager: Manager, mut rows: Vec<Value>, arguments: &Arguments) -> Value {
    let wanted = arguments.text("name");
    rows.retain(|row| wanted.is_none_or(|text| row["name"].as_str().is_some_and(|name| name.contains(text))));
    let total = rows.len();
    rows.truncate(arguments.count("limit"));
    json!({ "manager": manager.as_str(), "total": total, "truncated": rows.len() < total, "packages": rows })
}

pub(super) async fn refresh(arguments: Arguments) -> Result<Done, Failed> {
    let manager = Manager::of_this_machine()?;
    let wait = lock_wait(&arguments);
    let (ran, _leave) = match manager {
        Manager::Apt => patiently(wait, apt::REFRESH, apt::is_locked).await?,
        Manager::Dnf => patiently(wait, dnf::REFRESH, dnf::is_locked).await?,
    };
    Ok(ended(json!({ "manager": manager.as_str() }), &ran))
}

pub(super) async fn change(verb: Verb, arguments: Arguments) -> Result<Done, Failed> {
    let manager = Manager::of_this_machine()?;
    let names: Vec<&str> = arguments.texts("packages").iter().map(String::as_str).collect();
    let (wait, dry_run) = (lock_wait(&arguments), arguments.flag("dry_run"));
    let before = manager.installed(&Leave::given().await).await?;
    let absent = match verb {
        Verb::Remove => absent(&before, &names),
        Verb::Upgrade | Verb::Install => Vec::new(),
    };
    // What is not there is as it should be. A name that is not exactly one of a package is never passed on to a removal.
    let names: Vec<&str> = names.into_iter().filter(|name| !absent.contains(name)).collect();
    let mut document = json!({ "manager": manager.as_str(), "dry_run": dry_run });
    if verb == Verb::Remove {
        document["not_installed"] = json!(absent);
        if names.is_empty() {
            changes(&before, &before).write(&mut document);
            return Ok(Done::well(document));
        }
    }
    if dry_run {
        let leave = Leave::given().await;
        return match manager {
            Manager::Apt => apt::dry_run(&leave, verb, &names, &before, document).await,
            Manager::Dnf => dnf::dry_run(&leave, verb, &names, document).await,
        };
    }
    let (ran, leave) = match manager {
        Manager::Apt => {
            let line = apt::command_line(verb, false, &names);
            patiently(wait, &line, apt::is_locked).await?
        }
        Manager::Dnf => {
            let line = dnf::command_line(verb, &names);
            patiently(wait, &line, dnf::is_locked).await?
        }
    };
    // Also after a failure, and when asked to end: it may have come half way.
    changes(&before, &manager.installed(&leave).await?).write(&mut document);
    Ok(ended(document, &ran))
}

fn lock_wait(arguments: &Arguments) -> Duration {
    Duration::from_secs(arguments.number("lock_wait_seconds"))
}

fn ended(mut document: Value, ran: &Ran) -> Done {
    document["log_tail"] = json!(ran.output);
    if ran.status.success() {
        Done::well(document)
    } else {
        Done::badly(document, ran.exit_code().max(1), ran.why())
    }
}

/// Runs it again while somebody else holds the lock. The last answer stands, and with it goes the leave to look what has come
/// of it.
async fn patiently(
    wait: Duration,
    line: &[&str],
    is_locked: fn(&Ran) -> bool,
) -> Result<(Ran, Leave), Failed> {
    let until = Instant::now() + wait;
    loop {
        let leave = Leave::given().await;
        let ran = run(&leave, line, Keep::Tail(LOG_BYTES_MAX)).await?;
        if ran.status.success() || !is_locked(&ran) || Instant::now() >= until {
            return Ok((ran, leave));
        }
        drop(leave);
        tokio::time::sleep(LOCK_RETRY).await;
    }
}

/// The first word is the program.
async fn run(leave: &Leave, line: &[&str], keep: Keep) -> Result<Ran, Failed> {
    let (program, arguments) = match line {
        ["apt-get", arguments @ ..] => ("apt-get", arguments),
        ["dpkg-query", arguments @ ..] => ("dpkg-query", arguments),
        ["dnf", arguments @ ..] => ("dnf", arguments),
        ["rpm", arguments @ ..] => ("rpm", arguments),
        _ => return Err(Failed::Work("no such package manager".to_owned())),
    };
    command::run(leave, program, arguments, keep).await
}

/// A list is whole or not given.
async fn whole(leave: &Leave, line: &[&str]) -> Result<String, Failed> {
    let ran = run(leave, line, Keep::Head(LIST_BYTES_MAX)).await?;
    if ran.output_cut {
        return Err(Failed::Work(format!(
            "{} listed more than {LIST_BYTES_MAX} bytes",
            ran.program
        )));
    }
    if ran.status.success() {
        Ok(ran.output)
    } else {
        Err(Failed::Work(ran.why()))
    }
}

/// The named ones that are not installed under exactly that name.
fn absent<'n>(installed: &Installed, names: &[&'n str]) -> Vec<&'n str> {
    let there = |asked: &str| {
        let (name, architecture) = match asked.split_once(':') {
            Some((name, architecture)) => (name, Some(architecture)),
            None => (asked, None),
        };
        installed
            .keys()
            .any(|(known, of)| known == name && architecture.is_none_or(|wanted| wanted == of))
    };
    names.iter().copied().filter(|name| !there(name)).collect()
}

/// What is different: package, architecture, the version before, the version after.
#[derive(Default, PartialEq, Eq, Debug)]
struct Changes {
    installed: Vec<Value>,
    upgraded: Vec<Value>,
    removed: Vec<Value>,
}

impl Changes {
    fn write(self, document: &mut Value) {
        document["installed"] = json!(self.installed);
        document["upgraded"] = json!(self.upgraded);
        document["removed"] = json!(self.removed);
    }

    /// One package that was, or would be, touched.
    fn add(&mut self, name: &str, architecture: &str, before: Option<&str>, after: Option<&str>) {
        let row = |value: Value| {
            let mut row = json!({ "name": name, "architecture": architecture });
            if let (Some(row), Value::Object(more)) = (row.as_object_mut(), value) {
                row.extend(more);
            }
            row
        };
        match (before, after) {
            (None, Some(after)) => self.installed.push(row(json!({ "version": after }))),
            (Some(before), None) => self.removed.push(row(json!({ "version": before }))),
            // Downwards too, where somebody asked for that very version.
            (Some(before), Some(after)) => {
                self.upgraded
                    .push(row(json!({ "version_before": before, "version": after })));
            }
            (None, None) => {}
        }
    }
}

fn changes(before: &Installed, after: &Installed) -> Changes {
    let none = BTreeSet::new();
    let mut changes = Changes::default();
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let (old, new) = (before.get(key).unwrap_or(&none), after.get(key).unwrap_or(&none));
        let mut gone = old.difference(new);
        let mut come = new.difference(old);
        loop {
            let (old, new) = (gone.next(), come.next());
            if old.is_none() && new.is_none() {
                break;
            }
            changes.add(&key.0, &key.1, old.map(String::as_str), new.map(String::as_str));
        }
    }
    changes
}

/// `name`, `name:architecture` and `name=version`, as Debian and rpm have them: nothing in it can be an option, a pattern
/// or a path, and no ending turns an installation into a removal.
fn package(text: &str) -> Result<(), String> {
    const BYTES_MAX: usize = 256;
    let (name, version) = match text.split_once('=') {
        Some((name, version)) => (name, Some(version)),
        None => (text, None),
    };
    let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._:".contains(&byte);
    let in_version = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._:~^".contains(&byte);
    let starts = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    let sound = starts
        && text.len() <= BYTES_MAX
        && name.bytes().all(in_name)
        && !name.ends_with(['-', '.', ':', '_'])
        && version.is_none_or(|version| {
            version
                .bytes()
                .next()
                .is_some_and(|byte| byte.is_ascii_alphanumeric())
                && version.bytes().all(in_version)
        });
    if sound {
        Ok(())
    } else {
        Err(format!(
            "must name packages, as NAME or NAME=VERSION, not {text:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(rows: &[(&str, &str)]) -> Installed {
        let mut all = Installed::new();
        for (name, version) in rows {
            let key = ((*name).to_owned(), "all".to_owned());
            all.entry(key).or_default().insert((*version).to_owned());
        }
        all
    }

    #[test]
    fn what_changed_is_told_with_both_versions() {
        let before = installed(&[("gone", "1"), ("kept", "1"), ("newer", "1"), ("kernel", "1")]);
        let after = installed(&[
            ("kept", "1"),
            ("newer", "2"),
            ("come", "3"),
            ("kernel", "1"),
            ("kernel", "2"),
        ]);
        let row =
            |name: &str, version: &str| json!({"name": name, "architecture": "all", "version": version});
        let expected = Changes {
            installed: vec![row("come", "3"), row("kernel", "2")],
            upgraded: vec![
                json!({"name": "newer", "architecture": "all", "version_before": "1", "version": "2"}),
            ],
            removed: vec![row("gone", "1")],
        };
        assert_eq!(changes(&before, &after), expected);
        assert_eq!(changes(&before, &before), Changes::default());
    }

    #[test]
    fn a_name_can_be_nothing_but_a_name() {
        for good in [
            "bash",
            "g++",
            "libstdc++6",
            "libc6:i386",
            "nginx=1.22.1-9+deb12u1",
            "x=1:2.0~rc1",
            "python3.11",
        ] {
            assert_eq!(package(good), Ok(()), "{good}");
        }
        for bad in [
            "", "-y", "--help", "bash-", "a b", "a*", "./x.deb", "/x.deb", "a/b", "a=", "a=-x", "a;b", "a,b",
            "~n", "?x", "_x",
        ] {
            assert!(package(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_what_is_there_under_its_exact_name_is_removed() {
        let there = installed(&[("bash", "5"), ("g++", "12")]);
        assert_eq!(
            absent(&there, &["bash", "bas", "g++", "bash+", "bash:all", "bash:i386"]),
            ["bas", "bash+", "bash:i386"]
        );
    }

    #[test]
    fn the_list_is_filtered_and_bounded() {
        let rows = rows(&installed(&[("a", "1"), ("ab", "2"), ("c", "3")]));
        let given = json!({"name": "a", "limit": 1});
        let arguments = Arguments::check("packages.list", LIST, given.as_object().unwrap()).unwrap();
        let list = listing(Manager::Apt, rows, &arguments);
        assert_eq!((&list["total"], &list["truncated"]), (&json!(2), &json!(true)));
        assert_eq!(
            list["packages"],
            json!([{"name": "a", "architecture": "all", "version": "1"}])
        );
    }
}
