//! What runs now, as lines of text: each call under what asked for it, with how long it has been going on.
//!
//! Pure: events and moments go in, lines come out. A board only shows; what it missed makes it show less, never
//! wait for anything.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use toolwarden::event::EventKind;
use toolwarden_tools::ids::{InvocationId, SessionId};
use toolwarden_tools::screen_text::settled;

/// Most things that are followed at a time; more are not shown.
const FOLLOWED_MAX: usize = 4096;
/// Longest summary of a call's arguments, in characters.
const SUMMARY_CHARS_MAX: usize = 72;
/// Deepest indentation that is drawn.
const DEPTH_MAX: usize = 8;
/// Arguments that say best what a call is about, the best first.
const TELLING_ARGUMENTS: [&str; 8] =
    ["command", "query", "file_path", "path", "url", "description", "prompt", "pattern"];
/// Arguments that are lists of what a call is about.
const TELLING_LISTS: [(&str, &str); 3] = [("files", "files"), ("tasks", "tasks"), ("invocations", "calls")];

/// What runs now.
#[derive(Debug, Default)]
pub(crate) struct Board {
    items: Vec<Item>,
    calls: u64,
    failed_calls: u64,
    child_runs: u64,
}

/// One thing that runs.
#[derive(Debug)]
struct Item {
    key: Key,
    parent: Option<Key>,
    what: String,
    doing: Doing,
    since: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    /// A run, by its session.
    Run(SessionId),
    Call(InvocationId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Waiting,
    AskingYou,
    Turn(u32),
    Working,
}

impl Board {
    /// Takes an event of `session` at the moment `now`.
    pub(crate) fn take(&mut self, session: &SessionId, kind: &EventKind, now: Duration) {
        match kind {
            EventKind::AgentStart { model, .. } => {
                // A child run is there already, by its task.
                self.put(Key::Run(session.clone()), None, format!("ask {model}"), now);
            }
            EventKind::SubagentStart { session_id, parent_invocation, agent, description, .. } => {
                self.child_runs += 1;
                let parent = Key::Call(parent_invocation.clone());
                self.put(
                    Key::Run(session_id.clone()),
                    Some(parent),
                    format!("{}: {}", one_line(agent), one_line(description)),
                    now,
                );
            }
            EventKind::TurnStart { turn } => self.set(&Key::Run(session.clone()), Doing::Turn(*turn)),
            EventKind::TurnEnd { .. } => self.set(&Key::Run(session.clone()), Doing::Working),
            EventKind::ToolProposed { id, name, parent, .. } => {
                self.calls += 1;
                let parent = parent.clone().map_or_else(|| Key::Run(session.clone()), Key::Call);
                self.put(Key::Call(id.clone()), Some(parent), one_line(name.as_str()), now);
            }
            EventKind::ConfirmationRequired { tool_id, .. } => self.set(&Key::Call(tool_id.clone()), Doing::AskingYou),
            EventKind::ConfirmationReceived { tool_id, .. } | EventKind::ConfirmationTimeout { tool_id, .. } => {
                self.set(&Key::Call(tool_id.clone()), Doing::Waiting);
            }
            EventKind::ToolExecutionStart { id, name, args } => {
                if let Some(item) = self.find(&Key::Call(id.clone())) {
                    item.what = format!("{} {}", one_line(name.as_str()), summary(args)).trim_end().to_owned();
                    item.doing = Doing::Working;
                    item.since = now;
                }
            }
            EventKind::ToolEnd(result) => {
                self.failed_calls += u64::from(!result.is_success());
                self.remove(&Key::Call(result.id.clone()));
            }
            EventKind::SubagentEnd { session_id, .. } => self.remove(&Key::Run(session_id.clone())),
            EventKind::AgentEnd { .. } | EventKind::Error { .. } => self.remove(&Key::Run(session.clone())),
            _ => {}
        }
    }

    /// Forgets what runs, because events were missed and some of it may have ended.
    pub(crate) fn forget(&mut self) {
        self.items.clear();
    }

    /// The lines to show, at most `lines_max` of them, parents before what runs under them.
    pub(crate) fn lines(&self, now: Duration, lines_max: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let is_top = |item: &&Item| item.parent.as_ref().is_none_or(|parent| !self.holds(parent));
        let mut open: Vec<(usize, &Item)> = self.items.iter().filter(is_top).map(|item| (0, item)).collect();
        open.reverse();
        while let Some((depth, item)) = open.pop() {
            lines.push(item.line(depth, now));
            let below = self.items.iter().rev().filter(|child| child.parent.as_ref() == Some(&item.key));
            open.extend(below.map(|child| (depth + 1, child)));
        }
        if lines.len() > lines_max {
            let kept = lines_max.saturating_sub(1);
            let more = lines.len() - kept;
            lines.truncate(kept);
            lines.push(format!("… and {more} more"));
        }
        lines
    }

