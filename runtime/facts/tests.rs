//! The fold against a naive one, each step and each ending, and what is told of a fact that does not fit.

use proptest::prelude::*;
use serde_json::{Value, json};
use toolwarden_actors::budget::Amount;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::ChildTask;
use toolwarden_tools::digest::Digest;

use crate::facts::state::{CallStage, ChildEnd, State, Step, WAITING_REPORTS_MAX};
use crate::facts::{BackgroundStart, ChildPlace, Fact, RunBounds};
use crate::models::transcript::{CUT_OFF, INTERRUPTED, check_pairing};
use crate::models::{CallArguments, Message, ModelCall, ModelTurn, StopReason, TokenUsage, ToolResult};
use crate::run_status::RunStatus;

const BOUNDS: RunBounds = RunBounds { rounds_max: 4, malformed_rounds_max: 1, same_call_max: 2 };

fn asked(run: &str) -> Fact {
    Fact::UserMessage { run: run.into(), text: format!("question of {run}"), pictures: Vec::new(), bounds: BOUNDS }
}

fn turn(turn: ModelTurn) -> Fact {
    Fact::ModelTurn { turn: Box::new(turn), withheld: Vec::new() }
}

fn call(id: &str, arguments: Value) -> ModelCall {
    ModelCall { id: id.into(), tool: "write".into(), arguments: CallArguments::from_value(arguments) }
}

fn calling(ids: &[&str]) -> Fact {
    turn(ModelTurn::calling("on it", ids.iter().map(|id| call(id, json!({ "for": id }))).collect()))
}

fn bound(id: &str, idempotent: bool) -> Fact {
    Fact::CallBound {
        call: id.into(),
        invocation: format!("invocation-{id}").into(),
        arguments: Digest::of(id.as_bytes()),
        idempotent,
    }
}

fn started(id: &str) -> Fact {
    Fact::CallStarted { invocation: format!("invocation-{id}").into() }
}

fn ended(id: &str) -> Fact {
    let result = ToolResult { call_id: id.into(), tool: "write".into(), output: format!("did {id}"), success: true };
    Fact::CallEnded { result, source_anchors: vec![format!("{id}:1")], artifacts: vec![format!("a3s://{id}")] }
}

fn completed() -> Fact {
    Fact::Ending { status: RunStatus::Completed, text: "done".into() }
}

fn results(message: &Message) -> Vec<(&str, &str)> {
    let Message::ToolResults { results } = message else { panic!("no results: {message:?}") };
    results.iter().map(|result| (result.call_id.as_str(), result.output.as_str())).collect()
}

#[test]
fn each_step_follows_from_the_facts_before_it() {
    let mut state = State::default();
    let mut after = |fact| {
        state.apply(fact).unwrap();
        state.next_step()
    };
    assert_eq!(after(asked("r")), Step::Ask { may_call: true });
    let Step::Call(calls) = after(calling(&["a", "b"])) else { panic!("no calls") };
    assert_eq!(calls.iter().map(|call| call.call.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    after(bound("b", false));
    after(started("b"));
    let Step::Call(calls) = after(ended("b")) else { panic!("no calls") };
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].stage, CallStage::Proposed);
    assert_eq!(after(ended("a")), Step::Ask { may_call: true });
    let Step::End { status, text } = after(turn(ModelTurn::answer("there"))) else { panic!("no end") };
    assert_eq!((&status, text.as_str()), (&RunStatus::Completed, "there"));
    assert_eq!(after(Fact::Ending { status, text }), Step::Wait);
    // In the model's order, whichever ended first.
    assert_eq!(results(&state.messages[2]), [("a", "did a"), ("b", "did b")]);
    let last = state.last.as_ref().unwrap();
    assert_eq!((last.turns, last.source_anchors.as_slice()), (2, ["b:1".to_owned(), "a:1".to_owned()].as_slice()));
    assert_eq!((state.position, state.runs, state.artifacts.len()), (8, 1, 2));
}

