//! A driver that looks on: what is mapped where, and what is ordered before what.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use glake_core::driver::{
    Access, Copies, DeviceInfo, DeviceOps, Driver, Held, HostBuffer, HostMemory, Ledger, Lent, MemoryInfo,
    Piece, ReadId, Result, Retired, SharedBytes, Sharing, StreamOrder, VirtualMemory,
};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, EventId, HandleId, HostId, StreamId};

mod order;
mod space;

pub(crate) use order::Order;
use space::Space;

pub use order::Moment;
pub use space::Extent;

/// Wraps a driver and keeps its own books of mappings and of the order between streams.
///
/// The books are made from the calls alone, so that an [`Oracle`](crate::oracle::Oracle) over them
/// does not have to trust the pool, nor the simulated driver.
#[derive(Debug)]
pub struct Spy {
    inner: Arc<dyn Driver>,
    books: Mutex<Books>,
    pinned_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Books {
    space: Space,
    order: Order,
}

impl Spy {
    /// Looks on over `inner`, which must be new: what was mapped before is not known.
    #[must_use]
    pub fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner, books: Mutex::default(), pinned_bytes: AtomicU64::new(0) })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// Bytes mapped so far, by all calls of map.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.books().space.mapped_bytes
    }

    /// Host bytes pinned so far, by all calls of pin.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Relaxed)
    }

    /// The physical memory behind `range`; `None` if a part of it is not mapped.
    #[must_use]
    pub fn resolve(&self, range: AddressRange) -> Option<Vec<Extent>> {
        self.books().space.resolve(range)
    }

    /// A moment in the order of `stream`: behind all that was enqueued so far.
    pub fn moment(&self, stream: StreamId) -> Moment {
        self.books().order.moment(stream)
    }

    /// Behind all that was enqueued so far in the same order as `moment`, whatever its stream is called now.
    pub(crate) fn later(&self, moment: Moment) -> Moment {
        self.books().order.later(moment)
    }

    /// Whether work enqueued on `stream` from now on runs behind `moment`, because it is on the
    /// same stream, waits for it, or the host has seen it pass.
    #[must_use]
    pub fn is_behind(&self, stream: StreamId, moment: Moment) -> bool {
        self.books().order.is_behind(stream, moment)
    }

    /// Whether the host has seen `moment` pass.
    #[must_use]
    pub fn is_done(&self, moment: Moment) -> bool {
        self.books().order.is_done(moment)
    }

    /// Tells that `stream` is captured from now on, which no call of the driver seam says. Work of a
    /// graph is ordered against work of the same capture only, because it may be launched at any time,
    /// on any stream.
    pub fn begin_capture(&self, stream: StreamId) {
        self.books().order.begin_capture(stream);
    }

    /// Tells that the capture of `stream` has ended.
    pub fn end_capture(&self, stream: StreamId) {
        self.books().order.end_capture(stream);
    }

    /// Tells that the graph of the capture of `moment` will not be launched any more on `device`. Its work
    /// is done when all that was enqueued there until now is.
    pub fn graph_ends(&self, moment: Moment, device: DeviceId) {
        self.books().order.graph_ends(moment, device);
    }
}

impl VirtualMemory for Spy {
    fn granularity(&self, device: DeviceId) -> Result<u64> {
        self.inner.granularity(device)
    }

    fn reserve(&self, bytes: u64, align_bytes: u64) -> Result<AddressRange> {
        self.inner.reserve(bytes, align_bytes)
    }

    fn unreserve(&self, range: AddressRange) -> Result<()> {
        self.inner.unreserve(range)
    }

    fn create(&self, device: DeviceId, bytes: u64) -> Result<HandleId> {
        let handle = self.inner.create(device, bytes)?;
        self.books().space.create(handle, bytes);
        Ok(handle)
    }

    fn release(&self, handle: HandleId) -> Result<()> {
        self.inner.release(handle)
    }

    fn map(&self, at: DevicePtr, handle: HandleId) -> Result<()> {
        self.inner.map(at, handle)?;
        self.books().space.map(at, handle);
        Ok(())
    }

    fn unmap(&self, range: AddressRange) -> Result<()> {
        self.inner.unmap(range)?;
        self.books().space.unmap(range);
        Ok(())
    }

    fn set_access(&self, range: AddressRange, devices: &[DeviceId], access: Access) -> Result<()> {
        self.inner.set_access(range, devices, access)
    }

    fn retire(&self, retired: Retired) {
        self.inner.retire(retired);
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.inner.memory_info(device)
    }
}

