//! The rounds in which a model gives an object: it answers, is told what does not fit, and answers again.
//!
//! What must stay true: an object is given only when it fits; all rounds together keep one deadline, which begins when the
//! first has its slot; a whole object that fits is taken when its stream goes silent instead of ending; and of a stream
//! that was begun again nothing is left in what is shown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::generation::{
    GeneratedObject, GenerationAdmission, ObjectFailure, ObjectRequest, ObjectUsage, Partials,
};

use super::candidate::{Fit, ObjectSchema};
use super::directive::Directive;
use super::envelope::Envelope;
use super::partial::{Arriving, View};
use crate::models::object_support::ObjectSupport;
use crate::models::transcript::make_call_ids_unique;
use crate::models::{
    CallArguments, CallDelta, Message, ModelRequest, ModelTurn, StopReason, TokenUsage, ToolResult, TurnSink,
};

/// How long a whole object that fits waits for the end of its stream.
pub const SILENCE_GRACE: Duration = Duration::from_millis(250);
/// Most bytes of what a model thinks that are looked into for an object.
const THOUGHT_BYTES_MAX: usize = 1024 * 1024;
/// How often a provider may pause an answer.
const PAUSES_MAX: u32 = 3;

/// The way to a model, with its budget and its cancel.
pub trait Ask: Send + Sync {
    /// By which means it can be held to a schema.
    fn object_support(&self) -> ObjectSupport;

    /// How many requests there may be beside each other.
    fn concurrency_max(&self) -> usize;

    /// Asks for one turn.
    ///
    /// # Errors
    /// [`ObjectFailure`], which ends the generation.
    fn ask<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ObjectFailure>>;
}

/// A generation: who is asked, for what, and who watches.
pub struct Generation<'a> {
    /// The way to the model.
    pub ask: &'a dyn Ask,
    /// What is asked.
    pub request: &'a ObjectRequest,
    /// Who watches.
    pub partials: &'a dyn Partials,
    /// Tells the time for views.
    pub clock: &'a Arc<dyn Clock>,
    /// Requests with the same key share their beginning.
    pub cache_key: &'a str,
}

impl Generation<'_> {
    /// Carries it to its end.
    ///
    /// # Errors
    /// [`ObjectFailure`].
    pub async fn run(self) -> Result<GeneratedObject, ObjectFailure> {
        // All bounds, before anything is asked.
        drop(self.request.check()?);
        let schema = ObjectSchema::new(&self.request.schema)?;
        let directive = Directive::of(self.request.mode, &schema, self.ask.object_support());
        let watching = Watching::new(&self, &schema, &directive);
        let timeout = self.request.timeout;
        let rounds = self.rounds(&schema, &directive, &watching);
        tokio::select! {
            biased;
            ended = rounds => ended,
            () = watching.deadline(timeout) => {
                let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                Err(ObjectFailure::Timeout { timeout_ms })
            }
        }
    }

    async fn rounds(
        &self,
        schema: &ObjectSchema,
        directive: &Directive,
        watching: &Watching<'_>,
    ) -> Result<GeneratedObject, ObjectFailure> {
        let mut request = directive.first_request(self.request, self.cache_key);
        let (mut usage, mut repairs, mut pauses) = (ObjectUsage::default(), 0, 0);
        loop {
            let (turn, heard) = match self.round(&request, watching).await? {
                Round::Turn(turn) => (*turn, watching.take_round()),
                Round::Whole { fit, text } => {
                    return Ok(self.object(fit, directive, repairs, usage, text, watching));
                }
            };
            usage = added(usage, turn.usage);
            let (found, raw) = {
                let said = Said::of(&turn, &heard);
                (said.find(schema, turn.stop), said.raw().to_owned())
            };
            let faults = match found {
                Ok(fit) => return Ok(self.object(fit, directive, repairs, usage, raw, watching)),
                Err(_) if matches!(turn.stop, StopReason::Refusal | StopReason::ContentFilter) => {
                    return Err(ObjectFailure::Refused);
                }
                Err(faults) => faults,
            };
            if turn.stop == StopReason::Paused && pauses < PAUSES_MAX {
                pauses += 1;
                request.messages.push(turn.into_message());
                continue;
            }
            if repairs >= self.request.repairs_max {
                return Err(ObjectFailure::NoFit { repair_rounds: repairs, faults });
            }
            repairs += 1;
            self.ask_for_repair(&mut request, turn, directive, &faults, &raw);
        }
    }

    /// One turn, or the whole object of one that does not end.
    async fn round(&self, request: &ModelRequest, watching: &Watching<'_>) -> Result<Round, ObjectFailure> {
        let answered = tokio::select! {
            biased;
            answered = self.ask.ask(request, watching) => answered,
            (fit, text) = watching.gone_silent() => return Ok(Round::Whole { fit, text }),
        };
        match answered {
            Ok(turn) => Ok(Round::Turn(Box::new(turn))),
            // The stream broke behind its object.
            Err(ObjectFailure::Model { message, kind }) => match watching.whole() {
                Some((fit, text)) => Ok(Round::Whole { fit, text }),
                None => Err(ObjectFailure::Model { message, kind }),
            },
            Err(other) => Err(other),
        }
    }

    /// Puts the answer and what is wrong with it into the conversation.
    fn ask_for_repair(
        &self,
        request: &mut ModelRequest,
        mut turn: ModelTurn,
        directive: &Directive,
        faults: &str,
        said: &str,
    ) {
        make_call_ids_unique(&request.messages, &mut turn);
        let words = directive.repair_words(self.request, faults, said);
        let results: Vec<ToolResult> = turn
            .calls
            .iter()
            .map(|call| ToolResult {
                call_id: call.id.clone(),
                tool: call.tool.clone(),
                output: words.clone(),
                success: false,
            })
            .collect();
        if !turn.text.is_empty() || !turn.calls.is_empty() {
            request.messages.push(turn.into_message());
        }
        request.messages.push(match results.is_empty() {
            true => Message::User { text: words },
            false => Message::ToolResults { results },
        });
    }

    fn object(
        &self,
        fit: Fit,
        directive: &Directive,
        repair_rounds: u32,
        usage: ObjectUsage,
        raw_text: String,
        watching: &Watching<'_>,
    ) -> GeneratedObject {
        GeneratedObject {
            json: fit.json,
            mode_used: directive.mode,
            mode_note: directive.note.clone(),
            repair_rounds,
            is_mended: fit.is_mended,
            usage,
            raw_text,
            admission: GenerationAdmission {
                mode: "bounded",
                max_concurrency: self.ask.concurrency_max(),
                queue_wait_ms: watching.queue_wait_ms(),
                active_timeout_ms: u64::try_from(self.request.timeout.as_millis()).unwrap_or(u64::MAX),
            },
        }
    }
}

