//! The hands of the host: what it does to a world at a step, in the middle of everything.
//!
//! A cancel is given at once, where the step is taken; what has to be waited for is ordered, and done by the host.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use toolwarden::session::{CancelTarget, Session};
use toolwarden_tools::cancellation::CancelReason;

use crate::fate::Fate;
use crate::play::{ACTS_MAX, Act, Move};
use crate::sight::Sight;
use crate::twins::clock::PretendedClock;

/// Orders that wait; more are not taken.
const ORDERS_MAX: usize = 64;
/// How far the wall clock is moved back, in milliseconds.
const JUMP_MS: i64 = -3_600_000;

/// Something that the host is to do, and to which session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) act: Act,
    pub(super) session: usize,
}

/// What the host can reach.
pub(crate) struct Hands {
    fate: Fate,
    clock: Arc<PretendedClock>,
    sessions: Mutex<Vec<Option<Session>>>,
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    acts: Vec<Act>,
    acts_left: AtomicU32,
    moves: Mutex<Vec<Move>>,
    breaks: AtomicBool,
}

impl Hands {
    pub(super) fn new(
        fate: Fate,
        clock: Arc<PretendedClock>,
        acts: Vec<Act>,
        acts_max: u32,
        moves: Vec<Move>,
        sessions: usize,
    ) -> Self {
        let mut moves = moves;
        moves.sort_by_key(|planned| std::cmp::Reverse(planned.step));
        Self {
            fate,
            clock,
            sessions: Mutex::new((0..sessions).map(|_| None).collect()),
            orders: Mutex::new(None),
            acts,
            acts_left: AtomicU32::new(acts_max.min(ACTS_MAX)),
            moves: Mutex::new(moves),
            breaks: AtomicBool::new(false),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Option<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new line of orders; the one before is closed.
    pub(super) fn take_orders(&self) -> mpsc::Receiver<Order> {
        let (orders, line) = mpsc::channel(ORDERS_MAX);
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) = Some(orders);
        line
    }

    /// A session can be reached from now on.
    pub(super) fn reach(&self, index: usize, session: Session) {
        if let Some(place) = self.sessions().get_mut(index) {
            *place = Some(session);
        }
    }

    /// The session of this number.
    pub(super) fn session(&self, index: usize) -> Option<Session> {
        self.sessions().get(index).and_then(Clone::clone)
    }

    /// The sessions that can be reached.
    pub(super) fn open_sessions(&self) -> Vec<Session> {
        self.sessions().iter().flatten().cloned().collect()
    }

    /// Lets go of everything.
    pub(super) fn let_go(&self) {
        let sessions: Vec<Option<Session>> = self.sessions().iter_mut().map(Option::take).collect();
        drop(sessions);
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Makes ready for the moves of the play.
    pub(crate) fn expect_moves(self: &Arc<Self>) {
        let next = self.moves.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(Move { step, act, session }) = next else { return };
        let hands = Arc::clone(self);
        self.fate.at_step(
            step,
            Box::new(move || {
                hands.act(act, session);
                hands.expect_moves();
            }),
        );
    }

    /// At every step, now and then, something that the play allows.
    pub(super) fn act_now_and_then(&self) {
        if self.acts.is_empty() || self.acts_left.load(Ordering::Relaxed) == 0 {
            return;
        }
        let kinds = u32::try_from(self.acts.len()).unwrap_or(u32::MAX);
        let Some(kind) = self.fate.rare(kinds) else { return };
        self.acts_left.fetch_sub(1, Ordering::Relaxed);
        let sessions = u32::try_from(self.sessions().len()).unwrap_or(1);
        let session = self.fate.below(sessions) as usize;
        if let Some(act) = self.acts.get(kind as usize) {
            self.act(*act, session);
        }
    }

    /// Whether the journal is to break down now.
    pub(super) fn takes_break(&self) -> bool {
        self.breaks.swap(false, Ordering::Relaxed)
    }

    /// Does something to the world, at once as far as that can be.
    pub(crate) fn act(&self, act: Act, index: usize) {
        let cancel = |target: &CancelTarget, what| {
            let Some(session) = self.session(index) else { return };
            self.fate.met(what);
            self.fate.see(&Sight::Cancelled { session: index });
            session.cancel(target, &CancelReason::Requested);
        };
        match act {
            Act::CancelRun => cancel(&CancelTarget::Run, "a cancelled run"),
            Act::CancelAll => cancel(&CancelTarget::Everything, "everything cancelled"),
            Act::CancelCall => {
                let Some(session) = self.session(index) else { return };
                if let Some(active) = session.active_tools().first() {
                    cancel(&CancelTarget::Call(active.id.clone()), "a cancelled call");
                }
            }
            Act::Crash => {
                self.fate.met("a crash at a step");
                self.fate.crash();
            }
            Act::BreakJournal => self.breaks.store(true, Ordering::Relaxed),
            Act::JumpBack => {
                self.fate.met("a clock that went back");
                self.clock.jump(JUMP_MS);
            }
            Act::DropRun
            | Act::Steer
            | Act::Save
            | Act::Close
            | Act::ShutDown
            | Act::Kill
            | Act::AgeSnapshots
            | Act::Fork => {
                let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(orders) = &*orders {
                    // One that finds no room is not done.
                    let _ = orders.try_send(Order { act, session: index });
                }
            }
        }
    }
}
