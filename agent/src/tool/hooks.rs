//! `musterd hooks`: the hooks of this machine as the daemon judges them, a check before one is installed, and the
//! admin's word that one is as it should be.

use std::path::{Path, PathBuf};

use muster_shared::{
    ids::{ActionName, Digest},
    time::Timestamp,
    wire::{ActionKind, HookManifest, Verdict},
};
use serde::Serialize;

use super::{
    desk::{self, Answer, DeskReply, Question},
    render::{self, or_dash},
};
use crate::{
    args::{CheckArgs, HooksCommand, ToolArgs, TrustArgs, View},
    config::Config,
    exit::{self, Exit},
    hooks::{
        Digests, HookDir,
        catalog::{self, Observed},
    },
    identity::{self, IdentityFile, StateLock},
    journal,
    logging::say_on_stdout,
};

#[derive(Serialize)]
struct Listed {
    hooks_dir: PathBuf,
    problem: Option<String>,
    hooks: Vec<Hook>,
}

#[derive(Serialize)]
struct Hook {
    name: String,
    /// Of the file and its manifest together: what is pinned and approved.
    digest: Option<Digest>,
    file: Option<Digest>,
    manifest_digest: Option<Digest>,
    baseline: Option<Digest>,
    verdict: Option<Verdict>,
    manifest: Option<HookManifest>,
    /// The rule of the node's policy that forbids it.
    denied: Option<String>,
    /// Why it is no hook.
    refused: Option<String>,
}

impl Hook {
    fn of(name: String, observed: Observed, baseline: Option<Digest>, config: &Config) -> Self {
        match observed {
            Ok((_, digests, manifest)) => Self {
                digest: Some(digests.whole()),
                file: Some(digests.file),
                manifest_digest: digests.manifest,
                baseline,
                verdict: Some(Verdict::of(baseline, digests.whole())),
                manifest: digests.manifest.map(|_| manifest.declared()),
                denied: config
                    .policy
                    .standing_denial(ActionKind::Hook, &name, Some(digests.whole())),
                refused: None,
                name,
            },
            Err(why) => Self {
                name,
                digest: None,
                file: None,
                manifest_digest: None,
                baseline: None,
                verdict: None,
                manifest: None,
                denied: None,
                refused: Some(why),
            },
        }
    }

    fn verdict(&self) -> &str {
        match self.verdict {
            Some(Verdict::Uncatalogued) => "not pinned yet",
            Some(verdict) => verdict.as_str(),
            None => "refused",
        }
    }

    fn note(&self) -> String {
        let drift = self.verdict == Some(Verdict::Drift);
        let pinned = self
            .baseline
            .filter(|_| drift)
            .map(|baseline| format!("pinned is {baseline}"));
        let denied = self.denied.as_ref().map(|rule| format!("denied by {rule}"));
        let parts: Vec<String> = self
            .refused
            .clone()
            .into_iter()
            .chain(pinned)
            .chain(denied)
            .collect();
        parts.join("; ")
    }
}

pub(crate) fn run(command: HooksCommand) -> Result<u8, Exit> {
    match command {
        HooksCommand::List(args) => list(args),
        HooksCommand::Check(args) => check(args),
        HooksCommand::Trust(args) => trust(args),
    }
}

fn list(args: ToolArgs) -> Result<u8, Exit> {
    let view = args.output;
    let config = Config::load(args.place)?;
    let mut baselines = Baselines::open(&config.state_dir)?;
    let listing = catalog::look(&config.hooks_dir, config.limits.sizes);
    let mut hooks = Vec::new();
    for (name, observed) in listing.files {
        let baseline = match &observed {
            Ok((name, ..)) => baselines.of(name)?,
            Err(_) => None,
        };
        hooks.push(Hook::of(name, observed, baseline, &config));
    }
    let listed = Listed {
        hooks_dir: config.hooks_dir,
        problem: listing.problem,
        hooks,
    };
    match view {
        View::Json => render::document(&listed),
        View::Table => say_on_stdout(&listed_text(&listed)),
    }
    Ok(exit::DONE)
}

fn listed_text(listed: &Listed) -> String {
    let row = |hook: &Hook| {
        vec![
            hook.name.clone(),
            hook.verdict().to_owned(),
            or_dash(hook.digest),
            or_dash(hook.manifest.as_ref().map(summary)),
            hook.note(),
        ]
    };
    let rows: Vec<Vec<String>> = listed.hooks.iter().map(row).collect();
    let mut parts = Vec::new();
    if !rows.is_empty() {
        parts.push(render::table(
            &["NAME", "VERDICT", "DIGEST", "MANIFEST", "NOTE"],
            &rows,
        ));
    } else if listed.problem.is_none() {
        parts.push(format!("No hooks in {}.", listed.hooks_dir.display()));
    }
    parts.extend(listed.problem.as_deref().map(render::line));
    parts.join("\n")
}

