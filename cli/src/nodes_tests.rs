use muster_shared::{
    ids::DomainId,
    wire::{ActionKind, Verdict},
};

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

pub(crate) fn node(name: &str, actions: &[(&str, Option<Verdict>)]) -> NodeSummary {
    let action = |(name, verdict): &(&str, Option<Verdict>)| NodeAction {
        name: name.parse().unwrap(),
        kind: if verdict.is_some() {
            ActionKind::Hook
        } else {
            ActionKind::Builtin
        },
        verdict: *verdict,
        denied: None,
    };
    NodeSummary {
        id: NodeId::mint(at(0), [7; 10]),
        name: name.to_owned(),
        domain_id: DomainId::mint(at(0), [1; 10]),
        kind: "node".into(),
        created_at: at(0),
        project_id: ProjectId::mint(at(0), [2; 10]),
        labels: labels::parse_list("role=web,node/os=debian").unwrap(),
        connected: true,
        last_seen_at: Some(at(1_000)),
        clock_skew_ms: Some(-12),
        binary_version: Some("0.1.0".into()),
        hostname: format!("{name}.example"),
        warning: None,
        warned_at: None,
        nsk_since: Some(at(0)),
        nsk_rotation_asked_at: None,
        actions: actions.iter().map(action).collect(),
    }
}

#[test]
fn the_list_shows_who_is_there_and_by_which_labels() {
    let mut nodes = [node("web-1", &[("ping", None)]), node("web-2", &[])];
    nodes[1].connected = false;
    nodes[1].last_seen_at = None;
    assert_eq!(
        table(&nodes, false, at(5_000)).render(false),
        "NAME   STATUS     SEEN   ACTIONS  LABELS\n\
         web-1  connected  4s     1        role=web\n\
         web-2  away       never  0        role=web"
    );
    let wide = table(&nodes, true, at(5_000)).render(false);
    assert!(
        wide.contains("node/os=debian,role=web") && wide.contains("1970-01-01T00:00:01.000Z"),
        "{wide}"
    );
}

#[test]
fn the_actions_of_a_node_have_their_verdict() {
    let node = node("web-1", &[("ping", None), ("backup", Some(Verdict::Drift))]);
    assert_eq!(
        actions(&node.actions).render(false),
        "ACTION  TYPE     VERDICT\nping    builtin  -\nbackup  hook     drift"
    );
}

fn changes(changes: &[&str]) -> Result<LabelPatch, String> {
    parse_changes(
        &changes
            .iter()
            .map(|change| (*change).to_owned())
            .collect::<Vec<_>>(),
    )
}

#[test]
fn labels_are_set_and_removed_as_with_kubectl() {
    let patch = changes(&["role=web", "tier-", "note=a=b-", "empty="]).unwrap();
    assert_eq!(patch.set["role"], "web");
    assert_eq!(patch.set["note"], "a=b-");
    assert_eq!(patch.set["empty"], "");
    assert_eq!(patch.remove, ["tier"]);
}

#[test]
fn changes_that_contradict_or_are_none_are_refused() {
    for bad in [
        &["role"][..],
        &["role=a", "role-"],
        &["role=a", "role=b"],
        &["=x"],
        &["-"],
        &["node/os=x"],
    ] {
        assert!(changes(bad).is_err(), "{bad:?}");
    }
}
