//! Tokens and relation tuples, as operators manage them.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use muster_shared::{
    access::{
        AuthConfig, BootstrapTokenState, CheckRequest, CheckResponse, CreateOperatorTokenRequest,
        OperatorToken, OperatorTokenSecret, RelationTuple, RelationTupleCreateRequest, RotateTokenRequest,
        WhoAmI,
    },
    ids::RowId,
    time::Timestamp,
    wire::{IssueTokenRequest, Page},
};
use serde::{Deserialize, Serialize};

use super::{
    auth::{InDomain, InProject, OfProject, Operator},
    body::{OPERATOR_BODY_BYTES_MAX, read_json},
    cursor::{List, parse_limit},
    denial::{deny, refuse},
    extract::Path,
    problem::ApiError,
    query::StrictQuery,
};
use crate::{
    access, authz,
    control::{Control, Shared},
    enroll,
};

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessQuery {
    domain_id: Option<String>,
    project_id: Option<String>,
    #[serde(skip_serializing)]
    cursor: Option<String>,
    #[serde(skip_serializing)]
    limit: Option<String>,
}

impl AccessQuery {
    async fn read(&self, list: &List<'_>) -> Result<(Option<RowId>, u32), ApiError> {
        let after = list.position(self.cursor.as_deref()).await?;
        Ok((after, parse_limit(self.limit.as_deref())?))
    }
}

fn parse_id(code: &'static str, raw: &str) -> Result<RowId, ApiError> {
    raw.parse()
        .map_err(|_| ApiError::bad_request(code, format!("{raw:?} is not a UUID")))
}

// ---- operator tokens

pub(super) async fn list_operator_tokens(
    State(control): State<Shared>,
    InDomain { operator, domain }: InDomain,
    StrictQuery(query): StrictQuery<AccessQuery>,
) -> Result<Json<Page<OperatorToken>>, ApiError> {
    let place = (domain, authz::domain(domain));
    let list = List::new(
        &control,
        &operator,
        Some(place),
        &("operator-tokens", domain, &query),
    );
    let (after, limit) = query.read(&list).await?;
    let rows = control.store.operator_tokens(domain, after, limit + 1).await?;
    Ok(Json(list.page(rows, limit, |token| token.id)))
}

pub(super) async fn create_operator_token(
    State(control): State<Shared>,
    InDomain { operator, domain }: InDomain,
    body: Body,
) -> Result<Response, ApiError> {
    let request: CreateOperatorTokenRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let made = access::issue(
        &control,
        domain,
        &operator.requester.subject,
        request,
        Timestamp::now(),
    )
    .await;
    match made {
        Ok(made) => Ok((StatusCode::CREATED, Json(made)).into_response()),
        Err(err) => {
            let resource = authz::domain(domain);
            Err(refuse(&control, operator.asked(), domain, resource, err.into()).await)
        }
    }
}

/// A token of a domain that the caller operates; any other answers as one that does not exist.
async fn operated_token(
    control: &Control,
    operator: &Operator,
    raw: &str,
) -> Result<OperatorToken, ApiError> {
    let id = parse_id("invalid_token_id", raw)?;
    let unknown = || {
        ApiError::not_found(
            "token_not_found",
            format!("there is no operator token {id} in a domain that you operate"),
        )
    };
    let token = control.store.operator_token_of(id).await?.ok_or_else(unknown)?;
    if operator.requester.grants.may_operate_domain(token.domain_id) {
        return Ok(token);
    }
    let resource = format!("token:{id}");
    Err(deny(control, operator.asked(), token.domain_id, resource, unknown()).await)
}

pub(super) async fn revoke_operator_token(
    State(control): State<Shared>,
    operator: Operator,
    Path(raw): Path<String>,
) -> Result<Json<OperatorToken>, ApiError> {
    let token = operated_token(&control, &operator, &raw).await?;
    let revoked = access::revoke(&control, &token, &operator.requester.subject, Timestamp::now()).await;
    if let Err(err) = revoked {
        let resource = format!("token:{}", token.id);
        return Err(refuse(&control, operator.asked(), token.domain_id, resource, err.into()).await);
    }
    operated_token(&control, &operator, &raw)
        .await
        .map(Json)
        .or_else(|err| {
            // Whoever revokes itself operates nothing any more, and is told what it did all the same.
            if operator.requester.subject == format!("token:{}", token.id) {
                return Ok(Json(OperatorToken {
                    revoked_at: Some(Timestamp::now()),
                    ..token
                }));
            }
            Err(err)
        })
}

pub(super) async fn rotate_operator_token(
    State(control): State<Shared>,
    operator: Operator,
    Path(raw): Path<String>,
    body: Body,
) -> Result<Json<OperatorTokenSecret>, ApiError> {
    let token = operated_token(&control, &operator, &raw).await?;
    let request: RotateTokenRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let by = &operator.requester.subject;
    match access::rotate(&control, &token, by, request.overlap_seconds, Timestamp::now()).await {
        Ok(rotated) => Ok(Json(rotated)),
        Err(err) => {
            let resource = format!("token:{}", token.id);
            Err(refuse(&control, operator.asked(), token.domain_id, resource, err.into()).await)
        }
    }
}

