//! Whole conversations of the researcher over a small workspace in memory.
//!
//! The tools are pretended, their outputs have the real tools' shapes, and every turn is taken twice: the same
//! conversation must give the same turn. What an answer cites is looked up in the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use futures_util::FutureExt as _;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};
use toolwarden_tools::declaration::ToolDefinition;

use super::ResearchModel;
use super::evidence::EVIDENCE_BYTES_MAX;
use super::term::terms;
use crate::models::transcript::check_pairing;
use crate::models::turn_options::TurnOptions;
use crate::models::{CallArguments, Message, Model as _, ModelCall, ModelError, ModelRequest, NoSink, ToolResult};

const TURNS_MAX: usize = 6;

/// A workspace in memory, and which tools work on it.
struct Pretended {
    files: BTreeMap<&'static str, Vec<&'static str>>,
    tools: &'static [&'static str],
    /// Tools that fail every call.
    broken: &'static [&'static str],
    fan_out: usize,
}

/// What came of a run.
struct Ran {
    answer: String,
    /// Calls by tool, those of children too.
    calls: Vec<ModelCall>,
}

impl Pretended {
    fn new(tools: &'static [&'static str]) -> Self {
        let files = [
            (
                "actors/restart_intensity.rs",
                "//! How many restarts a supervisor allows in a period.\n\nuse std::time::Duration;\n\n/// The restart \
                 intensity of a supervisor: more restarts than `most` within `period`\n/// end the supervisor \
                 itself.\npub struct RestartIntensity {\n    most: u32,\n    period: Duration,\n}\n\nimpl \
                 RestartIntensity {\n    /// Decides whether one more restart is allowed.\n    pub fn allows(&mut self, \
                 now: Duration) -> bool {\n        self.prune(now);\n        self.recent.len() < self.most\n    }\n}",
            ),
            (
                "actors/supervisor.rs",
                "use crate::restart_intensity::RestartIntensity;\n\nfn on_exit(intensity: &mut RestartIntensity) {\n    if \
                 !intensity.allows(now) {\n        escalate();\n    }\n}",
            ),
            (
                "docs/2024-01-02-notes.md",
                "# Notes\n\nLanes: a bulkhead gives each kind of call its own permits,\nso that slow commands never \
                 starve reads.\nA full queue sheds the call with a typed refusal.",
            ),
            ("docs/缓存.md", "# 服务\n\n缓存服务读取Redis配置，\n超时由请求路由决定。\n"),
            ("docs/日本語.md", "# 監督\n\n再起動の強度は監督者が決定する。\n"),
            ("Cargo.lock", "name = \"restart-intensity\"\nname = \"bulkhead\"\nname = \"queue\""),
        ];
        let files = files.into_iter().map(|(path, text)| (path, text.split('\n').collect())).collect();
        Self { files, tools, broken: &[], fan_out: 4 }
    }

    fn ask(&self, question: &str) -> Ran {
        let mut calls = Vec::new();
        let answer = self.run("general", question, self.tools, &mut calls);
        Ran { answer, calls }
    }

    fn run(&self, agent: &str, prompt: &str, tools: &[&str], all: &mut Vec<ModelCall>) -> String {
        let mut request = ModelRequest {
            system: String::new(),
            messages: vec![Message::User { text: prompt.to_owned() }],
            tools: tools.iter().map(|tool| definition(tool)).collect(),
            tool_calls_allowed: true,
            agent: agent.to_owned(),
            fan_out: self.fan_out,
            options: TurnOptions::default(),
        };
        for _ in 0..TURNS_MAX {
            let turn = take(&request).unwrap();
            assert_eq!(turn, take(&request).unwrap(), "the same conversation gives the same turn");
            let calls = turn.calls.clone();
            if calls.is_empty() {
                return turn.text;
            }
            all.extend(calls.iter().cloned());
            request.messages.push(turn.into_message());
            let results = calls.iter().map(|call| self.call(call, all)).collect();
            request.messages.push(Message::ToolResults { results });
            check_pairing(&request.messages).unwrap();
        }
        panic!("no last word after {TURNS_MAX} turns: {:?}", request.messages.last());
    }

    fn call(&self, call: &ModelCall, all: &mut Vec<ModelCall>) -> ToolResult {
        let CallArguments::Parsed(arguments) = &call.arguments else { panic!("{call:?}") };
        let tool = call.tool.as_str();
        let outcome = match tool {
            broken if self.broken.contains(&broken) => Err(format!("{broken}: refused by rule deny-{broken}\nmore")),
            "task" => Ok(self.task(arguments, all)),
            "read" => self.read(arguments),
            "search" if arguments["mode"] == "bm25" => Ok(self.ranked(arguments)),
            "search" => Ok(self.matches(arguments)),
            other => panic!("unknown tool {other}"),
        };
        let (output, success) = outcome.map_or_else(|error| (error, false), |output| (output, true));
        ToolResult { call_id: call.id.clone(), tool: call.tool.clone(), output, success }
    }

    /// `path:start-end (score s)`, then numbered lines.
    fn ranked(&self, arguments: &Value) -> String {
        let query: BTreeSet<String> = terms(arguments["query"].as_str().unwrap(), 64).into_iter().collect();
        assert!(query.len() <= 32);
        let mut found = Vec::new();
        for (path, lines) in &self.files {
            let score = |line: &str| terms(line, 64).iter().filter(|term| query.contains(*term)).count();
            let best = (0..lines.len()).max_by_key(|index| (score(lines[*index]), lines.len() - index)).unwrap();
            if score(lines[best]) > 0 {
                found.push((score(lines[best]), *path, best.saturating_sub(1), (best + 2).min(lines.len())));
            }
        }
        found.sort_by_key(|(score, path, _, _)| (usize::MAX - score, *path));
        let mut output = String::new();
        for (score, path, start, end) in found {
            let _ = writeln!(output, "{path}:{}-{end} (score {:.3})", start + 1, score as f64);
            (start..end).for_each(|index| self.number(&mut output, path, index));
            output.push('\n');
        }
        output
    }

    /// `path:line:text`, with `path-line-text` around.
    fn matches(&self, arguments: &Value) -> String {
        assert_eq!((&arguments["output_mode"], &arguments["case_sensitive"]), (&json!("content"), &json!(false)));
        let pattern = RegexBuilder::new(arguments["query"].as_str().unwrap()).case_insensitive(true).build().unwrap();
        let context = usize::try_from(arguments["context"].as_u64().unwrap()).unwrap();
        let (mut output, mut hits, mut files) = (String::new(), 0, 0);
        for (path, lines) in &self.files {
            let matching: BTreeSet<usize> = (0..lines.len()).filter(|index| pattern.is_match(lines[*index])).collect();
            hits += matching.len();
            files += usize::from(!matching.is_empty());
            for (index, line) in lines.iter().enumerate() {
                let near = index.saturating_sub(context)..=index + context;
                let mark = if matching.contains(&index) { ':' } else { '-' };
                if matching.range(near).next().is_some() {
                    let _ = writeln!(output, "{path}{mark}{}{mark}{line}", index + 1);
                }
            }
        }
        if hits == 0 { "nothing matches".to_owned() } else { format!("{output}{hits} matches in {files} files") }
    }

    /// `=== path ===`, then numbered lines.
    fn read(&self, arguments: &Value) -> Result<String, String> {
        let files = arguments["files"].as_array().unwrap();
        let paths: BTreeSet<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
        assert_eq!(paths.len(), files.len(), "a file may be named once");
        let mut segments = Vec::new();
        for file in files {
            let path = file["path"].as_str().unwrap();
            let mut segment = format!("=== {path} ===\n");
            let Some(lines) = self.files.get(path) else { return Err(format!("{path} does not exist")) };
            let span = |key: &str| usize::try_from(file[key].as_u64().unwrap()).unwrap();
            let end = (span("offset") + span("limit")).min(lines.len());
            (span("offset")..end).for_each(|index| self.number(&mut segment, path, index));
            segments.push(segment);
        }
        Ok(segments.join("\n") + "\n(complete)")
    }

    fn number(&self, output: &mut String, path: &str, index: usize) {
        let _ = writeln!(output, "{:>6}\t{}", index + 1, self.files[path][index]);
    }

    fn task(&self, arguments: &Value, all: &mut Vec<ModelCall>) -> String {
        let tasks = arguments["tasks"].as_array().unwrap();
        assert!(!tasks.is_empty() && tasks.len() <= self.fan_out);
        let mut output = format!("Ran {} child runs:\n\n", tasks.len());
        for (index, task) in tasks.iter().enumerate() {
            let agent = task["agent"].as_str().unwrap();
            let text = self.run(agent, task["prompt"].as_str().unwrap(), &["read", "search"], all);
            assert!(text.len() <= EVIDENCE_BYTES_MAX);
            let _ = write!(output, "--- Task {} ({agent}) [OK] ---\n{text}\n\n", index + 1);
        }
        output
    }

    /// Checks that every quoted line stands where the answer says, and returns the places cited.
    fn check_citations(&self, answer: &str) -> Vec<String> {
        let source = Regex::new(r"^\d+\. (.+?):(\d+)(?:-(\d+))?(?: \(and .*\))? (?:defines it|says|has):$").unwrap();
        let mut cited = Vec::new();
        let mut rows = answer.lines().peekable();
        while let Some(row) = rows.next() {
            let Some(place) = source.captures(row) else { continue };
            let start: usize = place[2].parse().unwrap();
            let end: usize = place.get(3).map_or(start, |end| end.as_str().parse().unwrap());
            for number in start..=end {
                let quoted = rows.next().unwrap().trim();
                assert_eq!(quoted, self.files[&place[1]][number - 1].trim(), "{}:{number}\n{answer}", &place[1]);
            }
            assert!(rows.peek().is_none_or(|next| !next.starts_with("     ")), "{answer}");
            cited.push(format!("{}:{start}-{end}", &place[1]));
        }
        cited
    }
}

