//! `musterd doctor`: everything that commonly keeps a node from working, looked at one after the other. Each finding says
//! what is so, and what to do where it is not well. It changes nothing, here or at control.

mod machine;
mod network;

use muster_shared::doctor::{Finding, Report};

use super::{
    desk::{self, Answer, DeskReply, Question},
    hooks::Baselines,
    render,
};
use crate::{
    args::{ToolArgs, View},
    config::Config,
    exit::{self, Exit},
    hooks::catalog,
    identity::{self, Identity, IdentityFile},
    instance, journal,
    logging::say_on_stdout,
    policy::{Line, wall},
};

/// As wide as the longest name of a check.
const CHECK_WIDTH: usize = 13;

pub(crate) fn run(args: ToolArgs) -> Result<u8, Exit> {
    let view = args.output;
    let findings = match Config::load(args.place) {
        Ok(config) => examine(&config)?,
        Err(err) => vec![Finding::fail(
            "configuration",
            err.to_string(),
            "mend the file; nothing else can be looked at before",
        )],
    };
    let report = Report { findings };
    match view {
        View::Json => render::document(&report),
        View::Table => {
            let text = report.text(CHECK_WIDTH);
            say_on_stdout(text.strip_suffix('\n').unwrap_or(&text));
        }
    }
    Ok(if report.failed() {
        exit::FOUND_BAD
    } else {
        exit::DONE
    })
}

fn examine(config: &Config) -> Result<Vec<Finding>, Exit> {
    let known = IdentityFile::read(&config.state_dir);
    let mut findings = vec![Finding::ok(
        "configuration",
        format!(
            "sound: state in {}, hooks in {}",
            config.state_dir.display(),
            config.hooks_dir.display()
        ),
    )];
    findings.push(enrolment(config, &known));
    findings.push(daemon(config));
    findings.push(policy(config));
    findings.extend(machine::state_dir(&config.state_dir));
    findings.push(machine::space(&config.state_dir));
    findings.push(journal(config, known.as_ref().ok().and_then(Option::as_ref)));
    findings.extend(hooks(config));
    findings.push(machine::held_hook(&config.state_dir));
    findings.push(machine::systemd());
    match Identity::load(&config.state_dir) {
        Err(_) if matches!(known, Ok(Some(_))) => findings.push(Finding::skip(
            "control",
            "without the key, DNS, connection, certificate, key and clock were not looked at",
        )),
        Ok(identity) => findings.extend(network::examine(&identity, &config.reach)?),
        Err(_) => findings.push(Finding::skip(
            "control",
            "this machine names no control service yet: DNS, connection, certificate, key and clock were not looked at",
        )),
    }
    Ok(findings)
}

fn enrolment(config: &Config, known: &Result<Option<IdentityFile>, Exit>) -> Finding {
    let check = "enrolment";
    match known {
        Ok(None) => Finding::skip(check, "this machine is not enrolled; `musterd enroll` enrols it"),
        Ok(Some(_)) if instance::refusal(&config.state_dir).is_some() => Finding::fail(
            check,
            instance::refusal(&config.state_dir).unwrap_or_default(),
            "if this is the copy, enrol it anew with `musterd enroll --force`; see docs/keys.md",
        ),
        Ok(Some(file)) if !identity::nsk_path(&config.state_dir).exists() => Finding::warn(
            check,
            format!(
                "node {} ({}) of {}; its key is not in the state directory",
                file.name, file.node_id, file.server
            ),
            "well, if systemd hands the key over to the unit (LoadCredentialEncrypted=); else restore it from a backup, or \
             enrol this machine anew with --force",
        ),
        Ok(Some(file)) => match Identity::load(&config.state_dir) {
            Ok(_) => Finding::ok(
                check,
                format!("node {} ({}) of {}", file.name, file.node_id, file.server),
            ),
            Err(err) => Finding::fail(
                check,
                err.to_string(),
                "restore the state directory from a backup, or move it away and enrol this machine anew",
            ),
        },
        Err(err) => Finding::fail(
            check,
            err.to_string(),
            "run this as root or as the user of the daemon; if the file is damaged, enrol this machine anew",
        ),
    }
}

fn daemon(config: &Config) -> Finding {
    let check = "daemon";
    let remedy = "look at its log: journalctl -u musterd";
    match desk::ask(&config.state_dir, &Question::Status) {
        Ok(DeskReply::Answered(Answer::Status(told))) if told.link.connected => Finding::ok(
            check,
            format!(
                "runs (pid {}, version {}) and is connected",
                told.pid, told.version
            ),
        ),
        Ok(DeskReply::Answered(Answer::Status(told))) => Finding::warn(
            check,
            format!(
                "runs (pid {}) and is not connected: {}",
                told.pid,
                told.link.last_error.as_deref().unwrap_or("it has just started")
            ),
            "see what the checks of control say below",
        ),
        Ok(DeskReply::Answered(Answer::Refused { why }) | DeskReply::Mute(why)) => {
            Finding::fail(check, why, remedy)
        }
        Ok(DeskReply::Answered(Answer::Trusted)) => {
            Finding::fail(check, "it answered something else than was asked", remedy)
        }
        Ok(DeskReply::NoDaemon) => Finding::warn(check, "no daemon runs here", "systemctl start musterd"),
        Err(err) => Finding::warn(
            check,
            err.to_string(),
            "run this as root or as the user of the daemon",
        ),
    }
}