// ---- bootstrap tokens

pub(super) async fn issue_token(
    State(control): State<Shared>,
    caller: InProject,
    body: Body,
) -> Result<Response, ApiError> {
    caller.require_operator(&control).await?;
    let request: IssueTokenRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let token = enroll::issue(
        &control,
        &caller.project,
        &caller.operator.requester.subject,
        request,
        Timestamp::now(),
    )
    .await?;
    Ok((StatusCode::CREATED, Json(token)).into_response())
}

pub(super) async fn list_bootstrap_tokens(
    State(control): State<Shared>,
    caller: InProject,
    StrictQuery(query): StrictQuery<AccessQuery>,
) -> Result<Json<Page<BootstrapTokenState>>, ApiError> {
    caller.require_operator(&control).await?;
    let InProject { operator, project } = &caller;
    let place = (project.domain, authz::project(project.id));
    let bound = ("bootstrap-tokens", project.id, &query);
    let list = List::new(&control, operator, Some(place), &bound);
    let (after, limit) = query.read(&list).await?;
    let rows = control
        .store
        .bootstrap_tokens(project.id, after, limit + 1)
        .await?;
    Ok(Json(list.page(rows, limit, |token| token.id)))
}

pub(super) async fn revoke_bootstrap_token(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, raw)): Path<(String, String)>,
) -> Result<Json<BootstrapTokenState>, ApiError> {
    caller.require_operator(&control).await?;
    let id = parse_id("invalid_token_id", &raw)?;
    let by = &caller.operator.requester.subject;
    let revoked = access::revoke_bootstrap(&control, &caller.project, by, id, Timestamp::now()).await?;
    revoked.map(Json).ok_or_else(|| {
        ApiError::not_found(
            "token_not_found",
            format!("the project has no bootstrap token {id}"),
        )
    })
}

// ---- relation tuples

pub(super) async fn list_tuples(
    State(control): State<Shared>,
    OfProject { operator, project }: OfProject,
    StrictQuery(query): StrictQuery<AccessQuery>,
) -> Result<Json<Page<RelationTuple>>, ApiError> {
    let requester = &operator.requester;
    let place = (project.domain, authz::project(project.id));
    let list = List::new(&control, &operator, Some(place), &("tuples", project.id, &query));
    let (after, limit) = query.read(&list).await?;
    let of_domain_too = requester.grants.may_operate_domain(project.domain);
    let rows = control
        .store
        .relation_tuples((project.domain, project.id), of_domain_too, after, limit + 1)
        .await?;
    Ok(Json(list.page(rows, limit, |tuple| tuple.id)))
}

pub(super) async fn create_tuple(
    State(control): State<Shared>,
    OfProject { operator, project }: OfProject,
    body: Body,
) -> Result<Response, ApiError> {
    let request: RelationTupleCreateRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let requester = &operator.requester;
    let caller = (&*requester.subject, &requester.grants);
    match access::grant(&control, &project, caller, &request, Timestamp::now()).await {
        Ok(tuple) => Ok((StatusCode::CREATED, Json(tuple)).into_response()),
        Err(err) => {
            let resource = authz::project(project.id);
            Err(refuse(&control, operator.asked(), project.domain, resource, err.into()).await)
        }
    }
}

pub(super) async fn delete_tuple(
    State(control): State<Shared>,
    OfProject { operator, project }: OfProject,
    Path(raw): Path<String>,
) -> Result<Json<RelationTuple>, ApiError> {
    let id = parse_id("invalid_tuple_id", &raw)?;
    let requester = &operator.requester;
    let caller = (&*requester.subject, &requester.grants);
    match access::ungrant(&control, &project, caller, id, Timestamp::now()).await {
        Ok(Some(tuple)) => Ok(Json(tuple)),
        Ok(None) => Err(ApiError::not_found(
            "tuple_not_found",
            format!("there is no tuple {id} that you may delete"),
        )),
        Err(err) => {
            let resource = authz::project(project.id);
            Err(refuse(&control, operator.asked(), project.domain, resource, err.into()).await)
        }
    }
}

pub(super) async fn check(
    State(control): State<Shared>,
    operator: Operator,
    body: Body,
) -> Result<Json<CheckResponse>, ApiError> {
    let request: CheckRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let requester = &operator.requester;
    let caller = (&*requester.subject, &requester.grants);
    Ok(Json(
        access::check(&control, caller, &request, Timestamp::now()).await?,
    ))
}

// ---- signing in

/// How to sign in, for whoever has no token yet.
pub(super) async fn auth_config(State(control): State<Shared>) -> Json<AuthConfig> {
    Json(AuthConfig {
        oidc: control.oidc.as_ref().map(|oidc| oidc.config()),
    })
}

pub(super) async fn whoami(operator: Operator) -> Json<WhoAmI> {
    Json(WhoAmI {
        subject: operator.requester.subject,
        groups: operator.groups,
        expires_at: operator.expires_at,
    })
}
