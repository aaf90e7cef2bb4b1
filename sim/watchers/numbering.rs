//! Numbers for names, so that a world's ids fit where the machines' checkers want numbers.

use std::collections::BTreeMap;

/// Gives each name a number, in order of appearance.
#[derive(Debug, Default)]
pub struct Numbering {
    numbers: BTreeMap<String, u64>,
}

impl Numbering {
    /// The number of a name; a new one when it has none.
    pub fn of(&mut self, name: &str) -> u64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(name.to_owned(), number);
        number
    }
}
