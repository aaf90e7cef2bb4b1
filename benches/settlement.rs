//! What settling costs: a large output projected, proven and stored as it streams by, a small one, and folding.
//!
//! Against the hash of the same bytes in the same run: nothing that takes a digest can be faster. Memory is the
//! most that the process ever had, read from the system.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "the bench reads its own figures from the system")]

mod pairing;

use std::hint::black_box;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use tokio::runtime::Runtime as Tokio;
use toolwarden::settlement::artifact::{ArtifactUri, kept_line, line_bytes};
use toolwarden::settlement::evidence::{ContentRef, Original, evidence};
use toolwarden::settlement::projection::{Projector, project};
use toolwarden::settlement::projection_policy::ProjectionPolicy;
use toolwarden::settlement::sanitise::Sanitiser;
use toolwarden::settlement::sanitise::stream::CleanStream;
use toolwarden_actors::artifact_store::{ArtifactLimits, ArtifactStore};
use toolwarden_actors::child_spec::ChildSpec;
use toolwarden_actors::supervisor::{self, SupervisorSpec};
use toolwarden_tools::digest::RunningDigest;
use toolwarden_tools::effects::blobs::folder::FolderBlobs;
use toolwarden_tools::effects::clock::SystemClock;

use crate::pairing::{Pairing, drive, timed, verdict};

/// Bytes of the large output.
const LARGE_BYTES: usize = 100 * 1_000_000;
/// Bytes of the small one.
const SMALL_BYTES: usize = 4096;
/// Bytes that come at a time.
const PIECE_BYTES: usize = 64 * 1024;
/// Turns of the comparisons.
const TURNS: usize = 7;
/// What is asked: a gigabyte a second, with less memory than this, folding twice as fast, a small one within this.
const RATE_MIN: f64 = 1.0;
const FOLD_RATE_MIN: f64 = 2.0;
const MEMORY_MIB_MAX: u64 = 64;
const SMALL_MAX: Duration = Duration::from_micros(15);

/// A mebibyte of ordinary lines, none like its neighbour.
fn lines() -> String {
    let mut text = String::new();
    for at in 0.. {
        let line = format!(
            "src/module_{:03}/file_{at:05}.rs:{}: let value = compute(&input, {at})?; // a note\n",
            at % 500,
            at % 997
        );
        if text.len() + line.len() > 1024 * 1024 {
            break;
        }
        text.push_str(&line[at % 20..]);
    }
    text
}

/// The pieces of a large output.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    pieces_of(text, LARGE_BYTES)
}

