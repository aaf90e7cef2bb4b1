//! Background processes: they outlive the call that began them, and never the session.

use std::future::Future;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use toolwarden::event::EventLine;
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::prelude::*;
use toolwarden_actors::journal::Reading;
use toolwarden_tools::background::{
    BackgroundOutcome, BackgroundStatus, LISTED_MAX, OUTPUT_BYTES_MAX, RUNNING_MAX, ReadFrom,
};
use toolwarden_tools::effects::processes::{Leftover, ProcessStatus, Stream};

use crate::command::{HOSTILE, Ready};
use crate::matrix::{HOST, runtime};
use crate::trace;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

/// A session whose processes carry a mark.
struct Scene {
    folder: TempDir,
    mark: String,
    runtime: Runtime,
    session: Session,
}

impl Scene {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(
        adjust: impl FnOnce(
            toolwarden::embedding::session_builder::SessionBuilder,
        ) -> toolwarden::embedding::session_builder::SessionBuilder,
    ) -> Self {
        let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
        let runtime = runtime(&mark).await;
        let session = adjust(runtime.session(folder.path())).open().await.unwrap();
        Self { folder, mark, runtime, session }
    }

    async fn bash(&self, arguments: Value) -> Arc<CallResult> {
        self.session.tool("bash", arguments).await.unwrap()
    }

    /// Starts a line in the background and gives its id.
    async fn start(&self, line: &str) -> String {
        let result = self.bash(json!({"command": line, "background": true})).await;
        assert!(result.is_success(), "{}", result.output);
        result.metadata["process"]["id"].as_str().unwrap().to_owned()
    }

    async fn process(&self, arguments: Value) -> Arc<CallResult> {
        self.session.tool("process", arguments).await.unwrap()
    }

    fn status(&self, id: &str) -> BackgroundStatus {
        self.session.processes().into_iter().find(|status| status.id.as_str() == id).unwrap()
    }

    /// Waits until a process has ended.
    async fn ended(&self, id: &str) -> BackgroundStatus {
        until("the end of a background process", || Some(self.status(id)).filter(|status| status.end.is_some())).await
    }

    async fn end(self) {
        self.runtime.shut_down().await;
        assert_eq!(trace::living(&self.mark), []);
    }
}

async fn until<T>(wanted: &str, look: impl Fn() -> Option<T>) -> T {
    let started_at = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started_at.elapsed() < std::time::Duration::from_secs(60), "never came: {wanted}");
        tokio::task::yield_now().await;
    }
}

/// The call returns while it runs, holds no slot and no budget, and neither a cancel of everything nor the cancel of
/// the run that began it ends it.
pub(crate) fn outlives_calls_and_runs() {
    block_on(async {
        let lines = [
            json!({"calls": [{"tool": "bash", "arguments": {"command": "echo up; sleep 600", "background": true}}]}),
            json!({"calls": [{"tool": "bash", "arguments": {"command": "echo >ready; sleep 601"}}]}),
        ];
        let script = lines.map(|line| line.to_string()).join("\n");
        let model = Arc::new(ScriptedModel::load(&script, "in place").unwrap());
        let policy = PermissionPolicy::from_toml("default = 'allow'", "in place").unwrap();
        let scene = Scene::with(|builder| builder.model(model).policy(policy)).await;
        let direct = scene.start("trap '' TERM; setsid sleep 600 & sleep 600").await;
        let ready = scene.folder.path().join("ready");
        let (outcome, ()) = tokio::join!(scene.session.run("go"), async {
            until("the second call", || ready.exists().then_some(())).await;
            assert!(scene.session.cancel(&CancelTarget::Run, &CancelReason::Requested));
        });
        assert!(!outcome.unwrap().status.is_success());
        assert!(!scene.session.cancel(&CancelTarget::Everything, &CancelReason::Requested), "no call is left");
        let running = scene.session.processes();
        assert_eq!(running.iter().map(|status| status.id.as_str()).collect::<Vec<_>>(), [direct.as_str(), "bg-2"]);
        assert!(running.iter().all(|status| status.end.is_none()), "{running:?}");
        // What was cancelled is gone, and the two run on: a shell with two sleeps, and one that became its sleep.
        let seen = trace::living(&scene.mark);
        assert!(seen.iter().all(|(_, line)| !line.contains("601")) && seen.len() >= 4, "{seen:?}");
        for lane in scene.runtime.lanes().iter() {
            assert_eq!(lane.status().await.unwrap().in_use, 0, "lane {}", lane.lane());
        }
        assert_eq!(scene.session.budget().await.unwrap().reserved, Default::default());
        assert_eq!(scene.session.read_process("bg-2", ReadFrom::Cursor(0), 100).unwrap().output.all(), b"up\n");
        scene.end().await;
    });
}

