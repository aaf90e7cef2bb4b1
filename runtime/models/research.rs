//! `builtin:research`: a researcher without a language model, behind the same port as any other model.
//!
//! It answers a question by search alone. A parent run takes the question apart and gives the parts to child runs
//! through one `task` call; each child searches, reads the best places in one `read` call and returns evidence; the
//! parent lays the evidence over each other, ranks it, and quotes it. Where no `task` tool is on offer, or it is
//! refused, the parent researches by itself. What to do next follows from the conversation alone: the same
//! conversation always gives the same turn, and nothing is kept between turns.

mod term;
mod vocabulary;

mod cjk;
mod focus;
mod listing;

mod question;

mod judge;

mod evidence;

mod answer;
mod assignment;
mod plan;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use self::assignment::{Assignment, description, prompt};
use self::evidence::{Evidence, first_line};
use self::focus::Focus;
use self::judge::Judge;
use super::{CallArguments, Message, Model, ModelCall, ModelError, ModelRequest, ModelTurn, ToolResult, TurnSink};

/// How it is named.
pub const RESEARCH_NAME: &str = "builtin:research";
/// The agent that its child runs are.
pub const RESEARCH_CHILD_AGENT: &str = "explore";
/// Most child runs of one `task` call, whatever the request says; the tool takes no more.
const TASKS_MAX: usize = 32;
/// Most turns with searches: the first, and a looser one.
const SEARCH_ROUNDS_MAX: usize = 2;
/// Most turns before the last word, against a conversation that does not answer as expected.
const ROUNDS_MAX: usize = 8;

/// The extractive researcher.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResearchModel;

impl Model for ResearchModel {
    fn name(&self) -> &str {
        RESEARCH_NAME
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        Box::pin(async move {
            let turn = next_turn(request)?;
            if !turn.text.is_empty() {
                sink.text_delta(&turn.text);
            }
            Ok(turn)
        })
    }
}

/// What has happened since the question, as the conversation tells it.
#[derive(Debug, Default)]
struct Progress {
    evidence: Evidence,
    /// Turns taken for this question.
    rounds: usize,
    /// Those with searches.
    search_rounds: usize,
    has_delegated: bool,
    has_read: bool,
}

fn next_turn(request: &ModelRequest) -> Result<ModelTurn, ModelError> {
    let asked = request.messages.iter().rposition(|message| matches!(message, Message::User { .. }));
    let Some((at, Message::User { text: question })) = asked.map(|at| (at, &request.messages[at])) else {
        return Err(ModelError::Invalid { message: "the conversation holds no question".to_owned() });
    };
    let is_child = request.agent == RESEARCH_CHILD_AGENT;
    let assignment = if is_child { Assignment::parse(question) } else { Assignment::whole(question) };
    let progress = Progress::follow(&request.messages[at + 1..]);
    let step = if assignment.focuses.is_empty() {
        None
    } else {
        next_calls(request, is_child, question, &assignment, &progress)
    };
    Ok(match step {
        Some(wanted) => ModelTurn::calling("", calls(request, wanted)),
        None => ModelTurn::answer(last_word(is_child, assignment, progress)),
    })
}

