//! The state of a session: the fold of its facts, and the next step that follows from it.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;
use toolwarden_actors::budget::Amount;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId, TaskId};

use crate::facts::{BackgroundStart, ChildPlace, Fact, RunBounds, Settings};
use crate::models::picture::Picture;
use crate::models::transcript::{CUT_OFF, INTERRUPTED};
use crate::models::{CallArguments, Message, ModelCall, ModelTurn, StopReason, TokenUsage, ToolResult};
use crate::run_status::RunStatus;
use crate::verification::VerificationReport;

/// Most sources that a run reports.
pub const SOURCE_ANCHORS_MAX: usize = 64;

/// Most child runs whose ends a session remembers.
pub const CHILDREN_MAX: usize = 1024;

/// Most reports of background tasks that wait for the next run; beyond it the oldest is dropped.
pub const WAITING_REPORTS_MAX: usize = 256;

/// Most verification reports that a session remembers.
pub const REPORTS_MAX: usize = 256;

/// Where a session stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct State {
    /// What it was opened with.
    pub settings: Option<Box<Settings>>,
    /// The conversation; calls and results always in pairs.
    pub messages: Vec<Message>,
    /// The run under way.
    pub run: Option<Box<Run>>,
    /// How the last run ended.
    pub last: Option<Box<EndedRun>>,
    /// What all runs that ended have used.
    pub usage: TokenUsage,
    /// Runs that ended.
    pub runs: u64,
    /// Calls that have their results.
    pub calls: u64,
    /// Child runs in the order they began, the last [`CHILDREN_MAX`].
    pub children: IndexMap<TaskId, ChildRecord>,
    /// Child runs that began, and those of child runs that have ended.
    pub child_runs: u64,
    /// What child runs that ended have used, their own children included.
    pub children_used: Amount,
    /// Artifacts that results refer to, in order of appearance.
    pub artifacts: indexmap::IndexSet<String>,
    /// What was verified, the oldest first, the last [`REPORTS_MAX`].
    pub verification_reports: Vec<VerificationReport>,
    /// What background tasks came to while no run was under way: the next run begins with it.
    pub task_reports: Vec<String>,
    /// How many facts this is the fold of.
    pub position: u64,
}

/// A run under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What it was asked.
    pub prompt: String,
    /// Its bounds.
    pub bounds: RunBounds,
    /// Model turns taken.
    pub turns: u32,
    /// What it used.
    pub usage: TokenUsage,
    /// Files and addresses that its calls named, in order of appearance, at most [`SOURCE_ANCHORS_MAX`].
    pub source_anchors: Vec<String>,
    malformed_rounds: u32,
    /// The last call and how often in a row it was made.
    last_call: Option<(Digest, u32)>,
    /// Whether the last call was already held back for being repeated.
    guarded: bool,
    /// The turn whose calls are not all answered yet.
    open: Option<OpenTurn>,
    /// Words that were put in, until the turn is whole that could not know of them.
    steers: Vec<String>,
    /// How it will end, once that is clear.
    verdict: Option<(RunStatus, String)>,
}

/// The turn whose calls are not all answered yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OpenTurn {
    text: String,
    calls: Vec<OpenCall>,
    all_malformed: bool,
    repeated: bool,
    /// Whether the output limit cut the turn, so that none of its calls may be believed.
    #[serde(default)]
    cut: bool,
}

/// A call of the last turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenCall {
    /// What the model wants.
    pub call: ModelCall,
    /// How far it has come.
    pub stage: CallStage,
    /// Whether its arguments were kept without their secrets.
    pub withheld: bool,
}

/// How far a call has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStage {
    /// The model wants it.
    Proposed,
    /// Its final arguments stand.
    Bound {
        /// The invocation that it became.
        invocation: InvocationId,
        /// Whether the tool declares that twice is as good as once.
        idempotent: bool,
        /// Whether the tool has started.
        started: bool,
        /// What the person said who was asked; none while the question is open, or when nobody was asked.
        approved: Option<bool>,
    },
    /// It has its result.
    Ended(ToolResult),
}

