//! The audit trail as a chain: each row carries the hash of the row before it and its own, over both.
//!
//! Control appends, anybody who may read walks: the hash and the walk are here so that they cannot differ. A chain
//! proves that nothing in it was changed since; that it was not written anew as a whole is proved by an [`Anchor`] kept
//! elsewhere.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{Digest, DomainId, RowId},
    time::Timestamp,
};

/// Keeps the hash of a row from being one of anything else.
const TAG: &[u8] = b"muster/audit/v1\0";
/// In how many places a misplaced row is looked for.
const MOVED_SEARCH_MAX: usize = 1 << 20;
/// The relation of the row that says up to where rows were pruned: its detail is that [`Anchor`].
pub const PRUNE_RELATION: &str = "retention.audit";
/// What the first row of a domain follows.
pub const GENESIS: Digest = Digest::from_bytes([0; 32]);

/// One row, as it is stored and shown. Texts stay as they were found: a row that was tampered with must still be shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AuditRow {
    pub domain_id: DomainId,
    /// 1 for the first row of the domain, then without a gap.
    pub seq: u64,
    pub at: Timestamp,
    /// `token:…`, `node:…`, `bootstrap-token:…`, or `system`.
    pub subject: String,
    /// The operation: `actions.dispatch`, `insufficient_relation`, `token.revoke`, …
    pub relation: String,
    /// `project:…`, `resource:…`, `execution:…`, `domain:…`, …
    pub resource: String,
    /// `granted`, `denied`, `permission_denied`, `invariant_violation` or `internal_error`.
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["granted", "denied", "permission_denied", "invariant_violation", "internal_error"])))]
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The same as in the refusal that the caller was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<RowId>,
    pub previous_hash: Digest,
    pub hash: Digest,
}

impl AuditRow {
    /// The hash that this row must have: over the previous hash and every field, each with its length.
    #[must_use]
    pub fn computed_hash(&self) -> Digest {
        self.hash_as(self.seq)
    }

    fn hash_as(&self, seq: u64) -> Digest {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(TAG);
        bytes.extend_from_slice(self.previous_hash.as_bytes());
        bytes.extend_from_slice(self.domain_id.uuid().as_bytes());
        bytes.extend_from_slice(&seq.to_be_bytes());
        bytes.extend_from_slice(&self.at.as_millis().to_be_bytes());
        for text in [&self.subject, &self.relation, &self.resource, &self.outcome] {
            put(&mut bytes, text.as_bytes());
        }
        put_opt(&mut bytes, self.detail.as_deref().map(str::as_bytes));
        let correlation = self.correlation_id.map(RowId::uuid);
        put_opt(&mut bytes, correlation.as_ref().map(|id| &id.as_bytes()[..]));
        Digest::of(&bytes)
    }

    #[must_use]
    pub const fn anchor(&self) -> Anchor {
        Anchor {
            seq: self.seq,
            hash: self.hash,
        }
    }
}

fn put(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(&(field.len() as u64).to_be_bytes());
    bytes.extend_from_slice(field);
}

fn put_opt(bytes: &mut Vec<u8>, field: Option<&[u8]>) {
    bytes.push(u8::from(field.is_some()));
    if let Some(field) = field {
        put(bytes, field);
    }
}

/// A row's place and hash: `SEQ:sha256:…`. Kept elsewhere, it proves later that the chain up to there is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Anchor {
    pub seq: u64,
    pub hash: Digest,
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

/// The text is no anchor.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not SEQ:sha256:HEX, as `audit verify` prints it")]
pub struct BadAnchor(String);

impl FromStr for Anchor {
    type Err = BadAnchor;
    fn from_str(raw: &str) -> Result<Self, BadAnchor> {
        let bad = || BadAnchor(raw.to_owned());
        let (seq, hash) = raw.split_once(':').ok_or_else(bad)?;
        Ok(Self {
            seq: seq.parse().map_err(|_| bad())?,
            hash: hash.parse().map_err(|_| bad())?,
        })
    }
}

/// `GET /v1/audit`: rows and, from the same moment, the end of the chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AuditPage {
    pub items: Vec<AuditRow>,
    #[serde(default)]
    pub next_cursor: Option<String>,
    /// `null` while the domain has no row.
    pub head: Option<Anchor>,
    /// The last row that was pruned: the chain goes on after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruned: Option<Anchor>,
}

