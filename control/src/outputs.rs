//! Where output above the inline ceiling goes: an S3-compatible service, or a directory of this service behind its own
//! signed URLs. Both hand out one URL for one upload of one size and, where the node said it, one digest; and never hold
//! an object in memory. What a node says it uploaded is looked at before it is believed, and again while it is read.

mod local;
mod probe;
mod room;
mod s3;
mod signed_url;
mod turns;

use std::{collections::BTreeMap, io, ops::Range, pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use muster_shared::{
    ids::{Digest, Digester},
    time::Timestamp,
    wire::OutputRef,
};

pub(crate) use local::{LocalStore, Pace, UploadRefused};
pub(crate) use probe::Well;
pub(crate) use room::NoRoom;
pub(crate) use s3::{S3Settings, S3Store};
pub(crate) use signed_url::UploadClaim;

/// How long a URL for reading lasts.
const READ_URL_TTL: Duration = Duration::from_secs(60);

pub(crate) enum OutputStore {
    Local(LocalStore),
    S3(S3Store),
}

/// What is to be uploaded.
#[derive(Clone, Copy)]
pub(crate) struct Declared {
    pub(crate) bytes: u64,
    /// Clients of the published surface know it only later.
    pub(crate) sha256: Option<Digest>,
}

/// A place to put one output.
pub(crate) struct Upload {
    pub(crate) url: String,
    /// Headers that the signature covers, to be sent as they are.
    pub(crate) headers: BTreeMap<String, String>,
}

pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, io::Error>> + Send>>;

/// What a store says of an object without giving its bytes.
pub(crate) struct Look {
    pub(crate) bytes: u64,
    /// As the store made it when it took the bytes, where it keeps one.
    sha256: Option<Digest>,
    /// Changes when the object does.
    mark: Option<String>,
}

/// An object that was found to be what the node reported.
pub(crate) struct Believed {
    pub(crate) bytes: u64,
    mark: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("the output store has no object {0}")]
    NotFound(String),
    #[error("the object {key} is {found}, not {expected} as the node reported")]
    OtherBytes {
        key: String,
        expected: Digest,
        found: Digest,
    },
    #[error("the object {key} has {bytes} bytes; this control takes at most {max} (limits.output_bytes_max)")]
    TooLarge { key: String, bytes: u64, max: u64 },
    #[error("the output store failed")]
    Io(#[from] io::Error),
    #[error("the output store refused: {0}")]
    Refused(String),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
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
        declared: Declared,
        now: Timestamp,
    ) -> Result<Upload, OutputError> {
        match self {
            Self::Local(store) => {
                store.has_room_for(declared.bytes).await?;
                Ok(store.presign_upload(key, declared, now))
            }
            // What waits for a bucket is large, and a report that has nothing for one carries its room all the same.
            Self::S3(store) => Box::pin(store.presign_upload(key, declared)).await,
        }
    }

    pub(crate) async fn look(&self, key: &str) -> Result<Look, OutputError> {
        match self {
            Self::Local(store) => store.look(key).await,
            Self::S3(store) => Box::pin(store.look(key)).await,
        }
    }

    /// The bytes of an object from its beginning to its end, or of a part of it.
    async fn open(&self, key: &str, look: &Look, part: Option<Range<u64>>) -> Result<Pieces, OutputError> {
        match self {
            Self::Local(store) => store.open(key, part).await,
            Self::S3(store) => Box::pin(store.open(key, look.mark.as_deref(), part)).await,
        }
    }

    /// Finds out whether the object is there and is what the node says. A store that keeps no SHA-256 of its own is
    /// made to give the bytes.
    pub(crate) async fn check(&self, key: &str, expected: Digest, max: u64) -> Result<Believed, OutputError> {
        let look = self.look(key).await?;
        if look.bytes > max {
            let (key, bytes) = (key.to_owned(), look.bytes);
            return Err(OutputError::TooLarge { key, bytes, max });
        }
        let found = match look.sha256 {
            Some(sha256) => sha256,
            None => digest_of(self.open(key, &look, None).await?).await?,
        };
        if found == expected {
            let Look { bytes, mark, .. } = look;
            Ok(Believed { bytes, mark })
        } else {
            let key = key.to_owned();
            Err(OutputError::OtherBytes { key, expected, found })
        }
    }

    /// Whether what was checked lies there still, as far as that can be told at once.
    pub(crate) async fn holds(&self, key: &str, believed: &Believed) -> Result<bool, OutputError> {
        match self {
            // Nothing is put in place but under the write lock that the caller holds.
            Self::Local(store) => Ok(store.look(key).await?.mark == believed.mark),
            // No lock reaches that far. The URL is good for the reported bytes only, and whoever reads them checks again.
            Self::S3(_) => Ok(true),
        }
    }

    /// Gives what was settled. Other bytes than those break the reading off before its end, so that nobody takes them
    /// for the output; a part is given only of an object that the store itself says is the same.
    pub(crate) async fn read(
        &self,
        key: &str,
        expected: Digest,
        look: &Look,
        part: Option<Range<u64>>,
    ) -> Result<Pieces, OutputError> {
        if let Some(found) = look.sha256.filter(|found| *found != expected) {
            let key = key.to_owned();
            return Err(OutputError::OtherBytes { key, expected, found });
        }
        let whole = part.is_none();
        let pieces = self.open(key, look, part).await?;
        Ok(if whole {
            checked(pieces, key.to_owned(), expected)
        } else {
            pieces
        })
    }

    /// Removes an object for good. That there is none is as good.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), OutputError> {
        match self {
            Self::Local(store) => store.delete(key).await,
            Self::S3(store) => store.delete(key).await,
        }
    }

    /// Removes what uploads left behind that were under way when a control before this one was killed. A bucket keeps nothing
    /// of an upload that was cut off.
    pub(crate) async fn sweep(&self) {
        match self {
            Self::Local(store) => match store.sweep().await {
                Ok(0) => {}
                Ok(files) => log::info!(files; "Removed what {files} uploads left behind that were cut off"),
                Err(err) => {
                    log::warn!("What uploads left behind that were cut off could not be removed: {err}")
                }
            },
            Self::S3(_) => {}
        }
    }

    /// A reference to an object of this store.
    pub(crate) fn reference(&self, key: String, sha256: Digest) -> OutputRef {
        OutputRef::ObjectStore {
            bucket: self.bucket().to_owned(),
            key,
            sha256,
        }
    }
}

