//! `muster run --dry-run`: the nodes that an action would run on, and those that a gate would drop.

use muster_shared::wire::DispatchPreview;

use crate::{
    execution_rollout, failure::Failure, lookup::NodeNames, problem, render::Screen, table::Table, text,
};

/// The nodes on standard output, the words about them on standard error; JSON is the whole answer.
pub(crate) fn show(screen: &Screen, preview: &DispatchPreview, dropped: &NodeNames) -> Result<(), Failure> {
    screen.say(&words(preview, dropped));
    let names = |preview: &DispatchPreview| -> Vec<String> {
        let targets = preview.targets.iter();
        targets.map(|target| target.node_name.clone()).collect()
    };
    screen.one(preview, names, targets)
}

fn words(preview: &DispatchPreview, dropped: &NodeNames) -> String {
    let count = usize::try_from(preview.target_count).unwrap_or(usize::MAX);
    let mut words = format!(
        "dry run, nothing was sent: {} ({}) would go to {}, with {} s to end",
        preview.action,
        preview.kind.as_str(),
        text::count(count, "node"),
        preview.timeout_seconds
    );
    if let Some(seconds) = preview.deliver_within_seconds {
        words.push_str(&format!(", after at most {seconds} s to take it"));
    }
    if preview.targets.len() < count {
        words.push_str(&format!("; {} of them are shown", preview.targets.len()));
    }
    if let Some(plan) = &preview.rollout {
        words.push_str(&format!("\n{}", execution_rollout::plan(plan)));
    }
    if !preview.dropped.is_empty() {
        words.push('\n');
        words.push_str(&problem::dropped(&preview.dropped, dropped));
    }
    words
}

/// By name, which is the order of a rollout: then each is shown with its wave.
fn targets(preview: &DispatchPreview, wide: bool) -> Table {
    let Some(plan) = &preview.rollout else {
        let mut table = Table::new(&["NODE", "ID"], &[], wide);
        for target in &preview.targets {
            table.row([
                target.node_name.as_str().into(),
                target.node_id.to_string().into(),
            ]);
        }
        return table;
    };
    let mut table = Table::new(&["WAVE", "NODE", "ID"], &[], wide);
    for (place, target) in (1..).zip(&preview.targets) {
        let wave = 1 + plan.waves.iter().take_while(|wave| wave.up_to < place).count();
        table.row([
            wave.to_string().into(),
            target.node_name.as_str().into(),
            target.node_id.to_string().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::{
        ids::NodeId,
        time::Timestamp,
        wire::{ActionKind, Dropped, PreviewTarget},
    };

    #[test]
    fn it_says_that_nothing_was_sent_how_many_there_are_and_who_was_dropped() {
        let at = Timestamp::from_millis(0);
        let node = NodeId::mint(at, [1; 10]);
        let names = NodeNames::from([(node, "db-2".to_owned())]);
        let mut preview = DispatchPreview {
            project_id: muster_shared::ids::ProjectId::mint(at, [2; 10]),
            domain_id: muster_shared::ids::DomainId::mint(at, [3; 10]),
            action: "backup".parse().unwrap(),
            kind: ActionKind::Hook,
            timeout_seconds: 300,
            selector: None,
            target_count: 1,
            deliver_within_seconds: None,
            rollout: None,
            targets: vec![PreviewTarget {
                node_id: node,
                node_name: "db-1".into(),
            }],
            dropped: Vec::new(),
        };
        assert_eq!(
            words(&preview, &names),
            "dry run, nothing was sent: backup (hook) would go to 1 node, with 300 s to end"
        );
        preview.target_count = 2000;
        preview.dropped.push(Dropped {
            reason: "action_not_declared".into(),
            count: 1,
            sample: vec![node],
        });
        assert_eq!(
            words(&preview, &names),
            format!(
                "dry run, nothing was sent: backup (hook) would go to 2000 nodes, with 300 s to end; 1 of them are shown\n  \
                 dropped 1 node: action_not_declared: db-2"
            )
        );
        assert_eq!(
            targets(&preview, false).render(false),
            format!("NODE  ID\ndb-1  {node}")
        );
        preview.rollout = Some(execution_rollout::tests::rollout().plan);
        assert!(
            words(&preview, &names).contains("\n3 waves by name: up to 1 (+1), "),
            "{}",
            words(&preview, &names)
        );
        assert_eq!(
            targets(&preview, false).render(false),
            format!("WAVE  NODE  ID\n1     db-1  {node}")
        );
    }
}
