//! Threads that share a pool and free each other's memory while the device works on it: on a GPU by
//! `device_threads.rs`, on the stand-in by `standin_threads.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::driver::Driver;
use glake_core::units::{AddressRange, DeviceId, EventId, StreamId};
use glake_testkit::rng::Rng;
use glake_vmm::{Config, Mode, SharedPool};

use super::{driver, work_late};

const DEVICE: DeviceId = DeviceId(0);
const N_THREADS: usize = 4;
const N_ROUNDS: u64 = 500;
/// Little, so that memory is gathered all the time.
const LIMIT_BYTES: u64 = 320 << 20;
/// Bytes at both ends of an allocation that are written and checked.
const TESTED_BYTES: u64 = 16 << 10;
/// How long the device works on each allocation.
const DELAY_NS: u64 = 50_000;

/// Memory on its way to another thread.
struct Parcel {
    allocation: Allocation,
    seed: u64,
    /// Behind the work of the sender.
    written: EventId,
}

/// What all threads share.
struct Shared {
    driver: Arc<dyn Driver>,
    pool: SharedPool,
    /// Requests while their stream was busy, and gathers that they saw: each other's, too.
    n_busy: AtomicU64,
    n_pending_gathers: AtomicU64,
    n_handed_over: AtomicU64,
    n_refused: AtomicU64,
}

/// One of the threads.
struct Worker<'a> {
    shared: &'a Shared,
    /// A stream of its own, and the thread's default one.
    streams: [StreamId; 2],
    rng: Rng,
    peers: Vec<Sender<Parcel>>,
    inbox: Receiver<Parcel>,
}

/// The whole words at both ends of an allocation.
fn ends(allocation: &Allocation) -> [AddressRange; 2] {
    let bytes = (allocation.bytes / 2).min(TESTED_BYTES) / 8 * 8;
    let last = allocation.bytes / 8 * 8 - bytes;
    [allocation.ptr, allocation.ptr + last].map(|at| AddressRange::new(at, bytes))
}

