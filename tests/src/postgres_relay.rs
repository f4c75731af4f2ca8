//! A piece of the way between a control and PostgreSQL. It hands every message on, and loses some when it is told to:
//! notifications, connections, and the answer to a commit, with a word or without.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::watch,
};

/// The socket's name, as clients look for it.
const SOCKET: &str = ".s.PGSQL.5432";
/// What a client sends before everything else, if it would like TLS. The server answers one byte.
const WOULD_LIKE_TLS: [u8; 4] = 80_877_103_u32.to_be_bytes();
/// Larger than any message of a story.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The connection ends before the server has heard of it: nothing is committed.
    Itself,
    /// The connection ends after the server has committed, and before the client hears of it.
    Answer,
    /// The same, and the connection does not end: nothing comes on it any more, as when a machine loses its power.
    EveryWord,
}

/// Which commit: the next one of a transaction that ran a statement with these words.
struct Doomed {
    words: String,
    lost: Lost,
}

#[derive(Default)]
struct Orders {
    doomed: Mutex<Option<Doomed>>,
    deaf: AtomicBool,
    refusing: AtomicBool,
    notifications: AtomicUsize,
    commits_lost: AtomicUsize,
}

pub struct PgRelay {
    orders: Arc<Orders>,
    cut: watch::Sender<()>,
    dir: PathBuf,
    /// Where it is not another's.
    own: Option<TempDir>,
}

