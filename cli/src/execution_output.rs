//! `muster execution output`: what the action wrote, byte for byte.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use clap::Args;
use muster_shared::{
    ids::{Digest, Digester, ExecutionId, NodeId, ProjectId},
    wire::{Base64, ExecutionTarget, OutputRef},
};
use serde::Serialize;

use crate::{
    client::{Client, Route},
    execution,
    execution_show::name,
    exit::Exit,
    failure::Failure,
    lookup,
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
    #[arg(long, value_name = "DIR")]
    out_dir: Option<PathBuf>,
}

/// What `-o json` shows of one node.
#[derive(Serialize)]
struct NodeOutput {
    node_id: NodeId,
    node_name: String,
    output: Base64,
}

/// Where outputs are read from.
struct Source<'a> {
    client: &'a Client,
    project: ProjectId,
    execution: ExecutionId,
}

pub(crate) async fn run(session: &Session, args: &OutputArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let screen = &session.screen;
    let execution = execution::read(&client, project, args.id).await?;
    let source = Source {
        client: &client,
        project,
        execution: args.id,
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
    match (screen.format(), &targets[..]) {
        (Format::Json, _) => to_json(screen, &source, &targets).await,
        (_, [only]) => to_stdout(screen, &source, only).await,
        (Format::Raw, several) => Err(Failure::Usage(format!(
            "it ran on {}; choose one with --node, or use --out-dir",
            text::count(several.len(), "node")
        ))),
        (_, several) => with_headers(screen, &source, several).await,
    }
}

async fn to_stdout(screen: &Screen, source: &Source<'_>, target: &ExecutionTarget) -> Result<Exit, Failure> {
    source
        .read(target, |piece| screen.bytes(piece).map(|()| !screen.is_closed()))
        .await?;
    Ok(Exit::Success)
}

async fn with_headers(
    screen: &Screen,
    source: &Source<'_>,
    targets: &[&ExecutionTarget],
) -> Result<Exit, Failure> {
    for target in targets {
        if screen.is_closed() {
            break;
        }
        let header = format!("==> {} <==\n", text::line(&name(target)));
        let mut last = None;
        let read = source.read(target, |piece| {
            if last.is_none() {
                screen.bytes(header.as_bytes())?;
            }
            last = piece.last().copied().or(last);
            screen.bytes(piece).map(|()| !screen.is_closed())
        });
        if kept(read.await)? {
            // An empty output has had no piece yet to put its header before.
            let ending = match last {
                None => header.as_bytes(),
                Some(b'\n') => b"",
                Some(_) => b"\n",
            };
            screen.bytes(ending)?;
        } else {
            screen.say(&format!("{}: no output is kept", text::line(&name(target))));
        }
    }
    Ok(Exit::Success)
}

async fn to_json(
    screen: &Screen,
    source: &Source<'_>,
    targets: &[&ExecutionTarget],
) -> Result<Exit, Failure> {
    let mut outputs = Vec::new();
    for target in targets {
        let mut bytes = Vec::new();
        let read = source.read(target, |piece| {
            bytes.extend_from_slice(piece);
            Ok(true)
        });
        if kept(read.await)? {
            outputs.push(NodeOutput {
                node_id: target.node_id,
                node_name: name(target),
                output: Base64(bytes),
            });
        }
    }
    screen.json(&BTreeMap::from([("items", outputs)]))?;
    Ok(Exit::Success)
}

async fn to_files(
    screen: &Screen,
    source: &Source<'_>,
    targets: &[&ExecutionTarget],
    dir: &Path,
) -> Result<Exit, Failure> {
    let writing = |path: &Path| Failure::local(format!("writing {}", path.display()));
    fs::create_dir_all(dir).map_err(writing(dir))?;
    for (target, file_name) in targets.iter().zip(file_names(targets)) {
        let path = dir.join(&file_name);
        let part = dir.join(format!("{file_name}.part"));
        let mut file = File::create(&part).map_err(writing(&part))?;
        let read = source.read(target, |piece| {
            file.write_all(piece).map(|()| true).map_err(writing(&part))
        });
        match kept(read.await) {
            Ok(true) => {
                fs::rename(&part, &path).map_err(writing(&path))?;
                screen.print(&path.display().to_string())?;
            }
            none => {
                let _ = fs::remove_file(&part);
                none?;
                screen.say(&format!("{}: no output is kept", text::line(&name(target))));
            }
        }
    }
    Ok(Exit::Success)
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

/// Whether there was an output; that there is none is an answer, not a failure.
fn kept(read: Result<(), Failure>) -> Result<bool, Failure> {
    match read {
        Ok(()) => Ok(true),
        Err(err) if err.is_code("output_not_found") => Ok(false),
        Err(err) => Err(err),
    }
}

impl Source<'_> {
    /// Hands the output over piece by piece; a stored one must have the digest that the node reported.
    async fn read(
        &self,
        target: &ExecutionTarget,
        mut take: impl FnMut(&[u8]) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let (execution, node) = (self.execution.to_string(), target.node_id.to_string());
        let route = Route::project(
            self.project,
            ["executions", &execution, "targets", &node, "output"],
        );
        let mut digester = Digester::default();
        let mut whole = true;
        self.client
            .download(&route, |piece| {
                digester.update(piece);
                whole = take(piece)?;
                Ok(whole)
            })
            .await?;
        match (whole, reported(target)) {
            (true, Some(digest)) if digester.finish() != digest => Err(Failure::Unexpected(format!(
                "the output of {} is not what the node reported: its digest is not {digest}",
                text::line(&name(target))
            ))),
            _ => Ok(()),
        }
    }
}

fn reported(target: &ExecutionTarget) -> Option<Digest> {
    match target.output_ref.as_ref()? {
        OutputRef::ObjectStore { sha256, .. } => Some(*sha256),
        OutputRef::Inline { .. } => None,
    }
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
}
