//! A map whose keys are counted up from 0: a list of places, so that finding one is one look.
//!
//! A simulated run asks for its nodes, bodies and books several times a step, and searching ordered maps was a third of
//! its time. What must stay true: keys come in ascending order, as from an ordered map, and a key takes memory for all
//! keys below it, so it is for numbers that this simulation itself counts up.

/// A map from numbers counted up from 0.
#[derive(Debug, Clone)]
pub struct Dense<T> {
    places: Vec<Option<T>>,
    held: usize,
}

impl<T> Default for Dense<T> {
    fn default() -> Self {
        Self { places: Vec::new(), held: 0 }
    }
}

impl<T> Dense<T> {
    /// How many it holds.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// What is held under a number.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.places.get(usize::try_from(number).ok()?)?.as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// Whether something is held under a number.
    pub fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// Holds something under a number; returns what was held under it before.
    pub fn insert(&mut self, number: u64, held: T) -> Option<T> {
        let before = self.place(number).replace(held);
        self.held += usize::from(before.is_none());
        before
    }

    /// Takes out what is held under a number.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let taken = self.places.get_mut(usize::try_from(number).ok()?)?.take();
        self.held -= usize::from(taken.is_some());
        taken
    }

    /// All of it, in the order of the numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &T)> {
        self.places.iter().enumerate().filter_map(|(number, place)| Some((number as u64, place.as_ref()?)))
    }

    /// All that is held, in the order of the numbers.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }

    fn place(&mut self, number: u64) -> &mut Option<T> {
        // What does not fit has run out of memory long before.
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if at >= self.places.len() {
            self.places.resize_with(at.saturating_add(1), || None);
        }
        &mut self.places[at]
    }
}

impl<T: Default> Dense<T> {
    /// What is held under a number, or something new.
    pub fn or_default(&mut self, number: u64) -> &mut T {
        let is_new = !self.contains(number);
        self.held += usize::from(is_new);
        self.place(number).get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Dense;
    use crate::seed::Generator;

    #[test]
    fn it_does_what_an_ordered_map_does() {
        let (mut dense, mut map) = (Dense::default(), BTreeMap::new());
        let mut generator = Generator::new(7);
        for round in 0..5_000_u32 {
            let number = u64::from(generator.below(40));
            match generator.below(4) {
                0 => assert_eq!(dense.insert(number, round), map.insert(number, round)),
                1 => assert_eq!(dense.remove(number), map.remove(&number)),
                2 => assert_eq!(dense.or_default(number), map.entry(number).or_default()),
                _ => assert_eq!(dense.get_mut(number), map.get_mut(&number)),
            }
            assert_eq!((dense.len(), dense.is_empty()), (map.len(), map.is_empty()));
            assert_eq!((dense.get(number), dense.contains(number)), (map.get(&number), map.contains_key(&number)));
        }
        assert!(dense.iter().eq(map.iter().map(|(number, held)| (*number, held))));
        assert!(dense.values().eq(map.values()));
    }
}
