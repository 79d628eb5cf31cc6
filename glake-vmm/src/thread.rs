//! Which thread this is, as a number.

use std::sync::atomic::{AtomicU64, Ordering};

/// A thread of this process. Never used for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ThreadToken(u64);

impl ThreadToken {
    /// Not a thread's.
    pub(crate) const ANY: Self = Self(0);
}

/// The calling thread.
#[inline]
pub(crate) fn token() -> ThreadToken {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static TOKEN: ThreadToken = ThreadToken(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    TOKEN.with(|token| *token)
}
