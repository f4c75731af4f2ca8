//! Nodes as operators see and change them, and the selectors that name them.

use axum::{Json, body::Body, extract::State};
use muster_shared::{
    ids::{DomainId, NodeId, ProjectId},
    labels::{self, LABELS_PER_NODE_MAX},
    selector::Selector,
    time::Timestamp,
    wire::{LabelPatch, NodeSummary, Page, SelectorError, SelectorPreviewRequest, SelectorPreviewResponse},
};
use serde::{Deserialize, Serialize};

use super::{
    auth::{Operator, parse_node, parse_project, project_not_found, visible_project},
    body::{OPERATOR_BODY_BYTES_MAX, read_json},
    cursor::{List, parse_limit},
    denial::deny,
    extract::Path,
    problem::ApiError,
    query::{self, StrictQuery},
};
use crate::{
    audit::Entry,
    authz,
    control::{Control, Shared},
    decommission,
    store::{NodeFilter, NodeRecord},
};

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodesQuery {
    domain_id: Option<String>,
    project_id: Option<String>,
    selector: Option<String>,
    connected: Option<String>,
    #[serde(skip_serializing)]
    cursor: Option<String>,
    #[serde(skip_serializing)]
    limit: Option<String>,
}

/// A page may be shorter than its limit, and empty: some nodes are left out only after they were read. The list ends where
/// there is no cursor.
pub(super) async fn list_nodes(
    State(control): State<Shared>,
    operator: Operator,
    StrictQuery(query): StrictQuery<NodesQuery>,
) -> Result<Json<Page<NodeSummary>>, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    let selector = query::selector(query.selector.as_deref())?;
    query::one_of(
        "invalid_connected",
        query.connected.as_deref(),
        &["true", "false"],
    )?;
    let connected = query.connected.as_deref().map(|raw| raw == "true");
    let projects = visible_projects(
        &control,
        &operator,
        query.domain_id.as_deref(),
        query.project_id.as_deref(),
    )
    .await?;
    let list = List::new(&control, &operator, place_of(&projects), &("nodes", &query));
    let after: Option<NodeId> = list.position(query.cursor.as_deref()).await?;
    let ids: Vec<ProjectId> = projects.iter().map(|(_, project)| *project).collect();
    let filter = NodeFilter {
        projects: &ids,
        selector: selector.as_ref(),
        after,
        limit: Some(limit + 1),
        ..NodeFilter::default()
    };
    let nodes = control.store.nodes(&filter).await?;
    let Page { items, next_cursor } = list.page(nodes, limit, |last| last.id);
    let items = items
        .into_iter()
        .filter(|node| {
            let grants = operator.requester.grants.in_project(node.domain, node.project);
            grants.may_act_on(node.id)
        })
        .map(|node| summary(&control, node))
        .filter(|node| connected.is_none_or(|wanted| wanted == node.connected))
        .collect();
    Ok(Json(Page { items, next_cursor }))
}

/// Where a refusal about a list over several projects is written down.
pub(super) fn place_of(projects: &[(DomainId, ProjectId)]) -> Option<(DomainId, String)> {
    projects
        .first()
        .map(|(domain, _)| (*domain, authz::domain(*domain)))
}

/// The projects in which the operator may act, of those the query asks for.
pub(super) async fn visible_projects(
    control: &Control,
    operator: &Operator,
    domain: Option<&str>,
    project: Option<&str>,
) -> Result<Vec<(DomainId, ProjectId)>, ApiError> {
    let domain: Option<DomainId> = query::id("invalid_domain_id", domain)?;
    let project = project.map(parse_project).transpose()?;
    let mut projects = control.store.all_projects().await?;
    projects.retain(|(in_domain, in_project)| {
        domain.is_none_or(|d| d == *in_domain)
            && project.is_none_or(|p| p == *in_project)
            && operator.requester.grants.may_act_in(*in_domain, *in_project)
    });
    if let (Some(id), true) = (project, projects.is_empty()) {
        visible_project(control, operator, id).await?;
        return Err(project_not_found(id));
    }
    Ok(projects)
}

fn summary(control: &Control, node: NodeRecord) -> NodeSummary {
    let seen = control.presence.latest(node.id);
    NodeSummary {
        id: node.id,
        name: node.name,
        domain_id: node.domain,
        kind: "node".to_owned(),
        created_at: node.created_at,
        project_id: node.project,
        labels: node.labels,
        connected: control.is_connected(node.id, node.replica),
        last_seen_at: seen.as_ref().map(|s| s.at).max(node.last_seen_at),
        clock_skew_ms: seen.as_ref().and_then(|s| s.skew_ms).or(node.clock_skew_ms),
        binary_version: seen.and_then(|s| s.binary_version).or(node.binary_version),
        hostname: node.hostname,
        warning: node.warning,
        warned_at: node.warned_at,
        nsk_since: Some(node.nsk_since),
        nsk_rotation_asked_at: node.nsk_asked_at,
        actions: node.actions,
    }
}

