//! When an engine is busy, and the gaps between.

use std::collections::VecDeque;

/// The times at which an engine is busy.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Begin and end of each busy time that had not passed when one was taken last: in order, and
    /// apart from one another.
    busy: VecDeque<(u64, u64)>,
    /// All that was ever taken.
    taken_ns: u64,
}

impl Schedule {
    /// The first time from `from_ns` on at which the engine is free for `ns`.
    pub(super) fn gap(&self, from_ns: u64, ns: u64) -> u64 {
        let first = self.busy.partition_point(|&(_, end_ns)| end_ns <= from_ns);
        let mut at_ns = from_ns;
        for &(begin_ns, end_ns) in self.busy.range(first..) {
            if at_ns.saturating_add(ns) <= begin_ns {
                break;
            }
            at_ns = end_ns;
        }
        at_ns
    }

    /// Takes `ns` of a gap at `begin_ns`. What lies before `now_ns` is forgotten.
    pub(super) fn take(&mut self, begin_ns: u64, ns: u64, now_ns: u64) {
        while self.busy.front().is_some_and(|&(_, end_ns)| end_ns <= now_ns) {
            self.busy.pop_front();
        }
        if ns == 0 {
            return;
        }
        self.taken_ns = self.taken_ns.saturating_add(ns);
        let mut taken = (begin_ns, begin_ns.saturating_add(ns));
        let mut at = self.busy.partition_point(|busy| busy.0 < begin_ns);
        if let Some(&after) = self.busy.get(at).filter(|after| after.0 == taken.1) {
            taken.1 = after.1;
            self.busy.remove(at);
        }
        if let Some(&before) = at.checked_sub(1).and_then(|last| self.busy.get(last))
            && before.1 == taken.0
        {
            taken.0 = before.0;
            at -= 1;
            self.busy.remove(at);
        }
        self.busy.insert(at, taken);
    }

    /// What was taken of the time before `now_ns`.
    pub(super) fn busy_ns(&self, now_ns: u64) -> u64 {
        let later = self.busy.iter().map(|&(begin_ns, end_ns)| end_ns.saturating_sub(begin_ns.max(now_ns)));
        self.taken_ns.saturating_sub(later.fold(0, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn the_first_gap_that_fits_is_found() {
        let mut schedule = Schedule::default();
        schedule.take(100, 50, 0);
        schedule.take(200, 10, 0);
        assert_eq!(schedule.gap(0, 100), 0);
        assert_eq!(schedule.gap(1, 100), 210, "one too long for either gap");
        assert_eq!(schedule.gap(1, 50), 1);
        assert_eq!(schedule.gap(51, 50), 150);
        assert_eq!(schedule.gap(120, 51), 210);
        assert_eq!(schedule.gap(500, 1), 500);
    }

    #[test]
    fn neighbours_are_joined_and_the_past_is_forgotten() {
        let mut schedule = Schedule::default();
        for begin_ns in [0, 20, 40, 10, 30] {
            schedule.take(begin_ns, 10, 0);
        }
        assert_eq!(schedule.busy, [(0, 50)]);
        schedule.take(100, 10, 50);
        assert_eq!(schedule.busy, [(100, 110)]);
        schedule.take(60, 0, 50);
        assert_eq!(schedule.busy, [(100, 110)]);
    }

    #[test]
    fn busy_is_what_lies_before_now() {
        let mut schedule = Schedule::default();
        schedule.take(0, 10, 0);
        schedule.take(20, 10, 0);
        assert_eq!([0, 5, 15, 25, 40].map(|now_ns| schedule.busy_ns(now_ns)), [0, 5, 10, 15, 20]);
        schedule.take(50, 10, 40);
        assert_eq!(schedule.busy_ns(60), 30);
    }
}
