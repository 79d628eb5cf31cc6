//! The laws of allocators, held by the stitching pool in each mode.

#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::Arc;

use glake_core::driver::StreamOrder;
use glake_core::sim::SimDriver;
use glake_core::units::DeviceId;
use glake_testkit::allocator_laws;
use glake_testkit::program::Subject;
use glake_testkit::spy::Spy;
use glake_vmm::{Config, Mode, StitchPool};

fn pool(mode: Mode) -> Subject {
    let spy = Spy::new(Arc::new(SimDriver::h200(1)));
    let stream = spy.create_stream(DeviceId(0)).unwrap();
    let pool = StitchPool::new(spy.clone(), Config::new(DeviceId(0), stream).mode(mode)).unwrap();
    Subject { allocator: Box::new(pool), stream, spy: Some(spy) }
}

fn in_default_mode() -> Subject {
    pool(Mode::Default)
}

fn in_compact_mode() -> Subject {
    pool(Mode::Compact)
}

allocator_laws!(default_mode, in_default_mode);
allocator_laws!(compact_mode, in_compact_mode);
