//! Failures planned by a test.

use crate::driver::{Call, DriverError};
use crate::units::DeviceId;

/// Which driver calls a [`Fault`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Every call that can fail.
    All,
    /// The calls of one kind.
    One(Call),
    /// Streams created, destroyed and asked whether they are captured; captures and graphs.
    Streams,
    /// Copies and fills by the copy engine, and taking asynchronous reads.
    Copies,
    /// Everything in [`DeviceOps`](crate::driver::DeviceOps).
    Kernels,
    /// Handles exported and imported.
    Sharing,
}

impl Target {
    fn matches(self, called: Self) -> bool {
        self == Self::All || self == called
    }
}

/// What happens to a call that a plan hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Fail(DriverError),
    Lose(DeviceId),
}

/// A planned failure: which call fails, and how. A failed call has no effect.
///
/// ```
/// use glake_core::driver::{Call, DriverError, VirtualMemory};
/// use glake_core::sim::{Fault, SimDriver, Target};
/// use glake_core::units::{DeviceId, PAGE_BYTES};
///
/// let driver = SimDriver::h200(1);
/// driver.plan(Fault::nth(1).of(Target::One(Call::Create)).error(DriverError::OutOfMemory));
/// assert!(driver.create(DeviceId(0), PAGE_BYTES).is_ok());
/// assert_eq!(driver.create(DeviceId(0), PAGE_BYTES), Err(DriverError::OutOfMemory));
/// assert!(driver.create(DeviceId(0), PAGE_BYTES).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    target: Target,
    left: u64,
    persists: bool,
    effect: Effect,
}

impl Fault {
    /// Fails the call after the next `n` ones, once, with [`DriverError::Planned`]: `nth(0)` fails
    /// the next call.
    #[must_use]
    pub const fn nth(n: u64) -> Self {
        Self { target: Target::All, left: n, persists: false, effect: Effect::Fail(DriverError::Planned) }
    }

    /// Counts only the calls of `target`.
    #[must_use]
    pub const fn of(self, target: Target) -> Self {
        Self { target, ..self }
    }

    /// Fails with `error`.
    #[must_use]
    pub const fn error(self, error: DriverError) -> Self {
        Self { effect: Effect::Fail(error), ..self }
    }

    /// Loses `device` at that call: work that is pending there never runs, and from then on
    /// everything on the device fails with [`DriverError::DeviceLost`].
    #[must_use]
    pub const fn lose(self, device: DeviceId) -> Self {
        Self { effect: Effect::Lose(device), ..self }
    }

    /// Fails every counted call from that one on.
    #[must_use]
    pub const fn from_then_on(self) -> Self {
        Self { persists: true, ..self }
    }
}

/// The faults that are still to come.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plans: Vec<Fault>,
    /// How many calls have been hit.
    pub(super) n_hits: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.plans.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.plans.clear();
    }

    /// Counts one call and says what happens to it. Where several plans hit the same call, the
    /// oldest wins.
    pub(super) fn next(&mut self, called: Target) -> Option<Effect> {
        if self.plans.is_empty() {
            return None;
        }
        let mut hit = None;
        self.plans.retain_mut(|plan| {
            if !plan.target.matches(called) {
                return true;
            }
            if plan.left > 0 {
                plan.left -= 1;
                return true;
            }
            hit = hit.or(Some(plan.effect));
            plan.persists
        });
        self.n_hits += u64::from(hit.is_some());
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::{Effect, Fault, Faults, Target};
    use crate::driver::{Call, DriverError};

    const MAP: Target = Target::One(Call::Map);
    const QUERY: Target = Target::One(Call::Query);

    #[test]
    fn once_and_from_then_on() {
        let mut faults = Faults::default();
        faults.add(Fault::nth(1).of(MAP));
        let planned = Some(Effect::Fail(DriverError::Planned));
        assert_eq!([MAP, QUERY, MAP, MAP].map(|call| faults.next(call)), [None, None, planned, None]);
        faults.add(Fault::nth(1).error(DriverError::OutOfMemory).from_then_on());
        let full = Some(Effect::Fail(DriverError::OutOfMemory));
        assert_eq!([MAP, QUERY, Target::Copies].map(|call| faults.next(call)), [None, full, full]);
        assert_eq!(faults.n_hits, 3);
        faults.clear();
        assert_eq!(faults.next(MAP), None);
    }
}