impl Ran {
    fn count(&self, tool: &str) -> usize {
        self.calls.iter().filter(|call| call.tool.as_str() == tool).count()
    }
}

fn definition(tool: &str) -> ToolDefinition {
    ToolDefinition { name: tool.into(), description: String::new(), parameters: json!({"type": "object"}) }
}

fn take(request: &ModelRequest) -> Result<crate::models::ModelTurn, ModelError> {
    ResearchModel.turn(request, &NoSink).now_or_never().expect("search needs no waiting")
}

const ALL: &[&str] = &["read", "search", "task"];

#[test]
fn a_question_in_two_parts_is_answered_through_child_runs() {
    let workspace = Pretended::new(ALL);
    let ran = workspace.ask("Where is the restart intensity decided, and what happens when the queue is full?");
    assert_eq!((ran.count("task"), ran.count("read")), (1, 2));
    let cited = workspace.check_citations(&ran.answer);
    assert!(ran.answer.starts_with("Extractive answer (no language model)"), "{}", ran.answer);
    assert!(ran.answer.contains("\nrestart intensity\n1. actors/restart_intensity.rs:5-"), "{}", ran.answer);
    assert!(cited.iter().any(|place| place.starts_with("docs/2024-01-02-notes.md:")), "{}", ran.answer);
    assert!(!ran.answer.contains("Not found") && !ran.answer.contains("failed"), "{}", ran.answer);
    assert!(cited.len() <= 6);
}

