//! Which nodes a command addresses: a selector, one node, or every node, said out loud.

use clap::Args;
use muster_shared::ids::ProjectId;

use crate::{client::Client, failure::Failure, lookup};

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct TargetArgs {
    /// Nodes by label: k=v, k!=v, k in (a,b), k notin (a,b), k, !k; a comma means AND
    #[arg(short = 'l', long, value_parser = parse_selector)]
    selector: Option<String>,
    /// One node, by name, id, or the beginning of its id
    #[arg(long)]
    node: Option<String>,
    /// Every node of the project
    #[arg(long)]
    all: bool,
}

/// The three fields of which a request carries exactly one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Target {
    pub(crate) selector: Option<String>,
    pub(crate) node_id: Option<String>,
    pub(crate) all: bool,
}

impl TargetArgs {
    /// Asks control only to turn a node's name into its id.
    pub(crate) async fn resolve(&self, client: &Client, project: ProjectId) -> Result<Target, Failure> {
        let node_id = match &self.node {
            Some(wanted) => Some(lookup::node_id(client, project, wanted).await?.to_string()),
            None => None,
        };
        Ok(Target {
            selector: self.selector.clone(),
            node_id,
            all: self.all,
        })
    }
}

/// A variable that was lost must not address a fleet; every other rule is control's to check.
pub(crate) fn parse_selector(raw: &str) -> Result<String, String> {
    if raw.trim().is_empty() {
        return Err("the selector is empty; to address every node, say --all".to_owned());
    }
    Ok(raw.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        target: TargetArgs,
    }

    fn parse(args: &[&str]) -> Result<TargetArgs, clap::Error> {
        Line::try_parse_from([&["run"], args].concat()).map(|line| line.target)
    }

    #[test]
    fn exactly_one_form_names_the_target() {
        for good in [&["-l", "a=b"][..], &["--node", "n1"], &["--all"]] {
            assert!(parse(good).is_ok(), "{good:?}");
        }
        for bad in [
            &[][..],
            &["-l", "a=b", "--node", "n1"],
            &["-l", "a=b", "--all"],
            &["--node", "n1", "--all"],
            &["-l", "a=b", "-l", "c=d"],
        ] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }

    #[test]
    fn an_empty_selector_is_never_everything() {
        for empty in ["", "  ", "\n"] {
            assert_eq!(parse(&["-l", empty]).unwrap_err().exit_code(), 2, "{empty:?}");
        }
    }
}
