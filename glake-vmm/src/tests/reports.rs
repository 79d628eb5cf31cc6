//! Public reports of other allocators, each with the test that says it does not happen here.

use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{Call, DeviceOps, Driver, DriverError, StreamOrder};
use glake_core::sim::{Completion, Fault, SimConfig, Target};
use glake_core::units::{DevicePtr, PAGE_BYTES};
use glake_testkit::program::seeded;

use super::rig::{DEVICE, MIB, Rig, step};
use crate::Mode;

/// Out of memory while a fitting block was in the pool.
#[test]
fn pytorch_189504_a_fitting_block_is_taken_before_out_of_memory() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(64 * MIB));
    let blocks: Vec<DevicePtr> = (0..16).map(|_| rig.allocate(4 * MIB)).collect();
    for &block in &blocks {
        rig.free(block);
        assert_eq!(rig.allocate(4 * MIB), block, "the one free block");
    }
    assert!(matches!(rig.try_allocate(rig.request(1 << 20)), Err(AllocError::OutOfMemory(_))));
}

/// More than 20 GB were free, and missing.
#[test]
fn pytorch_110194_all_that_is_free_can_be_had() {
    const GIB: u64 = 1 << 30;
    let mut rig = Rig::immediate(|config| config.limit_bytes(40 * GIB));
    let blocks: Vec<DevicePtr> = (0..40).map(|_| rig.allocate(GIB)).collect();
    blocks.iter().step_by(2).for_each(|&block| rig.free(block));
    rig.allocate(20 * GIB);
    assert_eq!(rig.pool.stats().reserved_bytes, 40 * GIB);
    rig.free_all();
    rig.finish();
}

/// 133 MB were refused with 31 GB free, in pieces.
#[test]
fn rmm_1245_free_pieces_serve_a_request_larger_than_each() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(1 << 30));
    let blocks: Vec<DevicePtr> = (0..256).map(|_| rig.allocate(4 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&block| rig.free(block));
    assert_eq!(rig.pool.stats().largest_free_bytes, 4 * MIB);
    assert!(rig.pool.fragmentation_ratio() < 1e-9);
    for _ in 0..3 {
        rig.allocate(133 * 1_000_000);
    }
    assert_eq!(rig.pool.stats().reserved_bytes, 1 << 30);
    rig.check();
    rig.free_all();
    rig.finish();
}

/// Long-lived blocks pinned the segments that they were split from.
#[test]
fn long_lived_blocks_pin_no_more_than_their_handles() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    let mut temporary = Vec::new();
    for _ in 0..20 {
        temporary.push(rig.allocate(31 * MIB));
        rig.allocate(MIB);
    }
    temporary.into_iter().for_each(|block| rig.free(block));
    let reserved = rig.pool.stats().reserved_bytes;
    rig.allocate(580 * MIB);
    assert_eq!(rig.pool.stats().reserved_bytes, reserved, "all but 20 pages could move");
}

/// A map failed half way, and what was mapped before it stayed.
#[test]
fn pytorch_188008_no_rollback_after_partial_map() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    rig.allocate(4 * MIB);
    for k in 0..10 {
        let before = rig.pool.snapshot();
        rig.sim.plan(Fault::nth(k).of(Target::One(Call::Map)));
        let refused = rig.try_allocate(rig.request(20 * MIB));
        assert_eq!(refused, Err(AllocError::Driver(DriverError::Planned)), "map {k} of 10");
        rig.pool.snapshot().assert_follows(&before, "a map failed");
        assert_eq!(rig.physical_bytes(), 4 * MIB);
        rig.check();
    }
    rig.allocate(20 * MIB);
    rig.free_all();
    rig.finish();
}

