//! Any bytes as a program for the pool.

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::{DeviceOps, Driver, Result, StreamOrder};
use glake_core::sim::{SimConfig, SimDriver};
use glake_core::units::{AddressRange, DeviceId, StreamId};
use glake_testkit::fuzzed::{Op, Program, decode};
use glake_testkit::oracle::{Findings, Oracle};
use glake_testkit::program::{check_order, live_part};
use glake_testkit::spy::Spy;
use glake_vmm::{Config, Mode, StitchPool};

const DEVICE: DeviceId = DeviceId(0);
/// Little, so that programs are often at exhaustion.
const MEMORY_BYTES: u64 = 1 << 30;
/// The streams that the pool serves.
const N_STREAMS: usize = 4;
const MODES: [Mode; 2] = [Mode::Default, Mode::Compact];

/// Runs the program that `bytes` stand for beside an oracle, with real bytes in every allocation.
pub(crate) fn run(bytes: &[u8]) {
    let program = decode(bytes);
    let mut run = Run::new(&program);
    for &op in &program.ops {
        run.act(op);
        if run.is_poisoned {
            break;
        }
        run.check();
    }
    run.finish();
}

struct Run {
    sim: Arc<SimDriver>,
    spy: Arc<Spy>,
    streams: [StreamId; N_STREAMS],
    pool: StitchPool,
    oracle: Oracle,
    live: Vec<Live>,
    limit_bytes: u64,
    is_poisoned: bool,
}

#[derive(Clone, Copy)]
struct Live {
    allocation: Allocation,
    /// Whether its bytes were written: a fault may hit that, too.
    is_written: bool,
}

impl Run {
    fn new(program: &Program) -> Self {
        let setup = program.setup;
        let sim = SimConfig::h200(1).memory_bytes(MEMORY_BYTES).completion(setup.completion);
        let sim = Arc::new(sim.build());
        let spy = Spy::new(sim.clone());
        let streams = std::array::from_fn(|_| spy.create_stream(DEVICE).unwrap());
        let config = Config::new(DEVICE)
            .mode(MODES[setup.mode % MODES.len()])
            .stitch_above_bytes(setup.stitch_above_bytes);
        let pool = StitchPool::new(spy.clone(), config).unwrap();
        let oracle = Oracle::over(spy.clone());
        let (live, limit_bytes, is_poisoned) = (Vec::new(), u64::MAX, false);
        Self { sim, spy, streams, pool, oracle, live, limit_bytes, is_poisoned }
    }

