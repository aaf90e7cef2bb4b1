//! `bash` with real processes.
#![expect(clippy::disallowed_methods, reason = "tests look at real files and processes")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;

use super::{BashTool, COMMAND_BYTES_MAX, allowed_environment};
use crate::builtin::testing::{call, context_over};
use crate::cancellation::{CancelReason, Cancellation};
use crate::context::{Progress, ToolContext};
use crate::effects::processes::system::SystemProcesses;
use crate::effects::processes::{CommandSpec, OutputSink, ProcessEnd, ProcessError, Processes, marked};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::{Subject, Tool as _};
use crate::workspace::{WorkspaceCapabilities, local};

/// A shell in a folder of its own, whose processes carry a mark of their own.
struct Shell {
    folder: TempDir,
    tool: BashTool,
    ctx: ToolContext,
    mark: String,
}

impl Shell {
    fn new() -> Self {
        Self::over(Arc::new(SystemProcesses))
    }

    fn over(processes: Arc<dyn Processes>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mark = marked::unique();
        let host = [("PATH", "/usr/local/bin:/usr/bin:/bin"), (marked::NAME, &mark)];
        let tool = BashTool::new(BTreeMap::from(host.map(|(name, value)| (name.to_owned(), value.to_owned()))));
        let ctx = context_in(folder.path(), processes);
        Self { folder, tool, ctx, mark }
    }

    async fn run(&self, arguments: Value) -> ToolOutcome {
        call(&self.tool, &self.ctx, arguments).await
    }

    async fn line(&self, command: &str) -> ToolOutcome {
        self.run(json!({"command": command})).await
    }

    fn assert_nothing_left(&self) {
        assert_eq!(marked::living(&self.mark), Vec::<String>::new());
    }
}

fn context_in(folder: &Path, processes: Arc<dyn Processes>) -> ToolContext {
    context_over(local::open(folder, WorkspaceCapabilities::local_default(), Some(processes)).unwrap())
}

/// Tells when a text was shown.
#[derive(Default)]
struct Watch {
    deltas: Mutex<Vec<(Instant, String)>>,
    news: Notify,
}

impl Progress for Watch {
    fn delta(&self, text: &str) {
        self.deltas.lock().unwrap().push((Instant::now(), text.to_owned()));
        self.news.notify_one();
    }
}

impl Watch {
    fn text(&self) -> String {
        self.deltas.lock().unwrap().iter().map(|(_, text)| text.as_str()).collect()
    }

    async fn until(&self, text: &str) {
        while !self.text().contains(text) {
            self.news.notified().await;
        }
    }
}

fn timed_out(outcome: &ToolOutcome, timeout_ms: u64) {
    assert_eq!(outcome.error, Some(ToolErrorKind::Timeout { op: "bash".into(), duration_ms: timeout_ms }));
    assert!(!outcome.is_success());
    assert_eq!(outcome.metadata["output"]["timed_out"], true);
    assert_eq!(outcome.metadata["timeout_ms"], timeout_ms);
}

#[tokio::test]
async fn a_success_is_what_was_printed_and_nothing_else() {
    let shell = Shell::new();
    let outcome = shell.line("echo out; echo err >&2").await;
    assert_eq!((outcome.output.as_str(), outcome.exit_code, &outcome.error), ("out\nerr\n", 0, &None));
    assert_eq!(outcome.metadata["exit_code"], 0);
    assert_eq!(outcome.metadata["sandboxed"], false);
    let output = &outcome.metadata["output"];
    assert_eq!(output["total_bytes"], 8);
    assert_eq!(output["captured_bytes"], 8);
    assert_eq!(output["stderr"], json!({"total_bytes": 4, "captured_bytes": 4}));
    for flag in ["truncated", "timed_out", "lossy"] {
        assert_eq!(output[flag], false, "{flag}");
    }
    assert_eq!(shell.line("true").await.output, "");
}

#[tokio::test]
async fn a_failure_names_its_code_or_signal_and_has_no_kind() {
    let shell = Shell::new();
    let failed = shell.line("printf partial; exit 3").await;
    assert_eq!((failed.output.as_str(), failed.exit_code, &failed.error), ("partial\n[exit code 3]\n", 3, &None));
    assert_eq!(failed.metadata["exit_code"], 3);
    let killed = shell.line("kill -SEGV $$").await;
    assert_eq!((killed.output.as_str(), killed.exit_code, &killed.error), ("[ended by SIGSEGV]\n", 139, &None));
    assert_eq!((&killed.metadata["signal"], &killed.metadata["exit_code"]), (&json!("SIGSEGV"), &Value::Null));
}