/// What the node's own admin forbids, and whether the daemon goes by it yet.
fn policy(config: &Config) -> Finding {
    let check = "policy";
    let lines = config.policy.lines(wall::now());
    let says = |lines: &[Line]| lines.iter().map(|line| line.says.clone()).collect::<Vec<_>>();
    if let Ok(DeskReply::Answered(Answer::Status(told))) = desk::ask(&config.state_dir, &Question::Status)
        && says(&told.policy) != says(&lines)
    {
        return Finding::warn(
            check,
            "the running daemon goes by another one than the files say",
            "systemctl reload musterd; where that fails, its log says why",
        );
    }
    if lines.is_empty() {
        return Finding::ok(check, "says nothing: every action is allowed");
    }
    let text = |line: &Line| match line.denies_now {
        true => format!("{} (denied by its hours now)", line.says),
        false => line.says.clone(),
    };
    Finding::ok(check, lines.iter().map(text).collect::<Vec<_>>().join("; "))
}

fn journal(config: &Config, known: Option<&IdentityFile>) -> Finding {
    let check = "journal";
    let path = journal::path(&config.state_dir);
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) if journal::begun(&config.state_dir) => {
            return Finding::fail(
                check,
                format!("{} is gone, although there was one", path.display()),
                "restore it, or enrol this machine anew with `musterd enroll --force`",
            );
        }
        Ok(false) => {
            return Finding::skip(check, format!("{} is not there yet", path.display()));
        }
        Err(err) => {
            return Finding::fail(
                check,
                format!("{}: {err}", path.display()),
                "run this as root or as the user of the daemon",
            );
        }
    }
    let looked = journal::open_to_read(&path).and_then(|mut store| {
        let unreadable = |err: journal::JournalError| Exit::Journal(exit::chain(&err));
        let damage = store.damage().map_err(unreadable)?;
        Ok((damage, store.owner().map_err(unreadable)?))
    });
    let restore = "restore it from a backup, or enrol this machine anew with an empty state directory; it is never \
                   re-created by itself, because a node that forgets what it ran could run it twice";
    match looked {
        Err(err) => Finding::fail(check, err.to_string(), restore),
        Ok((Some(damage), _)) => {
            Finding::fail(check, format!("{} is damaged: {damage}", path.display()), restore)
        }
        Ok((None, owner)) => match (owner, known) {
            (Some(owner), Some(known)) if owner != known.node_id.to_string() => Finding::fail(
                check,
                format!(
                    "it belongs to node {owner}, but this machine is enrolled as {}",
                    known.node_id
                ),
                format!("move {} away", path.display()),
            ),
            (Some(_) | None, Some(_) | None) => Finding::ok(check, format!("{} is whole", path.display())),
        },
    }
}

/// The directory, and every file in it that would not run.
fn hooks(config: &Config) -> Vec<Finding> {
    let check = "hooks";
    let listing = catalog::look(&config.hooks_dir, config.limits.sizes);
    if let Some(problem) = &listing.problem
        && listing.files.is_empty()
    {
        let remedy = format!(
            "install -d -o root -g root -m 0755 {}",
            config.hooks_dir.display()
        );
        return vec![Finding::warn(check, problem, remedy)];
    }
    let mut findings = Vec::new();
    let mut baselines = Baselines::open(&config.state_dir).ok();
    let count = listing.files.len();
    for (file, observed) in listing.files {
        let (name, digests, manifest) = match observed {
            Ok(observed) => observed,
            Err(why) => {
                findings.push(Finding::warn(
                    check,
                    format!("{file} is no hook: {why}"),
                    "mend it as said, or take it out of the directory",
                ));
                continue;
            }
        };
        let baseline = baselines
            .as_mut()
            .and_then(|known| known.of(&name).ok().flatten());
        if let Some(baseline) = baseline.filter(|baseline| *baseline != digests.whole()) {
            findings.push(Finding::warn(
                check,
                format!(
                    "{name} has changed: it is {}, and {baseline} is pinned",
                    digests.whole()
                ),
                format!("if it is meant so: musterd hooks trust {name}, and approve it at control"),
            ));
        }
        if let Err(why) = manifest.run_as.prepare() {
            findings.push(Finding::warn(
                check,
                format!("{name} cannot be started: {why}"),
                "mend its manifest",
            ));
        }
    }
    findings.extend(
        listing
            .problem
            .map(|problem| Finding::warn(check, problem, "remove hooks")),
    );
    if findings.is_empty() {
        let text = format!("{count} in {}, all sound", config.hooks_dir.display());
        findings.push(Finding::ok(check, text));
    }
    findings
}
