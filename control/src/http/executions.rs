//! Reading executions: lists of them, and one with its targets and its timeline, each in pages.

use axum::{Json, extract::State};
use muster_shared::{
    ids::{ActionName, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
    wire::{Execution, ExecutionDetail, ExecutionTarget, Page, TimelineEvent},
};
use serde::{Deserialize, Serialize};

use super::{
    auth::InProject,
    cursor::{LIMIT_MAX, List, PageQuery, parse_limit},
    extract::Path,
    problem::ApiError,
    query::{self, StrictQuery},
};
use crate::{
    authz,
    control::{Control, Shared},
    store::{Detail, Found, ListFilter, Targets},
};

pub(super) fn parse_execution(raw: &str) -> Result<ExecutionId, ApiError> {
    raw.parse().map_err(|_| {
        ApiError::bad_request("invalid_execution_id", format!("execution {raw:?} is not a UUID"))
    })
}

pub(super) fn execution_not_found(id: ExecutionId) -> ApiError {
    ApiError::not_found(
        "execution_not_found",
        format!("the project has no execution {id}"),
    )
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    status: Option<String>,
    action_name: Option<String>,
    node_id: Option<String>,
    selector: Option<String>,
    created_after: Option<String>,
    created_before: Option<String>,
    #[serde(skip_serializing)]
    cursor: Option<String>,
    #[serde(skip_serializing)]
    limit: Option<String>,
}

pub(super) async fn list(
    State(control): State<Shared>,
    caller: InProject,
    StrictQuery(query): StrictQuery<ListQuery>,
) -> Result<Json<Page<Execution>>, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    let status: Option<Status> = query::parsed("invalid_status", query.status.as_deref())?;
    let action: Option<ActionName> = query::parsed("invalid_action", query.action_name.as_deref())?;
    let node: Option<NodeId> = query::id("invalid_node_id", query.node_id.as_deref())?;
    let selector = query::selector(query.selector.as_deref())?;
    let created = query::window(query.created_after.as_deref(), query.created_before.as_deref())?;
    let list = in_project(&control, &caller, &("executions", &query));
    let before: Option<(Timestamp, ExecutionId)> = list.position(query.cursor.as_deref()).await?;
    let filter = ListFilter {
        status,
        action: action.as_ref().map(ActionName::as_str),
        node,
        selector: selector.as_ref(),
        created,
        before,
    };
    let Found { items, stopped } = control
        .store
        .executions(caller.project.id, &filter, limit + 1)
        .await?;
    let mut page = list.page(items, limit, |last| (last.created_at, last.id));
    // It is not full, and there may be more all the same.
    if let (None, Some(stopped)) = (&page.next_cursor, stopped) {
        page.next_cursor = Some(list.seal(&stopped));
    }
    Ok(Json(page))
}

fn in_project<'a>(control: &'a Control, caller: &'a InProject, query: &impl Serialize) -> List<'a> {
    let project = &caller.project;
    let place = (project.domain, authz::project(project.id));
    List::new(control, &caller.operator, Some(place), &(project.id, query))
}

pub(super) async fn get(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, raw)): Path<(String, String)>,
) -> Result<Json<ExecutionDetail>, ApiError> {
    let id = parse_execution(&raw)?;
    let bytes_max = control.limits.answer_output_bytes_max;
    let execution = control
        .store
        .execution(caller.project.id, id, Detail::WithOutput { bytes_max })
        .await?
        .ok_or_else(|| execution_not_found(id))?;
    let events = control.store.timeline(id, 0, LIMIT_MAX + 1).await?;
    let timeline = in_project(&control, &caller, &("timeline", id)).page(events, LIMIT_MAX, |last| last.id);
    let more = execution.target_count() > execution.targets.len() as u64;
    let last = execution.targets.last().filter(|_| more);
    let targets = in_project(&control, &caller, &("targets", id));
    Ok(Json(ExecutionDetail {
        targets_cursor: last.map(|last| targets.seal(&last.node_id)),
        timeline: timeline.items,
        timeline_cursor: timeline.next_cursor,
        execution,
    }))
}

/// The targets of one execution, in the order of their nodes' ids.
pub(super) async fn targets(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, raw)): Path<(String, String)>,
    StrictQuery(query): StrictQuery<PageQuery>,
) -> Result<Json<Page<ExecutionTarget>>, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    let id = known(&control, &caller, &raw).await?;
    let list = in_project(&control, &caller, &("targets", id));
    let after: Option<NodeId> = list.position(query.cursor.as_deref()).await?;
    let within = (limit, control.limits.answer_output_bytes_max);
    let Targets { items, more } = control.store.execution_targets(id, after, within).await?;
    let last = items.last().filter(|_| more);
    Ok(Json(Page {
        next_cursor: last.map(|last| list.seal(&last.node_id)),
        items,
    }))
}

/// The transitions of one execution in the order in which they were written, those that came too late among them.
pub(super) async fn timeline(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, raw)): Path<(String, String)>,
    StrictQuery(query): StrictQuery<PageQuery>,
) -> Result<Json<Page<TimelineEvent>>, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    let id = known(&control, &caller, &raw).await?;
    let list = in_project(&control, &caller, &("timeline", id));
    let after: Option<i64> = list.position(query.cursor.as_deref()).await?;
    let rows = control.store.timeline(id, after.unwrap_or(0), limit + 1).await?;
    Ok(Json(list.page(rows, limit, |last| last.id)))
}

async fn known(control: &Control, caller: &InProject, raw: &str) -> Result<ExecutionId, ApiError> {
    let id = parse_execution(raw)?;
    let header = control.store.header(caller.project.id, id).await?;
    header.map(|_| id).ok_or_else(|| execution_not_found(id))
}
