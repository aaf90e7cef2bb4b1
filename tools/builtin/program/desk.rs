//! The host's side of a script: makes its calls, in the order it asked, and sees that nothing of it stays.
//!
//! Calls that are known to change nothing run beside each other; a call that may change something runs alone, after
//! all before it and before all behind it, exactly as in a batch. A task counts as harmless here: its calls are
//! another agent's, judged one by one. The desk returns when the thread has ended and no call is left: what the
//! script did not wait for is cancelled then. In a pretended world desk and script take turns, and the script's clock
//! stands while it runs, so that the same world is the same again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::engine::{self, Job, Request, ScriptEnd};
use super::fault::Fault;
use super::mailbox::{Mailbox, Stop};
use super::{Order, WIDTH_MAX};
use crate::builtin::nested::SETTLE_GRACE;
use crate::cancellation::CancelReason;
use crate::context::{Invoke, ToolCall, ToolContext};
use crate::effects::blocking::is_pretended;
use crate::effects::clock::Clock;
use crate::outcome::{ToolErrorKind, ToolOutcome, Trust};

/// Requests of the script that wait for the desk; a script that is faster waits.
const REQUESTS_MAX: usize = 64;
/// How long a thread that was told to stop may take: an engine cannot be interrupted inside of one long operation.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How far a running `task` may stand beside others.
const TASKS_BESIDE: usize = 8;

/// A call of a script, as it is reported.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    /// Which tool.
    pub(crate) tool: String,
    /// How it ended; none for a call that was cancelled when the script had ended.
    pub(crate) ended: Option<CallEnd>,
}

/// How a call of a script ended.
#[derive(Debug, Clone)]
pub(crate) struct CallEnd {
    pub(crate) success: bool,
    pub(crate) exit_code: i32,
    pub(crate) output_bytes: usize,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) error: Option<ToolErrorKind>,
}

/// Everything that is known of a script that has run.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its result.
    pub(crate) result: Result<Value, Fault>,
    /// Its calls, in the order it made them.
    pub(crate) calls: Vec<CallRecord>,
    /// Its console, and how many bytes of it were not kept.
    pub(crate) console: String,
    pub(crate) console_lost_bytes: u64,
    /// Rejections that nothing handled.
    pub(crate) unhandled: Vec<String>,
    /// Whether halves of surrogate pairs were replaced.
    pub(crate) replaced: bool,
    /// How far its calls' outputs may be believed.
    pub(crate) trust: Trust,
}

/// Runs a script to its end.
pub(crate) async fn run_script(ctx: &ToolContext, invoke: &Arc<dyn Invoke>, order: Order) -> Ended {
    let mailbox = Arc::new(Mailbox::default());
    // The thread is told to stop even when this future is dropped.
    let _stop = StopOnDrop(Arc::clone(&mailbox));
    let (requests, received) = mpsc::channel(REQUESTS_MAX);
    let timeout = Duration::from_millis(order.limits.timeout_ms);
    let turns = is_pretended().then(|| Arc::new(StandingClock::of(&*ctx.clock)));
    let clock = turns.as_ref().map_or_else(|| Arc::clone(&ctx.clock), |standing| Arc::clone(standing) as _);
    let job = Job {
        source: order.source,
        inputs: order.inputs,
        view: order.view,
        allowance: order.allowance,
        limits: order.limits,
        seed: order.seed,
        pinned_ms: order.pinned_ms,
        deadline_at: ctx.clock.monotonic() + timeout,
        clock,
    };
    let mut desk = Desk {
        ctx,
        invoke,
        mailbox: &mailbox,
        turns,
        waiting: VecDeque::new(),
        running: FuturesUnordered::new(),
        beside: BTreeMap::new(),
        calls: Vec::new(),
        console: String::new(),
        trust: Trust::Trusted,
    };
    let end = match engine::start(job, Arc::clone(&mailbox), requests) {
        Ok(()) => desk.serve(received, timeout).await,
        Err(error) => ScriptEnd::failed(Fault::Host(format!("there is no thread for it: {error}"))),
    };
    desk.close().await;
    Ended {
        result: end.result,
        calls: desk.calls,
        console: desk.console,
        console_lost_bytes: end.console_lost_bytes,
        unhandled: end.unhandled,
        replaced: end.replaced,
        trust: desk.trust,
    }
}

struct StopOnDrop(Arc<Mailbox>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop(Stop::Cancelled(CancelReason::CallerGone));
    }
}

type Running<'a> = FuturesUnordered<BoxFuture<'a, (u64, ToolOutcome)>>;

struct Desk<'a> {
    ctx: &'a ToolContext,
    invoke: &'a Arc<dyn Invoke>,
    mailbox: &'a Mailbox,
    /// The script's clock, where both take turns.
    turns: Option<Arc<StandingClock>>,
    /// Calls that it is not yet the turn of, with how many may run beside them.
    waiting: VecDeque<(u64, ToolCall, usize)>,
    running: Running<'a>,
    /// How many may run beside each call that runs.
    beside: BTreeMap<u64, usize>,
    calls: Vec<CallRecord>,
    console: String,
    trust: Trust,
}

