//! A fan-out never runs more than its width, is done only when every member that was started has ended, starts nobody
//! once it ends early, and never stands still while nobody runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden_actors::node::NodeId;

use super::{Checker, must};
use crate::happening::Happening;

/// The fan-outs under way.
#[derive(Debug, Default)]
pub struct FanOuts {
    fans: BTreeMap<NodeId, Fan>,
}

#[derive(Debug)]
struct Fan {
    members: usize,
    width: usize,
    running: BTreeSet<usize>,
    begun: BTreeSet<usize>,
    /// Whether it has told members to end, so that nobody starts any more.
    is_ending: bool,
    /// Since when nobody runs.
    idle_since: Duration,
}

impl Checker for FanOuts {
    fn name(&self) -> &'static str {
        "fan-out"
    }

    fn promise(&self) -> &'static str {
        "a fan-out keeps its width and waits for its members"
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        let still = self.fans.iter().find(|(_, fan)| fan.running.is_empty() && now > fan.idle_since);
        must(still.is_none(), || format!("a fan-out stands still, and nobody runs: {still:?}"))?;
        match happening {
            Happening::FanBegan { node, members, width } => {
                let (members, width) = (*members, *width);
                let (running, begun) = (BTreeSet::new(), BTreeSet::new());
                let fan = Fan { members, width, running, begun, is_ending: false, idle_since: now };
                self.fans.insert(*node, fan);
                Ok(())
            }
            Happening::MemberBegan { node, member } => {
                let Some(fan) = self.fans.get_mut(node) else { return Err("no fan-out for a member".to_owned()) };
                must(fan.begun.insert(*member), || format!("member {member} began twice"))?;
                must(!fan.is_ending, || format!("member {member} began, and the fan-out was ending"))?;
                fan.running.insert(*member);
                let (running, width) = (fan.running.len(), fan.width);
                must(running <= width, || format!("{running} members run, the width is {width}"))
            }
            Happening::FanEndsEarly { node } => {
                if let Some(fan) = self.fans.get_mut(node) {
                    fan.is_ending = true;
                }
                Ok(())
            }
            Happening::MemberEnded { node, member } => {
                let ended = self.fans.get_mut(node).is_some_and(|fan| {
                    fan.idle_since = now;
                    fan.running.remove(member)
                });
                must(ended, || format!("member {member} ended and did not run"))
            }
            Happening::FanDone { node, ends } => {
                let Some(fan) = self.fans.remove(node) else { return Err("a fan-out is done twice".to_owned()) };
                must(fan.running.is_empty(), || format!("done, and {:?} still run", fan.running))?;
                must(*ends == fan.members, || format!("{ends} ends for {} members", fan.members))
            }
            Happening::FanDropped { node } => {
                self.fans.remove(node);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
