//! The outline of a world: what was seen of it, as signs of a picture of its tree.
//!
//! Sessions, runs, calls, child runs and commands are rows under the world; what they talk to (model, person, store,
//! files) are rows below them that appear with the first word. A world that goes on in another process begins its rows
//! anew, because nothing of the first ones lives. A call holds a slot from its start until it has children, for a slot is
//! given back while they are waited for.

use std::collections::{BTreeMap, BTreeSet};

use toolwarden::event::EventKind;
use toolwarden_actors::journal::Entry;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId};

use crate::sight::Sight;
use crate::sign::{MarkKind, Sign, SpanKind};

/// The row of the world itself.
const WORLD: u64 = 0;

/// Which rows there are.
#[derive(Debug, Default)]
pub struct Outline {
    next: u64,
    rows: BTreeMap<Thing, u64>,
    /// Calls whose tool began before the journal told of them: one without effects is told about later.
    early: BTreeSet<InvocationId>,
    signs: Vec<Sign>,
}

/// What has a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    World,
    Session(SessionId),
    Run(SessionId, RunId),
    Call(InvocationId),
    Command(u64),
    /// Somebody whom the tree talks to.
    Party(&'static str),
}

impl Outline {
    /// The signs of what was seen.
    pub fn of(&mut self, sight: &Sight<'_>) -> Vec<Sign> {
        self.row(&Thing::World, None, || "the world".to_owned());
        match sight {
            Sight::Entry(entry) => self.entry(entry),
            Sight::Stored { session, sequence, .. } => {
                let from = self.known(&Thing::Session((*session).clone()));
                self.tells(from, "store", format!("fact {sequence}"));
            }
            Sight::Saved { session, bytes } => {
                let from = self.known(&Thing::Session((*session).clone()));
                self.tells(from, "store", format!("a snapshot of {} bytes", bytes.len()));
            }
            Sight::Kept { bytes } => self.tells(WORLD, "outputs", format!("{} bytes are kept", bytes.len())),
            Sight::Replaced { path, bytes, .. } => {
                self.tells(WORLD, "files", format!("{path} is replaced by {} bytes", bytes.len()));
            }
            Sight::Logged { path, bytes, .. } => {
                self.tells(WORLD, "files", format!("{path} gets {} bytes more", bytes.len()))
            }
            Sight::LogCut { path, bytes } => self.tells(WORLD, "files", format!("{path} is cut to {bytes} bytes")),
            Sight::Removed { path, .. } => self.tells(WORLD, "files", format!("{path} is removed")),
            Sight::Landed { path, bytes, .. } => {
                self.tells(WORLD, "files", format!("{path} appears with {} bytes", bytes.len()));
            }
            Sight::Connected { url, .. } => self.tells(WORLD, "network", format!("{url} is asked")),
            Sight::Began { invocation, .. } => match self.rows.contains_key(&Thing::Call((*invocation).clone())) {
                true => self.span(invocation, SpanKind::Tool, true),
                false => drop(self.early.insert((*invocation).clone())),
            },
            Sight::Over { invocation, returned, .. } => {
                self.early.remove(*invocation);
                self.span(invocation, SpanKind::Tool, false);
                if !returned {
                    let row = self.known(&Thing::Call((*invocation).clone()));
                    self.mark(row, MarkKind::Broken, "its tool was dropped in the middle");
                }
            }
            Sight::Effect { invocation, name } => {
                let from = self.known(&Thing::Call((*invocation).clone()));
                self.tells(from, "effects", format!("{name:?} is done"));
            }
            Sight::Answered { invocation, approved, taken } => {
                let row = self.known(&Thing::Call((*invocation).clone()));
                let word = if *approved { "yes" } else { "no" };
                let heard = if *taken { "" } else { ", and nobody listens" };
                self.hears(row, "person", format!("{word}{heard}"));
            }
            Sight::CommandStarted { command } => {
                let row = self.row(&Thing::Command(*command), Some(WORLD), || format!("command {command}"));
                self.signs.push(Sign::From { row, what: SpanKind::Body });
            }
            Sight::CommandOver { command } => self.ends(&Thing::Command(*command), "nothing is left of it", false),
            Sight::Cancelled { session } => {
                let prefix = format!("s{session}");
                let named = |thing: &Thing| matches!(thing, Thing::Session(id) if id.as_str().starts_with(&prefix));
                let row = self.rows.iter().find(|(thing, _)| named(thing)).map_or(WORLD, |(_, row)| *row);
                self.mark(row, MarkKind::Cancel, "the host cancels");
            }
            Sight::ShutDown => self.mark(WORLD, MarkKind::Cancel, "the host shuts down"),
            Sight::Killed => self.mark(WORLD, MarkKind::Cancel, "the host shuts down without grace"),
            Sight::JournalBroke => self.all_end("the journal broke down"),
            Sight::Crashed => self.all_end("the process ended"),
            Sight::Revived => self.mark(WORLD, MarkKind::Ended, "another process goes on"),
            Sight::Forked { to, .. } => self.tells(WORLD, "store", format!("the fork {to}")),
            Sight::Contracted { contract } => {
                let from = self.known(&Thing::Session(contract.session.clone()));
                self.tells(from, "elsewhere", "its contract".to_owned());
            }
            Sight::Delivered { key, used } => {
                let how = if used.is_some() { "an answer" } else { "nothing any more" };
                self.hears(WORLD, "elsewhere", format!("{how} to {key}"));
            }
            // Told by the journal, or no more than a word for watchers.
            Sight::Shown { .. }
            | Sight::Forking { .. }
            | Sight::Asked { .. }
            | Sight::AskedForObject { .. }
            | Sight::Turned { .. }
            | Sight::Unsure { .. }
            | Sight::Deaf { .. }
            | Sight::Outside { .. } => {}
        }
        std::mem::take(&mut self.signs)
    }