/// A child run is a session of its own: what it left in the background ends with it.
pub(crate) fn ends_with_a_child_run() {
    block_on(async {
        let task = json!({"tasks": [{"agent": "general", "description": "one", "prompt": "child one"}]});
        let bash = json!({"command": "setsid sleep 600 & touch started; sleep 600", "background": true});
        let lines = [
            json!({"when": "go", "calls": [{"tool": "task", "arguments": task}]}),
            json!({"when": "go", "text": "the child has ended"}),
            json!({"when": "child one", "calls": [{"tool": "bash", "arguments": bash}]}),
            json!({"when": "child one", "text": "it runs"}),
        ];
        let script = lines.map(|line| line.to_string()).join("\n");
        let model = Arc::new(ScriptedModel::load(&script, "in place").unwrap());
        let policy = PermissionPolicy::from_toml("default = 'allow'", "in place").unwrap();
        let scene = Scene::with(|builder| builder.model(model).policy(policy)).await;
        assert_eq!(scene.session.run("go").await.unwrap().text, "the child has ended");
        assert!(scene.folder.path().join("started").exists());
        assert_eq!(trace::living(&scene.mark), []);
        assert!(scene.session.processes().is_empty());
        scene.end().await;
    });
}

/// Every hostile command in the background; the session's close leaves nothing, and so does the runtime's shut-down.
pub(crate) fn ends_with_its_session() {
    block_on(async {
        for closes in [true, false] {
            let scene = Scene::new().await;
            let mut ready = Ready::new(scene.folder.path());
            let lines = ready.lines(&scene.mark, "sleep 600; :");
            // As many as a session holds, and then the rest in another one.
            let other = scene.runtime.session(scene.folder.path()).open().await.unwrap();
            for (at, line) in lines.iter().enumerate() {
                let session = if at < RUNNING_MAX { &scene.session } else { &other };
                let result = session.tool("bash", json!({"command": line, "background": true})).await.unwrap();
                assert!(result.metadata["process"]["id"].is_string(), "{}", result.output);
            }
            ready.all(HOSTILE.len()).await;
            assert!(trace::living(&scene.mark).len() > HOSTILE.len());
            if closes {
                scene.session.close().await;
                other.close().await;
            } else {
                scene.runtime.shut_down().await;
            }
            assert_eq!(trace::living(&scene.mark), []);
            // Their ends are told.
            for status in scene.session.processes() {
                let end = status.end.unwrap_or_else(|| panic!("{} has no end", status.line)).how;
                assert!(matches!(end, BackgroundOutcome::Ended(_)), "{}: {end:?}", status.line);
            }
            let after = scene.session.tool("bash", json!({"command": "sleep 600", "background": true})).await;
            assert!(after.is_err() || !after.unwrap().is_success());
            scene.end().await;
        }
        trace::vanishes(trace::zombies).expect("zombies");
    });
}

/// SIGKILL of the host leaves nothing, and SIGTERM, which it answers with a shut-down, neither.
pub(crate) fn ends_with_its_host() {
    block_on(async {
        for signal in [Signal::SIGKILL, Signal::SIGTERM] {
            let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
            let mut ready = Ready::new(folder.path());
            let mut host = Command::new(crate::command::SELF)
                .arg(HOST)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let lines = &ready.lines(&mark, "sleep 600; :")[..RUNNING_MAX];
            let plan = json!({"folder": folder.path(), "mark": mark, "level": "sub_reaper", "lines": lines, "background": true});
            writeln!(host.stdin.take().unwrap(), "{plan}").unwrap();
            ready.all(RUNNING_MAX).await;
            kill(Pid::from_raw(host.id().try_into().unwrap()), signal).unwrap();
            host.wait().unwrap();
            let took = trace::vanishes(|| trace::living(&mark)).expect("left behind");
            println!("  nothing left {took:?} after the host's end by {signal}");
        }
    });
}

