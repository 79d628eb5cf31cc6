//! Which thread this is, as a number, and whether it still runs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A thread of this process. Never used for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ThreadToken(u64);

impl ThreadToken {
    /// Not a thread's.
    pub(crate) const ANY: Self = Self(0);

    /// Whether it is a thread's that has ended.
    pub(crate) fn has_ended(self) -> bool {
        self != Self::ANY && !running(|running| running.contains(&self))
    }
}

/// The calling thread.
#[inline]
pub(crate) fn token() -> ThreadToken {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        // Nothing that is dropped: a thread's own values may still ask while they are.
        static TOKEN: ThreadToken = ThreadToken(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        static STAY: Stay = Stay::begin(TOKEN.with(|token| *token));
    }
    let token = TOKEN.with(|token| *token);
    // Fails where the thread is about to end.
    let _ = STAY.try_with(|_| ());
    token
}

/// A thread runs for as long as it has this.
struct Stay(ThreadToken);

impl Stay {
    fn begin(token: ThreadToken) -> Self {
        running(|running| running.insert(token));
        Self(token)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        running(|running| running.remove(&self.0));
    }
}

/// Looks at the threads that run, of those that were asked for their token.
fn running<T>(look: impl FnOnce(&mut BTreeSet<ThreadToken>) -> T) -> T {
    static RUNNING: Mutex<BTreeSet<ThreadToken>> = Mutex::new(BTreeSet::new());
    look(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_token_of_its_own_until_it_ends() {
        let (here, there) = (token(), std::thread::spawn(token).join().unwrap());
        assert_eq!(token(), here);
        assert_ne!(there, here);
        assert!(!here.has_ended() && there.has_ended());
        assert!(!ThreadToken::ANY.has_ended());
    }
}
