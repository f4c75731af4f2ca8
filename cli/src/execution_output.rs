//! `muster execution output`: what the action wrote, byte for byte; on a terminal without what would command it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use muster_shared::{
    ids::{ExecutionId, NodeId},
    wire::{Base64, ExecutionTarget},
};
use serde::Serialize;

use crate::{
    execution,
    execution_show::name,
    exit::Exit,
    failure::Failure,
    lookup,
    output_source::{Missing, Source, writing},
    printable::Printable,
    render::{Format, Screen},
    session::Session,
    text,
};

#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// The execution's id
    id: ExecutionId,
    /// Only of this node, by name, id, or the beginning of its id
    #[arg(long)]
    node: Option<String>,
    /// Write one file per node into this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["save", "part"])]
    out_dir: Option<PathBuf>,
    /// Write the output of the one node into this file, which is there only once its digest was found right
    #[arg(long, value_name = "FILE", conflicts_with = "part")]
    save: Option<PathBuf>,
    #[command(flatten)]
    part: Part,
}

/// Which bytes of each output; all of them when it is not said.
#[derive(Args, Debug)]
#[group(id = "part", multiple = false)]
struct Part {
    /// Only so many bytes from the beginning
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    head_bytes: Option<u64>,
    /// Only so many bytes before the end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tail_bytes: Option<u64>,
    /// Only the bytes from one to another, counted from 0 and both included, as 100-199, or 100- up to the end
    #[arg(long, value_name = "FROM-TO", value_parser = byte_range)]
    range: Option<String>,
}

impl Part {
    /// The same as HTTP says it.
    fn header(&self) -> Option<String> {
        let head = self.head_bytes.map(|bytes| format!("bytes=0-{}", bytes - 1));
        let tail = self.tail_bytes.map(|bytes| format!("bytes=-{bytes}"));
        let range = self.range.as_ref().map(|range| format!("bytes={range}"));
        head.or(tail).or(range)
    }
}

fn byte_range(raw: &str) -> Result<String, String> {
    let bad = || format!("{raw:?} is not FROM-TO, such as 100-199 or 100-");
    let (from, to) = raw.split_once('-').ok_or_else(bad)?;
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| plain)
    };
    let from = number(from).ok_or_else(bad)?;
    let backwards = !to.is_empty() && number(to).ok_or_else(bad)? < from;
    if backwards {
        return Err(format!("{raw:?} ends before it begins"));
    }
    Ok(raw.to_owned())
}

/// What `-o json` shows of one node: its output, or why there is none to show.
#[derive(Serialize)]
struct NodeOutput {
    node_id: NodeId,
    node_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

pub(crate) async fn run(session: &Session, args: &OutputArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let screen = &session.screen;
    let execution = execution::read(&client, project, args.id).await?;
    let source = Source {
        client: &client,
        project,
        execution: args.id,
        range: args.part.header(),
    };
    let mut targets: Vec<_> = execution.targets.iter().collect();
    targets.sort_by_key(|target| (name(target), target.node_id));
    if let Some(wanted) = &args.node {
        let names: Vec<_> = targets
            .iter()
            .map(|target| (target.node_id, name(target)))
            .collect();
        let id = lookup::pick(names.iter().map(|(id, name)| (*id, name.as_str())), wanted)?;
        targets.retain(|target| target.node_id == id);
    }
    if let Some(dir) = &args.out_dir {
        return to_files(screen, &source, &targets, dir).await;
    }
    if let Some(file) = &args.save {
        let [only] = &targets[..] else {
            return Err(choose_one(targets.len()));
        };
        return to_file(screen, &source, only, file).await;
    }
    match (screen.format(), &targets[..]) {
        (Format::Json, _) => to_json(screen, &source, &targets).await,
        (_, [only]) => to_stdout(screen, &source, only).await,
        (Format::Raw, several) => Err(choose_one(several.len())),
        (_, several) => with_headers(screen, &source, several).await,
    }
}

fn choose_one(targets: usize) -> Failure {
    Failure::Usage(format!(
        "it ran on {}; choose one with --node, or use --out-dir",
        text::count(targets, "node")
    ))
}

/// Says why a node's output is not given, and what that makes of the whole.
fn miss(screen: &Screen, target: &ExecutionTarget, missing: &Missing) -> Exit {
    let words = format!("{}: {}", name(target), missing.words());
    screen.say(&text::line(&words));
    Exit::Refused
}

async fn to_file(
    screen: &Screen,
    source: &Source<'_>,
    target: &ExecutionTarget,
    path: &Path,
) -> Result<Exit, Failure> {
    if let Some(missing) = source.save(target, path).await? {
        return Ok(miss(screen, target, &missing));
    }
    screen.path(path)?;
    Ok(Exit::Success)
}

async fn to_stdout(screen: &Screen, source: &Source<'_>, target: &ExecutionTarget) -> Result<Exit, Failure> {
    let mut shown = Shown::on(screen);
    if let Some(missing) = source.read(target, |piece| shown.piece(piece)).await? {
        return Ok(miss(screen, target, &missing));
    }
    shown.end()?;
    Ok(Exit::Success)
}

/// One output on its way to standard output.
struct Shown<'a> {
    screen: &'a Screen,
    printable: Option<Printable>,
}

