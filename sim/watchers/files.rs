//! A change that was acknowledged is there at the end, whatever crashed; changes come one by one; and no temporary is left
//! by a process that was not killed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// What each file holds since its last change; none where it was taken away.
#[derive(Debug, Default)]
pub struct Files {
    last: BTreeMap<String, Option<Vec<u8>>>,
    number: u64,
}

impl Files {
    fn count(&mut self, number: u64) -> Result<(), String> {
        must(number == self.number + 1, || format!("change {number} follows {}", self.number))?;
        self.number = number;
        Ok(())
    }
}

impl Watcher for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn promise(&self) -> &'static str {
        "no write that was acknowledged is lost, and no temporary is left"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Replaced { path, bytes, number } => {
                self.last.insert((*path).to_owned(), Some(bytes.to_vec()));
                self.count(*number)
            }
            Sight::Removed { path, number } => {
                self.last.insert((*path).to_owned(), None);
                self.count(*number)
            }
            Sight::Unsure { path } => {
                self.last.remove(*path);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        let lost = self.last.iter().find(|(path, bytes)| aftermath.files.get(*path) != bytes.as_ref());
        must(lost.is_none(), || format!("{:?} is not what was written last", lost.map(|(path, _)| path)))?;
        let left = &aftermath.temporaries;
        must(left.is_empty(), || format!("temporaries are left: {left:?}"))
    }
}
