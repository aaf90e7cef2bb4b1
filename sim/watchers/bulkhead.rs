//! In each lane never more tools of the world work at a time than it has slots, however calls end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden::lanes::LaneLimits;
use toolwarden_tools::ids::{InvocationId, ToolName};
use toolwarden_tools::tool::Lane;

use super::must;
use crate::play::Play;
use crate::sight::{Sight, Watcher};

/// Who works in which lane.
#[derive(Debug)]
pub struct Bulkhead {
    slots: BTreeMap<Lane, usize>,
    at_work: BTreeMap<Lane, BTreeSet<InvocationId>>,
}

impl Bulkhead {
    /// The lanes of this play.
    pub fn new(play: &Play) -> Self {
        let limits = LaneLimits::default();
        let slots = limits.iter().map(|(lane, limits)| (lane.clone(), play.permits.unwrap_or(limits.permits).max(1)));
        Self { slots: slots.collect(), at_work: BTreeMap::new() }
    }
}

/// The lane of a tool of the world.
fn lane_of(tool: &ToolName) -> Option<Lane> {
    match tool.as_str() {
        "chore" => Some(Lane::Execute),
        "peek" => Some(Lane::Query),
        _ => None,
    }
}

impl Watcher for Bulkhead {
    fn name(&self) -> &'static str {
        "bulkhead"
    }

    fn promise(&self) -> &'static str {
        "a lane lends what it has"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Began { invocation, tool, .. } => {
                let Some(lane) = lane_of(tool) else { return Ok(()) };
                let slots = self.slots.get(&lane).copied().unwrap_or(usize::MAX);
                let at_work = self.at_work.entry(lane.clone()).or_default();
                at_work.insert((*invocation).clone());
                must(at_work.len() <= slots, || {
                    format!("{} calls work in the lane {lane}, which has {slots} slots", at_work.len())
                })
            }
            Sight::Over { invocation, .. } => {
                for calls in self.at_work.values_mut() {
                    calls.remove(*invocation);
                }
                Ok(())
            }
            Sight::Crashed => {
                self.at_work.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