async fn digest_of(mut pieces: Pieces) -> Result<Digest, io::Error> {
    let mut digester = Digester::default();
    while let Some(piece) = pieces.try_next().await? {
        digester.update(&piece);
    }
    Ok(digester.finish())
}

/// The same bytes, of which the last come only once all are known to be right.
fn checked(mut pieces: Pieces, key: String, expected: Digest) -> Pieces {
    async_stream::try_stream! {
        let mut digester = Digester::default();
        let mut held: Option<Bytes> = None;
        while let Some(piece) = pieces.try_next().await? {
            if piece.is_empty() {
                continue;
            }
            digester.update(&piece);
            if let Some(before) = held.replace(piece) {
                yield before;
            }
        }
        let found = digester.finish();
        if found != expected {
            let err = OutputError::OtherBytes { key, expected, found };
            log::error!("An output is not given out: {err}");
            Err(io::Error::other(err))?;
        }
        if let Some(last) = held {
            yield last;
        }
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &'static [&'static [u8]], expected: &[u8]) -> (Vec<u8>, bool) {
        let pieces = futures_util::stream::iter(bytes.iter().map(|piece| Ok(Bytes::from_static(piece))));
        let mut checked = checked(pieces.boxed(), "key".to_owned(), Digest::of(expected));
        let mut got = Vec::new();
        loop {
            match checked.try_next().await {
                Ok(Some(piece)) => got.extend_from_slice(&piece),
                Ok(None) => return (got, true),
                Err(_) => return (got, false),
            }
        }
    }

    #[tokio::test]
    async fn other_bytes_are_never_given_out_whole() {
        assert_eq!(
            read(&[b"he", b"", b"llo"], b"hello").await,
            (b"hello".to_vec(), true)
        );
        assert_eq!(read(&[b"he", b"lla"], b"hello").await, (b"he".to_vec(), false));
        assert_eq!(read(&[b"hella"], b"hello").await, (Vec::new(), false));
        assert_eq!(read(&[], b"").await, (Vec::new(), true));
        assert_eq!(read(&[], b"hello").await, (Vec::new(), false));
    }
}