/// The model's way and the host's: list, read what is new, read again, stop.
pub(crate) fn is_listed_read_and_stopped() {
    block_on(async {
        let scene = Scene::new().await;
        assert!(scene.process(json!({"action": "list"})).await.output.contains("No background process"));
        let line = "trap '' TERM; echo one; echo two >&2; while [ ! -e go ]; do sleep 0.01; done; printf '中\\n'; sleep 600 & setsid sleep 600";
        let id = scene.start(line).await;
        until("two lines", || (scene.status(&id).unread_bytes == 8).then_some(())).await;
        let first = scene.process(json!({"action": "read", "id": id})).await;
        assert!(
            first.output.starts_with("one\ntwo\n[bg-1 running; 8 bytes printed, 0 unread: trap"),
            "{}",
            first.output
        );
        assert_eq!(first.metadata["page"]["next_cursor"], "8");
        assert_eq!(first.metadata["process"]["output"]["stderr"], json!({"total_bytes": 4, "overwritten_bytes": 0}));
        let nothing = scene.process(json!({"action": "read", "id": id})).await;
        assert!(nothing.output.starts_with("[nothing new]\n"), "{}", nothing.output);
        std::fs::write(scene.folder.path().join("go"), "").unwrap();
        until("the third line", || (scene.status(&id).unread_bytes == 4).then_some(())).await;
        assert!(scene.process(json!({"action": "read", "id": id})).await.output.starts_with("中\n["));
        let again = scene.process(json!({"action": "read", "id": id, "cursor": "4"})).await;
        assert!(again.output.starts_with("two\n中\n["), "{}", again.output);
        // The host has the streams apart.
        let read = scene.session.read_process(&id, ReadFrom::Cursor(0), 1000).unwrap().output;
        assert_eq!((read.of(Stream::Out), read.of(Stream::Err)), ("one\n中\n".as_bytes().to_vec(), b"two\n".to_vec()));
        let listed = scene.process(json!({"action": "list"})).await;
        assert_eq!((&listed.metadata["running"], &listed.metadata["processes"][0]["id"]), (&json!(1), &json!("bg-1")));

        // It ignores TERM, so it is killed after its grace; when the call returns it is gone and reaped.
        let stopped = scene.process(json!({"action": "stop", "id": id})).await;
        assert_eq!(trace::living(&scene.mark), []);
        assert!(stopped.is_success() && stopped.output.starts_with("bg-1 ended:"), "{}", stopped.output);
        assert_eq!(stopped.metadata["process"]["signal"], "SIGKILL");
        assert_eq!(stopped.metadata["process"]["stopped"], json!({"cancel": "requested"}));
        assert_eq!(stopped.metadata["process"]["containment"], json!({"level": "sub_reaper", "survivors": []}));
        // Stopping it again changes nothing, and what it printed can still be read.
        assert!(scene.process(json!({"action": "stop", "id": id})).await.is_success());
        assert!(scene.process(json!({"action": "read", "id": id, "cursor": "0"})).await.output.starts_with("one\n"));
        for wrong in [
            json!({"action": "read", "id": "bg-9"}),
            json!({"action": "stop", "id": "bg-9"}),
            json!({"action": "read"}),
            json!({"action": "stop"}),
            json!({"action": "list", "id": id}),
            json!({"action": "stop", "id": id, "cursor": "1"}),
            json!({"action": "read", "id": id, "cursor": "-1"}),
            json!({"action": "read", "id": id, "max_bytes": 1}),
            json!({"action": "kill", "id": id}),
        ] {
            let refused = scene.process(wrong.clone()).await;
            assert!(!refused.is_success() && refused.error_kind.is_some(), "{wrong}: {}", refused.output);
        }
        // A polite one ends by TERM, by the host's word.
        let id = scene.start("sleep 600").await;
        let status = scene.session.stop_process(&id).await.unwrap();
        let BackgroundOutcome::Ended(end) = status.end.unwrap().how else { panic!("not ended") };
        assert_eq!((end.status, end.stopped), (ProcessStatus::Signalled { signal: 15 }, Some(CancelReason::Requested)));
        assert!(matches!(scene.session.stop_process("bg-9").await, Err(SessionError::Background(_))));
        scene.end().await;
    });
}

