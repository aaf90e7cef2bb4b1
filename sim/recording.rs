//! A session that was recorded in production, replayed: loaded, folded fact by fact, checked at every point, and asked
//! what would have been if it had been cancelled, or if its process had died, at each of them.
//!
//! It is the shipped fold that runs here, over the bytes that the store keeps, so what holds here holds for the session
//! that is opened again. Nothing is written and nothing is locked: a copy of the two files is enough. A log that was
//! changed is told with the place, and never replayed around it.

use std::collections::BTreeMap;

use thiserror::Error;
use toolwarden::fact_book::StoredFact;
use toolwarden::facts::Fact;
use toolwarden::facts::state::{Misplaced, State, Step};
use toolwarden::models::transcript::{PairingError, check_pairing};
use toolwarden::run_status::RunStatus;
use toolwarden::snapshot::{Snapshot, SnapshotError, encode};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::ids::SessionId;

/// A recorded session after its replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Whose it is.
    pub session: SessionId,
    /// Facts that were replayed.
    pub facts: u64,
    /// The position of its snapshot, when it has one.
    pub snapshot: Option<u64>,
    /// How often each kind of fact came.
    pub kinds: BTreeMap<&'static str, u64>,
    /// A line for each fact, when it was asked for.
    pub lines: Vec<String>,
    /// Where it stands in the end.
    pub state: State,
    /// Bytes of a last fact that was cut while it was written; nobody was told that it was stored.
    pub torn_bytes: u64,
    /// What would have been, when it was asked for.
    pub branches: Option<Branches>,
}

/// What would have been at every point at which a run was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Branches {
    /// Points at which it was cancelled: each time the run ended, and every call had one result.
    pub cancelled: u64,
    /// Points at which its process died: each time it could go on.
    pub died: u64,
    /// Calls, over all these points, whose tool had started and that the model would have been told of as interrupted.
    pub interrupted_calls: u64,
    /// Points at which the next step would have been a turn of the model.
    pub asks: u64,
    /// Points at which it would have been calls.
    pub calls: u64,
}

/// What is wanted of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// A line for each fact.
    pub lines: bool,
    /// What would have been.
    pub branch: bool,
}

