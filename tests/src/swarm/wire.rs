//! Just enough of an HTTP/1.1 client over TLS, with hardly a byte held while nothing comes.

use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::ready,
    time::Duration,
};

use rustls::{
    ClientConfig, HandshakeKind, NamedGroup, RootCertStore,
    client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue},
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf},
    net::{TcpSocket, TcpStream},
    sync::{Semaphore, SemaphorePermit},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::tally::{Tally, add};

/// As much as is read at a time: one TLS record.
const READ_BYTES: usize = 16 * 1024 + 64;
/// No head and no answer that a swarm asks for is longer.
const ANSWER_BYTES_MAX: usize = 512 * 1024;
/// As many tickets as a server hands out at once.
const TICKETS_KEPT: usize = 2;

/// The way to one control.
pub struct Dialer {
    server: SocketAddr,
    name: ServerName<'static>,
    tls: ClientConfig,
}

/// What one node knows of the TLS sessions that it had: a store of its own, as a machine of its own would have.
#[derive(Clone)]
pub struct Sessions(Arc<ClientConfig>);

/// The tickets of one node.
#[derive(Debug, Default)]
struct Tickets(Mutex<(Option<NamedGroup>, VecDeque<Tls13ClientSessionValue>)>);

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        lock(&self.0).0 = Some(group);
    }
    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        lock(&self.0).0
    }
    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}
    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }
    fn remove_tls12_session(&self, _: &ServerName<'static>) {}
    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let tickets = &mut lock(&self.0).1;
        if tickets.len() == TICKETS_KEPT {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        lock(&self.0).1.pop_back()
    }
}

impl Dialer {
    /// # Errors
    /// When the CA is none.
    pub fn new(ca_pem: &str, server: SocketAddr, name: ServerName<'static>) -> Result<Self, String> {
        crate::use_ring();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            let certificate = certificate.map_err(|err| err.to_string())?;
            roots.add(certificate).map_err(|err| err.to_string())?;
        }
        let tls = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { server, name, tls })
    }

    /// The TLS of one node: everything shared but the tickets.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        let mut tls = self.tls.clone();
        tls.resumption = Resumption::store(Arc::new(Tickets::default()));
        Sessions(Arc::new(tls))
    }

    /// Connects from that address.
    ///
    /// # Errors
    /// When TCP or TLS says no.
    pub async fn dial(&self, from: Ipv4Addr, sessions: &Sessions, tally: &Tally) -> io::Result<Connection> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((from, 0)))?;
        let tcp = socket.connect(self.server).await?;
        tcp.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::clone(&sessions.0));
        let tls = connector.connect(self.name.clone(), tcp).await?;
        match tls.get_ref().1.handshake_kind() {
            Some(HandshakeKind::Resumed) => add(&tally.resumed_handshakes),
            Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => {
                add(&tally.full_handshakes);
            }
        }
        Ok(Connection {
            tls: Box::new(tls),
            read: Vec::new(),
        })
    }
}

/// The source address of a node: each has its own, so that no address runs out of ports.
#[must_use]
pub fn address_of(number: usize) -> Ipv4Addr {
    let number = u32::try_from(number % 0x00fd_0000).unwrap_or(0);
    // From 127.1.0.1 on: 127.0.0.0/16 is for everybody else.
    Ipv4Addr::from(0x7f01_0001_u32 + number)
}

/// One TLS connection.
pub struct Connection {
    tls: Box<TlsStream<TcpStream>>,
    /// What came and was not used yet. Without capacity while nothing waits.
    read: Vec<u8>,
}

/// How an answer's body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Length {
    Bytes(usize),
    Chunked,
}

struct Head {
    status: u16,
    length: Length,
    closes: bool,
}

/// An answer, read whole.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// Whether the connection is of no further use.
    pub closes: bool,
}

