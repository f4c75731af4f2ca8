//! What is written down of who asked for what. A row commits with the change it describes; a refusal gets a commit of its own,
//! or that of the evidence that it leaves, before its answer is sent. A row that cannot be written fails what it describes:
//! nothing passes unrecorded.

use muster_shared::{
    audit::{Anchor, Broken, Walk},
    ids::{DomainId, ExecutionId, NodeId, RowId},
    message_id::AUDIT_NOT_WRITTEN,
    time::Timestamp,
};

use crate::{
    control::Control,
    error_chain,
    keys::chance,
    store::{Store, StoreError},
};

/// Who does what no caller asked for.
pub(crate) const SYSTEM: &str = "system";
/// How many rows a verification reads at a time.
const VERIFY_BATCH: u32 = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Granted,
    /// Of the dispatch service: one node of a cohort was left out.
    Denied,
    PermissionDenied,
    InvariantViolation,
    InternalError,
}

impl Outcome {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::PermissionDenied => "permission_denied",
            Self::InvariantViolation => "invariant_violation",
            Self::InternalError => "internal_error",
        }
    }
}

/// A row to be: its place in the chain is found when it is written.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) subject: &'a str,
    pub(crate) relation: &'static str,
    pub(crate) resource: String,
    pub(crate) outcome: Outcome,
    pub(crate) detail: Option<String>,
    pub(crate) correlation: Option<RowId>,
}

impl<'a> Entry<'a> {
    pub(crate) const fn new(
        subject: &'a str,
        relation: &'static str,
        resource: String,
        outcome: Outcome,
    ) -> Self {
        Self {
            subject,
            relation,
            resource,
            outcome,
            detail: None,
            correlation: None,
        }
    }

    pub(crate) const fn granted(subject: &'a str, relation: &'static str, resource: String) -> Self {
        Self::new(subject, relation, resource, Outcome::Granted)
    }

    pub(crate) fn with(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

/// What a refusal and its row are found by. Without chance there is none, and the row stands all the same.
pub(crate) fn correlation(now: Timestamp) -> Option<RowId> {
    chance().ok().map(|chance| RowId::mint(now, chance))
}

/// A node that reports, as a subject. What is done to it has the resource `resource:…`.
pub(crate) fn node_subject(node: NodeId) -> String {
    format!("node:{node}")
}

pub(crate) fn execution_resource(execution: ExecutionId) -> String {
    format!("execution:{execution}")
}

/// Writes rows of what changed nothing, in a commit of their own.
pub(crate) async fn record(
    control: &Control,
    domain: DomainId,
    entries: &[Entry<'_>],
    now: Timestamp,
) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    let written = async {
        let mut tx = control.store.begin().await?;
        tx.append_audit(domain, entries, now).await?;
        tx.commit().await
    };
    written.await.inspect_err(|err| {
        let relation = entries[0].relation;
        log::error!(message_id = AUDIT_NOT_WRITTEN, relation, domain_id:% = domain;
            "An audit row could not be written: {}", error_chain(err));
    })
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum VerifyError {
    #[error("the audit chain of domain {domain} is broken")]
    Broken { domain: DomainId, source: Broken },
    #[error("the audit rows could not be read")]
    Store(#[from] StoreError),
}

/// Walks the chain of one domain to its end. Answers with the last row, and the last that was pruned before the others.
pub(crate) async fn verify(store: &Store, domain: DomainId) -> Result<(Anchor, Option<Anchor>), VerifyError> {
    let broken = |source| VerifyError::Broken { domain, source };
    let (_, ends) = store.audit_oldest_first(domain, 0, 0).await?;
    let mut walk = Walk::new(ends.head, None);
    loop {
        let (rows, ends) = store
            .audit_oldest_first(domain, walk.last().seq, VERIFY_BATCH)
            .await?;
        walk.begins_after(ends.pruned).map_err(broken)?;
        if rows.is_empty() {
            walk.end(ends.head).map_err(broken)?;
            return Ok((walk.last(), ends.pruned));
        }
        for row in &rows {
            walk.step(row).map_err(broken)?;
        }
    }
}