#[test]
fn a_name_is_answered_by_its_definition() {
    let workspace = Pretended::new(ALL);
    let ran = workspace.ask("`RestartIntensity`");
    let cited = workspace.check_citations(&ran.answer);
    assert_eq!(cited[0], "actors/restart_intensity.rs:5-8");
    assert!(ran.answer.contains("defines it:"), "{}", ran.answer);
}

#[test]
fn chinese_and_japanese_questions_are_answered() {
    let workspace = Pretended::new(ALL);
    let ran = workspace.ask("缓存服务在哪里读取Redis配置？");
    assert!(
        workspace.check_citations(&ran.answer).iter().any(|place| place.starts_with("docs/缓存.md:")),
        "{}",
        ran.answer
    );
    assert!(!ran.answer.contains("Not found"), "{}", ran.answer);
    let ran = workspace.ask("再起動の強度はどこで決定されますか？");
    assert_eq!(workspace.check_citations(&ran.answer)[0], "docs/日本語.md:3-3", "{}", ran.answer);
}

#[test]
fn without_the_task_tool_it_searches_by_itself() {
    let workspace = Pretended::new(&["read", "search"]);
    let ran = workspace.ask("where is the restart intensity decided?");
    assert_eq!((ran.count("task"), ran.count("read")), (0, 1));
    assert!(workspace.check_citations(&ran.answer)[0].starts_with("actors/restart_intensity.rs:5-"), "{}", ran.answer);
}

