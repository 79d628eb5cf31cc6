//! Where chains begin: one root for each salt that is in use.

use std::collections::HashMap;

use crate::ids::BlockHash;
use crate::prefix::Identity;

#[derive(Debug, Default)]
struct Root {
    salt: Box<[u8]>,
    hash: BlockHash,
    /// Sequences, and first blocks in the index.
    users: u32,
}

/// The roots. A place is given to another salt only when nobody uses it, so that it tells what begins there.
#[derive(Debug)]
pub(crate) struct Roots {
    places: Vec<Root>,
    free: Vec<u32>,
    by_salt: HashMap<Box<[u8]>, u32>,
}

/// The root without a salt, which stays.
const PLAIN: u32 = 0;

impl Roots {
    pub(crate) fn new(plain: BlockHash) -> Self {
        let root = Root { hash: plain, users: 1, ..Root::default() };
        Self { places: vec![root], free: Vec::new(), by_salt: HashMap::new() }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The root of a salt, if anything begins there.
    pub(crate) fn find(&self, salt: &[u8]) -> Option<u32> {
        if salt.is_empty() { Some(PLAIN) } else { self.by_salt.get(salt).copied() }
    }

    /// The root of a salt that has none; nobody uses it yet.
    pub(crate) fn create(&mut self, salt: &[u8], hash: BlockHash) -> Option<u32> {
        let place = if let Some(place) = self.free.pop() {
            place
        } else {
            self.places.push(Root::default());
            u32::try_from(self.places.len() - 1).ok()?
        };
        self.places[place as usize] = Root { salt: salt.into(), hash, users: 0 };
        self.by_salt.insert(salt.into(), place);
        Some(place)
    }

    pub(crate) fn hash(&self, place: u32) -> BlockHash {
        self.places[place as usize].hash
    }

    pub(crate) fn salt(&self, place: u32) -> &[u8] {
        &self.places[place as usize].salt
    }

    #[inline]
    pub(crate) fn acquire(&mut self, place: u32) {
        self.places[place as usize].users += 1;
    }

    #[inline]
    pub(crate) fn release(&mut self, place: u32) {
        let root = &mut self.places[place as usize];
        root.users -= 1;
        if root.users == 0 {
            self.by_salt.remove(&root.salt);
            root.salt = Box::default();
            self.free.push(place);
        }
    }

    /// A block was indexed under `parent`.
    #[inline]
    pub(crate) fn child_added(&mut self, parent: Identity) {
        if let Some(place) = parent.as_root() {
            self.acquire(place);
        }
    }

    /// A block under `parent` was taken out of the index.
    #[inline]
    pub(crate) fn child_removed(&mut self, parent: Identity) {
        if let Some(place) = parent.as_root() {
            self.release(place);
        }
    }
}
