//! The HTTP below `eventsource-client`, and all that it leaves to its transport: the idle limit, the kind of the
//! answer, the size of an event, and a server's wish for when to come back.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderValue, StatusCode, header};
use launchdarkly_sdk_transport::{
    ByteStream, HttpTransport, Request, Response, ResponseFuture, TransportError,
};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::{clock::Clock, control::Control};

const UNSAID: u64 = u64::MAX;

#[derive(Clone)]
pub(super) struct Transport {
    control: Control,
    idle: Duration,
    event_bytes_max: usize,
    clock: Clock,
    /// The last `retry:` of the server, in milliseconds; [`UNSAID`] while there was none.
    retry_ms: Arc<AtomicU64>,
}

impl Transport {
    pub(super) fn new(control: &Control, clock: Clock, idle: Duration, event_bytes_max: usize) -> Self {
        Self {
            control: control.clone(),
            idle,
            event_bytes_max,
            clock,
            retry_ms: Arc::new(AtomicU64::new(UNSAID)),
        }
    }

    pub(super) fn retry(&self) -> Option<Duration> {
        let asked_ms = self.retry_ms.load(Ordering::Relaxed);
        (asked_ms != UNSAID).then(|| Duration::from_millis(asked_ms))
    }

    async fn open(self, request: Request<Option<Bytes>>) -> Result<Response<ByteStream>, TransportError> {
        let (mut parts, body) = request.into_parts();
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", self.control.nsk().expose()))
            .map_err(TransportError::new)?;
        bearer.set_sensitive(true);
        parts.headers.insert(header::AUTHORIZATION, bearer);
        parts.headers.extend(self.control.instance().headers());
        let request = http::Request::from_parts(parts, reqwest::Body::from(body.unwrap_or_default()));
        let request = reqwest::Request::try_from(request).map_err(TransportError::new)?;
        let answer = match timeout(self.idle, self.control.http().execute(request)).await {
            Ok(answer) => answer.map_err(|err| {
                let why = self.control.reach().why(self.control.server(), err);
                failure(io::ErrorKind::NotConnected, why)
            })?,
            Err(_) => {
                return Err(failure(
                    io::ErrorKind::TimedOut,
                    format!(
                        "control did not answer for {} s (idle_seconds)",
                        self.idle.as_secs()
                    ),
                ));
            }
        };
        if let Some(date) = answer
            .headers()
            .get(header::DATE)
            .and_then(|date| date.to_str().ok())
        {
            self.clock.estimate(date);
        }
        let mut response = Response::builder().status(answer.status());
        if let Some(headers) = response.headers_mut() {
            headers.clone_from(answer.headers());
        }
        if answer.status().is_success() && !is_event_stream(&answer) {
            let text = format!(
                "control answered {} with something else than an event stream",
                answer.status()
            );
            return Err(failure(io::ErrorKind::InvalidData, text));
        }
        let body = Guarded {
            inner: Box::pin(answer.bytes_stream()),
            silence: Box::pin(sleep(self.idle)),
            idle: self.idle,
            lines: Lines {
                event_bytes_max: self.event_bytes_max,
                ..Lines::default()
            },
            retry_ms: self.retry_ms,
            over: false,
        };
        let body: ByteStream = Box::pin(body);
        response.body(body).map_err(TransportError::new)
    }
}

impl HttpTransport for Transport {
    fn request(&self, request: Request<Option<Bytes>>) -> ResponseFuture {
        Box::pin(self.clone().open(request))
    }
}

fn is_event_stream(answer: &reqwest::Response) -> bool {
    let kind = answer
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    answer.status() == StatusCode::OK && kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn failure(kind: io::ErrorKind, text: String) -> TransportError {
    TransportError::new(io::Error::new(kind, text))
}

/// The body, with an end put to silence and to events without end.
struct Guarded {
    inner: Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send + Sync>>,
    silence: Pin<Box<Sleep>>,
    idle: Duration,
    lines: Lines,
    retry_ms: Arc<AtomicU64>,
    over: bool,
}

impl Guarded {
    fn end<T>(&mut self, kind: io::ErrorKind, text: &str) -> Poll<Option<Result<T, TransportError>>> {
        self.over = true;
        Poll::Ready(Some(Err(failure(kind, text.to_owned()))))
    }
}

impl Stream for Guarded {
    type Item = Result<Bytes, TransportError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        match self.inner.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(bytes))) => {
                let deadline = Instant::now() + self.idle;
                self.silence.as_mut().reset(deadline);
                let Ok(retry) = self.lines.follow(&bytes) else {
                    return self.end(io::ErrorKind::InvalidData, "an event is too long");
                };
                if let Some(retry) = retry {
                    self.retry_ms.store(retry, Ordering::Relaxed);
                }
                Poll::Ready(Some(Ok(bytes)))
            }
            Poll::Ready(Some(Err(err))) => {
                self.over = true;
                Poll::Ready(Some(Err(TransportError::new(err.without_url()))))
            }
            Poll::Ready(None) => {
                self.over = true;
                Poll::Ready(None)
            }
            // An error of this kind becomes eventsource_client::Error::TimedOut.
            Poll::Pending if self.silence.as_mut().poll(context).is_ready() => {
                self.end(io::ErrorKind::TimedOut, "silence")
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Follows the lines of the stream just far enough to count the bytes of an event and to see a `retry:`, which the
/// client shows only when an event comes with it.
#[derive(Default)]
struct Lines {
    event_bytes_max: usize,
    event_bytes: usize,
    line: Vec<u8>,
    line_bytes: usize,
}

#[derive(Debug)]
struct TooLong;

impl Lines {
    const LINE_KEPT_BYTES: usize = 32;

    fn follow(&mut self, bytes: &[u8]) -> Result<Option<u64>, TooLong> {
        let mut retry = None;
        for byte in bytes {
            match byte {
                b'\n' if self.line_bytes == 0 => self.event_bytes = 0,
                b'\n' => {
                    retry = retry_of(&self.line).or(retry);
                    self.line.clear();
                    self.line_bytes = 0;
                }
                b'\r' => {}
                _ => {
                    self.line_bytes += 1;
                    self.event_bytes += 1;
                    if self.line.len() < Self::LINE_KEPT_BYTES {
                        self.line.push(*byte);
                    }
                }
            }
            if self.event_bytes > self.event_bytes_max {
                return Err(TooLong);
            }
        }
        Ok(retry)
    }
}

fn retry_of(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line)
        .ok()?
        .strip_prefix("retry:")?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        Lines {
            event_bytes_max: 20,
            ..Lines::default()
        }
    }

    #[test]
    fn a_retry_is_seen_however_the_bytes_are_split() {
        let text = b": hello\nretry: 1500\n\n";
        for at in 0..text.len() {
            let mut lines = lines();
            let (first, second) = text.split_at(at);
            let found = [lines.follow(first).unwrap(), lines.follow(second).unwrap()];
            assert!(found.contains(&Some(1500)), "split at {at}");
        }
    }

    #[test]
    fn the_bytes_of_one_event_are_bounded_and_those_of_many_are_not() {
        let mut lines = lines();
        for _ in 0..100 {
            lines.follow(b"data: 1\r\n\r\n").unwrap();
        }
        assert!(lines.follow(b"data: 1\ndata: 2\n").is_ok());
        assert!(lines.follow(b"data: 345\n").is_err());
    }
}
