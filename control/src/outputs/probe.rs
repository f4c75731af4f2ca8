//! Tries a store out: one small object goes in, is looked at, comes back and is taken away again, and other bytes than
//! those that were signed are offered. For `doctor`; nothing that is there is touched.

use std::io;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::TryStreamExt as _;
use muster_shared::{ids::Digest, time::Timestamp};

use super::{Declared, OutputError, OutputStore, local::LocalStore, room, s3::S3Store};
use crate::{error_chain, keys::chance};

const RIGHT: &[u8] = b"muster-control doctor looks whether this store works\n";
const WRONG: &[u8] = b"muster-control doctor looks whether this is taken!!!\n";

/// How well one thing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Well {
    Yes,
    /// It works, and costs more than it should, or will not for long.
    Hardly,
    No,
}

/// What was found, and what to do about it where it is not well.
#[derive(Debug)]
pub(crate) struct Probed {
    pub(crate) well: Well,
    pub(crate) finding: String,
    pub(crate) remedy: Option<String>,
}

impl Probed {
    fn yes(finding: impl Into<String>) -> Self {
        Self {
            well: Well::Yes,
            finding: finding.into(),
            remedy: None,
        }
    }

    fn not(well: Well, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            well,
            finding: finding.into(),
            remedy: Some(remedy.into()),
        }
    }
}

impl OutputStore {
    pub(crate) async fn probe(&self, now: Timestamp) -> Vec<Probed> {
        match self {
            Self::Local(store) => vec![of_folder(store).await],
            Self::S3(store) => of_bucket(self, store, now).await,
        }
    }
}

async fn of_folder(store: &LocalStore) -> Probed {
    let dir = store.dir().to_owned();
    let shown = dir.display().to_string();
    let tried = tokio::task::spawn_blocking(move || {
        let path = dir.join(format!(".{}.probe", a_name()?));
        std::fs::write(&path, RIGHT)?;
        let read = std::fs::read(&path);
        std::fs::remove_file(&path)?;
        if read? != RIGHT {
            return Err(io::Error::other("it gives back other bytes than it took"));
        }
        room::bytes_below(&dir)
    });
    match tried.await.map_err(io::Error::other).and_then(|tried| tried) {
        Ok(bytes) => {
            let max = store.bytes_max();
            let finding = format!("{shown} can be written, and holds {bytes} of {max} bytes");
            // One output of the largest kind should have a place.
            if bytes > max / 10 * 9 {
                let remedy =
                    "set a retention for executions, raise limits.output_store_bytes_max, or use a bucket";
                Probed::not(Well::Hardly, finding, remedy)
            } else {
                Probed::yes(finding)
            }
        }
        Err(err) => Probed::not(
            Well::No,
            format!("{shown} cannot be used: {err}"),
            "see that the folder is there, belongs to control's user and has mode 0700, and that the disk has room",
        ),
    }
}

fn a_name() -> io::Result<String> {
    Ok(URL_SAFE_NO_PAD.encode(chance::<9>()?))
}

async fn of_bucket(store: &OutputStore, s3: &S3Store, now: Timestamp) -> Vec<Probed> {
    let name = match a_name() {
        Ok(name) => name,
        Err(err) => return vec![Probed::not(Well::No, err.to_string(), "see what the system says")],
    };
    let bucket = s3.bucket();
    let (right, wrong) = (
        format!("muster-doctor/{name}/right"),
        format!("muster-doctor/{name}/wrong"),
    );
    let mut probed = Vec::new();
    match put(store, s3, &right, RIGHT, now).await {
        Ok((200..=299, _)) => probed.push(Probed::yes(format!("the bucket {bucket:?} takes an object"))),
        Ok((status, code)) => return vec![refused(bucket, status, &code)],
        Err(err) => {
            return vec![Probed::not(
                Well::No,
                format!("the store cannot be reached: {err}"),
                "see output.s3.endpoint, the network, and the certificate of the store",
            )];
        }
    }
    probed.push(comes_back(store, &right).await);
    probed.push(match put(store, s3, &wrong, WRONG, now).await {
        Ok((200..=299, _)) => Probed::not(
            Well::Hardly,
            "the store takes other bytes than those whose SHA-256 was signed",
            "control reads each object back before it believes it, which costs traffic; a service that checks \
             x-amz-checksum-sha256 spares that",
        ),
        Ok((status @ 400..=499, code)) => Probed::yes(format!(
            "other bytes than those whose SHA-256 was signed are refused ({status} {code})"
        )),
        Ok((status, code)) => Probed::not(
            Well::Hardly,
            format!("other bytes than those whose SHA-256 was signed are answered {status} {code}"),
            "see the log of the store: a refusal is 400",
        ),
        Err(err) => Probed::not(Well::No, format!("the store broke off: {err}"), "try again; see the network"),
    });
    probed.push(goes_away(store, [&right, &wrong]).await);
    probed
}

