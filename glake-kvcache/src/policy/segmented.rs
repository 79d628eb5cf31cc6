//! LRU in two parts: blocks that were hit outlive those that never were.

use super::{Blocks, List, Policy};
use crate::ids::BlockId;

/// Keeps blocks that were hit since they were stored in a part of their own, which is given up last (segmented LRU,
/// Karedla et al., 1994). It resists floods of prompts that never come again.
#[derive(Clone, Debug)]
pub struct Segmented {
    new: List,
    kept: List,
    /// The most that is kept, in percent of all blocks.
    percent: u32,
    most_kept: u32,
    marks: Box<[Mark]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    was_hit: bool,
    is_kept: bool,
}

impl Segmented {
    /// Up to `percent` of all blocks are kept for having been hit.
    #[must_use]
    pub fn new(percent: u32) -> Self {
        let marks = Box::default();
        Self { new: List::default(), kept: List::default(), percent: percent.min(100), most_kept: 0, marks }
    }
}

/// A quarter is kept.
impl Default for Segmented {
    fn default() -> Self {
        Self::new(25)
    }
}

impl Policy for Segmented {
    fn reset(&mut self, n_blocks: u32) {
        let most = u64::from(n_blocks) * u64::from(self.percent) / 100;
        *self = Self {
            most_kept: u32::try_from(most).unwrap_or(n_blocks),
            marks: vec![Mark::default(); n_blocks as usize].into_boxed_slice(),
            ..Self::new(self.percent)
        };
    }

    fn insert(&mut self, blocks: &mut Blocks, block: BlockId) {
        let mark = &mut self.marks[block.0 as usize];
        mark.is_kept = mark.was_hit;
        if !mark.is_kept {
            return self.new.push_back(blocks, block);
        }
        self.kept.push_back(blocks, block);
        if self.kept.len() > self.most_kept
            && let Some(block) = self.kept.pop_front(blocks)
        {
            self.marks[block.0 as usize] = Mark::default();
            self.new.push_back(blocks, block);
        }
    }

    fn remove(&mut self, blocks: &mut Blocks, block: BlockId) {
        let list = if self.marks[block.0 as usize].is_kept { &mut self.kept } else { &mut self.new };
        list.remove(blocks, block);
    }

    fn victim(&self) -> Option<BlockId> {
        self.new.first().or_else(|| self.kept.first())
    }

    fn order(&self, blocks: &Blocks) -> Vec<BlockId> {
        self.new.iter(blocks).chain(self.kept.iter(blocks)).collect()
    }

    fn hit(&mut self, block: BlockId) {
        self.marks[block.0 as usize].was_hit = true;
    }

    fn stored(&mut self, block: BlockId) {
        self.marks[block.0 as usize].was_hit = false;
    }
}
