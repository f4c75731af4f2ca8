//! How many refusals of one program are written down one by one. A node, and whoever holds a bootstrap token, asks as often
//! as it likes, and each row is a commit that everybody waits for: past a bucket of its own a refusal is counted only, and one
//! row tells the number once there is room again, or when the service stops.
//!
//! Operators have none: each refusal of theirs has its row, and `limits.requests_per_second` bounds them.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_shared::{ids::DomainId, time::Timestamp};

use crate::{
    audit::{self, Entry, Outcome},
    control::Control,
};

const HOUR: Duration = Duration::from_secs(3600);
/// How often is looked whether there is room for what was counted.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// What the row that tells it is called.
const COUNTED: &str = "refusals.counted";

/// Who is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused<'a> {
    pub(crate) subject: &'a str,
    pub(crate) domain: DomainId,
    /// What the row that counts is about: the node itself, or the project of the token.
    pub(crate) about: &'a str,
}

/// What is refused, and why: words of this program, of which there are few.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Kind {
    pub(crate) relation: &'static str,
    pub(crate) why: &'static str,
}

/// What becomes of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Turn {
    /// It gets its row.
    Written,
    /// It is one of many.
    Counted,
}

/// The buckets of all subjects. What stands here is lost with the process.
pub(crate) struct Refusals {
    per_hour: NonZeroU32,
    subjects: Mutex<HashMap<String, Subject>>,
}

struct Subject {
    domain: DomainId,
    about: String,
    /// When its bucket would be full again.
    full_at: Timestamp,
    counted: Counted,
}

/// Refusals that have no row yet.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Counted {
    kinds: BTreeMap<Kind, u64>,
    outcome: Outcome,
    first: Timestamp,
    last: Timestamp,
}

/// A row to be: so many more were refused.
struct Due {
    subject: String,
    domain: DomainId,
    about: String,
    counted: Counted,
}

impl Counted {
    const fn none(now: Timestamp) -> Self {
        Self {
            kinds: BTreeMap::new(),
            outcome: Outcome::InvariantViolation,
            first: now,
            last: now,
        }
    }

    fn is_none(&self) -> bool {
        self.kinds.is_empty()
    }

    fn add(&mut self, kind: Kind, outcome: Outcome, now: Timestamp) {
        if self.is_none() {
            *self = Self {
                outcome,
                ..Self::none(now)
            };
        }
        // The row is called after the worst of them.
        if outcome == Outcome::PermissionDenied {
            self.outcome = outcome;
        }
        self.last = self.last.max(now);
        *self.kinds.entry(kind).or_default() += 1;
    }

    fn merge(&mut self, earlier: Self) {
        let later = std::mem::replace(self, earlier);
        if later.is_none() {
            return;
        }
        if later.outcome == Outcome::PermissionDenied {
            self.outcome = later.outcome;
        }
        self.last = self.last.max(later.last);
        for (kind, more) in later.kinds {
            *self.kinds.entry(kind).or_default() += more;
        }
    }

    fn in_words(&self) -> String {
        let more: u64 = self.kinds.values().sum();
        let kinds: Vec<_> = self
            .kinds
            .iter()
            .map(|(kind, more)| format!("{more} {} {}", kind.relation, kind.why))
            .collect();
        format!(
            "{more} more were refused from {} to {}: {}",
            self.first,
            self.last,
            kinds.join(", ")
        )
    }
}

impl Refusals {
    /// So many may be written at once after a pause, and in an hour in the long run.
    pub(crate) fn new(per_hour: NonZeroU32) -> Self {
        Self {
            per_hour,
            subjects: Mutex::default(),
        }
    }

    fn subjects(&self) -> MutexGuard<'_, HashMap<String, Subject>> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a refusal gets a row of its own. Until those that were counted have theirs, further ones are counted too, or
    /// a flood would take each place for itself.
    pub(crate) fn turn(&self, who: Refused<'_>, kind: Kind, outcome: Outcome, now: Timestamp) -> Turn {
        let mut subjects = self.subjects();
        let subject = match subjects.get_mut(who.subject) {
            Some(subject) => subject,
            None => subjects.entry(who.subject.to_owned()).or_insert(Subject {
                domain: who.domain,
                about: who.about.to_owned(),
                full_at: now,
                counted: Counted::none(now),
            }),
        };
        if subject.counted.is_none() && subject.take(self.per_hour, now) {
            return Turn::Written;
        }
        subject.counted.add(kind, outcome, now);
        Turn::Counted
    }

    /// What is to be told of those that were counted: of whom there is room for, or of all.
    fn due(&self, all: bool, now: Timestamp) -> Vec<Due> {
        let mut subjects = self.subjects();
        let mut due = Vec::new();
        for (name, subject) in subjects.iter_mut() {
            if !subject.counted.is_none() && (subject.take(self.per_hour, now) || all) {
                due.push(Due {
                    subject: name.clone(),
                    domain: subject.domain,
                    about: subject.about.clone(),
                    counted: std::mem::replace(&mut subject.counted, Counted::none(now)),
                });
            }
        }
        // Whose bucket is full again begins anew.
        subjects.retain(|_, subject| !subject.counted.is_none() || subject.full_at > now);
        due
    }

    /// Counts again what could not be told.
    fn untold(&self, due: Due, now: Timestamp) {
        let mut subjects = self.subjects();
        let subject = subjects.entry(due.subject).or_insert(Subject {
            domain: due.domain,
            about: due.about,
            full_at: now,
            counted: Counted::none(now),
        });
        subject.counted.merge(due.counted);
    }
}

