//! A record of everything that the journal stored, in its order, and what must be true of any such record.
//!
//! It is a sink, so it sees an event before anybody else does; a trap runs inside of it, at that very moment.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::watch;
use toolwarden::event::{Event, EventLine};
use toolwarden::settlement::proof::verify;
use toolwarden_actors::journal::{Entry, JournalSink};

use super::WAIT_MAX;

type Trap = Box<dyn FnMut(&Value) -> bool + Send>;

/// Clones share one record.
#[derive(Clone)]
pub(crate) struct Record {
    shared: Arc<Shared>,
}

struct Shared {
    lines: Mutex<Vec<Value>>,
    length: watch::Sender<usize>,
    trap: Mutex<Option<Trap>>,
}

impl Record {
    pub(crate) fn new() -> Self {
        let shared = Shared { lines: Mutex::default(), length: watch::Sender::new(0), trap: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn sink(&self) -> Box<dyn JournalSink<Event>> {
        Box::new(self.clone())
    }

    /// Runs `act` inside of the journal at each event, until it returns true. The event is stored by then, and no
    /// later one is.
    pub(crate) fn trap(&self, act: impl FnMut(&Value) -> bool + Send + 'static) {
        *self.shared.trap.lock().unwrap() = Some(Box::new(act));
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.shared.lines.lock().unwrap().clone()
    }

    /// The events of this type.
    pub(crate) fn of_type(&self, kind: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["type"] == kind).collect()
    }

    /// The types of the events of one invocation, in their order.
    pub(crate) fn life_of(&self, id: &str) -> Vec<String> {
        let lines = self.lines().into_iter().filter(|line| call_of(line) == Some(id));
        lines.map(|line| line["type"].as_str().unwrap().to_owned()).collect()
    }

    /// The ids of the invocations of a tool, in the order they were proposed.
    pub(crate) fn calls_of(&self, tool: &str) -> Vec<String> {
        let proposed = self.of_type("tool_proposed").into_iter().filter(|line| line["name"] == tool);
        proposed.map(|line| line["id"].as_str().unwrap().to_owned()).collect()
    }

    /// The one event of this type about this invocation.
    pub(crate) fn the(&self, kind: &str, id: &str) -> Value {
        let mut found: Vec<Value> = self.of_type(kind).into_iter().filter(|line| call_of(line) == Some(id)).collect();
        assert_eq!(found.len(), 1, "{kind} of {id}: {found:?}");
        found.remove(0)
    }

    /// The ending of the only invocation of a tool.
    pub(crate) fn end_of(&self, tool: &str) -> Value {
        let calls = self.calls_of(tool);
        assert_eq!(calls.len(), 1, "{tool}: {calls:?}");
        self.the("tool_end", &calls[0])
    }

    /// Waits for the first event of this type that fits.
    pub(crate) async fn wait(&self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.wait_nth(kind, 1, fits).await
    }

    /// Waits for the `nth` event of this type that fits, counted from 1.
    pub(crate) async fn wait_nth(&self, kind: &str, nth: usize, fits: impl Fn(&Value) -> bool) -> Value {
        let mut length = self.shared.length.subscribe();
        let waits_until = tokio::time::Instant::now() + WAIT_MAX;
        loop {
            let found = self.of_type(kind).into_iter().filter(|line| fits(line)).nth(nth - 1);
            if let Some(found) = found {
                return found;
            }
            let more = tokio::time::timeout_at(waits_until, length.changed()).await;
            assert!(matches!(more, Ok(Ok(()))), "never came: {kind} number {nth}; there are:\n{}", self.shown());
        }
    }

    /// All of it, an event a line, cut to what fits a screen.
    pub(crate) fn shown(&self) -> String {
        let cut = |line: &Value| line.to_string().chars().take(300).collect::<String>();
        self.lines().iter().map(cut).collect::<Vec<_>>().join("\n")
    }

    /// What is true of every record of a runtime at rest: numbers without a gap; one ending for each invocation,
    /// after everything else about it, a parent's after all its children's; one ending for each child run, between
    /// its beginning and the ending of the call that asked for it; one ending for each run.
    pub(crate) fn check(&self) {
        let lines = self.lines();
        for (index, line) in lines.iter().enumerate() {
            assert_eq!(line["sequence"], index as u64 + 1, "a gap before {line}");
        }
        let at = |line: &Value| line["sequence"].as_u64().unwrap();
        let mut proposed = BTreeMap::new();
        let mut ended = BTreeMap::new();
        for line in &lines {
            let Some(id) = call_of(line) else { continue };
            let id = id.to_owned();
            assert!(!ended.contains_key(&id), "after the ending of {id}: {line}\n{}", self.shown());
            match line["type"].as_str().unwrap() {
                "tool_proposed" => assert!(proposed.insert(id, line.clone()).is_none(), "proposed twice: {line}"),
                "tool_end" => {
                    assert!(proposed.contains_key(&id), "ends without a beginning: {line}");
                    check_evidence(line);
                    ended.insert(id, at(line));
                }
                _ => assert!(proposed.contains_key(&id), "before its proposal: {line}"),
            }
        }
        for (id, line) in &proposed {
            let end = ended.get(id).unwrap_or_else(|| panic!("{id} has no ending\n{}", self.shown()));
            if let Some(parent) = line["parent"].as_str() {
                assert!(ended[parent] > *end, "{parent} ended before {id}\n{}", self.shown());
            }
        }
        self.check_child_runs(&lines, &ended);
        self.check_runs(&lines);
    }

    fn check_child_runs(&self, lines: &[Value], ended: &BTreeMap<String, u64>) {
        let mut open: BTreeMap<String, Option<String>> = BTreeMap::new();
        let mut owners: BTreeMap<&str, u64> = BTreeMap::new();
        for line in lines {
            if line["type"] == "session_closed" {
                let left: Vec<_> = open.iter().filter(|(_, owner)| owner.is_none()).collect();
                let own = left.iter().any(|(task, _)| parent_of(lines, task) == line["session_id"]);
                assert!(!own, "a task in the background outlives its session: {left:?}\n{}", self.shown());
            }
            if let Some(owner_end) = line["session_id"].as_str().and_then(|session| owners.get(session)) {
                let at = line["sequence"].as_u64().unwrap();
                assert!(*owner_end > at, "the owning call ended before {line}\n{}", self.shown());
            }
            let task = || line["task_id"].as_str().unwrap().to_owned();
            match line["type"].as_str().unwrap() {
                "subagent_start" => {
                    let owner = line["parent_invocation"].as_str().unwrap().to_owned();
                    // One in the background goes on after the call, and ends with its session.
                    let owner = (line["background"] != true).then_some(owner);
                    if let Some(owner) = &owner {
                        owners.insert(line["session_id"].as_str().unwrap(), ended[owner]);
                    }
                    assert!(open.insert(task(), owner).is_none(), "began twice: {line}");
                }
                "subagent_end" => {
                    let owner = open.remove(&task()).unwrap_or_else(|| panic!("ends twice: {line}"));
                    if let Some(owner) = owner {
                        assert!(ended[&owner] > line["sequence"].as_u64().unwrap(), "{owner} ended before {line}");
                    }
                }
                _ => {}
            }
        }
        assert!(open.is_empty(), "child runs without an ending: {open:?}\n{}", self.shown());
    }

    fn check_runs(&self, lines: &[Value]) {
        let mut open = BTreeMap::new();
        for line in lines {
            let Some(run) = line["run_id"].as_str() else { continue };
            match line["type"].as_str().unwrap() {
                "agent_start" => assert!(open.insert(run.to_owned(), 0).is_none(), "began twice: {line}"),
                "agent_end" | "error" => *open.entry(run.to_owned()).or_insert(0) += 1,
                _ => {}
            }
        }
        assert!(open.values().all(|ends| *ends == 1), "endings of runs: {open:?}\n{}", self.shown());
    }
}

/// The session that a child run belongs to.
fn parent_of(lines: &[Value], task: &str) -> Value {
    let start = lines.iter().find(|line| line["type"] == "subagent_start" && line["task_id"] == task);
    start.map(|line| line["parent_session_id"].clone()).unwrap_or_default()
}

/// The evidence that every result carries, right to the byte; of one that refers to an artifact, what can be told
/// without it.
pub(crate) fn check_evidence(end: &Value) {
    let evidence = &end["metadata"]["a3s_tool_result_evidence"];
    assert_eq!(evidence["schema"], "a3s.code.tool-result-evidence.v1", "{end}");
    let output = end["output"].as_str().unwrap();
    assert_eq!(evidence["projected_bytes"], output.len(), "{end}");
    if evidence["content_ref"].as_str().is_some_and(|of| of.starts_with("inline:")) {
        let proof = verify(&serde_json::from_value(end.clone()).unwrap(), None, None).unwrap();
        assert!(proof.holds(), "{proof:?}: {end}");
    } else if end["metadata"]["artifact"]["content_reference"].is_null() {
        // A host that keeps everything keeps what lost nothing too.
        assert_ne!(evidence["loss_mode"], "none", "{end}");
    }
}

/// The invocation that an event is about.
fn call_of(line: &Value) -> Option<&str> {
    let kind = line["type"].as_str()?;
    // These are about calls that a model still writes.
    if matches!(kind, "tool_start" | "tool_input_delta") {
        return None;
    }
    let named = ["tool_", "permission_", "confirmation_"].iter().any(|start| kind.starts_with(start));
    named.then(|| line["tool_id"].as_str().or_else(|| line["id"].as_str()))?
}

impl JournalSink<Event> for Record {
    fn append(&mut self, entry: &Entry<Event>) -> io::Result<()> {
        let line = serde_json::to_value(EventLine::from(entry))?;
        let length = {
            let mut lines = self.shared.lines.lock().unwrap();
            lines.push(line.clone());
            lines.len()
        };
        let mut trap = self.shared.trap.lock().unwrap();
        if trap.as_mut().is_some_and(|act| act(&line)) {
            *trap = None;
        }
        self.shared.length.send_replace(length);
        Ok(())
    }
}