    /// The signs of something unusual.
    pub fn met(&mut self, what: &str) -> Vec<Sign> {
        self.row(&Thing::World, None, || "the world".to_owned());
        self.mark(WORLD, MarkKind::Fault, what);
        std::mem::take(&mut self.signs)
    }

    fn entry(&mut self, entry: &Entry<toolwarden::event::Event>) {
        let session = &entry.event.session;
        let run = entry.event.run.as_ref().map(|run| Thing::Run(session.clone(), run.clone()));
        let of_session = Thing::Session(session.clone());
        match &entry.event.kind {
            EventKind::SessionOpened { .. } => {
                self.row(&of_session, Some(WORLD), || format!("session {session}"));
            }
            EventKind::SessionClosed => self.ends(&of_session, "closed", false),
            EventKind::SubagentStart { session_id, parent_invocation, agent, .. } => {
                let above = self.known(&Thing::Call(parent_invocation.clone()));
                let row =
                    self.row(&Thing::Session(session_id.clone()), Some(above), || format!("child run of {agent}"));
                self.message(above, row, "a task");
            }
            EventKind::SubagentEnd { session_id, success, .. } => {
                let words = if *success { "came to an answer" } else { "came to none" };
                self.ends(&Thing::Session(session_id.clone()), words, !success);
            }
            EventKind::AgentStart { .. } => {
                let above = self.known(&of_session);
                let Some(run) = run else { return };
                let row = self.row(&run, Some(above), || "run".to_owned());
                self.signs.push(Sign::From { row, what: SpanKind::Body });
                self.message(above, row, "a prompt");
            }
            kind => self.within(run.as_ref(), &of_session, kind),
        }
    }

