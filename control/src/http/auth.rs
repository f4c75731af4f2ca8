//! Who is asking. Each proof is an extractor, so that a handler which takes one cannot be reached without it, and no
//! body is read before.

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::{header, request::Parts},
};
use muster_shared::{
    ids::{DomainId, NodeId, ProjectId},
    time::Timestamp,
};

use super::{operator::project_not_found, problem::ApiError};
use crate::{
    control::Shared,
    dispatch::Requester,
    keys::{TokenKind, token_hash},
    store::Project,
};

/// The bearer token of a request.
pub(super) struct Bearer(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Bearer {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
            .map(|(_, token)| Self(token.trim().to_owned()))
            .ok_or_else(|| ApiError::unauthorized("unauthenticated", "send a token: Authorization: Bearer …"))
    }
}

/// An operator with a token that holds now.
pub(super) struct Operator(pub(super) Requester);

impl FromRequestParts<Shared> for Operator {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let Bearer(token) = Bearer::from_request_parts(parts, control).await?;
        let unknown = || ApiError::unauthorized("unauthenticated", "the token is not one of an operator");
        if !token.starts_with(TokenKind::Operator.prefix()) {
            return Err(unknown());
        }
        let known = control
            .store
            .operator_token(token_hash(&token))
            .await?
            .ok_or_else(unknown)?;
        if let Some(at) = known.revoked_at {
            return Err(ApiError::unauthorized(
                "token_revoked",
                format!("the token was revoked at {at}"),
            ));
        }
        if let Some(at) = known.expires_at.filter(|at| *at <= Timestamp::now()) {
            return Err(ApiError::unauthorized(
                "token_expired",
                format!("the token expired at {at}"),
            ));
        }
        let subject = format!("token:{}", known.id);
        control.rates.check(&subject)?;
        let grants = control.store.grants(&subject).await?;
        Ok(Self(Requester { subject, grants }))
    }
}

/// An operator who may act in the project that the path names.
pub(super) struct InProject {
    pub(super) requester: Requester,
    pub(super) project: Project,
}

impl FromRequestParts<Shared> for InProject {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let Operator(requester) = Operator::from_request_parts(parts, control).await?;
        let raw = path_param(parts, control, "project").await?;
        let id: ProjectId = raw.parse().map_err(|_| {
            ApiError::bad_request("invalid_project_id", format!("project {raw:?} is not a UUID"))
        })?;
        let project = control.store.project(id).await?;
        match project {
            Some(project) if requester.grants.may_act_in(project.domain, project.id) => {
                Ok(Self { requester, project })
            }
            Some(_) | None => Err(project_not_found(id)),
        }
    }
}

impl InProject {
    /// Whether the operator may also change the project itself.
    pub(super) fn require_operator(&self) -> Result<(), ApiError> {
        if self
            .requester
            .grants
            .may_operate(self.project.domain, self.project.id)
        {
            return Ok(());
        }
        Err(ApiError::denied(
            "permission_denied",
            "insufficient_relation",
            "this needs the relation operator on the project or its domain",
        ))
    }
}

/// A node that showed its NSK.
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) domain: DomainId,
    /// The node that the path names.
    named: NodeId,
}

impl FromRequestParts<Shared> for Node {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let Bearer(nsk) = Bearer::from_request_parts(parts, control).await?;
        let raw = path_param(parts, control, "node").await?;
        let known = control.store.node_of_nsk(token_hash(&nsk)).await?;
        let (id, domain) = match known {
            Some((id, domain, false)) => (id, domain),
            Some((_, _, true)) => {
                return Err(ApiError::unauthorized(
                    "nsk_revoked",
                    "the node was decommissioned",
                ));
            }
            None => return Err(ApiError::unauthorized("unauthenticated", "no node has this NSK")),
        };
        let named = parse_node(&raw)?;
        Ok(Self { id, domain, named })
    }
}

impl Node {
    /// The path must name the node that asks; `code` is what the operation calls it when not.
    pub(super) fn require_own_path(&self, code: &'static str) -> Result<(), ApiError> {
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

pub(super) fn parse_node(raw: &str) -> Result<NodeId, ApiError> {
    raw.parse()
        .map_err(|_| ApiError::bad_request("invalid_node_id", format!("node {raw:?} is not a UUID")))
}

async fn path_param(parts: &mut Parts, control: &Shared, name: &str) -> Result<String, ApiError> {
    let params = RawPathParams::from_request_parts(parts, control)
        .await
        .map_err(|err| ApiError::bad_request("invalid_path", err.to_string()))?;
    params
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned())
        .ok_or_else(|| ApiError::not_found("not_found", "the path lacks a part"))
}
