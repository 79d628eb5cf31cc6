//! The page table: which mapping covers an address.

use crate::units::PAGE_BYTES;

/// Pages of one chunk of the table: 2 GiB of addresses.
const CHUNK: usize = 1024;

/// For each page above a base address the index of its mapping, in chunks that are made when
/// something is first mapped there. Every access takes constant time for each page.
#[derive(Debug)]
pub(super) struct PageTable {
    base: u64,
    /// Index plus one; zero is unmapped.
    chunks: Vec<Option<Box<[u32; CHUNK]>>>,
}

impl PageTable {
    pub(super) fn new(base: u64) -> Self {
        Self { base, chunks: Vec::new() }
    }

    fn page(&self, at: u64) -> Option<usize> {
        usize::try_from(at.checked_sub(self.base)? / PAGE_BYTES).ok()
    }

    /// The index of the mapping that covers `at`.
    pub(super) fn get(&self, at: u64) -> Option<u32> {
        let page = self.page(at)?;
        let chunk = self.chunks.get(page / CHUNK)?.as_ref()?;
        chunk[page % CHUNK].checked_sub(1)
    }

    /// Whether a page of the range is mapped. Chunks that were never used are skipped whole.
    pub(super) fn any(&self, start: u64, bytes: u64) -> bool {
        let Some(mut page) = self.page(start) else { return false };
        let end = page + pages(bytes);
        while page < end.min(self.chunks.len() * CHUNK) {
            let (in_chunk, stop) = bounds(page, end);
            if let Some(chunk) = &self.chunks[page / CHUNK]
                && chunk[in_chunk..in_chunk + stop - page].iter().any(|&entry| entry != 0)
            {
                return true;
            }
            page = stop;
        }
        false
    }

    /// Sets or clears the index of every page of the range.
    pub(super) fn set(&mut self, start: u64, bytes: u64, index: Option<u32>) {
        let Some(mut page) = self.page(start) else { return };
        let end = page + pages(bytes);
        let entry = index.map_or(0, |index| index + 1);
        if self.chunks.len() * CHUNK < end {
            self.chunks.resize_with(end.div_ceil(CHUNK), || None);
        }
        while page < end {
            let (in_chunk, stop) = bounds(page, end);
            let chunk = self.chunks[page / CHUNK].get_or_insert_with(|| Box::new([0; CHUNK]));
            chunk[in_chunk..in_chunk + stop - page].fill(entry);
            page = stop;
        }
    }
}

fn pages(bytes: u64) -> usize {
    usize::try_from(bytes / PAGE_BYTES).unwrap_or(usize::MAX)
}

/// The place of `page` in its chunk, and where the chunk or the range stops.
fn bounds(page: usize, end: usize) -> (usize, usize) {
    (page % CHUNK, end.min((page / CHUNK + 1) * CHUNK))
}

#[cfg(test)]
mod tests {
    use super::PageTable;
    use crate::units::PAGE_BYTES;

    #[test]
    fn ranges_over_chunk_edges_are_set_and_cleared() {
        let mut table = PageTable::new(PAGE_BYTES);
        let start = PAGE_BYTES * 1020;
        table.set(start, PAGE_BYTES * 2000, Some(0));
        assert_eq!(table.get(start - 1), None);
        assert_eq!(table.get(start), Some(0));
        assert_eq!(table.get(start + PAGE_BYTES * 2000 - 1), Some(0));
        assert_eq!(table.get(start + PAGE_BYTES * 2000), None);
        assert!(table.any(PAGE_BYTES, PAGE_BYTES * 1020) && !table.any(PAGE_BYTES, PAGE_BYTES * 1019));
        table.set(start, PAGE_BYTES * 2000, None);
        assert!(!table.any(PAGE_BYTES, PAGE_BYTES << 23));
    }
}
