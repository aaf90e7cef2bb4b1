//! Every lease is home once every run has ended: slots, places in a line, reservations, and the list of calls at work.

use std::time::Duration;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// Looks at the end alone: what is lent in between is the affair of the lanes.
#[derive(Debug, Default)]
pub struct Leases;

impl Watcher for Leases {
    fn name(&self) -> &'static str {
        "leases"
    }

    fn promise(&self) -> &'static str {
        "every lease comes home"
    }

    fn see(&mut self, _at: Duration, _sight: &Sight<'_>) -> Result<(), String> {
        Ok(())
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        let lent = aftermath.lanes.iter().find(|lane| (lane.in_use, lane.waiting) != (0, 0));
        must(lent.is_none(), || format!("with nothing under way: {lent:?}"))?;
        must(aftermath.reserved.is_empty(), || format!("still reserved: {:?}", aftermath.reserved))?;
        must(aftermath.active == 0, || format!("{} calls are listed as at work", aftermath.active))
    }
}
