//! Who is asking. Each proof is an extractor, so that a handler which takes one cannot be reached without it, and no
//! body is read before.

mod node;

use axum::{
    extract::{FromRequestParts, MatchedPath, Query, RawPathParams},
    http::{header, request::Parts},
};
use muster_shared::{
    access::OperatorToken,
    ids::{DomainId, ProjectId},
    time::Timestamp,
};
use serde::Deserialize;

use super::{
    denial::{Asked, deny},
    problem::ApiError,
    query, routes,
};
use crate::{
    authz::{self, Grants, Requester},
    control::{Control, Shared},
    keys::{TokenKind, token_hash},
    oidc,
    store::{Presented, Project},
};
pub(super) use node::{Node, parse_node};

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
pub(super) struct Operator {
    pub(super) requester: Requester,
    /// The members of the groups that the issuer puts it in, as subjects.
    pub(super) groups: Vec<String>,
    pub(super) expires_at: Option<Timestamp>,
    /// What this request is called in the audit trail, should it be refused.
    pub(super) relation: &'static str,
}

impl Operator {
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            subject: &self.requester.subject,
            relation: self.relation,
        }
    }
}

impl FromRequestParts<Shared> for Operator {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let bearer = Bearer::from_request_parts(parts, control).await?;
        let identity = Identity::of(control, &bearer).await?;
        control.rates.check(&identity.subject)?;
        check_query(parts)?;
        identity.with_grants(control, relation_of(parts)).await
    }
}

/// Whose token it is, if it counts now.
struct Identity {
    subject: String,
    groups: Vec<String>,
    expires_at: Option<Timestamp>,
}

impl Identity {
    async fn of(control: &Control, Bearer(token): &Bearer) -> Result<Self, ApiError> {
        let now = Timestamp::now();
        let (subject, groups, expires_at) = match &control.oidc {
            Some(oidc) if oidc::is_shaped(token) => {
                let oidc::Caller {
                    subject,
                    groups,
                    expires_at,
                } = oidc.caller(token, now).await?;
                (subject, groups, Some(expires_at))
            }
            Some(_) | None => {
                let token = operator_token(control, token, now).await?;
                (format!("token:{}", token.id), Vec::new(), token.expires_at)
            }
        };
        Ok(Self {
            subject,
            groups,
            expires_at,
        })
    }

    async fn with_grants(self, control: &Control, relation: &'static str) -> Result<Operator, ApiError> {
        let Self {
            subject,
            groups,
            expires_at,
        } = self;
        let subjects: Vec<_> = std::iter::once(&subject).chain(&groups).cloned().collect();
        let grants = Grants::of_all(&subjects, &control.store.tuples_about(&subjects).await?);
        Ok(Operator {
            requester: Requester { subject, grants },
            groups,
            expires_at,
            relation,
        })
    }
}

/// Asks again whether who began to be told of a project may still be: its token, and what it was granted, as they are now.
/// It counts as no request.
pub(super) async fn still_in_project(
    control: &Control,
    bearer: &Bearer,
    (project, relation): (ProjectId, &'static str),
) -> Result<Operator, ApiError> {
    let identity = Identity::of(control, bearer).await?;
    let operator = identity.with_grants(control, relation).await?;
    let _ = visible_project(control, &operator, project).await?;
    Ok(operator)
}

/// The operator token of that secret, if it counts now.
async fn operator_token(control: &Control, secret: &str, now: Timestamp) -> Result<OperatorToken, ApiError> {
    let unknown = || ApiError::unauthorized("unauthenticated", "the token is not one of an operator");
    if !secret.starts_with(TokenKind::Operator.prefix()) {
        return Err(unknown());
    }
    let Presented { token, is_previous } = control
        .store
        .presented_token(token_hash(secret))
        .await?
        .ok_or_else(unknown)?;
    let shut = |code, why: &str, at| ApiError::unauthorized(code, format!("the token {why} at {at}"));
    if let Some(at) = token.revoked_at {
        return Err(shut("token_revoked", "was revoked", at));
    }
    if let Some(at) = token.expires_at.filter(|at| *at <= now) {
        return Err(shut("token_expired", "expired", at));
    }
    if let Some(at) = token.previous_valid_until.filter(|at| is_previous && *at <= now) {
        return Err(shut("token_rotated", "was rotated and ended", at));
    }
    Ok(token)
}

/// Refuses what the operation does not take, and what stands twice: a filter that was mistyped must not match everything
/// in silence, nor a wish such as `dry_run` be overheard.
fn check_query(parts: &Parts) -> Result<(), ApiError> {
    let bad = |why: String| ApiError::bad_request("invalid_query", why);
    let Query(asked) =
        Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map_err(|err| bad(err.to_string()))?;
    if asked.is_empty() {
        return Ok(());
    }
    let known = parts.extensions.get::<MatchedPath>().map_or(&[][..], |path| {
        routes::query_names(parts.method.as_str(), path.as_str())
    });
    for (at, (name, _)) in asked.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            return Err(bad(match known {
                [] => format!("the query has {name:?}, and this operation takes none"),
                known => format!("the query has {name:?}; known here are {}", known.join(", ")),
            }));
        }
        if asked[..at].iter().any(|(before, _)| before == name) {
            return Err(bad(format!("the query has {name:?} twice")));
        }
    }
    Ok(())
}