    fn stream(&self, index: usize) -> StreamId {
        self.streams[index % self.streams.len()]
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Allocate { bytes, align_bytes, stream } => {
                self.allocate(Request::new(bytes, self.stream(stream)).aligned(align_bytes));
            }
            Op::Free { pick, stream } => {
                if let Some(index) = pick.checked_rem(self.live.len()) {
                    self.free(index, self.stream(stream));
                }
            }
            Op::FreeWrongly { pick, offset_bytes } => self.free_wrongly(pick, offset_bytes),
            Op::Trim { keep_bytes } => self.give_back(|pool| pool.trim(keep_bytes)),
            Op::Limit { bytes } => {
                self.limit_bytes = bytes;
                self.give_back(|pool| pool.set_limit_bytes(bytes));
            }
            Op::Defragment => {
                let outcome = self.pool.defragment();
                self.note(outcome.as_ref().err());
                if outcome.is_ok() {
                    assert_eq!(self.pool.stats().stale_bytes, 0);
                }
            }
            Op::Complete { stream, n } => {
                self.sim.complete(self.stream(stream), n).unwrap();
            }
            Op::Fail { fault } => self.sim.plan(fault),
        }
    }

    fn allocate(&mut self, request: Request) {
        let before = self.pool.stats();
        let outcome = self.pool.allocate(request);
        let after = self.pool.stats();
        let allocation = match outcome {
            Ok(allocation) => allocation,
            Err(error) => {
                assert_eq!(error == AllocError::ZeroBytes, request.bytes == 0, "{request:?}: {error}");
                assert_eq!(live_part(&after), live_part(&before), "{request:?}: {error}");
                return self.note(Some(&error));
            }
        };
        assert_eq!((allocation.bytes, allocation.stream), (request.bytes, request.stream));
        assert!(allocation.ptr.is_aligned(request.align_bytes.max(Request::MIN_ALIGN_BYTES)));
        let may_hold_bytes = self.limit_bytes.max(before.reserved_bytes);
        assert!(after.reserved_bytes <= may_hold_bytes, "{} bytes are held", after.reserved_bytes);
        self.oracle.allocated(&allocation);
        let is_written = self.each_end(&allocation, allocation.stream, DeviceOps::fill_pattern);
        self.live.push(Live { allocation, is_written });
    }

    /// Frees the live allocation `index`, whose last use is a check of its bytes on `stream`.
    fn free(&mut self, index: usize, stream: StreamId) {
        let Live { allocation, is_written } = self.live.swap_remove(index);
        let is_handed_over = self.hand_over(allocation.stream, stream).is_ok();
        let stream = if is_handed_over { stream } else { allocation.stream };
        if is_written {
            self.each_end(&allocation, stream, DeviceOps::check_pattern);
        }
        self.oracle.freed(allocation.ptr, stream);
        self.pool.free(allocation.ptr, stream).unwrap();
    }

    /// Lets work on `to` run behind that on `from`, as a program has to that uses memory on both.
    fn hand_over(&self, from: StreamId, to: StreamId) -> Result<()> {
        if from != to {
            let event = self.spy.record(from)?;
            self.spy.wait(to, event)?;
            self.spy.forget(event);
        }
        Ok(())
    }

    /// Tries to free an address inside an allocation.
    fn free_wrongly(&mut self, pick: usize, offset_bytes: u64) {
        let Some(index) = pick.checked_rem(self.live.len()) else { return };
        let Allocation { ptr, bytes, stream } = self.live[index].allocation;
        if offset_bytes < bytes {
            let before = self.pool.stats();
            assert_eq!(
                self.pool.free(ptr + offset_bytes, stream),
                Err(AllocError::NotAllocated(ptr + offset_bytes))
            );
            assert_eq!(self.pool.stats(), before);
        }
    }

    fn give_back(&mut self, how: impl FnOnce(&mut StitchPool) -> std::result::Result<u64, AllocError>) {
        let before = self.pool.stats().reserved_bytes;
        let outcome = how(&mut self.pool);
        if let Ok(returned) = outcome {
            assert_eq!(before - self.pool.stats().reserved_bytes, returned);
        }
        self.note(outcome.as_ref().err());
    }

    /// An operation failed, or not: whether it may, and whether that was the last.
    fn note(&mut self, error: Option<&AllocError>) {
        match error {
            None | Some(AllocError::ZeroBytes | AllocError::TooLarge { .. } | AllocError::OutOfMemory(_)) => {
            }
            Some(AllocError::Poisoned) => {
                assert!(self.sim.n_faults() > 1, "poisoned without a failed undo");
                self.is_poisoned = true;
            }
            Some(AllocError::Driver(_)) => assert!(self.sim.n_faults() > 0, "no call was made to fail"),
            Some(error) => panic!("{error}"),
        }
    }

    /// Enqueues work on up to 64 bytes at both ends; whether that was possible.
    fn each_end(
        &self,
        allocation: &Allocation,
        stream: StreamId,
        work: fn(&SimDriver, AddressRange, u64, StreamId) -> Result<()>,
    ) -> bool {
        let n_bytes = (allocation.bytes / 16 * 8).min(64);
        let last = allocation.bytes / 8 * 8 - n_bytes;
        [0, last].into_iter().all(|at| {
            let range = AddressRange::new(allocation.ptr + at, n_bytes);
            n_bytes > 0 && work(&self.sim, range, allocation.ptr.0 ^ allocation.bytes, stream).is_ok()
        })
    }

    fn check(&self) {
        assert_eq!(self.oracle.findings(), Findings::default());
        let stats = self.pool.stats();
        check_order(&stats);
        assert_eq!(stats.n_live, self.live.len() as u64);
        let requested_bytes: u64 = self.live.iter().map(|live| live.allocation.bytes).sum();
        assert_eq!(stats.requested_bytes, requested_bytes);
    }

    /// Frees everything and lets the device finish: nothing may be left, nothing have gone wrong.
    fn finish(mut self) {
        self.sim.clear_faults();
        if !self.is_poisoned {
            while let Some(live) = self.live.last() {
                self.free(self.live.len() - 1, live.allocation.stream);
            }
            self.check();
        }
        let Self { sim, streams, pool, .. } = self;
        drop(pool);
        sim.complete_all();
        for stream in streams {
            assert_eq!(sim.mismatches(stream), Ok(0), "bytes were lost");
        }
        assert_eq!(sim.ledger(DEVICE).unwrap().physical_bytes, 0, "memory leaks");
    }
}
