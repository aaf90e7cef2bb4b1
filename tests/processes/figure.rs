//! Figures, printed and not judged: what a command costs under the shim, and how fast everything is gone.

use std::process::Stdio;
use std::time::{Duration, Instant};

use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{CommandSpec, Processes};

use crate::command::{Heard, PATH, Ready, guarded, spec};
use crate::trace;

/// How often each is measured.
const ROUNDS: usize = 300;

fn median(mut took: Vec<Duration>) -> Duration {
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