#[test]
fn every_bound_has_its_ending() {
    let ending = |turns: Vec<Fact>| match State::fold(std::iter::once(asked("r")).chain(turns)).unwrap().next_step() {
        Step::End { status, .. } => status,
        step => panic!("{step:?}"),
    };
    let stopped = |stop| turn(ModelTurn { stop, ..ModelTurn::calling("x", vec![call("a", json!({}))]) });
    assert_eq!(ending(vec![turn(ModelTurn { stop: StopReason::MaxTokens, ..ModelTurn::answer("x") })]), RunStatus::Cut);
    // Case C130: a call that may be cut is not run, and the model is told to send less, as often as it may be wrong.
    let cut =
        |id: &str| turn(ModelTurn { stop: StopReason::MaxTokens, ..ModelTurn::calling("", vec![call(id, json!({}))]) });
    assert_eq!(State::fold([asked("r"), cut("a")]).unwrap().next_step(), Step::Ask { may_call: true });
    assert_eq!(ending(vec![cut("a"), cut("b")]), RunStatus::Cut);
    assert_eq!(ending(vec![stopped(StopReason::ContextOverflow)]), RunStatus::ContextFull);
    assert_eq!(ending(vec![stopped(StopReason::Refusal)]), RunStatus::Refused);
    assert_eq!(ending(vec![stopped(StopReason::ContentFilter)]), RunStatus::Refused);
    let round = |id: &str| [calling(&[id]), ended(id)];
    let mut rounds: Vec<Fact> = ["a", "b", "c", "d"].iter().flat_map(|id| round(id)).collect();
    rounds.push(calling(&["e"]));
    assert_eq!(ending(rounds), RunStatus::ToolRoundLimit { rounds: 4 });
    let malformed = |id: &str| turn(ModelTurn::calling("", vec![call(id, json!([1]))]));
    assert_eq!(ending(vec![malformed("a"), malformed("b")]), RunStatus::MalformedCalls);
    let same = |id: &str| turn(ModelTurn::calling("", vec![call(id, json!({ "same": 1 }))]));
    let repeated = vec![same("a"), ended("a"), same("b"), ended("b"), same("c"), same("d")];
    assert_eq!(ending(repeated), RunStatus::RepeatedCalls);
}

#[test]
fn a_summary_takes_the_place_of_whole_turns() {
    let usage = TokenUsage { input_tokens: 5, ..TokenUsage::default() };
    let compacted = |messages| Fact::Compacted { messages, summary: "so far".into(), usage };
    let mut state = State::fold([asked("r"), calling(&["a"]), ended("a"), calling(&["b"]), ended("b")]).unwrap();
    let before = state.clone();
    // Never apart from its results, never nothing, never more than there is.
    for wrong in [0, 2, 4, 6] {
        assert!(state.apply(compacted(wrong)).is_err(), "{wrong}");
        assert_eq!(state, before);
    }
    state.apply(compacted(3)).unwrap();
    assert_eq!(state.messages.len(), 3);
    assert_eq!(state.messages[0], Message::User { text: "so far".into() });
    assert_eq!((check_pairing(&state.messages), state.next_step()), (Ok(()), Step::Ask { may_call: true }));
    assert_eq!(state.usage_so_far().input_tokens, 5);
    state.apply(calling(&["c"])).unwrap();
    assert!(state.apply(compacted(1)).is_err(), "calls are under way");
}

#[test]
fn only_what_cannot_have_happened_or_is_idempotent_runs_again() {
    // Case C137: a turn with calls, the process gone before they had their results.
    let facts = [
        asked("r"),
        calling(&["done", "started", "idempotent", "bound", "proposed"]),
        bound("done", false),
        started("done"),
        ended("done"),
        bound("started", false),
        started("started"),
        bound("idempotent", true),
        started("idempotent"),
        bound("bound", false),
        child_of("t", None),
    ];
    let mut state = State::fold(facts).unwrap();
    let interruption = state.interruption().unwrap();
    assert_eq!(interruption, Fact::Interruption { calls: vec!["started".into()] });
    state.apply(interruption).unwrap();
    assert_eq!(state.interruption(), None);
    assert_eq!(state.children.values().map(|child| child.end).collect::<Vec<_>>(), [ChildEnd::Interrupted]);
    let Step::Call(calls) = state.next_step() else { panic!("no calls") };
    let again: Vec<&str> = calls.iter().map(|call| call.call.id.as_str()).collect();
    assert_eq!(again, ["idempotent", "bound", "proposed"]);
    for id in again {
        state.apply(bound(id, false)).unwrap();
        state.apply(ended(id)).unwrap();
    }
    assert_eq!(check_pairing(&state.messages), Ok(()));
    assert_eq!(results(&state.messages[2])[1], ("started", INTERRUPTED));
    assert_eq!(state.next_step(), Step::Ask { may_call: true });
}

