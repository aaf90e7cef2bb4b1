//! A batch of 32 small reads, 16 at a time, against the bare reads under a semaphore.
//!
//! The batch is a host's: every one of its calls passes the route, is in the journal and carries evidence; the
//! reference is a tokio `JoinSet` in which each task takes one of 16 permits and calls `tokio::fs::read`. Driven from
//! a spawned task on two workers, see `pairing.rs`.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "the bench prepares real files, and the reference reads them bare")]

mod pairing;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use criterion::Criterion;
use serde_json::{Value, json};
use tokio::runtime::Runtime as Tokio;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use toolwarden::prelude::*;

use crate::pairing::{Pairing, drive, timed};

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Reads in one batch.
const READS: usize = 32;
/// Reads beside each other.
const WIDTH: usize = 16;
/// Size of each file.
const FILE_BYTES: usize = 4096;
/// Turns of the comparison.
const TURNS: usize = 100;
/// Most that the batch may cost, in fan-outs of bare reads.
const RATIO_MAX: f64 = 3.0;
/// Batches in one turn.
const BATCHES_A_TURN: usize = 5;

fn name(number: usize) -> String {
    format!("part_{number:02}.txt")
}

fn arguments() -> Value {
    let reads: Vec<Value> =
        (0..READS).map(|number| json!({ "tool": "read", "args": { "file_path": name(number) } })).collect();
    json!({ "invocations": reads, "max_concurrency": WIDTH })
}

async fn batch(session: Session) {
    let result = session.tool("batch", arguments()).await.expect("an open session");
    assert!(result.is_success(), "{}", result.output);
}

async fn bare(paths: Arc<Vec<PathBuf>>) {
    let permits = Arc::new(Semaphore::new(WIDTH));
    let mut reads = JoinSet::new();
    for number in 0..paths.len() {
        let (paths, permits) = (Arc::clone(&paths), Arc::clone(&permits));
        reads.spawn(async move {
            let _permit = permits.acquire_owned().await.expect("an open semaphore");
            tokio::fs::read(&paths[number]).await.expect("a file").len()
        });
    }
    assert_eq!(reads.join_all().await.into_iter().sum::<usize>(), READS * FILE_BYTES);
}

fn spans<F: Future<Output = ()> + Send>(
    runtime: &Tokio,
    count: usize,
    work: impl Fn() -> F + Send + 'static,
) -> Vec<Duration> {
    drive(runtime, async move {
        let mut spans = Vec::with_capacity(count);
        for _ in 0..count {
            spans.push(timed(work()).await.0);
        }
        spans
    })
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().sample_size(50);
    let runtime = pairing::runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let line = "a line of 64 bytes, as they stand in sources of ordinary width\n";
    let text = line.repeat(FILE_BYTES / line.len() + 1);
    let paths: Vec<PathBuf> = (0..READS).map(|number| folder.path().join(name(number))).collect();
    for path in &paths {
        std::fs::write(path, &text[..FILE_BYTES]).expect("a file");
    }
    let paths = Arc::new(paths);
    let root = folder.path().to_owned();
    let session = drive(&runtime, async move {
        let runtime = Runtime::builder().build().await.expect("a runtime");
        runtime.session(root).open().await.expect("a session")
    });

    let batches = |count: usize| {
        let session = session.clone();
        spans(&runtime, count, move || batch(session.clone()))
    };
    let bares = |count: usize| {
        let paths = Arc::clone(&paths);
        spans(&runtime, count, move || bare(Arc::clone(&paths)))
    };
    let count = |count: u64| usize::try_from(count).expect("a few");
    let mut group = criterion.benchmark_group("fan_out");
    group.bench_function("batch_of_32_reads", |bench| {
        bench.iter_custom(|turns| batches(count(turns)).into_iter().sum());
    });
    group.bench_function("join_set_of_32_reads", |bench| {
        bench.iter_custom(|turns| bares(count(turns)).into_iter().sum());
    });
    group.finish();

    println!("\nfan_out, {READS} reads of {FILE_BYTES} bytes, {WIDTH} wide");
    let compared = Pairing::measure(TURNS, || bares(BATCHES_A_TURN), || batches(BATCHES_A_TURN));
    compared.print("host batch through the route", "JoinSet + semaphore + tokio::fs::read", Some(RATIO_MAX));
    criterion.final_summary();
}