/// Why a recording cannot be replayed, or which promise it breaks.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RecordingError {
    /// There is nothing in it.
    #[error("there is neither a fact nor a snapshot; name a session's folder, or a snapshot")]
    Empty,
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A part of the log is not what was written.
    #[error(
        "the log was changed: {whole} facts are whole, and {bytes} bytes from byte {offset} on are not ({reason}); \
         take the log from before that change"
    )]
    Damaged {
        /// Whole facts before it.
        whole: usize,
        /// Where it begins.
        offset: u64,
        /// How much there is from there on.
        bytes: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The log does not begin where the snapshot ends.
    #[error("the log begins with fact {first}, and what came before is in no snapshot; add the snapshot beside it")]
    Headless {
        /// The first fact.
        first: u64,
    },
    /// The log ends before the snapshot does.
    #[error("the log ends with fact {last}, and the snapshot holds {position}; facts are missing at its end")]
    Short {
        /// The last fact.
        last: u64,
        /// The snapshot's position.
        position: u64,
    },
    /// A fact cannot be read.
    #[error("fact {sequence} cannot be read ({message}); a newer toolwarden may have written it")]
    Fact {
        /// Which.
        sequence: u64,
        /// Why.
        message: String,
    },
    /// A fact does not follow from those before it.
    #[error("the log was changed: {0}")]
    Misplaced(#[from] Misplaced),
    /// A call of the conversation has not exactly one result.
    #[error("promise broken at fact {position}: {source}")]
    Unpaired {
        /// After which fact.
        position: u64,
        /// What is wrong.
        source: PairingError,
    },
    /// The fold of the facts is not what the snapshot holds.
    #[error("promise broken at fact {position}: the fold of the facts differs from the snapshot")]
    Differs {
        /// The snapshot's position.
        position: u64,
    },
    /// What would have been breaks a promise.
    #[error("promise broken at fact {position}, had the session {what} there: {message}")]
    Branch {
        /// After which fact.
        position: u64,
        /// What would have happened.
        what: &'static str,
        /// What is wrong.
        message: String,
    },
}

/// Replays a recorded session; `name` is what its folder is called.
///
/// # Errors
/// [`RecordingError`].
pub fn replay(name: &str, found: Recovered, wish: Wish) -> Result<Recording, RecordingError> {
    if let Some(damage) = &found.damage {
        let (offset, bytes, reason) = (damage.offset, damage.bytes, damage.reason);
        return Err(RecordingError::Damaged { whole: found.log.len(), offset, bytes, reason });
    }
    let kept = match found.snapshot {
        Some(bytes) => Some(Snapshot::of_any_session(bytes)?),
        None => None,
    };
    let kept = kept.map(|snapshot| Ok::<_, SnapshotError>((snapshot.state()?, snapshot.head))).transpose()?;
    let session = kept.as_ref().map_or_else(|| name.into(), |(_, head)| head.session.clone());
    let mut replaying = Replaying::new(session, wish);
    match (found.log.first_sequence(), &kept) {
        (None, None) => return Err(RecordingError::Empty),
        // All of it is there: the fold begins from nothing, and the snapshot is what it is compared with.
        (Some(1), _) => {}
        (first, Some((state, head))) if first.is_none_or(|first| first <= head.position + 1) => {
            replaying.begin_with(state.clone());
        }
        (first, _) => return Err(RecordingError::Headless { first: first.unwrap_or(1) }),
    }
    if let Some((state, _)) = &kept {
        replaying.compare_with = Some(state.clone());
    }
    replaying.compare()?;
    let begun = replaying.recording.state.position;
    for (sequence, bytes) in found.log.iter().filter(|(sequence, _)| *sequence > begun) {
        let stored: StoredFact<Fact> = serde_json::from_slice(bytes)
            .map_err(|error| RecordingError::Fact { sequence, message: error.to_string() })?;
        replaying.take(stored)?;
    }
    replaying.finish(found.torn_bytes, kept.map(|(_, head)| head.position))
}

struct Replaying {
    recording: Recording,
    wish: Wish,
    began_ms: Option<u64>,
    /// Messages whose pairing is known.
    paired: usize,
    compare_with: Option<State>,
}

impl Replaying {
    fn new(session: SessionId, wish: Wish) -> Self {
        let recording = Recording {
            session,
            facts: 0,
            snapshot: None,
            kinds: BTreeMap::new(),
            lines: Vec::new(),
            state: State::default(),
            torn_bytes: 0,
            branches: wish.branch.then(Branches::default),
        };
        Self { recording, wish, began_ms: None, paired: 0, compare_with: None }
    }

    fn begin_with(&mut self, state: State) {
        self.recording.state = state;
    }

    fn take(&mut self, stored: StoredFact<Fact>) -> Result<(), RecordingError> {
        let began_ms = *self.began_ms.get_or_insert(stored.at_ms);
        *self.recording.kinds.entry(kind(&stored.fact)).or_default() += 1;
        if self.wish.lines {
            let after_ms = stored.at_ms.saturating_sub(began_ms);
            let position = self.recording.state.position + 1;
            self.recording.lines.push(format!("{after_ms:>11} ms  fact {position}: {}", words(&stored.fact)));
        }
        // What stood before may be another text now: it is looked at again.
        if matches!(stored.fact, Fact::Compacted { .. }) {
            self.paired = 0;
        }
        self.recording.state.apply(stored.fact)?;
        self.recording.facts += 1;
        self.compare()?;
        self.check_pairs()?;
        if self.wish.branch && self.recording.state.run.is_some() {
            self.branch()?;
        }
        Ok(())
    }

    /// The fold up to the snapshot is the snapshot.
    fn compare(&mut self) -> Result<(), RecordingError> {
        let position = self.recording.state.position;
        if self.compare_with.as_ref().is_some_and(|kept| kept.position == position)
            && self.compare_with.take().is_some_and(|kept| kept != self.recording.state)
        {
            return Err(RecordingError::Differs { position });
        }
        Ok(())
    }

    /// Whenever the model may be asked, or nothing is under way, each call has its one result. A message is looked at
    /// once: what stands before it was whole then.
    fn check_pairs(&mut self) -> Result<(), RecordingError> {
        let state = &self.recording.state;
        if matches!(state.next_step(), Step::Call(_)) {
            return Ok(());
        }
        let new = state.messages.get(self.paired..).unwrap_or_default();
        check_pairing(new).map_err(|source| RecordingError::Unpaired { position: state.position, source })?;
        self.paired = state.messages.len();
        Ok(())
    }

    /// What would have been here.
    fn branch(&mut self) -> Result<(), RecordingError> {
        // The conversation so far is the same in every branch, and is most of a state: branches begin without it, but
        // for the turn whose calls are under way.
        let kept = self.recording.state.messages.split_off(self.paired);
        let before = std::mem::replace(&mut self.recording.state.messages, kept);
        let here = self.recording.state.clone();
        let own = std::mem::replace(&mut self.recording.state.messages, before);
        self.recording.state.messages.extend(own);
        let branches = self.recording.branches.get_or_insert_default();
        cancelled(here.clone(), branches)?;
        died(here, branches)
    }

    fn finish(mut self, torn_bytes: u64, snapshot: Option<u64>) -> Result<Recording, RecordingError> {
        self.recording.torn_bytes = torn_bytes;
        self.recording.snapshot = snapshot;
        let Recording { session, state, .. } = &self.recording;
        if let Some(kept) = self.compare_with {
            return Err(RecordingError::Short { last: state.position, position: kept.position });
        }
        // What is there now is what would be there again.
        let again = Snapshot::read(encode(session, state, 1)?, session)?.state()?;
        if again != *state {
            return Err(RecordingError::Differs { position: state.position });
        }
        Ok(self.recording)
    }
}

/// The run is cancelled at this point.
fn cancelled(mut state: State, branches: &mut Branches) -> Result<(), RecordingError> {
    let position = state.position;
    let fail = |message: String| RecordingError::Branch { position, what: "been cancelled", message };
    let status = RunStatus::Cancelled { reason: CancelReason::Requested };
    state.apply(Fact::Ending { status, text: String::new() }).map_err(|error| fail(error.to_string()))?;
    if state.run.is_some() || state.next_step() != Step::Wait {
        return Err(fail("the run goes on".to_owned()));
    }
    check_pairing(&state.messages).map_err(|error| fail(error.to_string()))?;
    branches.cancelled += 1;
    Ok(())
}

/// The process dies at this point, and the session is opened again.
fn died(mut state: State, branches: &mut Branches) -> Result<(), RecordingError> {
    let position = state.position;
    let fail = |message: String| RecordingError::Branch { position, what: "lost its process", message };
    if let Some(interruption) = state.interruption() {
        if let Fact::Interruption { calls } = &interruption {
            branches.interrupted_calls += calls.len() as u64;
        }
        state.apply(interruption).map_err(|error| fail(error.to_string()))?;
    }
    if state.open_children() > 0 {
        return Err(fail("a child run is still taken for one under way".to_owned()));
    }
    match state.next_step() {
        Step::Wait => return Err(fail("the run is forgotten".to_owned())),
        Step::Ask { .. } => {
            check_pairing(&state.messages).map_err(|error| fail(error.to_string()))?;
            branches.asks += 1;
        }
        Step::Call(calls) => {
            if let Some(call) = calls.iter().find(|call| !call.may_run()) {
                return Err(fail(format!("the call {:?} would run a second time", call.call.id)));
            }
            branches.calls += 1;
        }
        Step::End { .. } => {}
    }
    branches.died += 1;
    Ok(())
}

fn kind(fact: &Fact) -> &'static str {
    match fact {
        Fact::Opened(_) => "opened",
        Fact::UserMessage { .. } => "prompt",
        Fact::ModelTurn { .. } => "model turn",
        Fact::CallBound { .. } => "call bound",
        Fact::CallStarted { .. } => "call started",
        Fact::CallEnded { .. } => "call ended",
        Fact::ConfirmationAsked { .. } => "person asked",
        Fact::ConfirmationAnswered { .. } => "person answered",
        Fact::Steer { .. } => "steer",
        Fact::ChildStarted { .. } => "child started",
        Fact::ChildEnded { .. } => "child ended",
        Fact::Interruption { .. } => "interruption",
        Fact::Compacted { .. } => "compacted",
        Fact::Verified { .. } => "verified",
        Fact::Ending { .. } => "run ended",
    }
}