/// What a round came to.
enum Round {
    Turn(Box<ModelTurn>),
    /// It did not end, and its object is whole.
    Whole {
        fit: Fit,
        text: String,
    },
}

/// What a model said in a round, by the places where an object may be.
struct Said<'a> {
    arguments: String,
    text: &'a str,
    thought: &'a str,
}

impl<'a> Said<'a> {
    fn of(turn: &'a ModelTurn, heard: &'a Heard) -> Self {
        // As it was streamed, where it was: a value has lost digits by now.
        let arguments = match (heard.call.text(), turn.calls.first()) {
            ("", Some(call)) => match &call.arguments {
                CallArguments::Parsed(value) => value.to_string(),
                CallArguments::Malformed { text, .. } => text.clone(),
            },
            (_, None) => String::new(),
            (streamed, Some(_)) => streamed.to_owned(),
        };
        Self { arguments, text: &turn.text, thought: &heard.thought }
    }

    /// The one place that is meant: the first that holds anything.
    fn raw(&self) -> &str {
        if !self.arguments.is_empty() { &self.arguments } else { self.text }
    }

    fn find(&self, schema: &ObjectSchema, stop: StopReason) -> Result<Fit, String> {
        let mut first_fault = None;
        for place in [self.arguments.as_str(), self.text, self.thought] {
            if place.trim().is_empty() {
                continue;
            }
            match schema.find(place) {
                Ok(fit) => return Ok(fit),
                Err(fault) => first_fault.get_or_insert(fault),
            };
        }
        let fault = first_fault.unwrap_or_else(|| "the answer is empty".to_owned());
        match stop {
            StopReason::MaxTokens => Err(format!("the answer was cut off by the output limit; write less. {fault}")),
            _ => Err(fault),
        }
    }
}

/// Only the three sums are summed; what was kept at the provider is told of the last round.
fn added(sum: ObjectUsage, turn: TokenUsage) -> ObjectUsage {
    let total = turn.input_tokens.saturating_add(turn.output_tokens);
    ObjectUsage {
        prompt_tokens: sum.prompt_tokens.saturating_add(turn.input_tokens),
        completion_tokens: sum.completion_tokens.saturating_add(turn.output_tokens),
        total_tokens: sum.total_tokens.saturating_add(total),
        cache_read_tokens: turn.cache_read_tokens,
        cache_write_tokens: turn.cache_write_tokens,
    }
}

/// What was heard of the round under way.
#[derive(Debug, Default)]
struct Heard {
    text: Arriving,
    call: Arriving,
    /// Which call is listened to: the first that began.
    place: Option<usize>,
    thought: String,
}

impl Heard {
    /// What the object is expected in.
    fn object(&mut self) -> &mut Arriving {
        if self.place.is_some() { &mut self.call } else { &mut self.text }
    }
}

