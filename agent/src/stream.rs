//! The event stream: connects, verifies, and hands on what held. Reconnects for ever, ever more patiently.
//!
//! Nothing unverified leaves this file. What the node missed is no matter of this file either: control sends every
//! pending invocation again on each connect.

mod transport;

use std::time::{Duration, Instant};

use eventsource_client::{Client as _, ClientBuilder, Error as StreamError, ReconnectOptions, SSE};
use futures_util::StreamExt as _;
use muster_shared::{
    envelope::{ENVELOPE_LEN_MAX, Refused, Verified},
    ids::NodeId,
    message_id::EVENT_REFUSED,
    time::Timestamp,
    wire::SigningKeysRotated,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    backoff::{self, Backoff},
    clock::Clock,
    config::Limits,
    control::Control,
    eventloop::Event,
    keyring::Keys,
    kick::Kicks,
    link, retry_after,
};
use transport::Transport;

/// A stream that lived this long shows that control is well: the next wait starts small.
const HEALTHY: Duration = Duration::from_secs(30);
/// How long the first connection waits for the clock to be measured.
const CLOCK_WAIT: Duration = Duration::from_secs(5);
/// Room for the field names and line ends around an envelope.
const EVENT_BYTES_MAX: usize = ENVELOPE_LEN_MAX + 4096;

pub(crate) struct Listener {
    pub(crate) control: Control,
    pub(crate) keys: Keys,
    pub(crate) node: NodeId,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) link: link::Teller,
    pub(crate) kicks: Kicks,
}

/// Why a connection is over.
struct Over {
    why: String,
    asked: Option<Duration>,
}

impl Over {
    fn because(why: impl ToString) -> Self {
        Self {
            why: why.to_string(),
            asked: None,
        }
    }
}

impl Listener {
    pub(crate) async fn listen(mut self, clock_measured: oneshot::Receiver<()>) {
        // An envelope that a wrong clock takes for expired would be refused for nothing.
        let _ = tokio::time::timeout(CLOCK_WAIT, clock_measured).await;
        let mut backoff = Backoff::new(self.limits.backoff);
        let mut failures: u64 = 0;
        while !self.events.is_closed() {
            let since = Instant::now();
            let transport = Transport::new(
                &self.control,
                self.clock.clone(),
                self.limits.idle,
                EVENT_BYTES_MAX,
            );
            self.kicks.forget();
            let (over, connected) = self.follow(&transport).await;
            failures = if connected { 0 } else { failures + 1 };
            if connected {
                // While it was open there was nothing to try.
                self.kicks.forget();
            }
            if let Some(asked) = transport.retry() {
                backoff.set_base(asked);
            }
            if connected && since.elapsed() >= HEALTHY {
                backoff.reset();
            }
            let wait = backoff.next_unless_asked(over.asked, backoff::chance());
            log::warn!(failures, wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                "The event stream is down: {}", over.why);
            self.link.down(&over.why, failures, wait);
            if self
                .events
                .send(Event::Disconnected { why: over.why })
                .await
                .is_err()
            {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.kicks.kicked() => backoff.reset(),
            }
        }
    }

    /// One connection, from its opening to its end. Says also whether it was ever open.
    async fn follow(&self, transport: &Transport) -> (Over, bool) {
        let client = ClientBuilder::for_url(&self.control.events_url()).map(|builder| {
            builder
                .reconnect(ReconnectOptions::reconnect(false).build())
                .redirect_limit(0)
        });
        let client = match client {
            Ok(builder) => builder.build_with_transport(transport.clone()),
            Err(err) => return (Over::because(err), false),
        };
        let mut stream = client.stream();
        let mut connected = false;
        while let Some(item) = stream.next().await {
            match item {
                Ok(SSE::Connected(_)) => {
                    connected = true;
                    self.link.up();
                    log::info!(node_id:% = self.node; "The event stream is open");
                    if self.events.send(Event::Connected).await.is_err() {
                        break;
                    }
                }
                Ok(SSE::Event(event)) => {
                    if !self.take(&event.event_type, event.data.as_bytes()).await {
                        break;
                    }
                }
                Ok(SSE::Comment(_)) => {}
                Err(err) => return (self.over(err), connected),
            }
        }
        (Over::because("it was closed"), connected)
    }