/// A child run, as its parent remembers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildRecord {
    /// Its session.
    pub session: SessionId,
    /// Its agent.
    pub agent: String,
    /// How it stands.
    pub end: ChildEnd,
    /// The call that waits for it, as long as that has no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ChildPlace>,
    /// What it was started with, when it goes on after the call that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<Box<BackgroundStart>>,
    /// Whether the turn that asked for it stands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub promoted: bool,
}

impl ChildRecord {
    /// Whether it is a background task that goes on when its session is opened again.
    fn goes_on(&self) -> bool {
        self.end == ChildEnd::Open && self.promoted && self.background.as_ref().is_some_and(|start| start.whole)
    }
}

/// How a child run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildEnd {
    /// Under way.
    Open,
    /// It came to an answer.
    Succeeded,
    /// It came to none.
    Failed,
    /// The process ended before it did.
    Interrupted,
}

/// A run that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedRun {
    /// Its id.
    pub id: RunId,
    /// How it ended.
    pub status: RunStatus,
    /// The model's last words; may be empty.
    pub text: String,
    /// What it used.
    pub usage: TokenUsage,
    /// Model turns taken.
    pub turns: u32,
    /// Files and addresses that its calls named.
    pub source_anchors: Vec<String>,
}

/// What a session does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing: it waits to be asked.
    Wait,
    /// Asks the model for a turn.
    Ask {
        /// Whether the turn may have calls.
        may_call: bool,
    },
    /// Runs these calls, in the model's order.
    Call(Vec<OpenCall>),
    /// Ends the run.
    End {
        /// How.
        status: RunStatus,
        /// The model's last words.
        text: String,
    },
}

/// A fact that does not fit where it stands: the log was changed by hand, or this is a bug.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("fact {position} does not fit: {message}")]
pub struct Misplaced {
    /// Which fact, counted from 1.
    pub position: u64,
    /// Why.
    pub message: String,
}

impl State {
    /// Folds facts from the beginning.
    ///
    /// # Errors
    /// [`Misplaced`] for the first that does not fit.
    pub fn fold(facts: impl IntoIterator<Item = Fact>) -> Result<Self, Misplaced> {
        let mut state = Self::default();
        for fact in facts {
            state.apply(fact)?;
        }
        Ok(state)
    }

    /// Takes one more fact. A fact that does not fit changes nothing.
    ///
    /// # Errors
    /// [`Misplaced`].
    pub fn apply(&mut self, fact: Fact) -> Result<(), Misplaced> {
        let taken = self.take(fact);
        let position = self.position + 1;
        taken.map_err(|message| Misplaced { position, message })?;
        self.position = position;
        Ok(())
    }

    /// What follows from where the session stands.
    pub fn next_step(&self) -> Step {
        let Some(run) = &self.run else { return Step::Wait };
        if let Some((status, text)) = &run.verdict {
            return Step::End { status: status.clone(), text: text.clone() };
        }
        match &run.open {
            Some(open) => Step::Call(open.waiting().cloned().collect()),
            None => Step::Ask { may_call: run.may_call() },
        }
    }

    /// What must be said before a session goes on whose process ended: which calls are not run again, or that
    /// children are gone. None when nothing was under way.
    pub fn interruption(&self) -> Option<Fact> {
        let open = self.run.iter().filter_map(|run| run.open.as_ref()).flat_map(OpenTurn::waiting);
        let calls: Vec<String> = open.filter(|call| !call.may_run()).map(|call| call.call.id.clone()).collect();
        (!calls.is_empty() || self.open_children() > 0).then_some(Fact::Interruption { calls })
    }

    /// What was used so far, the run under way included.
    pub fn usage_so_far(&self) -> TokenUsage {
        self.run.as_ref().map_or(self.usage, |run| self.usage.plus(run.usage))
    }

    /// What was used so far, by child runs too as far as they have ended.
    pub fn used(&self) -> Amount {
        let tokens = self.usage_so_far();
        let own = Amount {
            calls: self.calls,
            input_tokens: tokens.input_tokens,
            output_tokens: tokens.output_tokens,
            ..Amount::default()
        };
        own.saturating_add(self.children_used)
    }

    /// How many child runs are under way that end with their process.
    pub fn open_children(&self) -> usize {
        self.children.values().filter(|child| self.is_lost(child)).count()
    }

