//! What keeping a session costs: an append, a shared sync, a snapshot, a fold. Held against the plain system calls.
//!
//! Plain loops and medians instead of criterion: what is measured waits for a disk, and each turn prepares real files.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time, and its references are real files")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolwarden::fact_book::{FactBook, StoredFact};
use toolwarden::facts::state::State;
use toolwarden::facts::{Fact, RunBounds};
use toolwarden::models::{CallArguments, ModelCall, ModelTurn, ToolResult};
use toolwarden::run_status::RunStatus;
use toolwarden::snapshot::{Snapshot, encode};
use toolwarden_actors::child_spec::ChildSpec;
use toolwarden_actors::fact_log::FactLog;
use toolwarden_actors::supervisor::{SupervisorSpec, start};
use toolwarden_tools::effects::clock::SystemClock;
use toolwarden_tools::effects::store::directory::{DirectoryStore, Durability};
use toolwarden_tools::effects::store::{Append, OnDamage, Store};
use toolwarden_tools::ids::SessionId;

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Sessions that append beside each other.
const SESSIONS: usize = 1000;
/// Appends of each, one after the other.
const APPENDS_EACH: u64 = 100;
/// Appends with a sync each, for the reference.
const SYNCS: u32 = 1000;
/// Facts that are folded.
const FACTS: usize = 1_000_000;
/// Bytes of a snapshot, about.
const SNAPSHOT_BYTES: usize = 1_310_720;
/// Turns of which the median is taken.
const TURNS: usize = 31;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    // Driven from a spawned task, see `pairing.rs`.
    runtime.block_on(async { tokio::spawn(measure()).await.expect("no panic") });
}

async fn measure() {
    let folder = tempfile::tempdir_in(".").expect("a folder on the disk that is measured");
    append(folder.path()).await;
    group(folder.path()).await;
    snapshot(folder.path());
    fold();
}

fn row(what: &str, reference: &str, ours: &str, target: &str, is_met: bool) {
    println!("{what} | {reference} | {ours} | {target} | {}", if is_met { "met" } else { "NOT MET" });
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort();
    spans[spans.len() / 2]
}

async fn log_over(store: DirectoryStore) -> FactLog {
    let log = FactLog::new(Arc::new(store));
    let its = log.clone();
    let spec = ChildSpec::new("fact_log", move |supervisor| {
        let log = its.clone();
        async move { Ok(toolwarden_actors::fact_log::start(&log, supervisor).await?) }
    });
    start(SupervisorSpec { children: vec![spec], ..SupervisorSpec::default() }).await.expect("a supervisor");
    log
}

/// One fact through fold, encoding, actor and file, without a sync.
async fn append(folder: &Path) {
    let store = DirectoryStore::at(&folder.join("buffered"), Durability::Buffered).expect("a store");
    let log = log_over(store).await;
    let session = SessionId::from("s");
    log.store().create(&session, None, None).expect("a session");
    let book = FactBook::kept(session, State::default(), log.clone(), Arc::new(SystemClock::new()));
    book.record(asked()).await.expect("recorded");
    const COUNT: u32 = 20_000;
    let steer = || Fact::Steer { text: "a word of some forty bytes, as people say".to_owned() };
    let mut spans = Vec::new();
    for _ in 0..TURNS {
        let began = Instant::now();
        for _ in 0..COUNT / 20 {
            book.append(steer()).expect("in order");
        }
        log.mark().durable().await.expect("taken");
        spans.push(began.elapsed() / (COUNT / 20));
    }
    let streamed = median(spans);
    let mut spans = Vec::new();
    for _ in 0..COUNT / 10 {
        let began = Instant::now();
        book.record(steer()).await.expect("recorded");
        spans.push(began.elapsed());
    }
    let waited = median(spans);
    row(
        "append of a fact, no sync, streamed",
        "",
        &format!("{streamed:.1?}"),
        "under 10 µs",
        streamed.as_micros() < 10,
    );
    row("the same, each waited for", "", &format!("{waited:.1?}"), "", true);
}