/// The ring holds the last bytes of both streams; every byte is held or counted, and no character is cut.
pub(crate) fn counts_what_it_overwrites() {
    block_on(async {
        let scene = Scene::new().await;
        let id = scene.start("for i in {1..3000}; do echo \"$i 中中中中中中中中中中中中中中中中中中中中中中中中中中中中中中\"; echo err >&2; done").await;
        let status = scene.ended(&id).await;
        let written: u64 = (1..=3000_u64).map(|i| i.to_string().len() as u64 + 92).sum();
        let counts = status.output;
        assert_eq!((counts.stdout.total_bytes, counts.stderr.total_bytes), (written, 12_000));
        let held = counts.total_bytes() - counts.overwritten_bytes();
        assert!(held <= OUTPUT_BYTES_MAX as u64 && held + 4 > OUTPUT_BYTES_MAX as u64, "{held}");
        let (mut cursor, mut read, mut text) = (0, [0_u64; 2], Vec::new());
        let mut skipped = 0;
        loop {
            let page = scene.session.read_process(&id, ReadFrom::Cursor(cursor), 1001).unwrap().output;
            skipped += page.skipped_bytes;
            for (stream, piece) in &page.pieces {
                assert!(std::str::from_utf8(piece).is_ok());
                read[*stream as usize] += piece.len() as u64;
                text.extend_from_slice(piece);
            }
            cursor = page.next;
            if !page.more {
                break;
            }
        }
        assert_eq!((skipped, read[0] + read[1]), (counts.overwritten_bytes(), held));
        assert_eq!(read[0] + counts.stdout.overwritten_bytes, written);
        assert_eq!(read[1] + counts.stderr.overwritten_bytes, 12_000);
        assert!(String::from_utf8(text).unwrap().contains("3000 中"));
        let first = scene.process(json!({"action": "read", "id": id, "cursor": "0"})).await;
        let expected = format!("[… {} bytes were overwritten before they were read …]\n", counts.overwritten_bytes());
        assert!(first.output.starts_with(&expected) && first.output.contains("[there is more: read again]"));
        scene.end().await;
    });
}

/// So many run, so many are listed; what ended first is forgotten first.
pub(crate) fn is_bounded() {
    block_on(async {
        let scene = Scene::new().await;
        for _ in 0..RUNNING_MAX {
            scene.start("sleep 600").await;
        }
        let refused = scene.bash(json!({"command": "sleep 600", "background": true})).await;
        assert!(!refused.is_success() && refused.output.contains("stop one of them"), "{}", refused.output);
        assert_eq!(trace::living(&scene.mark).len(), RUNNING_MAX);
        scene.session.stop_process("bg-2").await.unwrap();
        for _ in 0..LISTED_MAX {
            let id = scene.start("true").await;
            scene.ended(&id).await;
        }
        let listed = scene.session.processes();
        assert_eq!(listed.len(), LISTED_MAX);
        let running: Vec<&str> =
            listed.iter().filter(|status| status.end.is_none()).map(|status| status.id.as_str()).collect();
        assert_eq!(running.len(), RUNNING_MAX - 1);
        assert!(listed.iter().all(|status| status.id.as_str() != "bg-2"), "it ended first");
        scene.end().await;
    });
}

/// A start that comes to nothing is told by the call itself.
pub(crate) fn what_fails_at_once_is_told() {
    block_on(async {
        let scene = Scene::new().await;
        let failed = scene.bash(json!({"command": "echo no >&2; exit 3", "background": true})).await;
        assert_eq!((failed.exit_code, failed.is_success()), (3, false));
        assert_eq!(failed.output, "no\n[bg-1 has ended already: exit code 3]\n");
        assert_eq!(failed.metadata["process"]["exit_code"], 3);
        let done = scene.bash(json!({"command": "echo yes", "background": true})).await;
        assert_eq!((done.output.as_str(), done.exit_code), ("yes\n[bg-2 has ended already: exit code 0]\n", 0));
        for wrong in [
            json!({"command": "  ", "background": true}),
            json!({"command": "true", "background": true, "cwd": "absent"}),
            json!({"command": "true", "background": "yes"}),
        ] {
            let refused = scene.bash(wrong.clone()).await;
            assert!(refused.error_kind.is_some(), "{wrong}: {}", refused.output);
        }
        // A time-out holds where one is given.
        let late = scene.bash(json!({"command": "sleep 600", "background": true, "timeout": 1000})).await;
        let id = late.metadata["process"]["id"].as_str().unwrap();
        let BackgroundOutcome::Ended(end) = scene.ended(id).await.end.unwrap().how else { panic!("not ended") };
        assert_eq!(end.stopped, Some(CancelReason::Deadline { timeout_ms: 1000 }));
        scene.end().await;
    });
}