fn pieces_of(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let mut left = bytes;
    (0..).map(|at| (at * PIECE_BYTES) % (text.len() / PIECE_BYTES * PIECE_BYTES)).map_while(move |from| {
        let piece = &text[from..from + PIECE_BYTES.min(left)];
        left -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}

async fn store_in(folder: PathBuf) -> (ArtifactStore, supervisor::SupervisorRef) {
    let blobs = FolderBlobs::open(&folder).expect("a folder");
    let store = ArtifactStore::new(Arc::new(blobs), ArtifactLimits::default());
    let child = store.clone();
    let spec = ChildSpec::new("artifact_store", move |root| {
        let child = child.clone();
        async move { Ok(child.start(root, Arc::new(SystemClock::new())).await?) }
    });
    let root = supervisor::start(SupervisorSpec { children: vec![spec], ..SupervisorSpec::default() }).await;
    (store, root.expect("a root"))
}

/// Projects, proves and stores a large output that is like no other: one that is there already is not stored again.
async fn settle_large(store: ArtifactStore, text: Arc<str>, number: usize) {
    let first = format!("{number:04}\n");
    let mut projector = Projector::new(&ProjectionPolicy::context_efficient());
    let mut artifact = store.begin();
    for piece in std::iter::once(&*first).chain(pieces_of(&text, LARGE_BYTES - first.len())) {
        projector.push(piece);
        artifact.write(piece.as_bytes());
    }
    let artifact = artifact.finish();
    let (bytes, digest) = (usize::try_from(artifact.bytes()).expect("it fits"), artifact.digest().clone());
    store.publish(&"bench".into(), artifact).await.expect("room for it");
    let uri = ArtifactUri::new("bash", digest.clone());
    let projection = projector.finish(line_bytes("bash")).with_last_line(&kept_line(&uri));
    let proof = evidence(&Original::known(bytes, digest), &projection, ContentRef::Artifact(uri.to_string()));
    assert_eq!((bytes, black_box(proof)["loss_mode"].as_str()), (LARGE_BYTES, Some("head_tail")));
}

fn rate(span: Duration) -> f64 {
    LARGE_BYTES as f64 / span.as_secs_f64() / 1e9
}

/// The most memory that this process had so far, in MiB.
fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a high-water mark");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

/// What the medium itself takes.
fn write_plainly(place: &Path, text: &str) -> Duration {
    let mut file = tempfile::tempfile_in(place).expect("a file");
    let began_at = tokio::time::Instant::now();
    pieces(text).for_each(|piece| file.write_all(piece.as_bytes()).expect("room for it"));
    file.sync_all().expect("a disk");
    began_at.elapsed()
}

fn large(runtime: &Tokio, place: &Path, name: &str, text: &Arc<str>) {
    let folder = tempfile::tempdir_in(place).expect("a folder");
    let path = folder.path().to_owned();
    let (store, root) = drive(runtime, store_in(path));
    let hash = || {
        let mut digest = RunningDigest::default();
        let span = drive(
            runtime,
            timed({
                let text = Arc::clone(text);
                async move {
                    pieces(&text).for_each(|piece| digest.update(piece.as_bytes()));
                    black_box(digest.finish());
                }
            }),
        );
        vec![span.0]
    };
    let (mut number, mut plain) = (0, Vec::new());
    let settle = || {
        number += 1;
        plain.push(write_plainly(place, text));
        vec![drive(runtime, timed(settle_large(store.clone(), Arc::clone(text), number))).0]
    };
    println!("\nsettlement of 100 MB, streamed, artifact {name}");
    let median = Pairing::measure(TURNS, hash, settle).print("projection, evidence, artifact", "sha256 alone", None);
    let rate = rate(median);
    println!("  {rate:.2} GB/s; target: at least {RATE_MIN}: {}", verdict(rate >= RATE_MIN));
    plain.sort_unstable();
    let (medium, share) = (plain[plain.len() / 2], median.as_secs_f64() / plain[plain.len() / 2].as_secs_f64());
    println!("  the same bytes written plainly and synced: {medium:.1?}, of which it took {share:.2}");
    drive(runtime, async move { root.shutdown(Duration::from_secs(5)).await }).expect("an orderly end");
}

fn parts(text: &Arc<str>) {
    let measure = |name: &str, mut work: Box<dyn FnMut()>| {
        let mut spans: Vec<Duration> = (0..TURNS)
            .map(|_| {
                let began_at = tokio::time::Instant::now();
                work();
                began_at.elapsed()
            })
            .collect();
        spans.sort_unstable();
        let rate = rate(spans[TURNS / 2]);
        println!("  {name:<42} {rate:.2} GB/s");
        rate
    };
    println!("\nparts of it, 100 MB of ordinary lines");
    let project_by = |policy: ProjectionPolicy| {
        let text = Arc::clone(text);
        Box::new(move || {
            let mut projector = Projector::new(&policy);
            pieces(&text).for_each(|piece| projector.push(piece));
            black_box(projector.finish(200));
        })
    };
    measure("head and tail", project_by(ProjectionPolicy::conservative()));
    let fold = measure("fold, head and tail", project_by(ProjectionPolicy::context_efficient()));
    println!("  target: folding at {FOLD_RATE_MIN} GB/s or more: {}", verdict(fold >= FOLD_RATE_MIN));
    let sanitiser = Sanitiser::new(vec!["a-secret-value".into()], &[]).expect("a sanitiser");
    let text = Arc::clone(text);
    measure(
        "sanitising a stream",
        Box::new(move || {
            let (mut stream, mut bytes) = (CleanStream::default(), 0);
            let mut take = |clean: &str| {
                bytes += clean.len();
                ControlFlow::Continue(())
            };
            let taken = pieces(&text).try_for_each(|piece| stream.push(&sanitiser, piece, &mut take));
            stream.finish(&sanitiser, &mut take);
            assert!(taken.is_continue());
            assert_eq!(bytes, LARGE_BYTES);
        }),
    );
}

fn small(criterion: &mut Criterion, text: &str) {
    let text = text[..SMALL_BYTES].to_owned();
    let mut group = criterion.benchmark_group("settlement_4k");
    for (name, policy) in [
        ("conservative", ProjectionPolicy::conservative()),
        ("context_efficient", ProjectionPolicy::context_efficient()),
    ] {
        let settle = |text: String| {
            let original = Original::of(&text);
            let projection = project(&policy, text, line_bytes("bash"));
            (evidence(&original, &projection, ContentRef::Inline), projection)
        };
        group.bench_function(name, |bench| bench.iter_batched(|| text.clone(), settle, BatchSize::SmallInput));
        let mut spans: Vec<Duration> = (0..10_000)
            .map(|_| {
                let text = text.clone();
                let began_at = tokio::time::Instant::now();
                black_box(settle(text));
                began_at.elapsed()
            })
            .collect();
        spans.sort_unstable();
        let median = spans[spans.len() / 2];
        println!("  4 KB, {name}: median {median:.1?}; target: below {SMALL_MAX:?}: {}", verdict(median < SMALL_MAX));
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = pairing::runtime();
    let text: Arc<str> = lines().into();
    let before_mib = memory_mib();
    large(&runtime, &std::env::temp_dir(), "on the disk of the temp folder", &text);
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        large(&runtime, shared, "in memory (tmpfs)", &text);
    }
    let most_mib = memory_mib();
    println!(
        "  memory: {most_mib} MiB at the most, {before_mib} before; target: below {MEMORY_MIB_MAX} MiB: {}",
        verdict(most_mib < MEMORY_MIB_MAX)
    );
    parts(&text);
    small(&mut criterion, &text);
    criterion.final_summary();
}
