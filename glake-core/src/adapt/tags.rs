//! The books of who holds the memory.

use std::collections::{BTreeMap, HashMap};

use crate::units::DevicePtr;

/// A tag of [`Tags`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TagId(usize);

/// Live bytes by tag: the books of a [`Tagged`](super::Tagged) allocator.
///
/// ```
/// use glake_core::adapt::Tags;
/// use glake_core::units::DevicePtr;
/// let mut tags = Tags::default();
/// let weights = tags.id("weights");
/// tags.note(DevicePtr(0x200), weights, 512);
/// assert_eq!(tags.top(1), [("weights".to_owned(), 512)]);
/// tags.forget(DevicePtr(0x200));
/// assert_eq!(tags.live_bytes("weights"), 0);
/// ```
#[derive(Debug)]
pub struct Tags {
    /// Name and live bytes, in order of appearance; the first is the empty tag.
    tags: Vec<(String, u64)>,
    by_name: BTreeMap<String, usize>,
    live: HashMap<DevicePtr, (usize, u64)>,
}

impl Default for Tags {
    fn default() -> Self {
        let by_name = BTreeMap::from([(String::new(), 0)]);
        Self { tags: vec![(String::new(), 0)], by_name, live: HashMap::new() }
    }
}

impl Tags {
    /// The tag called `name`, a new one if there is none yet. The default is the empty tag.
    pub fn id(&mut self, name: &str) -> TagId {
        if let Some(&index) = self.by_name.get(name) {
            return TagId(index);
        }
        self.tags.push((name.to_owned(), 0));
        self.by_name.insert(name.to_owned(), self.tags.len() - 1);
        TagId(self.tags.len() - 1)
    }

    /// The name of a tag.
    #[must_use]
    pub fn name(&self, tag: TagId) -> &str {
        self.tags.get(tag.0).map_or("", |tag| &tag.0)
    }

    /// Notes that `bytes` were allocated at `ptr` under `tag`.
    pub fn note(&mut self, ptr: DevicePtr, tag: TagId, bytes: u64) {
        self.forget(ptr);
        if let Some(entry) = self.tags.get_mut(tag.0) {
            entry.1 += bytes;
            self.live.insert(ptr, (tag.0, bytes));
        }
    }

    /// Notes that the allocation at `ptr`, if it was noted, is gone.
    pub fn forget(&mut self, ptr: DevicePtr) {
        if let Some((tag, bytes)) = self.live.remove(&ptr) {
            self.tags[tag].1 -= bytes;
        }
    }

    /// The live bytes of the tag called `name`, as asked for.
    #[must_use]
    pub fn live_bytes(&self, name: &str) -> u64 {
        self.by_name.get(name).map_or(0, |&index| self.tags[index].1)
    }

    /// Up to `n` tags with live bytes, the largest first, equal ones by name.
    #[must_use]
    pub fn top(&self, n: usize) -> Vec<(String, u64)> {
        let mut tags: Vec<_> = self.tags.iter().filter(|tag| tag.1 > 0).collect();
        tags.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        tags.into_iter().take(n).cloned().collect()
    }
}
