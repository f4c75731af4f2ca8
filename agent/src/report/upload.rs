//! The upload of one output to a presigned address, straight from the spool file.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use futures_util::stream;
use reqwest::{Body, Client, Url, header};
use tokio::{
    io::AsyncReadExt as _,
    sync::{OnceCell, Semaphore},
};

use crate::{
    control::{self, Control},
    exit,
};

const UPLOADS_AT_ONCE_MAX: usize = 2;
/// An upload that takes longer is taken for dead.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(15 * 60);
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
}

pub(super) struct Upload {
    pub(super) file: PathBuf,
    pub(super) bytes: u64,
}

impl Uploader {
    pub(super) fn new(control: Control, ca_pem: Vec<u8>, output_ca_file: Option<PathBuf>) -> Self {
        let slots = Semaphore::new(UPLOADS_AT_ONCE_MAX);
        Self {
            control,
            ca_pem,
            output_ca_file,
            elsewhere: OnceCell::new(),
            slots,
        }
    }

    /// `headers` are sent as they are, because the signature of the address covers them.
    pub(super) async fn put(
        &self,
        url: &str,
        headers: &BTreeMap<String, String>,
        upload: &Upload,
    ) -> Result<(), String> {
        let url = Url::parse(url).map_err(|err| format!("the address of the store makes no sense: {err}"))?;
        let client = self.client_for(&url).await?;
        let _slot = self.slots.acquire().await;
        let file = tokio::fs::File::open(&upload.file)
            .await
            .map_err(|err| format!("the output is not on this node any more: {err}"))?;
        let mut request = client.put(url).timeout(UPLOAD_TIMEOUT);
        for (name, value) in headers
            .iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"))
        {
            request = request.header(name, value);
        }
        let answer = request
            .header(header::CONTENT_LENGTH, upload.bytes)
            .body(body(file, upload.bytes))
            .send()
            .await
            // An error text with the address in it would show its signature.
            .map_err(|err| exit::chain(&err.without_url()))?;
        let status = answer.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("the store answered {status}"))
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
        if url.scheme() != "https" && !(url.scheme() == "http" && control::is_loopback(url)) {
            return Err("the address of the store must begin with https://".to_owned());
        }
        self.elsewhere
            .get_or_try_init(|| async { self.other_client(url) })
            .await
            .cloned()
    }

    fn other_client(&self, url: &Url) -> Result<Client, String> {
        let extra = match &self.output_ca_file {
            Some(path) => {
                std::fs::read(path).map_err(|err| format!("output_ca_file {}: {err}", path.display()))?
            }
            None => SYSTEM_CA_FILES
                .iter()
                .find_map(|path| std::fs::read(path).ok())
                .unwrap_or_default(),
        };
        let mut builder = control::http_client(&[&self.ca_pem, &extra])?;
        if control::is_loopback(url) {
            builder = builder.no_proxy();
        }
        builder.build().map_err(|err| exit::chain(&err))
    }
}

/// Never more than one piece in memory. A file that has shrunk breaks the upload off rather than passing for whole.
fn body(file: tokio::fs::File, bytes: u64) -> Body {
    Body::wrap_stream(stream::try_unfold(
        (file.take(bytes), bytes),
        |(mut file, left)| async move {
            if left == 0 {
                return Ok(None);
            }
            let mut piece = vec![0; PIECE_BYTES];
            let count = file.read(&mut piece).await?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            piece.truncate(count);
            Ok::<_, std::io::Error>(Some((piece, (file, left - count as u64))))
        },
    ))
}
