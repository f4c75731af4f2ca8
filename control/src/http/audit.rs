//! Reading the audit trail.

use axum::{Json, extract::State};
use muster_shared::{audit::AuditPage, wire::Page};
use serde::{Deserialize, Serialize};

use super::{
    auth::InDomain,
    cursor::{List, parse_limit},
    problem::ApiError,
    query::{StrictQuery, one_of},
};
use crate::{authz, control::Shared};

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    domain_id: Option<String>,
    project_id: Option<String>,
    order: Option<String>,
    #[serde(skip_serializing)]
    cursor: Option<String>,
    #[serde(skip_serializing)]
    limit: Option<String>,
}

/// Newest first, unless `order=oldest` asks for the order of the chain.
pub(super) async fn list(
    State(control): State<Shared>,
    InDomain { operator, domain }: InDomain,
    StrictQuery(query): StrictQuery<AuditQuery>,
) -> Result<Json<AuditPage>, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    one_of("invalid_order", query.order.as_deref(), &["newest", "oldest"])?;
    let oldest_first = query.order.as_deref() == Some("oldest");
    let place = (domain, authz::domain(domain));
    let list = List::new(&control, &operator, Some(place), &("audit", domain, &query));
    let position: Option<u64> = list.position(query.cursor.as_deref()).await?;
    let (rows, ends) = if oldest_first {
        control
            .store
            .audit_oldest_first(domain, position.unwrap_or(0), limit + 1)
            .await?
    } else {
        control
            .store
            .audit_newest_first(domain, position, limit + 1)
            .await?
    };
    let Page { items, next_cursor } = list.page(rows, limit, |last| last.seq);
    Ok(Json(AuditPage {
        items,
        next_cursor,
        head: ends.head,
        pruned: ends.pruned,
    }))
}
