//! The decisions of one lane: who gets a permit, who waits, who is turned away.
//!
//! A lane lets at most `permits` calls run, keeps at most `queue_max` waiting ([`WaitingLine`] says in which
//! order), and sheds the rest at once with a typed reason, because a long line helps nobody. With a breaker it
//! also stops sending calls to what is down: opening it turns away everybody who waits.
//!
//! A lane without a breaker and without a line lets calls take a free permit without asking ([`PermitPool::lets_pass`],
//! `crate::turnstile`); of those the pool only knows how many are out when it decides.
//!
//! What must stay true, whatever the order of messages from different senders: a permit counts as out from the
//! grant until its `Return`; never more than `permits` are out; every waiter gets exactly one answer or withdrew
//! (the way back `W` is moved out once). A withdrawal that crosses its grant changes nothing here: the permit
//! inside the lost grant comes home by itself. No message can make a ticket wait or count twice.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;
use toolwarden_tools::cancellation::CancelReason;

use crate::circuit_breaker::{BreakerLimits, BreakerStatus, CallHealth, CircuitBreaker, Pass};
use crate::millisecond::whole_ms;
use crate::waiting_line::{Holder, Ticket, WaitingLine};

/// The shortest span that a turned away caller is told to wait.
pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(50);
/// The longest span that a turned away caller is told to wait.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// What a call is taken to last while none has ended yet.
pub const HOLD_GUESS: Duration = Duration::from_millis(500);

/// How much a lane carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkheadLimits {
    /// Calls that may run at a time; 0 counts as 1, because a lane that lets nobody through only hangs callers.
    pub permits: usize,
    /// Calls that may wait.
    pub queue_max: usize,
    /// When to stop calling what is down; never, when none.
    pub breaker: Option<BreakerLimits>,
}

/// Why there is no permit. A refusal: nothing was done yet, and the call may be made again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Shed {
    /// Too many wait already.
    #[error("{queued} calls are waiting already; try again in {retry_after_ms} ms")]
    QueueFull {
        /// How many.
        queued: usize,
        /// When a place is likely, in milliseconds.
        retry_after_ms: u64,
    },
    /// What the lane calls failed several times in a row.
    #[error("the last calls of this kind all failed; try again in {retry_after_ms} ms")]
    BreakerOpen {
        /// When calls are tried again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The caller was told to end while it waited.
    #[error("{0} while waiting for a free slot")]
    Cancelled(CancelReason),
    /// The lane is not up.
    #[error("the lane is not running; try again once its supervisor has started it")]
    NotRunning,
}

/// What a lane is told. `W` is the way back to a caller.
#[derive(Debug)]
pub enum Message<W> {
    /// A call wants a permit.
    Acquire {
        /// Its number.
        ticket: Ticket,
        /// Who asks.
        holder: Holder,
        /// Where the answer goes.
        waiter: W,
    },
    /// A caller no longer waits.
    Withdraw {
        /// Its number.
        ticket: Ticket,
    },
    /// A permit comes home.
    Return {
        /// The number it was granted under.
        ticket: Ticket,
        /// How the call went.
        health: CallHealth,
    },
    /// This many permits are out that this pool did not lend: of the lane's former lives, or taken in passing.
    Elsewhere {
        /// How many.
        permits: usize,
    },
}

/// What a lane wants done.
#[derive(Debug)]
pub enum Effect<W> {
    /// Hand a permit over.
    Grant {
        /// Under this number.
        ticket: Ticket,
        /// To whom.
        waiter: W,
    },
    /// Turn a caller away.
    Shed {
        /// Whom.
        waiter: W,
        /// Why.
        shed: Shed,
    },
}

/// How a lane stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkheadStatus {
    /// Permits out.
    pub in_use: usize,
    /// Calls waiting.
    pub waiting: usize,
    /// Permits in all.
    pub permits: usize,
    /// How its breaker stands, when it has one.
    pub breaker: Option<BreakerStatus>,
    /// Who holds the permits that the lane lent itself, in the order they asked.
    pub holders: Vec<Holder>,
}

/// One lane's state.
#[derive(Debug)]
pub struct PermitPool<W> {
    permits: usize,
    out: BTreeMap<Ticket, Grant>,
    elsewhere: usize,
    line: WaitingLine<W>,
    breaker: Option<CircuitBreaker>,
    // A running mean of how long permits stay out, for telling when a place is likely.
    hold_mean: Option<Duration>,
}

#[derive(Debug)]
struct Grant {
    holder: Holder,
    pass: Option<Pass>,
    granted_at: Duration,
}

impl<W> PermitPool<W> {
    /// An idle lane.
    pub fn new(limits: BulkheadLimits) -> Self {
        Self {
            permits: limits.permits.max(1),
            out: BTreeMap::new(),
            elsewhere: 0,
            line: WaitingLine::new(limits.queue_max),
            breaker: limits.breaker.map(CircuitBreaker::new),
            hold_mean: None,
        }
    }

