//! `scripted:FILE`: a model that replays turns written in a file, for tests and demos.
//!
//! The file is JSONL, one turn a line; every field may be left out:
//!
//! ```json
//! {"when": "part of a prompt", "agent": "explore", "text": "Let me look.",
//!  "calls": [{"id": "c1", "tool": "search", "arguments": {"mode": "bm25", "query": "lane"}},
//!            {"id": "c2", "tool": "read", "arguments_text": "{broken"}],
//!  "usage": {"input_tokens": 10, "output_tokens": 5}, "stop": "tool_use", "delay_ms": 0, "repeat": false}
//! ```
//!
//! Lines with the same `when` and `agent` form a group and are used in their order. A prompt chooses the group that
//! fits it most closely (`when` and `agent`, then `when`, then `agent`, then neither; the earlier line wins a tie)
//! and its conversation counts how many turns of that group it has had: nothing is counted outside the
//! conversation, so runs beside each other do not disturb each other, and the same conversation always gets the
//! same turn. `repeat` gives a group's last turn for ever.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use toolwarden_tools::ids::ToolName;
use toolwarden_tools::json_tree::unheld_number;

use super::{CallArguments, Message, Model, ModelCall, ModelError, ModelRequest, ModelTurn, StopReason};
use super::{TokenUsage, TurnSink};

/// Largest script, in bytes.
pub const SCRIPT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest pause before a turn, in milliseconds.
pub const DELAY_MS_MAX: u64 = 600_000;

/// How much of a number is shown that is too long, in bytes.
const NUMBER_BYTES_SHOWN: usize = 60;
const EXAMPLE: &str = r#"{"text": "done"}"#;

/// Replays a script.
#[derive(Debug)]
pub struct ScriptedModel {
    name: String,
    file: String,
    groups: Vec<Group>,
}

/// Why a script cannot be used.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// Longer than [`SCRIPT_BYTES_MAX`].
    #[error("{file}: the script has {bytes} bytes; at most {SCRIPT_BYTES_MAX} are taken")]
    TooLarge {
        /// The script.
        file: String,
        /// Its size.
        bytes: usize,
    },
    /// No turn in it.
    #[error("{file}: the script holds no turn; write one JSON object a line, such as {EXAMPLE}")]
    Empty {
        /// The script.
        file: String,
    },
    /// A line that is no turn.
    #[error("{file}:{line}: {message}")]
    Line {
        /// The script.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong and how to mend it.
        message: String,
    },
}

/// The turns of one `when` and `agent`.
#[derive(Debug)]
struct Group {
    when: Option<String>,
    agent: Option<String>,
    turns: Vec<Turn>,
    repeats: bool,
}

#[derive(Debug)]
struct Turn {
    text: String,
    calls: Vec<ScriptedCall>,
    usage: TokenUsage,
    stop: StopReason,
    delay_ms: u64,
}