impl Connection {
    /// Reads once; what has come is in `read`.
    async fn fill(&mut self) -> io::Result<()> {
        let Self { tls, read } = self;
        let count = std::future::poll_fn(|context| {
            // On the stack of whoever polls, and nowhere while this waits.
            let mut bytes = [std::mem::MaybeUninit::uninit(); READ_BYTES];
            let mut buffer = ReadBuf::uninit(&mut bytes);
            ready!(Pin::new(&mut *tls).poll_read(context, &mut buffer))?;
            read.extend_from_slice(buffer.filled());
            std::task::Poll::Ready(io::Result::Ok(buffer.filled().len()))
        })
        .await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.read.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("more than any answer has"));
        }
        Ok(())
    }

    async fn head(&mut self) -> io::Result<Head> {
        loop {
            if let Some((used, head)) = parse_head(&self.read)? {
                self.read.drain(..used);
                return Ok(head);
            }
            self.fill().await?;
        }
    }

    /// One request, and its answer to the end.
    ///
    /// # Errors
    /// When the connection breaks off, or what comes is no HTTP.
    pub async fn call(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.tls.write_all(request).await?;
        self.tls.flush().await?;
        let head = self.head().await?;
        let mut body = Vec::new();
        match head.length {
            Length::Bytes(count) => {
                while self.read.len() < count {
                    self.fill().await?;
                }
                body.extend(self.read.drain(..count));
            }
            Length::Chunked => {
                let mut chunks = Chunks::default();
                while !chunks.take(&mut self.read, &mut body)? {
                    self.fill().await?;
                }
            }
        }
        if self.read.is_empty() {
            self.read = Vec::new();
        }
        Ok(Answer {
            status: head.status,
            body,
            closes: head.closes,
        })
    }

    /// Asks for an event stream.
    ///
    /// # Errors
    /// When the connection breaks off, or control says something else.
    pub async fn into_events(mut self, request: &[u8]) -> io::Result<Events> {
        self.tls.write_all(request).await?;
        self.tls.flush().await?;
        let head = self.head().await?;
        if head.status != 200 || head.length != Length::Chunked {
            return Err(io::Error::other(format!(
                "control answered {} instead of a stream",
                head.status
            )));
        }
        Ok(Events {
            connection: self,
            chunks: Chunks::default(),
            text: Vec::new(),
            retry: None,
        })
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Option<(usize, Head)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let used = match response.parse(bytes).map_err(io::Error::other)? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(used) => used,
    };
    let value = |name: &str| {
        let header = response
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let chunked = value("transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked"));
    let length = match value("content-length").and_then(|count| count.parse().ok()) {
        Some(count) if count <= ANSWER_BYTES_MAX => Length::Bytes(count),
        Some(_) => return Err(io::Error::other("a longer answer than any")),
        None if chunked => Length::Chunked,
        None => Length::Bytes(0),
    };
    let head = Head {
        status: response.code.unwrap_or(0),
        length,
        closes: value("connection").is_some_and(|how| how.eq_ignore_ascii_case("close")),
    };
    Ok(Some((used, head)))
}

/// The chunked coding of a body (RFC 9112, section 7.1), taken apart as it comes.
#[derive(Default, Debug)]
struct Chunks {
    /// What is missing of the present chunk, its line end included.
    missing: usize,
    over: bool,
}

impl Chunks {
    /// Moves what is whole from `raw` to `text`; true once the body is over.
    fn take(&mut self, raw: &mut Vec<u8>, text: &mut Vec<u8>) -> io::Result<bool> {
        let mut at = 0;
        while !self.over && at < raw.len() {
            if self.missing == 0 {
                match httparse::parse_chunk_size(&raw[at..]) {
                    Ok(httparse::Status::Complete((used, size))) => {
                        at += used;
                        let size = usize::try_from(size).map_err(io::Error::other)?;
                        self.over = size == 0;
                        self.missing = size.saturating_add(2);
                    }
                    Ok(httparse::Status::Partial) => break,
                    Err(_) => return Err(io::Error::other("a chunk without a size")),
                }
            } else {
                let here = self.missing.min(raw.len() - at);
                // The last two are the line end.
                let of_text = here.min(self.missing.saturating_sub(2));
                text.extend_from_slice(&raw[at..at + of_text]);
                at += here;
                self.missing -= here;
            }
        }
        raw.drain(..at);
        if raw.is_empty() {
            *raw = Vec::new();
        }
        Ok(self.over)
    }
}

/// An open event stream.
pub struct Events {
    connection: Connection,
    chunks: Chunks,
    text: Vec<u8>,
    /// What control said last of how soon to come back.
    retry: Option<Duration>,
}

/// One event: its kind and its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub kind: String,
    pub data: String,
}

