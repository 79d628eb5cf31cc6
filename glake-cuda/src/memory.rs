//! Owned virtual memory for direct users: handles, reservations and mappings that clean up behind
//! themselves. Pools use the driver's traits instead.

use std::sync::Arc;

use glake_core::driver::{Access, DriverError, Result, VirtualMemory};
use glake_core::units::{AddressRange, DeviceId, HandleId};

use crate::CudaDriver;

/// Physical memory without an address; released when dropped. What is mapped of it stays valid
/// until it is unmapped.
#[derive(Debug)]
pub struct PhysicalHandle {
    driver: CudaDriver,
    id: HandleId,
    bytes: u64,
}

impl PhysicalHandle {
    /// Creates `bytes` bytes, a multiple of the granularity, on `device`.
    ///
    /// # Errors
    /// As [`VirtualMemory::create`]; nothing is created then.
    pub fn new(driver: &CudaDriver, device: DeviceId, bytes: u64) -> Result<Self> {
        let id = driver.create(device, bytes)?;
        Ok(Self { driver: driver.clone(), id, bytes })
    }

    /// The handle's id in the driver, which stays the owner's.
    #[must_use]
    pub const fn id(&self) -> HandleId {
        self.id
    }

    /// The size in bytes.
    #[must_use]
    pub const fn n_bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for PhysicalHandle {
    fn drop(&mut self) {
        // Fails only where the id was released behind the owner's back, or the device is lost.
        let _ = self.driver.release(self.id);
    }
}

/// Reserved addresses. Clones share the reservation, as do the mappings in it; it is given back
/// behind the last of them.
#[derive(Clone, Debug)]
pub struct Reservation {
    inner: Arc<Reserved>,
}

#[derive(Debug)]
struct Reserved {
    driver: CudaDriver,
    range: AddressRange,
}

impl Reservation {
    /// Reserves `bytes` bytes of addresses at a multiple of `align_bytes`.
    ///
    /// # Errors
    /// As [`VirtualMemory::reserve`]; nothing is reserved then.
    pub fn new(driver: &CudaDriver, bytes: u64, align_bytes: u64) -> Result<Self> {
        let range = driver.reserve(bytes, align_bytes)?;
        Ok(Self { inner: Arc::new(Reserved { driver: driver.clone(), range }) })
    }

    /// The addresses.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.inner.range
    }

    /// Maps the whole of `handle`, `offset_bytes` into the reservation, without access.
    ///
    /// # Errors
    /// As [`VirtualMemory::map`]; nothing is mapped then.
    pub fn map(&self, offset_bytes: u64, handle: &PhysicalHandle) -> Result<Mapping> {
        let Reserved { driver, range } = &*self.inner;
        let at = range.start.checked_add(offset_bytes).ok_or(DriverError::UnknownAddress(range.start))?;
        let place = AddressRange::new(at, handle.bytes);
        if !range.contains(place) {
            return Err(DriverError::UnknownAddress(at));
        }
        driver.map(at, handle.id)?;
        Ok(Mapping { reservation: self.clone(), range: place })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.driver.unreserve_later(self.range);
    }
}

/// A handle mapped at an address. When dropped, the range goes to the driver's reaper, which unmaps
/// it at a later call, once all work that was enqueued until the drop, on any stream of any device
/// that can reach it, is done. Dropping never waits.
///
/// While a stream that the driver created or adopted is captured into a graph, nothing is unmapped;
/// a capture on a stream that it does not know is broken by the drop, so adopt such streams.
/// Drivers before 12.5 cannot mark all work of a device at once; there, work on streams that the
/// driver neither created nor adopted must be done before the drop.
#[derive(Debug)]
pub struct Mapping {
    reservation: Reservation,
    range: AddressRange,
}

impl Mapping {
    /// Where the memory is mapped.
    #[must_use]
    pub const fn range(&self) -> AddressRange {
        self.range
    }

    /// The reservation around it.
    #[must_use]
    pub const fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Says what `devices` may do with the memory at this address.
    ///
    /// # Errors
    /// As [`VirtualMemory::set_access`]; the rights are as before then.
    pub fn set_access(&self, devices: &[DeviceId], access: Access) -> Result<()> {
        self.driver().set_access(self.range, devices, access)
    }

    /// The driver that it is mapped by.
    #[must_use]
    pub fn driver(&self) -> &CudaDriver {
        &self.reservation.inner.driver
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.driver().unmap_later(self.range);
    }
}