/// The calls of the next turn; none when it is time for the last word.
fn next_calls(
    request: &ModelRequest,
    is_child: bool,
    question: &str,
    assignment: &Assignment,
    progress: &Progress,
) -> Option<Vec<(&'static str, Value)>> {
    if progress.rounds >= ROUNDS_MAX || progress.evidence.has_children {
        return None;
    }
    if !is_child && !progress.has_delegated && progress.rounds == 0 && request.offers("task") {
        return Some(vec![("task", delegation(question, &assignment.focuses, request.fan_out))]);
    }
    let mut calls: Vec<(&'static str, Value)> = Vec::new();
    let mut search = |searches: Vec<Value>| calls.extend(searches.into_iter().map(|search| ("search", search)));
    if progress.search_rounds == 0 {
        if request.offers("search") {
            search(plan::first_searches(&assignment.focuses, &assignment.question));
        }
    } else if !progress.has_read {
        let judge = Judge::new(&assignment.focuses, assignment.question.clone());
        if progress.search_rounds < SEARCH_ROUNDS_MAX && request.offers("search") {
            search(plan::loose_searches(&not_found(&progress.evidence, &judge, &assignment.focuses)));
        }
        if request.offers("read") {
            let read = plan::read(&progress.evidence.listing, &judge, assignment.focuses.len());
            calls.extend(read.map(|read| ("read", read)));
        }
    }
    (!calls.is_empty()).then_some(calls)
}

/// The arguments of the `task` call: the parts dealt out in turn.
fn delegation(question: &str, focuses: &[Focus], fan_out: usize) -> Value {
    let width = fan_out.clamp(1, TASKS_MAX).min(focuses.len());
    let hand = |first: usize| focuses.iter().skip(first).step_by(width).cloned().collect::<Vec<Focus>>();
    let tasks: Vec<Value> = (0..width)
        .map(hand)
        .map(|own| {
            json!({
                "agent": RESEARCH_CHILD_AGENT,
                "description": description(&own),
                "prompt": prompt(question, &own),
            })
        })
        .collect();
    // One child's failure must not hide what the others found.
    json!({"tasks": tasks, "allow_partial_failure": true})
}

fn not_found<'a>(evidence: &Evidence, judge: &Judge, focuses: &'a [Focus]) -> Vec<&'a Focus> {
    let is_missing = |part: &usize| !judge.hits(&evidence.listing, *part, 1, &|_, _| 1).iter().any(|hit| hit.whole);
    (0..focuses.len()).filter(is_missing).filter_map(|part| focuses.get(part)).collect()
}

fn last_word(is_child: bool, assignment: Assignment, mut progress: Progress) -> String {
    let Assignment { question, focuses } = assignment;
    if focuses.is_empty() {
        return answer::NOTHING_ASKED.to_owned();
    }
    if progress.search_rounds == 0 && !progress.evidence.has_children {
        progress.evidence.note_failure("no search was made, for no search tool is on offer");
    }
    let judge = Judge::new(&focuses, question);
    if is_child {
        let parts: Vec<String> = focuses.into_iter().map(|focus| focus.text).collect();
        evidence::write(&progress.evidence.listing, &judge, &parts, &progress.evidence.failures)
    } else {
        answer::write(&progress.evidence, &judge, &focuses)
    }
}

/// Calls with ids that are unique in the conversation.
fn calls(request: &ModelRequest, wanted: Vec<(&'static str, Value)>) -> Vec<ModelCall> {
    let turns = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
    let call = |(index, (tool, arguments)): (usize, (&'static str, Value))| ModelCall {
        id: format!("{tool}-{}-{}", turns + 1, index + 1),
        tool: tool.into(),
        arguments: CallArguments::Parsed(arguments),
    };
    wanted.into_iter().enumerate().map(call).collect()
}

impl Progress {
    /// Reads the messages after the question.
    fn follow(messages: &[Message]) -> Self {
        let mut progress = Self::default();
        for (index, message) in messages.iter().enumerate() {
            let Message::Assistant { calls, .. } = message else { continue };
            progress.rounds += 1;
            progress.search_rounds += usize::from(calls.iter().any(|call| call.tool.as_str() == "search"));
            let results: BTreeMap<&str, &ToolResult> = match messages.get(index + 1) {
                Some(Message::ToolResults { results }) => {
                    results.iter().map(|result| (result.call_id.as_str(), result)).collect()
                }
                _ => BTreeMap::new(),
            };
            for call in calls {
                progress.take(call, results.get(call.id.as_str()).copied());
            }
        }
        progress
    }

    fn take(&mut self, call: &ModelCall, result: Option<&ToolResult>) {
        let tool = call.tool.as_str();
        self.has_delegated |= tool == "task";
        self.has_read |= tool == "read";
        let Some(result) = result else {
            self.evidence.note_failure(&format!("{tool}: no result came back"));
            return;
        };
        if tool == "task" {
            self.evidence.take_task_output(&result.output, result.success);
            return;
        }
        if !result.success {
            self.evidence.note_failure(&format!("{tool}: {}", first_line(&result.output)));
            return;
        }
        let is_ranked = |arguments: &CallArguments| match arguments {
            CallArguments::Parsed(value) => value["mode"] == "bm25",
            CallArguments::Malformed { .. } => false,
        };
        let listing = &mut self.evidence.listing;
        match tool {
            "read" => listing.take_read(&result.output),
            "search" if is_ranked(&call.arguments) => listing.take_ranked(&result.output),
            "search" => listing.take_matches(&result.output),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