#[derive(Debug)]
struct ScriptedCall {
    id: Option<String>,
    tool: ToolName,
    arguments: CallArguments,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TurnLine {
    when: Option<String>,
    agent: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<CallLine>,
    #[serde(default)]
    usage: TokenUsage,
    stop: Option<StopReason>,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    repeat: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallLine {
    id: Option<String>,
    tool: String,
    arguments: Option<Value>,
    arguments_text: Option<String>,
}

impl ScriptedModel {
    /// Reads a script; `file` names it in messages.
    ///
    /// # Errors
    /// [`ScriptError`], naming the file and the line.
    pub fn load(text: &str, file: &str) -> Result<Self, ScriptError> {
        if text.len() > SCRIPT_BYTES_MAX {
            return Err(ScriptError::TooLarge { file: file.to_owned(), bytes: text.len() });
        }
        let mut groups: Vec<Group> = Vec::new();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let fault = |message| ScriptError::Line { file: file.to_owned(), line: index + 1, message };
            if let Some(number) = unheld_number(line) {
                let number = &number[..number.floor_char_boundary(NUMBER_BYTES_SHOWN)];
                return Err(fault(format!(
                    "the number {number} would lose digits; write the arguments as arguments_text"
                )));
            }
            let parsed: TurnLine = serde_json::from_str(line).map_err(|error| fault(explain(&error)))?;
            add_turn(&mut groups, parsed).map_err(fault)?;
        }
        if groups.is_empty() {
            return Err(ScriptError::Empty { file: file.to_owned() });
        }
        Ok(Self { name: format!("scripted:{file}"), file: file.to_owned(), groups })
    }

    /// The group that fits this prompt most closely.
    fn choose(&self, agent: &str, prompt: &str) -> Option<usize> {
        let fits = |group: &Group| {
            group.agent.as_deref().is_none_or(|wanted| wanted == agent)
                && group.when.as_deref().is_none_or(|part| prompt.contains(part))
        };
        let rank = |group: &Group| (group.when.is_some(), group.agent.is_some());
        let mut best: Option<usize> = None;
        for (index, group) in self.groups.iter().enumerate() {
            if fits(group) && best.is_none_or(|held| rank(group) > rank(&self.groups[held])) {
                best = Some(index);
            }
        }
        best
    }

    /// The group in charge at the end of the conversation, and how many of its turns were taken.
    fn place(&self, request: &ModelRequest) -> (Option<usize>, usize) {
        let mut taken = vec![0_usize; self.groups.len()];
        let mut current = self.choose(&request.agent, "");
        let mut after_results = false;
        for entry in &request.messages {
            match entry {
                Message::User { text } => {
                    let chosen = self.choose(&request.agent, text);
                    // A word put in between results and turn belongs to the same run, unless a line waits for it.
                    if !after_results || chosen.is_some_and(|index| self.groups[index].when.is_some()) {
                        current = chosen;
                    }
                }
                Message::Assistant { .. } => {
                    if let Some(index) = current {
                        taken[index] += 1;
                    }
                }
                Message::ToolResults { .. } | Message::Image { .. } => {}
            }
            after_results = matches!(entry, Message::ToolResults { .. });
        }
        (current, current.map_or(0, |index| taken[index]))
    }

    fn next(&self, request: &ModelRequest) -> Result<(ModelTurn, u64), ModelError> {
        let (chosen, taken) = self.place(request);
        let exhausted = |key: String, turns: usize| ModelError::ScriptExhausted {
            file: self.file.clone(),
            key,
            turns,
            asked: taken + 1,
        };
        let Some(group) = chosen.map(|index| &self.groups[index]) else {
            return Err(exhausted(format!("agent {:?} and this prompt", request.agent), 0));
        };
        let last = group.turns.len().saturating_sub(1);
        let position = if group.repeats { taken.min(last) } else { taken };
        match group.turns.get(position) {
            Some(turn) => Ok((turn.replay(taken), turn.delay_ms)),
            None => Err(exhausted(group.key(), group.turns.len())),
        }
    }
}

impl Model for ScriptedModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        Box::pin(async move {
            let (turn, delay_ms) = self.next(request)?;
            if delay_ms > 0 {
                tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            }
            if !turn.text.is_empty() {
                sink.text_delta(&turn.text);
            }
            Ok(turn)
        })
    }
}

impl Group {
    fn key(&self) -> String {
        match (&self.when, &self.agent) {
            (Some(when), Some(agent)) => format!("\"when\": {when:?}, \"agent\": {agent:?}"),
            (Some(when), None) => format!("\"when\": {when:?}"),
            (None, Some(agent)) => format!("\"agent\": {agent:?}"),
            (None, None) => "lines without \"when\" and \"agent\"".to_owned(),
        }
    }
}

