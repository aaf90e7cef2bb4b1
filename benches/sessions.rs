//! What an open session that does nothing costs: heap bytes each, and the time to open and close one.
//!
//! All sessions share one workspace and one runtime. Bytes are counted by an allocator of the bench's own: what was
//! allocated and not freed between no session and all of them, divided by their number. The target is 20 KiB each.
//! Held against as many bare ractor actors and as many bare tokio tasks in the same run. Driven from a spawned task
//! on two workers, see `pairing.rs`.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]

mod pairing;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use criterion::{Criterion, Throughput};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use toolwarden::prelude::*;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::workspace::{Workspace, local};

use crate::pairing::{Pairing, drive, timed, verdict};

/// Most bytes that an idle session may hold.
const SESSION_BYTES_MAX: usize = 20 * 1024;
/// How many sessions are open at a time.
const COUNTS: [usize; 2] = [1_000, 10_000];
/// Sessions in one turn of the comparison.
const SESSIONS_A_TURN: usize = 50;
/// Turns of the comparison.
const TURNS: usize = 30;

/// The system's allocator, with a count of the bytes that are out.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "counting what is allocated needs an allocator, and its trait is unsafe")]
// SAFETY: every call goes to the system's allocator unchanged; the count touches no memory of anybody's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the trait's contract, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live_bytes() -> usize {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// An actor that does nothing.
struct Bare;

impl Actor for Bare {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

async fn open(runtime: &Runtime, workspace: &Workspace) -> Session {
    runtime.session_over(workspace.clone()).open().await.expect("a session")
}

/// What so many sessions hold, and how long one took to open and to close.
struct Idle {
    bytes_each: usize,
    open_each: Duration,
    close_each: Duration,
    left_bytes: usize,
}

async fn idle_sessions(runtime: Runtime, workspace: Workspace, count: usize) -> Idle {
    let each = u32::try_from(count).expect("thousands");
    let before = live_bytes();
    let mut sessions = Vec::with_capacity(count);
    let (opening, ()) = timed(async {
        for _ in 0..count {
            sessions.push(open(&runtime, &workspace).await);
        }
    })
    .await;
    // What the journal and the ledger still had to do is done once the journal answers.
    runtime.journal_status().await.expect("a journal");
    let bytes_each = (live_bytes() - before) / count;
    let (closing, ()) = timed(async {
        for session in sessions {
            session.close().await;
        }
    })
    .await;
    runtime.journal_status().await.expect("a journal");
    let left_bytes = live_bytes().saturating_sub(before);
    Idle { bytes_each, open_each: opening / each, close_each: closing / each, left_bytes }
}

/// Heap bytes of one bare actor and of one bare task that wait, out of so many.
async fn bare_bytes(count: usize) -> (usize, usize) {
    let before = live_bytes();
    let mut actors = Vec::with_capacity(count);
    for _ in 0..count {
        actors.push(Actor::spawn(None, Bare, ()).await.expect("a bare actor"));
    }
    let actor = (live_bytes() - before) / count;
    for (actor, ended) in actors {
        actor.stop(None);
        ended.await.expect("a bare actor stops");
    }
    let before = live_bytes();
    let tasks: Vec<_> = (0..count).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
    let task = (live_bytes() - before) / count;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    (actor, task)
}

async fn open_and_close(runtime: Runtime, workspace: Workspace, count: usize) -> Vec<Duration> {
    let mut spans = Vec::with_capacity(count);
    for _ in 0..count {
        let life = async { open(&runtime, &workspace).await.close().await };
        spans.push(timed(life).await.0);
    }
    spans
}

async fn bare_lives(count: usize) -> Vec<Duration> {
    let mut spans = Vec::with_capacity(count);
    for _ in 0..count {
        let life = async {
            let (actor, _) = Actor::spawn(None, Bare, ()).await.expect("a bare actor");
            actor.stop_and_wait(None, None).await.expect("a bare actor stops");
        };
        spans.push(timed(life).await.0);
    }
    spans
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().sample_size(30);
    let tokio = pairing::runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let (runtime, workspace) = drive(&tokio, async move {
        let runtime = Runtime::builder().build().await.expect("a runtime");
        let everything = WorkspaceCapabilities::local_default();
        let workspace = local::open(&path, everything, Some(Arc::new(SystemProcesses))).expect("a workspace");
        // The first session makes what all of them share.
        open(&runtime, &workspace).await.close().await;
        (runtime, workspace)
    });

    let mut group = criterion.benchmark_group("sessions");
    group.throughput(Throughput::Elements(1));
    let lives = |count: usize| drive(&tokio, open_and_close(runtime.clone(), workspace.clone(), count));
    group.bench_function("open_and_close", |bench| {
        bench.iter_custom(|turns| lives(usize::try_from(turns).expect("a few")).into_iter().sum());
    });
    group.finish();

    println!("\nsessions, idle, over one shared workspace");
    for count in COUNTS {
        let (actor, task) = drive(&tokio, bare_bytes(count));
        let idle = drive(&tokio, idle_sessions(runtime.clone(), workspace.clone(), count));
        let verdict = verdict(idle.bytes_each <= SESSION_BYTES_MAX);
        println!(
            "  {count:>6} open: {} bytes each (a bare ractor actor {actor}, a bare task {task}); target at most \
             {SESSION_BYTES_MAX}: {verdict}",
            idle.bytes_each
        );
        println!(
            "         open {:.1?} each, close {:.1?} each; {} bytes a session left after all were closed",
            idle.open_each,
            idle.close_each,
            idle.left_bytes / count
        );
    }
    println!("\nsessions, open + close, one after the other");
    let bare = || drive(&tokio, bare_lives(SESSIONS_A_TURN));
    let compared = Pairing::measure(TURNS, bare, || lives(SESSIONS_A_TURN));
    compared.print("session: open + close", "bare ractor actor: spawn + stop", None);
    criterion.final_summary();
}
