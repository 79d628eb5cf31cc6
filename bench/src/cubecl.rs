//! cubecl's pools (`cubecl-server`) over a storage that keeps no bytes.
//!
//! Reservations are of the kind that only adds pages. The usual kind gives pages back that it
//! found unused for some thousand reservations, and with them the state that is measured.

use std::collections::HashMap;
use std::sync::Arc;

use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use cubecl_server::server::IoError;
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};

use crate::contest::Pool;

/// As `cubecl-cuda` sets it on a device of 141 GB: a quarter of the memory.
const MAX_PAGE_BYTES: u64 = 35 << 30;
const ALIGN_BYTES: u64 = 512;

/// A storage that hands out ids and counts.
#[derive(Default)]
struct Ledger {
    n_calls: u64,
    held: HashMap<StorageId, u64>,
}

impl ComputeStorage for Ledger {
    type Resource = u64;

    fn alignment(&self) -> usize {
        512
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<u64, IoError> {
        Ok(handle.offset())
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        self.n_calls += 1;
        let id = StorageId::new();
        self.held.insert(id, size);
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        self.n_calls += 1;
        self.held.remove(&id);
    }

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        self.held.values().sum()
    }
}

/// The memory of one stream, which is one thread's own.
pub(crate) struct Memory {
    pools: MemoryManagement<Ledger>,
    failures: ErrorGraph,
}

/// `n` memories of pages sized to the largest object served, cut into slices: cubecl's default.
pub(crate) fn adaptive(n: usize) -> Vec<Memory> {
    (0..n).map(|_| one(MemoryConfiguration::Adaptive)).collect()
}

/// The most free intervals of [`exclusive`]: it looks at every page for every object, so that filling
/// takes the square of their number, and a bucket has 16 bits for the number of a page.
pub(crate) const MAX_EXCLUSIVE: usize = 10_000;

/// `n` memories of one page for each object.
pub(crate) fn exclusive(n: usize) -> Vec<Memory> {
    (0..n).map(|_| one(MemoryConfiguration::ExclusivePages)).collect()
}

fn one(configuration: MemoryConfiguration) -> Memory {
    let pools = MemoryManagement::from_configuration(
        Ledger::default(),
        &MemoryDeviceProperties::new(MAX_PAGE_BYTES, ALIGN_BYTES),
        configuration,
        Arc::new(ServerLogger::default()),
        MemoryManagementOptions::new("bench").mode(MemoryAllocationMode::Auto),
    );
    Memory { pools, failures: ErrorGraph::default() }
}

impl Pool for Memory {
    type Object = ManagedMemoryHandle;

    fn allocate(&mut self, bytes: u64) -> ManagedMemoryHandle {
        self.pools.reserve(bytes, PageUpdate::AddOnly, &mut self.failures).unwrap()
    }

    /// A slice is free when nobody holds its handle; the next search finds that out.
    fn free(&mut self, object: ManagedMemoryHandle) {
        drop(object);
    }

    /// Guards the pages that are full, so that no search goes through them: without that, filling takes
    /// hours where objects are many.
    fn fill(&mut self, sizes: impl Iterator<Item = u64>) -> Vec<ManagedMemoryHandle> {
        let mut guards = Vec::new();
        let mut objects: Vec<ManagedMemoryHandle> = Vec::new();
        for bytes in sizes {
            let object = self.allocate(bytes);
            let page = object.descriptor().location().page;
            let left = objects.last().map(|last| last.descriptor().location());
            if let Some(left) = left.filter(|left| left.page != page) {
                guards.extend(self.pools.guard(left));
            }
            objects.push(object);
        }
        objects
    }

    fn n_device_calls(&mut self) -> u64 {
        self.pools.storage().n_calls
    }
}
