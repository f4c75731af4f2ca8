//! `muster actions`: what can be run, and on how many nodes.

use std::collections::BTreeMap;

use clap::Args;
use muster_shared::wire::{ActionKind, NodeSummary, Verdict};
use serde::Serialize;

use crate::{exit::Exit, failure::Failure, lookup, session::Session, table::Table, target::parse_selector};

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
                });
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
    let header = ["NAME", "TYPE", "NODES", "VERIFIED", "DRIFT", "UNCATALOGUED"];
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
    fn an_action_is_counted_over_the_nodes_that_declare_it() {
        let nodes = [
            node("web-1", &[("ping", None), ("backup", Some(Verdict::Verified))]),
            node("web-2", &[("ping", None), ("backup", Some(Verdict::Drift))]),
        ];
        assert_eq!(
            table(&gathered(&nodes), false).render(false),
            "NAME    TYPE     NODES  VERIFIED  DRIFT  UNCATALOGUED\n\
             backup  hook     2      1         1      0\n\
             ping    builtin  2      -         -      -"
        );
    }
}
