//! The price of governance: a call through the whole route, and each part of it alone.
//!
//! A tool that does nothing is called as an agent's call would be (permission is judged, budget and slot are taken,
//! the journal writes every event to a sink that counts its bytes), against the spawn, call and stop of one bare
//! linked ractor actor in the same run. Driven from a spawned task on two workers, see `pairing.rs`.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]

mod pairing;

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use serde_json::{Value, json};
use tokio::runtime::Runtime as Tokio;
use toolwarden::event::EventLine;
use toolwarden::permission::{Judged, Places, judge};
use toolwarden::policy::compiled::CompiledPolicy;
use toolwarden::prelude::*;
use toolwarden::settlement::evidence::{ContentRef, Original, evidence};
use toolwarden::settlement::projection::project;
use toolwarden::settlement::projection_policy::ProjectionPolicy;
use toolwarden::settlement::sanitise::Sanitiser;
use toolwarden_actors::budget::Amount;
use toolwarden_actors::budget_ledger::{Account, BudgetLedger};
use toolwarden_actors::bulkhead::Bulkhead;
use toolwarden_actors::circuit_breaker::CallHealth;
use toolwarden_actors::journal::{Entry, Journal, JournalSink, start};
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec, Tree, spawn_root};
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_actors::waiting_line::Holder;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::clock::SystemClock;
use toolwarden_tools::ids::ToolName;
use toolwarden_tools::schema::Schema;

use crate::pairing::{Pairing, drive, timed, verdict};

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Calls in one turn of the comparison.
const CALLS_A_TURN: usize = 200;
/// Turns of the comparison.
const TURNS: usize = 40;
/// Calls that are under way together in the second comparison.
const IN_FLIGHT: usize = 32;

/// Most that a governed call may cost, in lives of a bare actor.
const RATIO_MAX: f64 = 4.0;
/// Most that a governed call may take.
const MEDIAN_MAX: Duration = Duration::from_micros(100);

const GOVERNED: &str = "governed call of a no-op, journal on";
const BARE: &str = "bare linked actor: spawn + call + stop";

/// A tool that does nothing.
struct Noop {
    spec: ToolSpec,
}

impl Noop {
    fn new() -> Self {
        let spec = ToolSpec {
            name: ToolName::new("noop"),
            description: "Do nothing.".into(),
            parameters: parameters(),
            model_parameters: None,
            model_visible: true,
            lane: Lane::Query,
            needs: Needs::default(),
        };
        Self { spec }
    }
}

impl Tool for Noop {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities { read_only: true, idempotent: true, ..Capabilities::conservative() }
    }

    fn call<'a>(&'a self, _ctx: &'a ToolContext, _arguments: Value) -> ToolFuture<'a> {
        Box::pin(async { ToolOutcome::success("done") })
    }
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["text"],
        "properties": { "text": {"type": "string", "maxLength": 1000}, "count": {"type": "integer", "minimum": 0} },
    })
}

fn arguments() -> Value {
    json!({ "text": "a few words of an argument", "count": 7 })
}

/// Takes every entry as the line that a file would get, and counts the bytes.
struct CountingSink {
    line: Vec<u8>,
    stored_bytes: Arc<AtomicU64>,
}

impl JournalSink<Event> for CountingSink {
    fn append(&mut self, entry: &Entry<Event>) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, &EventLine::from(entry))?;
        self.stored_bytes.fetch_add(self.line.len() as u64 + 1, Ordering::Relaxed);
        Ok(())
    }
}

/// The bare actor that the route is held against.
struct Bare;