impl PgRelay {
    /// Listens in a directory of its own for what is behind that socket.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn before(cluster: &Path) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("muster-relay-")
            .tempdir()
            .expect("a directory can be made");
        let mut relay = Self::within(dir.path(), cluster);
        relay.own = Some(dir);
        relay
    }

    /// Listens in this directory, also for whoever is another user there.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn within(dir: &Path, cluster: &Path) -> Self {
        let socket = dir.join(SOCKET);
        let listener = UnixListener::bind(&socket).expect("a socket can be made");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).expect("its mode can be set");
        let orders = Arc::new(Orders::default());
        let (cut, _) = watch::channel(());
        let (ours, cutting, behind) = (orders.clone(), cut.clone(), cluster.join(SOCKET));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if !ours.refusing.load(Ordering::SeqCst) {
                    tokio::spawn(relay(near, behind.clone(), ours.clone(), cutting.subscribe()));
                }
            }
        });
        Self {
            orders,
            cut,
            dir: dir.to_owned(),
            own: None,
        }
    }

    /// The directory of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.dir
    }

    /// From now on no notification passes; the connections that wait for them look as before.
    pub fn lose_notifications(&self, so: bool) {
        self.orders.deaf.store(so, Ordering::SeqCst);
    }

    /// How many notifications the server has sent, lost ones included.
    #[must_use]
    pub fn notifications(&self) -> usize {
        self.orders.notifications.load(Ordering::SeqCst)
    }

    /// Ends every connection.
    pub fn cut(&self) {
        self.cut.send_replace(());
    }

    /// Ends every connection, and each new one until it is told otherwise.
    pub fn refuse(&self, so: bool) {
        self.orders.refusing.store(so, Ordering::SeqCst);
        if so {
            self.cut();
        }
    }

    /// The next commit of a transaction that runs a statement with these words goes lost.
    pub fn lose_commit_of(&self, words: &str, lost: Lost) {
        *lock(&self.orders.doomed) = Some(Doomed {
            words: words.to_owned(),
            lost,
        });
    }

    /// How many went lost.
    #[must_use]
    pub fn commits_lost(&self) -> usize {
        self.orders.commits_lost.load(Ordering::SeqCst)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn relay(near: UnixStream, behind: PathBuf, orders: Arc<Orders>, mut cut: watch::Receiver<()>) {
    let Ok(far) = UnixStream::connect(behind).await else {
        return;
    };
    let (near_in, mut near_out) = near.into_split();
    let (far_in, mut far_out) = far.into_split();
    let (mut near_in, mut far_in) = (BufReader::new(near_in), BufReader::new(far_in));
    // The end of either is the end of both.
    let both = async {
        greet(&mut near_in, &mut near_out, &mut far_in, &mut far_out).await?;
        let answer_lost = Mutex::new(None);
        tokio::select! {
            ended = requests(&mut near_in, &mut far_out, &orders, &answer_lost) => ended,
            ended = answers(&mut far_in, &mut near_out, &orders, &answer_lost) => ended,
        }
    };
    tokio::select! {
        _ = both => {}
        _ = cut.changed() => {}
    }
}

/// What comes before the first message with a type.
async fn greet(
    near_in: &mut (impl AsyncRead + Unpin),
    near_out: &mut (impl AsyncWrite + Unpin),
    far_in: &mut (impl AsyncRead + Unpin),
    far_out: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    loop {
        let body = body(near_in).await?;
        far_out.write_all(&length_of(&body)).await?;
        far_out.write_all(&body).await?;
        if body != WOULD_LIKE_TLS {
            return Ok(());
        }
        // A server on a unix socket always says no.
        let answer = far_in.read_u8().await?;
        near_out.write_all(&[answer]).await?;
    }
}

async fn requests(
    near: &mut (impl AsyncRead + Unpin),
    far: &mut (impl AsyncWrite + Unpin),
    orders: &Orders,
    answer_lost: &Mutex<Option<Lost>>,
) -> io::Result<()> {
    let mut statements: HashMap<Vec<u8>, String> = HashMap::new();
    let mut ran: Vec<String> = Vec::new();
    loop {
        let (kind, body) = message(near).await?;
        let mut words = body.split(|byte| *byte == 0);
        let mut word = || words.next().unwrap_or_default();
        match kind {
            // Parse: the statement's name, its text.
            b'P' => {
                let name = word().to_vec();
                let _ = statements.insert(name, text(word()));
            }
            // Bind: the portal, the statement's name.
            b'B' => {
                let _ = word();
                ran.extend(statements.get(word()).cloned());
            }
            b'Q' => {
                let sql = text(word());
                if sql.starts_with("BEGIN") {
                    ran.clear();
                } else if sql.starts_with("COMMIT") {
                    match doom(orders, &ran) {
                        None => {}
                        Some(Lost::Itself) => return Ok(()),
                        lost @ Some(Lost::Answer | Lost::EveryWord) => *lock(answer_lost) = lost,
                    }
                } else {
                    ran.push(sql);
                }
            }
            _ => {}
        }
        send(far, kind, &body).await?;
    }
}

/// Whether this is the commit that goes lost.
fn doom(orders: &Orders, ran: &[String]) -> Option<Lost> {
    let doomed = lock(&orders.doomed).take_if(|doomed| ran.iter().any(|sql| sql.contains(&doomed.words)))?;
    orders.commits_lost.fetch_add(1, Ordering::SeqCst);
    Some(doomed.lost)
}

async fn answers(
    far: &mut (impl AsyncRead + Unpin),
    near: &mut (impl AsyncWrite + Unpin),
    orders: &Orders,
    answer_lost: &Mutex<Option<Lost>>,
) -> io::Result<()> {
    loop {
        let (kind, body) = message(far).await?;
        let lost = *lock(answer_lost);
        if let Some(lost) = lost {
            // ReadyForQuery: whatever was asked is done.
            match lost {
                Lost::EveryWord if kind == b'Z' => std::future::pending().await,
                Lost::Itself | Lost::Answer if kind == b'Z' => return Ok(()),
                Lost::Itself | Lost::Answer | Lost::EveryWord => continue,
            }
        }
        // NotificationResponse.
        if kind == b'A' {
            orders.notifications.fetch_add(1, Ordering::SeqCst);
            if orders.deaf.load(Ordering::SeqCst) {
                continue;
            }
        }
        send(near, kind, &body).await?;
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn length_of(body: &[u8]) -> [u8; 4] {
    u32::try_from(body.len() + 4)
        .expect("a message that was read fits")
        .to_be_bytes()
}

/// The length of a message counts itself.
async fn body(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await? as usize;
    if !(4..MESSAGE_BYTES_MAX).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length - 4];
    from.read_exact(&mut body).await?;
    Ok(body)
}

async fn message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Vec<u8>)> {
    Ok((from.read_u8().await?, body(from).await?))
}

async fn send(to: &mut (impl AsyncWrite + Unpin), kind: u8, body: &[u8]) -> io::Result<()> {
    let mut whole = Vec::with_capacity(body.len() + 5);
    whole.push(kind);
    whole.extend(length_of(body));
    whole.extend(body);
    to.write_all(&whole).await
}
