//! Promise: events come in one order without gaps, hold no secret, and no reader and no disk holds up a call.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use toolwarden::command_output::CommandOutput;
use toolwarden::embedding::Runtime;
use toolwarden::event::{Event, EventLine};
use toolwarden::prelude::{EventKind, Reading, Reply};
use toolwarden::scope::Confirming;
use toolwarden_actors::journal::{Entry, JournalSink, READER_LAG_MAX, Reader};
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::{
    CommandSpec, ContainmentLevel, OutputSink, ProcessEnd, ProcessError, ProcessStatus, Processes, Stream,
};
use toolwarden_tools::ids::InvocationId;
use toolwarden_tools::outcome::ToolOutcome;

use crate::support::model::script;
use crate::support::tool::{custom, echo};
use crate::support::world::{World, allowing};

/// What is there already; missed entries and sink failures fail the test.
fn drained(reader: &mut Reader<Event>) -> Vec<Arc<Entry<Event>>> {
    let mut entries = Vec::new();
    while let Some(reading) = reader.try_next() {
        let Reading::Entry(entry) = reading else { panic!("{reading:?}") };
        entries.push(entry);
    }
    entries
}

/// Sessions beside each other share one order; a reader of one session gets that session and its children alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_have_no_gap_across_sessions_beside_each_other() {
    const SESSIONS: usize = 12;
    const CALLS: usize = 8;
    let world = World::new().await;
    let mut everything = world.runtime.events().await.unwrap();
    let task = json!({"agent": "general", "description": "a child", "prompt": "child"});
    let model =
        script(&[json!({"when": "child", "calls": [{"tool": "echo"}]}), json!({"when": "child", "text": "done"})]);
    let work = (0..SESSIONS).map(|_| async {
        let builder = world.session().policy(allowing(&["echo"])).tool(echo("echo").shared());
        let session = builder.model(model.clone()).open().await.unwrap();
        let mut own = session.events().await.unwrap();
        join_all((0..CALLS).map(|n| session.tool("echo", json!({ "n": n })))).await;
        assert!(session.tool("task", task.clone()).await.unwrap().is_success());
        let entries = drained(&mut own);
        assert!(entries.iter().all(|entry| entry.event.root_session == *session.id()));
        let ends = entries.iter().filter(|entry| matches!(entry.event.kind, EventKind::ToolEnd(_))).count();
        // The host's calls, the task, and the child's call.
        assert_eq!(ends, CALLS + 2);
        let sessions: BTreeSet<_> = entries.iter().map(|entry| entry.event.session.clone()).collect();
        assert_eq!(sessions.len(), 2, "its own and its child's");
        session.close().await;
    });
    join_all(work).await;
    let status = world.runtime.journal_status().await.unwrap();
    let entries = drained(&mut everything);
    let sequences: Vec<u64> = entries.iter().map(|entry| entry.sequence).collect();
    assert_eq!(sequences, (1..=status.last_sequence).collect::<Vec<_>>());
    assert!(entries.iter().map(|entry| entry.unix_ms).is_sorted());
    assert_eq!(world.record.lines().len() as u64, status.last_sequence);
    world.at_rest(&[]).await;
    world.end().await;
}

