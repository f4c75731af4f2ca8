//! The upload of one output to a presigned address, straight from the spool file.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};

use futures_util::stream;
use muster_shared::ids::Digest;
use reqwest::{Body, Client, Url, header};
use tokio::{
    io::AsyncReadExt as _,
    sync::{Notify, OnceCell, Semaphore},
};

use crate::{control::Control, effect, exit, reach};

const UPLOADS_AT_ONCE_MAX: usize = 2;
/// Of those whose end is told: they hold up nothing, and must not hold up the others.
const LATE_UPLOADS_AT_ONCE_MAX: usize = 1;
const PIECE_BYTES: usize = 64 * 1024;
/// Where systems keep the authorities that they trust.
const SYSTEM_CA_FILES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

pub(super) struct Uploader {
    control: Control,
    ca_pem: Vec<u8>,
    output_ca_file: Option<PathBuf>,
    /// For stores other than the one of control; made when the first such address comes.
    elsewhere: OnceCell<Client>,
    slots: Semaphore,
    late_slots: Semaphore,
    /// A store that takes nothing for so long, or does not answer, has failed.
    stall_max: Duration,
}

pub(super) struct Upload {
    pub(super) file: PathBuf,
    pub(super) bytes: u64,
    pub(super) sha256: Digest,
}

/// Whether an end waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    WithItsEnd,
    Late,
}

#[derive(Debug)]
pub(super) enum NotPut {
    Failed(String),
    /// There is nothing to upload any more.
    Lost(String),
}

impl Uploader {
    pub(super) fn new(
        control: Control,
        ca_pem: Vec<u8>,
        output_ca_file: Option<PathBuf>,
        stall_max: Duration,
    ) -> Self {
        let slots = Semaphore::new(UPLOADS_AT_ONCE_MAX);
        let late_slots = Semaphore::new(LATE_UPLOADS_AT_ONCE_MAX);
        Self {
            control,
            ca_pem,
            output_ca_file,
            elsewhere: OnceCell::new(),
            slots,
            late_slots,
            stall_max,
        }
    }

    /// `headers` are sent as they are, because the signature of the address covers them.
    pub(super) async fn put(
        &self,
        url: &str,
        headers: &BTreeMap<String, String>,
        upload: &Upload,
        turn: Turn,
    ) -> Result<(), NotPut> {
        let url = Url::parse(url)
            .map_err(|err| NotPut::Failed(format!("the address of the store makes no sense: {err}")))?;
        let client = self.client_for(&url).await.map_err(NotPut::Failed)?;
        let _slot = match turn {
            Turn::WithItsEnd => self.slots.acquire().await,
            Turn::Late => self.late_slots.acquire().await,
        };
        let file = tokio::fs::File::open(&upload.file).await.map_err(|err| {
            if err.kind() == io::ErrorKind::NotFound {
                NotPut::Lost("the output is not on this node any more".to_owned())
            } else {
                NotPut::Failed(format!("the spool cannot be read: {err}"))
            }
        })?;
        let there = file.metadata().await.map_or(upload.bytes, |about| about.len());
        if there != upload.bytes {
            return Err(NotPut::Lost(format!(
                "the output was damaged on this node: {there} bytes are left of {}",
                upload.bytes
            )));
        }
        let mut request = client.put(url.clone());
        for (name, value) in headers
            .iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"))
        {
            request = request.header(name, value);
        }
        let moved = Arc::new(Notify::new());
        let request = request.header(header::CONTENT_LENGTH, upload.bytes).body(body(
            file,
            upload.bytes,
            Arc::clone(&moved),
        ));
        let answer = self
            .unless_stalled(request.send(), &moved)
            .await
            .map_err(NotPut::Failed)?
            .map_err(|err| NotPut::Failed(self.control.reach().why(&url, err)))?;
        effect::done("an upload answered");
        let status = answer.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(NotPut::Failed(format!("the store answered {status}")))
        }
    }

    /// As long as something moves it may take any time.
    async fn unless_stalled<T>(&self, sending: impl Future<Output = T>, moved: &Notify) -> Result<T, String> {
        let mut sending = std::pin::pin!(sending);
        loop {
            tokio::select! {
                sent = &mut sending => return Ok(sent),
                more = tokio::time::timeout(self.stall_max, moved.notified()) => {
                    if more.is_err() {
                        let seconds = self.stall_max.as_secs();
                        return Err(format!("the store took nothing, and said nothing, for {seconds} s (idle_seconds)"));
                    }
                }
            }
        }
    }

    async fn client_for(&self, url: &Url) -> Result<Client, String> {
        let (server, http) = (self.control.server(), self.control.http());
        let same = |url: &Url| {
            (
                url.scheme().to_owned(),
                url.host_str().map(str::to_owned),
                url.port_or_known_default(),
            )
        };
        if same(url) == same(server) {
            return Ok(http.clone());
        }
        if url.scheme() != "https" && !(url.scheme() == "http" && reach::is_loopback(url)) {
            return Err("the address of the store must begin with https://".to_owned());
        }
        self.elsewhere
            .get_or_try_init(|| async { self.other_client() })
            .await
            .cloned()
    }

    fn other_client(&self) -> Result<Client, String> {
        let extra = match &self.output_ca_file {
            Some(path) => {
                std::fs::read(path).map_err(|err| format!("output_ca_file {}: {err}", path.display()))?
            }
            None => SYSTEM_CA_FILES
                .iter()
                .find_map(|path| std::fs::read(path).ok())
                .unwrap_or_default(),
        };
        let builder = self.control.reach().client(&[&self.ca_pem, &extra])?;
        builder.build().map_err(|err| exit::chain(&err))
    }
}

/// Never more than one piece in memory. A file that has shrunk breaks the upload off rather than passing for whole.
fn body(file: tokio::fs::File, bytes: u64, moved: Arc<Notify>) -> Body {
    Body::wrap_stream(stream::try_unfold(
        (file.take(bytes), bytes, moved),
        |(mut file, left, moved)| async move {
            moved.notify_one();
            if left == 0 {
                return Ok(None);
            }
            let mut piece = vec![0; PIECE_BYTES];
            let count = file.read(&mut piece).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            piece.truncate(count);
            Ok::<_, io::Error>(Some((piece, (file, left - count as u64, moved))))
        },
    ))
}