    /// Takes one message; what is to be done is added to `effects`, in order.
    pub fn step(&mut self, now: Duration, message: Message<W>, effects: &mut Vec<Effect<W>>) {
        match message {
            Message::Acquire { ticket, holder, waiter } => self.acquire(now, ticket, holder, waiter, effects),
            Message::Withdraw { ticket } => {
                self.line.leave(ticket);
            }
            Message::Return { ticket, health } => self.take_back(now, ticket, health, effects),
            Message::Elsewhere { permits } => self.elsewhere = permits,
        }
        self.serve(now, effects);
    }

    /// Turns away everybody who waits: the lane ends.
    pub fn close(&mut self, effects: &mut Vec<Effect<W>>) {
        effects.extend(self.line.empty().into_iter().map(|waiter| Effect::Shed { waiter, shed: Shed::NotRunning }));
    }

    /// How it stands.
    pub fn status(&self, now: Duration) -> BulkheadStatus {
        BulkheadStatus {
            in_use: self.in_use(),
            waiting: self.line.len(),
            permits: self.permits,
            breaker: self.breaker.as_ref().map(|breaker| breaker.status(now)),
            holders: self.out.values().map(|grant| grant.holder.clone()).collect(),
        }
    }

    /// Whether a call may take a free permit without asking: nobody waits, and there is no breaker that has to see it.
    pub fn lets_pass(&self) -> bool {
        self.line.is_empty() && self.breaker.is_none()
    }

    /// Permits out.
    pub fn in_use(&self) -> usize {
        self.out.len() + self.elsewhere
    }

    fn acquire(&mut self, now: Duration, ticket: Ticket, holder: Holder, waiter: W, effects: &mut Vec<Effect<W>>) {
        if self.out.contains_key(&ticket) || self.line.contains(ticket) {
            // Not from our handle. Two waiters under one number cannot both be kept apart: the newcomer goes.
            effects.push(Effect::Shed { waiter, shed: Shed::NotRunning });
            return;
        }
        if let Err(retry_after) = self.check_breaker(now) {
            effects.push(Effect::Shed { waiter, shed: Shed::BreakerOpen { retry_after_ms: whole_ms(retry_after) } });
            return;
        }
        if self.line.is_empty() && self.in_use() < self.permits {
            self.grant(now, ticket, holder, waiter, effects);
            return;
        }
        if let Some(waiter) = self.line.join(ticket, holder, waiter) {
            let shed = Shed::QueueFull { queued: self.line.len(), retry_after_ms: whole_ms(self.retry_after()) };
            effects.push(Effect::Shed { waiter, shed });
        }
    }

    fn take_back(&mut self, now: Duration, ticket: Ticket, health: CallHealth, effects: &mut Vec<Effect<W>>) {
        let Some(grant) = self.out.remove(&ticket) else { return };
        let held = now.saturating_sub(grant.granted_at);
        self.hold_mean = Some(self.hold_mean.map_or(held, |mean| (mean.saturating_mul(7).saturating_add(held)) / 8));
        let (Some(breaker), Some(pass)) = (&mut self.breaker, grant.pass) else { return };
        breaker.report(pass, health, now);
        if let Err(retry_after) = breaker.check(now) {
            let retry_after_ms = whole_ms(retry_after);
            let waiters = self.line.empty().into_iter();
            effects.extend(waiters.map(|waiter| Effect::Shed { waiter, shed: Shed::BreakerOpen { retry_after_ms } }));
        }
    }

    /// Hands out what is free to those whose turn it is.
    fn serve(&mut self, now: Duration, effects: &mut Vec<Effect<W>>) {
        while !self.line.is_empty() && self.in_use() < self.permits {
            if self.breaker.as_mut().is_some_and(|breaker| breaker.check(now).is_err()) {
                return;
            }
            let Some((ticket, waiting)) = self.line.take_next() else { return };
            self.grant(now, ticket, waiting.holder, waiting.waiter, effects);
        }
    }

    fn grant(&mut self, now: Duration, ticket: Ticket, holder: Holder, waiter: W, effects: &mut Vec<Effect<W>>) {
        let pass = match &mut self.breaker {
            None => None,
            Some(breaker) => match breaker.admit(now) {
                Ok(pass) => Some(pass),
                Err(retry_after) => {
                    let shed = Shed::BreakerOpen { retry_after_ms: whole_ms(retry_after) };
                    effects.push(Effect::Shed { waiter, shed });
                    return;
                }
            },
        };
        self.out.insert(ticket, Grant { holder, pass, granted_at: now });
        effects.push(Effect::Grant { ticket, waiter });
    }

    /// Half-open lets one call go on; while it waits for a permit, the others are turned away as well.
    fn check_breaker(&mut self, now: Duration) -> Result<(), Duration> {
        let Some(breaker) = &mut self.breaker else { return Ok(()) };
        breaker.check(now)?;
        if breaker.is_half_open() && !self.line.is_empty() {
            return Err(breaker.retry_during_probe());
        }
        Ok(())
    }

    fn retry_after(&self) -> Duration {
        let rounds = u32::try_from(self.line.len() / self.permits + 1).unwrap_or(u32::MAX);
        let guess = self.hold_mean.unwrap_or(HOLD_GUESS).saturating_mul(rounds);
        guess.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
    }
}

#[cfg(test)]
mod tests;