impl StreamOrder for Spy {
    fn create_stream(&self, device: DeviceId) -> Result<StreamId> {
        let stream = self.inner.create_stream(device)?;
        self.books().order.create(stream, device);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<()> {
        self.inner.destroy_stream(stream)?;
        self.books().order.destroy(stream);
        Ok(())
    }

    fn record(&self, stream: StreamId) -> Result<EventId> {
        let event = self.inner.record(stream)?;
        self.books().order.record(stream, event);
        Ok(event)
    }

    fn record_all(&self, device: DeviceId) -> Result<EventId> {
        let event = self.inner.record_all(device)?;
        self.books().order.record_all(device, event);
        Ok(event)
    }

    fn query(&self, event: EventId) -> Result<bool> {
        let passed = self.inner.query(event)?;
        if passed {
            self.books().order.seen(event);
        }
        Ok(passed)
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.inner.wait(stream, event)?;
        self.books().order.wait(stream, event);
        Ok(())
    }

    fn synchronize(&self, event: EventId) -> Result<()> {
        self.inner.synchronize(event)?;
        self.books().order.seen(event);
        Ok(())
    }

    fn synchronize_all(&self, device: DeviceId) -> Result<()> {
        self.inner.synchronize_all(device)?;
        self.books().order.seen_all(device);
        Ok(())
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        self.inner.is_capturing(stream)
    }

    fn forget(&self, event: EventId) {
        self.inner.forget(event);
        self.books().order.forget(event);
    }
}

impl Copies for Spy {
    fn write(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<()> {
        self.inner.write(dst, src, stream)
    }

    fn read(&self, src: DevicePtr, dst: &mut [u8], stream: StreamId) -> Result<()> {
        self.inner.read(src, dst, stream)
    }

    fn write_async(&self, dst: DevicePtr, src: SharedBytes, stream: StreamId) -> Result<()> {
        self.inner.write_async(dst, src, stream)
    }

    fn read_async(&self, src: DevicePtr, dst: Box<[u8]>, stream: StreamId) -> Result<ReadId> {
        self.inner.read_async(src, dst, stream)
    }

    fn take_read(&self, read: ReadId) -> Result<Option<Box<[u8]>>> {
        self.inner.take_read(read)
    }

    fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()> {
        self.inner.copy(dst, src, bytes, stream)
    }

    fn fill(&self, range: AddressRange, value: u8, stream: StreamId) -> Result<()> {
        self.inner.fill(range, value, stream)
    }
}

impl HostMemory for Spy {
    fn pin(&self, bytes: u64, near: DeviceId) -> Result<HostBuffer> {
        self.inner.pin(bytes, near).inspect(|_| {
            self.pinned_bytes.fetch_add(bytes, Ordering::Relaxed);
        })
    }

    fn is_pinned(&self, bytes: &[u8]) -> bool {
        self.inner.is_pinned(bytes)
    }

    fn hold(&self, memory: Held) -> HostId {
        self.inner.hold(memory)
    }

    fn let_go(&self, host: HostId) {
        self.inner.let_go(host);
    }

    fn take_back(&self, host: HostId) -> Result<Option<HostBuffer>> {
        self.inner.take_back(host)
    }

    fn lend(&self, memory: Lent<'_>, body: &mut dyn FnMut(HostId) -> Result<()>) -> Result<()> {
        self.inner.lend(memory, body)
    }

    fn write_from(&self, dst: DevicePtr, host: HostId, from: Range<u64>, stream: StreamId) -> Result<()> {
        self.inner.write_from(dst, host, from, stream)
    }

    fn read_into(&self, src: DevicePtr, host: HostId, into: Range<u64>, stream: StreamId) -> Result<()> {
        self.inner.read_into(src, host, into, stream)
    }
}

impl DeviceOps for Spy {
    fn copy_by_kernel(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()> {
        self.inner.copy_by_kernel(dst, src, bytes, stream)
    }

    fn gather(&self, pieces: &[Piece], stream: StreamId) -> Result<()> {
        self.inner.gather(pieces, stream)
    }

    fn compare(&self, a: DevicePtr, b: DevicePtr, bytes: u64, stream: StreamId) -> Result<bool> {
        self.inner.compare(a, b, bytes, stream)
    }

    fn fill_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()> {
        self.inner.fill_pattern(range, seed, stream)
    }

    fn check_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()> {
        self.inner.check_pattern(range, seed, stream)
    }

    fn mismatches(&self, stream: StreamId) -> Result<u64> {
        self.inner.mismatches(stream)
    }

    fn delay(&self, stream: StreamId, ns: u64) -> Result<()> {
        self.inner.delay(stream, ns)
    }
}

impl Sharing for Spy {
    fn export(&self, handle: HandleId) -> Result<OwnedFd> {
        self.inner.export(handle)
    }

    fn import(&self, device: DeviceId, fd: OwnedFd, bytes: u64) -> Result<HandleId> {
        let handle = self.inner.import(device, fd, bytes)?;
        self.books().space.create(handle, bytes);
        Ok(handle)
    }
}

impl Driver for Spy {
    fn n_devices(&self) -> u32 {
        self.inner.n_devices()
    }

    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo> {
        self.inner.device_info(device)
    }

    fn ledger(&self, device: DeviceId) -> Result<Ledger> {
        self.inner.ledger(device)
    }

    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }
}
