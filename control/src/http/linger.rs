//! A request that is answered before its body was read is read to its end all the same, within bounds: a connection
//! that closes on unread bytes is reset, and the caller would see that instead of the answer.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};

/// How much of an unwanted body is read, and for how long.
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;
const LINGER_MAX: Duration = Duration::from_secs(5);

/// Wraps the body of every request.
pub(super) async fn wrap(request: Request) -> Request {
    request.map(|body| Body::new(Lingering(Some(body))))
}

struct Lingering(Option<Body>);

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.0 = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let unread = self.0.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Ok(runtime)) = (unread, tokio::runtime::Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(LINGER_MAX, read_away(body)));
        }
    }
}

async fn read_away(mut body: Body) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > LINGER_BYTES_MAX {
            return;
        }
    }
}
