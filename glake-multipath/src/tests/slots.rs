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
