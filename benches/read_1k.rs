//! A host reads a file of 1 KB through the library, against `tokio::fs::read` of it in the same run.
//!
//! The target is absolute: below 110 us, ten times less than A3S Code 9.1.3 needed for the same call on this kind of
//! machine (1.1 ms, against 39 us for the bare read in its run). Driven from a spawned task on two workers, see
//! `pairing.rs`.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "the bench prepares a real file, and the reference reads it bare")]

mod pairing;

use std::path::PathBuf;
use std::time::Duration;

use criterion::Criterion;
use serde_json::json;
use tokio::runtime::Runtime as Tokio;
use toolwarden::prelude::*;

use crate::pairing::{Pairing, drive, timed, verdict};

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Size of the file.
const FILE_BYTES: usize = 1024;
/// Reads in one turn.
const READS_A_TURN: usize = 200;
/// Turns of the comparison.
const TURNS: usize = 50;
/// A tenth of what A3S Code 9.1.3 took for this call.
const MEDIAN_MAX: Duration = Duration::from_micros(110);

async fn read(session: Session) {
    let result = session.tool("read", json!({ "file_path": "note.txt" })).await.expect("an open session");
    assert!(result.is_success(), "{}", result.output);
}

async fn bare(path: PathBuf) {
    assert_eq!(tokio::fs::read(&path).await.expect("a file").len(), FILE_BYTES);
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
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = pairing::runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("note.txt");
    let line = "a line of 64 bytes, as they stand in sources of ordinary width\n";
    let text = line.repeat(FILE_BYTES / line.len() + 1);
    std::fs::write(&path, &text[..FILE_BYTES]).expect("a file");
    let root = folder.path().to_owned();
    let session = drive(&runtime, async move {
        let runtime = Runtime::builder().build().await.expect("a runtime");
        runtime.session(root).open().await.expect("a session")
    });

    let reads = |count: usize| {
        let session = session.clone();
        spans(&runtime, count, move || read(session.clone()))
    };
    let bares = |count: usize| {
        let path = path.clone();
        spans(&runtime, count, move || bare(path.clone()))
    };
    let count = |count: u64| usize::try_from(count).expect("a few");
    let mut group = criterion.benchmark_group("read_1k");
    group.bench_function("session_read", |bench| bench.iter_custom(|turns| reads(count(turns)).into_iter().sum()));
    group.bench_function("tokio_fs_read", |bench| bench.iter_custom(|turns| bares(count(turns)).into_iter().sum()));
    group.finish();

    println!("\nread_1k, one after the other");
    let compared = Pairing::measure(TURNS, || bares(READS_A_TURN), || reads(READS_A_TURN));
    let median = compared.print("session.tool(\"read\") of 1 KB", "tokio::fs::read of 1 KB", None);
    println!("  target: a median below {MEDIAN_MAX:?}: {}", verdict(median < MEDIAN_MAX));
    criterion.final_summary();
}
