//! The index of the free blocks: by length, and by how much of them is in whole handles.

use std::collections::BTreeSet;

/// (bytes, start, block): ordered by size, then address.
type Key = (u64, u64, u32);

/// Free blocks by length and by clean bytes. Ties go to the lowest address.
#[derive(Debug, Default)]
pub(crate) struct FreeIndex {
    by_bytes: BTreeSet<Key>,
    by_clean: BTreeSet<Key>,
    free_bytes: u64,
    clean_bytes: u64,
}

impl FreeIndex {
    pub(crate) fn insert(&mut self, block: u32, start: u64, bytes: u64, clean_bytes: u64) {
        self.by_bytes.insert((bytes, start, block));
        self.free_bytes += bytes;
        if clean_bytes > 0 {
            self.by_clean.insert((clean_bytes, start, block));
            self.clean_bytes += clean_bytes;
        }
    }

    pub(crate) fn remove(&mut self, block: u32, start: u64, bytes: u64, clean_bytes: u64) {
        self.by_bytes.remove(&(bytes, start, block));
        self.free_bytes -= bytes;
        if clean_bytes > 0 {
            self.by_clean.remove(&(clean_bytes, start, block));
            self.clean_bytes -= clean_bytes;
        }
    }

    /// Free bytes in all.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Free bytes in whole free handles.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.clean_bytes
    }

    /// The longest free block in bytes.
    pub(crate) fn largest_bytes(&self) -> u64 {
        self.by_bytes.last().map_or(0, |k| k.0)
    }

    /// Free blocks of at least `bytes`, shortest first.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = u32> + '_ {
        self.by_bytes.range((bytes, 0, 0)..).map(|k| k.2)
    }

    /// Free blocks shorter than `bytes`, longest first.
    pub(crate) fn below(&self, bytes: u64) -> impl Iterator<Item = u32> + '_ {
        self.by_bytes.range(..(bytes, 0, 0)).rev().map(|k| k.2)
    }

    /// Free blocks with whole handles, most clean bytes first.
    pub(crate) fn by_clean(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_clean.iter().rev().map(|k| k.2)
    }
}
