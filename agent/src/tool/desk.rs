//! Where the running daemon answers the admin of its machine: a socket in the state directory, for the daemon's own user
//! and root. One line of JSON is the question, one the answer.
//!
//! A socket rather than a file: what is read from it is said by a daemon that lives. After a kill nobody listens.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{fs::PermissionsExt as _, net::UnixStream as Caller},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_shared::{
    ids::{ActionName, Digest},
    time::Timestamp,
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};

use crate::{
    clock::Clock,
    config::Config,
    declare::{Poke, Pokes},
    exit::{self, Exit},
    journal::{Journal, JournalError},
    link::Link,
    policy::{Line, wall},
    session::overview::Overview,
    tool::hooks,
};

const SOCKET: &str = "musterd.sock";
const QUESTION_BYTES_MAX: u64 = 64 * 1024;
/// A daemon with the longest queue there may be says no more than this.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// How long a caller may take to ask and to listen, so that none keeps the others waiting.
const CALLER_WAIT: Duration = Duration::from_secs(5);
/// How long a caller waits for a daemon that is busy.
const DAEMON_WAIT: Duration = Duration::from_secs(20);
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Question {
    Status,
    /// Make this digest the baseline of the hook, if it is what the hook is.
    Trust {
        hook: ActionName,
        digest: Digest,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    Status(Box<Told>),
    Trusted,
    Refused { why: String },
}

/// What the daemon says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) started_at: Timestamp,
    pub(crate) link: Link,
    pub(crate) running_max: usize,
    pub(crate) queue_max: usize,
    /// The policy that is in force, which the files may say otherwise by now.
    #[serde(default)]
    pub(crate) policy: Vec<Line>,
    pub(crate) overview: Overview,
}

/// Asks the loop what is under way.
pub(crate) type OverviewAsked = oneshot::Sender<Overview>;

pub(crate) struct Desk {
    pub(crate) settings: watch::Receiver<Arc<Config>>,
    pub(crate) journal: Journal,
    pub(crate) clock: Clock,
    pub(crate) pokes: Pokes,
    pub(crate) link: watch::Receiver<Link>,
    pub(crate) overviews: mpsc::Sender<OverviewAsked>,
    pub(crate) started_at: Timestamp,
}

/// The name of a socket may have 107 bytes, and a state directory more: it is named by way of its descriptor.
struct Doorway {
    _dir: File,
    path: PathBuf,
}

impl Doorway {
    fn of(state_dir: &Path) -> io::Result<Self> {
        let dir = File::open(state_dir)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()).into();
        Ok(Self { _dir: dir, path })
    }
}

