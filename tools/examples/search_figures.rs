//! Measures the search tool over a folder and prints one JSON object: medians in milliseconds, and figures of the index.
//!
//! `benches/peers/search` runs it beside ripgrep and fd. Arguments: the folder, a folder for the index, how often each
//! search is repeated.

#![expect(clippy::disallowed_methods, reason = "measures real time over a real folder")]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made is to end at once")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwarden_tools::builtin::search;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::context::{NoProgress, NoSpool, ToolContext};
use toolwarden_tools::effects::clock::SystemClock;
use toolwarden_tools::ids::{InvocationId, SessionId};
use toolwarden_tools::search::resident_index::{ResidentIndex, ResidentIndexes};
use toolwarden_tools::tool::Tool;
use toolwarden_tools::workspace::seen::SeenFiles;
use toolwarden_tools::workspace::{WorkspaceCapabilities, local};

/// How often a file is changed to see what that costs.
const CHANGES: usize = 15;

fn context(root: &Path) -> ToolContext {
    ToolContext {
        invocation: InvocationId::new("figure"),
        session: SessionId::new("figure"),
        workspace: local::open(root, WorkspaceCapabilities::read_only(), None).unwrap(),
        seen: Arc::new(SeenFiles::default()),
        cancel: Cancellation::new(),
        clock: Arc::new(SystemClock::new()),
        progress: Arc::new(NoProgress),
        spool: Arc::new(NoSpool),
        invoke: None,
        generate: None,
        delegate: None,
        background: None,
        web: None,
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // User and system time, in ticks of a hundredth of a second.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Processor time of the thread behind the index, in nanoseconds.
fn index_cpu_ns() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|thread| thread.path());
    let is_its =
        |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "search-index");
    let cpu = |path: PathBuf| std::fs::read_to_string(path.join("schedstat")).unwrap();
    threads.filter(is_its).map(|path| cpu(path).split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// The processor time of indexing one file of 150 KB anew, in milliseconds, the median of some changes of it; with
/// hearing of it and making it known.
async fn reindex_ms(index: &Arc<ResidentIndex>, root: &Path) -> f64 {
    let path = root.join("toolwarden_reindexed.txt");
    let mut times = Vec::new();
    for round in 0..CHANGES {
        let text: String =
            (0..3000).map(|line| format!("line {line} of round {round}, as any text has them\n")).collect();
        std::fs::write(&path, text).unwrap();
        let before = index_cpu_ns();
        let index = Arc::clone(index);
        let indexed = move || index.wait_until_indexed(Duration::from_secs(60));
        assert!(tokio::task::spawn_blocking(indexed).await.unwrap());
        times.push((index_cpu_ns() - before) as f64 / 1e6);
    }
    std::fs::remove_file(&path).unwrap();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

async fn median_ms(tool: &dyn Tool, ctx: &ToolContext, arguments: &Value, rounds: usize) -> (f64, Value) {
    let mut times = Vec::new();
    let mut found = Value::Null;
    for _ in 0..rounds {
        let begin = Instant::now();
        let outcome = tool.call(ctx, arguments.clone()).await;
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
        assert!(outcome.is_success(), "{}", outcome.output);
        // Rankings have results instead.
        let facts = outcome.metadata.get("search").or_else(|| outcome.metadata.get("results"));
        found = facts.cloned().unwrap_or_default();
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], found)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (root, cache, rounds) =
        (PathBuf::from(&arguments[1]), PathBuf::from(&arguments[2]), arguments[3].parse().unwrap());
    let searches: BTreeMap<String, Value> = serde_json::from_str(&arguments[4]).unwrap();
    let ctx = context(&root);
    let mut figures = BTreeMap::new();
    let cold = search::tool(None);
    for (name, arguments) in &searches {
        let (ms, found) = median_ms(cold.as_ref(), &ctx, arguments, rounds).await;
        figures.insert(format!("cold {name}"), json!({"ms": ms, "found": found}));
    }
    let indexes = Arc::new(ResidentIndexes::new(Some(cache)));
    let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
    let (before, cpu, bytes) = (Instant::now(), cpu_seconds(), resident_bytes());
    index.begin();
    let built = {
        let index = Arc::clone(&index);
        tokio::task::spawn_blocking(move || index.wait_until_indexed(Duration::from_secs(600))).await.unwrap()
    };
    let status = index.status();
    figures.insert(
        "index".into(),
        json!({
            "built": built, "wall_s": before.elapsed().as_secs_f64(), "cpu_s": cpu_seconds() - cpu,
            "bytes": status.bytes, "segments": status.segments, "entries": status.entries,
            "resident_bytes": resident_bytes().saturating_sub(bytes),
        }),
    );
    figures.insert("reindex".into(), json!({"ms": reindex_ms(&index, &root).await}));
    let warm = search::tool(Some(Arc::clone(&indexes)));
    for (name, arguments) in &searches {
        // A ranking asks for words to be kept; the next ones have them.
        median_ms(warm.as_ref(), &ctx, arguments, 1).await;
        let index = Arc::clone(&index);
        let kept = move || index.wait_until_indexed(Duration::from_secs(600));
        assert!(tokio::task::spawn_blocking(kept).await.unwrap());
        let (ms, found) = median_ms(warm.as_ref(), &ctx, arguments, 2 * rounds + 1).await;
        figures.insert(format!("warm {name}"), json!({"ms": ms, "found": found}));
    }
    let status = index.status();
    figures.insert("words".into(), json!({"files": status.words_files, "bytes": status.words_bytes}));
    println!("{}", json!(figures));
    indexes.close();
}