/// Longest piece of somebody's words in a line, in characters.
const QUOTE_CHARS_MAX: usize = 60;

fn quote(text: &str) -> String {
    let short: String = text.chars().filter(|letter| !letter.is_control()).take(QUOTE_CHARS_MAX).collect();
    if short.len() < text.len() { format!("{short:?} …") } else { format!("{short:?}") }
}

fn words(fact: &Fact) -> String {
    match fact {
        Fact::Opened(settings) => format!("the session is opened on {} with {}", settings.workspace, settings.model),
        Fact::UserMessage { run, text, .. } => format!("run {run} begins: {}", quote(text)),
        Fact::ModelTurn { turn, .. } => {
            let calls: Vec<&str> = turn.calls.iter().map(|call| call.tool.as_str()).collect();
            match calls.as_slice() {
                [] => format!("the model says {}", quote(&turn.text)),
                calls => format!("the model says {} and wants {}", quote(&turn.text), calls.join(", ")),
            }
        }
        Fact::CallBound { call, invocation, .. } => format!("call {call} becomes {invocation}"),
        Fact::CallStarted { invocation } => format!("the tool of {invocation} starts"),
        Fact::CallEnded { result, .. } => format!("call {} has its result", result.call_id),
        Fact::ConfirmationAsked { invocation, .. } => format!("a person is asked about {invocation}"),
        Fact::ConfirmationAnswered { invocation, approved: true } => format!("a person says yes to {invocation}"),
        Fact::ConfirmationAnswered { invocation, .. } => format!("a person says no to {invocation}"),
        Fact::Steer { text } => format!("somebody puts in {}", quote(text)),
        Fact::ChildStarted { task, session, agent, .. } => format!("task {task}: {agent} begins in session {session}"),
        Fact::ChildEnded { task, success: true, .. } => format!("task {task} came to an answer"),
        Fact::ChildEnded { task, .. } => format!("task {task} came to none"),
        Fact::Interruption { calls } => format!("the process ended; {} calls are not run again", calls.len()),
        Fact::Compacted { .. } => "the conversation is made shorter".to_owned(),
        Fact::Verified { .. } => "the work is verified".to_owned(),
        Fact::Ending { status, text } => format!("the run ends ({}): {}", status.as_str(), quote(text)),
    }
}

#[cfg(test)]
mod tests;
