//! The actions that nodes declare, and the hooks among them as they are and as they were approved.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use muster_shared::{
    ids::{ActionName, NodeId},
    wire::{ACTION_NODES_MAX, ActionDetail, ApproveRequest, HookState, Page},
};

use super::{
    auth::InProject,
    body::{OPERATOR_BODY_BYTES_MAX, read_json},
    cursor::{List, PageQuery, parse_limit},
    extract::Path,
    problem::ApiError,
    query::StrictQuery,
};
use crate::{authz, control::Shared, integrity, target::Target};

pub(super) async fn list_hooks(
    State(control): State<Shared>,
    caller: InProject,
    StrictQuery(query): StrictQuery<PageQuery>,
) -> Result<Json<Page<HookState>>, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    let InProject { operator, project } = &caller;
    let place = (project.domain, authz::project(project.id));
    let list = List::new(&control, operator, Some(place), &("hooks", project.id));
    let after: Option<(String, NodeId)> = list.position(query.cursor.as_deref()).await?;
    let after = after.as_ref().map(|(name, node)| (name.as_str(), *node));
    let hooks = control.store.hook_states(project.id, after, limit + 1).await?;
    let mut page = list.page(hooks, limit, |last| (last.name.to_string(), last.node_id));
    let grants = operator.requester.grants.in_project(project.domain, project.id);
    page.items.retain(|hook| grants.may_act_on(hook.node_id));
    Ok(Json(page))
}

pub(super) async fn get_action(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, action)): Path<(String, String)>,
) -> Result<Json<ActionDetail>, ApiError> {
    let name: ActionName = action
        .parse()
        .map_err(|err| ApiError::bad_request("invalid_action", format!("{err}")))?;
    let mut nodes = control
        .store
        .action_on_nodes(caller.project.id, &name, ACTION_NODES_MAX + 1)
        .await?;
    let listed = usize::try_from(ACTION_NODES_MAX).unwrap_or(usize::MAX);
    let more = nodes.len() > listed;
    nodes.truncate(listed);
    let InProject { operator, project } = &caller;
    let grants = operator.requester.grants.in_project(project.domain, project.id);
    nodes.retain(|node| grants.may_act_on(node.node_id));
    if nodes.is_empty() && !more {
        return Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "action_not_found",
            format!("no node that you may act on declares action {name}"),
        ));
    }
    Ok(Json(ActionDetail { name, more, nodes }))
}

pub(super) async fn approve_hook(
    State(control): State<Shared>,
    caller: InProject,
    Path((_, hook)): Path<(String, String)>,
    body: Body,
) -> Result<Response, ApiError> {
    caller.require_operator(&control).await?;
    let hook: ActionName = hook
        .parse()
        .map_err(|err| ApiError::bad_request("invalid_action", format!("{err}")))?;
    let request: ApproveRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let target = Target::parse(
        request.selector.as_deref(),
        request.node_id.as_deref(),
        request.all,
    )?;
    let answer = integrity::approve(
        &control,
        &caller.project,
        &caller.operator.requester,
        (&hook, request.digest, &target),
    )
    .await?;
    if answer.approved.is_empty() && answer.unchanged.is_empty() {
        return Err(ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "selector_empty_cohort",
            "no node that you may act on matches",
        ));
    }
    Ok(Json(answer).into_response())
}
