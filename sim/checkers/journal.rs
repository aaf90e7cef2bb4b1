//! The journal's numbers have no gap, its time never goes back, and every invocation opens once and ends once.

use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;

/// The last entry, and where each invocation is.
#[derive(Debug, Default)]
pub struct Journal {
    sequence: u64,
    unix_ms: u64,
    ended: Dense<bool>,
}

impl Checker for Journal {
    fn name(&self) -> &'static str {
        "journal"
    }

    fn promise(&self) -> &'static str {
        "the journal has every call once, from opening to ending, without a gap"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Journal]
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Entry { sequence, unix_ms, invocation, ending } => {
                must(*sequence == self.sequence + 1, || format!("{sequence} follows {}", self.sequence))?;
                must(*unix_ms >= self.unix_ms, || format!("time went back from {} to {unix_ms}", self.unix_ms))?;
                (self.sequence, self.unix_ms) = (*sequence, *unix_ms);
                let before = self.ended.insert(invocation.0, *ending);
                must(before == ending.then_some(false), || {
                    format!("call {}: ending {ending} after {before:?}", invocation.0)
                })
            }
            Happening::EntryRefused { invocation } => {
                Err(format!("an ending of call {} was refused, so somebody said it twice or too early", invocation.0))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, remains: &Remains) -> Result<(), String> {
        let open = self.ended.iter().find(|(_, ended)| !**ended);
        must(open.is_none(), || format!("a call has no ending: {open:?}"))?;
        must(remains.open_invocations == 0, || format!("the journal counts {} open calls", remains.open_invocations))
    }
}