    /// Whether a child run is under way and would not be gone on with: neither by itself nor by its call, which runs
    /// again.
    fn is_lost(&self, child: &ChildRecord) -> bool {
        let call_runs_again = || child.place.as_ref().is_some_and(|place| self.runs_again(&place.call));
        child.end == ChildEnd::Open && !child.goes_on() && !call_runs_again()
    }

    /// Whether a call of the turn under way runs when the session is opened again.
    fn runs_again(&self, call: &str) -> bool {
        let mut open = self.run.iter().filter_map(|run| run.open.as_ref()).flat_map(OpenTurn::waiting);
        open.any(|waiting| waiting.call.id == call && waiting.may_run())
    }

    /// The child run that stands at this place, where its call has begun before.
    pub fn child_at(&self, place: &ChildPlace) -> Option<(&TaskId, &ChildRecord)> {
        self.children.iter().find(|(_, child)| child.place.as_ref() == Some(place))
    }

    /// The background tasks that go on when the session is opened again, in the order they began.
    pub fn tasks_to_go_on(&self) -> impl Iterator<Item = (&TaskId, &ChildRecord)> {
        self.children.iter().filter(|(_, child)| child.goes_on())
    }

    fn take(&mut self, fact: Fact) -> Result<(), String> {
        match fact {
            Fact::Opened(settings) => self.settings = Some(settings),
            Fact::UserMessage { run, text, pictures, bounds } => self.begin(run, text, pictures, bounds)?,
            Fact::ModelTurn { turn, withheld } => {
                let run = open_run(&mut self.run, "a model's turn")?;
                run.take_turn(*turn, &withheld, &mut self.messages)?;
            }
            Fact::CallBound { call, invocation, idempotent, .. } => {
                let found = open_run(&mut self.run, "a bound call")?.call(&call)?;
                if matches!(found.stage, CallStage::Ended(_)) {
                    return Err(format!("the call {call:?} has its result already"));
                }
                // Bound before, the process ended then: this is its next life.
                found.stage = CallStage::Bound { invocation, idempotent, started: false, approved: None };
            }
            Fact::CallStarted { invocation } => {
                *open_run(&mut self.run, "a started call")?.bound(&invocation)?.0 = true;
            }
            Fact::ConfirmationAsked { invocation, .. } => {
                *open_run(&mut self.run, "a question")?.bound(&invocation)?.1 = None;
            }
            Fact::ConfirmationAnswered { invocation, approved } => {
                *open_run(&mut self.run, "an answer")?.bound(&invocation)?.1 = Some(approved);
            }
            Fact::CallEnded { result, source_anchors, artifacts } => {
                let run = open_run(&mut self.run, "a call's result")?;
                let call = result.call_id.clone();
                run.end_call(result)?;
                run.collect(source_anchors);
                self.artifacts.extend(artifacts);
                self.calls += 1;
                if run.close_turn(&mut self.messages) {
                    let run = run.id.clone();
                    self.promote(&run);
                }
                self.part_from(&call);
            }
            Fact::Steer { text } => {
                open_run(&mut self.run, "a word put in")?.steers.push(text);
            }
            Fact::ChildStarted { task, session, agent, place, background } => {
                let promoted = background.as_ref().is_some_and(|start| start.run.is_none());
                let child = ChildRecord { session, agent, end: ChildEnd::Open, place, background, promoted };
                self.child_runs = self.child_runs.saturating_add(1);
                self.remember_child(task, child);
            }
            Fact::ChildEnded { task, success, report, used, child_runs } => {
                let end = if success { ChildEnd::Succeeded } else { ChildEnd::Failed };
                if let Some(child) = self.children.get_mut(&task) {
                    // One that is told again, because its call runs again, has used nothing more.
                    if child.end == ChildEnd::Open {
                        self.children_used = self.children_used.saturating_add(used);
                        self.child_runs = self.child_runs.saturating_add(child_runs);
                    }
                    child.end = end;
                    // What it was asked is needed no longer.
                    child.background = None;
                }
                if let Some(report) = report {
                    self.take_report(report);
                }
            }
            Fact::Compacted { messages, summary, usage } => self.compact(messages, summary, usage)?,
            Fact::Verified { report } => {
                if self.verification_reports.len() >= REPORTS_MAX {
                    self.verification_reports.remove(0);
                }
                self.verification_reports.push(*report);
            }
            Fact::Interruption { calls } => self.interrupt(&calls)?,
            Fact::Ending { status, text } => self.end(status, text)?,
        }
        Ok(())
    }