/// What a refusal of this request is called in the audit trail.
fn relation_of(parts: &Parts) -> &'static str {
    parts.extensions.get::<MatchedPath>().map_or("unknown", |path| {
        routes::relation(parts.method.as_str(), path.as_str())
    })
}

/// An operator who may act in the project that the path names.
pub(super) struct InProject {
    pub(super) operator: Operator,
    pub(super) project: Project,
}

impl FromRequestParts<Shared> for InProject {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let operator = Operator::from_request_parts(parts, control).await?;
        let raw = path_param(parts, control, "project").await?;
        let project = visible_project(control, &operator, parse_project(&raw)?).await?;
        Ok(Self { operator, project })
    }
}

/// A project that does not exist and one that the operator may not see answer alike.
pub(super) fn project_not_found(id: ProjectId) -> ApiError {
    ApiError::not_found(
        "project_not_found",
        format!("there is no project {id} that you may act in"),
    )
}

pub(super) fn parse_project(raw: &str) -> Result<ProjectId, ApiError> {
    raw.parse()
        .map_err(|_| ApiError::bad_request("invalid_project_id", format!("project {raw:?} is not a UUID")))
}

/// A project in which the operator may act; any other answers as one that does not exist.
pub(super) async fn visible_project(
    control: &Control,
    operator: &Operator,
    id: ProjectId,
) -> Result<Project, ApiError> {
    let Some(project) = control.store.project(id).await? else {
        return Err(project_not_found(id));
    };
    if operator.requester.grants.may_act_in(project.domain, project.id) {
        return Ok(project);
    }
    let resource = authz::project(id);
    Err(deny(
        control,
        operator.asked(),
        project.domain,
        resource,
        project_not_found(id),
    )
    .await)
}

impl InProject {
    /// Whether the operator may also change the project itself.
    pub(super) async fn require_operator(&self, control: &Control) -> Result<(), ApiError> {
        let Self { operator, project } = self;
        if operator.requester.grants.may_operate(project.domain, project.id) {
            return Ok(());
        }
        let refusal = ApiError::denied(
            "permission_denied",
            "insufficient_relation",
            "this needs the relation operator on the project or its domain",
        );
        let resource = authz::project(project.id);
        Err(deny(control, operator.asked(), project.domain, resource, refusal).await)
    }
}

/// An operator of the project that the query names, as `project_id`.
pub(super) struct OfProject {
    pub(super) operator: Operator,
    pub(super) project: Project,
}

#[derive(Deserialize)]
struct ProjectQuery {
    project_id: Option<String>,
}

impl FromRequestParts<Shared> for OfProject {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let operator = Operator::from_request_parts(parts, control).await?;
        let query::StrictQuery(query) =
            query::StrictQuery::<ProjectQuery>::from_request_parts(parts, control).await?;
        let project = query
            .project_id
            .ok_or_else(|| ApiError::bad_request("invalid_project_id", "name the project: project_id"))?;
        let project = visible_project(control, &operator, parse_project(&project)?).await?;
        let caller = InProject { operator, project };
        caller.require_operator(control).await?;
        let InProject { operator, project } = caller;
        Ok(Self { operator, project })
    }
}

/// An operator of the domain that the query names, as `domain_id` or by one of its projects, `project_id`.
pub(super) struct InDomain {
    pub(super) operator: Operator,
    pub(super) domain: DomainId,
}

#[derive(Deserialize)]
struct DomainQuery {
    domain_id: Option<String>,
    project_id: Option<String>,
}

impl FromRequestParts<Shared> for InDomain {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, control: &Shared) -> Result<Self, ApiError> {
        let operator = Operator::from_request_parts(parts, control).await?;
        let query::StrictQuery(query) =
            query::StrictQuery::<DomainQuery>::from_request_parts(parts, control).await?;
        let domain = match (query.domain_id, query.project_id) {
            (Some(raw), None) => known_domain(control, &operator, &raw).await?,
            (None, Some(raw)) => {
                visible_project(control, &operator, parse_project(&raw)?)
                    .await?
                    .domain
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(ApiError::bad_request(
                    "invalid_domain_id",
                    "name the domain: domain_id, or project_id of one of its projects",
                ));
            }
        };
        if operator.requester.grants.may_operate_domain(domain) {
            return Ok(Self { operator, domain });
        }
        let refusal = ApiError::denied(
            "permission_denied",
            "insufficient_relation",
            "this needs the relation operator on the domain",
        );
        Err(deny(control, operator.asked(), domain, authz::domain(domain), refusal).await)
    }
}

/// A domain of which the operator may see anything; any other answers as one that does not exist.
async fn known_domain(control: &Control, operator: &Operator, raw: &str) -> Result<DomainId, ApiError> {
    let id: DomainId = raw
        .parse()
        .map_err(|_| ApiError::bad_request("invalid_domain_id", format!("domain {raw:?} is not a UUID")))?;
    let grants = &operator.requester.grants;
    let projects = control.store.all_projects().await?;
    let mut inside = projects.iter().filter(|(domain, _)| *domain == id);
    if grants.may_operate_domain(id) || inside.any(|(domain, project)| grants.may_act_in(*domain, *project)) {
        return Ok(id);
    }
    let refusal = ApiError::not_found(
        "domain_not_found",
        format!("there is no domain {id} that you may act in"),
    );
    if !control.store.all_domains().await?.contains(&id) {
        return Err(refusal);
    }
    Err(deny(control, operator.asked(), id, authz::domain(id), refusal).await)
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
