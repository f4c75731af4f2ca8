//! What is different for a control that was restored from a backup: it has forgotten what its nodes remember.
//!
//! Every node is asked, with the answer to its heartbeat, to tell again what it did since the backup was taken. Until there
//! was time for that nothing is timed out: of what was under way at the backup a node's word is better than ours.

use std::{fs, io, time::Duration};

use muster_shared::{time::Timestamp, wire};
use serde::{Deserialize, Serialize};

use crate::{
    audit::{self, Entry},
    authz,
    keys::DataDir,
    store::{Store, StoreError},
};

/// The mark that `restore` leaves in a data directory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Restored {
    pub(crate) restored_at: Timestamp,
    /// When the backup was taken: everything later is lost here.
    pub(crate) taken_at: Timestamp,
    /// When it was served first. Nodes have their time from then on.
    pub(crate) served_at: Option<Timestamp>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoredError {
    #[error("the mark of the restore")]
    Io(#[from] io::Error),
    #[error("the audit rows of the restore")]
    Store(#[from] StoreError),
}

impl Restored {
    /// The mark, if the data directory was ever restored.
    pub(crate) fn read(data: &DataDir) -> io::Result<Option<Self>> {
        let path = data.restored();
        let raw = match fs::read(&path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            raw => raw?,
        };
        serde_json::from_slice(&raw)
            .map(Some)
            .map_err(|err| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {err}", path.display())))
    }

    /// Whole or not at all.
    pub(crate) fn write(&self, data: &DataDir) -> io::Result<()> {
        let path = data.restored();
        let aside = path.with_extension("new");
        let bytes = serde_json::to_vec_pretty(self)?;
        let file = fs::File::create(&aside)?;
        io::Write::write_all(&mut &file, &bytes)?;
        file.sync_all()?;
        fs::rename(&aside, &path)?;
        fs::File::open(data.path())?.sync_all()
    }

    /// Whether nodes that come back still have their time to tell what they did.
    pub(crate) fn holds(&self, now: Timestamp, grace: Duration) -> bool {
        self.served_at.is_none_or(|since| now < since.plus(grace))
    }

    /// What a node is told.
    pub(crate) const fn news(&self) -> wire::Restored {
        wire::Restored {
            restored_at: self.restored_at,
            taken_at: self.taken_at,
        }
    }
}

/// What every start of the service does about it: the first one notes it in each chain of audit rows.
pub(crate) async fn take_up(
    store: &Store,
    data: &DataDir,
    now: Timestamp,
) -> Result<Option<Restored>, RestoredError> {
    let Some(mut mark) = Restored::read(data)? else {
        return Ok(None);
    };
    log::warn!(restored_at:% = mark.restored_at, taken_at:% = mark.taken_at;
        "This control was restored from the backup of {}", mark.taken_at);
    if mark.served_at.is_some() {
        return Ok(Some(mark));
    }
    let domains = store.all_domains().await?;
    let mut tx = store.begin().await?;
    for domain in domains {
        let detail = format!(
            "the backup of {}, restored at {}",
            mark.taken_at, mark.restored_at
        );
        let entry = Entry::granted(audit::SYSTEM, "control.restore", authz::domain(domain)).with(detail);
        tx.append_audit(domain, &[entry], now).await?;
    }
    tx.commit().await?;
    mark.served_at = Some(now);
    mark.write(data)?;
    Ok(Some(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_timed_out_before_nodes_had_their_time() {
        let at = Timestamp::from_millis;
        let grace = Duration::from_secs(2);
        let mut mark = Restored {
            restored_at: at(1000),
            taken_at: at(0),
            served_at: None,
        };
        assert!(mark.holds(at(100_000), grace));
        mark.served_at = Some(at(5000));
        assert!(mark.holds(at(6999), grace));
        assert!(!mark.holds(at(7000), grace));
        assert!(!mark.holds(at(5000), Duration::ZERO));
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        assert!(Restored::read(&data).unwrap().is_none());
        let mark = Restored {
            restored_at: Timestamp::from_millis(2),
            taken_at: Timestamp::from_millis(1),
            served_at: None,
        };
        mark.write(&data).unwrap();
        let read = Restored::read(&data).unwrap().unwrap();
        assert_eq!((read.restored_at, read.served_at), (mark.restored_at, None));
        fs::write(data.restored(), "{").unwrap();
        assert!(Restored::read(&data).is_err());
    }
}