    fn begin(&mut self, id: RunId, text: String, pictures: Vec<Picture>, bounds: RunBounds) -> Result<(), String> {
        if let Some(run) = &self.run {
            return Err(format!("run {id} begins while run {} is under way", run.id));
        }
        self.messages.extend(self.task_reports.drain(..).map(|text| Message::User { text }));
        self.messages.extend(pictures.into_iter().map(Picture::into_message));
        self.messages.push(Message::User { text: text.clone() });
        self.run = Some(Box::new(Run {
            id,
            prompt: text,
            bounds,
            turns: 0,
            usage: TokenUsage::default(),
            source_anchors: Vec::new(),
            malformed_rounds: 0,
            last_call: None,
            guarded: false,
            open: None,
            steers: Vec::new(),
            verdict: None,
        }));
        Ok(())
    }

    /// Puts a summary in the place of the oldest messages; calls and results stay in pairs.
    fn compact(&mut self, messages: usize, summary: String, usage: TokenUsage) -> Result<(), String> {
        let run = open_run(&mut self.run, "a summary")?;
        if run.open.is_some() || messages == 0 || messages > self.messages.len() {
            return Err(format!("a summary of {messages} messages, of {}", self.messages.len()));
        }
        if matches!(self.messages.get(messages), Some(Message::ToolResults { .. })) {
            return Err("a summary that parts calls from their results".to_owned());
        }
        run.usage = run.usage.plus(usage);
        self.messages.splice(..messages, [Message::User { text: summary }]);
        Ok(())
    }

    fn remember_child(&mut self, task: TaskId, child: ChildRecord) {
        if self.children.len() >= CHILDREN_MAX {
            // One that is under way is forgotten last.
            let ended = self.children.values().position(|child| child.end != ChildEnd::Open);
            self.children.shift_remove_index(ended.unwrap_or(0));
        }
        self.children.insert(task, child);
    }

    /// The turn that asked for them stands: its background tasks are the session's from here on.
    fn promote(&mut self, run: &RunId) {
        let of_run =
            |child: &ChildRecord| child.background.as_ref().is_some_and(|start| start.run.as_ref() == Some(run));
        for child in self.children.values_mut().filter(|child| child.end == ChildEnd::Open && of_run(child)) {
            child.promoted = true;
        }
    }

    /// What a background task came to goes to the model with the next turn; the next run's when none is under way.
    fn take_report(&mut self, report: String) {
        match &mut self.run {
            Some(run) if run.verdict.is_none() => run.steers.push(report),
            _ => {
                if self.task_reports.len() >= WAITING_REPORTS_MAX {
                    self.task_reports.remove(0);
                }
                self.task_reports.push(report);
            }
        }
    }

    fn interrupt(&mut self, calls: &[String]) -> Result<(), String> {
        if !calls.is_empty() {
            // All or nothing: a fact that does not fit changes nothing.
            let run = open_run(&mut self.run, "an interruption")?;
            for id in calls {
                if matches!(run.call(id)?.stage, CallStage::Ended(_)) {
                    return Err(format!("the call {id:?} has its result already"));
                }
            }
        }
        let lost: Vec<TaskId> =
            self.children.iter().filter(|(_, child)| self.is_lost(child)).map(|(task, _)| task.clone()).collect();
        for task in lost {
            if let Some(child) = self.children.get_mut(&task) {
                (child.end, child.background) = (ChildEnd::Interrupted, None);
            }
        }
        if calls.is_empty() {
            return Ok(());
        }
        let run = open_run(&mut self.run, "an interruption")?;
        for id in calls {
            let result = interrupted(&run.call(id)?.call);
            run.end_call(result)?;
        }
        run.close_turn(&mut self.messages);
        calls.iter().for_each(|call| self.part_from(call));
        Ok(())
    }

    /// A call has its result: it does not run again, so nobody comes back to its child runs.
    fn part_from(&mut self, call: &str) {
        for child in self.children.values_mut() {
            child.place.take_if(|place| place.call == call);
        }
    }

