//! Never more slots are lent than there are, whatever becomes of the lane, and every call that asks is answered once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Checker, must};
use crate::happening::Happening;
use crate::remains::Remains;

/// What is lent and who was answered.
#[derive(Debug)]
pub struct Bulkhead {
    permits: usize,
    lent: usize,
    answered: BTreeMap<u64, Answer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    None,
    Unwanted,
    Given,
}

impl Bulkhead {
    /// A lane with so many slots.
    pub fn new(permits: usize) -> Self {
        Self { permits, lent: 0, answered: BTreeMap::new() }
    }

    fn answer(&mut self, ticket: u64) -> Result<(), String> {
        let before = self.answered.insert(ticket, Answer::Given);
        must(matches!(before, Some(Answer::None | Answer::Unwanted)), || {
            format!("attempt {ticket} was answered twice, or never made ({before:?})")
        })
    }
}

impl Checker for Bulkhead {
    fn promise(&self) -> &'static str {
        "a lane lends what it has and answers everybody once"
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::SlotAsked { ticket } => {
                self.answered.insert(*ticket, Answer::None);
                Ok(())
            }
            Happening::SlotLent { ticket } => {
                self.lent += 1;
                let (lent, permits) = (self.lent, self.permits);
                must(lent <= permits, || format!("{lent} slots are lent, there are {permits}"))?;
                self.answer(*ticket)
            }
            Happening::SlotShed { ticket } => self.answer(*ticket),
            Happening::SlotGivenUp { ticket } => {
                if self.answered.get(ticket) == Some(&Answer::None) {
                    self.answered.insert(*ticket, Answer::Unwanted);
                }
                Ok(())
            }
            Happening::SlotHome { .. } => {
                self.lent = self.lent.saturating_sub(1);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        let waiting = self.answered.iter().find(|(_, answer)| **answer == Answer::None);
        must(waiting.is_none(), || format!("{waiting:?} was never answered"))
    }
}