/// A reader that does not read loses the oldest events and is told how many; the calls do not wait for it.
#[tokio::test]
async fn a_slow_reader_holds_up_nobody_and_is_told_what_it_missed() {
    const DELTAS: usize = READER_LAG_MAX + 500;
    let world = World::new().await;
    let chatty = custom("chatty", |ctx, _arguments| async move {
        (0..DELTAS).for_each(|n| ctx.progress.delta(&n.to_string()));
        ToolOutcome::success("said it all")
    });
    let session = world.session().tool(chatty.shared()).open().await.unwrap();
    let (mut slow, mut slow_own) = (world.runtime.events().await.unwrap(), session.events().await.unwrap());
    let before = world.runtime.journal_status().await.unwrap().last_sequence;
    assert!(session.tool("chatty", json!({})).await.unwrap().is_success());
    let status = world.runtime.journal_status().await.unwrap();
    for reader in [&mut slow, &mut slow_own] {
        let Some(Reading::Missed { count }) = reader.next().await else { panic!("not told") };
        let rest: Vec<u64> = drained(reader).iter().map(|entry| entry.sequence).collect();
        assert_eq!(rest, (before + count + 1..=status.last_sequence).collect::<Vec<_>>());
        assert_eq!(rest.len(), READER_LAG_MAX);
    }
    // What they missed is stored all the same.
    assert_eq!(world.record.of_type("tool_output_delta").len(), DELTAS);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A port whose command writes a line every millisecond, and half a character at a time now and then.
struct Chatty;

/// How many lines it writes.
const LINES: usize = 400;

impl Processes for Chatty {
    fn run(
        &self,
        _: CommandSpec,
        sink: Arc<dyn OutputSink>,
        _: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        Box::pin(async move {
            for n in 0..LINES {
                sink.push(Stream::Out, format!("{n}\n").as_bytes());
                if n.is_multiple_of(3) {
                    sink.push(Stream::Err, b"\xe4\xb8");
                    sink.push(Stream::Out, b"\x1b[31mred\x1b[0m\n");
                    sink.push(Stream::Err, b"\xad\n");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(ProcessEnd {
                status: ProcessStatus::Exited { code: 0 },
                stopped: None,
                output_held: false,
                killed_background: false,
                level: ContainmentLevel::Group,
                survivors: Vec::new(),
                left: Vec::new(),
                handed_over: None,
                confinement: None,
            })
        })
    }
}

/// What the host sees of both streams, raw.
#[derive(Default)]
struct Seen(Mutex<[Vec<u8>; 2]>);

impl CommandOutput for Seen {
    fn output(&self, call: &InvocationId, stream: Stream, bytes: &[u8]) {
        assert!(call.as_str().starts_with("host-bash-"), "{call}");
        self.0.lock().unwrap()[stream as usize].extend_from_slice(bytes);
    }
}

/// The output of a command is told every 50 ms and no more often, whole characters, together and by stream; the host
/// that observes it has every byte of each, and the result counts them.
#[tokio::test(start_paused = true)]
async fn output_is_told_at_its_pace_together_and_by_stream() {
    let world = World::with(|builder| builder.processes(Arc::new(Chatty))).await;
    let seen = Arc::new(Seen::default());
    let session = world.session().command_output(Arc::clone(&seen) as _).open().await.unwrap();
    let told_at = Arc::new(Mutex::new(Vec::new()));
    let times = Arc::clone(&told_at);
    world.record.trap(move |line| {
        if line["type"] == "tool_output_delta" {
            times.lock().unwrap().push(tokio::time::Instant::now());
        }
        false
    });
    let result = session.tool("bash", json!({"command": "x"})).await.unwrap();
    let told_at = told_at.lock().unwrap().clone();
    // The last one comes with the end.
    for pair in told_at[..told_at.len() - 1].windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_millis(50), "{:?}", pair[1] - pair[0]);
    }
    assert!((LINES / 60..=LINES / 50 + 2).contains(&told_at.len()), "{} deltas", told_at.len());

    let deltas = world.record.of_type("tool_output_delta");
    let joined: String = deltas.iter().map(|line| line["delta"].as_str().unwrap()).collect();
    assert_eq!(joined, result.output);
    let numbers = |n: usize| if n.is_multiple_of(3) { format!("{n}\nred\n") } else { format!("{n}\n") };
    let (out, err): (String, String) = ((0..LINES).map(numbers).collect(), "中\n".repeat(LINES.div_ceil(3)));
    for (name, expected) in [("stdout", &out), ("stderr", &err)] {
        let part = |line: &Value| match &line["streams"] {
            Value::String(of) if of == name => line["delta"].as_str().unwrap().to_owned(),
            streams => streams[name].as_str().unwrap_or_default().to_owned(),
        };
        assert_eq!(&deltas.iter().map(part).collect::<String>(), expected, "{name}");
    }

    // Raw, with the control sequences, and counted to the byte.
    let [raw_out, raw_err] = std::mem::take(&mut *seen.0.lock().unwrap());
    assert_eq!(String::from_utf8(raw_out.clone()).unwrap(), out.replace("red", "\u{1b}[31mred\u{1b}[0m"));
    assert_eq!(String::from_utf8(raw_err.clone()).unwrap(), err);
    for (name, raw) in [("stdout", raw_out), ("stderr", raw_err)] {
        let count = json!({"total_bytes": raw.len(), "captured_bytes": raw.len()});
        assert_eq!(result.metadata["output"][name], count);
    }
    world.settled(&[&session]).await;
    world.end().await;
}

/// What a reader sees is stored already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_visible_is_stored() {
    let world = World::new().await;
    let session = world.session().tool(echo("echo").shared()).open().await.unwrap();
    let mut reader = world.runtime.events().await.unwrap();
    let calls = tokio::spawn({
        let session = session.clone();
        async move { join_all((0..50).map(|n| session.tool("echo", json!({ "n": n })))).await.len() }
    });
    for _ in 0..200 {
        let Some(Reading::Entry(entry)) = reader.next().await else { panic!("no entry") };
        assert!(world.record.lines().len() as u64 >= entry.sequence);
    }
    assert_eq!(calls.await.unwrap(), 50);
    world.end().await;
}