#[test]
fn a_refused_task_call_is_said_and_replaced() {
    let workspace = Pretended { broken: &["task"], ..Pretended::new(ALL) };
    let ran = workspace.ask("where is the restart intensity decided?");
    assert_eq!(ran.count("read"), 1);
    assert!(!workspace.check_citations(&ran.answer).is_empty());
    assert!(ran.answer.contains("some calls failed: task: task: refused by rule deny-task"), "{}", ran.answer);
}

#[test]
fn what_is_not_there_is_looked_for_twice_and_then_said() {
    let workspace = Pretended::new(ALL);
    let ran = workspace.ask("where is the flux capacitor, and the bulkhead?");
    assert!(ran.answer.contains("\nNot found: \"flux capacitor\"\n"), "{}", ran.answer);
    assert!(workspace.check_citations(&ran.answer)[0].starts_with("docs/2024-01-02-notes.md:3"), "{}", ran.answer);
    let loose = ran.calls.iter().any(|call| {
        matches!(&call.arguments, CallArguments::Parsed(value)
        if value["query"] == "capacit|flux")
    });
    assert!(loose, "{:?}", ran.calls);
}

#[test]
fn broken_tools_are_said_and_never_fatal() {
    let question = "where is the restart intensity decided?";
    for (broken, words) in [
        (&["search"][..], "search: search: refused by rule deny-search"),
        (&["read"][..], "read: read: refused by rule deny-read"),
    ] {
        let workspace = Pretended { broken, ..Pretended::new(ALL) };
        let ran = workspace.ask(question);
        assert!(ran.answer.contains(words), "{}", ran.answer);
        // What the searches showed is enough when reading fails.
        assert_eq!(workspace.check_citations(&ran.answer).is_empty(), broken == ["search"], "{}", ran.answer);
    }
    let none = Pretended::new(&[]).ask(question);
    assert!(none.calls.is_empty() && none.answer.contains("no search tool is on offer"), "{}", none.answer);
}