    /// What happens in a run, or in a call.
    fn within(&mut self, run: Option<&Thing>, session: &Thing, kind: &EventKind) {
        let at = self.known(run.unwrap_or(session));
        match kind {
            EventKind::TurnStart { turn } => {
                self.signs.push(Sign::From { row: at, what: SpanKind::Turn });
                self.tells(at, "model", format!("turn {turn} is asked for"));
            }
            EventKind::TurnEnd { turn, stop, .. } => {
                self.signs.push(Sign::To { row: at, what: SpanKind::Turn });
                self.hears(at, "model", format!("turn {turn}: {stop}"));
            }
            EventKind::AgentEnd { status, .. } => {
                if let Some(run) = run {
                    self.ends(run, status, false);
                }
            }
            EventKind::Error { kind, .. } => {
                if let Some(run) = run {
                    self.ends(run, kind, true);
                }
            }
            EventKind::ToolProposed { id, name, parent, .. } => {
                let above = match parent {
                    Some(parent) => self.known(&Thing::Call(parent.clone())),
                    None => at,
                };
                // Whoever waits for children gives its slot back.
                self.signs.push(Sign::To { row: above, what: SpanKind::Slot });
                let row = self.row(&Thing::Call(id.clone()), Some(above), || name.to_string());
                self.message(above, row, "is proposed");
                if self.early.remove(id) {
                    self.span(id, SpanKind::Tool, true);
                }
            }
            EventKind::ToolRequestBound { tool_id, .. } => self.span(tool_id, SpanKind::Waiting, true),
            EventKind::ConfirmationRequired { tool_id, .. } => {
                self.span(tool_id, SpanKind::Waiting, false);
                self.span(tool_id, SpanKind::Question, true);
                let row = self.known(&Thing::Call(tool_id.clone()));
                self.tells(row, "person", "may it run?".to_owned());
            }
            EventKind::ConfirmationReceived { tool_id, .. } | EventKind::ConfirmationTimeout { tool_id, .. } => {
                self.span(tool_id, SpanKind::Question, false);
                self.span(tool_id, SpanKind::Waiting, true);
            }
            EventKind::PermissionDenied { tool_id, reason, .. } => {
                let row = self.known(&Thing::Call(tool_id.clone()));
                self.mark(row, MarkKind::Broken, &format!("is refused: {reason}"));
            }
            EventKind::ToolExecutionStart { id, .. } => {
                self.span(id, SpanKind::Waiting, false);
                self.span(id, SpanKind::Slot, true);
            }
            EventKind::ToolEnd(result) => {
                let words = match &result.error_kind {
                    None => format!("exit code {}", result.exit_code),
                    Some(error) => format!("{error:?}").split([' ', '{', '(']).next().unwrap_or_default().to_owned(),
                };
                self.ends(&Thing::Call(result.id.clone()), &words, !result.is_success());
            }
            _ => {}
        }
    }

    /// The row of a thing, which begins when it is not there yet.
    fn row(&mut self, thing: &Thing, above: Option<u64>, label: impl FnOnce() -> String) -> u64 {
        if let Some(row) = self.rows.get(thing) {
            return *row;
        }
        let row = self.next;
        self.next += 1;
        self.rows.insert(thing.clone(), row);
        self.signs.push(Sign::Begins { row, above, label: label() });
        row
    }

    /// The row of a thing; that of the world when it has none.
    fn known(&self, thing: &Thing) -> u64 {
        self.rows.get(thing).copied().unwrap_or(WORLD)
    }

    fn span(&mut self, call: &InvocationId, what: SpanKind, begins: bool) {
        if let Some(row) = self.rows.get(&Thing::Call(call.clone())).copied() {
            self.signs.push(if begins { Sign::From { row, what } } else { Sign::To { row, what } });
        }
    }

    fn mark(&mut self, row: u64, what: MarkKind, words: &str) {
        self.signs.push(Sign::Mark { row: Some(row), what, words: words.to_owned() });
    }

    fn message(&mut self, from: u64, to: u64, words: impl Into<String>) {
        self.signs.push(Sign::Message { from, to, words: words.into() });
    }

    fn party(&mut self, name: &'static str) -> u64 {
        self.row(&Thing::Party(name), None, || name.to_owned())
    }

    fn tells(&mut self, from: u64, party: &'static str, words: String) {
        let to = self.party(party);
        self.message(from, to, words);
    }

    fn hears(&mut self, to: u64, party: &'static str, words: String) {
        let from = self.party(party);
        self.message(from, to, words);
    }

    fn ends(&mut self, thing: &Thing, words: &str, is_bad: bool) {
        if let Some(row) = self.rows.remove(thing) {
            self.signs.push(Sign::Ends { row, words: words.to_owned(), is_bad });
        }
    }

    /// Nothing of this process lives any more.
    fn all_end(&mut self, words: &str) {
        self.mark(WORLD, MarkKind::Broken, words);
        let is_of_process = |thing: &Thing| !matches!(thing, Thing::World | Thing::Party(_));
        let over: Vec<Thing> = self.rows.keys().filter(|thing| is_of_process(thing)).cloned().collect();
        for thing in over {
            self.ends(&thing, words, true);
        }
    }
}