/// What a shell leaves running is stopped, or goes on as a background process, as the host said; the result lists it.
pub(crate) fn what_a_shell_leaves() {
    block_on(async {
        let line = "trap '' TERM; setsid sleep 600 & sleep 601 >/dev/null 2>&1 & echo hi";
        let names = |left: &Value| -> Vec<String> {
            let processes = left["processes"].as_array().unwrap().iter();
            let mut names: Vec<String> =
                processes.map(|process| process["command"].as_str().unwrap().to_owned()).collect();
            names.sort();
            names
        };
        let scene = Scene::new().await;
        let stopped = scene.bash(json!({"command": line})).await;
        assert!(stopped.is_success() && stopped.output.starts_with("hi\n[what still ran"), "{}", stopped.output);
        assert_eq!(trace::living(&scene.mark), []);
        let left = &stopped.metadata["left"];
        assert_eq!((&left["became"], &left["id"]), (&json!("stopped"), &Value::Null));
        assert_eq!(names(left), ["sleep 600", "sleep 601"]);
        assert!(scene.session.processes().is_empty());
        scene.end().await;

        let scene = Scene::with(|builder| builder.leftover(Leftover::Keep)).await;
        let kept = scene
            .bash(json!({"command": format!("{line}; (while [ ! -e go ]; do sleep 0.01; done; echo late) &")}))
            .await;
        assert!(kept.is_success() && kept.output.starts_with("hi\n[what still ran"), "{}", kept.output);
        let left = &kept.metadata["left"];
        assert_eq!((&left["became"], &left["id"]), (&json!("handed_over"), &json!("bg-1")));
        assert!(names(left).contains(&"sleep 600".to_owned()), "{left}");
        assert_eq!((&kept.metadata["exit_code"], &kept.metadata["background_killed"]), (&json!(0), &json!(false)));
        // What the call has shown is not shown again; what comes later is.
        std::fs::write(scene.folder.path().join("go"), "").unwrap();
        until("the late line", || (scene.status("bg-1").output.total_bytes() == 5).then_some(())).await;
        assert_eq!(scene.session.read_process("bg-1", ReadFrom::New, 100).unwrap().output.all(), b"late\n");
        // Once more than a session holds: then it is stopped.
        for _ in 1..RUNNING_MAX {
            scene.start("sleep 600").await;
        }
        let full = scene.bash(json!({"command": "sleep 602 & echo hi"})).await;
        assert_eq!(full.metadata["left"]["became"], "stopped", "{}", full.output);
        assert!(trace::living(&scene.mark).iter().all(|(_, line)| line != "sleep 602"));
        let status = scene.session.stop_process("bg-1").await.unwrap();
        assert!(matches!(status.end.unwrap().how, BackgroundOutcome::Ended(end) if end.survivors.is_empty()));
        assert!(trace::living(&scene.mark).iter().all(|(_, line)| line != "sleep 601"));
        // A cancel, a time-out and git keep nothing.
        let late = scene.bash(json!({"command": "sleep 603 & sleep 604", "timeout": 1000})).await;
        assert!(matches!(late.error_kind, Some(ToolErrorKind::Timeout { .. })));
        assert!(trace::living(&scene.mark).iter().all(|(_, line)| line != "sleep 603"));
        scene.end().await;
    });
}

