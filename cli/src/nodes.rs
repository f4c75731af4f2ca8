//! `muster nodes` and `muster node`: the machines of a project.

use clap::{Args, Subcommand};
use muster_shared::{
    ids::{NodeId, ProjectId},
    labels::{self, Labels},
    time::Timestamp,
    wire::{LabelPatch, NodeAction, NodeSummary, RotateKeysRequest, RotateKeysResponse},
};

use crate::{
    client::{Client, Route},
    exit::Exit,
    failure::Failure,
    lookup,
    render::Format,
    session::Session,
    table::{Cell, Table},
    target::parse_selector,
    text,
};

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only nodes with these labels
    #[arg(short = 'l', long, value_parser = parse_selector)]
    selector: Option<String>,
    /// Only nodes whose event stream control holds now
    #[arg(long, visible_alias = "online")]
    connected: bool,
    /// Only nodes that are not connected
    #[arg(long, visible_alias = "offline", conflicts_with = "connected")]
    away: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// What control knows of a node, and what the node can do
    Show(NodeArg),
    /// Set labels (key=value) and remove them (key-)
    Label(LabelArgs),
    /// Have nodes change their keys; the old one counts until the new one is used
    RotateKey(RotateKeyArgs),
    /// Decommission a node: its key opens nothing any more, its history stays
    Rm(RmArgs),
}

#[derive(Args, Debug)]
pub(crate) struct NodeArg {
    /// Its name, its id, or the beginning of its id
    node: String,
}

#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// Its whole name or its whole id
    node: String,
}

