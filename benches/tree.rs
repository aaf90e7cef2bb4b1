//! A tree of 32 x 32 x 8 scripted children, 8,192 leaves: how many governed invocations a second, what of its memory
//! comes back, and how long the cancel of all of it takes until everything has settled.
//!
//! A leaf is a child run of its own that asks its model, calls a tool once and is asked again; some fail, break down,
//! run out of time or are cancelled, as a seed says. Every event is written as JSON to a sink that keeps the books, and
//! the books have to be exact: this fails when a call has two endings, or none. There are two trees to be cancelled:
//! the same one, of which as much is under way as the width of `task` lets (512 leaves), and one of nested calls whose
//! 8,192 leaves are all at work. Driven from a spawned task on two workers, see `pairing.rs`.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bench whose work goes wrong has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "the bench measures time")]

#[path = "../tests/support/child_tree.rs"]
#[expect(dead_code, reason = "a test uses the rest of it")]
mod child_tree;
#[expect(dead_code, reason = "nothing is measured by turns here")]
mod pairing;

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;
use toolwarden::event::EventLine;
use toolwarden::lanes::LaneLimits;
use toolwarden::prelude::*;
use toolwarden_actors::journal::{Entry, JournalSink};
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_tools::context::ToolCall;
use toolwarden_tools::ids::InvocationId;

use crate::child_tree::{Books, ChildTree, cancel_each};
use crate::pairing::{drive, verdict};

/// Trees that are grown to their end.
const TREES: u64 = 5;
/// Trees that are cancelled, of each kind.
const CANCELS: usize = 10;
/// Least governed invocations a second.
const RATE_MIN: f64 = 5_000.0;
/// Longest that the cancel of all may take until everything has settled.
const CANCEL_MAX: Duration = Duration::from_millis(250);
/// Leaves of a tree of tasks that are at work at a time.
const LEAVES_AT_WORK: usize = 8 * 8 * 8;
/// Children on each level.
const WIDTHS: [usize; 3] = [32, 32, 8];

/// The program's own allocator, which counts while it is told to.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static NET_BYTES: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    if COUNTS.load(Ordering::Relaxed) {
        NET_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, clippy::cast_possible_wrap, reason = "an allocator's trait is unsafe, and no size is that large")]