    fn end(&mut self, status: RunStatus, text: String) -> Result<(), String> {
        let Some(mut run) = self.run.take() else { return Err("an ending without a run".to_owned()) };
        // A run that was cut short leaves calls without results; the next one needs them in pairs.
        let waiting: Vec<ToolResult> =
            run.open.iter().flat_map(OpenTurn::waiting).map(|call| interrupted(&call.call)).collect();
        for result in waiting {
            // They wait, so they can end.
            let _ = run.end_call(result);
        }
        run.close_turn(&mut self.messages);
        run.hand_over_steers(&mut self.messages);
        self.usage = self.usage.plus(run.usage);
        self.runs += 1;
        // A run has ended after its children: one that was not told of was lost with its process.
        for child in self.children.values_mut() {
            child.place = None;
            if child.end == ChildEnd::Open && child.background.is_none() {
                child.end = ChildEnd::Interrupted;
            }
        }
        let Run { id, turns, usage, source_anchors, .. } = *run;
        self.last = Some(Box::new(EndedRun { id, status, text, usage, turns, source_anchors }));
        Ok(())
    }
}

impl OpenCall {
    /// Whether the call may run, for the first time or once more.
    pub fn may_run(&self) -> bool {
        match &self.stage {
            _ if self.withheld => false,
            CallStage::Proposed => true,
            CallStage::Bound { idempotent, started, .. } => *idempotent || !started,
            CallStage::Ended(_) => false,
        }
    }
}

impl OpenTurn {
    fn waiting(&self) -> impl Iterator<Item = &OpenCall> {
        self.calls.iter().filter(|call| !matches!(call.stage, CallStage::Ended(_)))
    }
}

impl Run {
    fn may_call(&self) -> bool {
        self.turns < self.bounds.rounds_max
    }

    fn take_turn(&mut self, turn: ModelTurn, withheld: &[String], messages: &mut Vec<Message>) -> Result<(), String> {
        if self.open.is_some() || self.verdict.is_some() {
            return Err(format!("a turn of run {} while {}", self.id, self.busy_with()));
        }
        let may_call = self.may_call();
        self.turns += 1;
        self.usage = self.usage.plus(turn.usage);
        let (stop, text) = (turn.stop, turn.text.clone());
        match stop {
            StopReason::Refusal | StopReason::ContentFilter => self.verdict = Some((RunStatus::Refused, text)),
            StopReason::ContextOverflow => self.verdict = Some((RunStatus::ContextFull, text)),
            // Calls that may be cut as well get the chance to come again, smaller.
            StopReason::MaxTokens if turn.calls.is_empty() || !may_call => {
                self.verdict = Some((RunStatus::Cut, text));
            }
            _ if !may_call => {
                self.verdict = Some((RunStatus::ToolRoundLimit { rounds: self.bounds.rounds_max }, text));
            }
            StopReason::EndTurn | StopReason::ToolUse | StopReason::Paused | StopReason::MaxTokens => {
                if turn.calls.is_empty() && stop != StopReason::Paused && self.steers.is_empty() {
                    self.verdict = Some((RunStatus::Completed, text));
                } else if !turn.calls.is_empty() {
                    self.open_turn(text, turn.calls.clone(), withheld, stop == StopReason::MaxTokens);
                }
                messages.push(turn.into_message());
                match self.open {
                    Some(_) => {
                        // Calls that were all held back start nothing.
                        self.close_turn(messages);
                    }
                    None => self.hand_over_steers(messages),
                }
            }
        }
        Ok(())
    }