/// Memory was unmapped under running kernels.
#[test]
fn pytorch_196258_unmap_under_running_kernels() {
    let sim = SimConfig::h200(1).memory_bytes(256 * MIB).completion(Completion::Manual);
    let mut rig = Rig::new(sim, |config| config);
    // Kernels touch every allocation; none of them runs before the end of a round.
    for round in 0..20 {
        let held: Vec<DevicePtr> = (1..10).map(|i| rig.allocate(i * 2 * MIB + round * 4096)).collect();
        held.iter().step_by(2).for_each(|&block| rig.free(block));
        rig.allocate(30 * MIB + round * PAGE_BYTES);
        rig.allocate(12 * MIB);
        rig.check();
        rig.free_all();
        if round % 4 == 3 {
            rig.pool.trim(40 * MIB).unwrap();
        }
        assert!(round % 4 == 3 || rig.sim.n_pending(rig.stream).unwrap() > 0);
    }
    assert!(rig.pool.stats().n_stitches > 5);
    rig.finish();
}

/// Each growth took addresses that never came back, up to the end of 128 TB.
#[test]
fn pytorch_192269_address_space_used_up() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact).limit_bytes(64 * MIB));
    rig.pool.arena.bytes = 256 * MIB;
    let pin = rig.allocate(MIB);
    let mut n_moved_bytes = 0;
    for round in 0..400u64 {
        let held: Vec<DevicePtr> = (0..7).map(|i| rig.allocate((2 + (i + round) % 5) * MIB)).collect();
        held.iter().skip(1).step_by(2).for_each(|&block| rig.free(block));
        let large = rig.allocate((10 + round % 7) * MIB);
        assert!(large - rig.pool.arena.start < 256 * MIB);
        held.iter().step_by(2).for_each(|&block| rig.free(block));
        rig.free(large);
        if round % 40 == 0 {
            rig.check();
            n_moved_bytes = rig.pool.stats().stitched_bytes;
        }
    }
    assert!(n_moved_bytes > 2 * 256 * MIB, "{n_moved_bytes} bytes are no way through the addresses");
    rig.free(pin);
    rig.check();
}

/// The same program got other addresses in each run.
#[test]
fn pytorch_183451_addresses_differ() {
    let once = || {
        let mut rig = Rig::immediate(|config| config.limit_bytes(2 << 30));
        let steps = seeded(11, 1500).into_iter().map(|action| step(action, 20, 0, 300 * MIB));
        steps.filter_map(|step| rig.step(step)).collect::<Vec<_>>()
    };
    assert_eq!(once(), once());
}

/// A failed stitch leaked its blocks.
#[test]
fn gmlake_a_failed_stitch_leaks_its_blocks() {
    for call in [Call::Map, Call::SetAccess, Call::Record] {
        let mut rig = Rig::immediate(|config| config.limit_bytes(32 * MIB));
        let blocks: Vec<DevicePtr> = (0..8).map(|_| rig.allocate(4 * MIB)).collect();
        blocks.iter().step_by(2).for_each(|&block| rig.free(block));
        let before = rig.pool.snapshot();
        rig.sim.plan(Fault::nth(0).of(Target::One(call)));
        rig.try_allocate(rig.request(16 * MIB)).unwrap_err();
        rig.pool.snapshot().assert_follows(&before, "a stitch failed");
        rig.allocate(16 * MIB);
        rig.check();
        rig.free_all();
        rig.finish();
    }
}

/// Garbage collection unmapped memory under running kernels.
#[test]
fn gmlake_collection_waits_for_running_kernels() {
    let mut rig = Rig::manual(|config| config);
    let blocks: Vec<DevicePtr> = (0..8).map(|_| rig.allocate(4 * MIB)).collect();
    blocks.iter().for_each(|&block| rig.free(block));
    let n_unmapped = |rig: &Rig| rig.sim.ledger(DEVICE).unwrap().n(Call::Unmap);
    assert_eq!(n_unmapped(&rig), 0);
    assert!(rig.sim.n_pending(rig.stream).unwrap() > 0);
    rig.pool.trim(0).unwrap();
    assert_eq!(rig.sim.n_pending(rig.stream), Ok(0), "the kernels ran first");
    assert!(n_unmapped(&rig) > 0);
    rig.finish();
}

