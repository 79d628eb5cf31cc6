//! Streams of cubecl that threads use one after another.

use std::sync::{Mutex, PoisonError};

use cubecl_environment::stream::StreamId;

/// Streams whose threads have finished.
static IDLE: Mutex<Vec<StreamId>> = Mutex::new(Vec::new());

/// A stream, until it is dropped nobody else's.
#[derive(Debug)]
pub(crate) struct Lease(StreamId);

impl Lease {
    /// The stream that became idle last, so that its memory is in use again soonest; a new one where none
    /// is idle.
    pub(crate) fn new() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Self(idle.unwrap_or_else(StreamId::allocate))
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Barrier, PoisonError};

    use super::*;

    /// The tests share [`IDLE`].
    static ALONE: Mutex<()> = Mutex::new(());

    // burn #4792: the memory of a finished thread stayed behind, and each new thread got more.
    #[test]
    fn threads_one_after_another_share_a_stream() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let streams: BTreeSet<_> = (0..20)
            .map(|_| std::thread::spawn(|| Lease::new().stream().executes(StreamId::current)).join().unwrap())
            .collect();
        assert_eq!(streams.len(), 1);
    }

    #[test]
    fn threads_at_the_same_time_have_their_own() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let barrier = Barrier::new(4);
        for _ in 0..3 {
            let streams: BTreeSet<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            let lease = Lease::new();
                            barrier.wait();
                            lease.stream()
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(streams.len(), 4);
        }
        assert!(IDLE.lock().unwrap().len() <= 4);
    }

    #[test]
    fn a_panic_gives_the_stream_back() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Lease::new().stream();
        let panicked = std::panic::catch_unwind(|| {
            let _lease = Lease::new();
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(Lease::new().stream(), before);
    }
}
