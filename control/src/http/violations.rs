//! Integrity violations: read, and acknowledged by whoever looked into one.

use axum::{Json, body::Body, extract::State, http::StatusCode};
use muster_shared::{
    ids::{ProjectId, RowId},
    time::Timestamp,
    wire::{AcknowledgeRequest, Page, ViolationRow},
};
use serde::{Deserialize, Serialize};

use super::{
    auth::{Operator, parse_node},
    body::{OPERATOR_BODY_BYTES_MAX, read_json},
    cursor::{List, parse_limit},
    denial::{deny, refuse},
    extract::Path,
    nodes::{place_of, visible_projects},
    problem::ApiError,
    query::{StrictQuery, one_of},
};
use crate::{authz, control::Shared, integrity, store::ViolationFilter};

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ViolationsQuery {
    domain_id: Option<String>,
    project_id: Option<String>,
    node_id: Option<String>,
    kind: Option<String>,
    status: Option<String>,
    #[serde(skip_serializing)]
    cursor: Option<String>,
    #[serde(skip_serializing)]
    limit: Option<String>,
}

pub(super) async fn list(
    State(control): State<Shared>,
    operator: Operator,
    StrictQuery(query): StrictQuery<ViolationsQuery>,
) -> Result<Json<Page<ViolationRow>>, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    one_of(
        "invalid_kind",
        query.kind.as_deref(),
        &["binary", "hook", "host_key"],
    )?;
    one_of(
        "invalid_status",
        query.status.as_deref(),
        &["open", "acknowledged", "resolved"],
    )?;
    let projects = visible_projects(
        &control,
        &operator,
        query.domain_id.as_deref(),
        query.project_id.as_deref(),
    )
    .await?;
    let list = List::new(&control, &operator, place_of(&projects), &("violations", &query));
    let before: Option<RowId> = list.position(query.cursor.as_deref()).await?;
    let projects: Vec<ProjectId> = projects.into_iter().map(|(_, project)| project).collect();
    let filter = ViolationFilter {
        node: query.node_id.as_deref().map(parse_node).transpose()?,
        status: query.status.as_deref(),
        kind: query.kind.as_deref(),
        before,
    };
    let rows = control.store.violations(&projects, &filter, limit + 1).await?;
    let Page { items, next_cursor } = list.page(rows, limit, |(last, _)| last.id);
    let items = items
        .into_iter()
        .filter(|(row, project)| {
            let grants = operator.requester.grants.in_project(row.domain_id, *project);
            grants.may_act_on(row.node_id)
        })
        .map(|(row, _)| row)
        .collect();
    Ok(Json(Page { items, next_cursor }))
}

/// A violation of a node that the operator may not act on answers as one that does not exist.
pub(super) async fn acknowledge(
    State(control): State<Shared>,
    operator: Operator,
    Path(raw): Path<String>,
    body: Body,
) -> Result<Json<ViolationRow>, ApiError> {
    let id: RowId = raw.parse().map_err(|_| {
        ApiError::bad_request("invalid_violation_id", format!("violation {raw:?} is not a UUID"))
    })?;
    let unknown = || {
        ApiError::not_found(
            "violation_not_found",
            format!("there is no violation {id} of a node that you may act on"),
        )
    };
    let (found, project) = control.store.violation(id).await?.ok_or_else(unknown)?;
    let (domain, resource) = (found.domain_id, authz::resource(found.node_id));
    let grants = &operator.requester.grants;
    if !grants.in_project(domain, project).may_act_on(found.node_id) {
        return Err(deny(&control, operator.asked(), domain, resource, unknown()).await);
    }
    if !grants.may_operate(domain, project) {
        let why = "acknowledging a violation needs the relation operator on the project or its domain";
        let refusal = ApiError::denied("permission_denied", "insufficient_relation", why);
        return Err(deny(&control, operator.asked(), domain, resource, refusal).await);
    }
    let request: AcknowledgeRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    integrity::check_reason(&request.reason)
        .map_err(|err| ApiError::bad_request("invalid_reason", err.to_string()))?;
    let by = &operator.requester.subject;
    match integrity::acknowledge(&control, &found, by, &request.reason, Timestamp::now()).await? {
        Some(row) => Ok(Json(row)),
        None => {
            let refusal = ApiError::new(
                StatusCode::CONFLICT,
                "violation_resolved",
                format!("violation {id} was resolved: its digest was approved since"),
            );
            Err(refuse(&control, operator.asked(), domain, resource, refusal).await)
        }
    }
}