/// Sends bytes through a URL that was made for [`RIGHT`].
async fn put(
    store: &OutputStore,
    s3: &S3Store,
    key: &str,
    bytes: &'static [u8],
    now: Timestamp,
) -> Result<(u16, String), String> {
    let declared = Declared {
        bytes: RIGHT.len() as u64,
        sha256: Some(Digest::of(RIGHT)),
    };
    let upload = store.presign_upload(key, declared, now).await;
    let upload = upload.map_err(|err| error_chain(&err))?;
    s3.put(&upload, bytes).await.map_err(|err| error_chain(&err))
}

fn refused(bucket: &str, status: u16, code: &str) -> Probed {
    let remedy = match code {
        "NoSuchBucket" => "create the bucket, or mend output.s3.bucket",
        "InvalidAccessKeyId" => "mend output.s3.access_key_id",
        "SignatureDoesNotMatch" => {
            "mend what output.s3.secret_access_key_file holds, output.s3.region, or output.s3.path_style"
        }
        "RequestTimeTooSkewed" => "set this machine's clock: timedatectl",
        "AccessDenied" => "allow this key s3:PutObject, s3:GetObject and s3:DeleteObject on the bucket",
        "PermanentRedirect" | "AuthorizationHeaderMalformed" => "mend output.s3.region or output.s3.endpoint",
        _ => "see output.s3 and the log of the store",
    };
    let finding = format!("the bucket {bucket:?} takes no object: {status} {code}");
    Probed::not(Well::No, finding, remedy)
}

async fn comes_back(store: &OutputStore, key: &str) -> Probed {
    let read = async {
        let look = store.look(key).await?;
        if look.bytes != RIGHT.len() as u64 {
            return Err(OutputError::Refused(format!(
                "it says that {} bytes are there",
                look.bytes
            )));
        }
        let keeps = look.sha256.is_some();
        let pieces = store.read(key, Digest::of(RIGHT), &look, None).await?;
        let bytes: Vec<u8> = pieces.map_ok(|piece| piece.to_vec()).try_concat().await?;
        if bytes != RIGHT {
            return Err(OutputError::Refused(
                "it gives back other bytes than it took".to_owned(),
            ));
        }
        Ok(keeps)
    };
    match read.await {
        Ok(true) => Probed::yes("the object is looked at and comes back; the store keeps its SHA-256"),
        Ok(false) => Probed::yes(
            "the object is looked at and comes back; the store keeps no SHA-256, so control reads each object back once",
        ),
        Err(err) => Probed::not(
            Well::No,
            format!("the object does not come back: {}", error_chain(&err)),
            "allow this key s3:GetObject on the bucket, which HEAD needs too",
        ),
    }
}

async fn goes_away(store: &OutputStore, keys: [&str; 2]) -> Probed {
    for key in keys {
        let gone = match store.delete(key).await {
            Ok(()) => store.look(key).await.map(|_| "it is there still".to_owned()),
            Err(err) => Err(err),
        };
        let why = match gone {
            Err(OutputError::NotFound(_)) => continue,
            Ok(why) => why,
            Err(err) => error_chain(&err),
        };
        return Probed::not(
            Well::Hardly,
            format!("the object {key} could not be removed: {why}"),
            "allow this key s3:DeleteObject (and s3:ListBucket, so that what is missing is 404) on the bucket: without it \
             pruned outputs stay for ever",
        );
    }
    Probed::yes("the object is gone once it was deleted")
}
