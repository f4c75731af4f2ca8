//! The built-in store: a directory, written to through signed URLs of this service.

use std::{
    io,
    ops::Range,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use muster_shared::{
    ids::{Digest, Digester, ExecutionId, NodeId},
    time::Timestamp,
    wire::output_key,
};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use super::{
    Declared, Look, OutputError, Pieces, Upload,
    room::{NoRoom, Place, Room},
    signed_url::{BadUrl, SignedUpload, SignedUrls, UploadClaim},
    turns::{Turn, Turns},
};
use crate::keys::{ServerKey, chance};

/// How many bytes are read from a file at a time.
const READ_CHUNK_BYTES: usize = 64 * 1024;
/// How the name of an unfinished file ends.
const PARTIAL: &str = ".part";
/// An upload of which nothing comes for this long has failed.
const UPLOAD_STALL_MAX: Duration = Duration::from_secs(60);

pub(crate) struct LocalStore {
    dir: PathBuf,
    urls: SignedUrls,
    pace: Pace,
    room: Room,
    turns: Turns,
    /// What tells the unfinished files of this control from those of one before it: when it began.
    run: i64,
}

/// How long an upload may take: as long as its URL lasts, and longer as it comes.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) url_ttl: Duration,
    pub(crate) bytes_per_second_min: u64,
}

impl Pace {
    /// How long it may have taken once so much has come.
    fn time_for(self, bytes: u64) -> Duration {
        let millis = bytes.saturating_mul(1000) / self.bytes_per_second_min.max(1);
        self.url_ttl.saturating_add(Duration::from_millis(millis))
    }
}

/// Why an upload was turned away. What was stored before stays as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadRefused {
    #[error(transparent)]
    Url(#[from] BadUrl),
    #[error("{got} bytes came where {signed} were signed for")]
    WrongLength { signed: u64, got: u64 },
    #[error("{got} came where {signed} was signed for")]
    WrongDigest { signed: Digest, got: Digest },
    #[error("the upload was cut off, or nothing of it came for {} s", UPLOAD_STALL_MAX.as_secs())]
    CutOff,
    #[error(
        "{got} bytes of the upload came in {} s: it may take limits.upload_url_seconds, and longer at no less than limits.upload_bytes_per_second_min",
        .after.as_secs()
    )]
    TooSlow { got: u64, after: Duration },
    #[error("a newer upload of this output began, and counts")]
    Replaced,
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("the output store")]
    Io(#[from] io::Error),
}

impl LocalStore {
    pub(crate) const BUCKET: &'static str = "local";

