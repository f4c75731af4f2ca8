//! The metrics, for a scraper on this machine or, where the settings say so, for anybody.

use std::net::SocketAddr;

use axum::{
    Extension,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use muster_shared::time::Timestamp;

use super::problem::ApiError;
use crate::{control::Shared, metrics};

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn show(
    State(control): State<Shared>,
    peer: Option<Extension<Peer>>,
) -> Result<Response, ApiError> {
    let here = peer.is_some_and(|Extension(Peer(address))| address.ip().to_canonical().is_loopback());
    if !here && !control.metrics_public {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "metrics_not_public",
            "metrics are shown to this machine alone; metrics_public = true shows them to anybody",
        ));
    }
    let text = metrics::text(&control, Timestamp::now()).await?;
    Ok(([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response())
}
