//! The laws of allocators, held by the pool in each mode, alone and behind each adaptor.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::io;
use std::sync::Arc;

use glake_core::adapt::{Limited, Locked, Recorded, Tagged};
use glake_core::alloc::Allocator;
use glake_core::driver::{StreamOrder, VirtualMemory};
use glake_core::sim::{Completion, SimConfig};
use glake_core::trace::Writer;
use glake_core::units::{DeviceId, PAGE_BYTES};
use glake_testkit::program::Subject;
use glake_testkit::program::streams::{DEVICE, MEMORY_BYTES, Machine};
use glake_testkit::spy::Spy;
use glake_testkit::{allocator_laws, stream_laws};
use glake_vmm::{Config, Mode, SharedPool, StitchPool};

/// What is left on the device: little, so that programs are often at exhaustion.
const ROOM_BYTES: u64 = 3 << 30;
const LIMIT_BYTES: u64 = (5 << 29) + 1;
const LAG: Completion = Completion::Lag(20_000_000);

fn over(
    completion: Completion,
    set: fn(Config) -> Config,
    make: fn(Arc<Spy>, Config) -> Box<dyn Allocator>,
) -> Subject {
    let sim = SimConfig::h200(1).completion(completion).build();
    let others_bytes = sim.memory_info(DeviceId(0)).unwrap().free_bytes - ROOM_BYTES;
    sim.create(DeviceId(0), others_bytes / PAGE_BYTES * PAGE_BYTES).unwrap();
    let spy = Spy::new(Arc::new(sim));
    let stream = spy.create_stream(DeviceId(0)).unwrap();
    Subject { allocator: make(spy.clone(), set(Config::new(DeviceId(0)))), stream, spy: Some(spy) }
}

fn stitching(spy: Arc<Spy>, config: Config) -> StitchPool {
    StitchPool::new(spy, config).unwrap()
}

fn sharing(spy: Arc<Spy>, config: Config) -> Box<dyn Allocator> {
    Box::new(SharedPool::new(spy, config).unwrap())
}

fn alone(completion: Completion, set: fn(Config) -> Config) -> Subject {
    over(completion, set, |spy, config| Box::new(stitching(spy, config)))
}

fn behind(make: fn(Arc<Spy>, Config) -> Box<dyn Allocator>) -> Subject {
    over(Completion::Immediate, |config| config, make)
}

fn default() -> Subject {
    alone(Completion::Immediate, |config| config)
}

fn default_limited() -> Subject {
    alone(Completion::Manual, |config| config.limit_bytes(LIMIT_BYTES))
}

fn default_lagging() -> Subject {
    alone(LAG, |config| config.limit_bytes(LIMIT_BYTES))
}

fn compact() -> Subject {
    alone(LAG, |config| config.mode(Mode::Compact))
}

fn compact_late() -> Subject {
    alone(Completion::Manual, |config| config.mode(Mode::Compact).limit_bytes(LIMIT_BYTES))
}

fn stitching_late() -> Subject {
    alone(Completion::Immediate, |config| config.stitch_above_bytes(2 << 30))
}

fn locked() -> Subject {
    behind(|spy, config| Box::new(Arc::new(Locked::new(stitching(spy, config)))))
}

fn limited() -> Subject {
    behind(|spy, config| Box::new(Limited::new(stitching(spy, config), u64::MAX)))
}

fn recorded() -> Subject {
    behind(|spy, config| {
        Box::new(Recorded::new(stitching(spy, config), Writer::new(io::sink()), Box::new(|| 0)))
    })
}

fn tagged() -> Subject {
    behind(|spy, config| Box::new(Tagged::new(stitching(spy, config))))
}

fn shared() -> Subject {
    behind(|spy, config| Box::new(Arc::new(SharedPool::new(spy, config).unwrap())))
}

fn shared_limited() -> Subject {
    over(Completion::Manual, |config| config.limit_bytes(LIMIT_BYTES), sharing)
}

fn shared_lagging() -> Subject {
    over(LAG, |config| config.mode(Mode::Compact), sharing)
}

allocator_laws!(default_laws, default);
allocator_laws!(default_limited_laws, default_limited);
allocator_laws!(default_lagging_laws, default_lagging);
allocator_laws!(compact_laws, compact);
allocator_laws!(compact_late_laws, compact_late);
allocator_laws!(stitching_late_laws, stitching_late);
allocator_laws!(locked_laws, locked);
allocator_laws!(limited_laws, limited);
allocator_laws!(recorded_laws, recorded);
allocator_laws!(tagged_laws, tagged);
allocator_laws!(shared_laws, shared);
allocator_laws!(shared_limited_laws, shared_limited);
allocator_laws!(shared_lagging_laws, shared_lagging);

fn machine(completion: Completion, set: fn(Config) -> Config) -> Machine {
    Machine::new(completion, |spy| Box::new(StitchPool::new(spy, set(Config::new(DEVICE))).unwrap()))
}

fn default_streams(completion: Completion) -> Machine {
    machine(completion, |config| config)
}

fn compact_streams(completion: Completion) -> Machine {
    machine(completion, |config| config.mode(Mode::Compact).limit_bytes(MEMORY_BYTES / 4 * 3 + 1))
}

fn shared_streams(completion: Completion) -> Machine {
    Machine::new(completion, |spy| Box::new(SharedPool::new(spy, Config::new(DEVICE)).unwrap()))
}

stream_laws!(default_stream_laws, default_streams);
stream_laws!(shared_stream_laws, shared_streams);
stream_laws!(compact_stream_laws, compact_streams);
