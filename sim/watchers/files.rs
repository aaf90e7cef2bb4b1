//! A replacement that was acknowledged is there at the end, whatever crashed; replacements come one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// The last replacement of each file.
#[derive(Debug, Default)]
pub struct Files {
    last: BTreeMap<String, Vec<u8>>,
    number: u64,
}

impl Watcher for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn promise(&self) -> &'static str {
        "no write that was acknowledged is lost"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        let Sight::Replaced { path, bytes, number } = sight else { return Ok(()) };
        must(*number == self.number + 1, || format!("replacement {number} follows {}", self.number))?;
        self.number = *number;
        self.last.insert((*path).to_owned(), bytes.to_vec());
        Ok(())
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        let lost = self.last.iter().find(|(path, bytes)| aftermath.files.get(*path) != Some(bytes));
        must(lost.is_none(), || format!("{:?} is not what was written last", lost.map(|(path, _)| path)))
    }
}