impl Worker<'_> {
    fn run(mut self, n: u64) {
        work_late();
        self.streams = [self.shared.driver.create_stream(DEVICE).unwrap(), StreamId::PER_THREAD];
        for round in 0..N_ROUNDS {
            while !self.send((n * N_ROUNDS + round) << 8) {
                self.empty_inbox();
                thread::yield_now();
            }
            // Now and then much comes together.
            if self.rng.below(4) > 0 {
                self.empty_inbox();
            }
        }
        self.peers.clear();
        while let Ok(parcel) = self.inbox.recv() {
            self.receive(&parcel);
        }
    }

    fn empty_inbox(&mut self) {
        while let Ok(parcel) = self.inbox.try_recv() {
            self.receive(&parcel);
        }
    }

    fn stream(&mut self) -> StreamId {
        self.streams[usize::try_from(self.rng.below(2)).unwrap()]
    }

    /// Allocates, writes, and hands over; not if others hold too much.
    fn send(&mut self, seed: u64) -> bool {
        let Shared { driver, pool, .. } = self.shared;
        let stream = self.stream();
        let bytes = match self.rng.below(8) {
            0..2 => self.rng.log_between(16, 100 << 10),
            _ => self.rng.log_between(1 << 20, 20 << 20),
        };
        let busy = driver.record(stream).unwrap();
        let before = pool.stats().n_stitches;
        let allocated = pool.allocate(Request::new(bytes, stream));
        let n_gathers = pool.stats().n_stitches - before;
        if driver.query(busy) == Ok(false) {
            self.shared.n_busy.fetch_add(1, Ordering::Relaxed);
            self.shared.n_pending_gathers.fetch_add(n_gathers, Ordering::Relaxed);
        }
        driver.forget(busy);
        let allocation = match allocated {
            Err(AllocError::OutOfMemory(_)) => {
                self.shared.n_refused.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            allocated => allocated.unwrap(),
        };
        driver.delay(stream, DELAY_NS).unwrap();
        for (seed, end) in (seed..).zip(ends(&allocation)) {
            driver.fill_pattern(end, seed, stream).unwrap();
        }
        let parcel = Parcel { allocation, seed, written: driver.record(stream).unwrap() };
        let to = usize::try_from(self.rng.below(self.peers.len() as u64)).unwrap();
        self.peers[to].send(parcel).expect("the peer lives as long as there are senders");
        true
    }

    /// Checks what another thread wrote, and frees it in one of four ways.
    fn receive(&mut self, parcel: &Parcel) {
        let Shared { driver, pool, .. } = self.shared;
        let stream = self.stream();
        let Allocation { ptr, stream: owner, .. } = parcel.allocation;
        driver.wait(stream, parcel.written).unwrap();
        driver.forget(parcel.written);
        driver.delay(stream, DELAY_NS).unwrap();
        for (seed, end) in (parcel.seed..).zip(ends(&parcel.allocation)) {
            driver.check_pattern(end, seed, stream).unwrap();
        }
        match self.rng.below(4) {
            0 => pool.free(ptr, stream).unwrap(),
            1 => pool.free_soon(ptr, stream).unwrap(),
            2 => {
                pool.record_use(ptr, stream).unwrap();
                pool.free(ptr, owner).unwrap();
            }
            _ => pool.free_from_anywhere(ptr).unwrap(),
        }
        self.shared.n_handed_over.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives back, gathers and unmaps, until the threads are done.
fn disturb(pool: &SharedPool, is_over: &AtomicBool) {
    for round in 0.. {
        pool.step().unwrap();
        match round % 64 {
            20 => drop(pool.defragment().unwrap()),
            50 => drop(pool.trim(LIMIT_BYTES / 2).unwrap()),
            _ => thread::yield_now(),
        }
        if is_over.load(Ordering::Acquire) {
            break;
        }
    }
}

/// Every thread, whose streams lag behind, fills memory, hands it to another thread behind an event, and
/// frees what it gets so: no word is wrong, and everything comes back.
fn memory_is_whole_that_threads_hand_over(mode: Mode) {
    work_late();
    let driver: Arc<dyn Driver> = Arc::new(driver());
    let stream = driver.create_stream(DEVICE).unwrap();
    let wrong = driver.mismatches(stream).unwrap();
    let config = Config::new(DEVICE).mode(mode).limit_bytes(LIMIT_BYTES);
    let shared = Shared {
        pool: SharedPool::new(Arc::clone(&driver), config).unwrap(),
        driver,
        n_busy: AtomicU64::new(0),
        n_pending_gathers: AtomicU64::new(0),
        n_handed_over: AtomicU64::new(0),
        n_refused: AtomicU64::new(0),
    };
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..N_THREADS).map(|_| channel()).unzip();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers = inboxes.into_iter().enumerate().map(|(n, inbox)| {
            let others = senders.iter().enumerate().filter(|(to, _)| *to != n);
            let peers = others.map(|(_, sender)| sender.clone()).collect();
            let (n, streams) = (n as u64, [StreamId::PER_THREAD; 2]);
            let worker = Worker { shared: &shared, streams, rng: Rng::new(n), peers, inbox };
            scope.spawn(move || worker.run(n))
        });
        let workers: Vec<_> = workers.collect();
        drop(senders);
        let disturber = scope.spawn(|| disturb(&shared.pool, &is_over));
        let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Release);
        disturber.join().unwrap();
        assert!(ended.iter().all(Result::is_ok), "a thread failed");
    });
    shared.driver.synchronize_all(DEVICE).unwrap();
    let Shared { n_busy, n_pending_gathers, n_handed_over, n_refused, .. } = &shared;
    let [n_busy, n_gathers, n_handed_over, n_refused] =
        [n_busy, n_pending_gathers, n_handed_over, n_refused].map(|n| n.load(Ordering::Relaxed));
    let stats = shared.pool.stats();
    eprintln!(
        "found: {mode:?}: {n_gathers} gathers seen under pending work, {n_busy} of {n_handed_over} requests of busy \
         streams, {n_refused} refused, {stats}"
    );
    assert_eq!(shared.driver.mismatches(stream), Ok(wrong), "wrong words");
    assert_eq!(n_handed_over, N_THREADS as u64 * N_ROUNDS);
    assert_eq!((stats.n_live, stats.allocated_bytes), (0, 0));
    assert_eq!(shared.pool.trim(0), Ok(stats.reserved_bytes), "everything comes back");
    if mode != Mode::Pinned {
        assert!(stats.n_stitches > 0, "no gathers");
    }
}

#[test]
fn memory_is_whole_that_threads_hand_over_in_default_mode() {
    memory_is_whole_that_threads_hand_over(Mode::Default);
}

#[test]
fn memory_is_whole_that_threads_hand_over_in_compact_mode() {
    memory_is_whole_that_threads_hand_over(Mode::Compact);
}

#[test]
fn memory_is_whole_that_threads_hand_over_in_pinned_mode() {
    memory_is_whole_that_threads_hand_over(Mode::Pinned);
}