#[test]
fn a_call_whose_arguments_were_withheld_never_runs_from_the_log() {
    let secret = ModelTurn::calling("", vec![call("a", json!({})), call("b", json!({}))]);
    let fact = Fact::ModelTurn { turn: Box::new(secret), withheld: vec!["b".into()] };
    let state = State::fold([asked("r"), fact]).unwrap();
    assert_eq!(state.interruption(), Some(Fact::Interruption { calls: vec!["b".into()] }));
}

#[test]
fn a_run_that_is_cut_short_leaves_no_call_without_a_result() {
    let status = RunStatus::Cancelled { reason: CancelReason::Requested };
    let ending = Fact::Ending { status: status.clone(), text: String::new() };
    let state = State::fold([asked("r"), calling(&["a", "b"]), ended("a"), ending, asked("r2")]).unwrap();
    assert_eq!(check_pairing(&state.messages), Ok(()));
    assert_eq!(results(&state.messages[2]), [("a", "did a"), ("b", INTERRUPTED)]);
    assert_eq!(state.last.unwrap().status, status);
}

#[test]
fn a_word_put_in_comes_after_the_turn_that_could_not_know_of_it() {
    let steer = || Fact::Steer { text: "also this".into() };
    let state = State::fold([asked("r"), calling(&["a"]), steer(), ended("a")]).unwrap();
    assert_eq!(state.messages.last(), Some(&Message::User { text: "also this".into() }));
    // A last word that could not know of it is not the last.
    let state = State::fold([asked("r"), steer(), turn(ModelTurn::answer("done"))]).unwrap();
    assert_eq!(state.next_step(), Step::Ask { may_call: true });
    assert_eq!(state.messages.last(), Some(&Message::User { text: "also this".into() }));
}

#[test]
fn a_fact_that_does_not_fit_is_told_and_changes_nothing() {
    let begun = [asked("r"), calling(&["a"])];
    let cases = [
        (asked("other"), "run other begins while run r is under way"),
        (calling(&["b"]), "a turn of run r while calls are under way"),
        (ended("b"), "no call \"b\" is under way"),
        (started("a"), "no invocation invocation-a is under way"),
        (bound("b", true), "no call \"b\" is under way"),
        (Fact::Interruption { calls: vec!["a".into(), "b".into()] }, "no call \"b\" is under way"),
    ];
    for (fact, why) in cases {
        let mut state = State::fold(begun.clone()).unwrap();
        let before = state.clone();
        let misplaced = state.apply(fact).unwrap_err();
        assert_eq!((misplaced.position, misplaced.message.as_str()), (3, why));
        assert_eq!(state, before, "{why}");
    }
    for fact in [completed(), ended("a"), calling(&["a"]), Fact::Steer { text: String::new() }] {
        assert!(State::default().apply(fact).is_err());
    }
}

/// What a random session does next; every number is a choice.
fn session(choices: &[u16]) -> Vec<Fact> {
    let (mut state, mut facts) = (State::default(), Vec::new());
    let mut runs = 0;
    for (index, choice) in choices.iter().enumerate() {
        let pick = |count: usize| usize::from(*choice) % count;
        let fact = match state.next_step() {
            Step::Wait => {
                runs += 1;
                asked(&format!("r{runs}"))
            }
            Step::End { status, text } => Fact::Ending { status, text },
            Step::Ask { .. } if pick(11) == 10 => Fact::Steer { text: format!("word {index}") },
            Step::Ask { .. } => random_turn(index, *choice),
            Step::Call(calls) => {
                let chosen = &calls[pick(calls.len())];
                let id = chosen.call.id.clone();
                match (&chosen.stage, choice / 7 % 8) {
                    (_, 7) => state.interruption().unwrap_or_else(|| ended(&id)),
                    (_, 6) => Fact::Ending { status: RunStatus::Crashed, text: String::new() },
                    (CallStage::Proposed, _) => bound(&id, choice % 2 == 0),
                    (CallStage::Bound { started: false, .. }, 0..3) => self::started(&id),
                    _ => ended(&id),
                }
            }
        };
        state.apply(fact.clone()).unwrap();
        facts.push(fact);
    }
    facts
}