impl Subject {
    /// Takes a place of the bucket, if there is one.
    fn take(&mut self, per_hour: NonZeroU32, now: Timestamp) -> bool {
        let each = HOUR / per_hour.get();
        // A clock that was set back must not shut the bucket for longer than it takes to fill.
        let full_at = self.full_at.max(now).min(now.plus(HOUR));
        self.full_at = full_at;
        let taken = now.until(full_at) + each <= HOUR;
        if taken {
            self.full_at = full_at.plus(each);
        }
        taken
    }
}

/// Whether a refusal gets a row of its own now, and what is to be seen of one that does not.
pub(crate) fn turn(control: &Control, who: Refused<'_>, kind: Kind, outcome: Outcome) -> Turn {
    let turn = control.refusals.turn(who, kind, outcome, Timestamp::now());
    if turn == Turn::Counted {
        control.metrics.counted_refusal();
        log::debug!(subject = who.subject, relation = kind.relation; "A refusal is counted: {}", kind.why);
    }
    turn
}

/// Tells what was counted until the service stops.
pub(crate) async fn run(control: &Control) {
    while !control.stopped_within(TELL_EVERY).await {
        tell(control, false).await;
    }
}

/// Writes a row for each subject of which refusals were counted, as far as there is room, or for all.
pub(crate) async fn tell(control: &Control, all: bool) {
    let now = Timestamp::now();
    for due in control.refusals.due(all, now) {
        let about = due.about.clone();
        let entry =
            Entry::new(&due.subject, COUNTED, about, due.counted.outcome).with(due.counted.in_words());
        // Why it was not written is in the log already.
        if audit::record(control, due.domain, &[entry], now).await.is_err() {
            control.refusals.untold(due, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Kind = Kind {
        relation: "a.path_gate",
        why: "nsk_node_mismatch",
    };
    const APPLY: Kind = Kind {
        relation: "a.apply",
        why: "invalid_state_transition",
    };

    fn refusals(per_hour: u32) -> Refusals {
        Refusals::new(NonZeroU32::new(per_hour).unwrap())
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn turn(refusals: &Refusals, subject: &str, kind: Kind, seconds: i64) -> Turn {
        let who = Refused {
            subject,
            domain: DomainId::mint(at(0), [1; 10]),
            about: "resource:x",
        };
        let outcome = if kind == PATH {
            Outcome::PermissionDenied
        } else {
            Outcome::InvariantViolation
        };
        refusals.turn(who, kind, outcome, at(seconds))
    }

    fn told(refusals: &Refusals, all: bool, seconds: i64) -> Vec<(String, u64, Outcome)> {
        let due = refusals.due(all, at(seconds));
        due.iter()
            .map(|due| {
                let more = due.counted.kinds.values().sum();
                (due.subject.clone(), more, due.counted.outcome)
            })
            .collect()
    }

    #[test]
    fn the_first_are_written_and_the_rest_is_told_in_one_row_when_there_is_room() {
        let refusals = refusals(4);
        for _ in 0..4 {
            assert_eq!(turn(&refusals, "node:a", APPLY, 0), Turn::Written);
        }
        assert_eq!(turn(&refusals, "node:a", APPLY, 0), Turn::Counted);
        for _ in 0..6 {
            assert_eq!(turn(&refusals, "node:a", PATH, 1), Turn::Counted);
        }
        assert_eq!(
            turn(&refusals, "node:b", PATH, 1),
            Turn::Written,
            "another's bucket"
        );
        assert!(
            told(&refusals, false, 899).is_empty(),
            "a quarter of an hour each"
        );
        // There is a place, and it is for the row that counts.
        assert_eq!(turn(&refusals, "node:a", PATH, 900), Turn::Counted);
        assert_eq!(
            told(&refusals, false, 900),
            [("node:a".to_owned(), 8, Outcome::PermissionDenied)]
        );
        assert!(told(&refusals, true, 900).is_empty(), "once");
        assert_eq!(turn(&refusals, "node:a", APPLY, 900), Turn::Counted);
        assert_eq!(
            told(&refusals, true, 901),
            [("node:a".to_owned(), 1, Outcome::InvariantViolation)],
            "at a stop there is always room"
        );
    }

    #[test]
    fn what_could_not_be_told_is_told_with_what_came_since() {
        let refusals = refusals(1);
        for seconds in 0..3 {
            let _ = turn(&refusals, "node:a", PATH, seconds);
        }
        let mut due = refusals.due(true, at(3));
        let _ = turn(&refusals, "node:a", APPLY, 4);
        refusals.untold(due.pop().unwrap(), at(5));
        let due = refusals.due(true, at(6)).pop().unwrap();
        assert_eq!((due.counted.first, due.counted.last), (at(1), at(4)));
        assert_eq!(
            due.counted.in_words(),
            format!(
                "3 more were refused from {} to {}: 1 a.apply invalid_state_transition, 2 a.path_gate nsk_node_mismatch",
                at(1),
                at(4)
            )
        );
    }

    #[test]
    fn who_was_refused_long_ago_is_forgotten_and_a_clock_that_goes_back_shuts_nobody_out() {
        let refusals = refusals(2);
        for _ in 0..2 {
            assert_eq!(turn(&refusals, "node:a", PATH, 100_000), Turn::Written);
        }
        assert_eq!(turn(&refusals, "node:a", PATH, 10), Turn::Counted);
        assert_eq!(
            told(&refusals, false, 1810).len(),
            1,
            "after what one place takes"
        );
        assert_eq!(refusals.subjects().len(), 1);
        assert!(told(&refusals, false, 1810 + 3600).is_empty());
        assert!(refusals.subjects().is_empty());
    }
}
