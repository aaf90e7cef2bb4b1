//! Never more slots are lent than there are, whatever becomes of the lane, every call that asks is answered once, and
//! nobody waits while a slot is free.

use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;
use crate::schedule::LATENCY_MAX;

/// The deliveries, one after the other, within which a free slot finds who waits for it: it comes home, a lane that
/// failed counts again, the question arrives.
const SERVED_WITHIN: u32 = 3;

/// What is lent and who was answered.
#[derive(Debug)]
pub struct Bulkhead {
    permits: usize,
    lent: usize,
    /// Calls that wait and still want to.
    waiting: usize,
    /// When something was last asked, answered, or came home.
    changed_at: Duration,
    answered: Dense<Answer>,
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
        Self { permits, lent: 0, waiting: 0, changed_at: Duration::ZERO, answered: Dense::default() }
    }

    fn answer(&mut self, ticket: u64) -> Result<(), String> {
        let before = self.answered.insert(ticket, Answer::Given);
        if before == Some(Answer::None) {
            self.waiting -= 1;
        }
        must(matches!(before, Some(Answer::None | Answer::Unwanted)), || {
            format!("attempt {ticket} was answered twice, or never made ({before:?})")
        })
    }
}

impl Checker for Bulkhead {
    fn name(&self) -> &'static str {
        "bulkhead"
    }

    fn promise(&self) -> &'static str {
        "a lane lends what it has and answers everybody once"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Slot, Subject::Fault]
    }

    fn tick(&mut self, now: Duration) -> Result<(), String> {
        let (lent, permits, waiting) = (self.lent, self.permits, self.waiting);
        let stalls = waiting > 0 && lent < permits && now > self.changed_at + LATENCY_MAX * SERVED_WITHIN;
        must(!stalls, || {
            format!("{waiting} calls wait since {:?}, and {lent} of {permits} slots are lent", self.changed_at)
        })
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        if changes_slots(happening) {
            self.changed_at = now;
        }
        match happening {
            Happening::SlotAsked { ticket } => {
                self.waiting += 1;
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
                if self.answered.get(*ticket) == Some(&Answer::None) {
                    self.answered.insert(*ticket, Answer::Unwanted);
                    self.waiting -= 1;
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

fn changes_slots(happening: &Happening) -> bool {
    !matches!(happening, Happening::SlotFor { .. } | Happening::FaultsStopped)
}
