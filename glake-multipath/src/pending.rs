//! What a submitted transfer will have come to: a future, and a wait for those without an executor.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::control::Cancel;
use crate::error::TransferError;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Where the two sides meet.
struct Slot<T> {
    state: Mutex<State<T>>,
    is_done: Condvar,
}

struct State<T> {
    /// The outcome, until it is taken.
    outcome: Option<T>,
    is_done: bool,
    waker: Option<Waker>,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transfer that was submitted: a [`Future`] of its outcome, on any executor, and without one.
///
/// Dropping or forgetting it stops nothing and waits for nothing: the transfer goes on, and the worker keeps
/// its memory until it is done. [`cancel`](Self::cancel) stops it.
#[must_use = "the outcome of a transfer tells whether it arrived"]
pub struct Pending<T, E = TransferError> {
    slot: Arc<Slot<Result<T, E>>>,
    cancel: Cancel,
}

/// The side of a [`Pending`] that knows the outcome.
pub(crate) struct Promise<T, E>(Arc<Slot<Result<T, E>>>);

/// A promise, and what comes of it; `cancel` is what stops the transfer.
pub(crate) fn promise<T, E>(cancel: Cancel) -> (Promise<T, E>, Pending<T, E>) {
    let state = State { outcome: None, is_done: false, waker: None };
    let slot = Arc::new(Slot { state: Mutex::new(state), is_done: Condvar::new() });
    (Promise(Arc::clone(&slot)), Pending { slot, cancel })
}

impl<T, E> Promise<T, E> {
    /// Says what the outcome is, and wakes who waits for it.
    pub(crate) fn keep(self, outcome: Result<T, E>) {
        let waker = {
            let mut state = self.0.lock();
            (state.outcome, state.is_done) = (Some(outcome), true);
            state.waker.take()
        };
        self.0.is_done.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T, E> Pending<T, E> {
    /// Blocks until the transfer is over.
    ///
    /// # Errors
    /// Why it failed.
    ///
    /// # Panics
    /// If it was polled until it was ready: then its outcome is gone.
    pub fn wait(self) -> Result<T, E> {
        let mut state = self.slot.lock();
        while !state.is_done {
            state = self.slot.is_done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        taken(state)
    }

    /// Whether it is over. Does not block.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.slot.lock().is_done
    }

    /// Stops it: it starts no chunk any more, and ends when those under way are done. If it waits for its
    /// turn, it ends when it has come to that.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

/// The outcome of a transfer that is over.
fn taken<T>(mut state: MutexGuard<'_, State<T>>) -> T {
    let Some(outcome) = state.outcome.take() else {
        drop(state);
        // As all futures do: to wait for ever would be worse.
        unreachable!("the outcome of the transfer was taken already")
    };
    outcome
}

/// Polling it again after it was ready panics.
impl<T, E> Future for Pending<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        if state.is_done {
            return Poll::Ready(taken(state));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T, E> fmt::Debug for Pending<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
