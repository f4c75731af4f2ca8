//! `muster actions`: what can be run, and on how many nodes. `muster action show`: what one of them is and takes.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use muster_shared::{
    ids::ActionName,
    wire::{ActionDetail, ActionKind, ActionOnNode, HookManifest, NodeSummary, Verdict},
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    client::Route,
    exit::Exit,
    failure::Failure,
    lookup,
    render::Format,
    session::Session,
    table::{Cell, Table},
    target::parse_selector,
};

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only what nodes with these labels declare
    #[arg(short = 'l', long, value_parser = parse_selector)]
    selector: Option<String>,
}

/// One action over all the nodes that declare it.
#[derive(Serialize, PartialEq, Eq, Debug)]
struct Action {
    name: String,
    #[serde(rename = "type")]
    kind: ActionKind,
    nodes: Vec<String>,
    verified: u32,
    drift: u32,
    uncatalogued: u32,
    /// On how many nodes the node's own policy forbids it.
    denied: u32,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ActionCommand {
    /// Show what an action does, its parameters, and the nodes that have it
    Show(ShowArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// A builtin, or a hook that nodes declare
    name: ActionName,
}

pub(crate) async fn run(session: &Session, command: ActionCommand) -> Result<Exit, Failure> {
    match command {
        ActionCommand::Show(args) => show(session, args).await,
    }
}

async fn show(session: &Session, args: ShowArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let detail: ActionDetail = client
        .get(&Route::project(project, ["actions", args.name.as_str()]))
        .await?;
    let screen = &session.screen;
    if matches!(screen.format(), Format::Table | Format::Wide) {
        for (manifest, nodes) in by_manifest(&detail.nodes) {
            let names: Vec<&str> = nodes.iter().map(|node| node.node_name.as_str()).collect();
            screen.print(&format!("{} on {}", detail.name, names.join(", ")))?;
            describe(&manifest.cloned().unwrap_or_default())
                .iter()
                .try_for_each(|line| screen.print(line))?;
            screen.print("")?;
        }
    }
    screen.list(
        &detail.nodes,
        "nodes",
        |node| node.node_name.clone(),
        |nodes, _| nodes_table(nodes),
    )?;
    if detail.more {
        screen.say(&format!("only {} of its nodes are shown", detail.nodes.len()));
    }
    Ok(Exit::Success)
}

/// The nodes that say the same of the action, under what they say.
fn by_manifest(nodes: &[ActionOnNode]) -> Vec<(Option<&HookManifest>, Vec<&ActionOnNode>)> {
    let mut groups: Vec<(Option<&HookManifest>, Vec<&ActionOnNode>)> = Vec::new();
    for node in nodes {
        match groups
            .iter_mut()
            .find(|(manifest, _)| *manifest == node.manifest.as_ref())
        {
            Some((_, group)) => group.push(node),
            None => groups.push((node.manifest.as_ref(), vec![node])),
        }
    }
    groups
}

fn describe(manifest: &HookManifest) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push(format!("  {what:<12} {value}"));
        }
    };
    line("about", manifest.description.clone());
    line("changes", changes(manifest));
    line("user", manifest.user.clone());
    let seconds = |seconds: Option<u32>| seconds.map(|seconds| format!("{seconds} s"));
    line("timeout", seconds(manifest.timeout_default_seconds));
    line("timeout max", seconds(manifest.timeout_max_seconds));
    let limits: Vec<String> = manifest
        .limits
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    line("limits", (!limits.is_empty()).then(|| limits.join(" ")));
    match &manifest.parameters {
        None => lines.push("  parameters   any".to_owned()),
        Some(schema) => {
            lines.push("  parameters".to_owned());
            let table = parameters_table(schema).render(false);
            lines.extend(table.lines().map(|row| format!("    {row}")));
        }
    }
    lines
}

fn changes(manifest: &HookManifest) -> Option<String> {
    if manifest.read_only {
        return Some("nothing".to_owned());
    }
    (!manifest.affinity.is_empty()).then(|| manifest.affinity.join(", "))
}

