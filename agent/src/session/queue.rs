//! Whose turn it is. Values in, values out: what waits in the order of its arrival, what runs, and how much may.
//!
//! Every waiting invocation has a turn: one more than the last that waits or runs for the same, or the present turn where
//! there is none. The lowest turn goes first. So a long line for one thing does not hold up the next for another: of two
//! lines, each moves on by one in its turn. Nobody goes past one that came earlier and waits for the same.

use std::collections::VecDeque;

use crate::hooks::affinity::Lane;

/// What is to be known of an invocation to find its turn.
pub(super) trait Line: PartialEq {
    /// Whether the two may run at the same time.
    fn runs_beside(&self, other: &Self) -> bool;
    /// Whether it changes nothing.
    fn only_reads(&self) -> bool;

    /// Whether the two stand in one line.
    fn with(&self, other: &Self) -> bool {
        !self.runs_beside(other) || (self.only_reads() && other.only_reads())
    }
}

impl Line for Lane {
    fn runs_beside(&self, other: &Self) -> bool {
        self.runs_beside(other)
    }

    fn only_reads(&self) -> bool {
        match self {
            Self::ReadOnly => true,
            Self::Changes(_) => false,
        }
    }
}

/// One that waits or runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place<L> {
    pub(super) lane: L,
    pub(super) turn: u64,
}

/// The turn of one that arrives now.
pub(super) fn turn_of<'p, L: Line + 'p>(
    lane: &L,
    others: impl Iterator<Item = &'p Place<L>>,
    present: u64,
) -> u64 {
    let last = others
        .filter(|other| lane.with(&other.lane))
        .map(|other| other.turn)
        .max();
    last.map_or(present, |last| present.max(last + 1))
}

/// Why one that arrives finds no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Crowded {
    /// So many wait already.
    Queue(usize),
    /// So many wait for the same already, and the rest of the queue is for others.
    Line(usize),
}

/// Whether one more may wait beside those that wait. A line may take three quarters of the queue.
pub(super) fn room_for<L: Line>(lane: &L, waiting: &[&Place<L>], queue_max: usize) -> Result<(), Crowded> {
    let line_max = (queue_max * 3).div_ceil(4);
    if waiting.len() >= queue_max {
        Err(Crowded::Queue(queue_max))
    } else if waiting.iter().filter(|other| lane.with(&other.lane)).count() >= line_max {
        Err(Crowded::Line(line_max))
    } else {
        Ok(())
    }
}

/// Why one finds no slot to run in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// As many run as may.
    All,
    /// The one slot that is left is kept for the other kind.
    OfItsKind,
}

/// Whether one more may run. Where two or more may, the last slot is never given to what only reads, nor to what changes
/// something, if that has all the others: each can always go on beside the other.
pub(super) fn slot_for<L: Line>(lane: &L, running: &[&Place<L>], running_max: usize) -> Result<(), Full> {
    if running.len() >= running_max {
        return Err(Full::All);
    }
    let of_kind_max = (running_max - 1).max(1);
    let of_kind = running
        .iter()
        .filter(|other| other.lane.only_reads() == lane.only_reads());
    if of_kind.count() < of_kind_max {
        Ok(())
    } else {
        Err(Full::OfItsKind)
    }
}

/// What one that waits may neither run beside nor overtake, counted through those that run and on through those that wait.
pub(super) fn ahead_of<'q, L: Line>(
    at: usize,
    waiting: &'q [&Place<L>],
    running: &'q [&Place<L>],
) -> impl Iterator<Item = usize> {
    let lane = &waiting[at].lane;
    let earlier = running.iter().chain(&waiting[..at]).enumerate();
    earlier
        .filter(|(_, other)| !lane.runs_beside(&other.lane))
        .map(|(number, _)| number)
}

/// Which of those that wait starts next, if any may.
pub(super) fn next<L: Line>(
    waiting: &[&Place<L>],
    running: &[&Place<L>],
    running_max: usize,
) -> Option<usize> {
    let may_start = |at: usize| {
        slot_for(&waiting[at].lane, running, running_max).is_ok()
            && ahead_of(at, waiting, running).next().is_none()
    };
    (0..waiting.len())
        .filter(|at| may_start(*at))
        .min_by_key(|at| (waiting[*at].turn, *at))
}