impl Actor for Bare {
    type Msg = RpcReplyPort<()>;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        reply: Self::Msg,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        drop(reply.send(()));
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Self::Msg>,
        _: SupervisionEvent,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

async fn bare_life(parent: ActorCell) {
    let (actor, _) = Actor::spawn_linked(None, Bare, (), parent).await.expect("a bare actor");
    drop(actor.call(|reply| reply, None).await);
    actor.stop_and_wait(None, None).await.expect("a bare actor stops");
}

async fn bare_parent() -> ActorCell {
    Actor::spawn(None, Bare, ()).await.expect("the bare actors' parent").0.get_cell()
}

async fn call(session: Session) {
    let result = session.governed_tool("noop", arguments()).await.expect("an open session");
    assert!(result.is_success(), "{}", result.output);
}

/// Does a piece of work again and again, one after the other, each timed.
fn one_by_one<F: Future<Output = ()> + Send>(runtime: &Tokio, work: impl Fn() -> F + Send + 'static) -> Vec<Duration> {
    drive(runtime, async move {
        let mut spans = Vec::with_capacity(CALLS_A_TURN);
        for _ in 0..CALLS_A_TURN {
            spans.push(timed(work()).await.0);
        }
        spans
    })
}

/// Does a piece of work with [`IN_FLIGHT`] of its kind under way; the one span is what each cost.
fn together<F: Future<Output = ()> + Send + 'static>(
    runtime: &Tokio,
    work: impl Fn() -> F + Send + Sync + 'static,
) -> Vec<Duration> {
    let lanes = u32::try_from(IN_FLIGHT).expect("a few");
    let each = u32::try_from(CALLS_A_TURN / IN_FLIGHT).expect("a few");
    drive(runtime, async move {
        let work = Arc::new(work);
        let all = async {
            let tasks: Vec<_> = (0..lanes)
                .map(|_| {
                    let work = Arc::clone(&work);
                    tokio::spawn(async move {
                        for _ in 0..each {
                            work().await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("a lane of calls");
            }
        };
        vec![timed(all).await.0 / (lanes * each)]
    })
}

fn whole_route(criterion: &mut Criterion, runtime: &Tokio) {
    let stored_bytes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&stored_bytes);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let (session, parent) = drive(runtime, async move {
        let sink = move || {
            let sink = CountingSink { line: Vec::new(), stored_bytes: Arc::clone(&counted) };
            Some(Box::new(sink) as Box<dyn JournalSink<Event>>)
        };
        let runtime = Runtime::builder().event_sink(sink).build().await.expect("a runtime");
        let policy = PermissionPolicy::from_toml("allow = [\"noop\"]", "bench").expect("a policy");
        let opened = runtime.session(path).tool(Arc::new(Noop::new())).policy(policy).open().await;
        (opened.expect("a session"), bare_parent().await)
    });
    let mut group = criterion.benchmark_group("invoke");
    let work = session.clone();
    group.bench_function("governed_call", |bench| {
        bench.iter_custom(|count| repeated(runtime, count, &work, |session| call(session.clone())));
    });
    let work = parent.clone();
    group.bench_function("bare_linked_actor", |bench| {
        bench.iter_custom(|count| repeated(runtime, count, &work, |parent| bare_life(parent.clone())));
    });
    group.finish();

    let (bare, governed) = (parent.clone(), session.clone());
    let alone = Pairing::measure(
        TURNS,
        || {
            let parent = bare.clone();
            one_by_one(runtime, move || bare_life(parent.clone()))
        },
        || {
            let session = governed.clone();
            one_by_one(runtime, move || call(session.clone()))
        },
    );
    println!("\ninvoke, one call after the other");
    let median = alone.print(GOVERNED, BARE, Some(RATIO_MAX));
    println!("  target: a median below {MEDIAN_MAX:?}: {}", verdict(median < MEDIAN_MAX));
    let crowd = Pairing::measure(
        TURNS,
        || {
            let parent = bare.clone();
            together(runtime, move || bare_life(parent.clone()))
        },
        || {
            let session = governed.clone();
            together(runtime, move || call(session.clone()))
        },
    );
    println!("\ninvoke, {IN_FLIGHT} under way, cost of each");
    crowd.print(GOVERNED, BARE, Some(RATIO_MAX));
    println!("  the journal's sink took {} bytes\n", stored_bytes.load(Ordering::Relaxed));
    parent.stop(None);
}

/// How long a piece of work takes this many times, driven from a worker.
fn repeated<T, F>(runtime: &Tokio, count: u64, input: &T, work: fn(&T) -> F) -> Duration
where
    T: Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let input = input.clone();
    drive(runtime, async move {
        let all = async {
            for _ in 0..count {
                work(&input).await;
            }
        };
        timed(all).await.0
    })
}

/// The stages that decide, without a mailbox.
fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("invoke_stage");
    let schema = Schema::compile(&parameters()).expect("a schema");
    let args = arguments();
    group.bench_function("schema_check", |bench| bench.iter(|| schema.check(black_box(&args)).is_ok()));

    let rules =
        "deny = [\"bash(rm:*)\"]\nask = [\"bash(git push:*)\"]\nallow = [\"noop\", \"bash(git:*)\", \"bash(ls *)\"]";
    let policy = PermissionPolicy::from_toml(rules, "bench").expect("a policy");
    let policy = CompiledPolicy::new(&policy).expect("a compiled policy");
    let text = Subject::Text(args.to_string());
    let noop = Judged { tool: "noop", lane: &Lane::Query, subject: &text, resolved: &[], places: Places::default() };
    group.bench_function("permission_tool_rule", |bench| bench.iter(|| judge(&policy, black_box(&noop))));
    let command = Subject::Command("cd src && git log --oneline | head -5".into());
    let shell =
        Judged { tool: "bash", lane: &Lane::Execute, subject: &command, resolved: &[], places: Places::default() };
    group.bench_function("permission_shell_rule", |bench| bench.iter(|| judge(&policy, black_box(&shell))));

    let sanitiser = Sanitiser::new(vec!["a-secret-value".into()], &[]).expect("a sanitiser");
    let text = "some ordinary line of output, with numbers 12345 and a path/like/this.rs\n".repeat(15);
    let text = text[..1024].to_owned();
    group.bench_function("sanitise_1k", |bench| {
        bench.iter_batched(|| text.clone(), |text| sanitiser.clean(text), BatchSize::SmallInput);
    });
    group.bench_function("evidence_1k", |bench| {
        let projection = ProjectionPolicy::default();
        bench.iter_batched(
            || text.clone(),
            |text| evidence(&Original::of(&text), &project(&projection, text, 0), ContentRef::Inline),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("arguments_digest", |bench| bench.iter(|| Digest::of_json(black_box(&args))));
    group.finish();
}

/// The stages that ask an actor.
fn round_trips(criterion: &mut Criterion, runtime: &Tokio) {
    let (ledger, lane, journal, root) = drive(runtime, async {
        let root = bare_parent().await;
        let ledger = BudgetLedger::new();
        ledger.start(root.clone()).await.expect("a ledger");
        ledger.open_account(&account()).await.expect("an account");
        let lane = Bulkhead::new(Lane::Query, BulkheadLimits { permits: 32, queue_max: 1024, breaker: None });
        lane.start(root.clone()).await.expect("a lane");
        let journal = Journal::<Event>::new();
        let sink = CountingSink { line: Vec::new(), stored_bytes: Arc::default() };
        start(&journal, root, Arc::new(SystemClock::new()), Some(Box::new(sink))).await.expect("a journal");
        let spec = NodeSpec { kind: NodeKind::Sessions, grace: Duration::from_secs(1) };
        let (node, _) = spawn_root(&Tree::new(), None, spec, until_cancelled).await.expect("a root node");
        (ledger, lane, journal, node)
    });
    let mut group = criterion.benchmark_group("invoke_stage");
    group.bench_function("budget_reserve_and_settle", |bench| {
        bench.iter_custom(|count| repeated(runtime, count, &ledger, |ledger| reserve(ledger.clone())));
    });
    group.bench_function("bulkhead_acquire_and_release", |bench| {
        bench.iter_custom(|count| repeated(runtime, count, &lane, |lane| acquire(lane.clone())));
    });
    group.bench_function("journal_append_acknowledged", |bench| {
        bench.iter_custom(|count| repeated(runtime, count, &journal, |journal| append(journal.clone())));
    });
    group.bench_function("node_spawn_and_end", |bench| {
        bench.iter_custom(|count| repeated(runtime, count, &root, |root| node_life(root.clone())));
    });
    group.finish();
}

async fn until_cancelled(node: NodeHandle) {
    node.cancellation().cancelled().await;
}

/// An account with a limit: without one the ledger is not asked.
fn account() -> Account {
    Account::new("bench".into(), BudgetLimits { calls: Some(u64::MAX), ..BudgetLimits::default() })
}

async fn reserve(ledger: BudgetLedger) {
    let amount = Amount { calls: 1, ..Amount::default() };
    ledger.reserve(&account(), amount).await.expect("a reservation").settle(amount);
}

async fn acquire(lane: Bulkhead) {
    let holder = Holder { session: "session".into(), invocation: "call".into() };
    lane.acquire(holder, &Cancellation::new()).await.expect("a permit").settle(CallHealth::Succeeded);
}

async fn append(journal: Journal<Event>) {
    let kind = EventKind::ToolExecutionStart { id: "call".into(), name: "noop".into(), args: arguments() };
    let event = Event { root_session: "session".into(), session: "session".into(), run: None, kind };
    journal.append(event).await.expect("an entry");
}

async fn node_life(root: NodeHandle) {
    let spec = NodeSpec { kind: NodeKind::Invocation, grace: Duration::from_secs(1) };
    root.spawn(spec, |_node| async {}).await.output.expect("a node that returned");
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = pairing::runtime();
    whole_route(&mut criterion, &runtime);
    decisions(&mut criterion);
    round_trips(&mut criterion, &runtime);
    criterion.final_summary();
}
