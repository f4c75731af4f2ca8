//! Refusals as evidence: the row is durable before the answer is sent, and both carry one correlation id.

use muster_shared::{ids::DomainId, time::Timestamp};

use super::{auth::Node, problem::ApiError};
use crate::{
    audit::{self, Entry, Outcome},
    authz,
    control::Control,
    refusals::{self, Kind, Refused, Turn},
};

/// Who asked for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) subject: &'a str,
    pub(super) relation: &'static str,
}

/// A denial. It is an outcome by itself, however it is answered: what a caller may not see answers as missing.
pub(super) async fn deny(
    control: &Control,
    asked: Asked<'_>,
    domain: DomainId,
    resource: String,
    refusal: ApiError,
) -> ApiError {
    write(
        control,
        asked,
        domain,
        (resource, Outcome::PermissionDenied),
        refusal,
    )
    .await
}

/// A refusal by what the operation found. A request that makes no sense is no evidence, and gets no row.
pub(super) async fn refuse(
    control: &Control,
    asked: Asked<'_>,
    domain: DomainId,
    resource: String,
    refusal: ApiError,
) -> ApiError {
    match refusal.outcome() {
        Some(outcome) => write(control, asked, domain, (resource, outcome), refusal).await,
        None => refusal,
    }
}

/// The same of a node. A program never tires of being refused: past its bucket a refusal is answered as ever, and counted.
pub(super) async fn refuse_node(
    control: &Control,
    (node, relation): (&Node, &'static str),
    resource: String,
    refusal: ApiError,
) -> ApiError {
    let Some(outcome) = refusal.outcome() else {
        return refusal;
    };
    let who = Refused {
        subject: &node.subject,
        domain: node.domain,
        about: &authz::resource(node.id),
    };
    let why = refusal.code();
    match refusals::turn(control, who, Kind { relation, why }, outcome) {
        Turn::Written => {
            let subject = &node.subject;
            let asked = Asked { subject, relation };
            write(control, asked, node.domain, (resource, outcome), refusal).await
        }
        Turn::Counted => refusal,
    }
}

async fn write(
    control: &Control,
    asked: Asked<'_>,
    domain: DomainId,
    (resource, outcome): (String, Outcome),
    refusal: ApiError,
) -> ApiError {
    let refusal = refusal.correlated();
    let mut entry = Entry::new(asked.subject, asked.relation, resource, outcome).with(refusal.detail());
    entry.correlation = refusal.correlation();
    match audit::record(control, domain, &[entry], Timestamp::now()).await {
        Ok(()) => refusal,
        // The caller must not take an unrecorded refusal for a recorded one.
        Err(err) => err.into(),
    }
}