fn random_turn(index: usize, choice: u16) -> Fact {
    let arguments = |number: u16| match number % 4 {
        0 => json!([number]),
        1 => json!({ "same": true }),
        _ => json!({ "number": index }),
    };
    let calls = (0..choice % 4).map(|number| call(&format!("c{index}-{number}"), arguments(choice / 4 + number)));
    let turn = ModelTurn::calling(format!("text {index}"), calls.collect());
    let stop = match choice / 16 % 9 {
        0 => StopReason::MaxTokens,
        1 => StopReason::Refusal,
        2 => StopReason::Paused,
        _ => StopReason::ToolUse,
    };
    let usage = TokenUsage { input_tokens: u64::from(choice), output_tokens: 1, ..TokenUsage::default() };
    self::turn(ModelTurn { stop, usage, ..turn })
}

/// The conversation, from its definition: each turn's results are looked up in what came after it.
fn naive_messages(facts: &[Fact]) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut rounds = 0;
    for (at, fact) in facts.iter().enumerate() {
        match fact {
            Fact::UserMessage { text, .. } => {
                rounds = 0;
                messages.push(Message::User { text: text.clone() });
            }
            Fact::ModelTurn { turn, .. } => {
                rounds += 1;
                let is_last = ends_its_run(turn);
                if is_last || rounds > BOUNDS.rounds_max {
                    continue;
                }
                messages.push((**turn).clone().into_message());
                let results: Option<Vec<ToolResult>> =
                    turn.calls.iter().map(|call| naive_result(facts, at, call)).collect();
                match results {
                    Some(results) if !results.is_empty() => messages.push(Message::ToolResults { results }),
                    Some(_) => {}
                    None => break,
                }
                messages.extend(naive_steers(facts, at));
            }
            Fact::Ending { .. } => messages.extend(naive_late_steers(facts, at)),
            _ => {}
        }
    }
    messages
}

fn ends_its_run(turn: &ModelTurn) -> bool {
    turn.stop == StopReason::Refusal || (turn.stop == StopReason::MaxTokens && turn.calls.is_empty())
}

fn naive_result(facts: &[Fact], at: usize, call: &ModelCall) -> Option<ToolResult> {
    let result =
        |output: String| ToolResult { call_id: call.id.clone(), tool: call.tool.clone(), output, success: false };
    if matches!(&facts[at], Fact::ModelTurn { turn, .. } if turn.stop == StopReason::MaxTokens) {
        return Some(result(CUT_OFF.to_owned()));
    }
    if let CallArguments::Malformed { error, .. } = &call.arguments {
        return Some(result(format!("the arguments were not run: {error}. Send one JSON object")));
    }
    let began = facts[..at].iter().rposition(|fact| matches!(fact, Fact::UserMessage { .. })).unwrap();
    // A cut turn made no calls, and breaks the row.
    let mut earlier: Vec<(&ModelCall, bool)> = facts[began..=at]
        .iter()
        .filter_map(|fact| if let Fact::ModelTurn { turn, .. } = fact { Some(turn) } else { None })
        .flat_map(|turn| turn.calls.iter().map(|call| (call, turn.stop == StopReason::MaxTokens)))
        .collect();
    earlier.truncate(earlier.iter().position(|(known, _)| known.id == call.id).unwrap() + 1);
    let in_a_row = earlier.iter().rev().take_while(|(known, cut)| !cut && known.arguments == call.arguments).count();
    if in_a_row > BOUNDS.same_call_max as usize {
        return Some(result(format!(
            "this call was made {in_a_row} times in a row and was not run again; its result will not change"
        )));
    }
    facts[at..].iter().find_map(|fact| match fact {
        Fact::CallEnded { result, .. } if result.call_id == call.id => Some(result.clone()),
        Fact::Interruption { calls } if calls.contains(&call.id) => Some(result(INTERRUPTED.to_owned())),
        Fact::Ending { .. } => Some(result(INTERRUPTED.to_owned())),
        _ => None,
    })
}

fn steers(facts: &[Fact]) -> impl Iterator<Item = Message> {
    facts.iter().filter_map(|fact| match fact {
        Fact::Steer { text } => Some(Message::User { text: text.clone() }),
        _ => None,
    })
}

/// Words put in between the turn before and this one.
fn naive_steers(facts: &[Fact], at: usize) -> Vec<Message> {
    let before = facts[..at].iter().rposition(|fact| matches!(fact, Fact::ModelTurn { .. } | Fact::UserMessage { .. }));
    steers(&facts[before.unwrap()..at]).collect()
}

