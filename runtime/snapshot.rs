//! A snapshot: one generation of a session (its settings, the position in its facts, conversation, child records,
//! artifacts) in one piece of bytes, so that no reader can mix two.
//!
//! `TWSNAP`, a zero and a line end, then little-endian: version (4 bytes), length of the head (4), length of the
//! body (8), CRC-32 of all of it but these four (4); then the head and the body as JSON. The head says what a
//! listing needs. Older versions are brought up step by step, newer ones are refused.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use toolwarden_actors::budget::Amount;
use toolwarden_tools::ids::SessionId;

use crate::facts::Fact;
use crate::facts::state::{Misplaced, State};
use crate::run_status::RunStatus;

/// The newest version that is known here.
pub const SNAPSHOT_VERSION: u32 = 5;

const MAGIC: [u8; 8] = *b"TWSNAP\0\n";
/// Where the checksum stands.
const CHECK_AT: usize = 24;
/// Length of what stands before the head, in bytes.
const FIXED_BYTES: usize = 28;

/// What can be said of a snapshot without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHead {
    /// Whose snapshot.
    pub session: SessionId,
    /// How many facts it is the fold of.
    pub position: u64,
    /// The sequence of the first fact in the session's log: 1, or what follows the snapshot that it was forked with.
    pub log_from: u64,
}

/// A snapshot that was read and checked; its body is decoded when it is wanted.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// What it says of itself.
    pub head: SnapshotHead,
    version: u32,
    bytes: Vec<u8>,
    body_at: usize,
}

/// Why a snapshot cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// It is not whole, or was changed.
    #[error("the snapshot is damaged: {reason}")]
    Damaged {
        /// What is wrong.
        reason: String,
    },
    /// A newer program wrote it.
    #[error(
        "the snapshot has version {version}, and this program knows up to {SNAPSHOT_VERSION}; use a newer toolwarden"
    )]
    Newer {
        /// Its version.
        version: u32,
    },
    /// It cannot be written.
    #[error("the snapshot cannot be written: {message}")]
    Encode {
        /// Why.
        message: String,
    },
    /// It is another session's.
    #[error("the snapshot is one of session {found}, not of {wanted}; the store was changed by hand")]
    OtherSession {
        /// Whose it is.
        found: SessionId,
        /// Whose it should be.
        wanted: SessionId,
    },
}

/// Writes a generation.
///
/// # Errors
/// [`SnapshotError::Encode`].
pub fn encode(session: &SessionId, state: &State, log_from: u64) -> Result<Vec<u8>, SnapshotError> {
    let head = SnapshotHead { session: session.clone(), position: state.position, log_from };
    let encode = |error: serde_json::Error| SnapshotError::Encode { message: error.to_string() };
    let head = serde_json::to_vec(&head).map_err(encode)?;
    let body = serde_json::to_vec(state).map_err(encode)?;
    Ok(frame(SNAPSHOT_VERSION, &head, &body))
}

fn frame(version: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FIXED_BYTES + head.len() + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    // A head is a few names and numbers.
    bytes.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&u64::try_from(body.len()).unwrap_or(u64::MAX).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(body);
    let check = checksum(&bytes);
    bytes[CHECK_AT..FIXED_BYTES].copy_from_slice(&check.to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..CHECK_AT]);
    hasher.update(&bytes[FIXED_BYTES..]);
    hasher.finalize()
}