/// The first place where a chain is not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    #[error("row {seq} is missing")]
    Missing { seq: u64 },
    #[error("row {seq} was changed after it was written")]
    Changed { seq: u64 },
    #[error("row {seq} was written as row {was}: rows were reordered, or one before it was taken out")]
    Moved { seq: u64, was: u64 },
    #[error("row {seq} does not follow the row before it: one of the two was replaced")]
    Unlinked { seq: u64 },
    #[error("row {seq} is the last, but the chain was longer or ended otherwise: its end is at row {head}")]
    Cut { seq: u64, head: u64 },
    #[error(
        "row {seq} is not the one that was there when the given anchor was taken: the chain was written anew"
    )]
    NotTheAnchor { seq: u64 },
    #[error(
        "row {seq}, of which the anchor was given, was pruned with all up to row {pruned}: what holds cannot be compared with it"
    )]
    AnchorPruned { seq: u64, pruned: u64 },
    #[error("rows up to {seq} are missing, and no row of the chain says that they were pruned")]
    PruneUnsaid { seq: u64 },
}

/// A walk along one chain, oldest row first.
#[derive(Debug)]
pub struct Walk {
    last: Anchor,
    /// How far a misplaced row is searched for.
    head: u64,
    anchor: Option<Anchor>,
    /// Up to where rows were pruned, by the record beside the chain and by the chain itself.
    pruned: Option<Anchor>,
    pruned_said: Option<Anchor>,
}

impl Walk {
    /// `head` is where the chain is said to end; `anchor` a row known from before.
    #[must_use]
    pub fn new(head: Option<Anchor>, anchor: Option<Anchor>) -> Self {
        Self {
            last: Anchor {
                seq: 0,
                hash: GENESIS,
            },
            head: head.map_or(0, |head| head.seq),
            anchor,
            pruned: None,
            pruned_said: None,
        }
    }

    /// Takes the record of what was pruned, which must be of the same moment as the rows that are stepped along next: it
    /// may have grown since the last ones.
    ///
    /// # Errors
    /// When the anchor is another than the row that was pruned, or went with those before it.
    pub fn begins_after(&mut self, pruned: Option<Anchor>) -> Result<(), Broken> {
        let Some(pruned) = pruned else { return Ok(()) };
        self.pruned = Some(pruned);
        if pruned.seq <= self.last.seq {
            return Ok(());
        }
        match self.anchor {
            Some(known) if known.seq == pruned.seq && known.hash != pruned.hash => {
                return Err(Broken::NotTheAnchor { seq: known.seq });
            }
            Some(known) if known.seq > self.last.seq && known.seq < pruned.seq => {
                return Err(Broken::AnchorPruned {
                    seq: known.seq,
                    pruned: pruned.seq,
                });
            }
            Some(_) | None => {}
        }
        self.last = pruned;
        Ok(())
    }

