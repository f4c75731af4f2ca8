//! What the nodes of a swarm wrote down: one file for all, appended, and durable when [`Journal::keep`] returns.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use tokio::sync::oneshot;

/// How many records one `fdatasync` covers at most.
const GROUP_MAX: usize = 16_384;

struct Record {
    line: String,
    kept: oneshot::Sender<()>,
}

pub struct Journal {
    records: mpsc::Sender<Record>,
    syncs: Arc<AtomicU64>,
}

impl Journal {
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let (records, incoming) = mpsc::channel();
        let syncs = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&syncs);
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || write(file, &incoming, &count))?;
        Ok(Self { records, syncs })
    }

    /// Returns once the line is on the disk.
    ///
    /// # Panics
    /// When it cannot be written: a node that cannot remember must not go on.
    pub async fn keep(&self, line: String) {
        let (kept, durable) = oneshot::channel();
        let sent = self.records.send(Record { line, kept });
        assert!(sent.is_ok(), "the journal's writer is gone");
        durable.await.expect("the journal can be written");
    }

    /// How many times the disk was waited for.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }
}

fn write(mut file: File, incoming: &mpsc::Receiver<Record>, syncs: &AtomicU64) {
    let mut group = Vec::new();
    let mut bytes = Vec::new();
    while let Ok(first) = incoming.recv() {
        bytes.clear();
        let more = incoming.try_iter().take(GROUP_MAX);
        for record in std::iter::once(first).chain(more) {
            bytes.extend_from_slice(record.line.as_bytes());
            bytes.push(b'\n');
            group.push(record.kept);
        }
        // Nobody is told that it is kept when it is not: their wait ends with an error.
        if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        syncs.fetch_add(1, Ordering::Relaxed);
        for kept in group.drain(..) {
            // Whoever does not wait any more has ended.
            let _ = kept.send(());
        }
    }
}