    /// `bytes_max` is what all objects together may take.
    pub(crate) fn new(dir: PathBuf, server_url: String, key: ServerKey, pace: Pace, bytes_max: u64) -> Self {
        Self {
            room: Room::new(dir.clone(), bytes_max),
            dir,
            urls: SignedUrls::new(server_url, key),
            pace,
            turns: Turns::default(),
            run: Timestamp::now().as_millis(),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) const fn bytes_max(&self) -> u64 {
        self.room.max()
    }

    /// Said before anything is sent for nothing.
    pub(super) async fn has_room_for(&self, bytes: u64) -> Result<(), NoRoom> {
        self.room.check(bytes).await
    }

    pub(super) fn presign_upload(&self, key: &str, declared: Declared, now: Timestamp) -> Upload {
        self.urls.presign(key, declared, now.plus(self.pace.url_ttl))
    }

    /// Whether this service signed the URL, and it is good still. Answered before anything else is said of the invocation.
    pub(crate) fn check(
        &self,
        (execution, node): (ExecutionId, NodeId),
        claim: &UploadClaim,
        now: Timestamp,
    ) -> Result<SignedUpload, UploadRefused> {
        Ok(self.urls.check(output_key(execution, node), claim, now)?)
    }

    /// Receives the upload that a URL was signed for: all of it, or nothing. It takes no effect until it is kept.
    pub(crate) async fn receive(
        &self,
        signed: SignedUpload,
        body: impl Stream<Item = Result<Bytes, io::Error>> + Unpin,
    ) -> Result<Received, UploadRefused> {
        let (key, declared) = signed.into_parts();
        let turn = self.turns.take(&key).await.ok_or(UploadRefused::Replaced)?;
        let place = self.room.take(declared.bytes).await?;
        let path = self.dir.join(&key);
        let dir = path.parent().expect("an output key has a folder").to_owned();
        tokio::fs::create_dir_all(&dir).await?;
        // A name of its own for every try: two tries at once never write into each other.
        let name = URL_SAFE_NO_PAD.encode(chance::<9>()?);
        let partial = dir.join(format!("{}{name}{PARTIAL}", self.own_partial()));
        let received = Received {
            partial,
            path,
            store: self.dir.clone(),
            place: Some(place),
            turn,
        };
        tokio::select! {
            biased;
            () = received.turn.replaced() => return Err(UploadRefused::Replaced),
            written = write_exactly(&received.partial, declared, self.pace, body) => written?,
        }
        Ok(received)
    }

    /// How the names of unfinished files begin that this control makes.
    fn own_partial(&self) -> String {
        format!(".{}.", self.run)
    }

    /// Removes the unfinished files of controls before this one: nobody writes them any more, and no room is counted for
    /// them. Answers how many there were.
    pub(super) async fn sweep(&self) -> io::Result<u64> {
        let (dir, own) = (self.dir.clone(), self.own_partial());
        let swept = tokio::task::spawn_blocking(move || remove_partials(&dir, &own));
        swept.await.map_err(io::Error::other)?
    }

    /// Removes the invocation's folder with whatever an upload that was cut off left there, and the execution's with its
    /// last. Durable when it returns: nothing will ask for this object again.
    pub(super) async fn delete(&self, key: &str) -> Result<(), OutputError> {
        let path = self.dir.join(key);
        let Some(dir) = path.parent() else {
            return Err(OutputError::NotFound(key.to_owned()));
        };
        let freed = tokio::fs::metadata(&path).await.map_or(0, |about| about.len());
        match tokio::fs::remove_dir_all(dir).await {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            removed => {
                removed?;
                self.room.freed(freed);
            }
        }
        for dir in dir.ancestors().skip(1) {
            // The folder of an execution that has other outputs stays, as does that of the store.
            let emptied = dir != self.dir && tokio::fs::remove_dir(dir).await.is_ok();
            if !emptied && tokio::fs::try_exists(dir).await? {
                tokio::fs::File::open(dir).await?.sync_all().await?;
                break;
            }
        }
        Ok(())
    }

    /// A file is looked at by its own marks: each that is put in place is a new one.
    pub(super) async fn look(&self, key: &str) -> Result<Look, OutputError> {
        let about = found(key, tokio::fs::metadata(self.dir.join(key)).await)?;
        let (ino, ctime) = (about.ino(), (about.ctime(), about.ctime_nsec()));
        let mark = format!("{}.{ino}.{}.{}", about.dev(), ctime.0, ctime.1);
        Ok(Look {
            bytes: about.len(),
            sha256: None,
            mark: Some(mark),
        })
    }

    pub(super) async fn open(&self, key: &str, part: Option<Range<u64>>) -> Result<Pieces, OutputError> {
        let mut file = found(key, tokio::fs::File::open(self.dir.join(key)).await)?;
        let part = part.unwrap_or(0..u64::MAX);
        file.seek(io::SeekFrom::Start(part.start)).await?;
        let file = file.take(part.end - part.start);
        let chunks = futures_util::stream::try_unfold(file, |mut file| async {
            let mut chunk = vec![0; READ_CHUNK_BYTES];
            let n = file.read(&mut chunk).await?;
            chunk.truncate(n);
            Ok::<_, io::Error>((n > 0).then(|| (Bytes::from(chunk), file)))
        });
        Ok(chunks.boxed())
    }
}

fn found<T>(key: &str, asked: io::Result<T>) -> Result<T, OutputError> {
    match asked {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Err(OutputError::NotFound(key.to_owned())),
        asked => Ok(asked?),
    }
}

/// An upload that came whole. Dropped without being kept, it was never there.
pub(crate) struct Received {
    partial: PathBuf,
    path: PathBuf,
    store: PathBuf,
    place: Option<Place>,
    /// Given back last: the next upload begins with all that this one had.
    turn: Turn,
}

impl Received {
    /// Puts it in place, durably and at once.
    pub(crate) async fn keep(mut self) -> Result<(), UploadRefused> {
        let before = tokio::fs::metadata(&self.path)
            .await
            .map_or(0, |about| about.len());
        tokio::fs::rename(&self.partial, &self.path).await?;
        if let Some(place) = self.place.take() {
            place.filled(before);
        }
        for dir in self
            .path
            .ancestors()
            .skip(1)
            .take_while(|dir| dir.starts_with(&self.store))
        {
            tokio::fs::File::open(dir).await?.sync_all().await?;
        }
        Ok(())
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        // Gone already once it was kept; of the others nothing may stay behind.
        let _ = std::fs::remove_file(&self.partial);
    }
}

async fn write_exactly(
    path: &Path,
    declared: Declared,
    pace: Pace,
    mut body: impl Stream<Item = Result<Bytes, io::Error>> + Unpin,
) -> Result<(), UploadRefused> {
    let mut file = tokio::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .await?;
    let signed = declared.bytes;
    let (mut got, mut digester) = (0, Digester::default());
    let began = Instant::now();
    loop {
        let left = pace.time_for(got).saturating_sub(began.elapsed());
        let chunk = match next_within(&mut body, left.min(UPLOAD_STALL_MAX)).await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(_) if pace.time_for(got) <= began.elapsed() => {
                let after = began.elapsed();
                return Err(UploadRefused::TooSlow { got, after });
            }
            Err(cut_off) => return Err(cut_off),
        };
        got += chunk.len() as u64;
        if got > signed {
            return Err(UploadRefused::WrongLength { signed, got });
        }
        digester.update(&chunk);
        file.write_all(&chunk).await?;
    }
    if got != signed {
        return Err(UploadRefused::WrongLength { signed, got });
    }
    let got = digester.finish();
    if let Some(signed) = declared.sha256.filter(|signed| *signed != got) {
        return Err(UploadRefused::WrongDigest { signed, got });
    }
    file.flush().await?;
    Ok(file.sync_all().await?)
}

