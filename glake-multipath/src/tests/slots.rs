//! Whether transfers through pinned slots go on, however few slots there are.

use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::{Pending, Priority, Progress, Report};

/// Runs `test` in a thread; fails where it does not end.
pub(super) fn ends(test: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        let _ = tell.send(());
    });
    let has_ended = told.recv_timeout(Duration::from_mins(1));
    assert_ne!(has_ended, Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    thread.join().unwrap();
}

#[test]
fn a_transfer_that_lets_others_go_first_leaves_them_its_slots() {
    ends(|| {
        let config = Config::new().pinned_bytes(MIB).slot_bytes(MIB).stage_from_bytes(256 << 10).n_threads(1);
        let rig = Rig::new(1, config);
        let (low, high) = (rig.memory(GPU, 64 * MIB), rig.memory(GPU, 8 * MIB));
        let (source, urgent) = (noise(64 * MIB, 2), Arc::new(noise(8 * MIB, 3)));
        let pending: OnceLock<Pending<Report>> = OnceLock::new();
        // The only slot is the transfer's own when the urgent one begins.
        let tell = |_: Progress| {
            let urgent = Arc::clone(&urgent);
            let transfer = || rig.engine.on(GPU).priority(Priority::High).submit_write(high, urgent);
            pending.get_or_init(transfer);
        };
        rig.engine.on(GPU).priority(Priority::Low).on_progress(&tell).write(low, &source).unwrap();
        pending.into_inner().unwrap().wait().unwrap();
        let mut found = vec![0; urgent.len()];
        rig.engine.on(GPU).read(high, &mut found).unwrap();
        assert!(found == *urgent);
    });
}

#[test]
fn a_thread_of_a_pool_does_nothing_else_while_it_copies() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let config = Config::new().slot_bytes(64 << 10).stage_from_bytes(256 << 10).n_threads(4);
    let rig = Rig::new(1, config);
    let (dst, source) = (rig.memory(GPU, 2 * MIB), noise(2 * MIB, 1));
    let (copies, n_between) = (AtomicBool::new(false), AtomicUsize::new(0));
    let threads = rayon_core::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for _ in 0..100 {
        threads.scope(|scope| {
            for _ in 0..4 {
                // Work of the same thread, which it has yet to do.
                scope.spawn(|_| {
                    n_between.fetch_add(usize::from(copies.load(Ordering::SeqCst)), Ordering::SeqCst);
                });
            }
            copies.store(true, Ordering::SeqCst);
            rig.engine.on(GPU).write(dst, &source).unwrap();
            copies.store(false, Ordering::SeqCst);
        });
    }
    assert_eq!(n_between.into_inner(), 0);
}
