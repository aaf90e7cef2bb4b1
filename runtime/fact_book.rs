//! The facts of one session as they happen: its state in memory, and the log behind it where the session is kept.
//!
//! A fact is taken by the fold before it goes to the log, under one lock, so that state and log never differ in what
//! they hold or in its order. What must stay true: [`FactBook::record`] returns when the fact is durable, and
//! whatever a fact announces happens after that. Once the log has failed nothing more is taken: state that is not
//! stored is state that a resumed session would not have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use toolwarden_actors::fact_log::{FactLog, FactLogError, Written};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::effects::store::Append;
use toolwarden_tools::ids::{InvocationId, SessionId};

use crate::event::EventKind;
use crate::facts::Fact;
use crate::facts::state::{Misplaced, State};
use crate::models::{CallArguments, ModelTurn};
use crate::settlement::sanitise::Sanitiser;

/// The facts of one session.
pub struct FactBook {
    pages: Mutex<Pages>,
    log: Option<Log>,
}

struct Pages {
    state: State,
    /// The first failure of the log.
    failed: Option<FactBookError>,
    /// Calls of the run that are on their way, until they are bound.
    expected: BTreeMap<InvocationId, Expected>,
}

/// A call that is about to become an invocation.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The model's id of the call.
    pub call: String,
    /// Digest of the arguments as the model wrote them.
    pub arguments: Digest,
    /// Whether the tool declares about these that twice is as good as once, or it comes back to its child runs.
    pub idempotent: bool,
}

struct Log {
    session: SessionId,
    facts: FactLog,
    clock: Arc<dyn Clock>,
}

/// A fact as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredFact<F> {
    /// When it happened, in milliseconds since 1970, as the machine believed.
    pub at_ms: u64,
    /// What happened.
    pub fact: F,
}

