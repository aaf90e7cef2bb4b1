//! Recorded sessions: whole ones, damaged ones, and what would have been at every point.

use std::sync::Arc;

use serde_json::json;
use toolwarden::fact_book::StoredFact;
use toolwarden::facts::state::State;
use toolwarden::facts::{Fact, RunBounds};
use toolwarden::models::{CallArguments, ModelCall, ModelTurn, ToolResult};
use toolwarden::run_status::RunStatus;
use toolwarden::snapshot::{SNAPSHOT_VERSION, encode};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::store::memory::MemoryStore;
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::effects::store::{Append, Store};
use toolwarden_tools::ids::SessionId;

use super::{RecordingError, Wish, replay};

/// A run with two calls, of which one changes something.
fn facts() -> Vec<Fact> {
    let call = |id: &str, tool: &str| ModelCall {
        id: id.into(),
        tool: tool.into(),
        arguments: CallArguments::from_value(json!({ "path": id })),
    };
    let bound = |id: &str, idempotent| Fact::CallBound {
        call: id.into(),
        invocation: format!("i-{id}").into(),
        arguments: Digest::of(id.as_bytes()),
        idempotent,
    };
    let started = |id: &str| Fact::CallStarted { invocation: format!("i-{id}").into() };
    let ended = |id: &str, tool: &str| Fact::CallEnded {
        result: ToolResult { call_id: id.into(), tool: tool.into(), output: "ok".into(), success: true },
        source_anchors: Vec::new(),
        artifacts: Vec::new(),
    };
    let turn = |turn: ModelTurn| Fact::ModelTurn { turn: Box::new(turn), withheld: Vec::new() };
    let bounds = RunBounds { rounds_max: 9, malformed_rounds_max: 1, same_call_max: 3 };
    vec![
        Fact::UserMessage { run: "r".into(), text: "go\u{1b}[31m".into(), pictures: Vec::new(), bounds },
        turn(ModelTurn::calling("on it", vec![call("a", "read"), call("b", "write")])),
        bound("a", true),
        bound("b", false),
        started("a"),
        started("b"),
        ended("b", "write"),
        ended("a", "read"),
        turn(ModelTurn::answer("done")),
        Fact::Ending { status: RunStatus::Completed, text: "done".into() },
    ]
}

fn kept(facts: &[Fact], snapshot: Option<&[u8]>) -> Recovered {
    let store = MemoryStore::default();
    let session = SessionId::from("s");
    store.create(&session, None, None).unwrap();
    let appends: Vec<Append> = facts
        .iter()
        .enumerate()
        .map(|(at, fact)| {
            let stored = StoredFact { at_ms: 1_000 + 5 * at as u64, fact };
            let payload = Arc::from(serde_json::to_vec(&stored).unwrap());
            Append { session: session.clone(), sequence: at as u64 + 1, payload }
        })
        .collect();
    assert!(store.append(&appends).into_iter().all(|answer| answer.is_ok()));
    Recovered { snapshot: snapshot.map(<[u8]>::to_vec), ..store.look(&session).unwrap() }
}

fn snapshot(facts: &[Fact]) -> Vec<u8> {
    encode(&"s".into(), &State::fold(facts.to_vec()).unwrap(), 1).unwrap()
}

#[test]
fn a_session_is_replayed_told_and_branched_at_every_point() {
    let wish = Wish { lines: true, branch: true };
    let recording = replay("s", kept(&facts(), Some(&snapshot(&facts()[..5]))), wish).unwrap();
    assert_eq!((recording.facts, recording.snapshot), (10, Some(5)));
    assert_eq!(recording.state, State::fold(facts()).unwrap());
    assert_eq!(recording.kinds["call ended"], 2);
    assert_eq!(recording.lines.len(), 10);
    assert!(recording.lines[1].contains("5 ms  fact 2: the model says \"on it\" and wants read, write"));
    assert!(!recording.lines[0].contains('\u{1b}'));
    let branches = recording.branches.unwrap();
    // A run is under way after each fact but the last.
    assert_eq!((branches.cancelled, branches.died), (9, 9));
    // After `b` has started and before it ends: one point.
    assert_eq!(branches.interrupted_calls, 1);
    assert_eq!((branches.asks, branches.calls), (2, 6));
}

#[test]
fn a_snapshot_alone_is_enough_and_so_is_a_log_behind_it() {
    let all = facts();
    let alone = Recovered { snapshot: Some(snapshot(&all)), ..Recovered::default() };
    let recording = replay("elsewhere", alone, Wish::default()).unwrap();
    assert_eq!((recording.session.as_str(), recording.facts, recording.state.runs), ("s", 0, 1));
}

#[test]
fn what_was_changed_is_told_with_its_place() {
    let all = facts();
    let refused = |found: Recovered| replay("s", found, Wish::default()).unwrap_err();
    assert_eq!(refused(Recovered::default()), RecordingError::Empty);
    // A fact is missing in the middle: the store numbered them anew.
    let mut gap = all.clone();
    gap.remove(2);
    assert!(matches!(refused(kept(&gap, None)), RecordingError::Misplaced(at) if at.position == 4));
    // The snapshot is of another history.
    let other = [Fact::UserMessage { run: "x".into(), text: "else".into(), pictures: Vec::new(), bounds: bounds() }];
    assert_eq!(refused(kept(&all, Some(&snapshot(&other)))), RecordingError::Differs { position: 1 });
    assert_eq!(refused(kept(&all[..2], Some(&snapshot(&all[..5])))), RecordingError::Short { last: 2, position: 5 });
    // A newer version says so.
    let mut newer = snapshot(&all);
    newer[8] = u8::try_from(SNAPSHOT_VERSION + 1).unwrap();
    assert!(refused(kept(&all, Some(&newer))).to_string().contains("use a newer toolwarden"));
    // A changed byte is not whole any more.
    let mut changed = snapshot(&all);
    let last = changed.len() - 2;
    changed[last] ^= 1;
    assert!(refused(kept(&all, Some(&changed))).to_string().contains("does not fit its checksum"));
}

#[test]
fn a_damaged_log_is_told_with_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = log_bytes(folder.path());
    let whole = Recovered::from_bytes(bytes.clone(), None);
    assert_eq!(replay("s", whole, Wish::default()).unwrap().facts, 10);
    for at in [0, bytes.len() / 2] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let refused = replay("s", Recovered::from_bytes(changed, None), Wish::default()).unwrap_err();
        assert!(matches!(refused, RecordingError::Damaged { offset, .. } if offset <= at as u64), "{refused}");
    }
}

fn bounds() -> RunBounds {
    RunBounds { rounds_max: 9, malformed_rounds_max: 1, same_call_max: 3 }
}

#[expect(clippy::disallowed_methods, reason = "tests prepare real files")]
fn log_bytes(folder: &std::path::Path) -> Vec<u8> {
    use toolwarden_tools::effects::store::directory::{DirectoryStore, Durability};
    let store = DirectoryStore::at(folder, Durability::Buffered).unwrap();
    let session = SessionId::from("s");
    store.create(&session, None, None).unwrap();
    for (at, fact) in facts().iter().enumerate() {
        let payload = Arc::from(serde_json::to_vec(&StoredFact { at_ms: 1, fact }).unwrap());
        let append = Append { session: session.clone(), sequence: at as u64 + 1, payload };
        assert!(store.append(&[append]).into_iter().all(|answer| answer.is_ok()));
    }
    std::fs::read(folder.join("sessions/s/facts.log")).unwrap()
}