// Case C001: what stays in the background does not hold the call.
#[tokio::test]
async fn a_background_child_is_stopped_and_told_of() {
    for line in ["sleep 600 & echo hi", "sleep 600 >/dev/null & echo hi"] {
        let (shell, started_at) = (Shell::new(), Instant::now());
        let outcome = shell.line(line).await;
        assert!(outcome.is_success() && outcome.output.starts_with("hi\n["), "{line}: {}", outcome.output);
        assert_eq!(outcome.metadata["output_held"], true, "{line}");
        assert_eq!(outcome.metadata["background_killed"], true, "{line}");
        assert!(started_at.elapsed() < Duration::from_secs(5), "{line}: {:?}", started_at.elapsed());
        shell.assert_nothing_left();
    }
}

// Cases C003, C008 and R09: the whole group ends, and what was printed before is there.
#[tokio::test]
async fn a_time_out_ends_the_group_and_keeps_what_was_printed() {
    let (shell, started_at) = (Shell::new(), Instant::now());
    let command = "echo MARK-1; echo MARK-2 >&2; sh -c 'sleep 600 | cat'; :";
    let outcome = shell.run(json!({"command": command, "timeout": 1})).await;
    timed_out(&outcome, 1000);
    assert_eq!(outcome.metadata["timeout_clamped"], true);
    assert_eq!(outcome.metadata["requested_timeout_ms"], 1);
    assert!(outcome.output.starts_with("MARK-1\nMARK-2\n["), "{}", outcome.output);
    assert!(outcome.output.contains("1000 ms"), "{}", outcome.output);
    assert!(started_at.elapsed() < Duration::from_secs(6), "{:?}", started_at.elapsed());
    shell.assert_nothing_left();
}

// Case C004: TERM is not enough for everyone.
#[tokio::test]
async fn a_command_that_ignores_term_ends_all_the_same() {
    let (shell, started_at) = (Shell::new(), Instant::now());
    let command = "trap '' TERM INT HUP; while :; do sleep 1; done";
    let outcome = shell.run(json!({"command": command, "timeout": 1000})).await;
    timed_out(&outcome, 1000);
    assert_eq!(outcome.metadata["signal"], "SIGKILL");
    assert!(started_at.elapsed() < Duration::from_secs(8), "{:?}", started_at.elapsed());
    shell.assert_nothing_left();
}

#[tokio::test]
async fn an_exit_0_at_the_time_out_is_no_success() {
    let outcome = Shell::new().run(json!({"command": "trap 'exit 0' TERM; sleep 600 & wait", "timeout": 1000})).await;
    timed_out(&outcome, 1000);
    assert_eq!(outcome.metadata["exit_code"], 0);
}

// Cases C006 and R08: nobody types.
#[tokio::test]
async fn standard_input_is_empty_or_what_was_given() {
    let shell = Shell::new();
    assert_eq!(shell.line("cat; read x; echo got:$x; echo done").await.output, "got:\ndone\n");
    let given = shell.run(json!({"command": "cat; echo done", "stdin": "é line\n"})).await;
    assert_eq!(given.output, "é line\ndone\n");
    assert_eq!(shell.run(json!({"command": "true", "stdin": "x".repeat(1 << 20)})).await.exit_code, 0);
    let long = shell.run(json!({"command": "true", "stdin": "x".repeat((1 << 20) + 1)})).await;
    assert!(matches!(long.error, Some(ToolErrorKind::InvalidArgument { .. })));
}

// Case C010: a folder that is gone. No folder is remembered between calls, so the next call is in the workspace;
// one that is named and not there is an error, for a command may be meant for that folder alone.
#[tokio::test]
async fn a_folder_that_is_gone_is_an_error_only_for_calls_that_name_it() {
    let shell = Shell::new();
    assert!(shell.line("mkdir -p d/e && cd d/e && rmdir ../e").await.is_success());
    assert_eq!(shell.line("echo ok").await.output, "ok\n");
    let inside = shell.run(json!({"command": "touch made", "cwd": "d/e/f"})).await;
    assert!(matches!(inside.error, Some(ToolErrorKind::NotFound { .. })), "{inside:?}");
    assert!(!shell.folder.path().join("made").exists() && !shell.folder.path().join("d/made").exists());
    std::fs::remove_dir_all(shell.folder.path()).unwrap();
    let outside = shell.line("echo ok").await;
    assert!(!outside.is_success() && outside.error.is_some(), "{outside:?}");
}