/// Listens to the rounds: shows views of the first, and notices when an object is whole.
struct Watching<'a> {
    schema: &'a ObjectSchema,
    partials: &'a dyn Partials,
    clock: &'a Arc<dyn Clock>,
    envelope: Envelope,
    asked_at: Duration,
    heard: Mutex<Heard>,
    /// Views are shown of the first round alone.
    is_first: AtomicBool,
    /// When the first request had its slot.
    admitted: watch::Sender<Option<(Instant, Duration)>>,
    /// The object, once it is whole.
    whole: watch::Sender<Option<(Fit, String)>>,
}

impl<'a> Watching<'a> {
    fn new(generation: &Generation<'a>, schema: &'a ObjectSchema, directive: &Directive) -> Self {
        Self {
            schema,
            partials: generation.partials,
            clock: generation.clock,
            envelope: directive.envelope,
            asked_at: generation.clock.monotonic(),
            heard: Mutex::default(),
            is_first: true.into(),
            admitted: watch::Sender::new(None),
            whole: watch::Sender::new(None),
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the round: the next is heard anew.
    fn take_round(&self) -> Heard {
        self.is_first.store(false, Ordering::Relaxed);
        self.whole.send_replace(None);
        std::mem::take(&mut *self.heard())
    }

    fn whole(&self) -> Option<(Fit, String)> {
        self.whole.borrow().clone()
    }

    fn queue_wait_ms(&self) -> u64 {
        let admitted = *self.admitted.borrow();
        let wait = admitted.map_or(Duration::ZERO, |(_, at)| at.saturating_sub(self.asked_at));
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
    }

    /// Ends when the time is over, which begins with the first slot.
    async fn deadline(&self, timeout: Duration) {
        let mut admitted = self.admitted.subscribe();
        let began_at = match admitted.wait_for(Option::is_some).await {
            Ok(began) => began.map(|(at, _)| at),
            Err(_) => None,
        };
        match began_at {
            Some(at) => sleep_until(at + timeout).await,
            None => std::future::pending().await,
        }
    }

    /// Ends when an object was whole and nothing more came for [`SILENCE_GRACE`].
    async fn gone_silent(&self) -> (Fit, String) {
        let mut whole = self.whole.subscribe();
        loop {
            let found = whole.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
            if found.is_none() {
                // The sender lives as long as this does.
                std::future::pending::<()>().await;
            }
            tokio::select! {
                biased;
                _ = whole.changed() => {}
                () = sleep(SILENCE_GRACE) => {
                    if let Some(found) = found {
                        return found;
                    }
                }
            }
        }
    }

    /// Looks at what has arrived: whether it is whole, and whether it is time for a view.
    fn look(&self, heard: &mut Heard) {
        let envelope = self.envelope;
        let arriving = heard.object();
        let fit = arriving.whole().and_then(|text| {
            let fit = self.schema.judge_text(text, false).ok()?;
            Some((fit, text.to_owned()))
        });
        self.whole.send_if_modified(|whole| {
            let differs = *whole != fit;
            *whole = fit;
            differs
        });
        if !self.is_first.load(Ordering::Relaxed) {
            return;
        }
        match arriving.view(self.clock.monotonic(), envelope) {
            Some(View::Shown(json)) => self.partials.partial(&json),
            Some(View::Omitted(bytes)) => self.partials.omitted(bytes),
            None => {}
        }
    }
}

impl TurnSink for Watching<'_> {
    fn text_delta(&self, text: &str) {
        let mut heard = self.heard();
        heard.text.push(text);
        // Words beside a call are not the object.
        if heard.place.is_none() {
            self.look(&mut heard);
        }
    }

    fn reasoning_delta(&self, text: &str) {
        let mut heard = self.heard();
        let room = THOUGHT_BYTES_MAX.saturating_sub(heard.thought.len());
        heard.thought.push_str(&text[..text.floor_char_boundary(room)]);
    }

    fn call_delta(&self, delta: CallDelta<'_>) {
        let mut heard = self.heard();
        if *heard.place.get_or_insert(delta.place) == delta.place {
            heard.call.push(delta.arguments);
            self.look(&mut heard);
        }
    }

    fn begun(&self) {
        self.admitted.send_if_modified(|admitted| {
            let is_first = admitted.is_none();
            admitted.get_or_insert_with(|| (Instant::now(), self.clock.monotonic()));
            is_first
        });
    }

    fn restarted(&self) {
        let mut heard = self.heard();
        let (text, call) = (std::mem::take(&mut heard.text), std::mem::take(&mut heard.call));
        *heard = Heard { text, call, ..Heard::default() };
        heard.text.clear();
        heard.call.clear();
        self.whole.send_replace(None);
    }
}

#[cfg(test)]
mod tests;
