//! Every hostile command by every ending: nothing marked is left, no zombie, no more descriptors than before.
//!
//! All commands of an ending run side by side, which is also how they would be found to disturb each other.

use std::collections::BTreeSet;
use std::io::{BufRead as _, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use toolwarden::embedding::RuntimeBuilder;
use toolwarden::lanes::LaneLimits;
use toolwarden::prelude::*;
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::containment::Containment;
use toolwarden_tools::effects::processes::{ContainmentLevel, Processes as _};

use crate::command::{HOSTILE, Heard, Ready, contained, environment, spec};
use crate::{level, trace};

/// The argument that makes this program a host.
pub(crate) const HOST: &str = "--play-host";
/// What a command does that is to be ended by others.
const GO_ON: &str = "sleep 600; :";

/// How calls end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The shell exits and leaves what it started.
    Normal,
    Timeout,
    Cancel,
    /// The future of a session's call is dropped.
    DroppedCall,
    /// The future of the processes port itself is dropped.
    DroppedFuture,
    /// The task that waits for the processes port panics.
    Panic,
    SessionClose,
    /// SIGTERM, which the host answers with an orderly shut-down.
    HostTerminated,
    HostKilled,
}

/// Lets all hostile commands end so at this level, and looks for what they left. Where the level is not available,
/// commands have to be refused with the reason. Cases C001, C003, C004 and R07: what left the group, ignores signals or
/// holds the output is gone too, and a shell that ended keeps its exit code.
pub(crate) fn ends(ending: Ending, containment: &Containment) {
    if !level::is_available_or_refused(containment) {
        return;
    }
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mark = trace::unique_mark();
    tokio.block_on(async {
        match ending {
            Ending::DroppedFuture | Ending::Panic => futures_end(ending, containment, &mark).await,
            Ending::HostTerminated => host_ends(Signal::SIGTERM, containment, &mark).await,
            Ending::HostKilled => host_ends(Signal::SIGKILL, containment, &mark).await,
            _ => calls_end(ending, containment, &mark).await,
        }
        // The keeper has been let go; tokio reaps it.
        let own = std::process::id();
        trace::vanishes(|| trace::children(own, "toolwarden").into_iter().collect()).expect("the shim is still there");
        trace::vanishes(trace::zombies).expect("zombies");
        trace::vanishes(level::cgroups).expect("cgroups");
    });
}

/// A runtime at the first level of the shim.
pub(crate) async fn runtime(mark: &str) -> Runtime {
    runtime_at(&Containment::SubReaper, mark).await
}

async fn runtime_at(containment: &Containment, mark: &str) -> Runtime {
    builder(containment, mark).build().await.unwrap()
}

pub(crate) fn builder(containment: &Containment, mark: &str) -> RuntimeBuilder {
    let builder = Runtime::builder().processes(Arc::new(contained(containment))).environment(environment(mark));
    // All of them at once.
    let lane = LaneLimits::default().with(Lane::Execute, BulkheadLimits { permits: 64, queue_max: 64, breaker: None });
    builder.lanes(lane)
}

pub(crate) async fn call(session: &Session, line: &str, timeout_ms: u64) -> Result<Arc<CallResult>, SessionError> {
    session.tool("bash", json!({"command": line, "timeout": timeout_ms})).await
}

/// Endings of calls in a session.
async fn calls_end(ending: Ending, containment: &Containment, mark: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut ready = Ready::new(folder.path());
    let runtime = runtime_at(containment, mark).await;
    let session = runtime.session(folder.path()).open().await.unwrap();
    // The keeper is started by the first command.
    call(&session, "true", 60_000).await.unwrap();
    let own = std::process::id();
    let descriptors = trace::descriptors(own);

    let end = if ending == Ending::Normal { "exit 0" } else { GO_ON };
    let timeout_ms = if ending == Ending::Timeout { 3000 } else { 120_000 };
    let lines = ready.lines(mark, end);
    let mut calls: Vec<_> = lines.iter().map(|line| Box::pin(call(&session, line, timeout_ms))).collect();
    let all = join_all(calls.iter_mut());
    let break_in = async {
        ready.all(HOSTILE.len()).await;
        match ending {
            Ending::Cancel => {
                session.cancel(&CancelTarget::Everything, &CancelReason::Requested);
            }
            Ending::SessionClose => session.close().await,
            _ => {}
        }
    };
    if ending == Ending::DroppedCall {
        tokio::select! { biased;
            () = break_in => {}
            _ = async { tokio::join!(all, std::future::pending::<()>()) } => {}
        }
        drop(calls);
        trace::vanishes(|| trace::living(mark)).expect("left behind");
    } else {
        let (results, ()) = tokio::join!(all, break_in);
        assert_eq!(trace::living(mark), [], "{ending:?}");
        for ((name, ..), result) in HOSTILE.iter().zip(results) {
            check(ending, containment.level(), name, &result.unwrap());
        }
        drop(calls);
    }
    let more = || trace::descriptors(own).checked_sub(descriptors).filter(|more| *more > 0).into_iter().collect();
    trace::vanishes(more).expect("more descriptors than before");
    trace::vanishes(trace::zombies).expect("zombies");
    runtime.shut_down().await;
}

