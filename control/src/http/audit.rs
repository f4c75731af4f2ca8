//! Reading the audit trail.

use axum::{Json, extract::State};
use muster_shared::audit::AuditPage;
use serde::Deserialize;

use super::{
    auth::{InDomain, Operator},
    cursor,
    extract::Query,
    problem::ApiError,
};
use crate::control::Shared;

#[derive(Deserialize)]
pub(super) struct AuditQuery {
    order: Option<String>,
    cursor: Option<String>,
    limit: Option<String>,
}

/// Newest first, unless `order=oldest` asks for the order of the chain.
pub(super) async fn list(
    State(control): State<Shared>,
    InDomain { operator, domain }: InDomain,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditPage>, ApiError> {
    let Operator { requester, .. } = operator;
    let limit = cursor::parse_limit(query.limit.as_deref())?;
    let oldest_first = match query.order.as_deref() {
        None | Some("newest") => false,
        Some("oldest") => true,
        Some(other) => {
            return Err(ApiError::bad_request(
                "invalid_order",
                format!("order is {other:?}; it must be newest or oldest"),
            ));
        }
    };
    let scope = format!("audit {oldest_first} {} {domain}", requester.subject);
    let position: Option<u64> = query
        .cursor
        .map(|raw| cursor::open(&control.key, &scope, &raw))
        .transpose()?;
    let (rows, head) = if oldest_first {
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
    let (items, next_cursor) =
        cursor::paginate(rows, limit, |last| cursor::seal(&control.key, &scope, &last.seq));
    Ok(Json(AuditPage {
        items,
        next_cursor,
        head,
    }))
}
