use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::alloc::{AllocError, Allocation, Allocator, OutOfMemory, Request};
use crate::stats::Stats;
use crate::trace::{Clock, Event, Op, Reader, Writer};
use crate::units::{DevicePtr, StreamId};

/// Hands out rising addresses up to a capacity.
#[derive(Debug)]
struct Bump {
    live: Vec<Allocation>,
    next: u64,
    capacity_bytes: u64,
}

fn bump(capacity_bytes: u64) -> Bump {
    Bump { live: Vec::new(), next: 512, capacity_bytes }
}

impl Allocator for Bump {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        assert_ne!(request.bytes, 666, "a bug inside");
        if request.bytes == 0 {
            return Err(AllocError::ZeroBytes);
        }
        if self.stats().requested_bytes + request.bytes > self.capacity_bytes {
            return Err(AllocError::OutOfMemory(Box::default()));
        }
        let allocation =
            Allocation { ptr: DevicePtr(self.next), bytes: request.bytes, stream: request.stream };
        self.next += request.bytes.next_multiple_of(512);
        self.live.push(allocation);
        Ok(allocation)
    }

    fn free(&mut self, ptr: DevicePtr, _: StreamId) -> Result<(), AllocError> {
        let at = self.live.iter().position(|live| live.ptr == ptr).ok_or(AllocError::NotAllocated(ptr))?;
        self.live.remove(at);
        Ok(())
    }

    fn record_use(&mut self, ptr: DevicePtr, _: StreamId) -> Result<(), AllocError> {
        let is_live = self.live.iter().any(|live| live.ptr == ptr);
        if is_live { Ok(()) } else { Err(AllocError::NotAllocated(ptr)) }
    }

    fn trim(&mut self, _: u64) -> Result<u64, AllocError> {
        Ok(0)
    }

    fn stats(&self) -> Stats {
        Stats { requested_bytes: self.live.iter().map(|live| live.bytes).sum(), ..Stats::default() }
    }
}

const S: StreamId = StreamId(7);

fn of(bytes: u64) -> Request {
    Request::new(bytes, S)
}

#[test]
fn a_quota_is_exact_to_the_byte() {
    let mut pool = Limited::new(bump(u64::MAX), 1000);
    let first = pool.allocate(of(999)).unwrap();
    assert_eq!(pool.allocate(of(2)), Err(AllocError::OverQuota { bytes: 2, left_bytes: 1 }));
    let second = pool.allocate(of(1)).unwrap();
    assert_eq!(pool.left_bytes(), 0);
    pool.free(first.ptr, S).unwrap();
    assert_eq!(pool.free(first.ptr, S), Err(AllocError::NotAllocated(first.ptr)));
    assert_eq!(pool.left_bytes(), 999);
    pool.set_quota_bytes(0);
    assert_eq!(pool.left_bytes(), 0);
    pool.free(second.ptr, S).unwrap();
    pool.set_quota_bytes(10);
    assert_eq!(pool.left_bytes(), 10);
}

#[test]
fn a_failure_inside_costs_no_quota() {
    let mut pool = Limited::new(bump(100), 1000);
    assert!(matches!(pool.allocate(of(101)), Err(AllocError::OutOfMemory(_))));
    assert_eq!(pool.left_bytes(), 1000);
}

#[test]
fn a_pool_is_shared_between_threads() {
    let pool = Arc::new(Locked::new(bump(u64::MAX)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let allocation = (*pool).allocate(of(512)).unwrap();
                    (*pool).free(allocation.ptr, S).unwrap();
                }
            });
        }
    });
    assert_eq!((*pool).stats().requested_bytes, 0);
    let mut shared: Box<dyn Allocator> = Box::new(Arc::clone(&pool));
    shared.allocate(of(5)).unwrap();
    assert_eq!((*pool).stats().requested_bytes, 5);
}

#[test]
fn a_panic_inside_poisons_a_shared_pool() {
    let pool = Arc::new(Locked::new(bump(u64::MAX)));
    let live = (*pool).allocate(of(5)).unwrap();
    let other = Arc::clone(&pool);
    std::thread::spawn(move || (*other).allocate(of(666))).join().unwrap_err();
    assert_eq!((*pool).allocate(of(1)), Err(AllocError::Poisoned));
    assert_eq!((*pool).free(live.ptr, S), Err(AllocError::Poisoned));
    assert_eq!((*pool).trim(0), Err(AllocError::Poisoned));
    assert_eq!((*pool).stats().requested_bytes, 5, "figures can still be read");
}

