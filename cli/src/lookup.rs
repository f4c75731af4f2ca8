//! From what a person types for a node to the node: its id, its name, or the beginning of its id.

use std::collections::BTreeMap;

use muster_shared::{
    ids::{NodeId, ProjectId},
    wire::{Dropped, NodeSummary},
};

use crate::{
    client::{Client, Route},
    failure::Failure,
    text,
};

/// A shorter beginning of an id would match by accident what was meant as a name.
const ID_PREFIX_LEN_MIN: usize = 4;
/// How many candidates an error lists.
const CANDIDATES_MAX: usize = 10;

/// Every node of the project, or those that the selector matches.
pub(crate) async fn nodes(
    client: &Client,
    project: ProjectId,
    selector: Option<&str>,
) -> Result<Vec<NodeSummary>, Failure> {
    nodes_that_are(client, project, selector, None).await
}

/// The same, or only those that are connected, or are not.
pub(crate) async fn nodes_that_are(
    client: &Client,
    project: ProjectId,
    selector: Option<&str>,
    connected: Option<bool>,
) -> Result<Vec<NodeSummary>, Failure> {
    let route = Route::new(["v1", "nodes"])
        .with("project_id", Some(project))
        .with("selector", selector)
        .with("connected", connected);
    let page = client
        .pages(&route, None)
        .await
        .map_err(|err| err.about_selector(selector))?;
    Ok(page.items)
}

/// What nodes are called.
pub(crate) type NodeNames = BTreeMap<NodeId, String>;

/// For answers that only give ids.
pub(crate) async fn names(client: &Client, project: ProjectId) -> Result<NodeNames, Failure> {
    Ok(nodes(client, project, None)
        .await?
        .into_iter()
        .map(|node| (node.id, node.name))
        .collect())
}

/// The names for what gates dropped, as far as they can be had: without them there are ids.
pub(crate) async fn names_of(client: &Client, project: ProjectId, gates: &[Dropped]) -> NodeNames {
    if gates.iter().all(|gate| gate.sample.is_empty()) {
        return NodeNames::new();
    }
    names(client, project).await.unwrap_or_default()
}

/// Has a refusal name the nodes that gates dropped.
pub(crate) async fn named(client: &Client, project: ProjectId, failure: Failure) -> Failure {
    let names = names_of(client, project, failure.dropped()).await;
    failure.about_nodes(names)
}

pub(crate) async fn node_id(client: &Client, project: ProjectId, wanted: &str) -> Result<NodeId, Failure> {
    if let Ok(id) = wanted.parse() {
        return Ok(id);
    }
    let nodes = nodes(client, project, None).await?;
    pick(nodes.iter().map(|node| (node.id, node.name.as_str())), wanted)
}

/// For what is not undone: the beginning of an id may be that of another node than was meant.
pub(crate) async fn whole_node_id(
    client: &Client,
    project: ProjectId,
    wanted: &str,
) -> Result<NodeId, Failure> {
    if let Ok(id) = wanted.parse() {
        return Ok(id);
    }
    let nodes = nodes(client, project, None).await?;
    pick_whole(nodes.iter().map(|node| (node.id, node.name.as_str())), wanted)
}

/// A node's id, the same as text, and its name.
type Candidate<'a> = (NodeId, String, &'a str);

fn candidates<'a>(nodes: impl IntoIterator<Item = (NodeId, &'a str)>) -> Vec<Candidate<'a>> {
    let nodes = nodes.into_iter();
    nodes.map(|(id, name)| (id, id.to_string(), name)).collect()
}

/// An id wins over a name, a name over the beginning of an id.
pub(crate) fn pick<'a>(
    nodes: impl IntoIterator<Item = (NodeId, &'a str)>,
    wanted: &str,
) -> Result<NodeId, Failure> {
    let nodes = candidates(nodes);
    let mut found = called(&nodes, wanted);
    if found.is_empty() && wanted.len() >= ID_PREFIX_LEN_MIN {
        let begins = |(_, text, _): &&Candidate<'_>| text.starts_with(wanted);
        found = nodes.iter().filter(begins).collect();
    }
    only(&found, wanted)
}

fn pick_whole<'a>(
    nodes: impl IntoIterator<Item = (NodeId, &'a str)>,
    wanted: &str,
) -> Result<NodeId, Failure> {
    only(&called(&candidates(nodes), wanted), wanted)
        .map_err(|err| err.with_remedy("this takes a whole name or a whole id"))
}

fn called<'n, 'a>(nodes: &'n [Candidate<'a>], wanted: &str) -> Vec<&'n Candidate<'a>> {
    match nodes.iter().find(|(_, text, _)| text == wanted) {
        Some(node) => vec![node],
        None => nodes.iter().filter(|(.., name)| *name == wanted).collect(),
    }
}

fn only(found: &[&Candidate<'_>], wanted: &str) -> Result<NodeId, Failure> {
    match found {
        [] => Err(Failure::NoSuch(format!(
            "no node is called {wanted:?} (node_not_found)"
        ))),
        [(id, ..)] => Ok(*id),
        _ => {
            let lines: Vec<_> = found
                .iter()
                .take(CANDIDATES_MAX)
                .map(|(_, id, name)| format!("\n  {id}  {}", text::line(name)))
                .collect();
            let count = text::count(found.len(), "node");
            Err(Failure::Usage(format!(
                "{wanted:?} may be any of {count}; give an id:{}",
                lines.concat()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    const NODES: [(&str, &str); 4] = [
        ("01900000-0000-7000-8000-000000000001", "web-1"),
        ("01900000-0000-7000-8000-000000000002", "web-2"),
        ("01911111-0000-7000-8000-000000000003", "twin"),
        ("01922222-0000-7000-8000-000000000004", "twin"),
    ];

    fn find(wanted: &str) -> Result<String, Failure> {
        let nodes = NODES.map(|(id, name)| (id.parse().unwrap(), name));
        pick(nodes, wanted).map(|id| id.to_string())
    }

    #[test]
    fn a_node_is_found_by_name_id_and_beginning_of_id() {
        assert_eq!(find("web-2").unwrap(), NODES[1].0);
        assert_eq!(find(NODES[3].0).unwrap(), NODES[3].0);
        assert_eq!(find("01911").unwrap(), NODES[2].0);
    }

    #[test]
    fn for_what_is_not_undone_a_node_is_named_in_full() {
        let nodes = || NODES.map(|(id, name)| (id.parse().unwrap(), name));
        let whole = |wanted| pick_whole(nodes(), wanted).map(|id| id.to_string());
        assert_eq!(whole("web-2").unwrap(), NODES[1].0);
        assert_eq!(whole(NODES[3].0).unwrap(), NODES[3].0);
        assert_eq!(whole("twin").unwrap_err().exit(), Exit::Usage);
        assert_eq!(
            whole("01911").unwrap_err().words(),
            "muster: no node is called \"01911\" (node_not_found); this takes a whole name or a whole id"
        );
    }

    #[test]
    fn what_may_be_several_lists_them_and_what_is_none_says_so() {
        let twins = find("twin").unwrap_err();
        assert_eq!(twins.exit(), Exit::Usage);
        assert_eq!(
            twins.words(),
            format!(
                "muster: \"twin\" may be any of 2 nodes; give an id:\n  {}  twin\n  {}  twin",
                NODES[2].0, NODES[3].0
            )
        );
        assert_eq!(find("01900000").unwrap_err().exit(), Exit::Usage);
        assert_eq!(find("web").unwrap_err().exit(), Exit::Refused);
        // Three characters are no beginning of an id.
        assert_eq!(find("019").unwrap_err().exit(), Exit::Refused);
    }
}