impl Turn {
    /// The turn as the `taken`-th of its conversation; ids that the script leaves out follow from the place.
    fn replay(&self, taken: usize) -> ModelTurn {
        let call = |(index, call): (usize, &ScriptedCall)| ModelCall {
            id: call.id.clone().unwrap_or_else(|| format!("call-{}-{}", taken + 1, index + 1)),
            tool: call.tool.clone(),
            arguments: call.arguments.clone(),
        };
        ModelTurn {
            text: self.text.clone(),
            calls: self.calls.iter().enumerate().map(call).collect(),
            usage: self.usage,
            stop: self.stop,
            replay: None,
            request_id: None,
        }
    }
}

fn add_turn(groups: &mut Vec<Group>, line: TurnLine) -> Result<(), String> {
    if line.delay_ms > DELAY_MS_MAX {
        return Err(format!("\"delay_ms\" is {}; at most {DELAY_MS_MAX} is taken", line.delay_ms));
    }
    let calls = line.calls.into_iter().map(read_call).collect::<Result<Vec<_>, _>>()?;
    let default_stop = if calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse };
    let turn = Turn {
        text: line.text,
        calls,
        usage: line.usage,
        stop: line.stop.unwrap_or(default_stop),
        delay_ms: line.delay_ms,
    };
    let same = |group: &&mut Group| group.when == line.when && group.agent == line.agent;
    match groups.iter_mut().find(same) {
        Some(group) if group.repeats => Err(format!(
            "this turn is never reached: an earlier line of {} has \"repeat\": true; move it before that line",
            group.key()
        )),
        Some(group) => {
            group.turns.push(turn);
            group.repeats = line.repeat;
            Ok(())
        }
        None => {
            groups.push(Group { when: line.when, agent: line.agent, turns: vec![turn], repeats: line.repeat });
            Ok(())
        }
    }
}

fn read_call(line: CallLine) -> Result<ScriptedCall, String> {
    let arguments = match (line.arguments, line.arguments_text) {
        (Some(_), Some(_)) => {
            return Err(format!("the call of {:?} has \"arguments\" and \"arguments_text\"; keep one", line.tool));
        }
        (Some(value), None) => CallArguments::from_value(value),
        (None, text) => CallArguments::parse(&text.unwrap_or_default()),
    };
    Ok(ScriptedCall { id: line.id, tool: ToolName::new(line.tool), arguments })
}

