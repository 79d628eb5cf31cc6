//! Tables of things behind handles whose generation is checked.

use crate::ids::Slot;

/// Things in places that are used again; a handle is good for one use of its place.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    is_taken: bool,
    /// Kept while the place is free, for the memory that it holds.
    value: T,
}

impl<T: Default> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// A place of one's own, with whatever was left there; `None` if all numbers are given away.
    pub(crate) fn take(&mut self) -> Option<(Slot, &mut T)> {
        let index = if let Some(index) = self.free.pop() {
            index
        } else {
            let index = u32::try_from(self.places.len()).ok()?;
            self.places.push(Place { generation: 0, is_taken: false, value: T::default() });
            index
        };
        let place = &mut self.places[index as usize];
        place.is_taken = true;
        Some((Slot { index, generation: place.generation }, &mut place.value))
    }

    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        let place = self.places.get(slot.index as usize)?;
        (place.generation == slot.generation && place.is_taken).then_some(&place.value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let place = self.places.get_mut(slot.index as usize)?;
        (place.generation == slot.generation && place.is_taken).then_some(&mut place.value)
    }

    /// Ends the use of a place. One that has had all its generations is not given away again.
    pub(crate) fn give_back(&mut self, slot: Slot) {
        let Some(place) = self.places.get_mut(slot.index as usize) else { return };
        if place.generation != slot.generation || !place.is_taken {
            return;
        }
        place.is_taken = false;
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(slot.index);
        }
    }

    /// What is in use, in the order of places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.places
            .iter()
            .zip(0..)
            .filter(|(place, _)| place.is_taken)
            .map(|(place, index)| (Slot { index, generation: place.generation }, &place.value))
    }
}
