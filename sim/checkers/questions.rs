//! A question is answered exactly once or withdrawn, nothing but a person's word approves, and a desk that fails denies
//! all that it kept.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;
use crate::workload::FaultKind;

/// What became of each question.
#[derive(Debug, Default)]
pub struct Questions {
    open: Dense<Word>,
    approved: Dense<()>,
    /// What was open when the desk failed, and when that was.
    orphans: BTreeSet<u64>,
    failed_at: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    None,
    Unwanted,
    Given,
}

impl Checker for Questions {
    fn name(&self) -> &'static str {
        "questions"
    }

    fn promise(&self) -> &'static str {
        "a question is answered once, and approved by a person only"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Question, Subject::Fault]
    }

    fn tick(&mut self, now: Duration) -> Result<(), String> {
        let late = self.orphans.first().filter(|_| now > self.failed_at);
        must(late.is_none(), || format!("question {late:?} was open when the desk failed, and is not denied"))
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Fault { kind: FaultKind::DeskFails, .. } => {
                self.failed_at = now;
                self.orphans.extend(self.open.iter().filter(|(_, word)| **word == Word::None).map(|(ask, _)| ask));
                Ok(())
            }
            Happening::Asked { ask } => {
                self.open.insert(*ask, Word::None);
                Ok(())
            }
            Happening::Approved { ask } => {
                self.approved.insert(*ask, ());
                Ok(())
            }
            Happening::Answered { ask, approved } => {
                self.orphans.remove(ask);
                let before = self.open.insert(*ask, Word::Given);
                must(matches!(before, Some(Word::None | Word::Unwanted)), || {
                    format!("question {ask} was answered twice, or never asked ({before:?})")
                })?;
                must(!approved || self.approved.contains(*ask), || {
                    format!("question {ask} was approved, and no person did")
                })
            }
            Happening::Withdrawn { ask } => {
                self.orphans.remove(ask);
                if self.open.get(*ask) == Some(&Word::None) {
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