/// Many sessions append beside each other and wait for each fact; held against a sync an append.
async fn group(folder: &Path) {
    let mut file = File::create(folder.join("reference")).expect("a file");
    let began = Instant::now();
    for _ in 0..SYNCS {
        file.write_all(&[b'x'; 120]).expect("written");
        file.sync_data().expect("synced");
    }
    let alone = began.elapsed() / SYNCS;
    let store = DirectoryStore::at(&folder.join("synced"), Durability::Synced).expect("a store");
    // Made without waiting for the disk; what is measured is the appends.
    let quick = DirectoryStore::at(&folder.join("synced"), Durability::Buffered).expect("a store");
    let ids: Vec<SessionId> = (0..SESSIONS).map(|number| SessionId::from(format!("s{number}"))).collect();
    for id in &ids {
        quick.create(id, None, None).expect("a session");
        quick.release(id);
        store.open(id, OnDamage::Refuse).expect("open");
    }
    let log = log_over(store).await;
    let began = Instant::now();
    let tasks: Vec<_> = ids
        .into_iter()
        .map(|session| {
            let log = log.clone();
            tokio::spawn(async move {
                for sequence in 1..=APPENDS_EACH {
                    let fact = Append { session: session.clone(), sequence, payload: vec![b'x'; 96].into() };
                    log.append(fact).durable().await.expect("stored");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let appends = u32::try_from(SESSIONS).unwrap_or(1) * u32::try_from(APPENDS_EACH).unwrap_or(1);
    let each = began.elapsed() / appends;
    let ratio = alone.as_secs_f64() / each.as_secs_f64();
    row(
        &format!("{SESSIONS} sessions, each waits for its fact"),
        &format!("one sync an append: {alone:.1?}"),
        &format!("{each:.1?} an append, {ratio:.0} times the throughput"),
        "20 times",
        ratio >= 20.0,
    );
}

fn snapshot(folder: &Path) {
    let state = conversation();
    let session = SessionId::from("snapshot");
    let bytes = encode(&session, &state, 1).expect("encoded");
    let store = DirectoryStore::at(&folder.join("snapshots"), Durability::Synced).expect("a store");
    store.create(&session, None, None).expect("a session");
    let (mut plain, mut saves, mut encodes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reads, mut loads, mut decodes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        plain.push(timed(|| {
            let mut file = File::create(folder.join("plain")).expect("a file");
            file.write_all(&bytes).expect("written");
            file.sync_all().expect("synced");
        }));
        saves.push(timed(|| store.save_snapshot(&session, &bytes).expect("saved")));
        encodes.push(timed(|| drop(encode(&session, &state, 1).expect("encoded"))));
        let path = folder.join("snapshots/sessions/snapshot/snapshot");
        reads.push(timed(|| {
            let mut read = Vec::new();
            File::open(&path).expect("there").read_to_end(&mut read).expect("read");
            std::hint::black_box(read);
        }));
        let mut loaded = None;
        loads.push(timed(|| {
            let bytes = store.look(&session).expect("there").snapshot.expect("saved");
            loaded = Some(Snapshot::read(bytes, &session).expect("whole"));
        }));
        let loaded = loaded.expect("loaded");
        decodes.push(timed(|| drop(loaded.state().expect("decoded"))));
    }
    let (plain, saved, encoded) = (median(plain), median(saves), median(encodes));
    let (read, loaded, decoded) = (median(reads), median(loads), median(decodes));
    let ratio = saved.as_secs_f64() / plain.as_secs_f64();
    let size = bytes.len();
    row(
        &format!("snapshot of {size} bytes: saved (encoding it takes {encoded:.1?})"),
        &format!("write + fsync: {plain:.1?}"),
        &format!("{saved:.1?}, {ratio:.2}"),
        "1.5",
        ratio < 1.5,
    );
    let ratio = loaded.as_secs_f64() / read.as_secs_f64();
    row(
        &format!("the same: loaded and checked (decoding it takes {decoded:.1?})"),
        &format!("read: {read:.1?}"),
        &format!("{loaded:.1?}, {ratio:.2}"),
        "2",
        ratio < 2.0,
    );
}

fn fold() {
    let facts: Vec<Fact> = (0..).flat_map(round).take(FACTS).collect();
    let lines: Vec<Vec<u8>> =
        facts.iter().map(|fact| serde_json::to_vec(&StoredFact { at_ms: 1, fact }).expect("encoded")).collect();
    let began = Instant::now();
    let state = State::fold(facts).expect("in order");
    let span = began.elapsed();
    row(&format!("fold of {FACTS} facts"), "", &format!("{span:.1?}"), "under 1 s", span.as_secs_f64() < 1.0);
    let began = Instant::now();
    let mut again = State::default();
    for line in &lines {
        let stored: StoredFact<Fact> = serde_json::from_slice(line).expect("decoded");
        again.apply(stored.fact).expect("in order");
    }
    assert_eq!(again.position, state.position);
    row("the same, read from JSON first", "", &format!("{:.1?}", began.elapsed()), "", true);
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn asked() -> Fact {
    let bounds = RunBounds { rounds_max: 50, malformed_rounds_max: 2, same_call_max: 3 };
    Fact::UserMessage { run: "run".into(), text: "a question".to_owned(), pictures: Vec::new(), bounds }
}

/// One run with one call.
fn round(number: usize) -> Vec<Fact> {
    let arguments = CallArguments::Parsed(serde_json::json!({ "file_path": "src/lib.rs", "offset": number }));
    let call = ModelCall { id: "call".to_owned(), tool: "read".into(), arguments };
    let invocation = toolwarden_tools::ids::InvocationId::from("call-read-1");
    let result =
        ToolResult { call_id: "call".into(), tool: "read".into(), output: "some output".into(), success: true };
    vec![
        asked(),
        Fact::ModelTurn { turn: Box::new(ModelTurn::calling("looking", vec![call])), withheld: Vec::new() },
        Fact::CallBound {
            call: "call".into(),
            invocation: invocation.clone(),
            arguments: toolwarden_tools::digest::Digest::of(b"arguments"),
            idempotent: true,
        },
        Fact::CallStarted { invocation },
        Fact::CallEnded { result, source_anchors: Vec::new(), artifacts: Vec::new() },
        Fact::ModelTurn { turn: Box::new(ModelTurn::answer("found")), withheld: Vec::new() },
        Fact::Ending { status: RunStatus::Completed, text: "found".to_owned() },
    ]
}

/// A conversation whose snapshot has about [`SNAPSHOT_BYTES`].
fn conversation() -> State {
    let mut state = State::default();
    let mut number = 0;
    while state.messages.len() * 280 < SNAPSHOT_BYTES {
        for mut fact in round(number) {
            if let Fact::CallEnded { result, .. } = &mut fact {
                result.output = format!("{number} lines of output\n").repeat(40);
            }
            state.apply(fact).expect("in order");
        }
        number += 1;
    }
    state
}