/// One node that the operator may act on; any other answers as one that does not exist.
async fn visible_node(control: &Control, operator: &Operator, raw: &str) -> Result<NodeRecord, ApiError> {
    let id = parse_node(raw)?;
    let unknown = || {
        ApiError::not_found(
            "node_not_found",
            format!("there is no node {id} that you may act on"),
        )
    };
    let (domain, project) = control.store.home_of(id).await?.ok_or_else(unknown)?;
    if !operator
        .requester
        .grants
        .in_project(domain, project)
        .may_act_on(id)
    {
        return Err(deny(control, operator.asked(), domain, authz::resource(id), unknown()).await);
    }
    let filter = NodeFilter {
        projects: &[project],
        node: Some(id),
        ..NodeFilter::default()
    };
    control.store.nodes(&filter).await?.pop().ok_or_else(unknown)
}

/// A node that the operator may also change.
async fn operated_node(
    control: &Control,
    operator: &Operator,
    raw: &str,
    what: &str,
) -> Result<NodeRecord, ApiError> {
    let node = visible_node(control, operator, raw).await?;
    if operator.requester.grants.may_operate(node.domain, node.project) {
        return Ok(node);
    }
    let why = format!("{what} needs the relation operator on the project or its domain");
    let refusal = ApiError::denied("permission_denied", "insufficient_relation", why);
    Err(deny(
        control,
        operator.asked(),
        node.domain,
        authz::resource(node.id),
        refusal,
    )
    .await)
}

pub(super) async fn get_node(
    State(control): State<Shared>,
    operator: Operator,
    Path(node): Path<String>,
) -> Result<Json<NodeSummary>, ApiError> {
    let node = visible_node(&control, &operator, &node).await?;
    Ok(Json(summary(&control, node)))
}

/// Takes a node out of service, and answers with it.
pub(super) async fn decommission_node(
    State(control): State<Shared>,
    operator: Operator,
    Path(raw): Path<String>,
) -> Result<Json<NodeSummary>, ApiError> {
    let node = operated_node(&control, &operator, &raw, "decommissioning a node").await?;
    decommission::decommission(&control, &node, &operator.requester.subject, Timestamp::now()).await?;
    Ok(Json(summary(&control, node)))
}

pub(super) async fn patch_labels(
    State(control): State<Shared>,
    operator: Operator,
    Path(raw): Path<String>,
    body: Body,
) -> Result<Json<NodeSummary>, ApiError> {
    let node = operated_node(&control, &operator, &raw, "changing labels").await?;
    let patch: LabelPatch = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    let invalid = |err: labels::BadLabel| ApiError::bad_request("invalid_label", err.to_string());
    labels::check_given(&patch.set).map_err(invalid)?;
    for key in &patch.remove {
        labels::check_key(key).map_err(invalid)?;
        if key.starts_with(labels::NODE_PREFIX) {
            return Err(invalid(labels::BadLabel::Reserved(key.clone())));
        }
    }
    let mut tx = control.store.begin().await?;
    for key in &patch.remove {
        tx.remove_label(node.id, key).await?;
    }
    for (key, value) in &patch.set {
        tx.set_label(node.id, key, value).await?;
    }
    let count = tx.count_labels(node.id).await?;
    if count > LABELS_PER_NODE_MAX {
        return Err(invalid(labels::BadLabel::TooMany(count)));
    }
    let entry = Entry::granted(
        &operator.requester.subject,
        "node.label",
        authz::resource(node.id),
    )
    .with(label_changes(&patch));
    tx.append_audit(node.domain, &[entry], Timestamp::now()).await?;
    tx.commit().await?;
    let node = visible_node(&control, &operator, &raw).await?;
    Ok(Json(summary(&control, node)))
}

/// A patch as an operator types it: `key=value` sets, `key-` removes.
fn label_changes(patch: &LabelPatch) -> String {
    let set = patch.set.iter().map(|(key, value)| format!("{key}={value}"));
    let removed = patch.remove.iter().map(|key| format!("{key}-"));
    set.chain(removed).collect::<Vec<_>>().join(" ")
}

pub(super) async fn preview_selector(
    _: Operator,
    body: Body,
) -> Result<Json<SelectorPreviewResponse>, ApiError> {
    let request: SelectorPreviewRequest = read_json(body, OPERATOR_BODY_BYTES_MAX).await?;
    Ok(Json(match Selector::parse(&request.expression) {
        Ok(selector) => SelectorPreviewResponse {
            ast: Some(selector.ast()),
            errors: Vec::new(),
        },
        Err(bad) => SelectorPreviewResponse {
            ast: None,
            errors: vec![SelectorError {
                position: bad.position,
                message: bad.message,
            }],
        },
    }))
}
