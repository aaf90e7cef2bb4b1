//! A question is answered exactly once or withdrawn, and nothing but a person's word approves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Checker, must};
use crate::happening::Happening;
use crate::remains::Remains;

/// What became of each question.
#[derive(Debug, Default)]
pub struct Questions {
    open: BTreeMap<u64, Word>,
    approved: BTreeSet<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    None,
    Unwanted,
    Given,
}

impl Checker for Questions {
    fn promise(&self) -> &'static str {
        "a question is answered once, and approved by a person only"
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Asked { ask } => {
                self.open.insert(*ask, Word::None);
                Ok(())
            }
            Happening::Approved { ask } => {
                self.approved.insert(*ask);
                Ok(())
            }
            Happening::Answered { ask, approved } => {
                let before = self.open.insert(*ask, Word::Given);
                must(matches!(before, Some(Word::None | Word::Unwanted)), || {
                    format!("question {ask} was answered twice, or never asked ({before:?})")
                })?;
                must(!approved || self.approved.contains(ask), || {
                    format!("question {ask} was approved, and no person did")
                })
            }
            Happening::Withdrawn { ask } => {
                if self.open.get(ask) == Some(&Word::None) {
                    self.open.insert(*ask, Word::Unwanted);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, remains: &Remains) -> Result<(), String> {
        let waiting = self.open.iter().find(|(_, word)| **word == Word::None);
        must(waiting.is_none(), || format!("{waiting:?} was never answered"))?;
        must(remains.questions == 0, || format!("{} questions are still open", remains.questions))
    }
}