#[test]
fn tags_know_who_holds_the_memory() {
    let mut pool = Tagged::new(bump(100));
    let untagged = pool.allocate(of(1)).unwrap();
    pool.set_tag("weights");
    let weights = pool.allocate(of(60)).unwrap();
    pool.set_tag("cache");
    pool.allocate(of(30)).unwrap();
    let Err(AllocError::OutOfMemory(report)) = pool.allocate(of(10)) else { panic!() };
    let expected = [("weights", 60), ("cache", 30), ("", 1)].map(|(tag, bytes)| (tag.to_owned(), bytes));
    assert_eq!(report.top_tags, expected);
    pool.free(weights.ptr, S).unwrap();
    pool.free(untagged.ptr, S).unwrap();
    assert!(pool.free(weights.ptr, S).is_err());
    assert_eq!((pool.live_bytes("weights"), pool.live_bytes("cache"), pool.live_bytes("x")), (0, 30, 0));
    assert_eq!(pool.top_tags(9), [("cache".to_owned(), 30)]);
    assert!(
        OutOfMemory { top_tags: pool.top_tags(1), ..OutOfMemory::default() }
            .to_string()
            .ends_with(": cache 30")
    );
}

fn clock() -> Clock {
    let time = AtomicU64::new(0);
    Box::new(move || time.fetch_add(10, Ordering::Relaxed))
}

#[test]
fn a_record_can_be_read_back() {
    let mut pool = Recorded::new(bump(1000), Writer::new(Vec::new()), clock());
    let first = pool.allocate(of(100)).unwrap();
    pool.allocate(Request::new(200, StreamId(9))).unwrap();
    pool.allocate(of(5000)).unwrap_err();
    pool.free(first.ptr, S).unwrap();
    pool.free(first.ptr, S).unwrap_err();
    let third = pool.allocate(of(300)).unwrap();
    pool.free(third.ptr, S).unwrap();
    let (inner, text) = pool.finish().unwrap();
    assert_eq!(inner.stats().requested_bytes, 200);
    let events: Vec<Event> = Reader::new(&text[..]).map(Result::unwrap).collect();
    let expected = [
        (Op::Allocate { bytes: 100, stream: 0 }, 0),
        (Op::Allocate { bytes: 200, stream: 1 }, 1),
        (Op::Free, 0),
        (Op::Allocate { bytes: 300, stream: 0 }, 2),
        (Op::Free, 2),
    ];
    let expected: Vec<Event> =
        expected.iter().zip(0..).map(|(&(op, id), i)| Event { op, id, at_us: 10 * i }).collect();
    assert_eq!(events, expected);
}

/// Takes nothing until it is mended.
#[derive(Default)]
struct FullDisk {
    mended: Arc<AtomicU64>,
    taken: Arc<std::sync::Mutex<Vec<u8>>>,
}

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.mended.load(Ordering::Relaxed) == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.taken.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_refuses_allocations_and_loses_nothing() {
    let disk = FullDisk::default();
    let (mended, taken) = (Arc::clone(&disk.mended), Arc::clone(&disk.taken));
    let mut pool = Recorded::new(bump(u64::MAX), Writer::new(disk), clock());
    let mut live = Vec::new();
    let refused = loop {
        match pool.allocate(of(1)) {
            Ok(allocation) => live.push(allocation),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, AllocError::Record(io::ErrorKind::StorageFull));
    assert_eq!(pool.stats().requested_bytes, live.len() as u64, "nothing was allocated");
    let first = live.remove(0);
    pool.free(first.ptr, S).unwrap();
    mended.store(1, Ordering::Relaxed);
    pool.allocate(of(1)).unwrap();
    pool.finish().unwrap();
    let text = taken.lock().unwrap();
    let events: Vec<Event> = Reader::new(&text[..]).map(Result::unwrap).collect();
    assert_eq!(events.len(), live.len() + 3);
}
