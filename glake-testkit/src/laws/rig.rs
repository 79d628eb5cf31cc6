//! What laws are written with.

use std::cell::RefCell;

use glake_core::driver::{Access, Driver};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, HandleId, PAGE_BYTES, StreamId};

/// A driver, one of its devices and a stream there. Handles, reservations and mappings made
/// through the rig go away with [`close`](Self::close).
#[derive(Debug)]
pub struct Rig<'a> {
    /// The driver under test.
    pub driver: &'a dyn Driver,
    /// The device.
    pub device: DeviceId,
    /// A stream of the device.
    pub stream: StreamId,
    made: RefCell<Made>,
}

#[derive(Debug, Default)]
struct Made {
    handles: Vec<HandleId>,
    mappings: Vec<AddressRange>,
    reservations: Vec<AddressRange>,
}

impl<'a> Rig<'a> {
    /// A rig on the first device.
    #[must_use]
    pub fn new(driver: &'a dyn Driver) -> Self {
        Self::on(driver, DeviceId(0))
    }

    /// A rig on `device`.
    #[must_use]
    pub fn on(driver: &'a dyn Driver, device: DeviceId) -> Self {
        let stream = driver.create_stream(device).expect("a stream");
        Self { driver, device, stream, made: RefCell::default() }
    }

    /// A handle of `n_pages`.
    pub fn handle(&self, n_pages: u64) -> HandleId {
        let handle = self.driver.create(self.device, n_pages * PAGE_BYTES).expect("memory");
        self.made.borrow_mut().handles.push(handle);
        handle
    }

    /// `n_pages` of addresses.
    pub fn reserve(&self, n_pages: u64) -> AddressRange {
        let range = self.driver.reserve(n_pages * PAGE_BYTES, PAGE_BYTES).expect("addresses");
        self.made.borrow_mut().reservations.push(range);
        range
    }

    /// Maps `handle`, of `n_pages`, at `at`, without access.
    pub fn map(&self, at: DevicePtr, handle: HandleId, n_pages: u64) -> AddressRange {
        self.driver.map(at, handle).expect("a mapping");
        let range = AddressRange::new(at, n_pages * PAGE_BYTES);
        self.made.borrow_mut().mappings.push(range);
        range
    }

    /// Lets the rig's device read and write `range`.
    pub fn open(&self, range: AddressRange) {
        self.driver.set_access(range, &[self.device], Access::ReadWrite).expect("access");
    }

    /// Maps `handle`, of `n_pages`, readable and writable at an address of its own.
    pub fn place(&self, handle: HandleId, n_pages: u64) -> AddressRange {
        let range = self.map(self.reserve(n_pages).start, handle, n_pages);
        self.open(range);
        range
    }

    /// `n_pages` pages, each a handle, readable and writable, side by side.
    pub fn pages(&self, n_pages: u64) -> AddressRange {
        let range = self.reserve(n_pages);
        for page in 0..n_pages {
            self.map(range.start + page * PAGE_BYTES, self.handle(1), 1);
        }
        self.open(range);
        range
    }

    /// Unmaps one mapping of the rig.
    pub fn unmap(&self, range: AddressRange) {
        self.driver.unmap(range).expect("unmapped");
        self.forget_mapping(range);
    }

    /// Leaves a mapping that the law has unmapped to the law.
    pub fn forget_mapping(&self, range: AddressRange) {
        self.made.borrow_mut().mappings.retain(|mapping| *mapping != range);
    }

    /// Releases one handle of the rig.
    pub fn release(&self, handle: HandleId) {
        self.driver.release(handle).expect("released");
        self.made.borrow_mut().handles.retain(|made| *made != handle);
    }

    /// Leaves a handle made by the law to the rig.
    pub fn adopt(&self, handle: HandleId) -> HandleId {
        self.made.borrow_mut().handles.push(handle);
        handle
    }

    /// Writes one byte.
    pub fn put(&self, at: DevicePtr, byte: u8) {
        self.driver.write(at, &[byte], self.stream).expect("written");
    }

    /// Reads one byte.
    #[must_use]
    pub fn get(&self, at: DevicePtr) -> u8 {
        let mut byte = [0];
        self.driver.read(at, &mut byte, self.stream).expect("read");
        byte[0]
    }

    /// Reads `n` bytes.
    #[must_use]
    pub fn bytes(&self, at: DevicePtr, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.driver.read(at, &mut bytes, self.stream).expect("read");
        bytes
    }

    /// Blocks until all work of the rig's stream is done.
    pub fn finish(&self) {
        let event = self.driver.record(self.stream).expect("an event");
        self.driver.synchronize(event).expect("done");
        self.driver.forget(event);
    }

    /// Takes everything back, and checks that the device's account of physical memory agrees.
    pub fn close(self) {
        self.finish();
        let made = self.made.take();
        let physical = || self.driver.ledger(self.device).expect("a ledger").physical_bytes;
        for range in made.mappings {
            self.driver.unmap(range).expect("unmapped at the end");
        }
        for handle in made.handles {
            self.driver.release(handle).expect("released at the end");
        }
        for range in made.reservations {
            self.driver.unreserve(range).expect("unreserved at the end");
        }
        self.driver.destroy_stream(self.stream).expect("destroyed at the end");
        assert_eq!(physical(), 0, "physical memory is left at the end");
    }
}

/// The start of page `n` of a range.
#[must_use]
pub(super) fn page(range: AddressRange, n: u64) -> DevicePtr {
    range.start + n * PAGE_BYTES
}

/// `n_pages` pages of a range from page `first` on.
#[must_use]
pub(super) fn part(range: AddressRange, first: u64, n_pages: u64) -> AddressRange {
    AddressRange::new(page(range, first), n_pages * PAGE_BYTES)
}
