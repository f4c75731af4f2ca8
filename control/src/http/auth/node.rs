//! Which node is asking, and which of its daemons.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, request::Parts},
};
use muster_shared::{
    ids::{Digest, DomainId, NodeId},
    time::Timestamp,
    wire::{INSTANCE_HEADER, INSTANCES_BEFORE_HEADER, INSTANCES_NAMED_MAX},
};
use uuid::Uuid;

use super::{Bearer, path_param};
use crate::{
    audit,
    control::{Control, Shared},
    http::problem::ApiError,
    instances::{self, Claim},
    keys::token_hash,
    nsk::{self, KeyOwner, Standing},
};

/// A node that showed its NSK.
pub(in crate::http) struct Node {
    pub(in crate::http) id: NodeId,
    pub(in crate::http) domain: DomainId,
    /// The node as a subject of the audit trail.
    pub(in crate::http) subject: String,
    /// What is known of the key that it showed.
    pub(in crate::http) key: KeyOwner,
    pub(in crate::http) shown: Digest,
    /// The node that the path names.
    named: NodeId,
}

impl FromRequestParts<Shared> for Node {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let Bearer(nsk) = Bearer::from_request_parts(parts, control).await?;
        let raw = path_param(parts, control, "node").await?;
        let (shown, now) = (token_hash(&nsk), Timestamp::now());
        let key = control
            .store
            .owner_of_nsk(shown)
            .await?
            .ok_or_else(|| ApiError::unauthorized("unauthenticated", unknown_nsk(control)))?;
        control.node_rates.check(&key.node)?;
        if key.decommissioned {
            return Err(ApiError::unauthorized(
                "nsk_revoked",
                "the node was decommissioned",
            ));
        }
        let named = parse_node(&raw)?;
        match key.standing {
            Standing::Previous(until) if until <= now => {
                let why = format!(
                    "the NSK was changed at {}, and this one ended at {until}",
                    key.since
                );
                return Err(ApiError::unauthorized("nsk_rotated", why));
            }
            // Who speaks of another node changes nothing of its own.
            Standing::Next if named == key.node => Box::pin(nsk::promote(control, &key, shown, now)).await?,
            Standing::Next | Standing::Current | Standing::Previous(_) => {}
        }
        if let Some(claim) = claim_of(&parts.headers)?.filter(|_| named == key.node) {
            instances::admit(control, &key, &claim, now).await?;
        }
        Ok(Self {
            id: key.node,
            domain: key.domain,
            subject: audit::node_subject(key.node),
            key,
            shown,
            named,
        })
    }
}

/// A control that was restored has forgotten the keys that came later, and nothing but an enrolment brings them back.
fn unknown_nsk(control: &Control) -> String {
    match &control.restored {
        None => "no node has this NSK".to_owned(),
        Some(mark) => format!(
            "no node has this NSK; this control was restored from a backup of {}, and knows no key that was made or changed \
             later: enrol such a node anew with musterd enroll --force, which keeps its journal under earlier/",
            mark.taken_at
        ),
    }
}

/// What the daemon says of itself. Clients of the published surface say nothing.
fn claim_of(headers: &HeaderMap) -> Result<Option<Claim>, ApiError> {
    let bad = || {
        let why = format!(
            "{INSTANCE_HEADER} must be a UUID, and {INSTANCES_BEFORE_HEADER} up to {INSTANCES_NAMED_MAX} of them"
        );
        ApiError::bad_request("invalid_instance", why)
    };
    let Some(instance) = headers.get(INSTANCE_HEADER) else {
        return Ok(None);
    };
    let read = |value: &HeaderValue| -> Option<Vec<Uuid>> {
        let text = value.to_str().ok()?;
        let named = text.split(',').filter(|one| !one.is_empty());
        named.map(|one| one.trim().parse().ok()).collect()
    };
    let [instance] = read(instance).ok_or_else(bad)?[..] else {
        return Err(bad());
    };
    let after = headers
        .get(INSTANCES_BEFORE_HEADER)
        .map(|value| read(value).ok_or_else(bad));
    let after = after.transpose()?.unwrap_or_default();
    if after.len() > INSTANCES_NAMED_MAX {
        return Err(bad());
    }
    Ok(Some(Claim { instance, after }))
}

impl Node {
    /// The path must name the node that asks; `code` is what the operation calls it when not.
    pub(in crate::http) fn require_own_path(&self, code: &'static str) -> Result<(), ApiError> {
        if self.id == self.named {
            return Ok(());
        }
        Err(ApiError::denied(
            code,
            "out_of_scope",
            "the NSK belongs to another node",
        ))
    }
}

pub(in crate::http) fn parse_node(raw: &str) -> Result<NodeId, ApiError> {
    raw.parse()
        .map_err(|_| ApiError::bad_request("invalid_node_id", format!("node {raw:?} is not a UUID")))
}