#[test]
fn the_fan_out_is_kept_and_every_part_is_dealt() {
    let question = "alpha, beta, gamma, delta, epsilon and the restart intensity";
    for fan_out in [0, 1, 3, 99] {
        let request = ModelRequest {
            system: String::new(),
            messages: vec![Message::User { text: question.into() }],
            tools: ALL.iter().map(|tool| definition(tool)).collect(),
            tool_calls_allowed: true,
            agent: "general".into(),
            fan_out,
            options: TurnOptions::default(),
        };
        let CallArguments::Parsed(arguments) = &take(&request).unwrap().calls[0].arguments else { panic!() };
        let tasks = arguments["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), fan_out.clamp(1, 6));
        let prompts: String = tasks.iter().map(|task| task["prompt"].as_str().unwrap()).collect();
        assert!(prompts.contains("\"text\":\"epsilon\"") && prompts.contains("\"text\":\"restart intensity\""));
    }
    let workspace = Pretended { fan_out: 3, ..Pretended::new(ALL) };
    let ran = workspace.ask(question);
    assert_eq!(ran.count("read"), 1, "only one child run finds anything");
    assert!(!workspace.check_citations(&ran.answer).is_empty(), "{}", ran.answer);
}

#[test]
fn a_second_question_starts_afresh_with_fresh_ids() {
    let mut request = ModelRequest {
        system: String::new(),
        messages: vec![Message::User { text: "where is the lane?".into() }],
        tools: vec![definition("task")].into(),
        tool_calls_allowed: true,
        agent: "general".into(),
        fan_out: 4,
        options: TurnOptions::default(),
    };
    let first = take(&request).unwrap();
    let result = ToolResult {
        call_id: first.calls[0].id.clone(),
        tool: "task".into(),
        output: "--- Task 1 (explore) [OK] ---\n{\"not_found\":[\"lane\"]}".into(),
        success: true,
    };
    let first_id = first.calls[0].id.clone();
    request.messages.extend([first.into_message(), Message::ToolResults { results: vec![result] }]);
    let last = take(&request).unwrap();
    assert!(last.text.contains("Not found: \"lane\""), "{}", last.text);
    request.messages.extend([last.into_message(), Message::User { text: "and the bulkhead?".into() }]);
    let second = take(&request).unwrap();
    assert_eq!(second.calls[0].tool.as_str(), "task");
    assert_ne!(second.calls[0].id, first_id);
}

#[test]
fn odd_conversations_end_with_a_word_or_a_clear_error() {
    let mut request = ModelRequest {
        system: String::new(),
        messages: Vec::new(),
        tools: ALL.iter().map(|tool| definition(tool)).collect(),
        tool_calls_allowed: true,
        agent: "general".into(),
        fan_out: 4,
        options: TurnOptions::default(),
    };
    assert!(matches!(take(&request), Err(ModelError::Invalid { .. })));
    for nothing in ["", "?!", "what is it?"] {
        request.messages = vec![Message::User { text: nothing.into() }];
        let turn = take(&request).unwrap();
        assert!(turn.calls.is_empty() && turn.text.contains("names nothing to search for"), "{}", turn.text);
    }
    // No rounds left, and calls that were never answered.
    request.messages = vec![Message::User { text: "where is the lane?".into() }];
    request.messages.push(take(&request).unwrap().into_message());
    request.tool_calls_allowed = false;
    let turn = take(&request).unwrap();
    assert!(turn.calls.is_empty() && turn.text.contains("task: no result came back"), "{}", turn.text);
    // A megabyte of question.
    request.tool_calls_allowed = true;
    request.messages = vec![Message::User { text: "where is the lane, or ".repeat(50_000) }];
    let size = serde_json::to_string(&take(&request).unwrap()).unwrap().len();
    assert!(size < 32 * 1024, "{size}");
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]
    #[test]
    fn any_output_of_a_tool_is_survived(
        outputs in proptest::collection::vec("([ -~\n\t\u{4e00}-\u{4e20}]|lane|:1:|-2-|=== a ===\n|     1\t|--- Task 1 \\(e\\) \\[OK\\] ---\n){0,40}", 1..4),
        agent in "general|explore",
        success: bool,
    ) {
        let mut request = ModelRequest {
            system: String::new(),
            messages: vec![Message::User { text: "where is the lane of `a_b`, \u{4e01}\u{4e02}?".into() }],
            tools: ALL.iter().map(|tool| definition(tool)).collect(),
            tool_calls_allowed: true,
            agent,
            fan_out: 2,
            options: TurnOptions::default(),
        };
        let mut outputs = outputs.into_iter().cycle();
        for _ in 0..TURNS_MAX {
            let turn = take(&request).unwrap();
            let calls = turn.calls.clone();
            if calls.is_empty() {
                proptest::prop_assert!(turn.text.len() < 16 * 1024);
                return Ok(());
            }
            request.messages.push(turn.into_message());
            let result = |call: ModelCall| ToolResult {
                call_id: call.id,
                tool: call.tool,
                output: outputs.next().unwrap_or_default(),
                success,
            };
            request.messages.push(Message::ToolResults { results: calls.into_iter().map(result).collect() });
        }
        proptest::prop_assert!(false, "no last word");
    }
}
