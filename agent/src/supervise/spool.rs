//! Output on its way to disk, in bounded memory and bounded space: past the limit the head and the tail are kept, and
//! the cut is said.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use muster_shared::ids::{Digest, Digester};

use super::mask::Mask;
use crate::{effect, outcome::Output, run_dir::RunDir};

/// Room for the line that says how much is missing.
const MARKER_BYTES_MAX: u64 = 64;

pub(super) struct Spool {
    head: File,
    head_path: PathBuf,
    head_bytes: u64,
    head_bytes_max: u64,
    tail: Ring,
    /// Nothing goes past it.
    mask: Option<Mask>,
    total_bytes: u64,
    /// Why no more is being kept: a full disk must not stop the hook, whose pipe is drained all the same.
    broken: Option<io::Error>,
}

/// The last bytes, written round and round in a file of fixed size.
struct Ring {
    file: Option<File>,
    path: PathBuf,
    capacity: u64,
    written: u64,
}

impl Spool {
    pub(super) fn create(run: &RunDir, bytes_max: u64, mask: Option<Mask>) -> io::Result<Self> {
        let head_bytes_max = bytes_max / 2;
        Ok(Self {
            head: create(&run.output())?,
            head_path: run.output(),
            head_bytes: 0,
            head_bytes_max,
            tail: Ring {
                file: None,
                path: run.path().join("output.tail"),
                capacity: bytes_max - head_bytes_max,
                written: 0,
            },
            mask,
            total_bytes: 0,
            broken: None,
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        match self.mask.take() {
            None => self.put(bytes),
            Some(mut mask) => {
                mask.pass(bytes, |bytes| self.put(bytes));
                self.mask = Some(mask);
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.total_bytes += bytes.len() as u64;
        if self.broken.is_none() {
            self.broken = self.keep(bytes).err();
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.head_bytes_max - self.head_bytes).unwrap_or(usize::MAX);
        let (head, tail) = bytes.split_at(room.min(bytes.len()));
        self.head.write_all(head)?;
        self.head_bytes += head.len() as u64;
        self.tail.write(tail)
    }

    /// What was kept, and a remark when that is less than it should be.
    pub(super) fn finish(mut self) -> (Output, Option<String>) {
        if let Some(mask) = self.mask.take() {
            mask.finish(|bytes| self.put(bytes));
        }
        if self.broken.is_none() {
            self.broken = self.append_tail().err();
        }
        let remark = self
            .broken
            .as_ref()
            .map(|err| format!("output_incomplete: the spool could not be written: {err}"));
        let summed = self.head.sync_all().and_then(|()| digest_of(&self.head_path));
        effect::done("the spool");
        match summed {
            Ok((0, _)) => (Output::None, remark),
            Ok((kept_bytes, sha256)) => (
                Output::Spool {
                    kept_bytes,
                    total_bytes: self.total_bytes,
                    sha256,
                },
                remark,
            ),
            Err(err) => (
                Output::None,
                Some(format!("output_incomplete: the spool could not be read: {err}")),
            ),
        }
    }

    fn append_tail(&mut self) -> io::Result<()> {
        let Some(ring) = self.tail.file.take() else {
            return Ok(());
        };
        let mut kept = self.tail.written;
        if kept > self.tail.capacity {
            kept = self.tail.capacity - MARKER_BYTES_MAX;
            let cut = self.tail.written - kept;
            self.head
                .write_all(format!("\n[muster: {cut} bytes cut here]\n").as_bytes())?;
        }
        let mut buffer = vec![0; 64 * 1024];
        let mut position = self.tail.written - kept;
        while position < self.tail.written {
            let at = position % self.tail.capacity;
            let count = (self.tail.capacity - at)
                .min(self.tail.written - position)
                .min(buffer.len() as u64);
            let piece = &mut buffer[..usize::try_from(count).unwrap_or(usize::MAX)];
            ring.read_exact_at(piece, at)?;
            self.head.write_all(piece)?;
            position += count;
        }
        fs::remove_file(&self.tail.path)
    }
}

impl Ring {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(create(&self.path)?),
        };
        while !bytes.is_empty() {
            let at = self.written % self.capacity;
            let room = usize::try_from(self.capacity - at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            file.write_all_at(now, at)?;
            self.written += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }
}

fn create(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

fn digest_of(path: &std::path::Path) -> io::Result<(u64, Digest)> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 64 * 1024];
    let (mut digester, mut total) = (Digester::default(), 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((total, digester.finish())),
            count => {
                digester.update(&buffer[..count]);
                total += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spooled(bytes_max: u64, pieces: &[&[u8]]) -> (Vec<u8>, Output) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().to_owned());
        let mut spool = Spool::create(&run, bytes_max, None).unwrap();
        pieces.iter().for_each(|piece| spool.write(piece));
        let (output, remark) = spool.finish();
        assert_eq!(remark, None);
        assert!(!dir.path().join("output.tail").exists());
        (fs::read(run.output()).unwrap(), output)
    }

    #[test]
    fn up_to_the_limit_every_byte_is_kept() {
        for length in [0, 1, 2047, 2048, 2049, 4095, 4096] {
            let bytes: Vec<u8> = (0..length).map(|n: u32| n.to_le_bytes()[0]).collect();
            let (kept, output) = spooled(4096, &[&bytes]);
            assert_eq!(kept, bytes);
            if length > 0 {
                let total_bytes = u64::from(length);
                let expected = Output::Spool {
                    kept_bytes: total_bytes,
                    total_bytes,
                    sha256: Digest::of(&bytes),
                };
                assert_eq!(output, expected);
            }
        }
    }

    #[test]
    fn past_the_limit_the_middle_is_cut_and_the_count_is_exact() {
        let bytes: Vec<u8> = (0..100_000_u32)
            .map(|n| b'a' + (n % 26).to_le_bytes()[0])
            .collect();
        let pieces: Vec<&[u8]> = bytes.chunks(777).collect();
        let (kept, output) = spooled(4096, &pieces);
        let cut = 100_000 - 2048 - (2048 - MARKER_BYTES_MAX);
        let marker = format!("\n[muster: {cut} bytes cut here]\n");
        assert_eq!(kept[..2048], bytes[..2048]);
        assert_eq!(&kept[2048..2048 + marker.len()], marker.as_bytes());
        assert_eq!(
            kept[2048 + marker.len()..],
            bytes[2048 + usize::try_from(cut).unwrap()..]
        );
        assert!(kept.len() <= 4096);
        let sha256 = Digest::of(&kept);
        assert_eq!(
            output,
            Output::Spool {
                kept_bytes: kept.len() as u64,
                total_bytes: 100_000,
                sha256
            }
        );
    }
}