/// Stores so many entries, then says that the disk is full.
struct Full {
    room: usize,
    tried: Arc<AtomicUsize>,
}

impl JournalSink<Event> for Full {
    fn append(&mut self, _entry: &Entry<Event>) -> io::Result<()> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        if self.room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= 1;
        Ok(())
    }
}

/// A disk that is full is told once to every reader, and the calls go on.
#[tokio::test]
async fn a_sink_that_fails_is_told_and_the_calls_go_on() {
    const ROOM: usize = 3;
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    let builder = Runtime::builder();
    let builder = builder.event_sink(move || Some(Box::new(Full { room: ROOM, tried: Arc::clone(&count) })));
    let runtime = builder.build().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut everything = runtime.events().await.unwrap();
    let session = runtime.session(folder.path()).tool(echo("echo").shared()).open().await.unwrap();
    let mut own = session.events().await.unwrap();
    for n in 0..4 {
        assert!(session.tool("echo", json!({ "n": n })).await.unwrap().is_success());
    }
    for reader in [&mut everything, &mut own] {
        let (mut failures, mut sequences) = (Vec::new(), Vec::new());
        while let Some(reading) = reader.try_next() {
            match reading {
                Reading::Entry(entry) => sequences.push(entry.sequence),
                Reading::SinkFailed(words) => failures.push((words, sequences.last().copied())),
                Reading::Missed { count } => panic!("missed {count}"),
            }
        }
        let [(words, after)] = failures.as_slice() else { panic!("told {} times", failures.len()) };
        assert!(!words.is_empty());
        assert_eq!(*after, Some(ROOM as u64), "told in the place of the first entry that is not stored");
        let first = sequences[0];
        assert_eq!(sequences, (first..first + sequences.len() as u64).collect::<Vec<_>>());
    }
    assert_eq!(tried.load(Ordering::Relaxed), ROOM + 1, "a sink that failed is not tried again");
    let status = runtime.journal_status().await.unwrap();
    assert_eq!((status.open_invocations, status.refused_endings), (0, 0));
    session.close().await;
    runtime.shut_down().await;
    assert_eq!(runtime.live_nodes(), 0);
}

