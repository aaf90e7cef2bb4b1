//! Figures, printed and not judged: what a command costs at each level, and how fast everything is gone.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::containment::Containment;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{CommandSpec, OutputSink, Processes, Stream};

use crate::command::{Heard, PATH, Ready, SELF, contained, guarded, spec};
use crate::matrix::HOST;
use crate::{level, trace};

/// How often a command is measured.
const ROUNDS: usize = 500;
/// How often the end of a tree is measured.
const TREES: usize = 20;
/// What starts a tree of 50.
const TREE: &str = "for i in {1..25}; do setsid sleep 600 & sleep 600 & done";

pub(crate) fn median(took: Vec<Duration>) -> Duration {
    spread(took).0
}

/// Middle, and nine tenths.
fn spread(mut took: Vec<Duration>) -> (Duration, Duration) {
    took.sort_unstable();
    (took[took.len() / 2], took[took.len() * 9 / 10])
}

/// What `true` costs.
pub(crate) fn spawns() {
    let levels = available();
    // Spawned, so that what is measured wakes up where it runs.
    block_on(async { tokio::spawn(async move { spawn(&levels).await }).await.unwrap() });
}

/// How much is written, in bytes.
const FLOOD_BYTES: u64 = 500 * 1024 * 1024;

/// 500 MB from `yes`: read from a bare pipe and thrown away, through the port, and into the capture of `bash`, whose
/// artifact is in memory or on a disk; speed, and how much more memory is resident meanwhile.
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
    let [mut bares, mut ports, mut calls, mut kept] = [const { Vec::new() }; 4];
    tokio.block_on(async {
        let (folder, shim) = (tempfile::tempdir().unwrap(), guarded());
        let in_memory = crate::matrix::runtime("").await;
        let on_disk = crate::matrix::builder(&Containment::SubReaper, "").artifact_folder(folder.path().join("kept"));
        let on_disk = on_disk.build().await.unwrap();
        let own = std::process::id();
        let mut grown_kib = 0;
        for number in 0..5 {
            bares.push(bare());
            let started_at = Instant::now();
            let counting = Arc::new(Counting::default());
            shim.run(spec(&line, ""), Arc::clone(&counting) as _, Cancellation::new()).await.unwrap();
            ports.push(started_at.elapsed());
            assert_eq!(counting.0.load(Ordering::Relaxed), FLOOD_BYTES);
            for (runtime, took) in [(&in_memory, &mut calls), (&on_disk, &mut kept)] {
                let session = runtime.session(folder.path()).open().await.unwrap();
                let before_kib = trace::resident_kib(own);
                let started_at = Instant::now();
                // Each is another text: one that is kept already is not written again.
                let line = format!("echo {number}; {line}");
                let result = crate::matrix::call(&session, &line, 120_000).await.unwrap();
                took.push(started_at.elapsed());
                grown_kib = trace::resident_kib(own).saturating_sub(before_kib).max(grown_kib);
                assert_eq!(result.metadata["output"]["total_bytes"], FLOOD_BYTES + 2);
            }
        }
        let [bare, port, call, kept] = [bares, ports, calls, kept].map(median).map(gigabytes_a_second);
        println!(
            "  500 MB from yes: bare pipe {bare:.2} GB/s, port {port:.2}, bash {call:.2}, bash that keeps 64 MiB on a disk \
             {kept:.2}, {grown_kib} KiB more"
        );
        for runtime in [in_memory, on_disk] {
            runtime.shut_down().await;
        }
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

/// How fast a tree is gone after a cancel.
pub(crate) fn cancels() {
    for containment in available() {
        block_on(cancel(&containment));
    }
}

/// How fast a tree is gone after the host.
pub(crate) fn hosts_killed() {
    for containment in available() {
        block_on(host_killed(&containment));
    }
}

fn available() -> Vec<Containment> {
    level::all().into_iter().filter(level::is_available_or_refused).collect()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

/// `true` with a group and pipes from tokio, at the level of the group, and at every other level, in turns.
async fn spawn(levels: &[Containment]) {
    let command = || CommandSpec { program: "/bin/true".into(), arguments: Vec::new(), ..spec("", "") };
    let mut ports: Vec<(&str, Box<dyn Processes>, Vec<Duration>)> =
        vec![("group", Box::new(SystemProcesses), Vec::new())];
    for containment in levels {
        ports.push((containment.level().as_str(), Box::new(contained(containment)), Vec::new()));
    }
    let mut bare = Vec::new();
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
        for (_, port, took) in &mut ports {
            let started_at = Instant::now();
            port.run(command(), Heard::new(), Cancellation::new()).await.unwrap();
            took.push(started_at.elapsed());
        }
    }
    let (bare, bare_high) = spread(bare);
    println!("  true: tokio {bare:?} (9 of 10 under {bare_high:?})");
    for (name, _, took) in ports {
        let (middle, high) = spread(took);
        println!(
            "  true: {name} {middle:?} (9 of 10 under {high:?}), {:.2}x",
            middle.as_secs_f64() / bare.as_secs_f64()
        );
    }
}

/// Cancel of a tree of 50, obedient and not, until the result is there.
async fn cancel(containment: &Containment) {
    let name = containment.level().as_str();
    for (kind, set_up) in [("obedient", TREE.to_owned()), ("deaf", format!("trap '' TERM; {TREE}"))] {
        let (processes, mut took) = (contained(containment), Vec::new());
        for _ in 0..TREES {
            let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
            let mut ready = Ready::new(folder.path());
            let (line, stop) = (ready.line(&set_up, "wait", &mark, ""), Cancellation::new());
            let command = spec(&line, &mark);
            let grace = if kind == "deaf" { command.grace } else { Duration::ZERO };
            let running = processes.run(command, Heard::new(), stop.clone());
            let begin = async {
                ready.all(1).await;
                stop.cancel(CancelReason::Requested);
                Instant::now()
            };
            let (end, stopped_at) = tokio::join!(running, begin);
            took.push(stopped_at.elapsed().saturating_sub(grace));
            assert_eq!(end.unwrap().survivors, Vec::<u32>::new());
            assert_eq!(trace::living(&mark), []);
        }
        let (middle, high) = spread(took);
        println!("  cancel of a tree of 50, {kind}, {name}: {middle:?} (9 of 10 under {high:?}) beyond the grace");
    }
}

/// The pids of a tree and its shell; one that is just calling exec has no environment for a moment.
fn whole_tree(mark: &str) -> BTreeSet<u32> {
    loop {
        let tree: BTreeSet<u32> = trace::living(mark).into_iter().map(|(pid, _)| pid).collect();
        if tree.len() > 50 {
            return tree;
        }
        std::thread::yield_now();
    }
}

/// SIGKILL to a host whose command is a deaf tree of 50, until none of it lives.
async fn host_killed(containment: &Containment) {
    let (name, mut took) = (containment.level().as_str(), Vec::new());
    for _ in 0..TREES {
        let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
        let mut ready = Ready::new(folder.path());
        let lines = [ready.line(&format!("trap '' TERM; {TREE}"), "wait", &mark, "")];
        let mut host = Command::new(SELF).arg(HOST).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let plan = json!({"folder": folder.path(), "mark": mark, "level": name, "background": false, "lines": lines});
        writeln!(host.stdin.take().unwrap(), "{plan}").unwrap();
        ready.all(1).await;
        let tree = whole_tree(&mark);
        let killed_at = Instant::now();
        kill(Pid::from_raw(host.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
        trace::vanishes(|| trace::alive(&tree)).expect("left behind");
        took.push(killed_at.elapsed());
        host.wait().unwrap();
        assert_eq!(trace::living(&mark), []);
    }
    let (middle, high) = spread(took);
    println!("  SIGKILL of the host of a tree of 50, {name}: nothing left after {middle:?} (9 of 10 under {high:?})");
}