#[derive(Args, Debug)]
pub(crate) struct LabelArgs {
    /// Its name, its id, or the beginning of its id
    node: String,
    /// key=value sets, key- removes
    #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
    changes: Vec<String>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct RotateKeyArgs {
    /// Its name, its id, or the beginning of its id
    node: Option<String>,
    /// Every node with these labels
    #[arg(short = 'l', long, value_parser = parse_selector)]
    selector: Option<String>,
    /// Every node of the project
    #[arg(long)]
    all: bool,
}

pub(crate) async fn list(session: &Session, args: ListArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let connected = (args.connected || args.away).then_some(args.connected);
    let mut nodes = lookup::nodes_that_are(&client, project, args.selector.as_deref(), connected).await?;
    nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    session.screen.list(
        &nodes,
        "nodes",
        |node| node.name.clone(),
        |nodes, wide| table(nodes, wide, Timestamp::now()),
    )?;
    Ok(Exit::Success)
}

pub(crate) async fn run(session: &Session, command: NodeCommand) -> Result<Exit, Failure> {
    match command {
        NodeCommand::Show(NodeArg { node }) => {
            let (client, project) = session.control()?;
            let id = lookup::node_id(&client, project, &node).await?;
            show(
                session,
                &client.get(&Route::new(["v1", "nodes", &id.to_string()])).await?,
            )?;
        }
        NodeCommand::RotateKey(args) => rotate_keys(session, args).await?,
        NodeCommand::Rm(RmArgs { node }) => {
            let (client, project) = session.control()?;
            let id = lookup::whole_node_id(&client, project, &node).await?;
            let gone: NodeSummary = client
                .delete(&Route::new(["v1", "nodes", &id.to_string()]))
                .await?;
            let name = |node: &NodeSummary| node.name.clone();
            session.screen.one(&gone, name, |node, wide| {
                table(std::slice::from_ref(node), wide, Timestamp::now())
            })?;
            let words = format!("decommissioned {} ({})", gone.name, gone.id);
            session.screen.say(&text::line(&words));
        }
        NodeCommand::Label(LabelArgs { node, changes }) => {
            let patch = parse_changes(&changes).map_err(Failure::Usage)?;
            let (client, project) = session.control()?;
            let changed = label(&client, project, &node, &patch).await?;
            let name = |node: &NodeSummary| node.name.clone();
            session.screen.one(&changed, name, |node, wide| {
                table(std::slice::from_ref(node), wide, Timestamp::now())
            })?;
        }
    }
    Ok(Exit::Success)
}

async fn rotate_keys(session: &Session, args: RotateKeyArgs) -> Result<(), Failure> {
    let (client, project) = session.control()?;
    let node_id = match &args.node {
        Some(wanted) => Some(lookup::node_id(&client, project, wanted).await?.to_string()),
        None => None,
    };
    let request = RotateKeysRequest {
        selector: args.selector,
        node_id,
        all: args.all,
    };
    let answer: RotateKeysResponse = client
        .post(&Route::project(project, ["nodes", "rotate-keys"]), &request)
        .await
        .map_err(|err| err.about_selector(request.selector.as_deref()))?;
    let names = lookup::names(&client, project).await.unwrap_or_default();
    let name = |id: &NodeId| names.get(id).cloned().unwrap_or_else(|| id.to_string());
    session.screen.one(
        &answer,
        |answer| answer.asked.iter().map(name).collect::<Vec<_>>(),
        |answer, _| {
            let mut table = Table::new(&["NODE", "RESULT"], &[], false);
            for node in &answer.asked {
                table.row([name(node).into(), Cell::good("asked")]);
            }
            table
        },
    )
}

async fn label(
    client: &Client,
    project: ProjectId,
    node: &str,
    patch: &LabelPatch,
) -> Result<NodeSummary, Failure> {
    let id: NodeId = lookup::node_id(client, project, node).await?;
    client
        .patch(&Route::new(["v1", "nodes", &id.to_string(), "labels"]), patch)
        .await
}

fn parse_changes(changes: &[String]) -> Result<LabelPatch, String> {
    let mut patch = LabelPatch::default();
    let mut named = std::collections::BTreeSet::new();
    for change in changes {
        let key = match (change.split_once('='), change.strip_suffix('-')) {
            (Some((key, value)), _) => {
                labels::check(key, value).map_err(|err| err.to_string())?;
                patch.set.insert(key.to_owned(), value.to_owned());
                key
            }
            (None, Some(key)) => {
                labels::check_key(key).map_err(|err| err.to_string())?;
                patch.remove.push(key.to_owned());
                key
            }
            (None, None) => return Err(format!("{change:?} changes no label: write key=value or key-")),
        };
        if !named.insert(key) {
            return Err(labels::BadLabel::Twice(key.to_owned()).to_string());
        }
    }
    labels::check_given(&patch.set).map_err(|err| err.to_string())?;
    Ok(patch)
}

fn connection(node: &NodeSummary) -> Cell {
    match (node.connected, node.warning.is_some()) {
        (true, false) => Cell::good("connected"),
        (false, false) => Cell::odd("away"),
        (true, true) => Cell::odd("connected (warning)"),
        (false, true) => Cell::odd("away (warning)"),
    }
}

fn table(nodes: &[NodeSummary], wide: bool, now: Timestamp) -> Table {
    let header = ["NAME", "STATUS", "SEEN", "ACTIONS", "LABELS"];
    let more = ["ID", "VERSION", "SKEW", "LAST SEEN", "CREATED"];
    let mut table = Table::new(&header, &more, wide);
    for node in nodes {
        table.row([
            node.name.as_str().into(),
            connection(node),
            node.last_seen_at
                .map_or_else(|| "never".to_owned(), |seen| text::age(now, seen))
                .into(),
            node.actions.len().to_string().into(),
            text::labels(&node.labels, wide).into(),
            node.id.to_string().into(),
            node.binary_version.as_deref().into(),
            node.clock_skew_ms.map(|ms| format!("{ms} ms")).into(),
            node.last_seen_at.into(),
            node.created_at.to_string().into(),
        ]);
    }
    table
}

fn show(session: &Session, node: &NodeSummary) -> Result<(), Failure> {
    let screen = &session.screen;
    let name = |node: &NodeSummary| node.name.clone();
    screen.one(node, name, |node, _| facts(node))?;
    if matches!(screen.format(), Format::Table | Format::Wide) && !node.actions.is_empty() {
        screen.print("")?;
        screen.table(&actions(&node.actions))?;
    }
    Ok(())
}

fn facts(node: &NodeSummary) -> Table {
    let mut table = Table::default();
    table.fact("Name", node.name.as_str());
    table.fact("Id", node.id.to_string());
    table.fact("Status", connection(node));
    table.fact("Hostname", node.hostname.as_str());
    table.fact("Last seen", node.last_seen_at);
    table.fact("Clock skew", node.clock_skew_ms.map(|ms| format!("{ms} ms")));
    table.fact("Version", node.binary_version.as_deref());
    if let Some(warning) = &node.warning {
        let at = node.warned_at.map(|at| format!("{at}: ")).unwrap_or_default();
        table.fact("Warning", format!("{at}{warning}"));
    }
    table.fact("Key since", key_since(node));
    table.fact("Created", node.created_at.to_string());
    table.fact("Project", node.project_id.to_string());
    table.fact("Domain", node.domain_id.to_string());
    labels_below(&mut table, &node.labels);
    table
}

fn key_since(node: &NodeSummary) -> Option<String> {
    let since = node.nsk_since?;
    Some(match node.nsk_rotation_asked_at {
        Some(asked) => format!("{since} (asked to change it at {asked})"),
        None => since.to_string(),
    })
}

fn labels_below(table: &mut Table, labels: &Labels) {
    for (key, value) in labels {
        table.fact("Label", format!("{key}={value}"));
    }
}

fn actions(actions: &[NodeAction]) -> Table {
    let mut table = Table::new(&["ACTION", "TYPE", "VERDICT"], &[], false);
    for action in actions {
        let verdict = action.verdict.map_or_else(|| "-".into(), Cell::from);
        table.row([action.name.as_str().into(), action.kind.as_str().into(), verdict]);
    }
    table
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
pub(crate) mod tests;
