//! What may still be begun.

use glake_core::driver::{Driver, DriverError};

use super::Reason;
use super::fit::median;

/// How often something is timed at most.
const N_ROUNDS: usize = 5;

/// How much is moved to measure. Tests move less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Memory on the device in question, and pinned memory.
    pub(super) memory_bytes: u64,
    /// The largest chunk; each relay has two of them. At most half of the memory.
    pub(super) most_chunk_bytes: u64,
    /// The smallest chunk that is tried.
    pub(super) least_chunk_bytes: u64,
    /// Pageable memory on the host.
    pub(super) pageable_bytes: u64,
}

impl Scale {
    /// What machines are measured with.
    pub(super) const FULL: Self = Self {
        memory_bytes: 32 << 20,
        most_chunk_bytes: 16 << 20,
        least_chunk_bytes: 256 << 10,
        pageable_bytes: 64 << 20,
    };
}

/// Why a step gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// There was no time left.
    Budget,
    /// The clock stood still, or there were no threads.
    Untimed,
    /// A call failed.
    Failed(DriverError),
}

impl Miss {
    pub(super) const fn reason(self) -> Reason {
        match self {
            Self::Budget => Reason::Budget,
            Self::Untimed => Reason::Untimed,
            Self::Failed(_) => Reason::Failed,
        }
    }
}

impl From<DriverError> for Miss {
    fn from(error: DriverError) -> Self {
        Self::Failed(error)
    }
}

/// A point on the driver's clock up to which something may be begun that ends before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline<'a> {
    pub(super) driver: &'a dyn Driver,
    pub(super) at_ns: u64,
}

impl Deadline<'_> {
    /// Nanoseconds that are left.
    pub(super) fn left_ns(self) -> u64 {
        self.at_ns.saturating_sub(self.driver.now_ns())
    }

    /// Whether something that takes `ns` may begin.
    pub(super) fn admit(self, ns: u64) -> Result<(), Miss> {
        if ns < self.left_ns() { Ok(()) } else { Err(Miss::Budget) }
    }

    /// The first of `n` equal parts of what is left.
    pub(super) fn part(self, n: usize) -> Self {
        let left_ns = self.left_ns();
        Self { at_ns: self.at_ns - left_ns + left_ns / (n.max(1) as u64), ..self }
    }

    /// The median of a few rounds of `act`, which says what one took; the first was seen to take about `first_ns`. No
    /// more of them than it takes for two in turn to differ by less than 0.5 %.
    pub(super) fn rounds(
        self,
        first_ns: u64,
        mut act: impl FnMut() -> Result<u64, Miss>,
    ) -> Result<u64, Miss> {
        self.admit(first_ns)?;
        let mut rounds: Vec<u64> = Vec::with_capacity(N_ROUNDS);
        while rounds.len() < N_ROUNDS {
            let last = rounds.last().copied();
            if last.is_some_and(|ns| self.admit(ns.saturating_mul(2)).is_err()) {
                break;
            }
            let ns = act()?;
            rounds.push(ns);
            if last.is_some_and(|last| last.abs_diff(ns) <= last.max(ns) / 200) {
                break;
            }
        }
        Ok(median(&rounds))
    }
}

#[cfg(test)]
mod tests {
    use glake_core::sim::SimDriver;

    use super::*;

    /// The median of rounds that take those times, and how many there were.
    fn rounds(driver: &SimDriver, at_ns: u64, times: &[u64]) -> (Result<u64, Miss>, usize) {
        let mut n = 0;
        let found = Deadline { driver, at_ns }.rounds(times[0], || {
            n += 1;
            driver.advance(times[n - 1]);
            Ok(times[n - 1])
        });
        (found, n)
    }

    #[test]
    fn rounds_end_when_two_agree_or_time_is_up() {
        let driver = SimDriver::h200(1);
        let at_ns = 1_000_000;
        assert_eq!(rounds(&driver, at_ns, &[1000, 1004]), (Ok(1000), 2));
        assert_eq!(rounds(&driver, at_ns, &[1500, 1000, 1003]), (Ok(1003), 3));
        assert_eq!(rounds(&driver, at_ns, &[5000, 1000, 3000, 4000, 2000]), (Ok(3000), 5));
        driver.advance(at_ns - driver.now_ns() - 3500);
        assert_eq!(rounds(&driver, at_ns, &[1000, 1300, 1]), (Ok(1000), 2), "1,200 ns are left for 2,600");
        assert_eq!(rounds(&driver, at_ns, &[1200]), (Err(Miss::Budget), 0));
    }

    #[test]
    fn what_is_left_is_shared() {
        let driver = SimDriver::h200(1);
        driver.advance(100);
        let deadline = Deadline { driver: &driver, at_ns: 1100 };
        assert_eq!((deadline.part(4).at_ns, deadline.part(0).at_ns), (350, 1100));
        driver.advance(2000);
        assert_eq!((deadline.left_ns(), deadline.part(4).left_ns()), (0, 0));
    }
}
