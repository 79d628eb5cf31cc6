//! The CUDA driver over the stand-in keeps the laws of drivers, however work completes.
#![allow(clippy::expect_used, clippy::unnecessary_wraps, reason = "tests panic to fail")]

use std::sync::Arc;

use glake_core::driver::Driver;
use glake_standin::Completion;

/// A driver, and how work completes on the streams that the law makes.
fn open(completion: Completion) -> Option<Arc<dyn Driver>> {
    glake_standin::enter().complete(completion);
    Some(Arc::new(glake_cuda::open().expect("the stand-in is there")))
}

fn immediate() -> Option<Arc<dyn Driver>> {
    open(Completion::Immediate)
}

fn manual() -> Option<Arc<dyn Driver>> {
    open(Completion::Manual)
}

fn lagging() -> Option<Arc<dyn Driver>> {
    open(Completion::Lag(40))
}

mod at_once {
    glake_testkit::driver_laws!(super::immediate);
}

mod when_somebody_waits {
    glake_testkit::driver_laws!(super::manual);
}

mod after_some_calls {
    glake_testkit::driver_laws!(super::lagging);
}