    fn over(&self, err: StreamError) -> Over {
        match err {
            StreamError::UnexpectedResponse(response, _) => {
                let status = response.status();
                let header = |name| response.get_header_value(name).ok().flatten();
                let asked = header("retry-after")
                    .and_then(|asked| retry_after::wait(asked, header("date"), Timestamp::now()));
                let why = match status {
                    // Control may be restoring a backup, or something before it may be wrong.
                    401 => "control does not accept this node (401); it keeps its identity and asks again. If control was \
                            restored from a backup older than this node's key: musterd enroll --force"
                        .to_owned(),
                    403 => "control does not accept this node (403); it keeps its identity and asks again".to_owned(),
                    _ => format!("control answered {status}"),
                };
                Over { why, asked }
            }
            StreamError::TimedOut => Over::because(format!(
                "nothing was heard for {} s (idle_seconds)",
                self.limits.idle.as_secs()
            )),
            StreamError::Eof | StreamError::UnexpectedEof => Over::because("control closed it"),
            StreamError::Transport(err) => Over::because(crate::exit::chain(err.inner())),
            StreamError::HttpStream(err) => Over::because(crate::exit::chain(err.as_ref())),
            StreamError::InvalidParameter(_)
            | StreamError::InvalidLine(_)
            | StreamError::InvalidEvent
            | StreamError::MalformedLocationHeader(_)
            | StreamError::MaxRedirectLimitReached(_) => Over::because(err),
        }
    }

    /// Opens one envelope. Says whether somebody still listens.
    async fn take(&self, kind: &str, data: &[u8]) -> bool {
        let now = self.clock.now();
        let keys = self.keys.ring();
        let opened = match kind {
            "action_request" => keys
                .open(data, self.node, now)
                .map(|request| Event::Requested(Box::new(request))),
            "action_cancel" => keys.open(data, self.node, now).map(Event::CancelAsked),
            "hook_baseline_updated" => keys.open(data, self.node, now).map(Event::Approved),
            "signing_key_rotated" => match keys.open(data, self.node, now) {
                Ok(news) => {
                    self.take_keys(news).await;
                    return true;
                }
                Err(err) => Err(err),
            },
            other => {
                log::debug!(event = other; "An event of a kind that this version does not know");
                return true;
            }
        };
        match opened {
            Ok(event) => self.events.send(event).await.is_ok(),
            Err(err) => {
                log::warn!(message_id = EVENT_REFUSED, event = kind, reason = reason(&err); "Refused an event: {err}");
                true
            }
        }
    }
}

impl Listener {
    /// Before anything else of the stream is read: what follows may be signed by the new keys alone.
    async fn take_keys(&self, news: Verified<SigningKeysRotated>) {
        let keys = self.keys.clone();
        let taken = tokio::task::spawn_blocking(move || keys.take(&news)).await;
        match taken.unwrap_or_else(|err| Err(err.to_string())) {
            Ok(true) => log::info!(serial = self.keys.serial(); "The signing keys were changed"),
            Ok(false) => {}
            // Control sends them again on the next connect, and does not count this node among those that know them.
            Err(err) => log::error!(error = err; "The new signing keys could not be kept"),
        }
    }
}

const fn reason(refused: &Refused) -> &'static str {
    match refused {
        Refused::TooLong => "too_long",
        Refused::Malformed(_) => "malformed",
        Refused::OtherType { .. } => "other_type",
        Refused::UnknownKey => "unknown_key",
        Refused::RetiredKey(_) => "retired_key",
        Refused::BadSignature => "bad_signature",
        Refused::OtherNode(_) => "other_node",
        Refused::Expired(_) => "expired",
    }
}