/// Words put in before a turn that is not part of the conversation.
fn naive_late_steers(facts: &[Fact], at: usize) -> Vec<Message> {
    let last = facts[..at].iter().rposition(|fact| matches!(fact, Fact::ModelTurn { .. })).unwrap();
    let Fact::ModelTurn { turn, .. } = &facts[last] else { unreachable!("found above") };
    let began = facts[..at].iter().rposition(|fact| matches!(fact, Fact::UserMessage { .. })).unwrap();
    let rounds = facts[began..at].iter().filter(|fact| matches!(fact, Fact::ModelTurn { .. })).count();
    let is_left_out = ends_its_run(turn) || rounds > BOUNDS.rounds_max as usize;
    if is_left_out { naive_steers(facts, last) } else { Vec::new() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_fold_is_the_naive_fold(choices in proptest::collection::vec(any::<u16>(), 0..120)) {
        let facts = session(&choices);
        let state = State::fold(facts.clone()).unwrap();
        prop_assert_eq!(&state.messages, &naive_messages(&facts));
        let endings = facts.iter().filter(|fact| matches!(fact, Fact::Ending { .. })).count();
        prop_assert_eq!((state.runs, state.position), (endings as u64, facts.len() as u64));
        let spent: u64 = facts.iter().map(|fact| match fact {
            Fact::ModelTurn { turn, .. } => turn.usage.input_tokens,
            _ => 0,
        }).sum();
        prop_assert_eq!(state.usage_so_far().input_tokens, spent);
    }

    #[test]
    fn whenever_the_model_may_be_asked_calls_and_results_are_in_pairs(
        choices in proptest::collection::vec(any::<u16>(), 0..120),
    ) {
        let mut state = State::default();
        for fact in session(&choices) {
            state.apply(fact).unwrap();
            if matches!(state.next_step(), Step::Ask { .. } | Step::Wait) {
                prop_assert_eq!(check_pairing(&state.messages), Ok(()));
            }
        }
    }

    #[test]
    fn a_state_kept_at_any_fact_goes_on_to_the_same_end(
        choices in proptest::collection::vec(any::<u16>(), 1..80),
        cut in any::<prop::sample::Index>(),
    ) {
        let facts = session(&choices);
        let (before, after) = facts.split_at(cut.index(facts.len()));
        let kept = serde_json::to_vec(&State::fold(before.to_vec()).unwrap()).unwrap();
        let mut state: State = serde_json::from_slice(&kept).unwrap();
        for fact in after {
            // Every fact is kept as text as well.
            let line = serde_json::to_vec(fact).unwrap();
            state.apply(serde_json::from_slice(&line).unwrap()).unwrap();
        }
        prop_assert_eq!(state, State::fold(facts.clone()).unwrap());
    }
}

fn in_background(task: &str, run: Option<&str>, whole: bool) -> Fact {
    let asked = ChildTask {
        agent: "explore".into(),
        description: "d".into(),
        prompt: "p".into(),
        max_steps: None,
        output_schema: None,
    };
    let start = BackgroundStart { invocation: "invocation-a".into(), run: run.map(Into::into), task: asked, whole };
    let session = format!("task-run-{task}").as_str().into();
    let (agent, background) = ("explore".into(), Some(Box::new(start)));
    Fact::ChildStarted { task: task.into(), session, agent, place: None, background }
}

/// A child run that a call waits for.
fn child_of(task: &str, place: Option<(&str, usize)>) -> Fact {
    let session = format!("task-run-{task}").as_str().into();
    let place = place.map(|(call, index)| ChildPlace { call: call.into(), index });
    Fact::ChildStarted { task: task.into(), session, agent: "explore".into(), place, background: None }
}

fn child_ended(task: &str, report: Option<String>, calls: u64) -> Fact {
    Fact::ChildEnded {
        task: task.into(),
        success: true,
        report,
        used: Amount { calls, ..Amount::default() },
        child_runs: 0,
    }
}

fn goes_on(state: &State) -> Vec<&str> {
    state.tasks_to_go_on().map(|(task, _)| task.as_str()).collect()
}

#[test]
fn a_background_task_goes_on_once_its_turn_stands_and_not_before() {
    let started = [asked("r"), calling(&["a", "b"]), in_background("t", Some("r"), true), ended("a")];
    let mut state = State::fold(started.clone()).unwrap();
    assert_eq!((goes_on(&state), state.open_children()), (vec![], 1));
    // The process ends here: the task never began.
    let mut cut = state.clone();
    cut.apply(cut.interruption().unwrap()).unwrap();
    assert_eq!(cut.children.values().map(|child| child.end).collect::<Vec<_>>(), [ChildEnd::Interrupted]);
    cut.apply(ended("b")).unwrap();
    assert_eq!(goes_on(&cut), [""; 0]);
    // The turn is whole: it goes on, whatever becomes of the run.
    state.apply(ended("b")).unwrap();
    assert_eq!((goes_on(&state), state.open_children(), state.interruption()), (vec!["t"], 0, None));
    state.apply(completed()).unwrap();
    assert_eq!(goes_on(&state), ["t"]);
    // What it came to stands before the next question, once.
    let report = || Some("it is there".to_owned());
    state.apply(child_ended("t", report(), 0)).unwrap();
    state.apply(asked("r2")).unwrap();
    let words: Vec<&Message> = state.messages.iter().rev().take(2).collect();
    assert!(matches!(words[0], Message::User { text } if text == "question of r2"), "{words:?}");
    assert!(matches!(words[1], Message::User { text } if text == "it is there"), "{words:?}");
    assert_eq!((state.task_reports.len(), goes_on(&state)), (0, vec![]));
    // While a run is under way it comes with the next turn.
    state.apply(calling(&["c"])).unwrap();
    state.apply(child_ended("t", report(), 0)).unwrap();
    state.apply(ended("c")).unwrap();
    assert!(matches!(state.messages.last(), Some(Message::User { text }) if text == "it is there"));
}

#[test]
fn a_hosts_task_goes_on_at_once_and_one_that_is_not_whole_does_not() {
    let mut state = State::fold([in_background("host", None, true), in_background("secret", None, false)]).unwrap();
    assert_eq!((goes_on(&state), state.open_children()), (vec!["host"], 1));
    state.apply(state.interruption().unwrap()).unwrap();
    assert_eq!(goes_on(&state), ["host"]);
    assert_eq!(state.children["secret"].end, ChildEnd::Interrupted);
    let forked = crate::snapshot::forked(state, &"s".into()).unwrap();
    assert_eq!((goes_on(&forked), forked.task_reports.len()), (vec![], 1));
}

#[test]
fn reports_that_nobody_reads_are_bounded() {
    let mut state = State::default();
    for number in 0..=WAITING_REPORTS_MAX {
        let report = Some(number.to_string());
        state.apply(child_ended("t", report, 0)).unwrap();
    }
    assert_eq!((state.task_reports.len(), state.task_reports[0].as_str()), (WAITING_REPORTS_MAX, "1"));
}

// A process that dies while a call waits for child runs: the call runs again, finds the same child runs at their places,
// and those that had ended are not counted twice.
#[test]
fn a_call_that_runs_again_finds_its_child_runs() {
    let ends = |state: &State| state.children.values().map(|child| child.end).collect::<Vec<_>>();
    let place = |index| ChildPlace { call: "a".into(), index };
    let begun = [
        asked("r"),
        calling(&["a", "b"]),
        bound("a", true),
        started("a"),
        child_of("one", Some(("a", 0))),
        child_of("two", Some(("a", 1))),
        child_ended("one", None, 3),
        bound("b", false),
        started("b"),
        child_of("lost", Some(("b", 0))),
    ];
    let mut state = State::fold(begun).unwrap();
    assert_eq!((state.child_runs, state.children_used.calls, state.open_children()), (3, 3, 1));
    state.apply(state.interruption().unwrap()).unwrap();
    assert_eq!(ends(&state), [ChildEnd::Succeeded, ChildEnd::Open, ChildEnd::Interrupted]);
    let found = |index| state.child_at(&place(index)).map(|(task, child)| (task.as_str(), child.end));
    assert_eq!((found(0), found(1)), (Some(("one", ChildEnd::Succeeded)), Some(("two", ChildEnd::Open))));
    assert_eq!(found(2), None);
    // A fork has neither of them under way.
    let forked = crate::snapshot::forked(state.clone(), &"s".into()).unwrap();
    assert_eq!(ends(&forked), [ChildEnd::Succeeded, ChildEnd::Interrupted, ChildEnd::Interrupted]);
    // What was told before is told again, and used nothing more.
    for fact in [bound("a", true), started("a"), child_ended("one", None, 3), child_ended("two", None, 4), ended("a")] {
        state.apply(fact).unwrap();
    }
    assert_eq!((state.children_used.calls, state.interruption()), (7, None));
    // Another call of the same name has child runs of its own.
    assert_eq!(state.child_at(&place(0)), None);
}