fn remove_partials(dir: &Path, own: &str) -> io::Result<u64> {
    let entries = match std::fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let about = match entry.metadata() {
            // Removed since it was listed.
            Err(err) if err.kind() == io::ErrorKind::NotFound => continue,
            about => about?,
        };
        if about.is_dir() {
            removed += remove_partials(&entry.path(), own)?;
        } else if name.starts_with('.') && name.ends_with(PARTIAL) && !name.starts_with(own) {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The next piece of an upload, unless it stalls.
async fn next_within(
    body: &mut (impl Stream<Item = Result<Bytes, io::Error>> + Unpin),
    wait: Duration,
) -> Result<Option<Bytes>, UploadRefused> {
    match tokio::time::timeout(wait, body.try_next()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(_)) | Err(_) => Err(UploadRefused::CutOff),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::DataDir;

    const TTL: Duration = Duration::from_secs(60);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    struct Fixture {
        dir: tempfile::TempDir,
        store: LocalStore,
        execution: ExecutionId,
        node: NodeId,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("secrets")).unwrap();
        let data = DataDir::new(dir.path());
        data.write_keys().unwrap();
        let store = LocalStore::new(
            data.outputs(),
            "https://c".into(),
            data.server_key().unwrap(),
            Pace {
                url_ttl: TTL,
                bytes_per_second_min: 1,
            },
            1 << 20,
        );
        Fixture {
            store,
            dir,
            execution: ExecutionId::mint(at(0), [1; 10]),
            node: NodeId::mint(at(0), [2; 10]),
        }
    }

    impl Fixture {
        fn claim(&self, bytes: u64) -> UploadClaim {
            self.claim_of(Declared { bytes, sha256: None })
        }

        fn claim_of(&self, declared: Declared) -> UploadClaim {
            let key = output_key(self.execution, self.node);
            UploadClaim::of(&self.store.presign_upload(&key, declared, at(0)).url)
        }

        async fn put(
            &self,
            claim: &UploadClaim,
            bytes: &'static [u8],
            now: i64,
        ) -> Result<(), UploadRefused> {
            let body = futures_util::stream::iter([Ok(Bytes::from_static(bytes))]);
            let signed = self.store.check((self.execution, self.node), claim, at(now))?;
            self.store.receive(signed, body).await?.keep().await
        }

        async fn stored(&self) -> Option<Vec<u8>> {
            self.part(None).await
        }

        async fn part(&self, part: Option<Range<u64>>) -> Option<Vec<u8>> {
            let key = output_key(self.execution, self.node);
            let pieces = self.store.open(&key, part).await.ok()?;
            Some(pieces.map_ok(|b| b.to_vec()).try_concat().await.unwrap())
        }

        fn leftovers(&self) -> usize {
            let dir = self
                .dir
                .path()
                .join("outputs")
                .join(self.execution.to_string())
                .join(self.node.to_string());
            std::fs::read_dir(dir).map_or(0, |d| {
                d.filter(|e| e.as_ref().is_ok_and(|e| e.file_name() != "output"))
                    .count()
            })
        }
    }

    #[tokio::test]
    async fn what_was_signed_for_is_stored_and_may_be_stored_again() {
        let fixture = fixture();
        let claim = fixture.claim(5);
        fixture.put(&claim, b"hello", 1).await.unwrap();
        fixture.put(&claim, b"hello", 2).await.unwrap();
        assert_eq!(fixture.stored().await.unwrap(), b"hello");
        assert_eq!(fixture.leftovers(), 0);
    }

    #[tokio::test]
    async fn what_is_not_kept_was_never_there() {
        let fixture = fixture();
        let body = futures_util::stream::iter([Ok(Bytes::from_static(b"hello"))]);
        let claim = fixture.claim(5);
        drop(
            fixture
                .store
                .receive(
                    fixture
                        .store
                        .check((fixture.execution, fixture.node), &claim, at(1))
                        .unwrap(),
                    body,
                )
                .await
                .unwrap(),
        );
        assert!(fixture.stored().await.is_none());
        assert_eq!(fixture.leftovers(), 0);
    }

    #[tokio::test]
    async fn what_is_deleted_leaves_nothing_behind_and_may_be_deleted_again() {
        let fixture = fixture();
        fixture.put(&fixture.claim(5), b"hello", 1).await.unwrap();
        let outputs = fixture.dir.path().join("outputs");
        let execution = outputs.join(fixture.execution.to_string());
        std::fs::create_dir(execution.join("another")).unwrap();
        std::fs::write(
            execution.join(fixture.node.to_string()).join(".x.part"),
            b"cut off",
        )
        .unwrap();
        let key = output_key(fixture.execution, fixture.node);
        for _ in 0..2 {
            fixture.store.delete(&key).await.unwrap();
            assert!(fixture.stored().await.is_none());
            assert_eq!(std::fs::read_dir(&execution).unwrap().count(), 1);
        }
        std::fs::remove_dir(execution.join("another")).unwrap();
        fixture.store.delete(&key).await.unwrap();
        assert_eq!(std::fs::read_dir(&outputs).unwrap().count(), 0);
    }

    #[test]
    fn an_upload_earns_its_time_as_it_comes() {
        let pace = Pace {
            url_ttl: Duration::from_secs(900),
            bytes_per_second_min: 4096,
        };
        let seconds = |bytes| pace.time_for(bytes).as_secs();
        assert_eq!(
            [0, 4095, 4096, 64 << 20].map(seconds),
            [900, 900, 901, 900 + 16_384]
        );
        assert!(pace.time_for(u64::MAX) > Duration::from_secs(900));
    }

    #[tokio::test]
    async fn what_controls_before_this_one_left_unfinished_is_removed_and_nothing_else() {
        let fixture = fixture();
        fixture.put(&fixture.claim(5), b"hello", 1).await.unwrap();
        let key = output_key(fixture.execution, fixture.node);
        let kept = fixture.store.dir.join(key);
        let dir = kept.parent().unwrap();
        let own = format!("{}x{PARTIAL}", fixture.store.own_partial());
        for name in [".1.x.part", ".x.part", &own, "x.part", ".probe"] {
            std::fs::write(dir.join(name), b"cut off").unwrap();
        }
        assert_eq!(fixture.store.sweep().await.unwrap(), 2);
        let mut left: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected = [own.as_str(), ".probe", "output", "x.part"];
        expected.sort_unstable();
        assert_eq!(left, expected);
        assert_eq!(fixture.store.sweep().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_newer_upload_takes_the_place_of_the_one_under_way() {
        let fixture = fixture();
        // Together they would not fit.
        let bytes = vec![b'o'; 700_000];
        let claim = fixture.claim(bytes.len() as u64);
        let signed = || {
            let invocation = (fixture.execution, fixture.node);
            fixture.store.check(invocation, &claim, at(1)).unwrap()
        };
        let stalled = futures_util::stream::once(std::future::ready(Ok(Bytes::from_static(b"o"))))
            .chain(futures_util::stream::pending());
        let older = fixture.store.receive(signed(), Box::pin(stalled));
        let newer = async {
            let whole = futures_util::stream::iter([Ok(Bytes::from(bytes.clone()))]);
            fixture.store.receive(signed(), whole).await?.keep().await
        };
        let (older, newer) = tokio::join!(older, newer);
        assert!(matches!(older.map(drop), Err(UploadRefused::Replaced)));
        newer.unwrap();
        assert_eq!(fixture.stored().await.unwrap(), bytes);
        assert_eq!(fixture.leftovers(), 0);
    }

    #[tokio::test]
    async fn another_size_changes_nothing() {
        let fixture = fixture();
        fixture.put(&fixture.claim(5), b"hello", 1).await.unwrap();
        for (bytes, got) in [(&b"hell"[..], 4), (b"hello!", 6)] {
            let refused = fixture.put(&fixture.claim(5), bytes, 1).await.unwrap_err();
            assert!(
                matches!(refused, UploadRefused::WrongLength { signed: 5, got: g } if g == got),
                "{refused}"
            );
        }
        assert_eq!(fixture.stored().await.unwrap(), b"hello");
        assert_eq!(fixture.leftovers(), 0);
    }

    #[tokio::test]
    async fn a_url_for_one_digest_takes_those_bytes_and_no_others() {
        let fixture = fixture();
        let sha256 = Some(Digest::of(b"hello"));
        let claim = fixture.claim_of(Declared { bytes: 5, sha256 });
        assert!(matches!(
            fixture.put(&claim, b"hella", 1).await,
            Err(UploadRefused::WrongDigest { .. })
        ));
        assert!(fixture.stored().await.is_none());
        assert_eq!(fixture.leftovers(), 0);
        fixture.put(&claim, b"hello", 1).await.unwrap();
        assert_eq!(fixture.stored().await.unwrap(), b"hello");
        assert_eq!(fixture.part(Some(1..4)).await.unwrap(), b"ell");
        assert_eq!(fixture.part(Some(4..5)).await.unwrap(), b"o");
    }

    #[tokio::test]
    async fn what_is_put_in_place_again_is_another_object() {
        let fixture = fixture();
        let key = output_key(fixture.execution, fixture.node);
        fixture.put(&fixture.claim(5), b"hello", 1).await.unwrap();
        let first = fixture.store.look(&key).await.unwrap();
        assert_eq!(first.bytes, 5);
        assert_eq!(fixture.store.look(&key).await.unwrap().mark, first.mark);
        fixture.put(&fixture.claim(5), b"hella", 1).await.unwrap();
        assert_ne!(fixture.store.look(&key).await.unwrap().mark, first.mark);
    }
}