    /// The last row that held.
    #[must_use]
    pub const fn last(&self) -> Anchor {
        self.last
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// When it is not what must stand there.
    pub fn step(&mut self, row: &AuditRow) -> Result<(), Broken> {
        let seq = self.last.seq + 1;
        if row.seq != seq {
            return Err(Broken::Missing { seq });
        }
        if row.computed_hash() != row.hash {
            let was = (1..=self.head.max(seq))
                .take(MOVED_SEARCH_MAX)
                .find(|was| row.hash_as(*was) == row.hash);
            return Err(was.map_or(Broken::Changed { seq }, |was| Broken::Moved { seq, was }));
        }
        if row.previous_hash != self.last.hash {
            return Err(Broken::Unlinked { seq });
        }
        if self
            .anchor
            .is_some_and(|known| known.seq == seq && known.hash != row.hash)
        {
            return Err(Broken::NotTheAnchor { seq });
        }
        if row.relation == PRUNE_RELATION && row.subject == "system" {
            self.pruned_said = row.detail.as_deref().and_then(|said| said.parse().ok());
        }
        self.last = row.anchor();
        Ok(())
    }

    /// There are no more rows; `head` is where the chain ends by its own record of that moment.
    ///
    /// # Errors
    /// When rows are cut off at either side, or the chain is shorter than the anchor.
    pub fn end(&self, head: Option<Anchor>) -> Result<(), Broken> {
        let head = head.unwrap_or(Anchor {
            seq: 0,
            hash: GENESIS,
        });
        if head.seq > self.last.seq {
            return Err(Broken::Missing {
                seq: self.last.seq + 1,
            });
        }
        if head != self.last {
            return Err(Broken::Cut {
                seq: self.last.seq,
                head: head.seq,
            });
        }
        if let Some(pruned) = self.pruned
            && self.pruned_said != Some(pruned)
        {
            return Err(Broken::PruneUnsaid { seq: pruned.seq });
        }
        match self.anchor {
            Some(known) if known.seq > self.last.seq => Err(Broken::Missing {
                seq: self.last.seq + 1,
            }),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: u64) -> Vec<AuditRow> {
        let mut previous_hash = GENESIS;
        (1..=n)
            .map(|seq| {
                let mut row = AuditRow {
                    domain_id: DomainId::mint(Timestamp::from_millis(1), [1; 10]),
                    seq,
                    at: Timestamp::from_millis(i64::try_from(seq).unwrap()),
                    subject: "system".into(),
                    relation: "actions.timeout".into(),
                    resource: format!("execution:{seq}"),
                    outcome: "granted".into(),
                    detail: (seq % 2 == 0).then(|| "d".into()),
                    correlation_id: None,
                    previous_hash,
                    hash: GENESIS,
                };
                row.hash = row.computed_hash();
                previous_hash = row.hash;
                row
            })
            .collect()
    }

    fn verify(rows: &[AuditRow], head: Option<Anchor>, anchor: Option<Anchor>) -> Result<Anchor, Broken> {
        let mut walk = Walk::new(head, anchor);
        for row in rows {
            walk.step(row)?;
        }
        walk.end(head)?;
        Ok(walk.last())
    }

    #[test]
    fn a_whole_chain_holds_and_says_where_it_ends() {
        let rows = chain(5);
        let head = rows[4].anchor();
        assert_eq!(verify(&rows, Some(head), None), Ok(head));
        assert_eq!(verify(&rows, Some(head), Some(rows[2].anchor())), Ok(head));
        assert!(verify(&[], None, None).is_ok());
        assert_eq!(head.to_string().parse::<Anchor>().unwrap(), head);
        assert!("5".parse::<Anchor>().is_err());
    }

    #[test]
    fn every_field_is_under_the_hash() {
        let change: [fn(&mut AuditRow); 8] = [
            |row| row.at = Timestamp::from_millis(9),
            |row| row.subject.push('x'),
            |row| row.relation.push('x'),
            |row| row.resource.push('x'),
            |row| row.outcome = "denied".into(),
            |row| row.detail = Some(String::new()),
            |row| row.correlation_id = Some(RowId::mint(Timestamp::from_millis(1), [1; 10])),
            |row| row.domain_id = DomainId::mint(Timestamp::from_millis(2), [1; 10]),
        ];
        for change in change {
            let mut rows = chain(5);
            let head = rows[4].anchor();
            change(&mut rows[2]);
            assert_eq!(verify(&rows, Some(head), None), Err(Broken::Changed { seq: 3 }));
        }
        // Bytes that move from one field to the next are a change too.
        let (mut a, mut b) = (chain(1).remove(0), chain(1).remove(0));
        (a.subject, a.relation) = ("ab".into(), "c".into());
        (b.subject, b.relation) = ("a".into(), "bc".into());
        assert_ne!(a.computed_hash(), b.computed_hash());
    }

    #[test]
    fn what_is_missing_moved_or_replaced_is_named() {
        let whole = chain(5);
        let head = Some(whole[4].anchor());
        for (gone, seq) in [(0, 1), (2, 3), (4, 5)] {
            let mut rows = whole.clone();
            rows.remove(gone);
            assert_eq!(verify(&rows, head, None), Err(Broken::Missing { seq }));
        }
        let mut rows = whole.clone();
        rows.swap(1, 2);
        (rows[1].seq, rows[2].seq) = (2, 3);
        assert_eq!(verify(&rows, head, None), Err(Broken::Moved { seq: 2, was: 3 }));

        // Whoever computes the hash of the changed row anew breaks the link to the next.
        let mut rows = whole.clone();
        rows[2].subject = "token:other".into();
        rows[2].hash = rows[2].computed_hash();
        assert_eq!(verify(&rows, head, None), Err(Broken::Unlinked { seq: 4 }));
        // Whoever writes everything anew cannot make the anchor hold.
        let mut forged = whole.clone();
        let mut previous = GENESIS;
        for row in &mut forged {
            row.resource = "execution:other".into();
            row.previous_hash = previous;
            row.hash = row.computed_hash();
            previous = row.hash;
        }
        let forged_head = Some(forged[4].anchor());
        assert!(verify(&forged, forged_head, None).is_ok());
        let known = Some(whole[2].anchor());
        assert_eq!(
            verify(&forged, forged_head, known),
            Err(Broken::NotTheAnchor { seq: 3 })
        );
        // Rows past a head that was set back.
        assert_eq!(
            verify(&whole, Some(whole[3].anchor()), None),
            Err(Broken::Cut { seq: 5, head: 4 })
        );
        let short = Some(whole[1].anchor());
        assert_eq!(
            verify(&whole[..2], short, Some(whole[4].anchor())),
            Err(Broken::Missing { seq: 3 })
        );
    }

    /// A chain of which the first `n` rows were pruned, with the row that says so at its end.
    fn pruned_chain(rows: &[AuditRow], n: usize) -> (Vec<AuditRow>, Anchor) {
        let (anchor, last) = (rows[n - 1].anchor(), rows.last().unwrap());
        let mut said = AuditRow {
            seq: last.seq + 1,
            relation: PRUNE_RELATION.into(),
            detail: Some(anchor.to_string()),
            previous_hash: last.hash,
            ..last.clone()
        };
        said.hash = said.computed_hash();
        (rows[n..].iter().cloned().chain([said]).collect(), anchor)
    }

    fn verify_pruned(
        rows: &[AuditRow],
        pruned: Option<Anchor>,
        anchor: Option<Anchor>,
    ) -> Result<Anchor, Broken> {
        let head = rows.last().map(AuditRow::anchor);
        let mut walk = Walk::new(head, anchor);
        walk.begins_after(pruned)?;
        for row in rows {
            walk.step(row)?;
        }
        walk.end(head)?;
        Ok(walk.last())
    }

    #[test]
    fn a_pruned_chain_goes_on_from_what_was_pruned_and_says_so_itself() {
        let whole = chain(5);
        let (rows, pruned) = pruned_chain(&whole, 3);
        let head = rows.last().unwrap().anchor();
        assert_eq!(verify_pruned(&rows, Some(pruned), None), Ok(head));
        // What is known from before is compared as long as it is there.
        assert_eq!(
            verify_pruned(&rows, Some(pruned), Some(whole[3].anchor())),
            Ok(head)
        );
        assert_eq!(verify_pruned(&rows, Some(pruned), Some(pruned)), Ok(head));
        let other = Anchor {
            hash: GENESIS,
            ..pruned
        };
        assert_eq!(
            verify_pruned(&rows, Some(pruned), Some(other)),
            Err(Broken::NotTheAnchor { seq: 3 })
        );
        assert_eq!(
            verify_pruned(&rows, Some(pruned), Some(whole[0].anchor())),
            Err(Broken::AnchorPruned { seq: 1, pruned: 3 })
        );
        // Rows that were cut off and not pruned.
        assert_eq!(verify_pruned(&rows, None, None), Err(Broken::Missing { seq: 1 }));
        assert_eq!(
            verify_pruned(&rows[1..], Some(rows[0].anchor()), None),
            Err(Broken::PruneUnsaid { seq: 4 })
        );
        assert_eq!(
            verify_pruned(&whole[3..], Some(pruned), None),
            Err(Broken::PruneUnsaid { seq: 3 })
        );
        // A record of another row does not lead to those that are there.
        assert_eq!(
            verify_pruned(&rows, Some(other), None),
            Err(Broken::Unlinked { seq: 4 })
        );
    }

    #[test]
    fn a_prune_in_the_middle_of_a_walk_is_followed() {
        let whole = chain(5);
        let mut walk = Walk::new(Some(whole[4].anchor()), None);
        walk.step(&whole[0]).unwrap();
        let (rows, pruned) = pruned_chain(&whole, 3);
        walk.begins_after(Some(pruned)).unwrap();
        for row in &rows {
            walk.step(row).unwrap();
        }
        walk.end(rows.last().map(AuditRow::anchor)).unwrap();
    }
}
