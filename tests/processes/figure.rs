//! Figures, printed and not judged: what a command costs under the shim, and how fast everything is gone.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{CommandSpec, OutputSink, Processes, Stream};

use crate::command::{Heard, PATH, Ready, guarded, spec};
use crate::trace;

/// How often each is measured.
const ROUNDS: usize = 300;

pub(crate) fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}

/// Measures everything.
pub(crate) fn all() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        spawn().await;
        cancel().await;
    });
}

/// How much is written, in bytes.
const FLOOD_BYTES: u64 = 500 * 1024 * 1024;

/// 500 MB from `yes`: read from a bare pipe and thrown away, and through the port into the capture of `bash`; speed,
/// and how much more memory is resident meanwhile.
pub(crate) fn capture() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let line = format!("yes | head -c {FLOOD_BYTES}");
    let gigabytes_a_second = |took: Duration| FLOOD_BYTES as f64 / 1e9 / took.as_secs_f64();
    let bare = || {
        let started_at = Instant::now();
        let mut child = std::process::Command::new("bash").args(["-c", &line]).stdout(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let (mut buffer, mut total) = (vec![0; 64 * 1024], 0);
        loop {
            match std::io::Read::read(&mut pipe, &mut buffer).unwrap() {
                0 => break,
                count => total += count as u64,
            }
        }
        child.wait().unwrap();
        assert_eq!(total, FLOOD_BYTES);
        started_at.elapsed()
    };
    let (mut bares, mut ports, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    tokio.block_on(async {
        let (folder, shim) = (tempfile::tempdir().unwrap(), guarded());
        let runtime = crate::matrix::runtime("").await;
        let session = runtime.session(folder.path()).open().await.unwrap();
        let own = std::process::id();
        let mut grown_kib = 0;
        for _ in 0..5 {
            bares.push(bare());
            let started_at = Instant::now();
            let counting = Arc::new(Counting::default());
            shim.run(spec(&line, ""), Arc::clone(&counting) as _, Cancellation::new()).await.unwrap();
            ports.push(started_at.elapsed());
            assert_eq!(counting.0.load(Ordering::Relaxed), FLOOD_BYTES);
            let before_kib = trace::resident_kib(own);
            let started_at = Instant::now();
            let result = crate::matrix::call(&session, &line, 120_000).await.unwrap();
            calls.push(started_at.elapsed());
            grown_kib = trace::resident_kib(own).saturating_sub(before_kib).max(grown_kib);
            assert_eq!(result.metadata["output"]["total_bytes"], FLOOD_BYTES);
        }
        let [bare, port, call] = [bares, ports, calls].map(median).map(gigabytes_a_second);
        println!("  500 MB from yes: bare pipe {bare:.2} GB/s, port {port:.2} GB/s, bash {call:.2} GB/s, {grown_kib} KiB more");
        runtime.shut_down().await;
    });
}

/// Counts and forgets.
#[derive(Default)]
struct Counting(AtomicU64);

impl OutputSink for Counting {
    fn push(&self, _: Stream, bytes: &[u8]) {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// `true` with a group and pipes from tokio, at the level of the group, and under the shim, in turns.
async fn spawn() {
    let command = || CommandSpec { program: "/bin/true".into(), arguments: Vec::new(), ..spec("", "") };
    let (group, shim) = (SystemProcesses, guarded());
    let (mut bare, mut grouped, mut guarded) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started_at = Instant::now();
        let child = tokio::process::Command::new("/bin/true")
            .env_clear()
            .env("PATH", PATH)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.wait_with_output().await.unwrap();
        bare.push(started_at.elapsed());
        for (port, took) in [(&group as &dyn Processes, &mut grouped), (&shim, &mut guarded)] {
            let started_at = Instant::now();
            port.run(command(), Heard::new(), Cancellation::new()).await.unwrap();
            took.push(started_at.elapsed());
        }
    }
    let (bare, grouped, guarded) = (median(bare), median(grouped), median(guarded));
    let ratio = |took: Duration| took.as_secs_f64() / bare.as_secs_f64();
    println!(
        "  true: tokio {bare:?}, group {grouped:?} ({:.2}x), shim {guarded:?} ({:.2}x)",
        ratio(grouped),
        ratio(guarded)
    );
}

/// A tree of 50, obedient and not.
async fn cancel() {
    for (name, set_up) in [
        ("obedient", "for i in {1..25}; do setsid sleep 600 & sleep 600 & done"),
        ("deaf", "trap '' TERM; for i in {1..25}; do setsid sleep 600 & sleep 600 & done"),
    ] {
        let (processes, mut took) = (guarded(), Vec::new());
        for _ in 0..20 {
            let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
            let mut ready = Ready::new(folder.path());
            let (line, stop) = (ready.line(set_up, "wait", &mark, ""), Cancellation::new());
            let command = spec(&line, &mark);
            let grace = if name == "deaf" { command.grace } else { Duration::ZERO };
            let running = processes.run(command, Heard::new(), stop.clone());
            let begin = async {
                ready.all(1).await;
                stop.cancel(CancelReason::Requested);
                Instant::now()
            };
            let (end, stopped_at) = tokio::join!(running, begin);
            end.unwrap();
            took.push(stopped_at.elapsed().saturating_sub(grace));
        }
        println!("  cancel of a tree of 50, {name}: {:?} beyond the grace", median(took));
    }
}