/// A secret that a host, a model, a tool and a person write is in no event, not in a key either.
#[tokio::test]
async fn no_event_holds_a_secret() {
    const SECRET: &str = "zz9-plural-z-alpha";
    let world = World::with(|builder| builder.secrets(vec![SECRET.to_owned()])).await;
    let leaking = custom("leak", |ctx, _arguments| async move {
        ctx.progress.delta(&format!("delta {SECRET}"));
        ToolOutcome::failure(format!("output {SECRET}")).with("fact", format!("fact {SECRET}"))
    });
    let arguments = json!({ "text": SECRET, SECRET: 1 });
    let task = json!({"agent": "general", "description": SECRET, "prompt": format!("child {SECRET}")});
    let session = world
        .session()
        .confirming(Confirming::Park)
        .policy(allowing(&["task"]))
        .tool(leaking.shared())
        .model(script(&[
            json!({"when": "go", "text": SECRET, "calls": [{"tool": "leak", "arguments": arguments}]}),
            json!({"when": "go", "calls": [{"tool": "task", "arguments": task}]}),
            json!({"when": "go", "text": format!("done {SECRET}")}),
            json!({"when": "child", "text": format!("child's {SECRET}")}),
        ]))
        .open()
        .await
        .unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run(&format!("go {SECRET}")).await.unwrap() }
    });
    let question = world.record.wait("confirmation_required", |_| true).await;
    let id = question["tool_id"].as_str().unwrap();
    assert!(session.confirm(id.into(), None, Reply::Reject(Some(format!("no {SECRET}")))).await);
    run.await.unwrap();
    session.tool("leak", arguments).await.unwrap();
    for line in world.record.lines() {
        assert!(!line.to_string().contains(SECRET), "{line}");
    }
    for kind in ["tool_output_delta", "text_delta", "agent_start", "agent_end", "subagent_end", "permission_denied"] {
        let of_kind = world.record.of_type(kind);
        assert!(of_kind.iter().any(|line| line.to_string().contains("[redacted]")), "{kind}: {of_kind:?}");
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Every line, as it is written to a file, is one JSON object in which no key stands twice.
#[tokio::test]
async fn every_line_is_an_object_whose_keys_stand_once() {
    let world = World::new().await;
    let mut reader = world.runtime.events().await.unwrap();
    let task = json!({"agent": "general", "description": "a child", "prompt": "child"});
    let session = world
        .session()
        .policy(allowing(&["task"]))
        .model(script(&[
            json!({"when": "go", "calls": [{"tool": "task", "arguments": task}, {"tool": "nothing"}]}),
            json!({"when": "go", "text": "done"}),
            json!({"when": "child", "text": "answer"}),
        ]))
        .open()
        .await
        .unwrap();
    session.run("go").await.unwrap();
    session.close().await;
    let entries = drained(&mut reader);
    let mut kinds = BTreeSet::new();
    for entry in &entries {
        let line = serde_json::to_string(&EventLine::from(&**entry)).unwrap();
        let value: Value = serde_json::from_str(&line).unwrap();
        // A key that stands twice is lost when it is read: the text would not come out the same again.
        assert_eq!(value.to_string(), line);
        assert_eq!(value["sequence"], entry.sequence);
        kinds.insert(value["type"].as_str().unwrap().to_owned());
    }
    for kind in ["session_opened", "agent_start", "tool_proposed", "subagent_start", "subagent_end", "tool_end"] {
        assert!(kinds.contains(kind), "{kind} is not among {kinds:?}");
    }
    world.end().await;
}

/// A run's stream has its events, then its outcome; the runtime's events end with the runtime.
#[tokio::test]
async fn a_stream_ends_with_its_run_and_events_end_with_the_runtime() {
    let world = World::new().await;
    let mut everything = world.runtime.events().await.unwrap();
    let turns = [json!({"text": "one", "calls": [{"tool": "echo"}]}), json!({"text": "two"})];
    let session = world
        .session()
        .policy(allowing(&["echo"]))
        .tool(echo("echo").shared())
        .model(script(&turns))
        .open()
        .await
        .unwrap();
    let mut stream = session.stream("go").await.unwrap();
    let mut kinds = Vec::new();
    while let Some(reading) = stream.next().await {
        let Reading::Entry(entry) = reading else { panic!("{reading:?}") };
        let line = serde_json::to_value(EventLine::from(&*entry)).unwrap();
        kinds.push(line["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(stream.outcome().await.unwrap().text, "two");
    let expected = [
        "agent_start",
        "turn_start",
        "text_delta",
        "turn_end",
        "tool_proposed",
        "tool_request_bound",
        "tool_execution_start",
        "tool_end",
        "turn_start",
        "text_delta",
        "turn_end",
        "agent_end",
    ];
    assert_eq!(kinds, expected);
    world.end().await;
    let mut last = None;
    while let Some(reading) = everything.next().await {
        let Reading::Entry(entry) = reading else { panic!("{reading:?}") };
        last = Some(entry);
    }
    assert!(matches!(last.unwrap().event.kind, EventKind::SessionClosed));
}