// Case C011: nothing stays for the next call.
#[tokio::test]
async fn calls_do_not_share_a_folder_or_variables() {
    let shell = Shell::new();
    let first = shell.line("mkdir sub; pwd").await;
    assert!(shell.line("cd sub && export LEFT=1").await.is_success());
    assert_eq!(shell.run(json!({"command": "pwd", "cwd": "sub"})).await.output, first.output.replace('\n', "/sub\n"));
    assert_eq!(shell.line("pwd").await.output, first.output);
    assert_eq!(shell.line("echo -${LEFT-unset}-").await.output, "-unset-\n");
    assert_eq!(shell.run(json!({"command": "echo $A", "env": {"A": "it's"}})).await.output, "it's\n");
}

// Case C012: the host's keys do not reach a command.
#[tokio::test]
async fn keys_of_the_host_are_not_in_the_environment() {
    let shell = Shell::new();
    let host = [("PATH", "/usr/bin:/bin"), ("HOME", "/h"), ("FAKE_API_KEY", "zz9"), ("LC_SECRET", "zz9"), ("X", "zz9")];
    let tool = BashTool::new(allowed_environment(host.map(|(name, value)| (name.to_owned(), value.to_owned()))));
    let counted = call(&tool, &shell.ctx, json!({"command": "printenv | grep -c zz9"})).await;
    assert_eq!(counted.output, "0\n[exit code 1]\n");
    let raw = call(&tool, &shell.ctx, json!({"command": "cat /proc/self/environ | tr '\\0' '\\n'"})).await;
    assert!(raw.output.contains("HOME=/h\n") && !raw.output.contains("zz9"), "{}", raw.output);
    assert!(raw.output.contains("GIT_TERMINAL_PROMPT=0\n") && raw.output.contains("PAGER=cat\n"), "{}", raw.output);
}

// Case C015: bytes that are no text.
#[tokio::test]
async fn binary_output_is_flagged_and_keeps_its_code() {
    let shell = Shell::new();
    let outcome = shell.line("printf 'a\\xff\\x00b\\n'; head -c 400 /dev/urandom; exit 5").await;
    assert!(outcome.output.starts_with("a\u{fffd}␀b\n"), "{:?}", outcome.output);
    assert_eq!(outcome.exit_code, 5);
    assert_eq!(outcome.metadata["output"]["lossy"], true);
    assert_eq!(outcome.metadata["output"]["total_bytes"], 405);
}

// Cases C016 and C018: what is left out is said once in the text and in numbers beside it.
#[tokio::test]
async fn long_output_is_cut_once_and_counted() {
    let shell = Shell::new();
    let line = shell.line("head -c 200000 /dev/zero | tr '\\0' x").await;
    assert!(line.output.len() < 10_000 && line.output.contains("200000 bytes of this line"), "{}", line.output.len());
    assert_eq!(line.metadata["output"]["clamped_lines"], 1);
    let lines = shell.line("seq 1 700000").await;
    let output = &lines.metadata["output"];
    let total = (1..=700_000).map(|n: u32| n.to_string().len() as u64 + 1).sum::<u64>();
    assert_eq!(output["total_bytes"], total);
    let sum = output["captured_bytes"].as_u64().unwrap() + output["omitted_bytes"].as_u64().unwrap();
    assert_eq!((sum, &output["truncated"]), (total, &json!(true)));
    assert_eq!(lines.output.matches("left out").count(), 1);
    assert!(lines.output.starts_with("1\n2\n") && lines.output.ends_with("\n700000\n"));
}

// Case C020: redraws and colours.
#[tokio::test]
async fn the_model_sees_what_stands_on_the_screen_at_last() {
    let line = r"printf '10%%\r50%%\r100%%\n\033[31mred\033[0m\033]0;t\007\n'";
    assert_eq!(Shell::new().line(line).await.output, "100%\nred\n");
}

// Case C182: a dropped call leaves nothing.
#[tokio::test]
async fn dropping_the_call_leaves_nothing() {
    let (shell, watch) = (Shell::new(), Arc::new(Watch::default()));
    let mark = shell.mark.clone();
    let ctx = ToolContext { progress: watch.clone(), ..shell.ctx.clone() };
    let task =
        tokio::spawn(
            async move { call(&shell.tool, &ctx, json!({"command": "sh -c 'sleep 88 & echo up; wait'"})).await },
        );
    watch.until("up").await;
    assert!(marked::appears(&mark, "sleep 88"));
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(marked::outliving(&mark), Vec::<String>::new());
}

