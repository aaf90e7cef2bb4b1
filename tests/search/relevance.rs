//! Forty questions about the sources of an async runtime, each with the file that answers it.
//!
//! The sources are those of the `tokio` crate in the version that this workspace is built with, as cargo keeps them.

use std::path::PathBuf;

use serde_json::json;
use toolwarden::embedding::Runtime;

/// Question, and the end of the path that is right.
const QUESTIONS: [(&str, &str); 40] = [
    ("how does a semaphore queue waiters for several permits", "sync/batch_semaphore.rs"),
    ("wait until all tasks reach a barrier", "sync/barrier.rs"),
    ("broadcast channel lagged receiver", "sync/broadcast.rs"),
    ("async mutex guard and lock fairness", "sync/mutex.rs"),
    ("notify one waiter or all waiters", "sync/notify.rs"),
    ("initialise a value once from an async function", "sync/once_cell.rs"),
    ("send a single value between two tasks", "sync/oneshot.rs"),
    ("watch channel keeps only the last value", "sync/watch.rs"),
    ("set a value once and wait for it", "sync/set_once.rs"),
    ("waker registered atomically, atomic waker", "sync/task/atomic_waker.rs"),
    ("unbounded mpsc sender", "sync/mpsc/unbounded.rs"),
    ("bounded channel reserve a permit to send", "sync/mpsc/bounded.rs"),
    ("linked list of blocks in a channel", "sync/mpsc/list.rs"),
    ("join set of spawned tasks abort all", "task/join_set.rs"),
    ("run a future on the current thread with spawn_local", "task/local.rs"),
    ("task local key scope", "task/task_local.rs"),
    ("yield back to the scheduler", "task/yield_now.rs"),
    ("cooperative budget for tasks", "task/coop/mod.rs"),
    ("missed tick behavior of interval", "time/interval.rs"),
    ("sleep until a deadline", "time/sleep.rs"),
    ("require a future to complete before a timeout elapsed", "time/timeout.rs"),
    ("pause and advance the clock", "time/clock.rs"),
    ("buffered async reader", "io/util/buf_reader.rs"),
    ("copy bytes in both directions", "io/util/copy_bidirectional.rs"),
    ("in memory duplex pipe", "io/util/mem.rs"),
    ("read lines from a buffered reader", "io/util/lines.rs"),
    ("limit the number of bytes read with take", "io/util/take.rs"),
    ("split a reader and writer into halves", "io/split.rs"),
    ("async file descriptor readiness guard", "io/async_fd.rs"),
    ("seek in a file asynchronously", "io/seek.rs"),
    ("resolve a host name, dns lookup", "net/lookup_host.rs"),
    ("accept tcp connections listener", "net/tcp/listener.rs"),
    ("unix domain socket peer credentials", "net/unix/ucred.rs"),
    ("udp socket send_to recv_from", "net/udp.rs"),
    ("ctrl c signal", "signal/ctrl_c.rs"),
    ("reap orphaned child processes", "process/unix/orphan.rs"),
    ("builder worker_threads thread_name", "runtime/builder.rs"),
    ("hand work over to the blocking thread pool", "runtime/blocking/pool.rs"),
    ("timer wheel levels and slots", "runtime/time/wheel/level.rs"),
    ("work stealing inject queue of the multi thread scheduler", "runtime/scheduler/multi_thread/queue.rs"),
];
/// Most answers that may miss the first three.
const MISSES_MAX: usize = QUESTIONS.len() / 10;

/// Where cargo keeps the sources of tokio, in the version of the lock file: in `registry/src`, for it built them.
fn sources() -> PathBuf {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).unwrap();
    let version = lock.split("name = \"tokio\"\nversion = \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo"));
    let registries = std::fs::read_dir(home.join("registry/src")).unwrap().flatten();
    let mut found = registries.map(|registry| registry.path().join(format!("tokio-{version}/src")));
    found.find(|folder| folder.is_dir()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_of_ten_questions_are_answered_among_the_first_three() {
    let _turn = crate::TURN.lock().await;
    let runtime = Runtime::builder().build().await.unwrap();
    let session = runtime.session(sources()).open().await.unwrap();
    let (mut first, mut misses) = (0, Vec::new());
    for (question, answer) in QUESTIONS {
        let result = session.tool("search", json!({"mode": "bm25", "query": question})).await.unwrap();
        let metadata = &result.metadata;
        let results = metadata["results"].as_array().unwrap();
        let mut paths: Vec<&str> = results.iter().map(|result| result["path"].as_str().unwrap()).collect();
        paths.dedup();
        let place = paths.iter().position(|path| path.ends_with(answer));
        first += usize::from(place == Some(0));
        if place.is_none_or(|place| place >= 3) {
            misses.push(format!("{question}: {answer} is not among {paths:?}"));
        }
    }
    println!("{first} of {} first, {} among three", QUESTIONS.len(), QUESTIONS.len() - misses.len());
    assert!(misses.len() <= MISSES_MAX, "{misses:#?}");
    runtime.shut_down().await;
}