impl Events {
    /// The next event; comments are passed over. May be dropped and asked again at any point.
    ///
    /// # Errors
    /// When the stream ends.
    pub async fn next(&mut self) -> io::Result<Event> {
        loop {
            while let Some(block) = cut_block(&mut self.text) {
                self.retry = parse_retry(&block).or(self.retry);
                if let Some(event) = parse_event(&block) {
                    return Ok(event);
                }
            }
            self.connection.fill().await?;
            if self.chunks.take(&mut self.connection.read, &mut self.text)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Events {
    /// What the node draws its wait from once this stream has ended.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }
}

fn parse_retry(block: &[u8]) -> Option<Duration> {
    let mut lines = std::str::from_utf8(block).ok()?.lines();
    let told = lines.find_map(|line| line.strip_prefix("retry:"))?;
    told.trim().parse().ok().map(Duration::from_millis)
}

fn cut_block(text: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = text.windows(2).position(|two| two == b"\n\n")? + 2;
    if end == text.len() {
        return Some(std::mem::take(text));
    }
    Some(text.drain(..end).collect())
}

fn parse_event(block: &[u8]) -> Option<Event> {
    let (mut kind, mut data) = (None, None);
    for line in std::str::from_utf8(block).ok()?.lines() {
        if let Some(value) = line.strip_prefix("event: ") {
            kind = Some(value.to_owned());
        } else if let Some(value) = line.strip_prefix("data: ") {
            data = Some(value.to_owned());
        }
    }
    Some(Event {
        kind: kind?,
        data: data?,
    })
}

/// Connections that belong to nobody.
pub struct Pool {
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
}

impl Pool {
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
            places: Semaphore::new(connections),
        }
    }

    /// Waits for a place; there may be a connection with it.
    ///
    /// # Panics
    /// Never: the pool is not closed.
    pub async fn take(&self) -> (SemaphorePermit<'_>, Option<Connection>) {
        let place = self.places.acquire().await.expect("nobody closes the pool");
        let idle = lock(&self.idle).pop();
        (place, idle)
    }

    pub fn give_back(&self, connection: Connection) {
        lock(&self.idle).push(connection);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_soon_to_come_back_is_heard_beside_any_word() {
        for (block, told) in [
            (": muster\nretry: 1000\n\n", Some(1000)),
            (":\nretry:5000\n\n", Some(5000)),
            (":\n\n", None),
            ("retry: soon\n\n", None),
        ] {
            assert_eq!(
                parse_retry(block.as_bytes()),
                told.map(Duration::from_millis),
                "{block}"
            );
        }
    }

    #[test]
    fn a_stream_is_read_the_same_however_it_is_cut() {
        let events = [
            ": muster\nretry: 1000\n\n",
            "id: 1\nevent: action_request\ndata: {\"a\":1}\n\n",
            ":\n\nevent: action_cancel\ndata: b\n\n",
        ];
        let mut raw = Vec::new();
        for event in events {
            raw.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
        }
        let event = |kind: &str, data: &str| Event {
            kind: kind.into(),
            data: data.into(),
        };
        let expected = [event("action_request", "{\"a\":1}"), event("action_cancel", "b")];
        for at in 0..raw.len() {
            let (mut chunks, mut text, mut found, mut pending) =
                (Chunks::default(), Vec::new(), Vec::new(), Vec::new());
            for piece in [&raw[..at], &raw[at..]] {
                pending.extend_from_slice(piece);
                assert!(!chunks.take(&mut pending, &mut text).unwrap());
                while let Some(block) = cut_block(&mut text) {
                    found.extend(parse_event(&block));
                }
            }
            assert_eq!(found, expected, "cut at {at}");
        }
        assert!(
            Chunks::default()
                .take(&mut b"0\r\n\r\n".to_vec(), &mut Vec::new())
                .unwrap()
        );
        assert!(
            Chunks::default()
                .take(&mut b"zz\r\n".to_vec(), &mut Vec::new())
                .is_err()
        );
    }

    #[test]
    fn an_answer_says_how_it_ends() {
        assert!(parse_head(b"HTTP/1.1 200 OK\r\nconte").unwrap().is_none());
        let (used, head) =
            parse_head(b"HTTP/1.1 409 Conflict\r\nContent-Length: 7\r\nConnection: close\r\n\r\n{")
                .unwrap()
                .unwrap();
        assert_eq!(
            (used, head.status, head.length, head.closes),
            (63, 409, Length::Bytes(7), true)
        );
        let raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(parse_head(raw).unwrap().unwrap().1.length, Length::Chunked);
        assert!(parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n").is_err());
        assert!(parse_head(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn no_two_nodes_have_one_address() {
        assert_eq!(address_of(0), Ipv4Addr::new(127, 1, 0, 1));
        assert_eq!(address_of(50_000).octets()[0], 127);
        let all: std::collections::HashSet<_> = (0..60_000).map(address_of).collect();
        assert_eq!(all.len(), 60_000);
    }
}
