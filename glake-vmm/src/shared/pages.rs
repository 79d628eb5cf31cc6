//! Which shard's unit a page of the arena is, for those who do not hold the central lock.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::spare::UnitName;
use crate::sync::AtomicU32;

/// Pages per chunk. A model checker pays for every atomic.
const CHUNK_PAGES: usize = if cfg!(all(loom, test)) { 8 } else { 4096 };

/// A table of all pages of an arena, in chunks that are made when a unit first lies there.
///
/// Written with the central lock and the shard's held, so either lock is enough to read what is
/// true. Without one it says what was true, which is enough for an address of a live object: its
/// unit was noted before the address was known, and stays.
#[derive(Debug)]
pub(super) struct PageTable {
    chunks: Box<[OnceLock<Box<[AtomicU32]>>]>,
}

impl PageTable {
    pub(super) fn new(n_pages: usize) -> Self {
        Self { chunks: (0..n_pages.div_ceil(CHUNK_PAGES)).map(|_| OnceLock::new()).collect() }
    }

    /// The unit in `page`, if it is one.
    pub(super) fn get(&self, page: usize) -> Option<UnitName> {
        let chunk = self.chunks.get(page / CHUNK_PAGES)?.get()?;
        // Relaxed: what carried the address here has ordered this behind the unit's arrival.
        let name = chunk[page % CHUNK_PAGES].load(Ordering::Relaxed);
        (name != 0).then(|| UnitName::unpack(name))
    }

    /// Notes what `page` is from now on.
    pub(super) fn set(&self, page: usize, name: Option<UnitName>) {
        let Some(chunk) = self.chunks.get(page / CHUNK_PAGES) else { return };
        let chunk = chunk.get_or_init(|| (0..CHUNK_PAGES).map(|_| AtomicU32::new(0)).collect());
        chunk[page % CHUNK_PAGES].store(name.map_or(0, UnitName::pack), Ordering::Relaxed);
    }

    /// Pages that are units.
    #[cfg(test)]
    pub(super) fn n_units(&self) -> usize {
        let names = self.chunks.iter().filter_map(OnceLock::get).flatten();
        names.filter(|name| name.load(Ordering::Relaxed) != 0).count()
    }
}
