//! A map from bytes to owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::spy::{Extent, Moment};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Live,
    /// Free behind all of these.
    Freed(Arc<[Moment]>),
}

/// Disjoint intervals of bytes, by (handle, offset).
#[derive(Debug)]
pub(super) struct Owners(BTreeMap<(u64, u64), (u64, Owner)>);

impl Owners {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Makes `owner` the owner of `extent` and returns who owned parts of it before.
    pub(super) fn replace(&mut self, extent: Extent, owner: Owner) -> Vec<Owner> {
        let Extent { serial, offset_bytes: start, bytes } = extent;
        let end = start + bytes;
        let mut before = Vec::new();
        let first = self.0.range_mut(..(serial, start)).next_back().filter(|(key, _)| key.0 == serial);
        if let Some((_, (old_end, old))) = first
            && *old_end > start
        {
            let (cut_end, old) = (std::mem::replace(old_end, start), old.clone());
            before.push(old.clone());
            if cut_end > end {
                self.0.insert((serial, end), (cut_end, old));
            }
        }
        while let Some((&key, _)) = self.0.range((serial, start)..(serial, end)).next() {
            let Some((old_end, old)) = self.0.remove(&key) else { break };
            before.push(old.clone());
            if old_end > end {
                self.0.insert((serial, end), (old_end, old));
            }
        }
        self.0.insert((serial, start), (end, owner));
        before
    }
}
