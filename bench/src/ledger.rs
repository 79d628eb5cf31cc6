//! A driver whose calls cost nothing: it hands out numbers and counts.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use glake_core::driver::{
    Access, Copies, DeviceInfo, DeviceOps, Driver, DriverError, Held, HostBuffer, HostMemory, Ledger, Lent,
    MemoryInfo, Piece, ReadId, Result, Retired, SharedBytes, Sharing, StreamOrder, VirtualMemory,
};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, EventId, HandleId, HostId, PAGE_BYTES, StreamId};

/// More than the largest case takes.
const MEMORY_BYTES: u64 = 1 << 40;
const NO_DEVICE: DriverError = DriverError::NotSupported("there is no device behind this driver");

/// A device without bytes, whose work is done at once. Unlike a real driver it trusts its caller.
#[derive(Debug)]
pub(crate) struct LedgerDriver {
    n_calls: AtomicU64,
    next_address: AtomicU64,
    next_id: AtomicU64,
}

impl LedgerDriver {
    pub(crate) const fn new() -> Self {
        Self {
            n_calls: AtomicU64::new(0),
            next_address: AtomicU64::new(1 << 40),
            next_id: AtomicU64::new(16),
        }
    }

    /// Calls of memory and of events so far.
    pub(crate) fn n_calls(&self) -> u64 {
        self.n_calls.load(Relaxed)
    }

    fn count(&self) {
        self.n_calls.fetch_add(1, Relaxed);
    }

    fn id(&self) -> u64 {
        self.count();
        self.next_id.fetch_add(1, Relaxed)
    }
}

impl VirtualMemory for LedgerDriver {
    fn granularity(&self, _: DeviceId) -> Result<u64> {
        Ok(PAGE_BYTES)
    }

    fn reserve(&self, bytes: u64, _align_bytes: u64) -> Result<AddressRange> {
        self.count();
        Ok(AddressRange::new(DevicePtr(self.next_address.fetch_add(bytes, Relaxed)), bytes))
    }

    fn unreserve(&self, _: AddressRange) -> Result<()> {
        self.count();
        Ok(())
    }

    fn create(&self, _: DeviceId, _bytes: u64) -> Result<HandleId> {
        Ok(HandleId(self.id()))
    }

    fn release(&self, _: HandleId) -> Result<()> {
        self.count();
        Ok(())
    }

    fn map(&self, _: DevicePtr, _: HandleId) -> Result<()> {
        self.count();
        Ok(())
    }

    fn unmap(&self, _: AddressRange) -> Result<()> {
        self.count();
        Ok(())
    }

    fn set_access(&self, _: AddressRange, _: &[DeviceId], _: Access) -> Result<()> {
        self.count();
        Ok(())
    }

    fn retire(&self, _: Retired) {}

    fn memory_info(&self, _: DeviceId) -> Result<MemoryInfo> {
        self.count();
        Ok(MemoryInfo { free_bytes: MEMORY_BYTES, total_bytes: MEMORY_BYTES })
    }
}

impl StreamOrder for LedgerDriver {
    fn create_stream(&self, _: DeviceId) -> Result<StreamId> {
        Ok(StreamId(self.id()))
    }

    fn destroy_stream(&self, _: StreamId) -> Result<()> {
        Ok(())
    }

    fn record_all(&self, _: DeviceId) -> Result<EventId> {
        self.record(StreamId::LEGACY)
    }

    fn synchronize_all(&self, _: DeviceId) -> Result<()> {
        Ok(())
    }

    fn is_capturing(&self, _: StreamId) -> Result<bool> {
        Ok(false)
    }

    fn record(&self, _: StreamId) -> Result<EventId> {
        Ok(EventId(self.id()))
    }

    fn query(&self, _: EventId) -> Result<bool> {
        self.count();
        Ok(true)
    }

    fn wait(&self, _: StreamId, _: EventId) -> Result<()> {
        self.count();
        Ok(())
    }

    fn synchronize(&self, _: EventId) -> Result<()> {
        self.count();
        Ok(())
    }

    fn forget(&self, _: EventId) {}
}

impl Copies for LedgerDriver {
    fn write(&self, _: DevicePtr, _: &[u8], _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn read(&self, _: DevicePtr, _: &mut [u8], _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn write_async(&self, _: DevicePtr, _: SharedBytes, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn read_async(&self, _: DevicePtr, _: Box<[u8]>, _: StreamId) -> Result<ReadId> {
        Err(NO_DEVICE)
    }

    fn take_read(&self, _: ReadId) -> Result<Option<Box<[u8]>>> {
        Err(NO_DEVICE)
    }

    fn copy(&self, _: DevicePtr, _: DevicePtr, _bytes: u64, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn fill(&self, _: AddressRange, _: u8, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }
}

impl HostMemory for LedgerDriver {
    fn pin(&self, _bytes: u64, _: DeviceId) -> Result<HostBuffer> {
        Err(NO_DEVICE)
    }

    fn is_pinned(&self, _: &[u8]) -> bool {
        false
    }

    fn hold(&self, _: Held) -> HostId {
        HostId(self.id())
    }

    fn let_go(&self, _: HostId) {}

    fn take_back(&self, _: HostId) -> Result<Option<HostBuffer>> {
        Err(NO_DEVICE)
    }

    fn lend(&self, _: Lent<'_>, body: &mut dyn FnMut(HostId) -> Result<()>) -> Result<()> {
        body(HostId(self.id()))
    }

    fn write_from(&self, _: DevicePtr, _: HostId, _: Range<u64>, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn read_into(&self, _: DevicePtr, _: HostId, _: Range<u64>, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }
}

impl DeviceOps for LedgerDriver {
    fn copy_by_kernel(&self, _: DevicePtr, _: DevicePtr, _bytes: u64, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn gather(&self, _: &[Piece], _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn compare(&self, _: DevicePtr, _: DevicePtr, _bytes: u64, _: StreamId) -> Result<bool> {
        Err(NO_DEVICE)
    }

    fn fill_pattern(&self, _: AddressRange, _seed: u64, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn check_pattern(&self, _: AddressRange, _seed: u64, _: StreamId) -> Result<()> {
        Err(NO_DEVICE)
    }

    fn mismatches(&self, _: StreamId) -> Result<u64> {
        Err(NO_DEVICE)
    }

    fn delay(&self, _: StreamId, _ns: u64) -> Result<()> {
        Err(NO_DEVICE)
    }
}

impl Sharing for LedgerDriver {
    fn export(&self, _: HandleId) -> Result<OwnedFd> {
        Err(NO_DEVICE)
    }

    fn import(&self, _: DeviceId, _: OwnedFd, _bytes: u64) -> Result<HandleId> {
        Err(NO_DEVICE)
    }
}

impl Driver for LedgerDriver {
    fn n_devices(&self) -> u32 {
        1
    }

    fn device_info(&self, _: DeviceId) -> Result<DeviceInfo> {
        Ok(DeviceInfo::default())
    }

    fn ledger(&self, _: DeviceId) -> Result<Ledger> {
        Err(NO_DEVICE)
    }

    /// Its clock stands, like that of a device whose work takes no time.
    fn now_ns(&self) -> u64 {
        0
    }
}