impl<'a> Shown<'a> {
    fn on(screen: &'a Screen) -> Self {
        Self {
            screen,
            printable: screen.is_for_eyes().then(Printable::default),
        }
    }

    /// Whether more of it is wanted.
    fn piece(&mut self, piece: &[u8]) -> Result<bool, Failure> {
        match &mut self.printable {
            Some(printable) => self.screen.bytes(printable.piece(piece).as_bytes())?,
            None => self.screen.bytes(piece)?,
        }
        Ok(!self.screen.is_closed())
    }

    fn end(self) -> Result<(), Failure> {
        let rest = self.printable.map(Printable::end).unwrap_or_default();
        self.screen.bytes(rest.as_bytes())
    }
}

async fn with_headers(
    screen: &Screen,
    source: &Source<'_>,
    targets: &[&ExecutionTarget],
) -> Result<Exit, Failure> {
    let mut exit = Exit::Success;
    for target in targets {
        if screen.is_closed() {
            break;
        }
        let header = format!("==> {} <==\n", text::line(&name(target)));
        let mut shown = Shown::on(screen);
        let mut last = None;
        let read = source.read(target, |piece| {
            if last.is_none() {
                screen.bytes(header.as_bytes())?;
            }
            last = piece.last().copied().or(last);
            shown.piece(piece)
        });
        if let Some(missing) = read.await? {
            exit = miss(screen, target, &missing);
            continue;
        }
        shown.end()?;
        // An empty output has had no piece yet to put its header before.
        let ending = match last {
            None => header.as_bytes(),
            Some(b'\n') => b"",
            Some(_) => b"\n",
        };
        screen.bytes(ending)?;
    }
    Ok(exit)
}

async fn to_json(
    screen: &Screen,
    source: &Source<'_>,
    targets: &[&ExecutionTarget],
) -> Result<Exit, Failure> {
    let mut exit = Exit::Success;
    let mut outputs = Vec::new();
    for target in targets {
        let mut bytes = Vec::new();
        let read = source.read(target, |piece| {
            bytes.extend_from_slice(piece);
            Ok(true)
        });
        let missing = read.await?;
        if let Some(missing) = &missing {
            exit = miss(screen, target, missing);
        }
        outputs.push(NodeOutput {
            node_id: target.node_id,
            node_name: name(target),
            output: missing.is_none().then_some(Base64(bytes)),
            missing: missing.map(|missing| missing.words()),
        });
    }
    screen.json(&BTreeMap::from([("items", outputs)]))?;
    Ok(exit)
}

async fn to_files(
    screen: &Screen,
    source: &Source<'_>,
    targets: &[&ExecutionTarget],
    dir: &Path,
) -> Result<Exit, Failure> {
    fs::create_dir_all(dir).map_err(writing(dir))?;
    let mut exit = Exit::Success;
    for (target, file_name) in targets.iter().zip(file_names(targets)) {
        let path = dir.join(&file_name);
        match source.save(target, &path).await? {
            Some(missing) => exit = miss(screen, target, &missing),
            None => screen.path(&path)?,
        }
    }
    Ok(exit)
}

/// A file per node: its name, unless that is no plain file name or another node's too.
fn file_names(targets: &[&ExecutionTarget]) -> Vec<String> {
    let names: Vec<_> = targets.iter().map(|target| name(target)).collect();
    let plain = |name: &str| {
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        name.chars().all(sound) && !name.starts_with(['.', '-']) && (1..=200).contains(&name.len())
    };
    let unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    targets
        .iter()
        .zip(&names)
        .map(|(target, name)| {
            if plain(name) && unique(name) {
                name.clone()
            } else {
                target.node_id.to_string()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_shared::status::Status::Succeeded;

    use super::*;
    use crate::execution_show::tests::execution;

    #[test]
    fn a_file_name_never_leaves_the_directory_nor_hides_another() {
        let names = ["web-1", "../etc/passwd", "twin", "twin", "", ".hidden", "-rf"];
        let execution = execution(&names.map(|name| (name, Succeeded)));
        let targets: Vec<_> = execution.targets.iter().collect();
        let files = file_names(&targets);
        assert_eq!(files[0], "web-1");
        for (file, target) in files.iter().zip(&targets).skip(1) {
            assert_eq!(*file, target.node_id.to_string());
        }
    }

    #[test]
    fn a_range_is_read_as_it_is_meant_or_not_at_all() {
        for good in ["0-0", "100-199", "100-"] {
            assert_eq!(byte_range(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "-",
            "-5",
            "5",
            "9-3",
            "a-b",
            "+1-2",
            "1-2,3-4",
            "1-2-3",
            "0-99999999999999999999",
        ] {
            assert!(byte_range(bad).is_err(), "{bad}");
        }
    }
}