impl Desk<'_> {
    /// Serves the script until its thread has ended, or does not end although it was told to.
    async fn serve(&mut self, mut requests: mpsc::Receiver<Request>, timeout: Duration) -> ScriptEnd {
        let deadline_at = Instant::now() + timeout;
        // When a thread that was told to stop is given up on.
        let mut give_up_at: Option<Instant> = None;
        loop {
            self.give_turn(&requests);
            tokio::select! {
                biased;
                reason = self.ctx.cancel.cancelled(), if give_up_at.is_none() => {
                    self.mailbox.stop(Stop::Cancelled(reason));
                    give_up_at = Some(Instant::now() + STOP_GRACE);
                }
                request = requests.recv() => match request {
                    Some(Request::Call { id, call }) => self.take_on(id, call),
                    Some(Request::Line(line)) => self.print(&line),
                    Some(Request::Ended(end)) => return *end,
                    None => return ScriptEnd::failed(Fault::Host("its thread ended without a word".to_owned())),
                },
                Some((id, outcome)) = self.running.next() => {
                    self.settle(id, &outcome);
                    self.mailbox.deliver(id, outcome);
                    self.start_ready();
                }
                // The thread looks at the clock itself; this wakes one that waits, and is for one that cannot look.
                () = tokio::time::sleep_until(give_up_at.unwrap_or(deadline_at)) => {
                    if give_up_at.is_some() {
                        return ScriptEnd::failed(Fault::Stuck);
                    }
                    self.mailbox.stop(Stop::Deadline);
                    give_up_at = Some(Instant::now() + STOP_GRACE);
                }
            }
        }
    }

    /// Where both take turns: lets the script run until it waits.
    fn give_turn(&self, requests: &mpsc::Receiver<Request>) {
        if let Some(clock) = &self.turns {
            clock.put_forward(&*self.ctx.clock);
            self.mailbox.wait_for_rest(|| requests.len() >= REQUESTS_MAX);
        }
    }

    fn take_on(&mut self, id: u64, call: ToolCall) {
        self.calls.push(CallRecord { tool: call.tool.to_string(), ended: None });
        let beside = match self.invoke.capabilities(&call) {
            _ if call.tool.as_str() == "task" => TASKS_BESIDE,
            Some(capabilities) if capabilities.allows_parallel_batch() => capabilities.max_parallelism,
            _ => 1,
        };
        self.waiting.push_back((id, call, beside.min(WIDTH_MAX)));
        self.start_ready();
    }

    /// Starts the calls whose turn it is, in order.
    fn start_ready(&mut self) {
        while let Some((_, _, beside)) = self.waiting.front() {
            let width = self.beside.values().copied().min().unwrap_or(WIDTH_MAX).min(*beside);
            if self.running.len() >= width {
                return;
            }
            let Some((id, call, beside)) = self.waiting.pop_front() else { return };
            self.beside.insert(id, beside);
            self.running.push(self.invoke.invoke(call).map(move |outcome| (id, outcome)).boxed());
        }
    }

    fn settle(&mut self, id: u64, outcome: &ToolOutcome) {
        self.beside.remove(&id);
        self.trust = self.trust.least(outcome.trust);
        let record = usize::try_from(id).ok().and_then(|id| self.calls.get_mut(id - 1));
        if let Some(record) = record {
            record.ended = Some(CallEnd {
                success: outcome.is_success(),
                exit_code: outcome.exit_code,
                output_bytes: outcome.output.len(),
                metadata: outcome.metadata.clone(),
                error: outcome.error.clone(),
            });
        }
    }

    fn print(&mut self, line: &str) {
        self.console.push_str(line);
        self.console.push('\n');
        self.ctx.progress.delta(&format!("{line}\n"));
    }

    /// Ends what the script left behind: calls that wait never start, calls that run are cancelled. Where the script's
    /// own call was cancelled they are ending already, and what they come to is worth keeping.
    async fn close(&mut self) {
        self.waiting.clear();
        if self.ctx.cancel.is_cancelled() {
            let settling = async {
                while let Some((id, outcome)) = self.running.next().await {
                    self.settle(id, &outcome);
                }
            };
            // Dropping what does not settle cancels it once more; the route waits for its end.
            let _ = tokio::time::timeout(SETTLE_GRACE, settling).await;
        }
        self.running.clear();
    }
}

/// A clock that stands until it is put forward: a pretended world's own can be read on its own thread alone.
struct StandingClock {
    monotonic_ns: AtomicU64,
    unix_ms: AtomicU64,
}

impl StandingClock {
    fn of(clock: &dyn Clock) -> Self {
        let standing = Self { monotonic_ns: AtomicU64::new(0), unix_ms: AtomicU64::new(0) };
        standing.put_forward(clock);
        standing
    }

    fn put_forward(&self, clock: &dyn Clock) {
        let now_ns = u64::try_from(clock.monotonic().as_nanos()).unwrap_or(u64::MAX);
        self.monotonic_ns.store(now_ns, Ordering::Release);
        self.unix_ms.store(clock.unix_ms(), Ordering::Release);
    }
}

impl Clock for StandingClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::Acquire))
    }

    fn unix_ms(&self) -> u64 {
        self.unix_ms.load(Ordering::Acquire)
    }
}