impl Snapshot {
    /// Reads and checks a snapshot of this session.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn read(bytes: Vec<u8>, session: &SessionId) -> Result<Self, SnapshotError> {
        let read = Self::of_any_session(bytes)?;
        if read.head.session != *session {
            return Err(SnapshotError::OtherSession { found: read.head.session, wanted: session.clone() });
        }
        Ok(read)
    }

    /// Reads and checks a snapshot of whatever session.
    ///
    /// # Errors
    /// [`SnapshotError`], but for one of another session.
    pub fn of_any_session(bytes: Vec<u8>) -> Result<Self, SnapshotError> {
        let damaged = |reason: &str| SnapshotError::Damaged { reason: reason.to_owned() };
        if bytes.len() < FIXED_BYTES || bytes[..MAGIC.len()] != MAGIC {
            return Err(damaged("it does not begin like one"));
        }
        let number = |at: usize, length: usize| {
            bytes[at..at + length].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let version = u32::try_from(number(8, 4)).unwrap_or(u32::MAX);
        // Before the checksum: a newer version may have another one.
        if version > SNAPSHOT_VERSION {
            return Err(SnapshotError::Newer { version });
        }
        let body_at = usize::try_from(number(12, 4)).ok().and_then(|head| head.checked_add(FIXED_BYTES));
        let whole = body_at.and_then(|at| at.checked_add(usize::try_from(number(16, 8)).ok()?));
        let (Some(body_at), true) = (body_at, whole == Some(bytes.len())) else {
            return Err(damaged("it has another length than it says"));
        };
        if u64::from(checksum(&bytes)) != number(CHECK_AT, 4) {
            return Err(damaged("it does not fit its checksum"));
        }
        let head: SnapshotHead = serde_json::from_slice(&bytes[FIXED_BYTES..body_at])
            .map_err(|error| damaged(&format!("its head cannot be read: {error}")))?;
        Ok(Self { head, version, bytes, body_at })
    }

    /// The state that it keeps, brought up to this version.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`].
    pub fn state(&self) -> Result<State, SnapshotError> {
        let body = &self.bytes[self.body_at..];
        let read = match self.version {
            SNAPSHOT_VERSION => serde_json::from_slice(body),
            older => serde_json::from_slice(body).map(|body| brought_up(body, older)).and_then(serde_json::from_value),
        };
        let state: State = read.map_err(|error| SnapshotError::Damaged { reason: error.to_string() })?;
        if state.position != self.head.position {
            return Err(SnapshotError::Damaged { reason: "head and body are of two generations".to_owned() });
        }
        Ok(state)
    }
}

/// Brings the body of an older version up, one version after the other.
fn brought_up(mut body: Value, from: u32) -> Value {
    // Version 1 did not count calls, and kept artifacts of all results in one text, parted by spaces.
    if from < 2
        && let Some(state) = body.as_object_mut()
    {
        let calls = state.get("messages").and_then(Value::as_array).into_iter().flatten();
        let calls: usize = calls.filter_map(|message| message.get("results")?.as_array()).map(Vec::len).sum();
        state.insert("calls".to_owned(), json!(calls));
        let artifacts = state.get("artifacts").and_then(Value::as_str).unwrap_or_default();
        let artifacts: Vec<&str> = artifacts.split_ascii_whitespace().collect();
        let artifacts = json!(artifacts);
        state.insert("artifacts".to_owned(), artifacts);
    }
    // Version 2 knew of no verification.
    if from < 3
        && let Some(state) = body.as_object_mut()
    {
        state.insert("verification_reports".to_owned(), json!([]));
    }
    // Version 3 knew of no tasks in the background.
    if from < 4
        && let Some(state) = body.as_object_mut()
    {
        state.insert("task_reports".to_owned(), json!([]));
    }
    // Version 4 counted no child runs, and not what they used.
    if from < 5
        && let Some(state) = body.as_object_mut()
    {
        let known = state.get("children").and_then(Value::as_object).map_or(0, serde_json::Map::len);
        state.insert("child_runs".to_owned(), json!(known));
        state.insert("children_used".to_owned(), json!({}));
    }
    body
}

