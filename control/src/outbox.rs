//! How far a service has read the outbox.
//!
//! Ids are given out before their commit. Where several services write, a row may appear below one that was read already:
//! a reader that only went forward would pass it by. So what is missing between the ids that were read is asked for again
//! until it is there, or so old that it was taken back.

use std::{collections::BTreeMap, time::Duration};

use muster_shared::time::Timestamp;

/// A transaction that has not committed for so long was taken back.
const MISSING_MAX: Duration = Duration::from_secs(60);
/// How many missing ids are asked for at a time; of more than that, redelivery finds what was missed.
const ASKED_MAX: usize = 1000;

#[derive(Default, Debug)]
pub(crate) struct Cursor {
    /// The highest id that was read; none before the first.
    last: Option<i64>,
    /// The ids below it that were not there, and since when.
    missing: BTreeMap<i64, Timestamp>,
}

impl Cursor {
    /// Rows after this one are to be read.
    pub(crate) fn after(&self) -> i64 {
        self.last.unwrap_or(0)
    }

    /// All up to here was read, or does not come any more.
    pub(crate) fn whole(&self) -> i64 {
        let before_the_gap = self.missing.keys().next().map(|missing| missing - 1);
        before_the_gap.unwrap_or_else(|| self.after())
    }

    /// These before it, too.
    pub(crate) fn missing(&self) -> Vec<i64> {
        self.missing.keys().copied().collect()
    }

    /// Notes a row that was read.
    pub(crate) fn read(&mut self, id: i64, now: Timestamp) {
        if self.missing.remove(&id).is_some() {
            return;
        }
        let Some(last) = self.last else {
            // What was before the first is nobody's who connects later than now.
            self.last = Some(id);
            return;
        };
        let room = ASKED_MAX.saturating_sub(self.missing.len());
        self.missing.extend((last + 1..id).take(room).map(|id| (id, now)));
        self.last = Some(id.max(last));
    }

    /// Gives up what will not come any more.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        let oldest = now.minus(MISSING_MAX);
        self.missing.retain(|_, since| *since > oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    /// What a reader finds of the committed rows.
    fn found(cursor: &Cursor, committed: &BTreeSet<i64>) -> Vec<i64> {
        let missing = cursor.missing();
        let wanted = |id: &&i64| **id > cursor.after() || missing.contains(id);
        committed.iter().filter(wanted).copied().collect()
    }

    proptest! {
        /// In whatever order rows appear, each is read once.
        #[test]
        fn every_row_is_read_once(order in Just((1..=40_i64).collect::<Vec<_>>()).prop_shuffle(), at_once in 1..5_usize) {
            let (mut cursor, mut committed, mut read) = (Cursor::default(), BTreeSet::new(), Vec::new());
            // One is there before anybody looks.
            committed.insert(0);
            cursor.read(0, at(0));
            for rows in order.chunks(at_once) {
                committed.extend(rows);
                for id in found(&cursor, &committed) {
                    cursor.read(id, at(1));
                    read.push(id);
                }
                // Whoever deletes up to there deletes nothing that is still to come.
                prop_assert!((1..=cursor.whole()).all(|id| read.contains(&id)));
            }
            prop_assert_eq!(cursor.whole(), 40);
            read.sort_unstable();
            prop_assert_eq!(read, (1..=40).collect::<Vec<_>>());
            prop_assert!(cursor.missing().is_empty());
        }
    }

    #[test]
    fn what_was_taken_back_is_not_asked_for_for_ever() {
        let mut cursor = Cursor::default();
        cursor.read(5, at(0));
        cursor.read(9, at(1));
        assert_eq!((cursor.after(), cursor.missing()), (9, vec![6, 7, 8]));
        assert_eq!(cursor.whole(), 5);
        cursor.read(7, at(2));
        cursor.forget(at(60));
        assert_eq!(cursor.missing(), [6, 8]);
        cursor.forget(at(61));
        assert_eq!((cursor.missing(), cursor.whole()), (vec![], 9));
        cursor.read(1_000_000, at(62));
        assert_eq!(cursor.missing().len(), ASKED_MAX);
    }
}