/// The result says what is true.
fn check(ending: Ending, level: ContainmentLevel, name: &str, result: &CallResult) {
    let told = format!("{ending:?}, {name}: {} {:?}", result.output, result.metadata);
    let containment = json!({"level": level.as_str(), "survivors": []});
    assert_eq!(result.metadata.get("containment"), Some(&containment), "{told}");
    // The first process of a namespace does not die of it.
    if name == "kills its parent" && level != ContainmentLevel::PidNamespace {
        return assert!(!result.is_success(), "{told}");
    }
    let has_background = name != "plain child";
    match ending {
        Ending::Normal => {
            assert!(result.is_success(), "{told}");
            assert_eq!(result.metadata.get("background_killed"), Some(&Value::from(has_background)), "{told}");
        }
        Ending::Timeout => assert!(matches!(result.error_kind, Some(ToolErrorKind::Timeout { .. })), "{told}"),
        _ => assert!(matches!(result.error_kind, Some(ToolErrorKind::Cancelled { .. })), "{told}"),
    }
}

/// Endings of the port's own futures.
async fn futures_end(ending: Ending, containment: &Containment, mark: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut ready = Ready::new(folder.path());
    let processes = contained(containment);
    processes.run(spec("true", mark), Heard::new(), Cancellation::new()).await.unwrap();
    let descriptors = trace::descriptors(std::process::id());
    let panicking = Cancellation::new();
    let tasks: Vec<_> = ready
        .lines(mark, GO_ON)
        .iter()
        .map(|line| {
            let run = processes.run(spec(line, mark), Heard::new(), Cancellation::new());
            let panicking = panicking.clone();
            tokio::spawn(async move {
                tokio::select! { biased;
                    _ = run => {}
                    _ = panicking.cancelled() => std::panic::resume_unwind(Box::new("on purpose")),
                }
            })
        })
        .collect();
    ready.all(HOSTILE.len()).await;
    match ending {
        Ending::Panic => {
            panicking.cancel(CancelReason::Requested);
        }
        _ => tasks.iter().for_each(|task| task.abort()),
    }
    let took = trace::vanishes(|| trace::living(mark)).expect("left behind");
    println!("  nothing left after {took:?}");
    for task in tasks {
        // The one that kills its own parent may have ended first.
        let _ = task.await;
    }
    let more = || trace::descriptors(std::process::id()).checked_sub(descriptors).filter(|more| *more > 0);
    trace::vanishes(|| more().into_iter().collect()).expect("more descriptors than before");
}

/// Endings of a whole host.
async fn host_ends(signal: Signal, containment: &Containment, mark: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut ready = Ready::new(folder.path());
    let mut host =
        Command::new(crate::command::SELF).arg(HOST).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let level = containment.level().as_str();
    let plan = json!({"folder": folder.path(), "mark": mark, "level": level, "lines": ready.lines(mark, GO_ON), "background": false});
    // The mark may stand neither in its arguments nor in its environment.
    writeln!(host.stdin.take().unwrap(), "{plan}").unwrap();
    ready.all(HOSTILE.len()).await;
    let keepers = trace::children(host.id(), "toolwarden");
    assert_eq!(keepers.len(), 1);
    let mut shims: BTreeSet<u32> = keepers.iter().flat_map(|keeper| trace::children(*keeper, "toolwarden")).collect();
    assert!(shims.len() >= HOSTILE.len() - 1, "{shims:?}");
    shims.extend(&keepers);

    kill(Pid::from_raw(host.id().try_into().unwrap()), signal).unwrap();
    let status = host.wait().unwrap();
    if signal == Signal::SIGTERM {
        // It waited for everything.
        assert!(status.success(), "{status}");
        assert_eq!(trace::living(mark), []);
    }
    let took = trace::vanishes(|| trace::living(mark)).expect("left behind");
    println!("  nothing left {took:?} after the host's end");
    trace::vanishes(|| trace::alive(&shims)).expect("the shim is still there");
}

/// Runs what standard input says until SIGTERM.
pub(crate) fn play_host() -> ExitCode {
    let mut plan = String::new();
    std::io::stdin().lock().read_line(&mut plan).unwrap();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let text = |name: &str| plan[name].as_str().unwrap().to_owned();
    let background = plan["background"].as_bool().unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        let runtime = runtime_at(&level::named(&text("level")), &text("mark")).await;
        let session = runtime.session(text("folder")).open().await.unwrap();
        let lines: Vec<&str> = plan["lines"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let call = |line| session.tool("bash", json!({"command": line, "timeout": 600_000, "background": background}));
        let git = async {
            if let Some(arguments) = plan.get("git") {
                drop(session.tool("git", arguments.clone()).await);
            }
        };
        let calls = async { tokio::join!(join_all(lines.into_iter().map(call)), git) };
        tokio::select! { biased;
            _ = terminated.recv() => {}
            _ = async { tokio::join!(calls, std::future::pending::<()>()) } => {}
        }
        runtime.shut_down().await;
    });
    ExitCode::SUCCESS
}