/// What a manifest asks for, on one line.
fn summary(manifest: &HookManifest) -> String {
    let takes = manifest.parameters.as_ref().and_then(|schema| {
        let names: Vec<&str> = schema
            .get("properties")?
            .as_object()?
            .keys()
            .map(String::as_str)
            .collect();
        (!names.is_empty()).then(|| format!("takes {}", names.join(", ")))
    });
    let changes =
        (!manifest.affinity.is_empty()).then(|| format!("changes {}", manifest.affinity.join(", ")));
    let limits: Vec<String> = manifest
        .limits
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let parts = [
        manifest.read_only.then(|| "read-only".to_owned()),
        changes,
        takes,
        manifest.user.as_ref().map(|user| format!("as {user}")),
        manifest
            .timeout_max_seconds
            .map(|seconds| format!("at most {seconds} s")),
        (!limits.is_empty()).then(|| limits.join(", ")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        "says nothing".to_owned()
    } else {
        parts.join("; ")
    }
}

#[derive(Serialize)]
struct Checked {
    path: PathBuf,
    sound: bool,
    /// What has to be mended before it can run.
    problems: Vec<String>,
    #[serde(flatten)]
    hook: Hook,
}

fn check(args: CheckArgs) -> Result<u8, Exit> {
    let view = args.tool.output;
    let config = Config::load(args.tool.place)?;
    let (dir, name, installed) = place_of(&args.hook, &config)?;
    let path = dir.join(&name);
    let opened = if installed {
        HookDir::open(&dir)
    } else {
        HookDir::open_to_look(&dir)
    };
    let observed = opened
        .map_err(|err| err.to_string())
        .and_then(|hooks| catalog::observe(&hooks, &name, config.limits.sizes));
    let mut problems: Vec<String> = observed.as_ref().err().cloned().into_iter().collect();
    let mut baseline = None;
    if let Ok((name, _, manifest)) = &observed {
        problems.extend(manifest.run_as.prepare().err());
        baseline = Baselines::open(&config.state_dir)?.of(name)?;
    }
    let checked = Checked {
        path,
        sound: problems.is_empty(),
        problems,
        hook: Hook::of(name, observed, baseline, &config),
    };
    match view {
        View::Json => render::document(&checked),
        View::Table => say_on_stdout(&checked_text(&checked)),
    }
    Ok(if checked.sound {
        exit::DONE
    } else {
        exit::FOUND_BAD
    })
}

/// The directory and the name, and whether it is the hooks directory.
fn place_of(hook: &str, config: &Config) -> Result<(PathBuf, String, bool), Exit> {
    if !hook.contains('/') {
        return Ok((config.hooks_dir.clone(), hook.to_owned(), true));
    }
    let path = Path::new(hook);
    let name = path.file_name().and_then(|name| name.to_str());
    let (Some(name), Some(parent)) = (name, path.parent()) else {
        return Err(Exit::Failure(format!("{hook} names no file")));
    };
    let dir = parent
        .canonicalize()
        .map_err(|err| Exit::Failure(format!("{} cannot be opened: {err}", parent.display())))?;
    let installed = config.hooks_dir.canonicalize().is_ok_and(|hooks| hooks == dir);
    Ok((dir, name.to_owned(), installed))
}

fn checked_text(checked: &Checked) -> String {
    let hook = &checked.hook;
    let sound = if checked.sound { "yes" } else { "no" };
    let mut facts = vec![
        ("Hook", checked.path.display().to_string()),
        ("Sound", sound.to_owned()),
    ];
    facts.extend(
        checked
            .problems
            .iter()
            .map(|problem| ("Problem", problem.clone())),
    );
    if let Some(digest) = hook.digest {
        facts.push(("Digest", digest.to_string()));
        facts.push(("Verdict", hook.verdict().to_owned()));
        let summary = hook.manifest.as_ref().map_or_else(|| "none".to_owned(), summary);
        facts.push(("Manifest", summary));
    }
    if !hook.note().is_empty() && hook.refused.is_none() {
        facts.push(("Note", hook.note()));
    }
    render::facts(&facts)
}

#[derive(Serialize)]
struct Trusted {
    name: ActionName,
    digest: Digest,
    /// What was pinned before.
    previous: Option<Digest>,
    /// Control keeps a baseline of its own; this approves the digest there.
    approve_command: String,
}

fn trust(args: TrustArgs) -> Result<u8, Exit> {
    let view = args.tool.output;
    let config = Config::load(args.tool.place)?;
    let identity =
        IdentityFile::read(&config.state_dir)?.ok_or_else(|| identity::not_enrolled(&config.state_dir))?;
    let name = args.name;
    let digest = digest_of(&config, &name).map_err(Exit::Failure)?;
    if let Some(meant) = args.digest
        && meant != digest
    {
        return Err(Exit::Failure(differs(&name, digest, meant)));
    }
    let previous = Baselines::open(&config.state_dir)?.of(&name)?;
    let question = Question::Trust {
        hook: name.clone(),
        digest,
    };
    match desk::ask(&config.state_dir, &question)? {
        DeskReply::Answered(Answer::Trusted) => {}
        DeskReply::Answered(Answer::Refused { why }) => return Err(Exit::Failure(why)),
        DeskReply::Answered(Answer::Status(_)) => {
            return Err(Exit::Failure(
                "the daemon answered something else than was asked".to_owned(),
            ));
        }
        DeskReply::Mute(why) => {
            return Err(Exit::StateInUse(format!(
                "nothing was pinned: the daemon gives no answer: {why}"
            )));
        }
        DeskReply::NoDaemon => {
            let _lock = StateLock::take(&config.state_dir)?;
            is_still(&config, &name, digest).map_err(Exit::Failure)?;
            journal::open_store(
                &journal::path(&config.state_dir),
                identity.node_id,
                config.limits.journal,
            )?
            .trust(&name, digest, Timestamp::now())
            .map_err(|err| Exit::Journal(exit::chain(&err)))?;
        }
    }
    let trusted = Trusted {
        approve_command: format!(
            "muster hooks approve {name} --digest {digest} --node {}",
            identity.node_id
        ),
        name,
        digest,
        previous,
    };
    match view {
        View::Json => render::document(&trusted),
        View::Table => {
            say_on_stdout(&trusted_text(&trusted));
        }
    }
    Ok(exit::DONE)
}

fn trusted_text(trusted: &Trusted) -> String {
    let Trusted {
        name,
        digest,
        previous,
        approve_command,
    } = trusted;
    let before = match previous {
        Some(previous) if previous == digest => " (as before)".to_owned(),
        Some(previous) => format!(" (before: {previous})"),
        None => String::new(),
    };
    format!(
        "{name} is pinned on this node as {digest}{before}.\nControl has to approve it too, or it will not dispatch it \
         here. An operator types:\n  {approve_command}"
    )
}

fn differs(name: &ActionName, now: Digest, meant: Digest) -> String {
    format!("nothing was pinned: {name} is now {now}, and {meant} was meant")
}

fn digest_of(config: &Config, name: &ActionName) -> Result<Digest, String> {
    let hooks = HookDir::open(&config.hooks_dir).map_err(|err| err.to_string())?;
    let (_, digests, _) = catalog::observe(&hooks, name.as_str(), config.limits.sizes)?;
    Ok(Digests::whole(digests))
}

/// Whether the hook is what its admin looked at.
pub(super) fn is_still(config: &Config, name: &ActionName, meant: Digest) -> Result<(), String> {
    let now = digest_of(config, name)?;
    if now == meant {
        Ok(())
    } else {
        Err(differs(name, now, meant))
    }
}

/// What the journal holds of the hooks; nothing before there is a journal.
pub(super) struct Baselines(Option<journal::Store>);

impl Baselines {
    pub(super) fn open(state_dir: &Path) -> Result<Self, Exit> {
        let path = journal::path(state_dir);
        let there = path
            .try_exists()
            .map_err(|err| Exit::Journal(format!("the journal {} cannot be read: {err}", path.display())))?;
        Ok(Self(there.then(|| journal::open_to_read(&path)).transpose()?))
    }

    pub(super) fn of(&mut self, name: &ActionName) -> Result<Option<Digest>, Exit> {
        let Some(store) = &mut self.0 else { return Ok(None) };
        store
            .baseline(name)
            .map_err(|err| Exit::Journal(exit::chain(&err)))
    }

    pub(super) fn all(&mut self) -> Result<Vec<(ActionName, Digest)>, Exit> {
        let Some(store) = &mut self.0 else {
            return Ok(Vec::new());
        };
        store.baselines().map_err(|err| Exit::Journal(exit::chain(&err)))
    }
}