    /// What happened in all, in a few words.
    pub(crate) fn total(&self) -> String {
        let mut total = plural(self.calls, "call");
        if self.failed_calls > 0 {
            // Writing to a String cannot fail.
            let _ = write!(total, " ({} failed)", self.failed_calls);
        }
        if self.child_runs > 0 {
            let _ = write!(total, ", {}", plural(self.child_runs, "child run"));
        }
        total
    }

    fn put(&mut self, key: Key, parent: Option<Key>, what: String, now: Duration) {
        if self.items.len() < FOLLOWED_MAX && !self.holds(&key) {
            self.items.push(Item { key, parent, what, doing: Doing::Waiting, since: now });
        }
    }

    fn holds(&self, key: &Key) -> bool {
        self.items.iter().any(|item| item.key == *key)
    }

    fn find(&mut self, key: &Key) -> Option<&mut Item> {
        self.items.iter_mut().find(|item| item.key == *key)
    }

    fn set(&mut self, key: &Key, doing: Doing) {
        if let Some(item) = self.find(key) {
            item.doing = doing;
        }
    }

    fn remove(&mut self, key: &Key) {
        self.items.retain(|item| item.key != *key);
    }
}

impl Item {
    fn line(&self, depth: usize, now: Duration) -> String {
        let doing = match self.doing {
            Doing::Waiting => "waiting, ".to_owned(),
            Doing::AskingYou => "asks you, ".to_owned(),
            Doing::Turn(turn) => format!("turn {turn}, "),
            Doing::Working => String::new(),
        };
        let indent = "  ".repeat(depth.min(DEPTH_MAX));
        format!("{indent}{} ({doing}{})", self.what, span(now.saturating_sub(self.since)))
    }
}

/// A span as a person reads it: `0.4 s`, `12 s`, `3 min 5 s`.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..10 => format!("{seconds}.{} s", span.subsec_millis() / 100),
        10..60 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// A number with its noun.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// What a call is about, in one short line.
fn summary(arguments: &Value) -> String {
    let telling = TELLING_ARGUMENTS.iter().find_map(|name| arguments.get(name).and_then(Value::as_str));
    if let Some(text) = telling {
        return one_line(text);
    }
    let list = TELLING_LISTS.iter().find_map(|(name, noun)| Some((arguments.get(name)?.as_array()?.len(), noun)));
    match list {
        Some((count, noun)) => format!("{count} {noun}"),
        None if arguments.as_object().is_none_or(serde_json::Map::is_empty) => String::new(),
        None => one_line(&arguments.to_string()),
    }
}

fn one_line(text: &str) -> String {
    let start: String = text.chars().take(SUMMARY_CHARS_MAX * 4).collect();
    let words = settled(&start).split_whitespace().collect::<Vec<_>>().join(" ");
    let mut line: String = words.chars().take(SUMMARY_CHARS_MAX).collect();
    if line.len() < words.len() || start.len() < text.len() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;
    use toolwarden::call_result::CallResult;
    use toolwarden::event::EventKind;
    use toolwarden::origin::Origin;
    use toolwarden_tools::outcome::Trust;

    use super::{Board, FOLLOWED_MAX, one_line, span};

    fn proposed(id: &str, name: &str, parent: Option<&str>) -> EventKind {
        let parent = parent.map(Into::into);
        EventKind::ToolProposed { id: id.into(), name: name.into(), origin: Origin::Agent, parent }
    }

    fn ended(id: &str, exit_code: i32) -> EventKind {
        EventKind::ToolEnd(Arc::new(CallResult {
            id: id.into(),
            name: "x".into(),
            output: String::new(),
            exit_code,
            metadata: serde_json::Map::new(),
            error_kind: None,
            trust: Trust::Trusted,
            attachments: Vec::new(),
        }))
    }

    fn board(events: Vec<(&str, EventKind)>) -> Board {
        let mut board = Board::default();
        for (second, (session, kind)) in (0..).zip(events) {
            board.take(&session.into(), &kind, Duration::from_secs(second));
        }
        board
    }

    fn family() -> Vec<(&'static str, EventKind)> {
        vec![
            ("s", EventKind::AgentStart { prompt: "p".into(), model: "builtin:research".into() }),
            ("s", EventKind::TurnStart { turn: 1 }),
            ("s", proposed("t", "task", None)),
            (
                "s",
                EventKind::ToolExecutionStart { id: "t".into(), name: "task".into(), args: json!({"tasks": [1, 2]}) },
            ),
            (
                "s",
                EventKind::SubagentStart {
                    task_id: "k".into(),
                    session_id: "c".into(),
                    parent_session_id: "s".into(),
                    parent_invocation: "t".into(),
                    agent: "explore".into(),
                    description: "lanes\nand more".into(),
                    background: false,
                },
            ),
            ("c", EventKind::AgentStart { prompt: "p".into(), model: "builtin:research".into() }),
            ("c", proposed("r", "search", None)),
            ("c", proposed("n", "read", Some("r"))),
        ]
    }

    #[test]
    fn each_call_stands_under_what_asked_for_it() {
        let board = board(family());
        let lines = board.lines(Duration::from_secs(8), 99);
        assert_eq!(
            lines,
            [
                "ask builtin:research (turn 1, 8.0 s)",
                "  task 2 tasks (5.0 s)",
                "    explore: lanes and more (waiting, 4.0 s)",
                "      search (waiting, 2.0 s)",
                "        read (waiting, 1.0 s)",
            ]
        );
        assert_eq!(board.lines(Duration::from_secs(8), 2)[1], "… and 4 more");
        assert_eq!(board.total(), "3 calls, 1 child run");
    }

    #[test]
    fn what_ended_is_gone_and_what_it_leaves_behind_moves_up() {
        let mut events = family();
        events.push(("s", ended("t", 1)));
        events.push((
            "s",
            EventKind::AgentEnd {
                text: String::new(),
                usage: Default::default(),
                status: "x".into(),
                verification_summary: None,
            },
        ));
        let board = board(events);
        let lines = board.lines(Duration::from_secs(8), 99);
        assert!(lines[0].starts_with("explore: "), "{lines:?}");
        assert_eq!(board.total(), "3 calls (1 failed), 1 child run");
    }

    #[test]
    fn arguments_are_told_in_one_short_clean_line() {
        let started = |args| EventKind::ToolExecutionStart { id: "a".into(), name: "bash".into(), args };
        for (args, line) in [
            (json!({"command": "echo \u{1b}[31mhi\n\tthere"}), "bash echo hi there (0.0 s)"),
            (json!({}), "bash (0.0 s)"),
            (json!({"n": 1}), "bash {\"n\":1} (0.0 s)"),
        ] {
            let mut board = board(vec![("s", proposed("a", "bash", None))]);
            board.take(&"s".into(), &started(args), Duration::from_secs(9));
            assert_eq!(board.lines(Duration::from_secs(9), 9), [line]);
        }
        let long = one_line(&"word ".repeat(1000));
        assert!(long.ends_with('…') && long.chars().count() <= 73, "{long}");
    }

    // Found in a review: a model may propose a tool, and a task an agent, of any name.
    #[test]
    fn a_name_is_no_command_to_the_terminal() {
        let mut events = vec![("s", proposed("a", "x\u{1b}[2J\u{1b}]0;t\u{7}\ny", None))];
        events.extend(family().into_iter().filter_map(|(session, kind)| match kind {
            EventKind::SubagentStart {
                task_id,
                session_id,
                parent_session_id,
                parent_invocation,
                description,
                background,
                ..
            } => {
                let agent = "e\u{1b}[31m".into();
                let started = EventKind::SubagentStart {
                    task_id,
                    session_id,
                    parent_session_id,
                    parent_invocation,
                    agent,
                    description,
                    background,
                };
                Some((session, started))
            }
            _ => None,
        }));
        let lines = board(events).lines(Duration::from_secs(9), 9);
        assert_eq!(lines, ["x y (waiting, 9.0 s)", "e: lanes and more (waiting, 8.0 s)"]);
    }

    #[test]
    fn a_flood_is_bounded() {
        let events = (0..FOLLOWED_MAX + 10).map(|at| ("s", proposed(&at.to_string(), "x", None))).collect();
        assert_eq!(board(events).items.len(), FOLLOWED_MAX);
    }

    #[test]
    fn spans_are_short() {
        let shown = [(450, "0.4 s"), (9_999, "9.9 s"), (12_000, "12 s"), (185_000, "3 min 5 s")];
        for (ms, text) in shown {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }
}
