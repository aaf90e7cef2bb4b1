//! A fan-out never runs more than its width, is done only when every member that was started has ended, starts nobody
//! once it ends early, and never stands still while nobody runs.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_actors::node_machine::NodeId;

use super::{Checker, must};
use crate::happening::{Happening, Subject};

/// The fan-outs under way.
#[derive(Debug, Default)]
pub struct FanOuts {
    fans: BTreeMap<NodeId, Fan>,
    /// How many of them have nobody who runs.
    idle: usize,
}

#[derive(Debug)]
struct Fan {
    width: usize,
    members: Vec<Member>,
    running: usize,
    /// Whether it has told members to end, so that nobody starts any more.
    is_ending: bool,
    /// Since when nobody runs.
    idle_since: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Waits,
    Runs,
    Ended,
}

impl FanOuts {
    fn forget(&mut self, node: NodeId) -> Option<Fan> {
        let fan = self.fans.remove(&node)?;
        self.idle -= usize::from(fan.running == 0);
        Some(fan)
    }
}

impl Checker for FanOuts {
    fn name(&self) -> &'static str {
        "fan-out"
    }

    fn promise(&self) -> &'static str {
        "a fan-out keeps its width and waits for its members"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::FanOut]
    }

    fn tick(&mut self, now: Duration) -> Result<(), String> {
        if self.idle == 0 {
            return Ok(());
        }
        let still = self.fans.iter().find(|(_, fan)| fan.running == 0 && now > fan.idle_since);
        must(still.is_none(), || format!("a fan-out stands still, and nobody runs: {still:?}"))
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::FanBegan { node, members, width } => {
                let members = vec![Member::Waits; *members];
                let fan = Fan { width: *width, members, running: 0, is_ending: false, idle_since: now };
                self.forget(*node);
                self.fans.insert(*node, fan);
                self.idle += 1;
                Ok(())
            }
            Happening::MemberBegan { node, member } => {
                let Some(fan) = self.fans.get_mut(node) else { return Err("no fan-out for a member".to_owned()) };
                let Some(state) = fan.members.get_mut(*member) else { return Err(format!("no member {member}")) };
                let before = std::mem::replace(state, Member::Runs);
                must(before == Member::Waits, || format!("member {member} began twice"))?;
                must(!fan.is_ending, || format!("member {member} began, and the fan-out was ending"))?;
                self.idle -= usize::from(fan.running == 0);
                fan.running += 1;
                let (running, width) = (fan.running, fan.width);
                must(running <= width, || format!("{running} members run, the width is {width}"))
            }
            Happening::FanEndsEarly { node } => {
                if let Some(fan) = self.fans.get_mut(node) {
                    fan.is_ending = true;
                }
                Ok(())
            }
            Happening::MemberEnded { node, member } => {
                let fan = self.fans.get_mut(node);
                let ran = fan.and_then(|fan| {
                    fan.idle_since = now;
                    let state = fan.members.get_mut(*member).filter(|state| **state == Member::Runs)?;
                    *state = Member::Ended;
                    fan.running -= 1;
                    self.idle += usize::from(fan.running == 0);
                    Some(())
                });
                must(ran.is_some(), || format!("member {member} ended and did not run"))
            }
            Happening::FanDone { node, ends } => {
                let Some(fan) = self.forget(*node) else { return Err("a fan-out is done twice".to_owned()) };
                must(fan.running == 0, || format!("done, and {} members still run", fan.running))?;
                must(*ends == fan.members.len(), || format!("{ends} ends for {} members", fan.members.len()))
            }
            Happening::FanDropped { node } => {
                self.forget(*node);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
