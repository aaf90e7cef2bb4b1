//! No tool starts before all that it needs is given: the person's yes, a reservation, a slot, a durable record; and
//! none starts twice.
//!
//! What is given is seen where it arrives, at the body, and not where it is decided. A record that was promised and is
//! not durable is as bad as none: after a crash nobody would know that the tool had started.

use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Stage, Subject};

/// What each call was given.
#[derive(Debug, Default)]
pub struct Governed {
    calls: Dense<Call>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Call {
    asks: bool,
    approved: bool,
    reserved: bool,
    admitted: bool,
    durable: bool,
    begun: bool,
}

impl Checker for Governed {
    fn name(&self) -> &'static str {
        "governed"
    }

    fn promise(&self) -> &'static str {
        "no tool starts without all stages, nor twice"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Route]
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Proposed { node, asks } => {
                self.calls.insert(node.0, Call { asks: *asks, ..Call::default() });
                Ok(())
            }
            Happening::Passed { node, stage } => {
                let call = self.calls.or_default(node.0);
                match stage {
                    Stage::Confirmation => call.approved = true,
                    Stage::Budget => call.reserved = true,
                    Stage::Admission => call.admitted = true,
                }
                Ok(())
            }
            Happening::RecordDurable { node } => {
                self.calls.or_default(node.0).durable = true;
                Ok(())
            }
            Happening::ToolBegan { node } => {
                let Some(call) = self.calls.get_mut(node.0) else {
                    return Err(format!("the tool of call {} starts, and nobody proposed it", node.0));
                };
                let Call { asks, approved, reserved, admitted, durable, begun } = *call;
                call.begun = true;
                must(!begun, || format!("the tool of call {} starts a second time", node.0))?;
                must(!asks || approved, || format!("the tool of call {} starts, and no person said yes", node.0))?;
                must(reserved, || format!("the tool of call {} starts without a reservation", node.0))?;
                must(admitted, || format!("the tool of call {} starts without a slot", node.0))?;
                must(durable, || format!("the tool of call {} starts before that is durable", node.0))
            }
            _ => Ok(()),
        }
    }
}
