//! Captured graphs beside the pool and the driver, over the stand-in.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests panic to fail")]
#![allow(clippy::disallowed_methods, reason = "the driver's own threads take their time")]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use glake_core::driver::DriverError;

#[path = "shared/graphs.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    work_late();
    glake_cuda::open().expect("the stand-in is there")
}

/// Work of the calling thread's streams completes late from now on.
fn work_late() {
    glake_standin::enter().complete(glake_standin::Completion::Lag(40));
}

/// On failure nothing is called, and nothing is left behind.
#[test]
fn what_a_graph_does_not_take_is_dropped() {
    glake_standin::alone("what_a_graph_does_not_take_is_dropped", &[], |stand_in| {
        let driver = driver();
        let mut graph = ptr::null_mut();
        // SAFETY: `graph` is a live local.
        unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result().unwrap();
        for call in ["cuUserObjectCreate", "cuGraphRetainUserObject"] {
            stand_in.fail(call, 1, 999);
            let released = stand_in.n_calls("cuUserObjectRelease");
            let held = Arc::new(());
            let holder = Arc::clone(&held);
            // SAFETY: the graph is live and this thread's.
            let failed = unsafe { driver.when_graph_ends(graph, move || unreachable!("{holder:?}")) };
            assert_eq!(failed, Err(DriverError::Native { call, code: 999 }));
            assert_eq!(Arc::strong_count(&held), 1, "{call}");
            let n_made = u64::from(call != "cuUserObjectCreate");
            assert_eq!(stand_in.n_calls("cuUserObjectRelease"), released + n_made, "{call}");
        }
        // SAFETY: it is not used again.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    });
}
