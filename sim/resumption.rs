//! The promise about a world that crashed and went on: it comes to what the one came to that did not.
//!
//! Answers, conversations, files and effects are held against those of the undisturbed world. The one thing that may
//! differ is what the crash met, which is calls of one turn: one whose tool had started is told as interrupted and is not
//! run again, so that its result, its file and its effect may be missing; one that is as good twice as once is run again,
//! and may say so (a file holds already what it is to hold). Everything else has to be the same, to the byte.

use std::collections::BTreeMap;

use toolwarden::facts::state::State;
use toolwarden::models::transcript::INTERRUPTED;
use toolwarden::models::{Message, ToolResult};
use toolwarden::resume::fold;
use toolwarden_tools::ids::SessionId;

use crate::stage::Performance;

/// What a crash met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Met {
    /// Calls that were told as interrupted.
    pub interrupted: usize,
    /// Calls that were run again, with other words in their results.
    pub again: usize,
    /// Turns of the model whose calls these were.
    turns: usize,
}

/// Holds a world that crashed against the same one that did not. Gives what the crashes met.
///
/// # Errors
/// The first difference that the crash does not explain, in words.
pub fn compare(plain: &Performance, resumed: &Performance) -> Result<Met, String> {
    let (expected, found) = (states(plain)?, states(resumed)?);
    let mut met = Met::default();
    if expected.keys().ne(found.keys()) {
        return Err(format!("the sessions are {:?} and not {:?}", found.keys(), expected.keys()));
    }
    for ((session, expected), found) in expected.iter().zip(found.values()) {
        let of_session = |what: String| format!("session {session}: {what}");
        if (expected.runs, expected.run.is_some()) != (found.runs, found.run.is_some()) {
            return Err(of_session(format!("{} runs have ended, and not {}", found.runs, expected.runs)));
        }
        conversation(&expected.messages, &found.messages, &mut met).map_err(of_session)?;
    }
    // A process that ends meets at most one turn of each session.
    let turns_max = expected.len() * resumed.aftermath.crashes as usize;
    if met.turns > turns_max {
        return Err(format!("results of {} turns differ, and crashes met {turns_max}", met.turns));
    }
    told(plain, resumed, met.interrupted)?;
    files(plain, resumed, met.interrupted)?;
    effects(plain, resumed, met.interrupted)?;
    Ok(met)
}

/// Where each session stands at the end.
fn states(world: &Performance) -> Result<BTreeMap<SessionId, State>, String> {
    let kept = world.aftermath.kept.iter();
    kept.map(|(session, found)| match fold(session, found.clone(), true) {
        Ok(whole) => Ok((session.clone(), whole.state)),
        Err(error) => Err(format!("session {session} cannot be read: {error}")),
    })
    .collect()
}

/// Message by message.
fn conversation(expected: &[Message], found: &[Message], met: &mut Met) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("the conversation has {} messages, and not {}", found.len(), expected.len()));
    }
    for (at, pair) in expected.iter().zip(found).enumerate() {
        match pair {
            (Message::ToolResults { results: expected }, Message::ToolResults { results: found }) => {
                let before = (met.interrupted, met.again);
                results(at, expected, found, met)?;
                met.turns += usize::from(before != (met.interrupted, met.again));
            }
            (expected, found) if expected != found => {
                return Err(format!("message {at} is {found:?}, and not {expected:?}"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn results(at: usize, expected: &[ToolResult], found: &[ToolResult], met: &mut Met) -> Result<(), String> {
    let by_call = |results: &[ToolResult]| -> BTreeMap<String, ToolResult> {
        results.iter().map(|result| (result.call_id.clone(), result.clone())).collect()
    };
    let (expected, found) = (by_call(expected), by_call(found));
    if expected.keys().ne(found.keys()) {
        return Err(format!("message {at} has results of {:?}, and not of {:?}", found.keys(), expected.keys()));
    }
    for (expected, found) in expected.values().zip(found.values()) {
        match found {
            same if same == expected => {}
            cut if cut.output == INTERRUPTED && !cut.success => met.interrupted += 1,
            again if again.success && expected.success && again.tool == expected.tool => met.again += 1,
            other => return Err(format!("message {at}: a result is {other:?}, and not {expected:?}")),
        }
    }
    Ok(())
}

/// What the host was told of each prompt.
fn told(plain: &Performance, resumed: &Performance, interrupted: usize) -> Result<(), String> {
    let (expected, found) = (&plain.aftermath.told, &resumed.aftermath.told);
    if expected.len() != found.len() {
        return Err(format!("the host was told of {} prompts, and not of {}", found.len(), expected.len()));
    }
    for (expected, found) in expected.iter().zip(found) {
        let (Some(expected), Some(found)) = (&expected.outcome, &found.outcome) else {
            return Err("the host was not told how a prompt ended".to_owned());
        };
        let of = |outcome: &toolwarden::run::RunOutcome| (outcome.status.clone(), outcome.text.clone(), outcome.turns);
        // What an interrupted call would have named is not known.
        let anchors_differ = interrupted == 0 && expected.source_anchors != found.source_anchors;
        if of(expected) != of(found) || anchors_differ {
            return Err(format!("the answer is {found:?}, and not {expected:?}"));
        }
    }
    Ok(())
}

fn files(plain: &Performance, resumed: &Performance, interrupted: usize) -> Result<(), String> {
    let (expected, found) = (&plain.aftermath.files, &resumed.aftermath.files);
    for (path, bytes) in found {
        if expected.get(path) != Some(bytes) {
            return Err(format!("{path} holds what it does not without a crash"));
        }
    }
    let missing = expected.keys().filter(|path| !found.contains_key(*path)).count();
    match missing > interrupted {
        true => Err(format!("{missing} files are missing, and {interrupted} calls were interrupted")),
        false => Ok(()),
    }
}

fn effects(plain: &Performance, resumed: &Performance, interrupted: usize) -> Result<(), String> {
    let mut missing = 0;
    for (name, times) in &resumed.effects {
        let expected = plain.effects.get(name).copied().unwrap_or(0);
        if *times > expected {
            return Err(format!("{name:?} was done {times} times, and not {expected}"));
        }
    }
    for (name, expected) in &plain.effects {
        missing += expected - resumed.effects.get(name).copied().unwrap_or(0).min(*expected);
    }
    match usize::try_from(missing).is_ok_and(|missing| missing <= interrupted) {
        true => Ok(()),
        false => Err(format!("{missing} effects are missing, and {interrupted} calls were interrupted")),
    }
}