fn parameters_table(schema: &Value) -> Table {
    let mut table = Table::new(&["NAME", "TYPE", "REQUIRED", "DEFAULT", "ABOUT"], &[], false);
    let required = |name: &str| {
        let names = schema.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let text = |keyword: &str| {
            let value = property.get(keyword)?;
            Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        let secret = property.get("writeOnly") == Some(&Value::Bool(true));
        let mut about = text("description").unwrap_or_default();
        if secret {
            about = format!("(secret) {about}").trim_end().to_owned();
        }
        table.row([
            name.as_str().into(),
            text("type").into(),
            if required(name) { "yes" } else { "no" }.into(),
            text("default").into(),
            about.into(),
        ]);
    }
    table
}

fn nodes_table(nodes: &[ActionOnNode]) -> Table {
    let mut table = Table::new(&["NODE", "TYPE", "VERDICT", "DENIED BY"], &[], false);
    for node in nodes {
        table.row([
            node.node_name.as_str().into(),
            node.kind.as_str().into(),
            node.verdict.map_or_else(|| Cell::from("-"), Into::into),
            node.denied.clone().into(),
        ]);
    }
    table
}

pub(crate) async fn list(session: &Session, args: ListArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let nodes = lookup::nodes(&client, project, args.selector.as_deref()).await?;
    session
        .screen
        .list(&gathered(&nodes), "actions", |action| action.name.clone(), table)?;
    Ok(Exit::Success)
}

/// By name, then by kind: a hook on one node may have the name of another node's builtin.
fn gathered(nodes: &[NodeSummary]) -> Vec<Action> {
    let mut actions = BTreeMap::new();
    for node in nodes {
        for declared in &node.actions {
            let entry = actions
                .entry((declared.name.clone(), declared.kind))
                .or_insert_with(|| Action {
                    name: declared.name.to_string(),
                    kind: declared.kind,
                    nodes: Vec::new(),
                    verified: 0,
                    drift: 0,
                    uncatalogued: 0,
                    denied: 0,
                });
            entry.denied += u32::from(declared.denied.is_some());
            entry.nodes.push(node.name.clone());
            match declared.verdict {
                Some(Verdict::Verified) => entry.verified += 1,
                Some(Verdict::Drift) => entry.drift += 1,
                Some(Verdict::Uncatalogued) => entry.uncatalogued += 1,
                None => {}
            }
        }
    }
    actions.into_values().collect()
}

fn table(actions: &[Action], wide: bool) -> Table {
    let header = [
        "NAME",
        "TYPE",
        "NODES",
        "VERIFIED",
        "DRIFT",
        "UNCATALOGUED",
        "DENIED",
    ];
    let mut table = Table::new(&header, &["ON"], wide);
    for action in actions {
        let of_hook = |n: u32| match action.kind {
            ActionKind::Hook => n.to_string(),
            ActionKind::Builtin => "-".to_owned(),
        };
        table.row([
            action.name.as_str().into(),
            action.kind.as_str().into(),
            action.nodes.len().to_string().into(),
            of_hook(action.verified).into(),
            of_hook(action.drift).into(),
            of_hook(action.uncatalogued).into(),
            action.denied.to_string().into(),
            action.nodes.join(",").into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::tests::node;

    #[test]
    fn a_manifest_is_shown_with_its_parameters() {
        let manifest = HookManifest {
            description: Some("Backs up".into()),
            read_only: true,
            timeout_max_seconds: Some(60),
            limits: BTreeMap::from([("pids".into(), 4)]),
            parameters: Some(serde_json::json!({
                "properties": {
                    "level": {"type": "integer", "default": 3, "description": "how much"},
                    "password": {"type": "string", "writeOnly": true},
                },
                "required": ["password"],
            })),
            ..HookManifest::default()
        };
        assert_eq!(
            describe(&manifest).join("\n"),
            "  about        Backs up\n  changes      nothing\n  timeout max  60 s\n  limits       pids=4\n  parameters\n    \
             NAME      TYPE     REQUIRED  DEFAULT  ABOUT\n    \
             level     integer  no        3        how much\n    \
             password  string   yes       -        (secret)"
        );
    }

    #[test]
    fn an_action_is_counted_over_the_nodes_that_declare_it() {
        let nodes = [
            node("web-1", &[("ping", None), ("backup", Some(Verdict::Verified))]),
            node("web-2", &[("ping", None), ("backup", Some(Verdict::Drift))]),
        ];
        assert_eq!(
            table(&gathered(&nodes), false).render(false),
            "NAME    TYPE     NODES  VERIFIED  DRIFT  UNCATALOGUED  DENIED\n\
             backup  hook     2      1         1      0             0\n\
             ping    builtin  2      -         -      -             0"
        );
    }
}