/// Why a fact is not in the book.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FactBookError {
    /// It does not fit.
    #[error(transparent)]
    Misplaced(#[from] Misplaced),
    /// It is not stored.
    #[error(transparent)]
    Log(#[from] FactLogError),
    /// It cannot be written as JSON.
    #[error("a fact cannot be written: {0}")]
    Encode(String),
}

/// A fact on its way to the log.
pub struct Recorded(Option<Written>);

impl Recorded {
    /// Waits until the fact is durable; at once in a session that is not kept.
    ///
    /// # Errors
    /// [`FactBookError::Log`].
    pub async fn durable(self) -> Result<(), FactBookError> {
        match self.0 {
            Some(written) => Ok(written.durable().await?),
            None => Ok(()),
        }
    }
}

impl FactBook {
    /// A book that ends with its session.
    pub fn in_memory() -> Arc<Self> {
        Arc::new(Self { pages: Mutex::new(Pages::new(State::default())), log: None })
    }

    /// A book that goes on from a state, and whose facts go to a log.
    pub fn kept(session: SessionId, state: State, facts: FactLog, clock: Arc<dyn Clock>) -> Arc<Self> {
        let log = Log { session, facts, clock };
        Arc::new(Self { pages: Mutex::new(Pages::new(state)), log: Some(log) })
    }

    /// Whether facts outlive the process.
    pub fn is_kept(&self) -> bool {
        self.log.is_some()
    }

    /// The log, where the book is kept.
    pub fn log(&self) -> Option<&FactLog> {
        self.log.as_ref().map(|log| &log.facts)
    }

    /// A text without its secrets, where it is to be stored.
    pub fn fit_to_keep(&self, sanitiser: &Sanitiser, text: String) -> String {
        if self.is_kept() { sanitiser.clean(text).0 } else { text }
    }

    /// Looks at where the session stands.
    pub fn look<T>(&self, at: impl FnOnce(&State) -> T) -> T {
        at(&self.pages().state)
    }

    /// Takes a fact. It is in order at once, and durable a moment later.
    ///
    /// # Errors
    /// [`FactBookError`]; nothing was taken then.
    pub fn append(&self, fact: Fact) -> Result<Recorded, FactBookError> {
        self.pages().append(fact, self.log.as_ref())
    }

    /// Takes a fact and waits until it is durable.
    ///
    /// # Errors
    /// [`FactBookError`].
    pub async fn record(&self, fact: Fact) -> Result<(), FactBookError> {
        let recorded = self.append(fact)?;
        let durable = recorded.durable().await;
        if let Err(error) = &durable {
            self.pages().failed.get_or_insert_with(|| error.clone());
        }
        durable
    }

    /// Whether every fact so far was taken.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<(), FactBookError> {
        self.pages().failed.clone().map_or(Ok(()), Err)
    }

    /// Tells which call of the model an invocation will be; only a kept book needs to know.
    pub fn announce(&self, invocation: &InvocationId, expected: Expected) {
        self.pages().expected.insert(invocation.clone(), expected);
    }

    /// The model's id of the call that an invocation is; none when it is no call of this session's own run.
    pub fn call_of(&self, invocation: &InvocationId) -> Option<String> {
        self.pages().expected.get(invocation).map(|expected| expected.call.clone())
    }

    /// The call has its result, or never got so far.
    pub fn forget(&self, invocation: &InvocationId) {
        self.pages().expected.remove(invocation);
    }

    /// Takes down what an event says about a call of this session's own run.
    pub fn hear(&self, kind: &EventKind) {
        let mut pages = self.pages();
        let (invocation, fact) = match kind {
            EventKind::ToolRequestBound { tool_id, snapshot, .. } => {
                let Some(expected) = pages.expected.get(tool_id) else { return };
                let fact = Fact::CallBound {
                    call: expected.call.clone(),
                    invocation: tool_id.clone(),
                    arguments: snapshot.arguments_digest.clone(),
                    // A hook has put others in their place: nothing was declared about those.
                    idempotent: expected.idempotent && expected.arguments == snapshot.arguments_digest,
                };
                (tool_id, fact)
            }
            EventKind::ConfirmationRequired { tool_id, digest, .. } => {
                (tool_id, Fact::ConfirmationAsked { invocation: tool_id.clone(), digest: digest.clone() })
            }
            EventKind::ConfirmationReceived { tool_id, approved, .. } => {
                (tool_id, Fact::ConfirmationAnswered { invocation: tool_id.clone(), approved: *approved })
            }
            EventKind::ConfirmationTimeout { tool_id, .. } => {
                (tool_id, Fact::ConfirmationAnswered { invocation: tool_id.clone(), approved: false })
            }
            _ => return,
        };
        if !pages.expected.contains_key(invocation) {
            return;
        }
        // What comes next waits for the log, and is told then what failed.
        if let Err(error) = pages.append(fact, self.log.as_ref()) {
            tracing::warn!(%error, "a fact about a call was not taken");
        }
    }

    /// The tool of an invocation is about to start: returns when that is durable, for a call that may have effects.
    /// Calls that are not the run's own are covered by the call that they are nested in.
    ///
    /// # Errors
    /// [`FactBookError`]; the tool must not start then.
    pub async fn started(&self, invocation: &InvocationId, has_effects: bool) -> Result<(), FactBookError> {
        if !self.pages().expected.contains_key(invocation) {
            return Ok(());
        }
        let fact = Fact::CallStarted { invocation: invocation.clone() };
        match has_effects {
            true => self.record(fact).await,
            false => self.append(fact).map(drop),
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn new(state: State) -> Self {
        Self { state, failed: None, expected: BTreeMap::new() }
    }

    fn append(&mut self, fact: Fact, log: Option<&Log>) -> Result<Recorded, FactBookError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(log) = log else {
            self.state.apply(fact)?;
            return Ok(Recorded(None));
        };
        let payload = stored(&fact, &*log.clock)?;
        self.state.apply(fact)?;
        let fact = Append { session: log.session.clone(), sequence: self.state.position, payload };
        Ok(Recorded(Some(log.facts.append(fact))))
    }
}

/// The bytes of a fact that happens now.
pub(crate) fn stored(fact: &Fact, clock: &dyn Clock) -> Result<Arc<[u8]>, FactBookError> {
    let stored = StoredFact { at_ms: clock.unix_ms(), fact };
    let bytes = serde_json::to_vec(&stored).map_err(|error| FactBookError::Encode(error.to_string()))?;
    Ok(bytes.into())
}

/// Takes secrets out of a turn that is to be stored; gives the calls whose arguments lost something.
pub fn clean_turn(sanitiser: &Sanitiser, turn: &mut ModelTurn) -> Vec<String> {
    turn.text = sanitiser.clean(std::mem::take(&mut turn.text)).0;
    if let Some(replay) = &mut turn.replay
        && !replay.items.iter_mut().all(|item| clean_item(sanitiser, item))
    {
        // What depends on a part that cannot go back cannot go back either; the plain turn can.
        turn.replay = None;
    }
    let mut withheld = Vec::new();
    for call in &mut turn.calls {
        let removed = match &mut call.arguments {
            CallArguments::Parsed(arguments) => sanitiser.clean_value(arguments),
            CallArguments::Malformed { text, .. } => {
                *text = sanitiser.clean(std::mem::take(text)).0;
                0
            }
        };
        if removed > 0 {
            withheld.push(call.id.clone());
        }
    }
    withheld
}

/// Fields that providers signed or encrypted: nobody can read a secret in them, and a changed byte makes them worthless.
const SEALED: [&str; 3] = ["signature", "encrypted_content", "data"];

/// Takes secrets out of a provider's own item; false when it must not be sent back, because what was changed was signed.
fn clean_item(sanitiser: &Sanitiser, item: &mut Value) -> bool {
    let take = |key| item.get_mut(key).map(|value| (key, value.take()));
    let sealed: Vec<(&str, Value)> = SEALED.into_iter().filter_map(take).collect();
    let removed = sanitiser.clean_value(item);
    let is_sealed = !sealed.is_empty();
    for (key, value) in sealed {
        item[key] = value;
    }
    removed == 0 || !is_sealed
}