/// Opens the desk. The caller holds the state directory, so that a socket there is a dead daemon's.
pub(crate) fn open(state_dir: &Path) -> io::Result<UnixListener> {
    let door = Doorway::of(state_dir)?;
    match fs::remove_file(&door.path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&door.path)?;
    fs::set_permissions(&door.path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

impl Desk {
    /// One caller after the other.
    pub(crate) async fn serve(self, listener: UnixListener) {
        loop {
            let caller = match listener.accept().await {
                Ok((caller, _)) => caller,
                Err(err) => {
                    log::warn!(error:% = err; "The socket of the state directory takes no caller");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            if let Err(err) = self.attend(caller).await {
                log::debug!(error:% = err; "A caller at the socket of the state directory went away");
            }
        }
    }

    async fn attend(&self, mut caller: UnixStream) -> io::Result<()> {
        // Between the making of the socket and its mode there is a moment.
        let uid = caller.peer_cred()?.uid();
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        let mut line = Vec::new();
        let (reads, mut writes) = caller.split();
        let mut reads = tokio::io::BufReader::new(reads.take(QUESTION_BYTES_MAX));
        timeout(CALLER_WAIT, reads.read_until(b'\n', &mut line)).await??;
        let answer = match serde_json::from_slice(&line) {
            Ok(question) => self.answer(question).await,
            Err(err) => Answer::Refused {
                why: format!("the running musterd does not understand the question: {err}"),
            },
        };
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        timeout(CALLER_WAIT, writes.write_all(&bytes)).await?
    }

    async fn answer(&self, question: Question) -> Answer {
        let answered = match question {
            Question::Status => self.status().await,
            Question::Trust { hook, digest } => self.trust(hook, digest).await,
        };
        answered.unwrap_or_else(|why| Answer::Refused { why })
    }

    async fn status(&self) -> Result<Answer, String> {
        let (answer, answered) = oneshot::channel();
        let gone = "the daemon is about to end";
        self.overviews.send(answer).await.map_err(|_| gone)?;
        let overview = answered.await.map_err(|_| gone)?;
        let config = Arc::clone(&self.settings.borrow());
        Ok(Answer::Status(Box::new(Told {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            link: self.link.borrow().clone(),
            running_max: config.limits.running_max,
            queue_max: config.limits.queue_max,
            policy: config.policy.lines(wall::now()),
            overview,
        })))
    }

    /// Looked at again here: what is pinned is what this daemon would run, from the directory that it runs hooks from.
    async fn trust(&self, hook: ActionName, digest: Digest) -> Result<Answer, String> {
        let config = Arc::clone(&self.settings.borrow());
        let name = hook.clone();
        spawn_blocking(move || hooks::is_still(&config, &name, digest))
            .await
            .map_err(|err| err.to_string())??;
        let (name, now) = (hook.clone(), self.clock.now());
        self.journal
            .ask(move |store| store.trust(&name, digest, now))
            .await
            .map_err(|err: JournalError| exit::chain(&err))?;
        log::info!(hook:% = hook, digest:% = digest; "The admin of this machine trusts a hook");
        self.pokes.poke(Poke::Rescan);
        Ok(Answer::Trusted)
    }
}

/// Who answers in a state directory.
pub(crate) enum DeskReply {
    Answered(Answer),
    /// Nobody works there.
    NoDaemon,
    /// Somebody holds the directory and does not answer.
    Mute(String),
}

/// Asks the daemon of this state directory, if there is one.
pub(crate) fn ask(state_dir: &Path, question: &Question) -> Result<DeskReply, Exit> {
    let failed = |err: io::Error| {
        Exit::Failure(format!(
            "the daemon of {} could not be asked: {err}",
            state_dir.display()
        ))
    };
    let door = match Doorway::of(state_dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(DeskReply::NoDaemon),
        door => door.map_err(failed)?,
    };
    match Caller::connect(&door.path) {
        Ok(desk) => match talk(desk, question) {
            Ok(answer) => Ok(DeskReply::Answered(answer)),
            // One that was killed while it was asked.
            Err(_) if !held(state_dir).map_err(failed)? => Ok(DeskReply::NoDaemon),
            Err(err) => Ok(DeskReply::Mute(err.to_string())),
        },
        Err(err)
            if matches!(
                err.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            if held(state_dir).map_err(failed)? {
                Ok(DeskReply::Mute(
                    "somebody holds the state directory and does not listen there: a daemon that just starts, or `musterd \
                     enroll`"
                        .to_owned(),
                ))
            } else {
                Ok(DeskReply::NoDaemon)
            }
        }
        Err(err) => Err(failed(err)),
    }
}

fn talk(mut desk: Caller, question: &Question) -> io::Result<Answer> {
    desk.set_read_timeout(Some(DAEMON_WAIT))?;
    desk.set_write_timeout(Some(DAEMON_WAIT))?;
    let mut bytes = serde_json::to_vec(question)?;
    bytes.push(b'\n');
    desk.write_all(&bytes)?;
    let mut line = Vec::new();
    BufReader::new(desk.take(ANSWER_BYTES_MAX)).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::other("it hung up without an answer"));
    }
    Ok(serde_json::from_slice(&line)?)
}

/// Whether a process works in the state directory. Looks through the lock, and holds it for no longer than that.
fn held(state_dir: &Path) -> io::Result<bool> {
    let file = match File::open(state_dir.join("lock")) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(err) => Err(err.into()),
    }
}
