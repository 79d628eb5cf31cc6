//! The host's end of a staged transfer: where slots are filled from, or emptied to, by several threads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use crate::chunk::Chunk;

/// Bytes under one lock.
const BLOCK_BYTES: usize = 1 << 20;

/// What slots are filled from or emptied to.
#[derive(Debug)]
pub(crate) enum Ends<'a> {
    /// Memory that is read.
    Memory(&'a [u8]),
    /// A file that is read, at the offsets of the host side.
    File(&'a File),
    /// Memory that is written, in blocks.
    Sink(Box<[Mutex<&'a mut [u8]>]>),
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl<'a> Ends<'a> {
    /// Memory to be written by several threads.
    pub(crate) fn sink(memory: &'a mut [u8]) -> Self {
        Self::Sink(memory.chunks_mut(BLOCK_BYTES).map(Mutex::new).collect())
    }

    /// Fills `slot` with the bytes of a chunk, piece by piece.
    ///
    /// # Errors
    /// Those of reading a file, which may be shorter than it was.
    pub(crate) fn fill(&self, chunk: &Chunk, slot: &mut [u8]) -> io::Result<()> {
        let mut rest = slot;
        for piece in &chunk.pieces {
            let (part, behind) = rest.split_at_mut(index(piece.bytes));
            rest = behind;
            match self {
                Self::Memory(memory) => {
                    part.copy_from_slice(&memory[index(piece.host_offset)..index(piece.host_end())]);
                }
                Self::File(file) => file.read_exact_at(part, piece.host_offset)?,
                Self::Sink(_) => {}
            }
        }
        Ok(())
    }

    /// Empties `slot` to the places of a chunk's pieces.
    pub(crate) fn empty(&self, chunk: &Chunk, slot: &[u8]) {
        let Self::Sink(blocks) = self else { return };
        let mut rest = slot;
        for piece in &chunk.pieces {
            let (mut part, behind) = rest.split_at(index(piece.bytes));
            rest = behind;
            let mut at = index(piece.host_offset);
            while !part.is_empty() {
                let mut block = blocks[at / BLOCK_BYTES].lock().unwrap_or_else(PoisonError::into_inner);
                let to = &mut block[at % BLOCK_BYTES..];
                let (now, later) = part.split_at(part.len().min(to.len()));
                to[..now.len()].copy_from_slice(now);
                (part, at) = (later, at + now.len());
            }
        }
    }
}