/// A state for a new session that goes on from this one. What is under way in the old one stays there: in the new
/// one it was interrupted.
///
/// # Errors
/// [`Misplaced`], which would be a bug.
pub fn forked(mut state: State, from: &SessionId) -> Result<State, Misplaced> {
    if let Some(interruption) = state.interruption() {
        state.apply(interruption)?;
    }
    if state.run.is_some() {
        state.apply(Fact::Ending { status: RunStatus::Interrupted, text: String::new() })?;
    }
    let going_on: Vec<_> = state.tasks_to_go_on().map(|(task, _)| task.clone()).collect();
    for task in going_on {
        let report = format!("[The background task {task} goes on in session {from}, and is not told of here.]");
        let used = Amount::default();
        state.apply(Fact::ChildEnded { task, success: false, report: Some(report), used, child_runs: 0 })?;
    }
    if let Some(settings) = &mut state.settings {
        settings.parent = Some(from.clone());
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwarden_tools::ids::SessionId;

    use super::{FIXED_BYTES, SNAPSHOT_VERSION, Snapshot, SnapshotError, encode, frame};
    use crate::facts::Fact;
    use crate::facts::RunBounds;
    use crate::facts::state::State;
    use crate::models::{Message, ToolResult};
    use crate::run_status::RunStatus;

    fn id() -> SessionId {
        "s".into()
    }

    fn state() -> State {
        let bounds = RunBounds { rounds_max: 1, malformed_rounds_max: 1, same_call_max: 1 };
        State::fold([Fact::UserMessage { run: "r".into(), text: "caf\u{e9}".into(), pictures: Vec::new(), bounds }])
            .unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_every_changed_byte_is_noticed() {
        let bytes = encode(&id(), &state(), 1).unwrap();
        let read = Snapshot::read(bytes.clone(), &id()).unwrap();
        assert_eq!((read.head.position, read.head.log_from), (1, 1));
        assert_eq!(read.state().unwrap(), state());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Snapshot::read(changed, &id()).is_err(), "byte {at}");
            assert!(Snapshot::read(bytes[..at].to_vec(), &id()).is_err(), "cut at {at}");
        }
        let other = Snapshot::read(bytes, &"other".into()).unwrap_err();
        assert!(matches!(other, SnapshotError::OtherSession { .. }), "{other}");
    }

    #[test]
    fn a_newer_version_is_refused_whatever_it_holds() {
        let mut bytes = encode(&id(), &state(), 1).unwrap();
        bytes[8] = 9;
        bytes.truncate(FIXED_BYTES);
        let refused = Snapshot::read(bytes, &id()).unwrap_err();
        assert_eq!(refused, SnapshotError::Newer { version: 9 });
        assert!(refused.to_string().contains("newer toolwarden"), "{refused}");
    }

    #[test]
    fn an_older_version_is_brought_up() {
        let head = json!({ "session": "s", "position": 3, "log_from": 1 }).to_string();
        let result = json!({ "call_id": "c", "tool": "read", "output": "o", "success": true });
        let body = json!({
            "settings": null,
            "messages": [{ "role": "user", "text": "hi" }, { "role": "tool_results", "results": [result] }],
            "run": null,
            "last": { "id": "r", "status": { "status": "completed" }, "text": "t",
                "usage": { "input_tokens": 1, "output_tokens": 2 }, "turns": 1, "source_anchors": [] },
            "usage": { "input_tokens": 1, "output_tokens": 2 },
            "runs": 1,
            "children": {},
            "artifacts": "a3s://one a3s://two",
            "position": 3,
        });
        let bytes = frame(1, head.as_bytes(), body.to_string().as_bytes());
        let state = Snapshot::read(bytes, &id()).unwrap().state().unwrap();
        assert_eq!((state.calls, state.position), (1, 3));
        assert_eq!(state.verification_reports, []);
        assert_eq!(state.artifacts.iter().collect::<Vec<_>>(), ["a3s://one", "a3s://two"]);
        assert_eq!(state.last.as_ref().unwrap().status, RunStatus::Completed);
        let result = ToolResult { call_id: "c".into(), tool: "read".into(), output: "o".into(), success: true };
        assert_eq!(state.messages[1], Message::ToolResults { results: vec![result] });
        // Brought up once, it is written as the newest.
        let again = encode(&id(), &state, 1).unwrap();
        assert_eq!(u32::from(again[8]), SNAPSHOT_VERSION);
        assert_eq!(Snapshot::read(again, &id()).unwrap().state().unwrap(), state);
    }

    #[test]
    fn a_body_of_another_generation_is_noticed() {
        let head = json!({ "session": "s", "position": 7, "log_from": 1 }).to_string();
        let body = serde_json::to_vec(&state()).unwrap();
        let mixed = Snapshot::read(frame(SNAPSHOT_VERSION, head.as_bytes(), &body), &id()).unwrap();
        assert!(mixed.state().unwrap_err().to_string().contains("two generations"));
    }
}
