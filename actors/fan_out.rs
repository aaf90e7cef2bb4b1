//! The decisions of a fan-out: which member starts next, when it ends early, and what each member came to.
//!
//! `batch` and `task` run several calls beside each other. What must stay true: never more than `width` run; every
//! member gets exactly one ending, in the order asked, and one that never started is told so and why; the first
//! reason to end early stays; the whole is done only when every member that was started has ended, however long
//! that takes after its cancel. A member that fails or breaks ends no other, unless that was asked for.
//!
//! There is no actor here: the node that owns the members feeds the machine what happened and carries out what it
//! wants. A cancel is taken in every state, also before the first member started.

use std::time::Duration;

use thiserror::Error;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::FanOutPolicy;

use crate::millisecond::whole_ms;

/// The most members of one fan-out.
pub const FAN_OUT_MEMBERS_MAX: usize = 1024;

/// How a fan-out goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FanOutPlan {
    /// At most this many run at a time; 0 counts as 1.
    pub width: usize,
    /// End once this many have succeeded; 0 counts as 1.
    pub enough_successes: Option<usize>,
    /// End once one has failed.
    pub fail_fast: bool,
    /// End after this span with what there is.
    pub timeout: Option<Duration>,
}

impl FanOutPlan {
    /// All members to their ends, this many at a time.
    pub fn all(width: usize) -> Self {
        Self { width, enough_successes: None, fail_fast: false, timeout: None }
    }
}

impl From<FanOutPolicy> for FanOutPlan {
    fn from(policy: FanOutPolicy) -> Self {
        let FanOutPolicy { width, enough_successes, timeout_ms } = policy;
        Self { width, enough_successes, fail_fast: false, timeout: timeout_ms.map(Duration::from_millis) }
    }
}

/// How a member ended; `R` is what it gave back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEnd<R> {
    /// It gave something back: a success, a failure, or how it looks cut short.
    Finished {
        /// What.
        result: R,
        /// Whether it did what it was asked.
        success: bool,
    },
    /// It broke or was killed, and gave nothing back.
    Crashed {
        /// What is known of it.
        message: String,
    },
    /// It was never started, because the fan-out ended first.
    NeverStarted {
        /// Why the fan-out ended.
        reason: CancelReason,
    },
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<R> {
    /// A member gave something back.
    Finished {
        /// Which.
        member: usize,
        /// What.
        result: R,
        /// Whether it did what it was asked.
        success: bool,
    },
    /// A member broke or was killed.
    Crashed {
        /// Which.
        member: usize,
        /// What is known of it.
        message: String,
    },
    /// The fan-out is to end.
    Cancel {
        /// Why.
        reason: CancelReason,
    },
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start this member.
    Start {
        /// Which.
        member: usize,
    },
    /// Tell this member, which runs, to end.
    Cancel {
        /// Which.
        member: usize,
        /// Why.
        reason: CancelReason,
    },
    /// Send a tick at this moment.
    Wake {
        /// When.
        at: Duration,
    },
    /// All members have ended; said once.
    Done,
}

/// How a whole fan-out ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FanOutEnd<R> {
    /// One for each member, in the order asked.
    pub members: Vec<MemberEnd<R>>,
    /// Why it ended early, when it did.
    pub ended_early: Option<CancelReason>,
}

impl<R> FanOutEnd<R> {
    /// Whether the time-out ended it.
    pub fn timed_out(&self) -> bool {
        matches!(self.ended_early, Some(CancelReason::Deadline { .. }))
    }

    /// Whether enough successes ended it.
    pub fn returned_early(&self) -> bool {
        self.ended_early == Some(CancelReason::EnoughResults)
    }
}

/// A fan-out cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FanOutError {
    /// Too many members.
    #[error("{members} members are more than the {FAN_OUT_MEMBERS_MAX} that one fan-out may have; split it")]
    TooMany {
        /// How many were asked for.
        members: usize,
    },
}

/// One fan-out.
#[derive(Debug)]
pub struct FanOut<R> {
    plan: FanOutPlan,
    members: Vec<Member<R>>,
    // Members from here on have not started.
    next: usize,
    running: usize,
    successes: usize,
    due: Option<Duration>,
    ended_early: Option<CancelReason>,
    begun: bool,
    done: bool,
}

#[derive(Debug)]
enum Member<R> {
    Waiting,
    Running,
    Ended(MemberEnd<R>),
}