/// Two streams ran out of memory where one did not.
#[test]
fn rmm_2039_two_streams_fail_where_one_does_not() {
    let sim = SimConfig::h200(1).completion(Completion::Manual);
    let mut rig = Rig::new(sim, |config| config.limit_bytes(64 * MIB));
    let other = rig.spy.create_stream(DEVICE).unwrap();
    for _ in 0..8 {
        for stream in [rig.stream, other] {
            // All the memory there is, in pieces and at once, while the other's work is pending.
            for n in [16, 3, 1] {
                let live: Vec<DevicePtr> = (0..n)
                    .map(|_| rig.pool.allocate(Request::new(64 * MIB / n / MIB * MIB, stream)).unwrap().ptr)
                    .collect();
                rig.sim.delay(stream, 1).unwrap();
                live.into_iter().for_each(|ptr| rig.pool.free(ptr, stream).unwrap());
            }
        }
        assert!(rig.sim.n_pending(other).unwrap() > 0, "nobody waited for the device");
        rig.check();
    }
    assert_eq!(rig.physical_bytes(), 64 * MIB);
    rig.finish();
}

/// A fitting block was in the pool of another stream.
#[test]
fn pytorch_189504_a_fitting_block_of_another_stream_is_taken_before_out_of_memory() {
    let mut rig = Rig::manual(|config| config.limit_bytes(64 * MIB));
    let other = rig.spy.create_stream(DEVICE).unwrap();
    let blocks: Vec<DevicePtr> = (0..16).map(|_| rig.allocate(4 * MIB)).collect();
    rig.free(blocks[7]);
    let got = rig.pool.allocate(Request::new(4 * MIB, other)).unwrap();
    assert_eq!(got.ptr, blocks[7]);
    rig.pool.free(got.ptr, other).unwrap();
    rig.free_all();
    rig.finish();
}

/// A captured graph shared the cache with everybody.
#[test]
fn gmlake_graph_captures_do_not_share_the_cache() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(16 * MIB));
    let captured = rig.spy.create_stream(DEVICE).unwrap();
    let memory = rig.pool.begin_capture(captured).unwrap();
    let graphs = rig.pool.allocate(Request::new(8 * MIB, captured)).unwrap().ptr;
    rig.pool.free(graphs, captured).unwrap();
    rig.pool.end_capture(captured);
    assert_ne!(rig.allocate(8 * MIB), graphs);
    assert!(matches!(rig.try_allocate(rig.request(2 * MIB)), Err(AllocError::OutOfMemory(_))));
    memory.finished();
    assert_eq!(rig.allocate(8 * MIB), graphs);
    rig.free_all();
    rig.finish();
}

/// Each cycle of sleep and wake left gigabytes behind.
#[test]
fn vllm_21336_sleep_and_wake_leak_nothing() {
    let mut rig = Rig::immediate(|config| config);
    let weights = rig.allocate(3 * MIB);
    let mut after_wake = Vec::new();
    for cycle in 0..30 {
        let held: Vec<DevicePtr> = (1..20).map(|i| rig.allocate(i * MIB + 512 * (i % 3))).collect();
        rig.allocate(1000);
        after_wake.push(rig.physical_bytes());
        held.iter().step_by(2).for_each(|&block| rig.free(block));
        rig.allocate(40 * MIB);
        let live: Vec<DevicePtr> = rig.live.iter().map(|a| a.ptr).filter(|&ptr| ptr != weights).collect();
        live.into_iter().for_each(|block| rig.free(block));
        rig.pool.trim(0).unwrap();
        rig.check();
        assert!(rig.physical_bytes() <= 4 * PAGE_BYTES, "cycle {cycle} leaves {}", rig.physical_bytes());
        assert_eq!(rig.pool.stats().stale_bytes, 0);
    }
    let (least, most) = (after_wake.iter().min(), after_wake.iter().max());
    assert!(most.unwrap() - least.unwrap() <= 16 * MIB, "{after_wake:?}");
    assert!(rig.pool.slots.n_known_pages() < 2000, "the table of addresses grows");
    rig.free(weights);
    rig.finish();
}
