//! Where output above the inline ceiling goes: an S3-compatible service, or a directory of this service behind its own
//! signed URLs. Both hand out one URL for one upload of one size, and never hold an object in memory.

mod local;
mod s3;

use std::{collections::BTreeMap, pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::Stream;
use muster_shared::{time::Timestamp, wire::OutputRef};

pub(crate) use local::{LocalStore, UploadClaim, UploadRefused};
pub(crate) use s3::{S3Settings, S3Store};

/// How long an upload URL lasts. A node whose URL ran out asks again.
pub(crate) const UPLOAD_URL_TTL: Duration = Duration::from_secs(15 * 60);
/// How long a URL for reading lasts.
const READ_URL_TTL: Duration = Duration::from_secs(60);

pub(crate) enum OutputStore {
    Local(LocalStore),
    S3(S3Store),
}

/// A place to put one output.
pub(crate) struct Upload {
    pub(crate) url: String,
    /// Headers that the signature covers, to be sent as they are.
    pub(crate) headers: BTreeMap<String, String>,
}

/// An output being read.
pub(crate) struct Download {
    pub(crate) len: Option<u64>,
    pub(crate) body: Pin<Box<dyn Stream<Item = Result<Bytes, std::io::Error>> + Send>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("the output store has no object {0}")]
    NotFound(String),
    #[error("the output store")]
    Io(#[from] std::io::Error),
    #[error("the output store refused: {0}")]
    Refused(String),
}

impl OutputStore {
    /// The bucket that references to objects name.
    pub(crate) fn bucket(&self) -> &str {
        match self {
            Self::Local(_) => LocalStore::BUCKET,
            Self::S3(store) => store.bucket(),
        }
    }

    pub(crate) async fn presign_upload(
        &self,
        key: &str,
        len: u64,
        now: Timestamp,
    ) -> Result<Upload, OutputError> {
        match self {
            Self::Local(store) => Ok(store.presign_upload(key, len, now)),
            Self::S3(store) => store.presign_upload(key, len).await,
        }
    }

    pub(crate) async fn read(&self, key: &str) -> Result<Download, OutputError> {
        match self {
            Self::Local(store) => store.read(key).await,
            Self::S3(store) => store.read(key).await,
        }
    }

    /// Removes an object for good. That there is none is as good.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), OutputError> {
        match self {
            Self::Local(store) => store.delete(key).await,
            Self::S3(store) => store.delete(key).await,
        }
    }

    /// A reference to an object of this store.
    pub(crate) fn reference(&self, key: String, sha256: muster_shared::ids::Digest) -> OutputRef {
        OutputRef::ObjectStore {
            bucket: self.bucket().to_owned(),
            key,
            sha256,
        }
    }
}