/// Of each process that was started, one event tells the end, whichever end it is, and before that of its session.
pub(crate) fn the_end_is_told_once() {
    block_on(async {
        for killed in [false, true] {
            let scene = Scene::new().await;
            let mut events = scene.runtime.events().await.unwrap();
            let failed = scene.bash(json!({"command": "echo no >&2; exit 3", "background": true})).await;
            assert_eq!(failed.metadata["process"]["id"], "bg-1");
            let shot = scene.start("sleep 0.2; kill -9 $$").await;
            let stopped = scene.start("API_KEY=sk-ant-api03-0123456789abcdefghij0123456789abcdefghij sleep 600").await;
            let timed = scene.bash(json!({"command": "sleep 600", "background": true, "timeout": 1000})).await;
            scene.session.stop_process(&stopped).await.unwrap();
            scene.session.stop_process(&stopped).await.unwrap();
            scene.ended(&shot).await;
            scene.ended(timed.metadata["process"]["id"].as_str().unwrap()).await;
            scene.start("trap '' TERM; setsid sleep 600 & sleep 600").await;
            match killed {
                true => scene.runtime.kill().await,
                false => scene.session.close().await,
            }
            let mark = scene.mark.clone();
            scene.runtime.shut_down().await;
            // A kill lets go and does not wait for what that kills.
            trace::vanishes(|| trace::living(&mark)).expect("left behind");

            let mut ends = Vec::new();
            let mut closed_at = None;
            while let Some(reading) = events.try_next() {
                let Reading::Entry(entry) = reading else { panic!("{reading:?}") };
                let line = serde_json::to_value(EventLine::from(entry.as_ref())).unwrap();
                match line["type"].as_str().unwrap() {
                    "background_end" => ends.push(line),
                    "session_closed" => closed_at = line["sequence"].as_u64(),
                    _ => {}
                }
            }
            let ids: Vec<&str> = ends.iter().map(|end| end["id"].as_str().unwrap()).collect();
            let mut sorted = ids.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, ["bg-1", "bg-2", "bg-3", "bg-4", "bg-5"], "{killed}: each once");
            assert!(ends.iter().all(|end| end["sequence"].as_u64() < closed_at), "{killed}: {closed_at:?} {ends:?}");
            let end = |id: &str| ends.iter().find(|end| end["id"] == id).unwrap();
            let first = end("bg-1");
            assert_eq!(
                (&first["exit_code"], &first["signal"], &first["stopped"]),
                (&json!(3), &Value::Null, &Value::Null)
            );
            assert_eq!(first["tool_id"], failed.metadata["process"]["tool_id"]);
            assert_eq!(first["printed"]["stderr"], json!({"total_bytes": 3, "overwritten_bytes": 0}));
            assert_eq!((&end("bg-2")["signal"], &end("bg-2")["exit_code"]), (&json!(9), &Value::Null));
            let third = end("bg-3");
            assert_eq!(third["stopped"], json!({"cancel": "requested"}));
            assert!(!third["command"].as_str().unwrap().contains("sk-ant"), "{third}");
            assert_eq!(end("bg-4")["stopped"], json!({"cancel": "deadline", "timeout_ms": 1000}));
            let last = end("bg-5");
            assert!(last["ended_at_ms"].as_u64() >= last["started_at_ms"].as_u64());
            match killed {
                true => assert!(last["failure"].is_string() || !last["stopped"].is_null(), "{last}"),
                false => assert_eq!(
                    (&last["stopped"], &last["survivors"]),
                    (&json!({"cancel": "session_closed"}), &json!([]))
                ),
            }
        }
    });
}

/// It takes the whole route: rules see the command line, and reading and stopping have rules of their own.
pub(crate) fn is_governed() {
    block_on(async {
        let policy =
            "deny = ['bash(nc *)', 'process(stop *)']\nallow = ['bash(sleep *)', 'process(read *)']\ndefault = 'deny'";
        let policy = PermissionPolicy::from_toml(policy, "in place").unwrap();
        let scene = Scene::with(|builder| builder.policy(policy)).await;
        let governed = async |tool: &str, arguments: Value| scene.session.governed_tool(tool, arguments).await.unwrap();
        let denied = governed("bash", json!({"command": "nc -l 1", "background": true})).await;
        assert_eq!(denied.metadata["refused"]["stage"], "permission");
        let allowed = governed("bash", json!({"command": "sleep 600", "background": true})).await;
        assert!(allowed.is_success(), "{}", allowed.output);
        assert!(governed("process", json!({"action": "read", "id": "bg-1"})).await.is_success());
        for action in [json!({"action": "stop", "id": "bg-1"}), json!({"action": "list"})] {
            assert_eq!(governed("process", action).await.metadata["refused"]["stage"], "permission");
        }
        assert!(scene.status("bg-1").end.is_none());
        scene.end().await;
    });
}