#[tokio::test]
async fn a_cancelled_call_keeps_what_was_captured() {
    let (shell, watch) = (Shell::new(), Arc::new(Watch::default()));
    let ctx = ToolContext { progress: watch.clone(), ..shell.ctx.clone() };
    let cancel = async {
        watch.until("half").await;
        ctx.cancel.cancel(CancelReason::SessionClosed);
    };
    let (outcome, ()) = tokio::join!(call(&shell.tool, &ctx, json!({"command": "echo half; sleep 600"})), cancel);
    let kind = ToolErrorKind::Cancelled { op: "bash".into(), reason: Some(CancelReason::SessionClosed) };
    assert_eq!(outcome.error, Some(kind));
    assert!(outcome.output.starts_with("half\n["), "{}", outcome.output);
    assert_eq!(outcome.metadata["output"]["timed_out"], false);
    shell.assert_nothing_left();
    // The signal stays given: the next call does not start anything.
    let next = call(&shell.tool, &ctx, json!({"command": "touch started"})).await;
    assert!(matches!(next.error, Some(ToolErrorKind::Cancelled { .. })));
    assert!(!shell.folder.path().join("started").exists());
}

#[tokio::test]
async fn output_is_shown_while_the_command_runs() {
    let (shell, watch) = (Shell::new(), Arc::new(Watch::default()));
    let ctx = ToolContext { progress: watch.clone(), ..shell.ctx.clone() };
    let command = "mkfifo go; echo first; read -r line < go; for n in $(seq 3000); do echo $n; done; echo $line";
    let answer = async {
        watch.until("first").await;
        tokio::task::spawn_blocking({
            let go = shell.folder.path().join("go");
            move || std::fs::write(go, "answer\n").unwrap()
        })
        .await
        .unwrap();
    };
    let (outcome, ()) = tokio::join!(call(&shell.tool, &ctx, json!({"command": command})), answer);
    assert!(outcome.output.ends_with("3000\nanswer\n"), "{}", outcome.output);
    assert_eq!(watch.text(), outcome.output);
    let deltas = watch.deltas.lock().unwrap();
    // All but the last, which comes with the end, keep their distance.
    for pair in deltas[..deltas.len() - 1].windows(2) {
        assert!(pair[1].0 - pair[0].0 >= Duration::from_millis(45), "{pair:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_carried_out_is_refused_before_it_starts() {
    let shell = Shell::new();
    std::fs::write(shell.folder.path().join("file"), "").unwrap();
    for arguments in [
        json!({"command": "  "}),
        json!({"command": "echo a\0b"}),
        json!({"command": format!("echo {}", "x".repeat(COMMAND_BYTES_MAX))}),
        json!({"command": "pwd", "cwd": "../.."}),
        json!({"command": "pwd", "cwd": "/etc"}),
        json!({"command": "pwd", "cwd": "file"}),
        json!({"command": "pwd", "env": {"LD_PRELOAD": "x"}}),
        json!({"command": "pwd", "env": {"PATH": "."}}),
    ] {
        let outcome = shell.run(arguments.clone()).await;
        assert!(matches!(outcome.error, Some(ToolErrorKind::InvalidArgument { .. })), "{arguments:.60}");
    }
    // The longest command that is taken does run.
    let longest = format!("echo {}", "x".repeat(COMMAND_BYTES_MAX - 5));
    assert_eq!(shell.line(&longest).await.metadata["output"]["total_bytes"], COMMAND_BYTES_MAX - 4);
    // A command that starts with a dash is a command and not an option.
    assert_eq!(shell.line("-c 2>/dev/null || echo ran").await.output, "ran\n");
}

#[tokio::test]
async fn a_missing_runner_and_a_missing_shell_are_told_apart_from_failures() {
    let folder = tempfile::tempdir().unwrap();
    let none = context_over(local::open(folder.path(), WorkspaceCapabilities::local_default(), None).unwrap());
    let outcome = call(&Shell::new().tool, &none, json!({"command": "true"})).await;
    assert!(matches!(outcome.error, Some(ToolErrorKind::Unsupported { .. })));
    let tool = BashTool::new(BTreeMap::from([("PATH".into(), "/nowhere".into())]));
    let outcome = call(&tool, &Shell::new().ctx, json!({"command": "true"})).await;
    assert!(matches!(outcome.error, Some(ToolErrorKind::Unsupported { .. })));
    assert!(outcome.output.contains("PATH"), "{}", outcome.output);
}

#[test]
fn rules_see_the_command_and_the_variables_that_change_it() {
    let tool = BashTool::new(BTreeMap::new());
    let subject = |arguments| tool.subject(&arguments);
    assert_eq!(subject(json!({"command": "git status"})), Subject::Command("git status".into()));
    let added = json!({"command": "git log", "env": {"GIT_PAGER": "rm -rf ."}});
    assert_eq!(subject(added), Subject::Command("export GIT_PAGER='rm -rf .'\ngit log".into()));
}

/// A runner that never reports an end, whatever it is told.
#[derive(Default)]
struct Deaf {
    dropped: Arc<AtomicBool>,
}

struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Processes for Deaf {
    fn run(
        &self,
        _: CommandSpec,
        sink: Arc<dyn OutputSink>,
        _: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        let running = Running(self.dropped.clone());
        Box::pin(async move {
            sink.push(crate::effects::processes::Stream::Out, b"before\n");
            std::future::pending::<()>().await;
            drop(running);
            unreachable!("nobody wakes this up")
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_never_answers_is_dropped() {
    let deaf = Deaf::default();
    let dropped = deaf.dropped.clone();
    let shell = Shell::over(Arc::new(deaf));
    for (timeout_ms, applied_ms) in [(0, 1000), (5000, 5000), (u64::MAX, 3_600_000)] {
        dropped.store(false, Ordering::SeqCst);
        let started_at = tokio::time::Instant::now();
        let outcome = shell.run(json!({"command": "x", "timeout": timeout_ms})).await;
        timed_out(&outcome, applied_ms);
        assert!(outcome.output.starts_with("before\n["), "{}", outcome.output);
        assert!(started_at.elapsed() <= Duration::from_millis(applied_ms) + super::GRACE + super::SETTLE * 2);
        assert!(dropped.load(Ordering::SeqCst));
    }
}

/// Runs one test of this file in a process of its own, where nothing else opens descriptors or starts children;
/// returns whether this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os("TOOLWARDEN_TEST_ALONE").is_some() {
        return true;
    }
    let name = format!("builtin::bash::tests::{test}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env("TOOLWARDEN_TEST_ALONE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    false
}

#[test]
fn two_hundred_commands_leave_no_zombie_and_no_descriptor() {
    if !is_alone("two_hundred_commands_leave_no_zombie_and_no_descriptor") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let shell = Shell::new();
        shell.line("true").await;
        let before = marked::descriptors();
        for _ in 0..25 {
            let calls = (0..8).map(|n| shell.run(json!({"command": format!("echo {n}; exit {n}"), "stdin": "x"})));
            for (n, outcome) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
                assert_eq!(outcome.exit_code, n as i32);
                assert!(outcome.output.starts_with(&format!("{n}\n")), "{}", outcome.output);
            }
        }
        assert_eq!(marked::zombies(), Vec::<String>::new());
        assert_eq!(marked::descriptors(), before);
        // Neither do calls that are dropped: their shells are reaped by the runtime, as soon as it runs again.
        for _ in 0..8 {
            let watch = Arc::new(Watch::default());
            let ctx = ToolContext { progress: watch.clone(), ..shell.ctx.clone() };
            let running = call(&shell.tool, &ctx, json!({"command": "echo up; sleep 600"}));
            tokio::select! { biased;
                () = watch.until("up") => {}
                _ = running => panic!("it ended by itself"),
            }
        }
        assert_eq!(marked::outliving(&shell.mark), Vec::<String>::new());
        let started_at = Instant::now();
        while !marked::zombies().is_empty() && started_at.elapsed() < Duration::from_secs(10) {
            shell.line("true").await;
        }
        assert_eq!(marked::zombies(), Vec::<String>::new());
        assert!(marked::descriptors() <= before + 2, "the runtime's own signal pipe: {}", marked::descriptors());
    });
}

#[test]
fn memory_does_not_grow_with_the_output() {
    if !is_alone("memory_does_not_grow_with_the_output") {
        return;
    }
    let peak_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let shell = Shell::new();
        shell.line("yes | head -c 1000000").await;
        let before = peak_kib();
        let outcome = shell.line("yes | head -c 50000000").await;
        assert_eq!(outcome.metadata["output"]["total_bytes"], 50_000_000);
        assert!(peak_kib() - before < 4096, "{} KiB more", peak_kib() - before);
    });
}
