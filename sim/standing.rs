//! How a world stands: what is under way in it at a moment, from what was seen of it.
//!
//! It says what each unusual thing met, so that a search can be asked which faults met which states, and, of a world
//! that does not come to its end, what it waits for. It is kept in every world, so it costs little.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use toolwarden::event::EventKind;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId, ToolName};

use crate::sight::Sight;

/// Most things that are named of what is waited for.
const NAMED_MAX: usize = 8;

/// What is under way.
#[derive(Debug, Default)]
pub struct Standing {
    sessions: BTreeSet<SessionId>,
    runs: BTreeMap<(SessionId, RunId), bool>,
    calls: BTreeMap<InvocationId, (ToolName, Phase)>,
    tools: usize,
    commands: BTreeSet<u64>,
    is_down: bool,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Judged,
    Asked,
    Started,
}

impl Phase {
    fn words(self) -> &'static str {
        match self {
            Self::Judged => "waits for a decision, a budget or a slot",
            Self::Asked => "waits for a person",
            Self::Started => "has started and not ended",
        }
    }
}

impl Standing {
    /// Takes what was seen.
    pub fn take(&mut self, sight: &Sight<'_>) {
        match sight {
            Sight::Entry(entry) => {
                let (session, run) = (&entry.event.session, &entry.event.run);
                self.event(session, run.as_ref(), &entry.event.kind);
            }
            Sight::Began { .. } => self.tools += 1,
            Sight::Over { .. } => self.tools = self.tools.saturating_sub(1),
            Sight::CommandStarted { command } => {
                self.commands.insert(*command);
            }
            Sight::CommandOver { command } => {
                self.commands.remove(command);
            }
            Sight::ShutDown | Sight::Killed => self.is_down = true,
            Sight::Crashed | Sight::JournalBroke => *self = Self::default(),
            _ => {}
        }
    }

    fn event(&mut self, session: &SessionId, run: Option<&RunId>, kind: &EventKind) {
        let turn = |runs: &mut BTreeMap<(SessionId, RunId), bool>, is_asked| {
            if let Some(run) = run {
                runs.insert((session.clone(), run.clone()), is_asked);
            }
        };
        let phase = |calls: &mut BTreeMap<InvocationId, (ToolName, Phase)>, id: &InvocationId, phase| {
            if let Some((_, now)) = calls.get_mut(id) {
                *now = phase;
            }
        };
        match kind {
            EventKind::SessionOpened { .. } => drop(self.sessions.insert(session.clone())),
            EventKind::SessionClosed => drop(self.sessions.remove(session)),
            EventKind::AgentStart { .. } | EventKind::TurnEnd { .. } => turn(&mut self.runs, false),
            EventKind::TurnStart { .. } => turn(&mut self.runs, true),
            EventKind::AgentEnd { .. } | EventKind::Error { .. } => {
                if let Some(run) = run {
                    self.runs.remove(&(session.clone(), run.clone()));
                }
            }
            EventKind::ToolProposed { id, name, .. } => {
                self.calls.insert(id.clone(), (name.clone(), Phase::Judged));
            }
            EventKind::ConfirmationRequired { tool_id, .. } => phase(&mut self.calls, tool_id, Phase::Asked),
            EventKind::ConfirmationReceived { tool_id, .. } | EventKind::ConfirmationTimeout { tool_id, .. } => {
                phase(&mut self.calls, tool_id, Phase::Judged);
            }
            EventKind::ToolExecutionStart { id, .. } => phase(&mut self.calls, id, Phase::Started),
            EventKind::ToolEnd(result) => drop(self.calls.remove(&result.id)),
            _ => {}
        }
    }

    /// In plain words, and always in the same for what is alike.
    pub fn words(&self) -> &'static str {
        let phase = |wanted| self.calls.values().filter(|(_, phase)| *phase == wanted).count();
        match () {
            () if self.is_down => "a runtime that shuts down",
            () if phase(Phase::Asked) > 0 => "a question to a person",
            () if !self.commands.is_empty() => "a command at work",
            () if self.tools > 1 => "several tools at work",
            () if self.tools == 1 => "a tool at work",
            () if phase(Phase::Started) > 0 => "a call between its start and its end",
            () if !self.calls.is_empty() => "a call before its start",
            () if self.runs.values().any(|is_asked| *is_asked) => "a model that was asked",
            () if !self.runs.is_empty() => "a run between two steps",
            () if !self.sessions.is_empty() => "a session at rest",
            () => "a world without a session",
        }
    }

    /// What is waited for, by name.
    pub fn waits_for(&self) -> String {
        let calls = self.calls.iter().map(|(id, (tool, phase))| format!("call {id} of {tool} {}", phase.words()));
        let commands = self.commands.iter().map(|command| format!("command {command} runs"));
        let runs = self.runs.iter().map(|((session, run), is_asked)| {
            let what = if *is_asked { "waits for its model" } else { "goes on" };
            format!("run {run} of {session} {what}")
        });
        let mut all: Vec<String> = calls.chain(commands).chain(runs).collect();
        if all.is_empty() {
            all.extend(self.sessions.iter().map(|session| format!("session {session} is open")));
        }
        let more = all.len().saturating_sub(NAMED_MAX);
        all.truncate(NAMED_MAX);
        let mut text = all.join(", ");
        if more > 0 {
            let _ = write!(text, ", and {more} more");
        }
        if text.is_empty() { "nothing that was seen".to_owned() } else { text }
    }
}