    fn busy_with(&self) -> &'static str {
        if self.open.is_some() { "calls are under way" } else { "it is about to end" }
    }

    fn open_turn(&mut self, text: String, calls: Vec<ModelCall>, withheld: &[String], cut: bool) {
        let all_malformed = cut || calls.iter().all(|call| matches!(call.arguments, CallArguments::Malformed { .. }));
        let mut repeated = false;
        let opened = calls.into_iter().map(|call| {
            let held = if cut { Some(failed(&call, CUT_OFF.to_owned())) } else { self.held_back(&call, &mut repeated) };
            let stage = held.map_or(CallStage::Proposed, CallStage::Ended);
            OpenCall { withheld: withheld.contains(&call.id), call, stage }
        });
        let calls = opened.collect();
        if cut {
            self.last_call = None;
        }
        self.open = Some(OpenTurn { text, calls, all_malformed, repeated, cut });
    }

    /// A call that is not run: its arguments are malformed, or it was made too often in a row.
    fn held_back(&mut self, call: &ModelCall, repeated: &mut bool) -> Option<ToolResult> {
        let arguments = match &call.arguments {
            CallArguments::Malformed { error, .. } => {
                self.last_call = None;
                return Some(failed(call, format!("the arguments were not run: {error}. Send one JSON object")));
            }
            CallArguments::Parsed(arguments) => arguments,
        };
        let digest = Digest::of_json(&json!([call.tool.as_str(), arguments]));
        let count = match &self.last_call {
            Some((last, count)) if *last == digest => count + 1,
            _ => 1,
        };
        self.last_call = Some((digest, count));
        if count <= self.bounds.same_call_max {
            self.guarded = false;
            return None;
        }
        // Held back once with a warning; the next time in a row ends the run.
        *repeated |= std::mem::replace(&mut self.guarded, true);
        let text =
            format!("this call was made {count} times in a row and was not run again; its result will not change");
        Some(failed(call, text))
    }

    fn call(&mut self, id: &str) -> Result<&mut OpenCall, String> {
        let calls = self.open.iter_mut().flat_map(|open| &mut open.calls);
        let mut found = calls.filter(|call| call.call.id == id);
        found.next().ok_or_else(|| format!("no call {id:?} is under way"))
    }

    /// Whether the invocation has started, and what was said about it.
    fn bound(&mut self, wanted: &InvocationId) -> Result<(&mut bool, &mut Option<bool>), String> {
        let calls = self.open.iter_mut().flat_map(|open| &mut open.calls);
        for call in calls {
            if let CallStage::Bound { invocation, started, approved, .. } = &mut call.stage
                && invocation == wanted
            {
                return Ok((started, approved));
            }
        }
        Err(format!("no invocation {wanted} is under way"))
    }

    fn end_call(&mut self, result: ToolResult) -> Result<(), String> {
        let call = self.call(&result.call_id)?;
        if matches!(call.stage, CallStage::Ended(_)) {
            return Err(format!("a second result for the call {:?}", result.call_id));
        }
        call.stage = CallStage::Ended(result);
        Ok(())
    }

    /// Hands the results over once all calls have theirs; returns whether that is so now.
    fn close_turn(&mut self, messages: &mut Vec<Message>) -> bool {
        let is_whole = |open: &mut OpenTurn| open.waiting().next().is_none();
        let Some(open) = self.open.take_if(is_whole) else { return false };
        let results = open.calls.into_iter().filter_map(|call| match call.stage {
            CallStage::Ended(result) => Some(result),
            _ => None,
        });
        messages.push(Message::ToolResults { results: results.collect() });
        self.hand_over_steers(messages);
        self.malformed_rounds = if open.all_malformed { self.malformed_rounds + 1 } else { 0 };
        if open.repeated {
            self.verdict = Some((RunStatus::RepeatedCalls, open.text));
        } else if self.malformed_rounds > self.bounds.malformed_rounds_max {
            let status = if open.cut { RunStatus::Cut } else { RunStatus::MalformedCalls };
            self.verdict = Some((status, open.text));
        }
        true
    }

    /// Words that were put in come after the turn that could not know of them.
    fn hand_over_steers(&mut self, messages: &mut Vec<Message>) {
        messages.extend(self.steers.drain(..).map(|text| Message::User { text }));
    }

    fn collect(&mut self, anchors: Vec<String>) {
        for anchor in anchors {
            if self.source_anchors.len() < SOURCE_ANCHORS_MAX && !self.source_anchors.contains(&anchor) {
                self.source_anchors.push(anchor);
            }
        }
    }

    /// The text of the turn whose calls are under way.
    pub fn open_text(&self) -> &str {
        self.open.as_ref().map_or("", |open| &open.text)
    }
}

fn open_run<'a>(run: &'a mut Option<Box<Run>>, what: &str) -> Result<&'a mut Run, String> {
    run.as_deref_mut().ok_or_else(|| format!("{what} while no run is under way"))
}

fn failed(call: &ModelCall, output: String) -> ToolResult {
    ToolResult { call_id: call.id.clone(), tool: call.tool.clone(), output, success: false }
}

fn interrupted(call: &ModelCall) -> ToolResult {
    failed(call, INTERRUPTED.to_owned())
}