/// In which order those that wait start if nothing new comes, and what was started first ends first.
pub(super) fn order<L: Line>(waiting: &[&Place<L>], running: &[&Place<L>], running_max: usize) -> Vec<usize> {
    // Of those with the same lane the first is the next: to look at the others too would change nothing, and cost for a
    // long queue its square at each step.
    let mut lines: Vec<VecDeque<usize>> = Vec::new();
    for (at, place) in waiting.iter().enumerate() {
        match lines.iter_mut().find(|line| waiting[line[0]].lane == place.lane) {
            Some(line) => line.push_back(at),
            None => lines.push(VecDeque::from([at])),
        }
    }
    let mut running: VecDeque<&Place<L>> = running.iter().copied().collect();
    let mut order = Vec::with_capacity(waiting.len());
    loop {
        lines.retain(|line| !line.is_empty());
        lines.sort_by_key(|line| line[0]);
        let firsts: Vec<&Place<L>> = lines.iter().map(|line| waiting[line[0]]).collect();
        match next(&firsts, running.make_contiguous(), running_max) {
            Some(line) => {
                running.push_back(firsts[line]);
                order.extend(lines[line].pop_front());
            }
            None if lines.is_empty() || running.pop_front().is_none() => return order,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes the things of these bits; none of them means that it only reads.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Things(u8);

    impl Line for Things {
        fn runs_beside(&self, other: &Self) -> bool {
            self.0 & other.0 == 0
        }
        fn only_reads(&self) -> bool {
            self.0 == 0
        }
    }

    /// A generator whose whole state is one number (xorshift64, Marsaglia 2003), so that a failure can be told again.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    /// A queue as the session keeps it, with a number for each arrival.
    #[derive(Default)]
    struct Tried {
        waiting: Vec<(u32, Place<Things>)>,
        running: Vec<(u32, Place<Things>)>,
        present: u64,
        arrivals: u32,
    }

    impl Tried {
        fn arrive(&mut self, lane: Things, queue_max: usize) -> Result<u32, Crowded> {
            let waiting: Vec<_> = self.waiting.iter().map(|(_, place)| place).collect();
            room_for(&lane, &waiting, queue_max)?;
            let others = self.waiting.iter().chain(&self.running).map(|(_, place)| place);
            let turn = turn_of(&lane, others, self.present);
            self.arrivals += 1;
            self.waiting.push((self.arrivals, Place { lane, turn }));
            Ok(self.arrivals)
        }

        fn start(&mut self, running_max: usize) -> Vec<u32> {
            let mut started = Vec::new();
            loop {
                let waiting: Vec<_> = self.waiting.iter().map(|(_, place)| place).collect();
                let running: Vec<_> = self.running.iter().map(|(_, place)| place).collect();
                let Some(at) = next(&waiting, &running, running_max) else {
                    return started;
                };
                let one = self.waiting.remove(at);
                self.present = self.present.max(one.1.turn);
                started.push(one.0);
                self.running.push(one);
            }
        }

        fn end(&mut self, at: usize) -> u32 {
            self.running.remove(at).0
        }

        fn each_waits_for_something(&self, running_max: usize) {
            let waiting: Vec<_> = self.waiting.iter().map(|(_, place)| place).collect();
            let running: Vec<_> = self.running.iter().map(|(_, place)| place).collect();
            for (at, place) in waiting.iter().enumerate() {
                let hindered = slot_for(&place.lane, &running, running_max).is_err()
                    || ahead_of(at, &waiting, &running).next().is_some();
                assert!(hindered, "{place:?} beside {running:?}");
            }
        }

        /// As it would be if nothing new came.
        fn order(&self, running_max: usize) -> Vec<u32> {
            let waiting: Vec<_> = self.waiting.iter().map(|(_, place)| place).collect();
            let running: Vec<_> = self.running.iter().map(|(_, place)| place).collect();
            let order = order(&waiting, &running, running_max);
            order.into_iter().map(|at| self.waiting[at].0).collect()
        }
    }

    #[test]
    fn a_long_line_holds_up_no_other() {
        let mut tried = Tried::default();
        for _ in 0..20 {
            tried.arrive(Things(1), 100).unwrap();
        }
        assert_eq!(tried.start(2), [1]);
        let other = tried.arrive(Things(2), 100).unwrap();
        let reads = tried.arrive(Things(0), 100).unwrap();
        // The place that is left is for what only reads; the next one is the other line's.
        assert_eq!(tried.start(2), [reads]);
        tried.end(0);
        assert_eq!(tried.start(2), [other]);
    }

    #[test]
    fn two_lines_move_on_in_turns() {
        let mut tried = Tried::default();
        for _ in 0..3 {
            tried.arrive(Things(1), 100).unwrap();
        }
        for _ in 0..3 {
            tried.arrive(Things(2), 100).unwrap();
        }
        let mut order = Vec::new();
        while let [one] = tried.start(1)[..] {
            order.push(one);
            tried.end(0);
        }
        assert_eq!(order, [1, 4, 2, 5, 3, 6]);
    }

    #[test]
    fn a_line_leaves_room_in_the_queue_for_others() {
        let mut tried = Tried::default();
        for _ in 0..6 {
            tried.arrive(Things(1), 8).unwrap();
        }
        assert_eq!(tried.arrive(Things(1), 8), Err(Crowded::Line(6)));
        tried.arrive(Things(2), 8).unwrap();
        tried.arrive(Things(0), 8).unwrap();
        assert_eq!(tried.arrive(Things(4), 8), Err(Crowded::Queue(8)));
    }

    #[test]
    fn whatever_comes_nothing_clashes_nothing_overtakes_its_own_line_and_everything_runs() {
        for seed in 1..=300_u64 {
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let running_max = 1 + usize::try_from(dice.below(5)).unwrap();
            let mut tried = Tried::default();
            let mut lanes = std::collections::BTreeMap::new();
            let (mut order, mut admitted) = (Vec::new(), 0);
            for step in 0..400 {
                if step < 200 && dice.below(2) == 0 {
                    let lane = Things(u8::try_from(dice.below(8)).unwrap());
                    if let Ok(arrival) = tried.arrive(lane, 12) {
                        lanes.insert(arrival, lane);
                        admitted += 1;
                    }
                }
                order.extend(tried.start(running_max));
                assert!(tried.running.len() <= running_max, "{seed}");
                for (at, (_, one)) in tried.running.iter().enumerate() {
                    for (_, other) in &tried.running[..at] {
                        assert!(
                            one.lane.runs_beside(&other.lane),
                            "{seed}: {one:?} beside {other:?}"
                        );
                    }
                }
                assert!(
                    tried.waiting.is_empty() || !tried.running.is_empty(),
                    "{seed}: all wait for nothing"
                );
                tried.each_waits_for_something(running_max);
                if !tried.running.is_empty() && dice.below(2) == 0 {
                    let at = dice.below(tried.running.len() as u64);
                    tried.end(usize::try_from(at).unwrap());
                }
            }
            while !tried.running.is_empty() {
                tried.end(0);
                order.extend(tried.start(running_max));
            }
            assert_eq!(order.len(), admitted, "{seed}: something never ran");
            for (at, one) in order.iter().enumerate() {
                for before in &order[..at] {
                    let clash = !lanes[one].runs_beside(&lanes[before]);
                    assert!(!clash || before < one, "{seed}: {before} overtook {one}");
                }
            }
        }
    }

    #[test]
    fn what_waits_starts_in_the_order_that_was_told() {
        for seed in 1..=300_u64 {
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let running_max = 1 + usize::try_from(dice.below(4)).unwrap();
            let mut tried = Tried::default();
            for _ in 0..60 {
                let _ = tried.arrive(Things(u8::try_from(dice.below(8)).unwrap()), 30);
                if dice.below(3) == 0 {
                    tried.start(running_max);
                }
                if !tried.running.is_empty() && dice.below(5) == 0 {
                    tried.end(usize::try_from(dice.below(tried.running.len() as u64)).unwrap());
                }
            }
            let told = tried.order(running_max);
            let mut started = tried.start(running_max);
            while !tried.running.is_empty() {
                tried.end(0);
                started.extend(tried.start(running_max));
            }
            assert!(started.len() > 5, "{seed}: hardly anything waits");
            assert_eq!(told, started, "{seed}");
        }
    }

    #[test]
    fn a_steady_stream_of_one_kind_keeps_no_other_from_its_turn() {
        for (stream, one) in [
            (Things(0), Things(1)),
            (Things(1), Things(0)),
            (Things(1), Things(2)),
        ] {
            for running_max in 1..=4 {
                let mut tried = Tried::default();
                for _ in 0..8 {
                    let _ = tried.arrive(stream, 100);
                }
                tried.start(running_max);
                let waits = tried.arrive(one, 100).unwrap();
                let mut ends = 0;
                while !tried.start(running_max).contains(&waits)
                    && !tried.running.iter().any(|(n, _)| *n == waits)
                {
                    let _ = tried.arrive(stream, 100);
                    tried.end(0);
                    ends += 1;
                    assert!(ends <= running_max, "{stream:?} {one:?} {running_max}");
                }
            }
        }
    }
}
