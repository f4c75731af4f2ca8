//! What a control does on its bad days to every request of a node, before it looks at it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Extension,
    extract::{Request, State as Shares},
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use muster_shared::time::Timestamp;
use tokio::{sync::Notify, time::Instant};

use super::state::Shared;

/// How it refuses the requests of a node, until it is told to stop.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    pub status: u16,
    /// Whom: `events`, `heartbeat`, `capabilities` or `executions`; everybody when it is empty.
    pub only: &'static str,
    /// The code of control's own problems; a gateway has none.
    pub code: Option<&'static str>,
    pub retry_after: Option<RetryAfter>,
}

#[derive(Clone, Copy, Debug)]
pub enum RetryAfter {
    Seconds(u64),
    /// A date, so far in the future of the clock that the same answer shows.
    DateIn(u64),
}

/// A request that was refused so.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    pub kind: String,
    pub at: Instant,
}

pub(super) async fn gate(
    Shares(shared): Shares<Arc<Shared>>,
    Extension(connection): Extension<Arc<Notify>>,
    request: Request,
    next: Next,
) -> Response {
    let kind = request
        .uri()
        .path()
        .split('/')
        .nth(4)
        .unwrap_or_default()
        .to_owned();
    let (refusing, clock_ms) = {
        let mut state = shared.state();
        let refusing = state
            .refusing
            .clone()
            .filter(|refusal| !kind.is_empty() && [kind.as_str(), ""].contains(&refusal.only));
        if refusing.is_some() {
            let at = Instant::now();
            state.refused.push(RefusedRequest {
                kind: kind.clone(),
                at,
            });
        }
        (refusing, state.clock_ms)
    };
    let mut response = match refusing {
        Some(refusal) => answer(&refusal, clock_ms),
        None if kind == "events" => match slam(&shared, &connection) {
            Some(answer) => answer,
            None => next.run(request).await,
        },
        None => next.run(request).await,
    };
    if clock_ms != 0 {
        response.headers_mut().insert(header::DATE, date(clock_ms, 0));
    }
    response
}

fn answer(refusal: &Refusal, clock_ms: i64) -> Response {
    let status = StatusCode::from_u16(refusal.status).expect("a status of a story is one");
    let mut response = match refusal.code {
        Some(code) => super::server::problem(refusal.status, code),
        None => (status, "<html>a gateway</html>").into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::DATE, date(clock_ms, 0));
    match refusal.retry_after {
        Some(RetryAfter::Seconds(seconds)) => {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        Some(RetryAfter::DateIn(seconds)) => {
            headers.insert(header::RETRY_AFTER, date(clock_ms, seconds));
        }
        None => {}
    }
    response
}

fn date(clock_ms: i64, seconds: u64) -> HeaderValue {
    let at = Timestamp::now()
        .shifted(clock_ms)
        .plus(Duration::from_secs(seconds));
    let since = Duration::from_millis(u64::try_from(at.as_millis()).expect("stories play after 1970"));
    HeaderValue::from_str(&httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since)).expect("a date is text")
}

/// Ends a stream in one of four ways as soon as it is asked for, each in its turn, while a story wants that.
fn slam(shared: &Shared, connection: &Notify) -> Option<Response> {
    let nth = {
        let mut state = shared.state();
        let slams = state.slams.as_mut()?;
        *slams += 1;
        *slams
    };
    let stream = [(header::CONTENT_TYPE, "text/event-stream")];
    match nth % 4 {
        // The connection lives on, the stream does not.
        0 => Some((stream, "retry: 0\n\n").into_response()),
        1 => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
        2 => {
            connection.notify_one();
            Some((stream, ": cut in the middle of a comm").into_response())
        }
        _ => {
            let close = [(header::CONNECTION, "close")];
            Some((stream, close, "retry: 0\n\n").into_response())
        }
    }
}