fn explain(error: &serde_json::Error) -> String {
    let hint = if error.is_data() {
        "known fields: when, agent, text, calls (id, tool, arguments or arguments_text), usage (input_tokens, \
         output_tokens), stop, delay_ms, repeat"
            .to_owned()
    } else {
        format!("each line is one whole JSON object, such as {EXAMPLE}")
    };
    // The line is named by the caller; serde would count from the start of this one line.
    let text = error.to_string();
    let cause = text.split(" at line ").next().unwrap_or_default();
    format!("{cause} (column {}); {hint}", error.column())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt as _;
    use serde_json::json;
    use toolwarden_tools::offer::Offer;

    use super::{ScriptError, ScriptedModel};
    use crate::models::turn_options::TurnOptions;
    use crate::models::{CallArguments, Message, Model as _, ModelError, ModelRequest, ModelTurn, NoSink};
    use crate::models::{StopReason, TurnSink};

    fn request(agent: &str, messages: Vec<Message>) -> ModelRequest {
        ModelRequest {
            system: String::new(),
            messages,
            tools: Offer::default(),
            tool_calls_allowed: true,
            agent: agent.into(),
            fan_out: 4,
            options: TurnOptions::default(),
        }
    }

    fn user(text: &str) -> Message {
        Message::User { text: text.into() }
    }

    fn take(model: &ScriptedModel, request: &ModelRequest) -> Result<ModelTurn, ModelError> {
        model.turn(request, &NoSink).now_or_never().expect("no delay, no wait")
    }

    /// Plays a conversation until the script ends or `turns` are taken.
    fn texts(model: &ScriptedModel, agent: &str, prompt: &str, turns: usize) -> Vec<String> {
        let mut request = request(agent, vec![user(prompt)]);
        let mut texts = Vec::new();
        while texts.len() < turns {
            let Ok(turn) = take(model, &request) else { break };
            texts.push(turn.text.clone());
            request.messages.push(turn.into_message());
            request.messages.push(Message::ToolResults { results: Vec::new() });
        }
        texts
    }

    #[test]
    fn turns_come_in_order_for_each_key() {
        let script = r#"{"text": "one"}
{"when": "lane", "text": "lane one"}

{"agent": "explore", "text": "child one"}
{"when": "lane", "agent": "explore", "text": "lane child"}
{"text": "two"}
{"when": "lane", "text": "lane two"}
"#;
        let model = ScriptedModel::load(script, "s.jsonl").unwrap();
        assert_eq!(model.name(), "scripted:s.jsonl");
        assert_eq!(texts(&model, "general", "hello", 9), ["one", "two"]);
        assert_eq!(texts(&model, "general", "which lane?", 9), ["lane one", "lane two"]);
        assert_eq!(texts(&model, "explore", "hello", 9), ["child one"]);
        assert_eq!(texts(&model, "explore", "which lane?", 9), ["lane child"]);
    }

    #[test]
    fn a_number_that_would_lose_digits_is_refused_with_its_line() {
        let line = r#"{"calls": [{"tool": "f", "arguments": {"n": 123456789012345678901234567890}}]}"#;
        let error = ScriptedModel::load(&format!("{{\"text\": \"one\"}}\n{line}"), "s.jsonl").unwrap_err().to_string();
        assert!(error.starts_with("s.jsonl:2: the number 123456789012345678901234567890"), "{error}");
    }

    #[test]
    fn a_second_prompt_goes_on_where_its_key_stands() {
        let script = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"when\": \"lane\", \"text\": \"lane\"}";
        let model = ScriptedModel::load(script, "s").unwrap();
        let mut asked = request("general", vec![user("first")]);
        for (next, text) in [("about the lane", "one"), ("third", "lane"), ("end", "two")] {
            let turn = take(&model, &asked).unwrap();
            assert_eq!(turn.text, text);
            asked.messages.extend([turn.into_message(), user(next)]);
        }
        assert!(matches!(take(&model, &asked), Err(ModelError::ScriptExhausted { turns: 2, asked: 3, .. })));
    }

    #[test]
    fn the_same_conversation_gets_the_same_turn_whoever_else_asks() {
        let model = ScriptedModel::load("{\"text\": \"one\"}\n{\"text\": \"two\"}", "s").unwrap();
        let asked = request("general", vec![user("x")]);
        let first = take(&model, &asked).unwrap();
        assert_eq!(texts(&model, "general", "y", 2), ["one", "two"]);
        assert_eq!(take(&model, &asked).unwrap(), first);
    }

    #[test]
    fn calls_keep_broken_arguments_and_get_ids() {
        let script = r#"{"calls": [{"id": "c1", "tool": "search", "arguments": {"mode": "grep"}},
            {"tool": "write", "arguments_text": "{\"path\": \"a"}, {"tool": "ls"}], "usage": {"input_tokens": 7}}"#
            .replace('\n', " ");
        let turn = take(&ScriptedModel::load(&script, "s").unwrap(), &request("general", vec![user("x")])).unwrap();
        assert_eq!((turn.stop, turn.usage.input_tokens, turn.usage.output_tokens), (StopReason::ToolUse, 7, 0));
        assert_eq!(turn.calls[0].arguments, CallArguments::Parsed(json!({"mode": "grep"})));
        assert!(matches!(&turn.calls[1].arguments, CallArguments::Malformed { text, .. } if text == "{\"path\": \"a"));
        assert_eq!(turn.calls[2].arguments, CallArguments::Parsed(json!({})));
        assert_eq!(turn.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["c1", "call-1-2", "call-1-3"]);
    }

    #[test]
    fn a_repeated_turn_never_ends_and_the_end_of_a_script_is_said() {
        let forever = ScriptedModel::load("{\"text\": \"a\"}\n{\"text\": \"b\", \"repeat\": true}", "s").unwrap();
        assert_eq!(texts(&forever, "general", "x", 50).last().unwrap(), "b");
        assert_eq!(texts(&forever, "general", "x", 50).len(), 50);

        let short = ScriptedModel::load("{\"when\": \"only this\", \"text\": \"a\"}", "demo.jsonl").unwrap();
        let error = take(&short, &request("general", vec![user("something else")])).unwrap_err().to_string();
        assert!(error.starts_with("demo.jsonl: no turn left for agent \"general\""), "{error}");
        let mut asked = request("general", vec![user("only this")]);
        asked.messages.push(take(&short, &asked).unwrap().into_message());
        let error = take(&short, &asked).unwrap_err();
        assert!(!error.is_retryable());
        assert!(error.to_string().contains("\"when\": \"only this\": it has 1, and this is turn 2"), "{error}");
    }

    #[test]
    fn a_malformed_line_is_named_with_a_hint() {
        let bad = [
            ("{\"text\": \"a\"}\n{\"text\": ", "s.jsonl:2: EOF while parsing", "one whole JSON object"),
            ("\n\n[]", "s.jsonl:3: invalid length 0", "known fields"),
            ("{\"txt\": \"a\"}", "s.jsonl:1: unknown field `txt`", "known fields"),
            ("{\"stop\": \"bored\"}", "s.jsonl:1: unknown variant `bored`", "known fields"),
            ("{\"calls\": [{\"arguments\": {}}]}", "s.jsonl:1: missing field `tool`", "known fields"),
            ("{\"usage\": {\"input_tokens\": -1}}", "s.jsonl:1: invalid value", "known fields"),
            ("{\"delay_ms\": 999999999}", "s.jsonl:1: \"delay_ms\"", "at most 600000"),
            (
                "{\"calls\": [{\"tool\": \"a\", \"arguments\": {}, \"arguments_text\": \"\"}]}",
                "s.jsonl:1: the call of \"a\"",
                "keep one",
            ),
            ("{\"repeat\": true}\n{\"text\": \"b\"}", "s.jsonl:2: this turn is never reached", "move it before"),
        ];
        for (script, start, hint) in bad {
            let error = ScriptedModel::load(script, "s.jsonl").unwrap_err().to_string();
            assert!(error.starts_with(start) && error.contains(hint), "{script}\n{error}");
        }
        assert!(matches!(ScriptedModel::load(" \n\n", "s"), Err(ScriptError::Empty { .. })));
        let huge = " ".repeat(super::SCRIPT_BYTES_MAX + 1);
        assert!(matches!(ScriptedModel::load(&huge, "s"), Err(ScriptError::TooLarge { .. })));
    }

    #[tokio::test]
    async fn text_is_streamed_and_a_delay_waits() {
        struct Kept(Mutex<String>);
        impl TurnSink for Kept {
            fn text_delta(&self, text: &str) {
                self.0.lock().unwrap().push_str(text);
            }
        }
        let sink = Kept(Mutex::default());
        let asked = request("general", vec![user("x")]);
        let model = ScriptedModel::load("\u{feff}{\"text\": \"hello\"}\r\n", "s").unwrap();
        assert_eq!(model.turn(&asked, &sink).await.unwrap().text, "hello");
        assert_eq!(*sink.0.lock().unwrap(), "hello");
        let slow = ScriptedModel::load("{\"text\": \"late\", \"delay_ms\": 60000}", "s").unwrap();
        assert!(slow.turn(&asked, &sink).now_or_never().is_none());
        assert_eq!(*sink.0.lock().unwrap(), "hello");
    }
}