// SAFETY: every call goes to mimalloc unchanged; the count touches no memory of anybody's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the trait's contract, which is the same for mimalloc.
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { mimalloc::MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { mimalloc::MiMalloc.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Keeps the books of everything that the journal says.
#[derive(Clone)]
struct Clerk(Arc<Ledger>);

struct Ledger {
    state: Mutex<State>,
    at_work: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    books: Books,
    open: HashSet<InvocationId>,
    children_begun: usize,
    json_bytes: usize,
}

impl Clerk {
    fn new() -> Self {
        Self(Arc::new(Ledger { state: Mutex::default(), at_work: watch::Sender::new(0) }))
    }

    /// The books since the last time; everything that began has ended.
    fn close(&self) -> (Books, usize) {
        let mut state = self.0.state.lock().unwrap();
        assert!(state.open.is_empty(), "{} calls have no ending", state.open.len());
        let state = std::mem::take(&mut *state);
        let ended: usize = state.books.children.iter().sum();
        assert_eq!(state.children_begun, ended, "child runs without an ending");
        self.0.at_work.send_replace(0);
        (state.books, state.json_bytes)
    }

    async fn at_work(&self, leaves: usize) {
        self.0.at_work.subscribe().wait_for(|count| *count >= leaves).await.expect("a clerk");
    }
}

impl JournalSink<Event> for Clerk {
    fn append(&mut self, entry: &Entry<Event>) -> io::Result<()> {
        let line = serde_json::to_vec(&EventLine::from(entry))?;
        let mut state = self.0.state.lock().unwrap();
        state.json_bytes += line.len();
        match &entry.event.kind {
            EventKind::ToolProposed { id, .. } => assert!(state.open.insert(id.clone()), "{id} was proposed twice"),
            EventKind::ToolEnd(result) => {
                assert!(state.open.remove(&result.id), "{} ended twice", result.id);
                let success = result.is_success() && result.error_kind.is_none();
                state.books.ended(result.name.as_str(), success, result.error_kind.as_ref());
            }
            EventKind::SubagentStart { .. } => state.children_begun += 1,
            EventKind::SubagentEnd { success, .. } => state.books.child_ended(*success),
            EventKind::ToolExecutionStart { name, .. } if matches!(name.as_str(), "leaf" | "hang") => {
                self.0.at_work.send_modify(|count| *count += 1);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Every lane wide enough for all leaves.
fn wide() -> LaneLimits {
    let limits = BulkheadLimits { permits: 10_000, queue_max: 4096, breaker: None };
    [Lane::Query, Lane::Model].into_iter().fold(LaneLimits::default(), |lanes, lane| lanes.with(lane, limits))
}

async fn runtime(clerk: &Clerk, lanes: LaneLimits) -> Runtime {
    let sink = clerk.clone();
    Runtime::builder().lanes(lanes).event_sink(move || Some(Box::new(sink.clone()))).build().await.expect("a runtime")
}

/// Everything is home: nodes, calls, permits, budget.
async fn settled(runtime: &Runtime, session: &Session) {
    while runtime.live_nodes() > 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(runtime.journal_status().await.expect("a journal").open_invocations, 0);
    for lane in runtime.lanes().iter() {
        let status = lane.status().await.expect("a lane");
        assert_eq!((status.in_use, status.waiting), (0, 0), "lane {}", lane.lane());
    }
    let budget = session.budget().await.expect("an account");
    assert_eq!(budget.reserved, toolwarden_actors::budget::Amount::default());
}

/// A tree to its end: how long it took, its books, bytes of JSON.
async fn grow(runtime: &Runtime, clerk: &Clerk, tree: ChildTree) -> (Duration, Books) {
    let folder = std::env::temp_dir();
    let (builder, waiting) = tree.plant(runtime.session(folder));
    let session = builder.open().await.expect("a session");
    let expected = tree.expected();
    let cancels = expected.leaves.get("cancelled").copied().unwrap_or_default();
    let began_at = Instant::now();
    let (result, ()) = tokio::join!(session.tool("task", tree.top()), cancel_each(&session, waiting, cancels));
    let took = began_at.elapsed();
    assert!(result.expect("an open session").is_success());
    settled(runtime, &session).await;
    session.close().await;
    drop(session);
    let (books, _) = clerk.close();
    // On a slow machine a leaf may run out of time before it made its call; its child run has its ending all the same.
    let mut shown = books.clone();
    shown.leaves.insert("ran late", expected.leaves["ran late"]);
    assert_eq!(shown, expected);
    (took, books)
}

/// Calls `grow` or `hang`, so many beside each other, until the leaves.
struct Nest(ToolSpec);

fn spec(name: &str, needs: Needs) -> ToolSpec {
    ToolSpec {
        name: name.into(),
        description: "grows".to_owned(),
        parameters: json!({"type": "object"}),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Query,
        needs,
    }
}

impl Tool for Nest {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities::parallel_safe_read(WIDTHS[0])
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let level = usize::try_from(arguments["level"].as_u64().unwrap()).unwrap();
            let tool = if level + 1 == WIDTHS.len() { "hang" } else { "grow" };
            let call = || ToolCall { tool: tool.into(), arguments: json!({ "level": level + 1 }) };
            let calls = (0..WIDTHS[level]).map(|_| call()).collect();
            let outcomes = ctx.invoke.as_ref().unwrap().invoke_all(calls, WIDTHS[0]).await;
            match ctx.cancel.reason() {
                Some(reason) => ToolOutcome::ended_early("grow", reason),
                None => ToolOutcome::success(outcomes.len().to_string()),
            }
        })
    }
}

/// Works until it is cancelled.
struct Hang(ToolSpec);

impl Tool for Hang {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities::parallel_safe_read(WIDTHS[0])
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, _arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { ToolOutcome::ended_early("hang", &ctx.cancel.cancelled().await) })
    }
}

/// Waits until so many leaves are at work, cancels all, and waits until everything has settled; `above` them are so many
/// calls that count as cancelled too.
async fn cancel(
    runtime: &Runtime,
    clerk: &Clerk,
    session: Session,
    tool: &'static str,
    asked: Value,
    (at_work, above): (usize, usize),
) -> Duration {
    let its_session = session.clone();
    let call = tokio::spawn(async move { its_session.tool(tool, asked).await.expect("an open session") });
    clerk.at_work(at_work).await;
    let began_at = Instant::now();
    session.cancel(&CancelTarget::Everything, &CancelReason::Requested);
    let result = call.await.expect("a call");
    while runtime.live_nodes() > 2 {
        tokio::task::yield_now().await;
    }
    let took = began_at.elapsed();
    assert!(!result.is_success());
    settled(runtime, &session).await;
    session.close().await;
    let (books, _) = clerk.close();
    assert_eq!(books.leaves.get("cancelled"), Some(&(at_work + above)), "{books:?}");
    took
}

async fn cancel_tasks(runtime: &Runtime, clerk: &Clerk) -> Duration {
    let tree = ChildTree { seed: 1, widths: WIDTHS, late_ms: 1, late_one_in: u64::MAX, holds: true };
    let (builder, _waiting) = tree.plant(runtime.session(std::env::temp_dir()));
    let session = builder.open().await.expect("a session");
    cancel(runtime, clerk, session, "task", tree.top(), (LEAVES_AT_WORK, 0)).await
}

async fn cancel_calls(runtime: &Runtime, clerk: &Clerk) -> Duration {
    let rules = PermissionPolicy::from_toml("allow = [\"grow\", \"hang\"]", "in place").expect("a policy");
    let nesting = Needs { invoke: true, ..Needs::default() };
    let builder = runtime.session(std::env::temp_dir()).policy(rules);
    let builder =
        builder.tool(Arc::new(Nest(spec("grow", nesting)))).tool(Arc::new(Hang(spec("hang", Needs::default()))));
    let session = builder.open().await.expect("a session");
    let (leaves, above) = (WIDTHS.iter().product(), 1 + WIDTHS[0] + WIDTHS[0] * WIDTHS[1]);
    cancel(runtime, clerk, session, "grow", json!({ "level": 0 }), (leaves, above)).await
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn main() {
    let tokio = pairing::runtime();
    let clerk = Clerk::new();
    let (its_clerk, tree) =
        (clerk.clone(), ChildTree { seed: 1, widths: WIDTHS, late_ms: 300, late_one_in: 128, holds: false });
    let (rates, mut net, books) = drive(&tokio, async move {
        let runtime = runtime(&its_clerk, LaneLimits::default()).await;
        let mut rates = Vec::new();
        let mut last = Books::default();
        // One to warm up, and for what is made once.
        for turn in 0..=TREES {
            let (took, books) = grow(&runtime, &its_clerk, ChildTree { seed: turn + 1, ..tree }).await;
            if turn > 0 {
                rates.push(Duration::from_secs_f64(took.as_secs_f64() / books.calls() as f64));
            }
            last = books;
        }
        // Trees like the last one, and what each leaves: what is lost is lost by every one of them.
        COUNTS.store(true, Ordering::Relaxed);
        let mut net = Vec::new();
        for _ in 0..TREES {
            let before = NET_BYTES.load(Ordering::Relaxed);
            grow(&runtime, &its_clerk, ChildTree { seed: TREES + 1, ..tree }).await;
            runtime.journal_status().await.expect("a journal");
            net.push(NET_BYTES.load(Ordering::Relaxed) - before);
        }
        COUNTS.store(false, Ordering::Relaxed);
        runtime.shut_down().await;
        (rates, net, last)
    });
    println!(
        "tree, {} leaves, {} calls and {} child runs",
        tree.leaf_count(),
        books.calls(),
        books.children[0] + books.children[1]
    );
    println!("  {:?}", books);
    let each = median(rates);
    let rate = 1.0 / each.as_secs_f64();
    println!(
        "  {rate:.0} governed invocations a second, {each:.1?} each; target: {RATE_MIN}: {}",
        verdict(rate >= RATE_MIN)
    );
    net.sort_unstable();
    println!("  memory that stays of a whole tree, of {TREES} the least, middle and most: {net:?} bytes");
    for (name, leaves, tasks) in [("child runs", LEAVES_AT_WORK, true), ("nested calls", tree.leaf_count(), false)] {
        let its_clerk = clerk.clone();
        let spans = drive(&tokio, async move {
            let runtime = runtime(&its_clerk, wide()).await;
            let mut spans = Vec::new();
            for _ in 0..=CANCELS {
                spans.push(match tasks {
                    true => cancel_tasks(&runtime, &its_clerk).await,
                    false => cancel_calls(&runtime, &its_clerk).await,
                });
            }
            runtime.shut_down().await;
            spans.remove(0);
            spans
        });
        let (worst, mid) = (spans.iter().max().copied().unwrap_or_default(), median(spans));
        let met = verdict(mid <= CANCEL_MAX);
        println!(
            "  cancel of {leaves} leaves at work ({name}): median {mid:.1?}, worst {worst:.1?}; target {CANCEL_MAX:?}: {met}"
        );
    }
}
