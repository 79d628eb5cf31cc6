//! What a transfer is told from outside while it runs: to stop, or to let others go first.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use glake_core::units::DeviceId;

/// Stops transfers: clones share one switch.
///
/// A transfer that is cancelled starts no chunk any more and ends with
/// [`TransferError::Cancelled`](crate::TransferError::Cancelled) when those under way are done.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Switch>);

#[derive(Debug, Default)]
struct Switch {
    is_cancelled: AtomicBool,
    /// Cancels this one, too.
    above: Option<Cancel>,
}

impl Cancel {
    /// A switch that is off.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A switch of its own that `above` turns as well.
    pub(crate) fn beneath(above: Option<&Self>) -> Self {
        Self(Arc::new(Switch { is_cancelled: AtomicBool::new(false), above: above.cloned() }))
    }

    /// Cancels the transfers that have this switch, now and later.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it was called off.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let above = self.0.above.as_ref();
        self.0.is_cancelled.load(Ordering::Relaxed) || above.is_some_and(Self::is_cancelled)
    }
}

/// Which of two transfers goes first where they share a device: the lower one starts no chunk while a
/// higher one is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Work that nobody waits for, such as writing back.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Work that something waits for, such as the next token.
    High,
}

/// How much of a transfer is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that have arrived.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// What is told of progress: called by the thread that drives the transfer, after each chunk.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// What is told of the progress of a transfer that outlives its caller's view: see [`OnProgress`].
pub type SharedProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// The transfers under way, by device and priority.
#[derive(Debug)]
pub(crate) struct Running(Box<[[AtomicUsize; 3]]>);

impl Running {
    pub(crate) fn new(n_devices: u32) -> Self {
        Self((0..n_devices).map(|_| Default::default()).collect())
    }

    /// Notes a transfer of `priority` that uses `devices`, for as long as the result lives.
    pub(crate) fn enter(&self, devices: &[DeviceId], priority: Priority) -> Turn<'_> {
        let of = devices.iter().filter_map(|device| self.0.get(device.0 as usize));
        let counts: Vec<&[AtomicUsize; 3]> = of.collect();
        for count in &counts {
            count[priority as usize].fetch_add(1, Ordering::SeqCst);
        }
        Turn { counts, priority }
    }
}

/// A transfer's place among those under way.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    counts: Vec<&'a [AtomicUsize; 3]>,
    priority: Priority,
}

impl Turn<'_> {
    /// Whether a transfer of a higher priority is under way on one of the devices.
    pub(crate) fn must_wait(&self) -> bool {
        let is_under_way = |n: &AtomicUsize| n.load(Ordering::Relaxed) > 0;
        self.counts.iter().any(|count| count[self.priority as usize + 1..].iter().any(is_under_way))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        for count in &self.counts {
            count[self.priority as usize].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// What the driver of a transfer looks at between chunks.
pub(crate) struct Control<'a> {
    pub(crate) cancel: Option<&'a Cancel>,
    pub(crate) turn: Turn<'a>,
    on_progress: Option<OnProgress<'a>>,
    /// Bytes of the transfer that had arrived before.
    before_bytes: u64,
    /// What a callback panicked with: the transfer is cancelled, and the panic goes on behind it.
    panic: OnceLock<Payload>,
}

/// What a panic carries; only its owner reads it.
type Payload = Mutex<Box<dyn Any + Send>>;

impl<'a> Control<'a> {
    pub(crate) fn new(
        cancel: Option<&'a Cancel>,
        turn: Turn<'a>,
        on_progress: Option<OnProgress<'a>>,
    ) -> Self {
        Self { cancel, turn, on_progress, before_bytes: 0, panic: OnceLock::new() }
    }

    /// Counts what had arrived before in what is told of progress.
    pub(crate) fn behind(self, before_bytes: u64) -> Self {
        Self { before_bytes, ..self }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled) || self.panic.get().is_some()
    }

    /// Tells of progress whoever wants to know.
    pub(crate) fn tell(&self, progress: Progress) {
        let Some(tell) = self.on_progress else { return };
        let progress = Progress {
            done_bytes: self.before_bytes + progress.done_bytes,
            total_bytes: self.before_bytes + progress.total_bytes,
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| tell(progress))) {
            // Of several, the first one goes on.
            let _ = self.panic.set(Mutex::new(payload));
        }
    }

    /// The transfer is over: a panic of its callback goes on.
    pub(crate) fn end(self) {
        if let Some(payload) = self.panic.into_inner() {
            resume_unwind(payload.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("cancel", &self.cancel)
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_beneath_another_turns_alone_and_with_it() {
        let above = Cancel::new();
        let (one, other) = (Cancel::beneath(Some(&above)), Cancel::beneath(Some(&above)));
        one.cancel();
        assert_eq!([&above, &one, &other].map(Cancel::is_cancelled), [false, true, false]);
        above.cancel();
        assert!(other.is_cancelled());
    }

    #[test]
    fn a_lower_priority_waits_where_it_shares_a_device() {
        let running = Running::new(3);
        let low = running.enter(&[DeviceId(0), DeviceId(1)], Priority::Low);
        let apart = running.enter(&[DeviceId(2)], Priority::Low);
        assert!(!low.must_wait());
        let high = running.enter(&[DeviceId(1), DeviceId(9)], Priority::High);
        let normal = running.enter(&[DeviceId(1)], Priority::Normal);
        let waits = [&low, &apart, &high, &normal].map(Turn::must_wait);
        assert_eq!(waits, [true, false, false, true]);
        drop(high);
        assert_eq!([&low, &normal].map(Turn::must_wait), [true, false]);
        drop(normal);
        assert!(!low.must_wait());
    }
}
