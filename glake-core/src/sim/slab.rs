//! Values under small ids that are never valid twice.

/// A vector of values with reuse of slots. An id carries its slot's generation, so the id of a
/// removed value stays unknown for ever. Ids depend on the order of calls only.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

/// Slot and generation of `id`. The generation starts at 1: no id is below 2³².
fn split(id: u64) -> (usize, u64) {
    (usize::try_from(id & 0xffff_ffff).unwrap_or(usize::MAX), id >> 32)
}

impl<T> Slab<T> {
    /// Keeps `value` and returns its id.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot as usize];
            entry.value = Some(value);
            return u64::from(entry.generation) << 32 | u64::from(slot);
        }
        self.entries.push(Entry { generation: 1, value: Some(value) });
        1 << 32 | (self.entries.len() as u64 - 1)
    }

    /// The value of `id`, if it is live.
    pub(super) fn get(&self, id: u64) -> Option<&T> {
        let (slot, generation) = split(id);
        let entry = self.entries.get(slot)?;
        if u64::from(entry.generation) == generation { entry.value.as_ref() } else { None }
    }

    /// The value of `id`, if it is live, to change.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let (slot, generation) = split(id);
        let entry = self.entries.get_mut(slot)?;
        if u64::from(entry.generation) == generation { entry.value.as_mut() } else { None }
    }

    /// Takes the value of `id` out, if it is live.
    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let (slot, generation) = split(id);
        let entry = self.entries.get_mut(slot)?;
        if u64::from(entry.generation) != generation {
            return None;
        }
        let value = entry.value.take()?;
        // A slot that ran through all generations is retired.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(u32::try_from(slot).unwrap_or(u32::MAX));
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_removed_id_stays_unknown_when_its_slot_is_used_again() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(second & 0xffff_ffff, first & 0xffff_ffff, "the slot is reused");
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&'b')));
        assert_eq!((slab.remove(first), slab.get_mut(0)), (None, None));
    }
}
