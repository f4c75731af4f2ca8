//! What nodes declare, and whether their hooks are those that were first seen.

use std::collections::{BTreeSet, HashSet};

use muster_shared::{
    ids::{ActionName, Digest, DomainId, NodeId, RowId},
    labels::{BadLabel, LABELS_PER_NODE_MAX, Labels},
    message_id::HOOK_DIFFERS,
    time::Timestamp,
    wire::{
        ACKNOWLEDGE_REASON_LEN_MAX, ApproveResponse, BUILTINS_PER_NODE_MAX, CapabilityManifest, DetectedBy,
        HOOKS_PER_NODE_MAX, REFUSED_TEXT_BYTES_MAX, ReportedKind, ViolationReport, ViolationRow,
    },
};

use crate::{
    audit::{self, Entry},
    authz::{self, Requester},
    control::Control,
    enroll::labels_of_the_node,
    keys::chance,
    store::{NewViolation, Order, Project, StoreError, Tx},
    target::Target,
};

/// How many nodes are approved in one commit: between two of them others have their turn at writing.
const APPROVED_AT_ONCE: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("declared hook {0:?} has no name an action can have")]
    HookInvalid(String),
    #[error("hook {0:?} is declared twice")]
    HookDuplicate(String),
    #[error("{0} hooks are declared; the limit is {HOOKS_PER_NODE_MAX}")]
    TooManyHooks(usize),
    #[error("{0} files are declared as refused; the limit is {HOOKS_PER_NODE_MAX}")]
    TooManyRefused(usize),
    #[error(
        "refused file {0:?} has a name of more than 255 bytes, or more than {REFUSED_TEXT_BYTES_MAX} bytes to say"
    )]
    RefusedInvalid(String),
    #[error("builtin {0:?} has no name an action can have")]
    BuiltinInvalid(String),
    #[error("builtin {0:?} is declared twice, or a hook has its name")]
    BuiltinDuplicate(String),
    #[error("{0} builtins are declared; the limit is {BUILTINS_PER_NODE_MAX}")]
    TooManyBuiltins(usize),
    #[error("{0}")]
    Label(#[from] BadLabel),
    #[error(
        "the node has {0} open violations, and may have no more (limits.open_violations_max): acknowledge those that were looked into"
    )]
    TooManyViolations(u32),
    #[error("the capabilities could not be stored")]
    Store(#[from] StoreError),
    #[error("the system gave no random bytes")]
    Chance(#[from] std::io::Error),
}

fn check_manifest(manifest: &CapabilityManifest) -> Result<(), ManifestError> {
    if manifest.declared_hooks.len() > HOOKS_PER_NODE_MAX {
        return Err(ManifestError::TooManyHooks(manifest.declared_hooks.len()));
    }
    if manifest.builtin_actions.len() > BUILTINS_PER_NODE_MAX {
        return Err(ManifestError::TooManyBuiltins(manifest.builtin_actions.len()));
    }
    if manifest.refused_hooks.len() > HOOKS_PER_NODE_MAX {
        return Err(ManifestError::TooManyRefused(manifest.refused_hooks.len()));
    }
    for file in &manifest.refused_hooks {
        if file.name.is_empty() || file.name.len() > 255 || file.why.len() > REFUSED_TEXT_BYTES_MAX {
            return Err(ManifestError::RefusedInvalid(file.name.clone()));
        }
    }
    let mut names = HashSet::new();
    for hook in &manifest.declared_hooks {
        hook.name
            .parse::<ActionName>()
            .map_err(|_| ManifestError::HookInvalid(hook.name.clone()))?;
        if !names.insert(&hook.name) {
            return Err(ManifestError::HookDuplicate(hook.name.clone()));
        }
    }
    for builtin in &manifest.builtin_actions {
        builtin
            .name
            .parse::<ActionName>()
            .map_err(|_| ManifestError::BuiltinInvalid(builtin.name.clone()))?;
        if !names.insert(&builtin.name) {
            return Err(ManifestError::BuiltinDuplicate(builtin.name.clone()));
        }
    }
    Ok(())
}

/// Takes what a node declares, pins what is new and records what drifted: one commit. Answers which fields changed;
/// a node that declares what it declared before costs no write.
pub(crate) async fn declare(
    control: &Control,
    (node, domain): (NodeId, DomainId),
    manifest: &CapabilityManifest,
    now: Timestamp,
) -> Result<Vec<String>, ManifestError> {
    check_manifest(manifest)?;
    let said = manifest.labels.as_ref().map(labels_of_the_node).transpose()?;
    let mut changed = control.store.declared_by(node).await?.changed_by(manifest);
    let actions_changed = !changed.is_empty();
    // What a node leaves out of its labels, as clients of the published surface do, stays.
    let relabelled = match said {
        Some(said) if control.store.labels_said_by(node).await? != said => Some(said),
        Some(_) | None => None,
    };
    changed.extend(relabelled.iter().map(|_| "labels".to_owned()));
    if changed.is_empty() {
        return Ok(changed);
    }
    let mut tx = control.store.begin().await?;
    if let Some(said) = &relabelled {
        relabel(&mut tx, (node, domain), said, now).await?;
    }
    if actions_changed {
        tx.replace_capabilities(node, manifest, now).await?;
    }
    let mut open = tx.count_open_violations(node).await?;
    let mut full = false;
    for (hook, observed, expected) in tx.drifted_hooks(node).await? {
        log::warn!(message_id = HOOK_DIFFERS, node_id:% = node, hook, observed:%, expected:%;
            "Hook {hook} differs from its baseline");
        if open >= control.limits.open_violations_max {
            // What the node shows is refused by its digest, with a row or without.
            full = true;
            continue;
        }
        let kept = tx
            .insert_violation(
                &NewViolation {
                    id: RowId::mint(now, chance()?),
                    node,
                    domain,
                    kind: "hook",
                    artifact: &hook,
                    detected_by: "capabilities",
                    observed: Some(observed.as_bytes()),
                    expected: Some(expected.as_bytes()),
                },
                now,
            )
            .await?;
        open += u32::from(kept);
    }
    if full {
        log::warn!(node_id:% = node; "A violation is not kept: the node has as many open ones as limits.open_violations_max");
    }
    tx.commit().await?;
    Ok(changed)
}

/// Puts what a node says of itself in place of what it said before. Where dispatches go may change with it.
async fn relabel(
    tx: &mut Tx,
    (node, domain): (NodeId, DomainId),
    said: &Labels,
    now: Timestamp,
) -> Result<(), ManifestError> {
    tx.replace_labels_said_by(node, said).await?;
    let count = tx.count_labels(node).await?;
    if count > LABELS_PER_NODE_MAX {
        return Err(BadLabel::TooMany(count).into());
    }
    let words: Vec<_> = said.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let subject = audit::node_subject(node);
    let entry = Entry::granted(&subject, "node.label", authz::resource(node)).with(words.join(" "));
    Ok(tx.append_audit(domain, &[entry], now).await?)
}

/// Keeps the violations that a node reports, all or none. What is known and not resolved is not kept again, and a report
/// without news costs no write.
pub(crate) async fn record(
    control: &Control,
    (node, domain): (NodeId, DomainId),
    reports: &[ViolationReport],
    now: Timestamp,
) -> Result<(), ManifestError> {
    let mut news = Vec::new();
    for report in reports {
        let new = NewViolation {
            id: RowId::mint(now, chance()?),
            node,
            domain,
            kind: match report.kind {
                ReportedKind::BinaryChecksum => "binary",
                ReportedKind::HookChecksum => "hook",
                ReportedKind::SshHostKey => "host_key",
            },
            artifact: &report.artifact_id,
            detected_by: match report.detected_by {
                DetectedBy::StartupScan => "startup_scan",
                DetectedBy::Inotify => "inotify",
                DetectedBy::PreDispatch => "pre_dispatch",
            },
            observed: report
                .observed_checksum
                .as_ref()
                .map(|digest| &digest.as_bytes()[..]),
            expected: report
                .expected_checksum
                .as_ref()
                .map(|digest| &digest.as_bytes()[..]),
        };
        if !control.store.knows_violation(&new).await? {
            news.push(new);
        }
    }
    if news.is_empty() {
        return Ok(());
    }
    let max = control.limits.open_violations_max;
    // Looked at before a turn at writing is taken too: a node that has no room may ask for ever.
    if control.store.count_open_violations(node).await? >= max {
        return Err(ManifestError::TooManyViolations(max));
    }
    let mut tx = control.store.begin().await?;
    let mut open = tx.count_open_violations(node).await?;
    for new in &news {
        open += u32::from(tx.insert_violation(new, now).await?);
        if open > max {
            return Err(ManifestError::TooManyViolations(max));
        }
    }
    tx.commit().await?;
    for new in &news {
        log::warn!(node_id:% = node, artifact = new.artifact; "Node reports an integrity violation of {}", new.artifact);
    }
    Ok(())
}

/// Makes a digest the baseline wherever the target's nodes show exactly it, and tells those nodes: piece by piece, so that
/// the reports of a large fleet need not wait for all of it.
pub(crate) async fn approve(
    control: &Control,
    project: &Project,
    requester: &Requester,
    (hook, digest, target): (&ActionName, Digest, &Target),
) -> Result<ApproveResponse, StoreError> {
    let candidates = control
        .store
        .candidates(project.id, target.selector(), target.node(), hook, Order::Id)
        .await?;
    let grants = requester.grants.in_project(project.domain, project.id);
    let nodes: Vec<NodeId> = candidates
        .iter()
        .filter(|c| !c.decommissioned && grants.may_act_on(c.node))
        .map(|c| c.node)
        .collect();
    let mut response = ApproveResponse {
        approved: Vec::new(),
        unchanged: Vec::new(),
    };
    for nodes in nodes.chunks(APPROVED_AT_ONCE) {
        let approved =
            approve_some(control, project.domain, &requester.subject, (hook, digest), nodes).await?;
        let (approved, unchanged): (Vec<_>, Vec<_>) =
            nodes.iter().copied().partition(|node| approved.contains(node));
        response.approved.extend(approved);
        response.unchanged.extend(unchanged);
    }
    log::info!(hook:% = hook, digest:% = digest, nodes = response.approved.len(); "Approved hook {hook} on {} nodes", response.approved.len());
    Ok(response)
}

/// In a commit of their own. Each node is approved for itself: asked again after a failure, the rest follows.
async fn approve_some(
    control: &Control,
    domain: DomainId,
    by: &str,
    (hook, digest): (&ActionName, Digest),
    nodes: &[NodeId],
) -> Result<BTreeSet<NodeId>, StoreError> {
    let mut tx = control.store.begin().await?;
    let now = Timestamp::now();
    let approved = tx.approve_baselines(nodes, (hook, digest), (by, now)).await?;
    if approved.is_empty() {
        return Ok(approved);
    }
    let entry = |node: &NodeId| {
        Entry::granted(by, "hook.approve", authz::resource(*node)).with(format!("{hook} {digest}"))
    };
    let entries: Vec<_> = approved.iter().map(entry).collect();
    tx.append_audit(domain, &entries, now).await?;
    tx.commit().await?;
    control.outbox_wake.notify_one();
    Ok(approved)
}

/// A reason that says nothing, or too much.
#[derive(Debug, thiserror::Error)]
#[error("the reason has {0} characters that say something; it must have 1 to {ACKNOWLEDGE_REASON_LEN_MAX}")]
pub(crate) struct BadReason(usize);

pub(crate) fn check_reason(reason: &str) -> Result<(), BadReason> {
    let said = if reason.trim().is_empty() {
        0
    } else {
        reason.chars().count()
    };
    if (1..=ACKNOWLEDGE_REASON_LEN_MAX).contains(&said) {
        Ok(())
    } else {
        Err(BadReason(said))
    }
}

/// Notes that somebody looked into a violation. One that was acknowledged before stays as it was, with its first reason.
/// `None` when it is resolved: there is nothing left to look into.
pub(crate) async fn acknowledge(
    control: &Control,
    found: &ViolationRow,
    by: &str,
    reason: &str,
    now: Timestamp,
) -> Result<Option<ViolationRow>, StoreError> {
    let mut tx = control.store.begin().await?;
    if tx.acknowledge_violation(found.id, (by, reason), now).await? {
        let entry = Entry::granted(by, "violation.acknowledge", authz::resource(found.node_id))
            .with(format!("{} of {}: {reason}", found.id, found.artifact_id));
        tx.append_audit(found.domain_id, &[entry], now).await?;
        tx.commit().await?;
    }
    let row = control.store.violation(found.id).await?;
    Ok(row.map(|(row, _)| row).filter(|row| row.status == "acknowledged"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Declared, testing::declares};

    fn manifest(hooks: &[&str], builtins: &[&str]) -> CapabilityManifest {
        let empty: Vec<_> = hooks.iter().map(|name| (*name, "")).collect();
        declares(&empty, builtins, &[])
    }

    #[test]
    fn a_reason_says_something_and_not_too_much() {
        for good in ["x", " looked into it ", &"ü".repeat(ACKNOWLEDGE_REASON_LEN_MAX)] {
            assert!(check_reason(good).is_ok(), "{good}");
        }
        for bad in ["", " \n", &"ü".repeat(ACKNOWLEDGE_REASON_LEN_MAX + 1)] {
            assert!(check_reason(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_checked_and_unique_across_kinds() {
        assert!(check_manifest(&manifest(&["a", "b"], &["ping"])).is_ok());
        assert!(matches!(
            check_manifest(&manifest(&["../a"], &[])),
            Err(ManifestError::HookInvalid(_))
        ));
        assert!(matches!(
            check_manifest(&manifest(&["a", "a"], &[])),
            Err(ManifestError::HookDuplicate(_))
        ));
        assert!(matches!(
            check_manifest(&manifest(&[], &["p", "p"])),
            Err(ManifestError::BuiltinDuplicate(_))
        ));
        assert!(matches!(
            check_manifest(&manifest(&["ping"], &["ping"])),
            Err(ManifestError::BuiltinDuplicate(_))
        ));
        let before = Declared::default();
        assert_eq!(
            before.changed_by(&manifest(&["a"], &["ping"])),
            ["declared_hooks", "builtin_actions"]
        );
        assert!(before.changed_by(&manifest(&[], &[])).is_empty());
        let many: Vec<String> = (0..=HOOKS_PER_NODE_MAX).map(|n| format!("h{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(matches!(
            check_manifest(&manifest(&many, &[])),
            Err(ManifestError::TooManyHooks(_))
        ));
    }
}