impl<R> FanOut<R> {
    /// A fan-out of so many members, none started.
    ///
    /// # Errors
    /// [`FanOutError::TooMany`].
    pub fn new(members: usize, plan: FanOutPlan) -> Result<Self, FanOutError> {
        if members > FAN_OUT_MEMBERS_MAX {
            return Err(FanOutError::TooMany { members });
        }
        let plan = FanOutPlan { width: plan.width.max(1), ..plan };
        let members = (0..members).map(|_| Member::Waiting).collect();
        let (next, running, successes) = (0, 0, 0);
        Ok(Self { plan, members, next, running, successes, due: None, ended_early: None, begun: false, done: false })
    }

    /// Starts the first members. Cancelled before, it starts none.
    pub fn begin(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        if std::mem::replace(&mut self.begun, true) {
            return effects;
        }
        if self.ended_early.is_none() && !self.members.is_empty() {
            self.due = self.plan.timeout.map(|span| now.saturating_add(span));
            effects.extend(self.due.map(|at| Effect::Wake { at }));
        }
        self.go_on(&mut effects);
        effects
    }

    /// Takes what happened; returns what is to be done, in order. Word of a member that does not run (it has ended,
    /// or never started) changes nothing.
    pub fn step(&mut self, now: Duration, event: Event<R>) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Finished { member, result, success } => {
                self.member_ended(member, MemberEnd::Finished { result, success }, success, &mut effects);
            }
            Event::Crashed { member, message } => {
                self.member_ended(member, MemberEnd::Crashed { message }, false, &mut effects);
            }
            Event::Cancel { reason } => self.end_early(reason, &mut effects),
            Event::Tick => match (self.due, self.plan.timeout) {
                (Some(due), Some(timeout)) if now >= due => {
                    self.end_early(CancelReason::Deadline { timeout_ms: whole_ms(timeout) }, &mut effects);
                }
                _ => {}
            },
        }
        self.go_on(&mut effects);
        effects
    }

    /// Whether all members have ended.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// How it ended; none while a member still runs.
    pub fn finish(self) -> Option<FanOutEnd<R>> {
        if !self.done {
            return None;
        }
        let ends = self.members.into_iter().map(|member| match member {
            Member::Ended(end) => Some(end),
            Member::Waiting | Member::Running => None,
        });
        Some(FanOutEnd { members: ends.collect::<Option<_>>()?, ended_early: self.ended_early })
    }

    fn member_ended(&mut self, member: usize, end: MemberEnd<R>, success: bool, effects: &mut Vec<Effect>) {
        let Some(slot @ Member::Running) = self.members.get_mut(member) else { return };
        *slot = Member::Ended(end);
        self.running -= 1;
        self.successes += usize::from(success);
        // What ends because it was cancelled is no reason to end.
        if self.ended_early.is_some() {
            return;
        }
        let left = self.running > 0 || self.next < self.members.len();
        if self.plan.enough_successes.is_some_and(|enough| self.successes >= enough.max(1)) && left {
            self.end_early(CancelReason::EnoughResults, effects);
        } else if self.plan.fail_fast && !success && left {
            self.end_early(CancelReason::SiblingFailed, effects);
        }
    }

    fn end_early(&mut self, reason: CancelReason, effects: &mut Vec<Effect>) {
        if self.ended_early.is_some() || self.done {
            return;
        }
        for (member, state) in self.members.iter_mut().enumerate() {
            match state {
                Member::Waiting => *state = Member::Ended(MemberEnd::NeverStarted { reason: reason.clone() }),
                Member::Running => effects.push(Effect::Cancel { member, reason: reason.clone() }),
                Member::Ended(_) => {}
            }
        }
        self.next = self.members.len();
        self.ended_early = Some(reason);
    }

    fn go_on(&mut self, effects: &mut Vec<Effect>) {
        if !self.begun || self.done {
            return;
        }
        while self.running < self.plan.width && self.next < self.members.len() {
            self.members[self.next] = Member::Running;
            effects.push(Effect::Start { member: self.next });
            self.next += 1;
            self.running += 1;
        }
        if self.running == 0 {
            self.done = true;
            effects.push(Effect::Done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use toolwarden_tools::cancellation::CancelReason;

    use super::{Effect, Event, FAN_OUT_MEMBERS_MAX, FanOut, FanOutError, FanOutPlan, MemberEnd};
    use crate::interleaving::Dice;

    const NOW: Duration = Duration::ZERO;

    fn start(member: usize) -> Effect {
        Effect::Start { member }
    }

    fn cancel(member: usize, reason: CancelReason) -> Effect {
        Effect::Cancel { member, reason }
    }

    fn finished(member: usize, success: bool) -> Event<usize> {
        Event::Finished { member, result: member, success }
    }

    fn end(result: usize, success: bool) -> MemberEnd<usize> {
        MemberEnd::Finished { result, success }
    }

    fn never(reason: CancelReason) -> MemberEnd<usize> {
        MemberEnd::NeverStarted { reason }
    }

    fn fan(members: usize, plan: FanOutPlan) -> FanOut<usize> {
        FanOut::new(members, plan).unwrap()
    }

    // Case C179: results in the order asked, whatever the order of finishing; one that breaks loses nobody else.
    #[test]
    fn members_that_finish_in_reverse_or_break_keep_their_places() {
        let mut fan = fan(4, FanOutPlan::all(4));
        assert_eq!(fan.begin(NOW), [start(0), start(1), start(2), start(3)]);
        assert_eq!(fan.step(NOW, finished(3, true)), []);
        assert_eq!(fan.step(NOW, Event::Crashed { member: 2, message: "panicked".to_owned() }), []);
        assert_eq!(fan.step(NOW, finished(1, false)), []);
        assert_eq!(fan.step(NOW, finished(0, true)), [Effect::Done]);
        let whole = fan.finish().unwrap();
        let crashed = MemberEnd::Crashed { message: "panicked".to_owned() };
        assert_eq!(whole.members, [end(0, true), end(1, false), crashed, end(3, true)]);
        assert_eq!((whole.timed_out(), whole.returned_early(), whole.ended_early), (false, false, None));
    }

    #[test]
    fn no_more_than_the_width_run_and_the_next_starts_when_one_ends() {
        let mut fan = fan(3, FanOutPlan::all(2));
        assert_eq!(fan.begin(NOW), [start(0), start(1)]);
        assert_eq!(fan.begin(NOW), []);
        assert_eq!(fan.step(NOW, finished(1, true)), [start(2)]);
        assert_eq!(fan.step(NOW, finished(1, false)), [], "a member ends once");
        assert_eq!(fan.step(NOW, finished(7, false)), [], "a stranger changes nothing");
        assert_eq!(fan.step(NOW, finished(2, true)), []);
        assert_eq!(fan.step(NOW, finished(0, true)), [Effect::Done]);
        assert_eq!(fan.step(NOW, Event::Cancel { reason: CancelReason::Requested }), []);
        assert_eq!(fan.finish().unwrap().ended_early, None);
    }

    #[test]
    fn nobody_is_done_at_once_and_no_width_means_one() {
        let mut empty = fan(0, FanOutPlan { timeout: Some(Duration::from_secs(1)), ..FanOutPlan::all(2) });
        assert_eq!(empty.begin(NOW), [Effect::Done]);
        assert_eq!(fan(2, FanOutPlan::all(0)).begin(NOW), [start(0)]);
        let members = FAN_OUT_MEMBERS_MAX + 1;
        assert_eq!(FanOut::<()>::new(members, FanOutPlan::all(1)).err(), Some(FanOutError::TooMany { members }));
    }

    #[test]
    fn enough_successes_cancel_the_rest_and_wait_for_their_ends() {
        let mut fan = fan(5, FanOutPlan { enough_successes: Some(2), ..FanOutPlan::all(3) });
        fan.begin(NOW);
        assert_eq!(fan.step(NOW, finished(2, true)), [start(3)]);
        assert_eq!(fan.step(NOW, finished(0, false)), [start(4)]);
        let enough = CancelReason::EnoughResults;
        assert_eq!(fan.step(NOW, finished(3, true)), [cancel(1, enough.clone()), cancel(4, enough.clone())]);
        assert!(!fan.is_done());
        assert_eq!(fan.step(NOW, finished(4, false)), []);
        assert_eq!(fan.step(NOW, finished(1, true)), [Effect::Done]);
        let whole = fan.finish().unwrap();
        assert!(whole.returned_early() && !whole.timed_out());
        assert_eq!(whole.members[1], end(1, true));
    }

    #[test]
    fn the_last_success_is_no_early_return() {
        let mut fan = fan(1, FanOutPlan { enough_successes: Some(1), ..FanOutPlan::all(1) });
        fan.begin(NOW);
        assert_eq!(fan.step(NOW, finished(0, true)), [Effect::Done]);
        assert!(!fan.finish().unwrap().returned_early());
    }

    #[test]
    fn fail_fast_skips_the_rest_and_tells_each_so() {
        let mut fan = fan(4, FanOutPlan { fail_fast: true, ..FanOutPlan::all(2) });
        fan.begin(NOW);
        let failed = CancelReason::SiblingFailed;
        let broken = Event::Crashed { member: 0, message: "panicked".to_owned() };
        assert_eq!(fan.step(NOW, broken), [cancel(1, failed.clone())]);
        // The second one fails because it was cancelled: that is no new reason.
        assert_eq!(fan.step(NOW, finished(1, false)), [Effect::Done]);
        let whole = fan.finish().unwrap();
        assert_eq!(whole.ended_early, Some(failed.clone()));
        assert_eq!(whole.members[1..], [end(1, false), never(failed.clone()), never(failed)]);
    }

    #[test]
    fn time_ends_it_and_early_ticks_do_not() {
        let mut fan = fan(3, FanOutPlan { timeout: Some(Duration::from_secs(2)), ..FanOutPlan::all(1) });
        let (one, two) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(fan.begin(one), [Effect::Wake { at: one + two }, start(0)]);
        assert_eq!(fan.step(two, Event::Tick), []);
        let deadline = CancelReason::Deadline { timeout_ms: 2000 };
        assert_eq!(fan.step(one + two, Event::Tick), [cancel(0, deadline.clone())]);
        assert_eq!(fan.step(one + two, Event::Cancel { reason: CancelReason::Requested }), []);
        assert_eq!(fan.step(one + two, finished(0, false)), [Effect::Done]);
        let whole = fan.finish().unwrap();
        assert!(whole.timed_out());
        assert_eq!(whole.members[2], never(deadline));
    }

    #[test]
    fn a_cancel_before_the_start_starts_nobody() {
        let mut fan = fan(2, FanOutPlan { timeout: Some(Duration::from_secs(2)), ..FanOutPlan::all(2) });
        assert_eq!(fan.step(NOW, Event::Cancel { reason: CancelReason::ParentEnded }), []);
        assert_eq!(fan.begin(NOW), [Effect::Done]);
        let whole = fan.finish().unwrap();
        assert_eq!(whole.members, [never(CancelReason::ParentEnded), never(CancelReason::ParentEnded)]);
    }

    #[test]
    fn a_fan_out_that_runs_has_no_end_yet() {
        let mut fan = fan(1, FanOutPlan::all(1));
        fan.begin(NOW);
        fan.step(NOW, Event::Cancel { reason: CancelReason::Requested });
        assert_eq!(fan.finish(), None);
    }

    /// Members finish, fail and break, time passes and cancels come, in any order.
    #[test]
    fn every_member_ends_once_and_the_width_holds_in_any_order() {
        for seed in 0..500 {
            let mut dice = Dice::new(seed);
            let (members, width) = (dice.roll(12), 1 + dice.roll(4));
            let plan = FanOutPlan {
                width,
                enough_successes: [None, Some(1 + dice.roll(4))][dice.roll(2)],
                fail_fast: dice.roll(3) == 0,
                timeout: [None, Some(Duration::from_secs(20))][dice.roll(2)],
            };
            let mut fan = fan(members, plan);
            let (mut running, mut started, mut cancelled, mut done) = (Vec::new(), Vec::new(), Vec::new(), 0);
            let mut now = Duration::ZERO;
            let mut effects = fan.begin(now);
            loop {
                for effect in effects.drain(..) {
                    match effect {
                        Effect::Start { member } => {
                            assert!(cancelled.is_empty() && done == 0, "seed {seed}: started after the end");
                            started.push(member);
                            running.push(member);
                        }
                        Effect::Cancel { member, .. } => {
                            assert!(running.contains(&member) && !cancelled.contains(&member));
                            cancelled.push(member);
                        }
                        Effect::Wake { at } => assert_eq!(Some(at), plan.timeout),
                        Effect::Done => done += 1,
                    }
                }
                assert!(running.len() <= width, "seed {seed}: too many run");
                assert_eq!(done > 0, fan.is_done());
                if done > 0 {
                    break;
                }
                now += Duration::from_secs(1);
                let event = match dice.roll(30) {
                    0 => Event::Cancel { reason: CancelReason::Requested },
                    1..=9 => Event::Tick,
                    other => {
                        let member = running.remove(dice.roll(running.len()));
                        match other % 5 {
                            0 => Event::Crashed { member, message: "broke".to_owned() },
                            1 => finished(member, false),
                            _ => finished(member, true),
                        }
                    }
                };
                effects = fan.step(now, event);
            }
            assert_eq!((done, running.len()), (1, 0), "seed {seed}: done once, and only when nobody runs");
            let whole = fan.finish().unwrap();
            assert_eq!(whole.members.len(), members);
            for (member, end) in whole.members.iter().enumerate() {
                let never = matches!(end, MemberEnd::NeverStarted { .. });
                assert_eq!(never, !started.contains(&member), "seed {seed}: {member} is told what happened");
                assert!(!never || whole.ended_early.is_some());
                assert!(!matches!(end, MemberEnd::Finished { result, .. } if *result != member));
            }
        }
    }
}
